"""The disk is an argument of the log: this is all that the log ever does to one.

`OsDisk` is the real thing. `headrace.testing` has one in memory that loses what was not synced, and one that fails
when told to. Paths are relative to the data directory, with forward slashes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from headrace.errors import DataDirectoryLocked

FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What a write answers when there is no room: nothing is broken, and room may come back."""
PIECES_MAX = 1024
"""Of one call, by POSIX's IOV_MAX."""


class AppendFile(Protocol):
    """A file open for appending. `write` may be short, as write(2) may."""

    def write(self, data: bytes | memoryview) -> int: ...

    def sync(self) -> None:
        """fdatasync: returns when the bytes written so far would survive a power cut."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file; the next write goes there."""
        ...

    def close(self) -> None: ...


class SyncedFile(Protocol):
    """A file in which every write is durable when it returns."""

    def write_at(self, offset: int, pieces: Sequence[bytes]) -> None:
        """Write all pieces, one behind the other, from a place in the file on. When it raises, any part of them may be
        there, and nothing else has changed."""
        ...

    def truncate(self, size: int) -> None: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A directory tree with POSIX durability: file contents need `sync`, names need `sync_dir`."""

    def create(self, path: str) -> AppendFile:
        """A new empty file, or an old one emptied."""
        ...

    def open_append(self, path: str) -> AppendFile:
        """An existing file, positioned at its end."""
        ...

    def open_synced(self, path: str) -> SyncedFile:
        """A file to be written anywhere, with what it holds; an empty one when it is new."""
        ...

    def read(self, path: str) -> bytes: ...

    def read_range(self, path: str, offset: int, size: int) -> bytes: ...

    def map(self, path: str) -> pa.Buffer:
        """The whole file as a buffer that stays valid after the file's name is gone."""
        ...

    def size(self, path: str) -> int: ...

    def list(self, directory: str) -> list[str]:
        """Names in a directory, sorted; empty when it does not exist."""
        ...

    def make_dirs(self, directory: str) -> None: ...

    def rename(self, old: str, new: str) -> None: ...

    def unlink(self, path: str) -> None:
        """Remove a file, if it is there."""
        ...

    def remove_dir(self, directory: str) -> None:
        """Remove an empty directory, if it is there."""
        ...

    def sync_dir(self, directory: str) -> None: ...

    def free_bytes(self) -> int: ...

    def local_path(self, path: str) -> str | None:
        """Where another process on this machine finds the file, if it can."""
        ...

    def close(self) -> None: ...


class OsAppendFile:
    """A file descriptor."""

    def __init__(self, path: Path, flags: int) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | flags, 0o640)

    def write(self, data: bytes | memoryview) -> int:
        return os.write(self._fd, data)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def close(self) -> None:
        os.close(self._fd)


class OsSyncedFile:
    """A file descriptor. Writing and syncing are one call of the system, in which no other thread has to wait."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)

    def write_at(self, offset: int, pieces: Sequence[bytes]) -> None:
        left = [memoryview(piece) for piece in pieces if piece]
        while left:
            written = os.pwritev(self._fd, left[:PIECES_MAX], offset, os.RWF_DSYNC)
            offset += written
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if written:
                left[0] = left[0][written:]

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class OsDisk:
    """A directory of the operating system, locked against a second hub."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root).absolute()
        self._root.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._root / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._lock, 32, 0).decode(errors="replace").strip()
            os.close(self._lock)
            raise DataDirectoryLocked(
                f"data directory {self._root} is in use by another hub"
                f"{f' (process {owner})' if owner else ''}; stop it, or choose another directory with --data"
            ) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def create(self, path: str) -> OsAppendFile:
        return OsAppendFile(self._root / path, os.O_CREAT | os.O_TRUNC)

    def open_append(self, path: str) -> OsAppendFile:
        return OsAppendFile(self._root / path, 0)

    def open_synced(self, path: str) -> OsSyncedFile:
        return OsSyncedFile(self._root / path)

    def read(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def read_range(self, path: str, offset: int, size: int) -> bytes:
        with open(self._root / path, "rb") as file:
            file.seek(offset)
            return file.read(size)

    def map(self, path: str) -> pa.Buffer:
        with pa.memory_map(str(self._root / path)) as file:
            return file.read_buffer()

    def size(self, path: str) -> int:
        return (self._root / path).stat().st_size

    def list(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(self._root / directory))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def make_dirs(self, directory: str) -> None:
        """Create a directory and its parents, and make the new names durable."""
        missing = []
        at = self._root / directory
        while not at.is_dir():
            missing.append(at)
            at = at.parent
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            fsync_directory(path.parent)

    def rename(self, old: str, new: str) -> None:
        os.rename(self._root / old, self._root / new)

    def unlink(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._root / path)

    def remove_dir(self, directory: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(self._root / directory)

    def sync_dir(self, directory: str) -> None:
        fsync_directory(self._root / directory)

    def free_bytes(self) -> int:
        status = os.statvfs(self._root)
        return status.f_bavail * status.f_frsize

    def local_path(self, path: str) -> str | None:
        return str(self._root / path)

    def close(self) -> None:
        os.close(self._lock)


class Room:
    """How much is free. The disk is asked only when the answer may matter: each call can cost a thread its turn."""

    MARGIN_BYTES = 1024 * 1024 * 1024
    """With less than this to spare it is asked every time."""
    CHECK_BYTES = 64 * 1024 * 1024
    """It is asked again after so much was written: others use the disk too."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._free_bytes = 0
        self._used_bytes = 0

    def free_bytes(self, needed: int) -> int:
        """Exact when it is near what is needed."""
        if self._free_bytes - self._used_bytes < needed + self.MARGIN_BYTES or self._used_bytes > self.CHECK_BYTES:
            self._free_bytes, self._used_bytes = self._disk.free_bytes(), 0
        return self._free_bytes - self._used_bytes

    def use(self, size: int) -> None:
        self._used_bytes += size


def fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(file: AppendFile, data: bytes | memoryview) -> None:
    """Write every byte, however short the single writes are."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


@contextlib.contextmanager
def durable_file(disk: Disk, directory: str, name: str) -> Iterator[AppendFile]:
    """A file to write, put in place as a whole when the block ends: readers and crashes see all of it or nothing."""
    temporary = f"{directory}/{name}.tmp"
    file = disk.create(temporary)
    try:
        yield file
        file.sync()
    except BaseException:
        file.close()
        disk.unlink(temporary)
        raise
    file.close()
    disk.rename(temporary, f"{directory}/{name}")
    disk.sync_dir(directory)


def write_durably(disk: Disk, directory: str, name: str, data: bytes | memoryview) -> None:
    """Put a whole file in place at once."""
    with durable_file(disk, directory, name) as file:
        write_all(file, data)
