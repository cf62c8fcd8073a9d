"""Arrow Flight: bulk read and write of record batches, and every verb of the hub."""
