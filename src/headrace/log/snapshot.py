"""Snapshots: the state as of a journal sequence, so that recovery need not replay the journal from its beginning.

    snapshots/<sequence, 20 digits>.snapshot         (in a shared store `<sequence>-<hub>.snapshot`)
    file := "HRSNAP01" size:u64 crc:u32 zero:u32 MessagePack of `Image`

The newest two are kept, and the journal back to the older one, so that a damaged snapshot costs nothing. The one that a
clean stop leaves is proof of how far the journal went: one that ends earlier has lost its end, and is not torn.
"""

from __future__ import annotations

import struct
import sys

import msgspec
from google_crc32c import value as crc32c

from headrace.log.ops import CheckpointInfo, StreamInfo, StreamOptions
from headrace.log.partition import ProducerState
from headrace.log.segment import SegmentRef
from headrace.log.state import SNAPSHOTS_KEPT, CursorPosition, SnapshotRef, State, Stream
from headrace.log.store import Store

DIRECTORY = "snapshots"
SUFFIX = ".snapshot"
MAGIC = b"HRSNAP01"
HEADER = struct.Struct("<8sQII")
KEPT = SNAPSHOTS_KEPT
USUAL = StreamOptions()


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


class FinalImage(Image, frozen=True, array_like=True):
    """Only a final one is written with the field."""

    is_final: bool = False
    """The log was closed: there are no frames behind it but those of a later start."""


class SegmentImage(msgspec.Struct, frozen=True, array_like=True):
    stream: int
    partition: int
    first: int
    next: int
    bytes: int
    name: str


class SharedImage(msgspec.Struct, frozen=True, array_like=True):
    """What a directory would be listed for."""

    segments: list[SegmentImage]
    snapshots: list[SnapshotRef]
    checkpoint_names: dict[int, str]
    garbage: list[str]
    store_mark: int = 0


class AnyImage(FinalImage, frozen=True, array_like=True):
    """As it is read. Only journals that need a bookmark, and shared stores, have the fields."""

    bookmark: bytes = b""
    shared: SharedImage | None = None


def encode(state: State, *, is_final: bool = False, bookmark: bytes = b"") -> bytes:
    """The state as a snapshot file."""
    parts = (
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
    image: Image = FinalImage(*parts, True) if is_final else Image(*parts)
    if bookmark or state.is_shared:
        image = AnyImage(*parts, is_final, bookmark, _shared_image(state) if state.is_shared else None)
    data = msgspec.msgpack.encode(image)
    return HEADER.pack(MAGIC, len(data), crc32c(data), 0) + data


def _shared_image(state: State) -> SharedImage:
    segments = [
        SegmentImage(partition.stream_id, partition.number, ref.first, ref.next, ref.bytes, ref.path)
        for partition in state.partitions()
        for ref in partition.segments
    ]
    return SharedImage(segments, state.snapshots, state.checkpoint_names, state.garbage, state.store_mark)


def _stream_image(stream: Stream) -> StreamImage:
    partitions = [
        PartitionImage(partition.first, partition.next, partition.time_us, partition.producers)
        for partition in stream.partitions
    ]
    return StreamImage(stream.info, partitions)


def decode(data: bytes) -> State | None:
    """The state that a snapshot file holds, or None when it is damaged."""
    if len(data) < HEADER.size:
        return None
    magic, size, crc, _ = HEADER.unpack_from(data)
    body = data[HEADER.size :]
    if magic != MAGIC or size != len(body) or crc32c(body) != crc:
        return None
    return _restore(msgspec.msgpack.decode(body, type=AnyImage))


def _restore(image: AnyImage) -> State:
    state = State()
    images = image.streams
    images.reverse()
    while images:  # each goes at once: what it took in memory is what the next one of very many needs
        stream_image = images.pop()
        stream = Stream(_shared(stream_image.info), [saved.first for saved in stream_image.partitions])
        for partition, saved in zip(stream.partitions, stream_image.partitions, strict=True):
            partition.next = saved.next
            partition.time_us = saved.time_us
            partition.producers = saved.producers
        state.add_stream(stream)
    for cursor in image.cursors:
        positions = state.cursors.setdefault(cursor.stream, {})
        positions[cursor.cursor, cursor.partition] = CursorPosition(cursor.index, cursor.updated_us)
    state.checkpoints = {info.id: info for info in image.checkpoints}
    state.retired_indexes = image.retired_indexes
    state.deleted_ids = set(image.deleted_ids)
    state.sequence = image.sequence
    state.next_stream_id = image.next_stream_id
    state.next_checkpoint_id = image.next_checkpoint_id
    state.is_final = image.is_final
    state.bookmark = image.bookmark
    if image.shared is not None:
        _restore_shared(state, image.shared)
    return state


def _shared(info: StreamInfo) -> StreamInfo:
    """The same, without an object of its own for what most streams have in common: there may be very many."""
    options = USUAL if info.options == USUAL else info.options
    return StreamInfo(info.name, info.id, sys.intern(info.kind), info.partitions, options, info.created_us)


def _restore_shared(state: State, shared: SharedImage) -> None:
    for each in shared.segments:
        partition = state.by_id[each.stream].partitions[each.partition]
        partition.segments.append(SegmentRef(each.first, each.next, each.name, each.bytes))
    state.snapshots = shared.snapshots
    state.checkpoint_names = shared.checkpoint_names
    state.garbage = shared.garbage
    state.store_mark = shared.store_mark


def names(store: Store, *, tidy: bool = False) -> list[str]:
    """Of the snapshots, oldest first."""
    return [f"{DIRECTORY}/{last}" for last in store.list(DIRECTORY, tidy=tidy) if last.endswith(SUFFIX)]


def sequence_of(name: str) -> int:
    return int(name.rpartition("/")[2].removesuffix(SUFFIX))


def shared_name(sequence: int, tag: str) -> str:
    return f"{DIRECTORY}/{sequence:020d}{tag}{SUFFIX}"


def read_shared(store: Store, name: str) -> State | None:
    """The state that a snapshot of a shared store holds; None when it is damaged. Raises `FileNotFoundError`."""
    state = decode(store.get(name))
    if state is None and store.renew(name):
        state = decode(store.get(name))
    return state


def save(store: Store, sequence: int, data: bytes) -> None:
    """Put a snapshot in place and let the oldest go."""
    store.put(f"{DIRECTORY}/{sequence:020d}{SUFFIX}", data)
    for name in names(store)[:-KEPT]:
        store.delete(name)


def load(store: Store, *, tidy: bool = False) -> tuple[State, list[str]]:
    """The newest state that is intact, and the snapshots that are damaged. A new State when there is none."""
    damaged: list[str] = []
    for name in reversed(names(store, tidy=tidy)):
        state = decode(store.get(name))
        if state is not None:
            return state, damaged
        damaged.append(name)
    return State(), damaged
