"""Checkpoint blobs: files of any size, written once in a stream of chunks and checked when read.

    checkpoints/<id>.blob
    file  := block*
    block := size:u32 crc:u32 data          CRC-32C of the data; at most BLOCK_BYTES a block

A blob counts only once the journal says so (`CheckpointAdded`); one that the journal does not know is left over from
an interrupted write and is removed at the next start.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from google_crc32c import value as crc32c

from headrace.errors import HeadraceError
from headrace.log.disk import AppendFile, Disk, write_all

DIRECTORY = "checkpoints"
SUFFIX = ".blob"
BLOCK = struct.Struct("<II")
BLOCK_BYTES = 1024 * 1024


class CheckpointDamaged(HeadraceError):
    """A blob does not hold what was written."""

    code = "checkpoint-damaged"
    status = 410


def blob_path(id: int) -> str:
    return f"{DIRECTORY}/{id}{SUFFIX}"


class BlobWriter:
    """A blob on its way to the disk. Memory is bounded by one block."""

    def __init__(self, disk: Disk, id: int) -> None:
        self._disk = disk
        self.id = id
        self._path = blob_path(id) + ".tmp"
        self._file: AppendFile | None = disk.create(self._path)
        self._block = bytearray()
        self.size = 0

    def write(self, chunk: bytes) -> None:
        self._block += chunk
        self.size += len(chunk)
        while len(self._block) >= BLOCK_BYTES:
            self._flush(BLOCK_BYTES)

    def _flush(self, size: int) -> None:
        assert self._file is not None
        data = bytes(self._block[:size])
        del self._block[:size]
        write_all(self._file, BLOCK.pack(len(data), crc32c(data)) + data)

    def finish(self) -> None:
        """Make the blob durable under its name."""
        assert self._file is not None
        if self._block:
            self._flush(len(self._block))
        self._file.sync()
        self._file.close()
        self._file = None
        self._disk.rename(self._path, blob_path(self.id))
        self._disk.sync_dir(DIRECTORY)

    def abort(self) -> None:
        """Forget the blob, finished or not."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._disk.unlink(self._path)
        self._disk.unlink(blob_path(self.id))


def read_blob(disk: Disk, id: int, size: int) -> Iterator[bytes]:
    """The chunks of a blob of a known size, checked."""
    path = blob_path(id)
    at = read = 0
    try:
        end = disk.size(path)
        while at < end:
            length, crc = BLOCK.unpack(disk.read_range(path, at, BLOCK.size))
            if length > BLOCK_BYTES:
                raise CheckpointDamaged(f"{path}: the block at byte {at} is damaged; use an older checkpoint")
            data = disk.read_range(path, at + BLOCK.size, length)
            if crc32c(data) != crc:
                raise CheckpointDamaged(f"{path}: the block at byte {at} is damaged; use an older checkpoint")
            yield data
            at += BLOCK.size + length
            read += length
    except (struct.error, FileNotFoundError) as error:
        raise CheckpointDamaged(f"{path} is cut short or missing; use an older checkpoint") from error
    if read != size:
        raise CheckpointDamaged(f"{path} has {read} of {size} bytes; use an older checkpoint")


def remove_orphans(disk: Disk, known: set[int]) -> None:
    """Remove blobs, finished or not, that no checkpoint names."""
    names = {f"{id}{SUFFIX}" for id in known}
    for name in disk.list(DIRECTORY):
        if name not in names:
            disk.unlink(f"{DIRECTORY}/{name}")
