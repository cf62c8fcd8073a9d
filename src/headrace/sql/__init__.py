"""SQL at once: DuckDB over the hub's Arrow data, for the rights of whoever asks (`engine.py`)."""
