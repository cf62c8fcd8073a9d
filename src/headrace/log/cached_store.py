"""A directory in front of a store that is far away. The directory may be empty, and may be lost: it is a cache.

A new blob is written here first and then copied to the store; it is finished when the store has it. A blob that is
asked for and not here is fetched, checked against its stamp and kept. Files that were here before this process are
checked the first time they are used. When the directory holds more than its limit, those go that were used longest ago
and that nobody has mapped.

What keeps the store from being reached is a `StoreUnavailable`. A blob that the store has, and that is not what its
stamp says, is a `BlobDamaged`.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import Self

import pyarrow as pa
from google_crc32c import extend as crc32c_extend

from headrace.errors import StoreUnavailable
from headrace.log.disk import TEMPORARY, NewFile, write_all
from headrace.log.stamp import Stamp, split, stamped
from headrace.log.store import BlobDamaged, DirectoryStore, Store

logger = logging.getLogger(__name__)

CACHE = "cache"
"""The directory's name in a data directory."""
RETRY_S = 1.0
"""A log that is being opened asks a store that cannot be reached so often."""
FETCHED = f".fetched{TEMPORARY}"
"""The end of the name of a file that comes from the store and is not whole yet."""


class _Kept:
    """A file of the cache."""

    __slots__ = ("is_checked", "maps", "size", "users")

    def __init__(self, size: int, is_checked: bool) -> None:
        self.size = size
        self.is_checked = is_checked
        self.users = 0
        """Calls that are reading it."""
        self.maps: list[weakref.ref[mmap.mmap]] = []

    @property
    def is_in_use(self) -> bool:
        self.maps = [each for each in self.maps if each() is not None]
        return bool(self.users or self.maps)


class _NewBlob:
    """Written here; then the store gets it."""

    def __init__(self, store: CachedStore, name: str, file: NewFile) -> None:
        self._store = store
        self._file = file
        self.name = name

    def write(self, *pieces: bytes | memoryview) -> None:
        self._file.write(*pieces)

    def begin_sync(self) -> None:
        """It is the store that has to take it."""

    def sync(self) -> None:
        """It is the store that has to take it."""

    def finish(self) -> None:
        self._file.finish()
        self.name = self._store.publish(self.name)

    def abort(self) -> None:
        self._file.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
        else:
            self.abort()


