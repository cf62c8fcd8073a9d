"""The disk is an argument of the log: this is all that the log ever does to one.

`OsDisk` is the real thing. `headrace.testing` has one in memory that loses what was not synced, and one that fails
when told to. Paths are relative to the data directory, with forward slashes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, Self

import pyarrow as pa

from headrace.errors import DataDirectoryLocked
from headrace.log.direct import OsSyncedFile

FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What a write answers when there is no room: nothing is broken, and room may come back."""
LOCK = "LOCK"
"""Held by the process that has the directory open, whose number it contains."""
LOCK_WAIT_S = 5.0
"""So long the lock of a hub that is gone is waited for: the process that sealed for it ends right after it."""
TEMPORARY = ".tmp"
"""The end of the name of a file that is not whole yet."""
PRIVATE = 0o700
"""Rights of a data directory, and of its copies: records are their owner's."""
PIECES_MAX = 1024
"""Of one call, by POSIX's IOV_MAX."""

SYNC_FILE_RANGE_WRITE = 2
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
"""Of Linux. Python has no name for it."""
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


class SyncFailed(OSError):
    """The disk could not make something durable. The system may have forgotten what it was given: whoever syncs the
    same file again can be told that all is well, and it is not."""


def is_final(error: OSError) -> bool:
    """Whether the disk has failed, and did not only refuse something: whoever keeps a log on it has to end."""
    return isinstance(error, SyncFailed) or error.errno == errno.EIO


@contextlib.contextmanager
def _syncing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in FULL_ERRNOS:
            raise  # a new file may find room
        raise SyncFailed(error.errno, error.strerror, error.filename) from error


class AppendFile(Protocol):
    """A file open for appending."""

    def write(self, *pieces: bytes | memoryview) -> int:
        """Write pieces, one behind the other. May be short, as writev(2) may; `write_all` writes the rest."""
        ...

    def begin_sync(self) -> None:
        """Have the disk begin to take what was written, without waiting for it. Promises nothing."""
        ...

    def sync(self) -> None:
        """fdatasync: returns when the bytes written so far would survive a power cut. Raises `SyncFailed`."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file; the next write goes there."""
        ...

    def close(self) -> None: ...


class SyncedFile(Protocol):
    """A file in which every write is durable when it returns."""

    def write_at(self, offset: int, pieces: Sequence[bytes]) -> None:
        """Write all pieces, one behind the other, from a place in the file on. Zeros may follow them, up to the end of
        a block. When it raises, any part of that may be there, and nothing before it has changed."""
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

    def sync_dir(self, directory: str) -> None:
        """Make the names in it durable. Raises `SyncFailed`."""
        ...

    def free_bytes(self) -> int: ...

    def local_path(self, path: str) -> str | None:
        """Where another process on this machine finds the file, if it can."""
        ...

    def handover(self) -> tuple[str, int] | None:
        """The directory and the descriptor of its lock, for a process that works for this one; None without such."""
        ...

    def close(self) -> None: ...


class OsAppendFile:
    """A file descriptor."""

    def __init__(self, path: Path, flags: int) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | flags, 0o640)
        self._begun = 0

    def write(self, *pieces: bytes | memoryview) -> int:
        return os.writev(self._fd, pieces[:PIECES_MAX])

    def begin_sync(self) -> None:
        if _sync_file_range is not None:
            end = os.fstat(self._fd).st_size
            _sync_file_range(self._fd, self._begun, end - self._begun, SYNC_FILE_RANGE_WRITE)
            self._begun = end

    def sync(self) -> None:
        with _syncing():
            os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def close(self) -> None:
        os.close(self._fd)


