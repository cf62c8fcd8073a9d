"""Disks for tests: one in memory that knows what a power cut would take, and one that fails when told to."""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence

import pyarrow as pa

from headrace.log.disk import AppendFile, SyncedFile

Names = list[str]


class _MemoryFile:
    """Contents as the running system sees them, and as the platter has them."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()

    def lose_unsynced(self, random: random.Random) -> bytes:
        """What a power cut may leave: synced bytes for certain, others in part, torn or zero, page by page."""
        page = 512
        left = bytearray(self.durable)
        if len(self.data) < len(left):
            return bytes(left) if random.random() < 0.5 else bytes(self.data)
        kept = random.randint(len(left), len(self.data))
        for start in range(0, kept, page):
            end = min(start + page, kept)
            fresh, synced = self.data[start:end], left[start:end]
            if fresh[: len(synced)] != synced:  # written over, and the new bytes may have reached the platter or not
                left[start:end] = random.choice([fresh, synced + bytes(len(fresh) - len(synced))])
            elif random.random() < 0.7:
                left[start:end] = fresh
            else:
                left[start:end] = synced + bytes(len(fresh) - len(synced))
        return bytes(left)


class _MemoryAppendFile:
    def __init__(self, file: _MemoryFile) -> None:
        self._file = file

    def write(self, *pieces: bytes | memoryview) -> int:
        data = b"".join(pieces)
        self._file.data += data
        return len(data)

    def begin_sync(self) -> None:
        pass

    def sync(self) -> None:
        self._file.durable = bytearray(self._file.data)

    def truncate(self, size: int) -> None:
        del self._file.data[size:]

    def close(self) -> None:
        pass


class _MemorySyncedFile:
    def __init__(self, file: _MemoryFile) -> None:
        self._file = file

    def write_at(self, offset: int, pieces: Sequence[bytes]) -> None:
        data = b"".join(pieces)
        self.put(offset, data)
        self.sync(offset, len(data))

    def put(self, offset: int, data: bytes) -> None:
        """The part of a write that a power cut may take."""
        self._file.data[offset : offset + len(data)] = data

    def sync(self, offset: int, size: int) -> None:
        self._file.durable[offset : offset + size] = self._file.data[offset : offset + size]

    def truncate(self, size: int) -> None:
        del self._file.data[size:], self._file.durable[size:]

    def close(self) -> None:
        pass


class MemoryDisk:
    """A disk in memory. `after_power_cut` gives the disk that a machine would find when it comes back."""

    def __init__(self, free_bytes: int = 2**40) -> None:
        self._names: dict[str, _MemoryFile] = {}
        self._durable_names: dict[str, _MemoryFile] = {}
        self._free_bytes = free_bytes

    def create(self, path: str) -> AppendFile:
        file = _MemoryFile()
        self._names[path] = file
        return _MemoryAppendFile(file)

    def open_append(self, path: str) -> AppendFile:
        return _MemoryAppendFile(self._find(path))

    def open_synced(self, path: str) -> _MemorySyncedFile:
        return _MemorySyncedFile(self._names.setdefault(path, _MemoryFile()))

    def _find(self, path: str) -> _MemoryFile:
        try:
            return self._names[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", path) from None

    def read(self, path: str) -> bytes:
        return bytes(self._find(path).data)

    def read_range(self, path: str, offset: int, size: int) -> bytes:
        return bytes(self._find(path).data[offset : offset + size])

    def map(self, path: str) -> pa.Buffer:
        return pa.py_buffer(self.read(path))

    def size(self, path: str) -> int:
        return len(self._find(path).data)

    def list(self, directory: str) -> list[str]:
        prefix = directory + "/"
        return sorted({path[len(prefix) :].split("/")[0] for path in self._names if path.startswith(prefix)})

    def make_dirs(self, directory: str) -> None:
        pass

    def rename(self, old: str, new: str) -> None:
        self._names[new] = self._find(old)
        del self._names[old]

    def unlink(self, path: str) -> None:
        self._names.pop(path, None)

    def remove_dir(self, directory: str) -> None:
        pass

    def sync_dir(self, directory: str) -> None:
        def inside(path: str) -> bool:
            return path.rpartition("/")[0] == directory

        kept = {path: file for path, file in self._durable_names.items() if not inside(path)}
        self._durable_names = kept | {path: file for path, file in self._names.items() if inside(path)}

    def free_bytes(self) -> int:
        return self._free_bytes - sum(len(file.data) for file in self._names.values())

    def local_path(self, path: str) -> str | None:
        return None

    def handover(self) -> tuple[str, int] | None:
        return None

    def close(self) -> None:
        pass

    def after_power_cut(self, random: random.Random) -> MemoryDisk:
        """What is left: for each name the old or the new, as it may happen; for each file what was synced and a bit."""
        left = MemoryDisk(self._free_bytes)
        for path in sorted(self._names.keys() | self._durable_names.keys()):
            choices = [self._durable_names.get(path), self._names.get(path)]
            chosen = choices[0] if choices[0] is choices[1] else random.choice(choices)
            if chosen is not None:
                left.put(path, chosen.lose_unsynced(random))
        return left

    def after_kill(self) -> MemoryDisk:
        """What is left when only the process dies: everything written."""
        left = MemoryDisk(self._free_bytes)
        for path, file in self._names.items():
            left.put(path, bytes(file.data))
        return left

    def put(self, path: str, data: bytes) -> None:
        """Place a durable file."""
        file = _MemoryFile()
        file.data += data
        file.durable += data
        self._names[path] = self._durable_names[path] = file

    def paths(self) -> Names:
        """All files, by name."""
        return sorted(self._names)


class DiskKilled(BaseException):
    """The process "died" inside a call of a `FaultyDisk`. Not an Exception: nothing may handle it."""


Calls = list[tuple[str, str]]
"""What was done, and to which path."""


class _FaultyFile:
    def __init__(self, disk: FaultyDisk, path: str, file: AppendFile) -> None:
        self._disk = disk
        self._path = path
        self._file = file

    def write(self, *pieces: bytes | memoryview) -> int:
        data = b"".join(pieces)
        self._disk.before("write", self._path)
        written = self._file.write(data[: self._disk.take_room(len(data), self._path)])
        self._disk.after("write", self._path)
        return written

    def begin_sync(self) -> None:
        self._file.begin_sync()

    def sync(self) -> None:
        self._disk.before("sync", self._path)
        self._file.sync()
        self._disk.after("sync", self._path)

    def truncate(self, size: int) -> None:
        self._disk.before("truncate", self._path)
        self._file.truncate(size)
        self._disk.after("truncate", self._path)

    def close(self) -> None:
        self._file.close()


class _FaultySyncedFile:
    """Each write is two calls, so that a power cut may come between what is written and what is durable."""

    def __init__(self, disk: FaultyDisk, path: str, file: _MemorySyncedFile) -> None:
        self._disk = disk
        self._path = path
        self._file = file

    def write_at(self, offset: int, pieces: Sequence[bytes]) -> None:
        data = b"".join(pieces)
        at = 0
        while at < len(data):
            self._disk.before("write", self._path)
            size = self._disk.take_room(len(data) - at, self._path)
            self._file.put(offset + at, data[at : at + size])
            self._disk.after("write", self._path)
            at += size
        self._disk.before("sync", self._path)
        self._file.sync(offset, len(data))
        self._disk.after("sync", self._path)

    def truncate(self, size: int) -> None:
        self._disk.before("truncate", self._path)
        self._file.truncate(size)
        self._disk.after("truncate", self._path)

    def close(self) -> None:
        self._file.close()


class FaultyDisk:
    """Passes everything on to a disk in memory and counts the calls that change it; fails the one it is told to.

    Calls are counted from 1 in `calls`. `fail(n, errno)` makes the n-th raise; `kill(n, before=…)` ends the "process"
    right before or after it; `short_writes` cuts every write to that many bytes, as write(2) may; `room_bytes` is how
    much may still be written before the disk is full.
    """

    def __init__(self, disk: MemoryDisk, short_writes: int | None = None) -> None:
        self._disk = disk
        self._short_writes = short_writes
        self._errors: dict[int, int] = {}
        self._persistent: tuple[str, int] | None = None
        self._kill: tuple[int, bool] | None = None
        self.room_bytes: int | None = None
        self.calls: Calls = []

    def fail(self, number: int, error: int) -> None:
        """The `number`-th call from the beginning raises OSError(error)."""
        self._errors[number] = error

    def fail_all(self, call: str, error: int) -> None:
        """Every call of a kind (`write`, `sync`, …) raises, until `heal`."""
        self._persistent = call, error

    def heal(self) -> None:
        """No persistent fault, and room again."""
        self._persistent = None
        self.room_bytes = None

    def kill(self, number: int, before: bool) -> None:
        """Raise `DiskKilled` at the `number`-th call, before or after it has its effect."""
        self._kill = number, before

    def take_room(self, size: int, path: str) -> int:
        """How many bytes a write of `size` takes."""
        if self._short_writes is not None:
            size = min(size, self._short_writes)
        if self.room_bytes is None:
            return size
        if not self.room_bytes:
            raise OSError(errno.ENOSPC, "injected", path)
        size = min(size, self.room_bytes)
        self.room_bytes -= size
        return size

    def before(self, call: str, path: str) -> None:
        """Bookkeeping at the start of a call."""
        self.calls.append((call, path))
        number = len(self.calls)
        if self._kill == (number, True):
            raise DiskKilled(f"before {call} of {path}")
        error = self._errors.get(number)
        if self._persistent is not None and self._persistent[0] == call:
            error = self._persistent[1]
        if error is not None:
            raise OSError(error, "injected", path)

    def after(self, call: str, path: str) -> None:
        if self._kill == (len(self.calls), False):
            raise DiskKilled(f"after {call} of {path}")

    def create(self, path: str) -> AppendFile:
        self.before("create", path)
        file = self._disk.create(path)
        self.after("create", path)
        return _FaultyFile(self, path, file)

    def open_append(self, path: str) -> AppendFile:
        return _FaultyFile(self, path, self._disk.open_append(path))

    def open_synced(self, path: str) -> SyncedFile:
        self.before("create", path)
        file = self._disk.open_synced(path)
        self.after("create", path)
        return _FaultySyncedFile(self, path, file)

    def rename(self, old: str, new: str) -> None:
        self.before("rename", new)
        self._disk.rename(old, new)
        self.after("rename", new)

    def unlink(self, path: str) -> None:
        self.before("unlink", path)
        self._disk.unlink(path)
        self.after("unlink", path)

    def sync_dir(self, directory: str) -> None:
        self.before("sync_dir", directory)
        self._disk.sync_dir(directory)
        self.after("sync_dir", directory)

    def read(self, path: str) -> bytes:
        return self._disk.read(path)

    def read_range(self, path: str, offset: int, size: int) -> bytes:
        return self._disk.read_range(path, offset, size)

    def map(self, path: str) -> pa.Buffer:
        return self._disk.map(path)

    def size(self, path: str) -> int:
        return self._disk.size(path)

    def list(self, directory: str) -> list[str]:
        return self._disk.list(directory)

    def make_dirs(self, directory: str) -> None:
        self._disk.make_dirs(directory)

    def remove_dir(self, directory: str) -> None:
        self._disk.remove_dir(directory)

    def free_bytes(self) -> int:
        return self._disk.free_bytes()

    def local_path(self, path: str) -> str | None:
        return self._disk.local_path(path)

    def handover(self) -> tuple[str, int] | None:
        return self._disk.handover()

    def close(self) -> None:
        self._disk.close()
