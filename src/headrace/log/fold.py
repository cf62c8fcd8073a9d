"""Folding: frames in their order, made into a State. It knows no file: whoever reads a journal feeds it.

Runs of frames (`runs.py`) wait until something else comes, and are folded together, a partition at a time: within them
nothing depends on the order between partitions.

What a snapshot holds is folded in already: of older frames only records that are not sealed yet count. Where frames are
lost, no index that one of them may have used is given out again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

import msgspec

from headrace.log.frame import (
    AnyEvent,
    CursorDeleted,
    CursorSaved,
    ProducerSet,
    RecordsEntry,
    SegmentStored,
    StreamCreated,
    StreamGrown,
    StreamTrimmed,
    decode_directory,
    decode_only_records,
)
from headrace.log.journal_port import Good, GoodFrame, LostFrames
from headrace.log.partition import Partition, ProducerState
from headrace.log.report import Finding, Report
from headrace.log.runs import FrameRun, Group, grouped
from headrace.log.state import State, Stream, placeholder
from headrace.log.tail import PACKED_ENTRY, Tail, TailEntry, join_packed, pack, unpack
from headrace.units import MIB

RECORD_BYTES_MIN = 4
"""A record takes at least its offset: so many bytes of lost frames held at most so many records."""
UNKNOWN_LOSS = 2**32
"""How far indexes are moved on when a whole file is missing."""
RUNS_BYTES_MAX = 64 * MIB
"""Runs are folded when their records take this much: most of them may be sealed, and need not stay in memory."""


class Fold:
    """Frames become part of a state. What cannot be told is noted in the report."""

    def __init__(self, state: State, report: Report, find_segments: Callable[[Partition], None]) -> None:
        """`find_segments` gives a partition those that it has; asked for each, also for those that frames create."""
        self._state = state
        self._report = report
        self._find_segments = find_segments
        self._snapshot_sequence = state.sequence
        self._packed: dict[Partition, bytes] = {}
        """Entries that came in runs: a packed tail for each partition, as long as nothing else came for it."""
        self._entries: dict[Partition, list[TailEntry]] = {}
        """The others; no partition is in both."""
        self._runs: list[FrameRun] = []
        self._runs_bytes = 0
        self._time_us = 0
        """Of the last records: those of one commit share one number, and not only its value."""
        self._lost_bytes: int | None = 0
        self._seen_after_loss: set[Partition] = set()
        for partition in state.partitions():
            find_segments(partition)

    def add(self, frame: Good) -> None:
        """The next frame, or the next run of frames."""
        if isinstance(frame, FrameRun):
            self._report.frames += len(frame.bodies)
            self._runs.append(frame)
            self._runs_bytes += frame.size
            if self._runs_bytes >= RUNS_BYTES_MAX:
                self._fold_runs()
            return
        if self._runs:
            self._fold_runs()
        self._report.frames += 1
        self._add_frame(frame, frame.sequence >= self._snapshot_sequence)

    def _add_frame(self, frame: GoodFrame, is_new: bool) -> None:
        only = decode_only_records(frame.directory)
        if only is not None:
            self._add_records(only, frame.data, frame.sequence, is_new)
            return
        at = 0
        for entry in decode_directory(frame.directory, with_events=is_new):
            if isinstance(entry, RecordsEntry):
                body = None if frame.data is None else frame.data[at : at + entry.body_bytes]
                at += entry.body_bytes
                self._add_records(entry, body, frame.sequence, is_new)
            else:
                self._add_event(entry)

    def lose(self, lost: LostFrames) -> None:
        """The next frames cannot be read."""
        self._fold_runs()
        self._report.note(
            "lost-frames",
            f"frames {lost.first_sequence} to {lost.next_sequence - 1} at byte {lost.offset} cannot be read",
            lost.path,
        )
        if lost.next_sequence <= self._snapshot_sequence:
            return  # the snapshot knows all bounds; lost records show as gaps
        if self._lost_bytes is not None:
            self._lost_bytes = self._lost_bytes + lost.size if lost.size else None
        self._seen_after_loss.clear()

    def finish(self, next_sequence: int) -> None:
        """There are no more: tails and bounds are what they are."""
        self._fold_runs()
        self._skip_possibly_used_indexes()
        for partition in self._state.partitions():
            self._finish_partition(partition)
        self._state.sequence = next_sequence

    def _add_event(self, event: AnyEvent) -> None:
        if type(event) is StreamCreated:  # of very many, perhaps
            self._state.apply(event)
            self._find_segments_of(event)
            return
        match event:
            case CursorSaved() | CursorDeleted() | ProducerSet():
                self._grow_to(self._state.by_id.get(event.stream), event.partition)
            case StreamTrimmed():
                self._grow_to(self._state.by_id.get(event.id), event.partition)
            case SegmentStored():
                self._grow_to(self._state.by_id.get(event.stream), event.partition)
                self._let_go(event)
        self._state.apply(event)
        if isinstance(event, StreamGrown) and event.id in self._state.by_id:
            self._find_segments_of(event)

    def _find_segments_of(self, event: StreamCreated | StreamGrown) -> None:
        """Those of partitions that have come."""
        for partition in self._state.by_id[event.id].partitions[-len(event.firsts) :]:
            self._find_segments(partition)

    def _let_go(self, event: SegmentStored) -> None:
        """Of records that a segment has: a partition's entries stand in the order of their indexes."""
        stream = self._state.by_id.get(event.stream)
        if stream is not None:
            entries = self._entries_of(stream.partitions[event.partition])
            del entries[: bisect_right(entries, event.next, key=lambda entry: entry.next)]

    def _add_records(self, entry: RecordsEntry, body: bytes | None, sequence: int, is_new: bool) -> None:
        partition = self._partition(entry.stream, entry.partition, is_new)
        if partition is None:
            return
        if is_new:
            partition.next = max(partition.next, entry.base + entry.count)
            partition.time_us = max(partition.time_us, entry.time_us)
            if entry.producer is not None:
                state = ProducerState(entry.producer_sequence, entry.base, entry.count)
                partition.producers[entry.producer] = state
        self._seen_after_loss.add(partition)
        if body is None or entry.base + entry.count <= max(partition.sealed_next, partition.first):
            return  # damaged records leave a gap, which `finish` names
        self._report.journal_records += entry.count
        if entry.time_us != self._time_us:
            self._time_us = entry.time_us
        self._entries_of(partition).append(TailEntry(entry.base, entry.count, self._time_us, body, sequence))

    def _entries_of(self, partition: Partition) -> list[TailEntry]:
        entries = self._entries.get(partition)
        if entries is None:
            packed = self._packed.pop(partition, None)
            entries = self._entries[partition] = unpack(packed) if packed is not None else []
        return entries

    def _add_packed(self, partition: Partition, packed: bytes) -> None:
        before = self._packed.get(partition)
        joined = packed if before is None else join_packed(before, packed)
        if partition in self._entries or joined is None:
            self._entries_of(partition).extend(unpack(packed))
        else:
            self._packed[partition] = joined

    def _fold_runs(self) -> None:
        """Fold what waits, if anything does."""
        if self._runs:
            runs, self._runs, self._runs_bytes = self._runs, [], 0
            self._add_producers(runs)
            entries, bodies, groups = grouped(runs)
            for group in groups:
                self._add_group(group, entries, bodies)

    def _add_producers(self, runs: list[FrameRun]) -> None:
        for sent in (sent for run in runs for sent in run.sent if sent.frame >= self._snapshot_sequence):
            partition = self._partition(sent.stream, sent.partition, is_new=True)
            assert partition is not None
            partition.producers[sent.producer] = ProducerState(sent.sequence, sent.first, sent.records)

    def _add_group(self, group: Group, entries: bytes, bodies: list[bytes]) -> None:
        is_new = group.last_sequence >= self._snapshot_sequence
        partition = self._partition(group.stream, group.partition, is_new)
        if partition is None:
            return
        if is_new:
            partition.next = max(partition.next, group.next)
            partition.time_us = max(partition.time_us, group.time_us)
            self._seen_after_loss.add(partition)
        begin, first = group.begin, group.first
        kept_from = max(partition.sealed_next, partition.first)
        if group.next <= kept_from:
            return
        while first < kept_from:
            count = PACKED_ENTRY.unpack_from(entries, begin * PACKED_ENTRY.size)[2]
            if first + count > kept_from:
                break
            first += count
            begin += 1
        self._report.journal_records += group.next - first
        here = entries[begin * PACKED_ENTRY.size : group.end * PACKED_ENTRY.size]
        self._add_packed(partition, pack(first, group.next, here, bodies[begin : group.end]))

    def _partition(self, stream_id: int, number: int, is_new: bool) -> Partition | None:
        """The partition that records belong to; None when their stream has been deleted since."""
        stream = self._state.by_id.get(stream_id)
        if stream is None:
            if not is_new:
                return None
            stream = placeholder(stream_id)
            self._state.add_stream(stream)
            self._report.note(
                "possible-loss", f"the creation of stream {stream_id} is lost; it is {stream.info.name!r} now"
            )
        self._grow_to(stream, number)
        return stream.partitions[number]

    @staticmethod
    def _grow_to(stream: Stream | None, partition: int) -> None:
        """A partition that is spoken of is there, even if the stream's growth was lost with a damaged frame."""
        while stream is not None and partition >= len(stream.partitions):
            stream.partitions.append(Partition(stream.info.name, stream.info.id, len(stream.partitions), 0))
            stream.info = msgspec.structs.replace(stream.info, partitions=len(stream.partitions))

    def _skip_possibly_used_indexes(self) -> None:
        """Lost frames may have held records of any stream that is not seen behind them: never use their indexes."""
        if self._lost_bytes == 0:
            return
        skip = UNKNOWN_LOSS if self._lost_bytes is None else self._lost_bytes // RECORD_BYTES_MIN
        for partition in self._state.partitions():
            if partition not in self._seen_after_loss:
                partition.next += skip

    def _finish_partition(self, partition: Partition) -> None:
        packed = self._packed.pop(partition, None)
        if packed is not None:
            partition.tail = Tail.of_packed(packed)
        elif entries := self._entries.pop(partition, None):
            partition.tail = Tail(entries)
        if partition.tail:
            self._state.tail_bytes += partition.tail.bytes
        partition.forget_pending()
        for first, last in partition.gaps():
            text = f"stream {partition.stream!r} partition {partition.number}: indexes {first} to {last} are lost"
            self._report.findings.append(
                Finding("damaged-records", text, "", partition.stream, partition.number, first, last)
            )
