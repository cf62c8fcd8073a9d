"""What the Spark tests share besides their fixtures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.early import JAVA_OPTIONS

from headrace.spark.java import find_java
from headrace.spark.spark_session import archive_option

SOURCE = Path(__file__).parents[2] / "src"
ENGINES = [pytest.param("java", marks=pytest.mark.needs("javac")), "python"]
"""For tests of both. Without the first, its tests would be those of the second."""


def java_options() -> str:
    """Of a JVM that lives for seconds, once the class archive is made. A session with a local master adds it itself."""
    return f"{JAVA_OPTIONS} {archive_option(find_java(), create=False)}"


def environment() -> dict[str, str]:
    known = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{known}" if known else str(SOURCE)}


def forget_commit(checkpoint: Path) -> int:
    """Make Spark forget that its last batch was done, as when its driver dies right after the sink's commit."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for path in (commits / str(last), commits / f".{last}.crc", commits / f"{last}.checksum"):
        path.unlink(missing_ok=True)
    for path in commits.glob(f"*{last}*crc*"):
        path.unlink()
    return last
