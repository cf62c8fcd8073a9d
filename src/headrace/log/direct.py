"""A file whose writes go past the page cache and are durable when they return: what the journal is written to.

The disk takes whole blocks from memory that begins with a block. So a write is laid out in a stage first: the bytes
that share its first block, its own, and zeros to the end of its last block. The bytes before are rewritten as they are.

Where the system or the file refuses that (other alignment, no such call, a limit on file sizes), the same blocks take
the ordinary way through the page cache and are synced by a call of their own.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

BLOCK = 4096
"""A multiple of the logical block of every disk that we know of."""
STAGE_BYTES = 4 * 1024 * 1024
"""A longer write becomes several."""
REFUSALS = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})
"""What a system answers that knows the call, but not for this file."""

_O_DIRECT = getattr(os, "O_DIRECT", 0)
_RWF_DSYNC = getattr(os, "RWF_DSYNC", 0)


def syncs_new_sizes(release: str) -> bool:
    """Whether a direct write that makes a file longer is as durable as others. Linux before 6.7 may have said so before
    the new size was."""
    major, minor, *_ = (int(number) for number in re.findall(r"\d+", release + ".0.0"))
    return (major, minor) >= (6, 7)


_SYNCS_NEW_SIZES = syncs_new_sizes(os.uname().release)


class OsSyncedFile:
    """A file descriptor. Writing and syncing are one call of the system, in which no other thread has to wait."""

    def __init__(self, path: Path) -> None:
        self._stage = np.frombuffer(mmap.mmap(-1, STAGE_BYTES), np.uint8)
        self._stage_at = 0
        """Where in the file the stage's first byte is."""
        self._staged = 0
        """How many of its bytes are in the file."""
        self.is_direct = bool(_O_DIRECT and _RWF_DSYNC)
        self._fd = self._open(path)
        self._size = os.fstat(self._fd).st_size

    def _open(self, path: Path) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        if self.is_direct:
            try:
                return os.open(path, flags | _O_DIRECT, 0o640)
            except OSError as error:
                if error.errno not in REFUSALS:
                    raise
                self.is_direct = False
        return os.open(path, flags, 0o640)

    def write_at(self, offset: int, pieces: Sequence[bytes]) -> None:
        at = offset - offset % BLOCK
        filled = offset - at
        self._load(at, filled)
        for piece in pieces:
            left = np.frombuffer(piece, np.uint8)
            while len(left):
                taken = min(len(left), STAGE_BYTES - filled)
                self._stage[filled : filled + taken] = left[:taken]  # numpy copies without Python's lock
                filled += taken
                left = left[taken:]
                if filled == STAGE_BYTES:
                    self._put(at, filled)
                    at += filled
                    filled = 0
        rest = -filled % BLOCK
        self._stage[filled : filled + rest] = 0
        self._put(at, filled + rest)
        self._stage_at, self._staged = at, filled

    def _load(self, at: int, size: int) -> None:
        """Begin the stage with bytes that the file has already."""
        start = at - self._stage_at
        if start >= 0 and start + size <= self._staged:
            self._stage[:size] = self._stage[start : start + size]
        elif size and self._read(at) < size:
            raise OSError(errno.EIO, "the file ends before the place to be written")
        self._staged = 0  # until they are written: a write that fails leaves nothing to rely on

    def _read(self, at: int) -> int:
        """A block of the file, into the stage's first."""
        try:
            return os.preadv(self._fd, [self._stage[:BLOCK].data], at)
        except OSError as error:
            self._give_in_to(error)
            return os.preadv(self._fd, [self._stage[:BLOCK].data], at)

    def _put(self, at: int, size: int) -> None:
        """Write the stage's first bytes, whole blocks, durably."""
        done = 0
        while done < size and self.is_direct:
            try:
                done += os.pwritev(self._fd, [self._stage[done:size].data], at + done, _RWF_DSYNC)
            except OSError as error:
                self._give_in_to(error)
            if done % BLOCK:  # the disk cannot go on from here
                self._take_the_ordinary_way()
        while done < size:
            done += os.pwrite(self._fd, self._stage[done:size].data, at + done)
        if not self.is_direct or (at + size > self._size and not _SYNCS_NEW_SIZES):
            os.fdatasync(self._fd)
        self._size = max(self._size, at + size)

    def _give_in_to(self, error: OSError) -> None:
        """Go on without direct access if it was that which was refused."""
        if not self.is_direct or error.errno not in REFUSALS:
            raise error
        self._take_the_ordinary_way()

    def _take_the_ordinary_way(self) -> None:
        """With the same descriptor: the file may have been given another name since it was opened."""
        self.is_direct = False
        fcntl.fcntl(self._fd, fcntl.F_SETFL, fcntl.fcntl(self._fd, fcntl.F_GETFL) & ~_O_DIRECT)

    def truncate(self, size: int) -> None:
        self._staged = 0
        self._size = size
        os.ftruncate(self._fd, size)
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)
