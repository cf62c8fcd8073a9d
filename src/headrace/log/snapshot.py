"""Snapshots: the state as of a journal sequence, so that recovery need not replay the journal from its beginning.

    snapshots/<sequence, 20 digits>.snapshot
    file := "HRSNAP01" size:u64 crc:u32 zero:u32 MessagePack of `Image`

The newest two are kept, and the journal back to the older one, so that a damaged snapshot costs nothing.
"""

from __future__ import annotations

import struct

import msgspec
from google_crc32c import value as crc32c

from headrace.log.disk import Disk, write_durably
from headrace.log.ops import CheckpointInfo, StreamInfo
from headrace.log.partition import ProducerState
from headrace.log.state import CursorPosition, State, Stream

DIRECTORY = "snapshots"
SUFFIX = ".snapshot"
MAGIC = b"HRSNAP01"
HEADER = struct.Struct("<8sQII")
KEPT = 2


class PartitionImage(msgspec.Struct, frozen=True, array_like=True):
    first: int
    next: int
    time_us: int
    producers: dict[str, ProducerState]


class StreamImage(msgspec.Struct, frozen=True, array_like=True):
    info: StreamInfo
    partitions: list[PartitionImage]


class CursorImage(msgspec.Struct, frozen=True, array_like=True):
    stream: int
    cursor: str
    partition: int
    index: int
    updated_us: int


class Image(msgspec.Struct, frozen=True, array_like=True):
    """All of `State` that segments and the journal do not say again."""

    sequence: int
    next_stream_id: int
    next_checkpoint_id: int
    retired_indexes: dict[str, list[int]]
    deleted_ids: list[int]
    streams: list[StreamImage]
    cursors: list[CursorImage]
    checkpoints: list[CheckpointInfo]


def encode(state: State) -> bytes:
    """The state as a snapshot file."""
    image = Image(
        state.sequence,
        state.next_stream_id,
        state.next_checkpoint_id,
        state.retired_indexes,
        sorted(state.deleted_ids),
        [_stream_image(stream) for stream in state.streams.values()],
        [
            CursorImage(stream, cursor, partition, position.index, position.updated_us)
            for stream, cursors in state.cursors.items()
            for (cursor, partition), position in cursors.items()
        ],
        list(state.checkpoints.values()),
    )
    data = msgspec.msgpack.encode(image)
    return HEADER.pack(MAGIC, len(data), crc32c(data), 0) + data


def _stream_image(stream: Stream) -> StreamImage:
    return StreamImage(
        stream.info,
        [PartitionImage(one.first, one.next, one.time_us, one.producers) for one in stream.partitions],
    )


def decode(data: bytes) -> State | None:
    """The state that a snapshot file holds, or None when it is damaged."""
    if len(data) < HEADER.size:
        return None
    magic, size, crc, _ = HEADER.unpack_from(data)
    body = data[HEADER.size :]
    if magic != MAGIC or size != len(body) or crc32c(body) != crc:
        return None
    return _restore(msgspec.msgpack.decode(body, type=Image))


def _restore(image: Image) -> State:
    state = State()
    for one in image.streams:
        stream = Stream(one.info, [partition.first for partition in one.partitions])
        for partition, saved in zip(stream.partitions, one.partitions, strict=True):
            partition.next = saved.next
            partition.time_us = saved.time_us
            partition.producers = saved.producers
        state.add_stream(stream)
    for cursor in image.cursors:
        positions = state.cursors.setdefault(cursor.stream, {})
        positions[cursor.cursor, cursor.partition] = CursorPosition(cursor.index, cursor.updated_us)
    state.checkpoints = {one.id: one for one in image.checkpoints}
    state.retired_indexes = image.retired_indexes
    state.deleted_ids = set(image.deleted_ids)
    state.sequence = image.sequence
    state.next_stream_id = image.next_stream_id
    state.next_checkpoint_id = image.next_checkpoint_id
    return state


def paths(disk: Disk) -> list[str]:
    """Snapshot files, oldest first."""
    return [f"{DIRECTORY}/{name}" for name in disk.list(DIRECTORY) if name.endswith(SUFFIX)]


def sequence_of(path: str) -> int:
    return int(path.rpartition("/")[2].removesuffix(SUFFIX))


def save(disk: Disk, sequence: int, data: bytes) -> None:
    """Put a snapshot in place and let the oldest go."""
    write_durably(disk, DIRECTORY, f"{sequence:020d}{SUFFIX}", data)
    for path in paths(disk)[:-KEPT]:
        disk.unlink(path)


def load(disk: Disk) -> tuple[State, list[str]]:
    """The newest state that is intact, and the snapshots that are damaged. A new State when there is none."""
    damaged: list[str] = []
    for path in reversed(paths(disk)):
        state = decode(disk.read(path))
        if state is not None:
            return state, damaged
        damaged.append(path)
    return State(), damaged
