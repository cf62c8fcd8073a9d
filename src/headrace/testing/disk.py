"""Disks for tests: one in memory that knows what a power cut would take, and one that fails when told to."""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Iterator, Sequence

import pyarrow as pa

from headrace.log.disk import AppendFile


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

        for path in filter(inside, list(self._durable_names)):
            del self._durable_names[path]
        self._durable_names.update({path: file for path, file in self._names.items() if inside(path)})

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

    def paths(self) -> Sequence[str]:
        """All files, by name."""
        return sorted(self._names)


class DiskKilled(BaseException):
    """The process "died" inside a call of a `FaultyDisk`. Not an Exception: nothing may handle it."""


Calls = list[tuple[str, str]]
"""What was done, and to which path."""


class _FaultyAppendFile(_MemoryAppendFile):
    def __init__(self, disk: FaultyDisk, path: str, file: _MemoryFile) -> None:
        super().__init__(file)
        self._disk = disk
        self._path = path

    def write(self, *pieces: bytes | memoryview) -> int:
        data = b"".join(pieces)
        with self._disk.call("write", self._path):
            return super().write(data[: self._disk.take_room(len(data), self._path)])

    def sync(self) -> None:
        with self._disk.call("sync", self._path):
            super().sync()

    def truncate(self, size: int) -> None:
        with self._disk.call("truncate", self._path):
            super().truncate(size)


class _FaultySyncedFile(_MemorySyncedFile):
    """Each write is two calls, so that a power cut may come between what is written and what is durable."""

    def __init__(self, disk: FaultyDisk, path: str, file: _MemoryFile) -> None:
        super().__init__(file)
        self._disk = disk
        self._path = path

    def write_at(self, offset: int, pieces: Sequence[bytes]) -> None:
        data = b"".join(pieces)
        at = 0
        while at < len(data):
            with self._disk.call("write", self._path):
                size = self._disk.take_room(len(data) - at, self._path)
                self.put(offset + at, data[at : at + size])
            at += size
        with self._disk.call("sync", self._path):
            self.sync(offset, len(data))

    def truncate(self, size: int) -> None:
        with self._disk.call("truncate", self._path):
            super().truncate(size)


class FaultyDisk(MemoryDisk):
    """Shares the files of a disk in memory and counts the calls that change it; fails the one it is told to.

    Calls are counted from 1 in `calls`. `fail(n, errno)` makes the n-th raise; `kill(n, before=…)` ends the "process"
    right before or after it; `short_writes` cuts every write to that many bytes, as write(2) may; `room_bytes` is how
    much may still be written before the disk is full.
    """

    def __init__(self, disk: MemoryDisk, short_writes: int | None = None) -> None:
        super().__init__(disk._free_bytes)
        self._names, self._durable_names = disk._names, disk._durable_names
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

    @contextlib.contextmanager
    def call(self, kind: str, path: str) -> Iterator[None]:
        """Around each call that changes something: counted, and failed if it is the one to fail."""
        self.calls.append((kind, path))
        number = len(self.calls)
        if self._kill == (number, True):
            raise DiskKilled(f"before {kind} of {path}")
        error = self._errors.get(number)
        if self._persistent is not None and self._persistent[0] == kind:
            error = self._persistent[1]
        if error is not None:
            raise OSError(error, "injected", path)
        yield
        if self._kill == (number, False):
            raise DiskKilled(f"after {kind} of {path}")

    def create(self, path: str) -> AppendFile:
        with self.call("create", path):
            super().create(path)
        return self.open_append(path)

    def open_append(self, path: str) -> AppendFile:
        return _FaultyAppendFile(self, path, self._find(path))

    def open_synced(self, path: str) -> _MemorySyncedFile:
        with self.call("create", path):
            super().open_synced(path)
        return _FaultySyncedFile(self, path, self._find(path))

    def rename(self, old: str, new: str) -> None:
        with self.call("rename", new):
            super().rename(old, new)

    def unlink(self, path: str) -> None:
        with self.call("unlink", path):
            super().unlink(path)

    def sync_dir(self, directory: str) -> None:
        with self.call("sync_dir", directory):
            super().sync_dir(directory)
