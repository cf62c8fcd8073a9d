"""The log's own state: streams, cursors, producers, tables and checkpoints, as the fold of the journal's events."""

from __future__ import annotations

import fnmatch
import re
from typing import NamedTuple

import msgspec

from headrace.errors import UnknownStream
from headrace.log import checkpoint, frame
from headrace.log.limits import check_pattern
from headrace.log.ops import Append, CheckpointInfo, StreamInfo, StreamOptions
from headrace.log.partition import Partition, ProducerState
from headrace.log.segment import SegmentRef
from headrace.log.table import Table, Values
from headrace.log.tail import TailEntry

SNAPSHOTS_KEPT = 2
WILD = re.compile(r"[*?\[]")
TABLE = "table"
STREAM = "stream"


class SnapshotRef(NamedTuple):
    """A snapshot in a shared store: the state as of a sequence."""

    sequence: int
    name: str


class CursorPosition(msgspec.Struct, frozen=True, gc=False):
    """The next index a consumer reads, and when it said so."""

    index: int
    updated_us: int


class Stream:
    """A stream or table with its partitions."""

    __slots__ = ("info", "partitions", "table")

    def __init__(self, info: StreamInfo, firsts: list[int]) -> None:
        self.info = info
        self.partitions = [Partition(info.name, info.id, number, first) for number, first in enumerate(firsts)]
        self.table = Table() if info.kind == TABLE else None

    def partition(self, number: int) -> Partition:
        if not 0 <= number < len(self.partitions):
            raise UnknownStream(self.info.name, number, len(self.partitions))
        return self.partitions[number]


CursorKey = tuple[str, int]
"""Cursor name and partition."""