class CachedStore(Store):
    """A shared store, with a directory of this hub in front of it. Any thread may use it. It owns both."""

    is_shared = True

    def __init__(
        self,
        local: DirectoryStore,
        remote: Store,
        bytes_max: int,
        tag: str = "",
        home: str | None = None,
        *,
        free_bytes_min: int = 0,
        patience_s: float = 0,
        wait: Callable[[float], None] | None = None,
    ) -> None:
        """`home` is the directory of what others keep beside the log. However little the directory holds, it gives way
        when its disk has less room than `free_bytes_min`. A log that is being opened waits `patience_s` for the store.
        """
        self._local = local
        self._home = home
        self._free_bytes_min = free_bytes_min
        self._patience_s = patience_s
        self._wait = wait or time.sleep
        self._remote = remote
        self._bytes_max = bytes_max
        self.mapped_bytes_max = bytes_max // 2
        self.tag = tag
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        """By bare name, the one that was used longest ago first."""
        self._bytes = 0
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._fetching: set[str] = set()
        self._renewed: set[str] = set()
        self._trouble: str | None = None
        self.fetched_bytes = 0
        self.stored_bytes = 0
        self._look_around()

    def _look_around(self) -> None:
        """What an earlier process left here."""
        root = (self._local.local_path("") or "").rstrip("/")
        found = []
        for folder, _, names in os.walk(root):
            for name in names if folder != root else ():  # the lock is not a blob
                path = Path(folder, name)
                if name.endswith(TEMPORARY):
                    path.unlink()
                else:
                    status = path.stat()
                    found.append((status.st_mtime, path.relative_to(root).as_posix(), status.st_size))
        for _, name, size in sorted(found):
            self._kept[name] = _Kept(size, is_checked=False)
            self._bytes += size
        self._make_room()

    # -- putting -------------------------------------------------------------------------------------------------------

    def create(self, name: str) -> _NewBlob:
        return _NewBlob(self, name, self._local.create(name))

    def publish(self, name: str) -> str:
        """Copy a file of the directory to the store."""
        size = self._local.size(name)
        kept = self._add(name, size)
        crc = 0

        def chunks() -> Iterator[bytes]:
            nonlocal crc
            for chunk in self._local.chunks(name):
                crc = crc32c_extend(crc, chunk)
                yield chunk

        try:
            with self._reaching():
                found_by = self._remote.copy_in(name, chunks())
        except BaseException:
            self._release(kept)
            self._drop(name)
            raise
        self._release(kept)
        self.stored_bytes += size
        self._make_room()
        stamp = split(found_by)[1] or Stamp(size, crc)
        return stamped(name, stamp)

    def _add(self, name: str, size: int) -> _Kept:
        """A whole file is in its place; nobody takes it away while it counts a user."""
        kept = _Kept(size, is_checked=True)
        kept.users = 1
        with self._lock:
            before = self._kept.pop(name, None)
            self._bytes += size - (before.size if before is not None else 0)
            self._kept[name] = kept
        return kept

    # -- getting -------------------------------------------------------------------------------------------------------

    def get(self, name: str) -> bytes:
        bare, stamp = split(name)
        with self._using(bare, stamp):
            return self._local.get(bare)

    def get_range(self, name: str, offset: int, size: int) -> bytes:
        bare, stamp = split(name)
        with self._using(bare, stamp):
            return self._local.get_range(bare, offset, size)

    def map(self, name: str) -> pa.Buffer:
        bare, stamp = split(name)
        with self._using(bare, stamp) as kept:
            path = self._local.local_path(bare)
            if path is None or not kept.size:
                return self._local.map(bare)
            with open(path, "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            kept.maps.append(weakref.ref(mapped))
            return pa.py_buffer(mapped)

    def size(self, name: str) -> int:
        bare, stamp = split(name)
        if stamp is not None:
            return stamp.size
        with self._reaching():
            return self._remote.size(bare)

    @contextlib.contextmanager
    def _using(self, name: str, stamp: Stamp | None) -> Iterator[_Kept]:
        """The file is here, and stays until the end of the block."""
        kept = self._take(name, stamp)
        try:
            yield kept
        finally:
            self._release(kept)

    def _release(self, kept: _Kept) -> None:
        with self._lock:
            kept.users -= 1

    def _take(self, name: str, stamp: Stamp | None) -> _Kept:
        with self._lock:
            while name in self._fetching:  # by somebody else
                self._arrived.wait()
            kept = self._kept.get(name)
            if kept is not None and (kept.is_checked or stamp is None):
                kept.users += 1
                self._kept.move_to_end(name)
                return kept
            self._fetching.add(name)
        try:
            return self._take_checked(name, stamp, kept)
        finally:
            with self._lock:
                self._fetching.discard(name)
                self._arrived.notify_all()

    def _take_checked(self, name: str, stamp: Stamp | None, kept: _Kept | None) -> _Kept:
        """Out of the directory if what is there is whole; else out of the store. Nobody else looks at it."""
        if kept is not None and stamp is not None and self._is_whole(name, stamp):
            with self._lock:
                kept.is_checked = True
                kept.users += 1
                self._kept[name] = kept
                self._kept.move_to_end(name)
            return kept
        if kept is not None:
            logger.warning("%s in the cache is damaged or of another version: fetching it again", name)
            self._drop(name)
        while True:
            try:
                return self._fetch(name, stamp)
            except StoreUnavailable as error:
                if self._patience_s <= 0:
                    raise
                logger.warning("the log is not open yet: %s", error)
                self._patience_s -= RETRY_S
                self._wait(RETRY_S)

    def recovered(self) -> None:
        self._patience_s = 0

    def _is_whole(self, name: str, stamp: Stamp) -> bool:
        crc = size = 0
        try:
            for chunk in self._local.chunks(name):
                crc = crc32c_extend(crc, chunk)
                size += len(chunk)
        except OSError:
            return False
        return (size, crc) == (stamp.size, stamp.crc)

    def _fetch(self, name: str, stamp: Stamp | None) -> _Kept:
        crc = size = 0
        with self._filling(name) as write:
            with self._reaching():
                chunks = self._remote.chunks(_remote_name(name, stamp))
            while True:
                with self._reaching():
                    chunk = next(chunks, None)
                if chunk is None:
                    break
                crc = crc32c_extend(crc, chunk)
                size += len(chunk)
                write(chunk)
            if stamp is not None and (size, crc) != (stamp.size, stamp.crc):
                raise BlobDamaged(
                    f"{name} in the store has {size} bytes with checksum {crc:08x}; it was stored with {stamp.size} "
                    f"and {stamp.crc:08x}"
                )
        self.fetched_bytes += size
        kept = self._add(name, size)
        self._make_room()
        return kept

    @contextlib.contextmanager
    def _filling(self, name: str) -> Iterator[Callable[[bytes], None]]:
        """A file of the directory, in place at the end. It need not be durable, and so is not synced."""
        disk = self._local.disk
        try:
            disk.make_dirs(name.rpartition("/")[0])
            file = disk.create(name + FETCHED)
        except OSError as error:
            raise StoreUnavailable(f"{name} cannot be put into the cache: {error}") from error

        def write(chunk: bytes) -> None:
            try:
                write_all(file, chunk)
            except OSError as error:
                raise StoreUnavailable(f"{name} cannot be put into the cache: {error}; make room there") from error

        try:
            yield write
        except BaseException:
            file.close()
            disk.unlink(name + FETCHED)
            raise
        file.close()
        disk.rename(name + FETCHED, name)

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        """What goes wrong inside is the store's doing."""
        try:
            yield
        except (FileNotFoundError, BlobDamaged):
            self._trouble = None
            raise
        except OSError as error:
            self._trouble = f"the store cannot be reached: {error}"
            raise StoreUnavailable(f"{self._trouble}; trying again") from error
        self._trouble = None

    # -- room ----------------------------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Let go of what was used longest ago, while there is too much."""
        with self._lock:
            gone = []
            short = self._free_bytes_min - self._local.disk.free_bytes() if self._free_bytes_min else 0
            limit = min(self._bytes_max, self._bytes - short)
            for name, kept in self._kept.items():
                if self._bytes <= limit:
                    break
                if not kept.is_in_use and name not in self._fetching:
                    gone.append(name)
                    self._bytes -= kept.size
            for name in gone:
                del self._kept[name]
                self._local.delete(name)

    def _drop(self, name: str) -> None:
        with self._lock:
            kept = self._kept.pop(name, None)
            if kept is not None:
                self._bytes -= kept.size
            self._local.delete(name)

    def renew(self, name: str) -> bool:
        """Once for each blob: what is damaged again was damaged when it was stored."""
        bare, stamp = split(name)
        if stamp is None or bare in self._renewed:
            return False
        self._renewed.add(bare)
        self._drop(bare)
        return True

    # -- the rest ------------------------------------------------------------------------------------------------------

    def list(self, folder: str, *, tidy: bool = False) -> list[str]:
        with self._reaching():
            return self._remote.list(folder)

    def names(self, folder: str = "") -> Iterator[str]:
        with self._reaching():
            yield from self._remote.names(folder)

    def mark(self, named: Set[str]) -> int:
        with self._reaching():
            return self._remote.mark(named)

    def since(self, mark: int) -> Iterator[str | None]:
        with self._reaching():
            yield from self._remote.since(mark)

    def delete(self, name: str) -> None:
        with self._reaching():
            self._remote.delete(_remote_name(*split(name)))
        self._drop(split(name)[0])

    def delete_all(self, folder: str) -> None:
        with self._reaching():
            self._remote.delete_all(folder)
        with self._lock:
            inside = [name for name in self._kept if name.startswith(f"{folder}/")]
        for name in inside:
            self._drop(name)

    def set_aside(self, name: str) -> None:
        with self._reaching():
            self._remote.set_aside(_remote_name(*split(name)))
        self._drop(split(name)[0])

    def local_path(self, name: str) -> str | None:
        """Of what is here now. It may be gone when somebody opens it."""
        bare, _ = split(name)
        with self._lock:
            kept = self._kept.get(bare)
            return self._local.local_path(bare) if kept is not None and kept.is_checked else None

    def handover(self) -> tuple[str, int] | None:
        return self._local.handover()

    def home(self) -> str | None:
        return self._home

    def trouble(self) -> str | None:
        return self._trouble

    def gauges(self) -> dict[str, float]:
        return {
            "cache_bytes": self._bytes,
            "store_fetched_bytes": self.fetched_bytes,
            "store_stored_bytes": self.stored_bytes,
        }

    def give_up(self) -> None:
        self._remote.give_up()

    def close_remote(self) -> None:
        """The connection to the store, and not the directory."""
        self._remote.close()

    def close(self) -> None:
        self.close_remote()
        self._local.close()


def _remote_name(name: str, stamp: Stamp | None) -> str:
    """What the store finds a blob by: where the bare name is not enough, the stamp says where it is."""
    return name if stamp is None or not stamp.parts else stamped(name, stamp)
