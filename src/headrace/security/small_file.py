"""Reading a file that somebody else may replace while the hub runs, with whatever it may be."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from headrace.units import MIB

BYTES_MAX: Final = 16 * MIB
"""Room for some hundred thousand users. The event loop reads it, and parses what it read."""


Stamp = tuple[int, int, int, int]


def stamp(status: os.stat_result) -> Stamp:
    """Differs when the file is another, or holds something else. Who writes a file anew may give it back its old time
    and size; the time of that change is the system's own."""
    return status.st_ctime_ns, status.st_mtime_ns, status.st_size, status.st_ino


def read(path: Path) -> bytes:
    """All of it. Raises `OSError` for a pipe, which would never end or never begin, a device, and what is too large."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    if len(data) > BYTES_MAX:
        raise OSError(0, f"larger than {BYTES_MAX} bytes")
    return data