class State:
    """Everything that events change. Written by the writer under the log's lock."""

    def __init__(self) -> None:
        self.sequence = 0
        """Frames below this are folded in."""
        self.is_final = False
        """It comes from a snapshot that was taken when the log closed."""
        self.bookmark = b""
        """Of the journal, in the snapshot that it comes from."""
        self.streams: dict[str, Stream] = {}
        self.by_id: dict[int, Stream] = {}
        self.tables: dict[int, Table] = {}
        """By stream id."""
        self.next_stream_id = 1
        self.retired_indexes: dict[str, list[int]] = {}
        """For every name that was ever deleted: the next index of each partition, so that none is used again."""
        self.deleted_ids: set[int] = set()
        """Streams whose files are still to be removed."""
        self.cursors: dict[int, dict[CursorKey, CursorPosition]] = {}
        """By stream id."""
        self.pending_cursors: dict[tuple[int, str, int], CursorPosition | None] = {}
        self.flying_cursors: tuple[dict[tuple[int, str, int], CursorPosition | None], ...] = ()
        """Of commits on their way, oldest first."""
        self.checkpoints: dict[int, CheckpointInfo] = {}
        self.next_checkpoint_id = 1
        self.garbage: list[str] = []
        """Blobs that nobody needs any more, to be removed: an event that drops them is durable."""
        self.discarded: list[Values | list[TailEntry]] = []
        """What cleared tables and trimmed tails held: freed a little at a time, since that holds everybody up."""
        self.tail_bytes = 0
        self.is_shared = False
        """Its store is: events tell what is there."""
        self.snapshots: list[SnapshotRef] = []
        """In a shared store; the oldest first."""
        self.checkpoint_names: dict[int, str] = {}
        """What blobs are found by in a shared store."""
        self.store_mark = 0
        """Below this place in a shared store every blob is named here, or is in `garbage` (`orphans.py`)."""
        self.finished_blobs: dict[int, str] = {}
        """The same, of those that no checkpoint names yet."""

    def stream(self, name: str) -> Stream:
        try:
            return self.streams[name]
        except KeyError:
            raise UnknownStream(name) from None

    def may_take(self, op: Append) -> bool:
        """Whether records may be stored, as far as that is quick to tell."""
        stream = self.streams.get(op.stream)
        if stream is None or not 0 <= op.partition < len(stream.partitions) or (op.line and op.line.refused):
            return False
        last = None if op.producer is None else stream.partitions[op.partition].producer(op.producer)
        return last is None or op.sequence is None or op.sequence > last.sequence

    def matching(self, pattern: str) -> list[Stream]:
        """Streams and tables whose name fits a shell pattern."""
        if not WILD.search(pattern):  # a name: there may be very many others
            found = self.streams.get(pattern)
            return [] if found is None else [found]
        streams = list(self.streams.values())
        if pattern == "*":
            return streams
        check_pattern(pattern)
        fits = re.compile(fnmatch.translate(pattern)).match
        return [stream for stream in streams if fits(stream.info.name)]

    def partitions(self) -> list[Partition]:
        return [partition for stream in list(self.streams.values()) for partition in stream.partitions]

    @property
    def needed_sequence(self) -> int:
        """The journal's frames from here on are needed: records that are not sealed, and what is not folded in."""
        tails = (partition.tail for partition in self.partitions())
        return min([self.sequence, *(tail.oldest.sequence for tail in tails if tail)])

    def firsts_for(self, name: str, start: int, end: int) -> list[int]:
        """First indexes for partitions start ≤ number < end of a name: above all that it ever used."""
        retired = self.retired_indexes.get(name, [])
        return [retired[number] if number < len(retired) else 0 for number in range(start, end)]

    def checkpoint_name(self, id: int) -> str:
        """What its blob is found by."""
        return self.checkpoint_names.get(id) or checkpoint.blob_name(id)

    def cursor(self, stream_id: int, cursor: str, partition: int) -> CursorPosition | None:
        return self.cursors.get(stream_id, {}).get((cursor, partition))

    def peek_cursor(self, stream_id: int, cursor: str, partition: int) -> CursorPosition | None:
        """The position with the commit under way counted in; only for the writer."""
        key = (stream_id, cursor, partition)
        if key in self.pending_cursors:
            return self.pending_cursors[key]
        for cursors in reversed(self.flying_cursors):
            if key in cursors:
                return cursors[key]
        return self.cursor(stream_id, cursor, partition)

    def peek_lowest_cursor(self, stream_id: int, partition: int, default: int) -> int:
        """Where the last consumer of a partition stands, with the commit under way counted in; only for the writer."""
        positions: dict[tuple[int, str, int], CursorPosition | None]
        positions = {(stream_id, *key): position for key, position in self.cursors.get(stream_id, {}).items()}
        for changes in (*self.flying_cursors, self.pending_cursors):
            positions |= changes
        return min(
            (
                position.index
                for key, position in positions.items()
                if position is not None and (key[0], key[2]) == (stream_id, partition)
            ),
            default=default,
        )

    def apply(self, event: frame.AnyEvent) -> None:
        """Fold one event in. Events of streams that are gone, or were lost with a damaged frame, change nothing."""
        match event:
            case frame.StreamCreated():
                self._created(event)
            case frame.CheckpointAdded() | frame.CheckpointStored():
                self._checkpoint_added(event)
            case frame.CheckpointDropped():
                if event.id in self.checkpoints:
                    self._drop_checkpoint(event.id)
            case frame.SnapshotStored():
                self._snapshot_stored(event)
            case frame.SegmentStored():
                if event.stream in self.by_id:
                    self._segment_stored(self.by_id[event.stream].partition(event.partition), event)
            case frame.CursorSaved() | frame.CursorDeleted() | frame.ProducerSet():
                if event.stream in self.by_id:
                    self._position_changed(event)
            case _:
                if event.id in self.by_id:
                    self._stream_changed(self.by_id[event.id], event)

    def _created(self, event: frame.StreamCreated) -> None:
        info = StreamInfo(event.name, event.id, event.kind, len(event.firsts), event.options, event.time_us)
        self.add_stream(Stream(info, event.firsts))

    def add_stream(self, stream: Stream) -> None:
        self.streams[stream.info.name] = stream
        self.by_id[stream.info.id] = stream
        if stream.table is not None:
            self.tables[stream.info.id] = stream.table
        self.next_stream_id = max(self.next_stream_id, stream.info.id + 1)

    def _checkpoint_added(self, event: frame.CheckpointAdded | frame.CheckpointStored) -> None:
        self.next_checkpoint_id = max(self.next_checkpoint_id, event.id + 1)
        stream = self.by_id.get(event.stream)
        if stream is not None:
            self.checkpoints[event.id] = CheckpointInfo(
                event.id, stream.info.name, event.position, event.size, event.time_us, event.meta
            )
            if isinstance(event, frame.CheckpointStored):
                self.checkpoint_names[event.id] = event.name
                self.finished_blobs.pop(event.id, None)

    def _drop_checkpoint(self, id: int) -> None:
        self.garbage.append(self.checkpoint_name(id))
        del self.checkpoints[id]
        self.checkpoint_names.pop(id, None)

    def _snapshot_stored(self, event: frame.SnapshotStored) -> None:
        removed = set(event.removed)
        self.garbage = [name for name in self.garbage if name not in removed]
        self.snapshots.append(SnapshotRef(event.sequence, event.name))
        while len(self.snapshots) > SNAPSHOTS_KEPT:
            self.garbage.append(self.snapshots.pop(0).name)

    def _segment_stored(self, partition: Partition, event: frame.SegmentStored) -> None:
        """It takes the place of the segments that were merged into it, or of the tail's first entries."""
        covered = [ref for ref in partition.segments if event.first <= ref.first and ref.next <= event.next]
        ref = SegmentRef(event.first, event.next, event.name, event.bytes)
        partition.segments = sorted([*(each for each in partition.segments if each not in covered), ref])
        self.garbage += (each.path for each in covered if each.path != ref.path)
        self.tail_bytes -= partition.let_go(event.next)
        self._trim(partition, partition.first)  # it may have come too late

    def _position_changed(self, event: frame.CursorSaved | frame.CursorDeleted | frame.ProducerSet) -> None:
        match event:
            case frame.CursorSaved():
                cursors = self.cursors.setdefault(event.stream, {})
                cursors[event.cursor, event.partition] = CursorPosition(event.index, event.time_us)
            case frame.CursorDeleted():
                self.cursors.get(event.stream, {}).pop((event.cursor, event.partition), None)
            case frame.ProducerSet():
                producers = self.by_id[event.stream].partition(event.partition).producers
                if event.sequence is None:
                    producers.pop(event.producer, None)
                else:
                    producers[event.producer] = ProducerState(event.sequence, 0, 0)

    def _stream_changed(
        self,
        stream: Stream,
        event: frame.StreamGrown | frame.OptionsChanged | frame.StreamDeleted | frame.StreamTrimmed,
    ) -> None:
        match event:
            case frame.StreamGrown():
                count = len(stream.partitions)
                stream.partitions += [
                    Partition(stream.info.name, stream.info.id, count + number, first)
                    for number, first in enumerate(event.firsts)
                ]
                stream.info = msgspec.structs.replace(stream.info, partitions=len(stream.partitions))
            case frame.OptionsChanged():
                stream.info = msgspec.structs.replace(stream.info, options=event.options)
            case frame.StreamTrimmed():
                self._trim(stream.partition(event.partition), event.first)
            case frame.StreamDeleted():
                self._deleted(stream, event.nexts)

    def _trim(self, partition: Partition, first: int) -> None:
        partition.first = max(partition.first, first)
        partition.next = max(partition.next, first)  # lost frames may hide how far it went
        gone = [ref for ref in partition.segments if ref.next <= partition.first]
        partition.segments = partition.segments[len(gone) :]
        self.garbage += (ref.path for ref in gone)

    def _deleted(self, stream: Stream, nexts: list[int]) -> None:
        name, id = stream.info.name, stream.info.id
        retired = self.retired_indexes.get(name, [])
        self.retired_indexes[name] = [
            max(nexts[number] if number < len(nexts) else 0, retired[number] if number < len(retired) else 0)
            for number in range(max(len(nexts), len(retired)))
        ]
        del self.streams[name], self.by_id[id]
        if not self.is_shared:
            self.deleted_ids.add(id)
        if stream.table is not None:
            self.discarded.append(stream.table.clear())
            del self.tables[id]
        self.cursors.pop(id, None)
        self.tail_bytes -= sum(partition.tail.bytes for partition in stream.partitions)
        for partition in stream.partitions:  # a reader may have it still, and open files keep their room on the disk
            self._trim(partition, partition.next)
        dropped = [info.id for info in self.checkpoints.values() if info.stream == name]
        for checkpoint_id in dropped:
            self._drop_checkpoint(checkpoint_id)


def placeholder(id: int) -> Stream:
    """A stream whose creation was lost with a damaged frame, and whose records are still there."""
    return Stream(StreamInfo(f"recovered/{id}", id, STREAM, 1, StreamOptions(), 0), [0])