class OsDisk:
    """A directory of the operating system, locked against a second hub."""

    def __init__(self, root: str | os.PathLike[str], *, lock: int | None = None) -> None:
        """`lock` is the descriptor of a lock that was handed over; without it the directory is locked."""
        self._root = Path(root).absolute()
        self._prefix = f"{self._root}/"
        self._lock = _lock_directory(self._root) if lock is None else lock

    def create(self, path: str) -> OsAppendFile:
        return OsAppendFile(self._root / path, os.O_CREAT | os.O_TRUNC)

    def open_append(self, path: str) -> OsAppendFile:
        return OsAppendFile(self._root / path, 0)

    def open_synced(self, path: str) -> OsSyncedFile:
        return OsSyncedFile(self._root / path)

    def read(self, path: str) -> bytes:
        return self._file(path).read_bytes()

    def read_range(self, path: str, offset: int, size: int) -> bytes:
        with open(self._file(path), "rb") as file:
            file.seek(offset)
            return file.read(size)

    def map(self, path: str) -> pa.Buffer:
        with pa.memory_map(str(self._file(path))) as file:
            return file.read_buffer()

    def _file(self, path: str) -> Path:
        """To be read: a pipe or a device would give bytes without end, or none ever."""
        file = self._root / path
        mode = file.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # a directory says so itself
            raise OSError(errno.EINVAL, "it is no file but a pipe or a device", str(file))
        return file

    def size(self, path: str) -> int:
        return os.stat(f"{self._prefix}{path}").st_size

    def list(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(f"{self._prefix}{directory}"))
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

    def handover(self) -> tuple[str, int] | None:
        return str(self._root), self._lock

    def close(self) -> None:
        os.close(self._lock)


def _lock_directory(root: Path) -> int:
    root.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    _keep_off_standard_descriptors()
    descriptor = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            if not _is_gone(owner) or time.monotonic() > deadline:
                os.close(descriptor)
                raise DataDirectoryLocked(
                    f"data directory {root} is in use by another hub"
                    f"{f' (process {owner})' if owner else ''}; stop it, or choose another directory with --data"
                ) from error
            time.sleep(0.01)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _keep_off_standard_descriptors() -> None:
    """A process started without standard input or output must not get a file of the log for one: whatever prints would
    write to it, and no other process could inherit it."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _is_gone(owner: str) -> bool:
    """Whether the process that wrote its number into the lock has ended, even if nobody has noticed yet."""
    try:
        os.kill(int(owner), 0)
        state = Path(f"/proc/{int(owner)}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return True
    except FileNotFoundError:  # gone just now; or a system without /proc
        return os.path.exists("/proc/self")
    except (ValueError, PermissionError):
        return False
    return state in "ZX"


class FreeSpace:
    """How much is free. The disk is asked only when the answer may matter: each call can cost a thread its turn."""

    MARGIN_BYTES = 1024 * 1024 * 1024
    """With less than this to spare it is asked every time."""
    CHECK_BYTES = 64 * 1024 * 1024
    """It is asked again after so much was written: others use the disk too."""

    def __init__(self, ask: Callable[[], int]) -> None:
        self._ask = ask
        self._free_bytes = 0
        self._used_bytes = 0

    def free_bytes(self, needed: int) -> int:
        """Exact when it is near what is needed."""
        if self._free_bytes - self._used_bytes < needed + self.MARGIN_BYTES or self._used_bytes > self.CHECK_BYTES:
            self._free_bytes, self._used_bytes = self._ask(), 0
        return self._free_bytes - self._used_bytes

    def use(self, size: int) -> None:
        self._used_bytes += size


def fsync(descriptor: int) -> None:
    """As `os.fsync`. Raises `SyncFailed`."""
    with _syncing():
        os.fsync(descriptor)


def fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(file: AppendFile, *pieces: bytes | memoryview) -> None:
    """Write every byte, however short the single writes are."""
    left = [memoryview(piece) for piece in pieces if len(piece)]
    while left:
        written = file.write(*left)
        done = 0
        while done < len(left) and written >= len(left[done]):
            written -= len(left[done])
            done += 1
        del left[:done]
        if written:
            left[0] = left[0][written:]


class NewFile:
    """A file on its way, put in place as a whole by `finish`: readers and crashes see all of it or nothing. As a
    context it is finished at the end, or given up after an error."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._file: AppendFile | None = disk.create(path + TEMPORARY)

    @property
    def name(self) -> str:
        return self._path

    @property
    def _open_file(self) -> AppendFile:
        assert self._file is not None
        return self._file

    def write(self, *pieces: bytes | memoryview) -> None:
        write_all(self._open_file, *pieces)

    def begin_sync(self) -> None:
        self._open_file.begin_sync()

    def sync(self) -> None:
        self._open_file.sync()

    def finish(self) -> None:
        try:
            self.sync()
        except BaseException:
            self.abort()
            raise
        self._close()
        self._disk.rename(self._path + TEMPORARY, self._path)
        self._disk.sync_dir(self._path.rpartition("/")[0] or ".")

    def abort(self) -> None:
        if self._file is not None:
            self._close()
            self._disk.unlink(self._path + TEMPORARY)

    def _close(self) -> None:
        self._open_file.close()
        self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
        else:
            self.abort()
