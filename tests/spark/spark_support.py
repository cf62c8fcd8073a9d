"""What the Spark tests share besides their fixtures."""

from __future__ import annotations

import os
import socket
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
# A short life: compile quickly rather than well, and collect garbage without extra threads.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def environment() -> dict[str, str]:
    known = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{known}" if known else str(SOURCE)}


def free_address() -> str:
    """An address of this machine where nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def forget_commit(checkpoint: Path) -> int:
    """Make Spark forget that its last batch was done, as when its driver dies right after the sink's commit."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for path in (commits / str(last), commits / f".{last}.crc", commits / f"{last}.checksum"):
        path.unlink(missing_ok=True)
    for path in commits.glob(f"*{last}*crc*"):
        path.unlink()
    return last
