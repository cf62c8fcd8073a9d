"""One partition of a stream: its bounds, its tail, its segments, and where its producers stand.

An index between `first` and `next` that neither a segment nor the tail holds was damaged: there is no third place.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from threading import Lock

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import BadRequest, Damaged, Fenced
from headrace.log.records import EMPTY
from headrace.log.segment import Segment, SegmentDamaged, SegmentRef
from headrace.log.store import Store
from headrace.log.tail import Tail


class ProducerState(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The last batch that a producer stored here."""

    sequence: int
    first: int
    count: int


def check_after(producer: str, sequence: int | None, after: int, last: ProducerState | None) -> None:
    """Refuse an append whose sender does not know the producer's last sequence; -1 stands for none."""
    if sequence is not None and sequence <= after:
        raise BadRequest(f"producer {producer!r}: sequence {sequence} is not above 'after', which is {after}")
    known = -1 if last is None else last.sequence
    if known != after:
        raise Fenced(
            f"producer {producer!r} is at sequence {known}, not at {after}: another program uses this name. "
            "Nothing was stored"
        )


class OpenSegments:
    """The segments that were read last, kept open. Bounded, shared by all partitions, thread safe."""

    def __init__(self, store: Store, limit: int) -> None:
        self._store = store
        self._limit = limit
        self._bytes_max = store.mapped_bytes_max
        self._bytes = 0
        self._open: OrderedDict[str, Segment] = OrderedDict()
        self._lock = Lock()

    def get(self, ref: SegmentRef) -> Segment:
        with self._lock:
            segment = self._open.get(ref.path)
            if segment is not None:
                self._open.move_to_end(ref.path)
                return segment
        segment = Segment(self._store, ref)
        with self._lock:
            self._close(ref.path)  # another thread was quicker
            self._open[ref.path] = segment
            self._bytes += ref.bytes
            while len(self._open) > self._limit or (self._is_too_much and len(self._open) > 1):
                self._close(next(iter(self._open)))
        return segment

    @property
    def _is_too_much(self) -> bool:
        return self._bytes_max is not None and self._bytes > self._bytes_max

    def _close(self, name: str) -> None:
        segment = self._open.pop(name, None)
        if segment is not None:
            self._bytes -= segment.ref.bytes

    def forget(self, name: str) -> None:
        with self._lock:
            self._close(name)

    def renew(self, ref: SegmentRef) -> bool:
        """A segment turned out to be damaged: whether another try may find it whole."""
        self.forget(ref.path)
        return self._store.renew(ref.path)

    def close(self) -> None:
        """Let go of all of them; a reader that still holds records keeps their file mapped."""
        with self._lock:
            self._open.clear()
            self._bytes = 0


