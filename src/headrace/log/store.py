"""Where a log keeps what never changes: segments, snapshots and checkpoint blobs, each under a name.

`DirectoryStore` is a directory on a disk; `headrace.testing` has one in memory. Names have forward slashes; what stands
before the last one is the blob's folder. Whoever asks for a name that is not there gets a `FileNotFoundError`.

A store that several hubs reach is *shared* (`cached_store.py` in front of `uri_store.py` or `kafka/topic_store.py`). No
list of it says what counts: another hub may be writing to it. The journal says so, by events that name blobs, and a
blob is removed only after an event that drops it. Names that a shared store gives out have a stamp (`stamp.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import Protocol, Self

import pyarrow as pa

from headrace.log.disk import TEMPORARY, Disk, NewFile

QUARANTINE = "quarantine"
CHUNK_BYTES = 4 * 1024 * 1024
"""A blob is copied in pieces of this size."""


class BlobDamaged(OSError):
    """What a store holds under a name is not what was put there."""


class NewBlob(Protocol):
    """A blob on its way. As a context it is finished at the end, or given up after an error."""

    @property
    def name(self) -> str:
        """What it is found by, once it is finished."""
        ...

    def write(self, *pieces: bytes | memoryview) -> None: ...

    def begin_sync(self) -> None:
        """Have the disk begin to take what was written, without waiting for it. Promises nothing."""
        ...

    def sync(self) -> None:
        """Wait until what was written is taken: a long blob should not be taken all at once."""
        ...

    def finish(self) -> None:
        """Durable under its name when this returns, and to be seen by nobody before."""
        ...

    def abort(self) -> None:
        """Forget it; does nothing to one that is finished."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...


class Store(Protocol):
    """Blobs by name."""

    is_shared: bool = False
    """Other hubs write to it too: events tell what counts."""
    tag: str = ""
    """What new names end with, so that no two hubs ever write one blob."""
    mapped_bytes_max: int | None = None
    """So much of it should be kept mapped at most."""

    def create(self, name: str) -> NewBlob:
        """A blob to write. One that has the name already is replaced."""
        ...

    def put(self, name: str, data: bytes) -> str:
        """Returns what it is found by."""
        return self.copy_in(name, [data])

    def copy_in(self, name: str, chunks: Iterable[bytes | memoryview]) -> str:
        """A blob of these; returns what it is found by."""
        with self.create(name) as blob:
            for chunk in chunks:
                blob.write(chunk)
        return blob.name

    def get(self, name: str) -> bytes: ...

    def get_range(self, name: str, offset: int, size: int) -> bytes:
        """Fewer bytes where the blob ends."""
        ...

    def chunks(self, name: str) -> Iterator[bytes]:
        """All of it, in order, in pieces."""
        at, size = 0, self.size(name)
        while at < size:
            chunk = self.get_range(name, at, CHUNK_BYTES)
            if not chunk:
                raise OSError(f"{name} ends at byte {at} of {size}")
            yield chunk
            at += len(chunk)

    def map(self, name: str) -> pa.Buffer:
        """The whole blob as a buffer that stays valid after the blob is deleted."""
        ...

    def size(self, name: str) -> int: ...

    def list(self, folder: str, *, tidy: bool = False) -> list[str]:
        """What is in a folder, blobs and folders, sorted; empty when it does not exist. With `tidy` what writers that
        died have left there is removed; nobody may be writing then."""
        ...

    def names(self, folder: str = "") -> Iterator[str]:
        """Of all blobs, bare: for people who look for what nobody needs."""
        for last in self.list(folder):
            name = f"{folder}/{last}" if folder else last
            inside = list(self.names(name))
            yield from inside or [name]

    def mark(self, named: Set[str]) -> int:
        """A place below which nothing was put but what is among these bare names, nor will be. 0 where there is no
        order in what is put."""
        return 0

    def since(self, mark: int) -> Iterator[str | None]:
        """What blobs are found by that were put behind a mark, also those that are not whole. It may take long: None
        comes now and then, so that whoever asks can do something else in between."""
        return iter(self.names())

    def give_up(self) -> None:
        """Nobody needs it any more: whoever waits for it in another thread gets an error soon. To be closed next."""
        return None

    def delete(self, name: str) -> None:
        """Remove a blob, if it is there."""
        ...

    def delete_all(self, folder: str) -> None:
        """Remove a folder with all that is in it, if it is there."""
        ...

    def set_aside(self, name: str) -> None:
        """Take a damaged blob out of its folder, and keep it for people to look at."""
        ...

    def local_path(self, name: str) -> str | None:
        """Where another process on this machine finds the blob, if it can."""
        ...

    def handover(self) -> tuple[str, int] | None:
        """The directory and the descriptor of its lock, for a process that makes blobs for this one; None without."""
        ...

    def home(self) -> str | None:
        """The directory of what others keep beside the log; None without."""
        return self.local_path("")

    def publish(self, name: str) -> str:
        """Such a process has made a blob; returns what it is found by."""
        return name

    def renew(self, name: str) -> bool:
        """What was read of a blob is damaged: whether there is hope that another try finds it whole."""
        return False

    def recovered(self) -> None:
        """The log is open: from now on somebody waits for each answer."""
        return

    def trouble(self) -> str | None:
        """What keeps it from working, in a sentence; None when all is well."""
        return None

    def gauges(self) -> dict[str, float]:
        """Figures for metrics, by name."""
        return {}

    def close(self) -> None: ...


class DirectoryStore(Store):
    """A directory on a disk: names are paths. It owns the disk."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    def create(self, name: str) -> NewFile:
        self.disk.make_dirs(name.rpartition("/")[0])
        return NewFile(self.disk, name)

    def get(self, name: str) -> bytes:
        return self.disk.read(name)

    def get_range(self, name: str, offset: int, size: int) -> bytes:
        return self.disk.read_range(name, offset, size)

    def map(self, name: str) -> pa.Buffer:
        return self.disk.map(name)

    def size(self, name: str) -> int:
        return self.disk.size(name)

    def list(self, folder: str, *, tidy: bool = False) -> list[str]:
        names = self.disk.list(folder)
        for name in names if tidy else ():
            if name.endswith(TEMPORARY):
                self.disk.unlink(f"{folder}/{name}")
        return [name for name in names if not name.endswith(TEMPORARY)]

    def delete(self, name: str) -> None:
        self.disk.unlink(name)

    def delete_all(self, folder: str) -> None:
        for name in self.disk.list(folder):
            self.delete_all(f"{folder}/{name}")  # a file has nothing in it
        try:
            self.disk.unlink(folder)
        except IsADirectoryError:
            self.disk.remove_dir(folder)

    def set_aside(self, name: str) -> None:
        folder, _, last = name.rpartition("/")
        self.disk.make_dirs(QUARANTINE)
        self.disk.rename(name, f"{QUARANTINE}/{last}")
        self.disk.sync_dir(QUARANTINE)
        self.disk.sync_dir(folder)

    def local_path(self, name: str) -> str | None:
        return self.disk.local_path(name)

    def handover(self) -> tuple[str, int] | None:
        return self.disk.handover()

    def close(self) -> None:
        self.disk.close()
