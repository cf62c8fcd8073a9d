"""How much memory the process has, and giving it back to the machine after a burst.

glibc keeps what was freed in arenas of its own; after gigabytes of appends that can be several times what is in use.
A hub that has gone quiet hands it back.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable

from headrace.units import MIB

QUIET_S = 2.0
MUCH_BYTES = 64 * MIB
M_MMAP_THRESHOLD = -3
"""A number of `mallopt`."""
PIECES_BYTES = 16 * MIB
"""So much may have come in pieces since they were last given back."""
LARGE_BYTES = 4 * MIB
"""Only messages of this size count: the pieces of smaller ones are used again, and to give those back is what costs."""
PIECES_S = 0.1
LAST_S = 1.0
LESS_BYTES = 16 * MIB
"""A process that is smaller by this much than it was has let go of something."""
PAUSE_MAX = 64
"""The most looks, one every `QUIET_S`, between two tries that did not help."""


def resident_bytes() -> int:
    """Memory of this process; 0 where the system does not tell."""
    try:
        return int(read_statm().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def read_statm() -> str:
    """What Linux says of the memory of this process, in pages."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return file.read()


def keep_large_apart() -> None:
    """Have glibc take memory of its own for each large piece, and return it with the piece. By itself it raises what it
    takes for large with the largest that was freed, up to 32 MiB, and then keeps what large messages leave."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


def find_trim() -> Callable[[int], int] | None:
    """glibc's malloc_trim, or None where the C library has none."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return trim


def give_back() -> None:
    """What recovery used and needs no more: a hub that has only started is quiet from the beginning."""
    trim = find_trim()
    if trim is not None:
        trim(0)


class GivesBack:
    """For messages that come in many small pieces, as gRPC's do, which are freed when the message is whole: they are
    given back at once. That takes some milliseconds: it is done when much has come, ten times a second at most, by a
    thread that is there as long as much comes; and once more when no more has come for a second: some of what came last
    was in use still."""

    def __init__(
        self, trim: Callable[[int], int] | None, pause: Callable[[float], object] = lambda pause_s: time.sleep(pause_s)
    ) -> None:
        self._trim = trim
        self._pause = pause
        self._came_bytes = 0
        self._is_at_work = False
        self._lock = threading.Lock()

    def after(self, nbytes: int) -> None:
        """The pieces of a message of this size are free: it is whole, or its connection gone. From any thread."""
        if self._trim is None or nbytes < LARGE_BYTES:
            return
        with self._lock:
            self._came_bytes += nbytes
            if self._came_bytes < PIECES_BYTES or self._is_at_work:
                return
            self._is_at_work = True
        threading.Thread(target=self._work, args=(self._trim,), name="gives-back", daemon=True).start()

    def _work(self, trim: Callable[[int], int]) -> None:
        while True:
            with self._lock:
                self._came_bytes = 0
            trim(0)
            self._pause(PIECES_S)
            if self._has_enough():
                continue
            self._pause(LAST_S)
            if not self._has_enough():
                trim(0)
            with self._lock:
                self._is_at_work = self._came_bytes >= PIECES_BYTES
                if not self._is_at_work:
                    return

    def _has_enough(self) -> bool:
        with self._lock:
            return self._came_bytes >= PIECES_BYTES


async def trim_when_quiet(
    activity: Callable[[], float], trim: Callable[[int], int] | None, resident: Callable[[], int] = resident_bytes
) -> None:
    """Trim once after each burst: when `activity` has moved since the last trim and now stands still; or, although
    others are at work, when the process has grown much. What did not go then may have been in use then: it is tried
    again, more and more seldom as long as it does not help, and soon when the process has become smaller: somebody has
    let go of something."""
    if trim is None:
        return
    seen = trimmed = activity()
    least = after = resident()
    looks = pause = 1
    most = after
    while True:
        await asyncio.sleep(QUIET_S)
        now, size = activity(), resident()
        most = max(most, size)
        if most - size >= LESS_BYTES:
            most, pause = size, 1
        least = min(least, size)
        after = min(after, size)
        looks += 1
        is_quiet = now == seen and now != trimmed
        if is_quiet or size - after >= MUCH_BYTES or (size - least >= MUCH_BYTES and looks >= pause):
            await asyncio.to_thread(trim, 0)
            trimmed, after = now, resident()
            pause = 2 if size - after >= MUCH_BYTES else min(2 * pause, PAUSE_MAX)
            looks, most = 0, after
        seen = now
