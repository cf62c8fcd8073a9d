"""Checkpoint blobs: files of any size, written once in a stream of chunks and checked when read.

    checkpoints/<id>.blob
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

from headrace.errors import HeadraceError
from headrace.log.store import Store

DIRECTORY = "checkpoints"
SUFFIX = ".blob"
BLOCK = struct.Struct("<II")
BLOCK_BYTES = 1024 * 1024


class CheckpointDamaged(HeadraceError):
    """A blob does not hold what was written."""

    code = "checkpoint-damaged"
    status = 410


def blob_name(id: int) -> str:
    return f"{DIRECTORY}/{id}{SUFFIX}"


class BlobWriter:
    """A blob on its way to the disk. Memory is bounded by one block."""

    def __init__(
        self, store: Store, id: int, guard: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    ) -> None:
        """Whatever is done to the disk is done inside of a `guard`."""
        self._store = store
        self._guard = guard
        self.id = id
        with guard():
            self._blob = store.create(blob_name(id))
        self._block = bytearray()
        self.size = 0

    def write(self, chunk: bytes) -> None:
        self._block += chunk
        self.size += len(chunk)
        while len(self._block) >= BLOCK_BYTES:
            self._flush(BLOCK_BYTES)

    def _flush(self, size: int) -> None:
        data = bytes(self._block[:size])
        del self._block[:size]
        with self._guard():
            self._blob.write(BLOCK.pack(len(data), crc32c(data)) + data)

    def finish(self) -> None:
        """Make the blob durable under its name."""
        if self._block:
            self._flush(len(self._block))
        with self._guard():
            self._blob.finish()

    def abort(self) -> None:
        """Forget the blob, finished or not."""
        self._blob.abort()
        self._store.delete(blob_name(self.id))


def read_blob(store: Store, id: int, size: int) -> Iterator[bytes]:
    """The chunks of a blob of a known size, checked."""
    name = blob_name(id)
    at = read = 0
    try:
        end = store.size(name)
        while at < end:
            length, crc = BLOCK.unpack(store.get_range(name, at, BLOCK.size))
            if length > BLOCK_BYTES:
                raise CheckpointDamaged(f"{name}: the block at byte {at} is damaged; use an older checkpoint")
            data = store.get_range(name, at + BLOCK.size, length)
            if crc32c(data) != crc:
                raise CheckpointDamaged(f"{name}: the block at byte {at} is damaged; use an older checkpoint")
            yield data
            at += BLOCK.size + length
            read += length
    except (struct.error, FileNotFoundError) as error:
        raise CheckpointDamaged(f"{name} is cut short or missing; use an older checkpoint") from error
    if read != size:
        raise CheckpointDamaged(f"{name} has {read} of {size} bytes; use an older checkpoint")


def remove_orphans(store: Store, known: set[int]) -> None:
    """Remove blobs, finished or not, that no checkpoint names."""
    names = set(map(blob_name, known))
    for last in store.list(DIRECTORY, tidy=True):
        if f"{DIRECTORY}/{last}" not in names:
            store.delete(f"{DIRECTORY}/{last}")
