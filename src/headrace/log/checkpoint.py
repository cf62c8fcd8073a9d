"""Checkpoint blobs: files of any size, written once in a stream of chunks and checked when read.

    checkpoints/<id>.blob                   (in a shared store `<id>-<hub>.blob`)
    file  := block*
    block := size:u32 crc:u32 data          CRC-32C of the data; at most BLOCK_BYTES a block

A blob counts only once the journal says so (`CheckpointAdded`); one that the journal does not know is left over from
an interrupted write and is removed at the next start.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from google_crc32c import value as crc32c

from headrace.errors import DiskFull, HeadraceError
from headrace.log.disk import FULL_ERRNOS
from headrace.log.store import BlobDamaged, Store

DIRECTORY = "checkpoints"
SUFFIX = ".blob"
BLOCK = struct.Struct("<II")
BLOCK_BYTES = 1024 * 1024


class CheckpointDamaged(HeadraceError):
    """A blob does not hold what was written."""

    code = "checkpoint-damaged"
    status = 410


def blob_name(id: int, tag: str = "") -> str:
    return f"{DIRECTORY}/{id}{tag}{SUFFIX}"


class BlobWriter:
    """A blob on its way to the disk. Memory is bounded by one block."""

    def __init__(
        self,
        store: Store,
        id: int,
        guard: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        on_finish: Callable[[int, str], None] | None = None,
    ) -> None:
        """Whatever is done to the disk is done inside of a `guard`. `on_finish` is told the number of the blob and what
        it is found by."""
        self._store = store
        self._guard = guard
        self._on_finish = on_finish
        self.id = id
        with self._on_disk():
            self._blob = store.create(blob_name(id, store.tag))
        self._block = bytearray()
        self.size = 0

    @contextlib.contextmanager
    def _on_disk(self) -> Iterator[None]:
        try:
            with self._guard():
                yield
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            raise DiskFull(
                f"the disk has no room ({error}): the checkpoint is not stored; make room and try again"
            ) from error

    def write(self, chunk: bytes) -> None:
        self._block += chunk
        self.size += len(chunk)
        while len(self._block) >= BLOCK_BYTES:
            self._flush(BLOCK_BYTES)

    def _flush(self, size: int) -> None:
        data = bytes(self._block[:size])
        del self._block[:size]
        with self._on_disk():
            self._blob.write(BLOCK.pack(len(data), crc32c(data)) + data)

    def finish(self) -> None:
        """Make the blob durable under its name."""
        if self._block:
            self._flush(len(self._block))
        with self._on_disk():
            self._blob.finish()
        if self._on_finish is not None:
            self._on_finish(self.id, self._blob.name)

    def abort(self) -> None:
        """Forget the blob, finished or not."""
        self._blob.abort()
        self._store.delete(self._blob.name)


def read_blob(store: Store, name: str, size: int) -> Iterator[bytes]:
    """The chunks of a blob of a known size, checked."""
    at = read = 0
    try:
        end = store.size(name)
        while at < end:
            data = _read_block(store, name, at)
            if data is None and store.renew(name):
                data = _read_block(store, name, at)
            if data is None:
                raise CheckpointDamaged(f"{name}: the block at byte {at} is damaged; use an older checkpoint")
            yield data
            at += BLOCK.size + len(data)
            read += len(data)
    except (struct.error, FileNotFoundError, BlobDamaged) as error:
        raise CheckpointDamaged(f"{name} is cut short or missing; use an older checkpoint") from error
    if read != size:
        raise CheckpointDamaged(f"{name} has {read} of {size} bytes; use an older checkpoint")


def _read_block(store: Store, name: str, at: int) -> bytes | None:
    """None when it fails its checksum."""
    length, crc = BLOCK.unpack(store.get_range(name, at, BLOCK.size))
    data = store.get_range(name, at + BLOCK.size, length) if length <= BLOCK_BYTES else b""
    return data if length <= BLOCK_BYTES and len(data) == length and crc32c(data) == crc else None


def remove_orphans(store: Store, known: set[int]) -> None:
    """Remove blobs, finished or not, that no checkpoint names."""
    names = set(map(blob_name, known))
    for last in store.list(DIRECTORY, tidy=True):
        if f"{DIRECTORY}/{last}" not in names:
            store.delete(f"{DIRECTORY}/{last}")
