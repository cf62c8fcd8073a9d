"""Folding: frames in their order, made into a State. It knows no file: whoever reads a journal feeds it.

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
    place_of_only_records,
)
from headrace.log.journal_port import GoodFrame, LostFrames
from headrace.log.partition import Partition, ProducerState
from headrace.log.report import Finding, Report
from headrace.log.state import State, Stream, placeholder
from headrace.log.tail import Tail, TailEntry

RECORD_BYTES_MIN = 4
"""A record takes at least its offset: so many bytes of lost frames held at most so many records."""
INDEX_END = 2**64
"""Above all indexes."""
NEAR = 4096
"""Entries of frames so near to each other share one number of a frame: that of the first."""
UNKNOWN_LOSS = 2**32
"""How far indexes are moved on when a whole file is missing."""


class Fold:
    """Frames become part of a state. What cannot be told is noted in the report."""

    def __init__(self, state: State, report: Report, find_segments: Callable[[Partition], None]) -> None:
        """`find_segments` gives a partition those that it has; asked for each, also for those that frames create."""
        self._state = state
        self._report = report
        self._find_segments = find_segments
        self._snapshot_sequence = state.sequence
        self._entries: dict[Partition, list[TailEntry]] = {}
        self._old: dict[tuple[int, int], tuple[int, list[TailEntry]]] = {}
        """By stream and partition, while the frames come that the snapshot has folded in, which change nothing else:
        below which index records do not count, and the entries of those that do."""
        self._time_us = 0
        """Of the last records: those of one commit share one number, and not only its value."""
        self._sequence = -NEAR
        """Of the last records, or of some a little before them; shared in the same way."""
        self._lost_bytes: int | None = 0
        self._seen_after_loss: set[Partition] = set()
        for partition in state.partitions():
            find_segments(partition)

    def add(self, frame: GoodFrame) -> None:
        """The next frame."""
        self._report.frames += 1
        is_new = frame.sequence >= self._snapshot_sequence
        if not is_new and self._add_old(frame):
            return
        only = decode_only_records(frame.directory)
        if only is not None:
            self._add_records(only, frame.data, frame.sequence, is_new)
            return
        at = 0
        for entry in decode_directory(frame.directory):
            if isinstance(entry, RecordsEntry):
                body = None if frame.data is None else frame.data[at : at + entry.body_bytes]
                at += entry.body_bytes
                self._add_records(entry, body, frame.sequence, is_new)
            elif is_new:
                self._add_event(entry)

    def _add_old(self, frame: GoodFrame) -> bool:
        """Add the records of a frame that the snapshot has folded in; False when it holds more than some records. There
        may be a million of them."""
        place = place_of_only_records(frame.directory)
        if place is None:
            return False
        stream, partition, count, base, time_us = place
        known = self._old.get((stream, partition))
        if known is None:
            known = self._old[stream, partition] = self._known(stream, partition)
        if frame.data is not None and base + count > known[0]:
            self._report.journal_records += count
            if time_us != self._time_us or frame.sequence - self._sequence >= NEAR:
                self._share(time_us, frame.sequence)
            known[1].append(TailEntry(base, count, self._time_us, frame.data, self._sequence))
        return True

    def _known(self, stream: int, partition: int) -> tuple[int, list[TailEntry]]:
        found = self._state.by_id.get(stream)
        if found is None:  # it has been deleted since
            return INDEX_END, []
        self._grow_to(found, partition)
        owner = found.partitions[partition]
        return max(owner.sealed_next, owner.first), self._entries.setdefault(owner, [])

    def _share(self, time_us: int, sequence: int) -> None:
        """Have `_time_us` and `_sequence` stand for these."""
        if time_us != self._time_us:
            self._time_us = time_us
        if sequence - self._sequence >= NEAR:
            self._sequence = sequence

    def lose(self, lost: LostFrames) -> None:
        """The next frames cannot be read."""
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
        self._skip_possibly_used_indexes()
        for partition in self._state.partitions():
            self._finish_partition(partition)
        self._state.sequence = next_sequence

    def _add_event(self, event: AnyEvent) -> None:
        match event:
            case CursorSaved() | CursorDeleted() | ProducerSet():
                self._grow_to(self._state.by_id.get(event.stream), event.partition)
            case StreamTrimmed():
                self._grow_to(self._state.by_id.get(event.id), event.partition)
            case SegmentStored():
                self._grow_to(self._state.by_id.get(event.stream), event.partition)
                self._let_go(event)
        self._state.apply(event)
        if isinstance(event, StreamCreated | StreamGrown) and event.id in self._state.by_id:
            for partition in self._state.by_id[event.id].partitions[-len(event.firsts) :]:
                self._find_segments(partition)

    def _let_go(self, event: SegmentStored) -> None:
        """Of records that a segment has: a partition's entries stand in the order of their indexes."""
        stream = self._state.by_id.get(event.stream)
        entries = [] if stream is None else self._entries.get(stream.partitions[event.partition], [])
        del entries[: bisect_right(entries, event.next, key=lambda entry: entry.next)]

    def _add_records(self, entry: RecordsEntry, body: bytes | None, sequence: int, is_new: bool) -> None:
        partition = self._partition(entry, is_new)
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
        self._share(entry.time_us, sequence)
        tail_entry = TailEntry(entry.base, entry.count, self._time_us, body, sequence)
        known = self._entries.get(partition)
        if known is None:
            self._entries[partition] = [tail_entry]
        else:
            known.append(tail_entry)

    def _partition(self, entry: RecordsEntry, is_new: bool) -> Partition | None:
        """The partition that records belong to; None when their stream has been deleted since."""
        stream = self._state.by_id.get(entry.stream)
        if stream is None:
            if not is_new:
                return None
            stream = placeholder(entry.stream)
            self._state.add_stream(stream)
            self._report.note(
                "possible-loss", f"the creation of stream {entry.stream} is lost; it is {stream.info.name!r} now"
            )
        self._grow_to(stream, entry.partition)
        return stream.partitions[entry.partition]

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
        entries = self._entries.pop(partition, None)
        if entries:
            partition.tail = Tail(entries)
            self._state.tail_bytes += partition.tail.bytes
        partition.forget_pending()
        for first, last in partition.gaps():
            text = f"stream {partition.stream!r} partition {partition.number}: indexes {first} to {last} are lost"
            self._report.findings.append(
                Finding("damaged-records", text, "", partition.stream, partition.number, first, last)
            )