class Partition:
    """Records first ≤ index < next. Changed only by the writer, under the log's lock; read by anyone."""

    __slots__ = (
        "first",
        "flying_producers",
        "next",
        "number",
        "pending_next",
        "pending_producers",
        "pending_time_us",
        "producers",
        "segments",
        "stream",
        "stream_id",
        "tail",
        "time_us",
    )

    def __init__(self, stream: str, stream_id: int, number: int, first: int) -> None:
        self.stream = stream
        self.stream_id = stream_id
        self.number = number
        self.first = first
        self.next = first
        self.time_us = 0
        """Of the newest record: time never goes back in a partition."""
        self.tail = Tail()
        self.segments: list[SegmentRef] = []
        """Replaced as a whole, never changed in place. Published before the tail lets go of the same records."""
        self.producers: dict[str, ProducerState] = {}
        self.pending_next = first
        """`next` as it will be when all commits under way are durable; only the writer looks."""
        self.pending_time_us = 0
        self.pending_producers: dict[str, ProducerState | None] = {}
        self.flying_producers: tuple[dict[str, ProducerState | None], ...] = ()
        """Of commits on their way, oldest first."""

    @property
    def sealed_next(self) -> int:
        """Everything below is in segments (or gone)."""
        return self.segments[-1].next if self.segments else self.first

    @property
    def sealed_bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)

    def let_go(self, next_index: int) -> int:
        """A segment has the tail's entries below an index; returns how many bytes went."""
        before = self.tail
        count = bisect_right(before.entries, next_index, key=lambda entry: entry.next)
        if count:
            self.tail = before.without(count)
        return before.bytes - self.tail.bytes

    def producer(self, name: str) -> ProducerState | None:
        """Where a producer stands, with the commits under way counted in; only for the writer."""
        if name in self.pending_producers:
            return self.pending_producers[name]
        for producers in reversed(self.flying_producers):
            if name in producers:
                return producers[name]
        return self.producers.get(name)

    def forget_pending(self) -> None:
        """The commit under way did not happen."""
        self.pending_next = self.next
        self.pending_time_us = self.time_us
        self.pending_producers.clear()
        self.flying_producers = ()

    def settle_pending(self) -> None:
        """The commit under way is durable."""
        self._set_producers(self.pending_producers)
        self.pending_producers.clear()
        self.time_us = self.pending_time_us
        self.next = self.pending_next

    def set_off(self) -> tuple[int, int, dict[str, ProducerState | None]]:
        """The next commit begins while this one is on its way. Where this one ends, for `land`."""
        producers, self.pending_producers = self.pending_producers, {}
        if producers:
            self.flying_producers += (producers,)
        return self.pending_next, self.pending_time_us, producers

    def land(self, next_index: int, time_us: int, producers: dict[str, ProducerState | None]) -> None:
        """The oldest commit that has set off is durable."""
        if producers:
            self._set_producers(producers)
            self.flying_producers = self.flying_producers[1:]
        self.time_us = time_us
        self.next = next_index

    def _set_producers(self, producers: dict[str, ProducerState | None]) -> None:
        for name, state in producers.items():
            if state is None:
                self.producers.pop(name, None)
            else:
                self.producers[name] = state

    def read(self, opened: OpenSegments, start: int, limit: int, bytes_max: int) -> pa.RecordBatch:
        """Records from `start` or the first kept; fewer than `limit` where a file or a gap ends. Empty at the end."""
        while True:
            first, segments, next_index = self.first, self.segments, self.next
            at = max(start, first)
            if at >= next_index:
                return EMPTY
            try:
                records = self._read_at(opened, segments, at, min(limit, next_index - at), bytes_max)
            except Damaged:
                if first == self.first and segments is self.segments:
                    raise
                continue  # trimmed, sealed or merged meanwhile: what was looked for is elsewhere, or gone for good
            return cut_to_bytes(records, bytes_max)

    def _read_at(
        self, opened: OpenSegments, segments: list[SegmentRef], start: int, limit: int, bytes_max: int
    ) -> pa.RecordBatch:
        records = self.tail.read(start, limit, bytes_max)
        if records is not None:
            return records
        position = bisect_right(segments, start, key=lambda ref: ref.first) - 1
        if position < 0 or segments[position].next <= start:
            raise Damaged(self.stream, self.number, start, self._gap_end(start), "the journal")
        try:
            return opened.get(segments[position]).read(start, limit)
        except SegmentDamaged as damage:
            if opened.renew(segments[position]):
                return self._read_at(opened, segments, start, limit, bytes_max)
            raise Damaged(self.stream, self.number, max(start, damage.first), damage.last, damage.path) from damage

    def _gap_end(self, start: int) -> int:
        """The last index that is missing from `start` on."""
        bases = [ref.first for ref in self.segments if ref.first > start]
        bases += [first for first, _ in self.tail.spans() if first > start]
        return min(bases, default=self.next) - 1

    def gaps(self) -> list[tuple[int, int]]:
        """Index ranges (inclusive) that no segment and no tail entry holds."""
        missing: list[tuple[int, int]] = []
        at = self.first
        spans = self.tail.spans()
        if at == self.next or (len(spans) == 1 and not self.segments and spans[0] == (at, self.next)):
            return missing  # one of very many, perhaps
        for first, next_index in sorted([(ref.first, ref.next) for ref in self.segments] + spans):
            if first > at:
                missing.append((at, first - 1))
            at = max(at, next_index)
        if at < self.next:
            missing.append((at, self.next - 1))
        return missing


def cut_to_bytes(records: pa.RecordBatch, bytes_max: int) -> pa.RecordBatch:
    """The first records whose payloads fit in `bytes_max` together; at least one."""
    payload = records.column(6)
    if payload.nbytes <= bytes_max:
        return records
    ends = np.cumsum(np.asarray(pc.binary_length(payload)))
    return records.slice(0, max(1, int(np.searchsorted(ends, bytes_max, side="right"))))
