"""The tail: records of a partition that are durable in the journal and not yet sealed, kept as they were written.

A tail that recovery has found is packed, until somebody wants its entries: there may be a hundred thousand tails of a
few small entries each, and as objects they take three times the memory.

    packed := first:u64 next:u64 count:u32 zero:u32 entry × count, bodies one behind the other
    entry  := time_us:i64 sequence:u64 count:u32 size:u32                  from `first` to `next`, without a gap
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter
from threading import Lock

import msgspec
import numpy as np
import pyarrow as pa

from headrace.log.batch import Columns, Row, decode_single
from headrace.log.columns import OPTIONAL, TIME
from headrace.log.merge import merge
from headrace.log.records import assembled, concat


class TailEntry(msgspec.Struct, frozen=True, gc=False):
    """One body of the journal: records base ≤ index < base + count."""

    base: int
    count: int
    time_us: int
    body: bytes
    sequence: int
    """Of the journal frame: from there on the journal must stay until this is sealed."""

    @property
    def next(self) -> int:
        return self.base + self.count


_base = attrgetter("base")
_PACKED = struct.Struct("<QQII")
PACKED_ENTRY = struct.Struct("<qQII")
_unpacking = Lock()


def pack(first: int, next_index: int, entries: bytes, bodies: Sequence[bytes]) -> bytes:
    """Entries from `first` to `next_index` without a gap; `entries` has a `PACKED_ENTRY` of each."""
    return b"".join((_PACKED.pack(first, next_index, len(bodies), 0), entries, *bodies))


def join_packed(packed: bytes, following: bytes) -> bytes | None:
    """Two as one; None when there is a gap between them."""
    (first, middle, count, _), (also, end, more, _) = _PACKED.unpack_from(packed), _PACKED.unpack_from(following)
    if middle != also:
        return None
    at, there = (_PACKED.size + number * PACKED_ENTRY.size for number in (count, more))
    entries = packed[_PACKED.size : at] + following[_PACKED.size : there]
    return b"".join((_PACKED.pack(first, end, count + more, 0), entries, packed[at:], following[there:]))


def unpack(packed: bytes) -> list[TailEntry]:
    base, _, number, _ = _PACKED.unpack_from(packed)
    at = _PACKED.size + number * PACKED_ENTRY.size
    entries = []
    for time_us, sequence, count, size in PACKED_ENTRY.iter_unpack(packed[_PACKED.size : at]):
        entries.append(TailEntry(base, count, time_us, packed[at : at + size], sequence))
        at += size
        base += count
    return entries


class Tail:
    """Entries in index order. One thread appends; others may read at any time, since entries never change."""

    __slots__ = ("_packed", "bytes", "entries")

    entries: list[TailEntry]

    def __init__(self, entries: list[TailEntry] | None = None) -> None:
        self.entries = entries or []
        self.bytes = sum([len(entry.body) for entry in entries]) if entries else 0
        self._packed = b""

    @classmethod
    def of_packed(cls, packed: bytes) -> Tail:
        tail = cls.__new__(cls)
        tail.bytes = len(packed) - _PACKED.size - _PACKED.unpack_from(packed)[2] * PACKED_ENTRY.size
        tail._packed = packed
        return tail

    def __getattr__(self, name: str) -> list[TailEntry]:
        """Python asks here for what is not there yet: the entries, when they are packed."""
        if name != "entries":
            raise AttributeError(name)
        with _unpacking:  # two threads may come at once, and the writer adds to what it is given
            if self._packed:
                self.entries, self._packed = unpack(self._packed), b""
        return self.entries

    def __len__(self) -> int:
        """How many entries, without unpacking them."""
        packed = self._packed
        return int(_PACKED.unpack_from(packed)[2]) if packed else len(self.entries)

    @property
    def oldest(self) -> TailEntry:
        """The first entry, without unpacking the others. There must be one."""
        packed = self._packed
        if not packed:
            return self.entries[0]
        base, _, number, _ = _PACKED.unpack_from(packed)
        time_us, sequence, count, size = PACKED_ENTRY.unpack_from(packed, _PACKED.size)
        at = _PACKED.size + number * PACKED_ENTRY.size
        return TailEntry(base, count, time_us, packed[at : at + size], sequence)

    def spans(self) -> list[tuple[int, int]]:
        """Which indexes there are: first ≤ index < next, each."""
        packed = self._packed
        if packed:
            first, next_index, _, _ = _PACKED.unpack_from(packed)
            return [(first, next_index)]
        return [(entry.base, entry.next) for entry in self.entries]

    def append(self, entry: TailEntry) -> None:
        self.entries.append(entry)
        self.bytes += len(entry.body)

    def position(self, index: int) -> int:
        """Which entry holds an index, or the one before it; -1 when all are above."""
        return bisect_right(self.entries, index, key=_base) - 1

    def read(self, start: int, limit: int, bytes_max: int) -> pa.RecordBatch | None:
        """Records from `start`; None when the tail does not hold it. Stops at a gap."""
        position = self.position(start)
        if position < 0 or self.entries[position].next <= start:
            return None
        wanted: list[TailEntry] = []
        size = 0
        end = start + limit
        expected = self.entries[position].base
        for entry in self.entries[position : position + limit]:
            if entry.base >= end or entry.base != expected or (wanted and size + len(entry.body) > bytes_max):
                break
            wanted.append(entry)
            size += len(entry.body)
            expected = entry.next
        return to_arrow(wanted).slice(start - wanted[0].base, limit)

    def without(self, count: int) -> Tail:
        """A new tail that lacks the first `count` entries."""
        return Tail(self.entries[count:])


PIECE_BYTES = 768 * 1024
"""Small entries are turned into Arrow in pieces of about this size."""
LARGE_BYTES = 256 * 1024
"""An entry of this size is a piece by itself, and is not copied: a reader may take it record by record."""
FEW = 32
"""Entries that are made into a piece without lists of Python objects."""
SMALL_RECORDS = 1024
"""Small entries with fewer records are joined before Arrow sees them: its cost is per array."""


def to_arrow(entries: list[TailEntry]) -> pa.RecordBatch:
    """Entries as one record batch."""
    batches: list[pa.RecordBatch] = []
    run: list[TailEntry] = []
    for entry in entries:
        if run and _way(entry) is not _way(run[0]):
            batches.append(_way(run[0])(run))
            run = []
        run.append(entry)
    if run:
        batches.append(_way(run[0])(run))
    return concat(batches)


def _way(entry: TailEntry) -> Callable[[list[TailEntry]], pa.RecordBatch]:
    """How a run of entries like this one becomes Arrow most cheaply."""
    if entry.count >= SMALL_RECORDS or len(entry.body) >= LARGE_BYTES:
        return _large_to_arrow
    return _singles_to_arrow if entry.count == 1 else _small_to_arrow


def _large_to_arrow(entries: list[TailEntry]) -> pa.RecordBatch:
    return concat([Columns(entry.body).to_arrow(entry.base, entry.time_us) for entry in entries])


def _small_to_arrow(entries: list[TailEntry]) -> pa.RecordBatch:
    optional, payload = merge([entry.body for entry in entries])
    counts = [entry.count for entry in entries]
    first = np.repeat([entry.base for entry in entries], counts)
    within = np.arange(sum(counts)) - np.repeat(np.cumsum([0, *counts[:-1]]), counts)
    times = np.repeat(np.array([entry.time_us for entry in entries], np.int64), counts)
    return assembled((first + within).astype(np.int64), times, optional, payload)


def _singles_to_arrow(entries: list[TailEntry]) -> pa.RecordBatch:
    count = len(entries)
    rows: list[Row] = [decode_single(entry.body) for entry in entries]
    *given, payloads = zip(*rows, strict=True)
    optional = [
        pa.array(values, pa.int64()).view(column.kind.arrow)
        if column.kind is TIME
        else pa.array(values, column.kind.arrow)
        for column, values in zip(OPTIONAL, given, strict=True)
    ]
    indexes = np.fromiter((entry.base for entry in entries), np.int64, count)
    times = np.fromiter((entry.time_us for entry in entries), np.int64, count)
    return assembled(indexes, times, optional, pa.array(payloads, pa.binary()))


def pieces(entries: Sequence[TailEntry]) -> list[pa.RecordBatch]:
    """Entries as record batches: large ones each by itself, which copies nothing, small ones some together."""
    made: list[pa.RecordBatch] = []
    gathered: list[TailEntry] = []
    size = 0
    for entry in entries:
        is_large = len(entry.body) >= LARGE_BYTES
        if gathered and (is_large or size >= PIECE_BYTES):
            made.append(_piece(gathered))
            gathered, size = [], 0
        if is_large:
            made.append(to_arrow([entry]))
        else:
            gathered.append(entry)
            size += len(entry.body)
    if gathered:
        made.append(_piece(gathered))
    return made


def _piece(entries: list[TailEntry]) -> pa.RecordBatch:
    """A few single records are not worth the import that `_singles_to_arrow` may cause, beside a hub at work."""
    return _small_to_arrow(entries) if len(entries) < FEW else to_arrow(entries)
