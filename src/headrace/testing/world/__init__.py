"""A whole hub with its clients in one simulated world: see `world.py`."""
