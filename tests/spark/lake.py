"""The archive as any other tool sees it: plain Parquet files in a directory."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.dataset as ds


def table(place: Path, stream: str) -> pa.Table:
    """All rows of all files, by partition and index."""
    files = ds.dataset(place / quote(stream, safe=""), format="parquet", partitioning="hive")
    return files.to_table().sort_by([("partition", "ascending"), ("index", "ascending")])


def positions(place: Path, stream: str) -> list[tuple[int, int]]:
    found = table(place, stream)
    return list(zip(found["partition"].to_pylist(), found["index"].to_pylist(), strict=True))
