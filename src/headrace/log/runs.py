"""Runs: frames of a journal file that append to one partition each, thousands at a time.

A start may find a million such frames, and Python takes microseconds for each that it looks at. Here NumPy looks at
many at once: that each begins where the one before it ends, that their sequences follow each other, and their
checksums. A run ends before the first frame that is anything else. Whoever reads the file looks at that one by itself:
a run never judges damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from google_crc32c import extend as crc32c_extend
from google_crc32c import value as crc32c

from headrace.log.frame import HEADER, KIND_RECORDS, RECORDS, Salt
from headrace.log.tail import PACKED_ENTRY

RUN_MIN = 128
"""Fewer frames are read more quickly one by one."""
RUN_MAX = 8192
"""Their columns fit the processor's cache."""
WORD = 8
"""Frames begin at multiples of it."""

Row = np.dtype(
    [
        ("magic", "<u4"),
        ("directory_bytes", "<u4"),
        ("data_bytes", "<u4"),
        ("directory_crc", "<u4"),
        ("data_crc", "<u4"),
        ("crc", "<u4"),
        ("sequence", "<u8"),
        ("durable", "<u8"),
        ("kind", "u1"),
        ("flags", "u1"),
        ("producer_bytes", "<u2"),
        ("stream", "<u4"),
        ("partition", "<u4"),
        ("count", "<u4"),
        ("base", "<i8"),
        ("time_us", "<i8"),
        ("producer_sequence", "<u8"),
        ("body_bytes", "<u4"),
        ("zero", "<u4"),
    ]
)
"""A header and the directory's first entry: frame.py draws both."""
_ROW_WORDS = Row.itemsize // WORD
_HEAD = [*range(10), *range(12, 20)]
"""Of a row as numbers of 16 bits: what the header's checksum is made of."""
_ENTRY = range(20, 44)
"""The same of an entry without a producer, which is all of its directory."""


Entry = np.dtype([("time_us", "<i8"), ("sequence", "<u8"), ("count", "<u4"), ("size", "<u4")])
"""As a packed tail has them."""
assert Entry.itemsize == PACKED_ENTRY.size


class Sent(NamedTuple):
    """A frame that a producer has sent."""

    frame: int
    """Its sequence in the journal."""
    stream: int
    partition: int
    producer: str
    sequence: int
    first: int
    records: int


class FrameRun(NamedTuple):
    """Frames that follow each other, as columns. Each has the records of one partition, and nothing else."""

    sequence: int
    """Of the first."""
    end: int
    """Where the last one ends in the file."""
    size: int
    """Bytes of all bodies."""
    places: npt.NDArray[np.int64]
    """Stream and partition: 32 bits each."""
    bases: npt.NDArray[np.int64]
    entries: npt.NDArray[np.void]
    """As `Entry` says."""
    bodies: list[bytes]
    sent: list[Sent]
    """Those that have a producer."""


class Group(NamedTuple):
    """Entries of one partition without a gap: those from `begin` to `end`, in the order of their indexes."""

    stream: int
    partition: int
    begin: int
    end: int
    first: int
    next: int
    time_us: int
    """The latest."""
    last_sequence: int


def grouped(runs: list[FrameRun]) -> tuple[bytes, list[bytes], Iterator[Group]]:
    """The entries and the bodies of runs, by partition, and which of them belong together."""
    places, bases, entries = (
        np.concatenate(columns) for columns in zip(*((run.places, run.bases, run.entries) for run in runs), strict=True)
    )
    bodies = [body for run in runs for body in run.bodies]
    order = np.argsort(places, kind="stable")
    places, bases, entries = places[order], bases[order], entries[order]
    nexts = bases + entries["count"]
    cuts = np.flatnonzero((places[1:] != places[:-1]) | (bases[1:] != nexts[:-1])) + 1
    begins, ends = np.concatenate(([0], cuts)), np.concatenate((cuts, [len(places)]))
    columns = (
        places[begins] >> 32,
        places[begins] & 0xFFFF_FFFF,
        begins,
        ends,
        bases[begins],
        nexts[ends - 1],
        np.maximum.reduceat(entries["time_us"], begins),
        entries["sequence"][ends - 1],
    )
    groups = map(Group._make, zip(*(column.tolist() for column in columns), strict=True))
    return entries.tobytes(), [bodies[number] for number in order.tolist()], groups


class RunReader:
    """Finds the runs of one journal file."""

    def __init__(self, data: bytes, salt: Salt) -> None:
        self._data = data
        self._salt = salt
        self._words = np.frombuffer(data, "<u8", len(data) // WORD)

    @cached_property
    def _starts(self) -> npt.NDArray[np.intp]:
        """Words at which frames may begin, and far enough from the end for a whole row."""
        starts = np.flatnonzero(np.frombuffer(self._data, "<u4", 2 * len(self._words))[::2] == self._salt.magic)
        return starts[starts <= len(self._words) - _ROW_WORDS]

    @cached_property
    def _head_tables(self) -> npt.NDArray[np.uint32]:
        return _tables(2 * len(_HEAD))

    @cached_property
    def _entry_tables(self) -> npt.NDArray[np.uint32]:
        return _tables(2 * len(_ENTRY))

    def find(self, at: int, expected: int, frames_max: int) -> FrameRun | None:
        """The run whose first frame begins at `at` and has the sequence `expected`; None when it would be short."""
        first = int(np.searchsorted(self._starts, at // WORD))
        starts = self._starts[first : first + min(frames_max, RUN_MAX)]
        if len(starts) < RUN_MIN or starts[0] * WORD != at:
            return None
        if not self._is_chained(self._rows(starts[:RUN_MIN]), starts[:RUN_MIN], expected).all():
            return None
        rows = self._rows(starts)
        rows = rows[: _leading(self._is_chained(rows, starts, expected))]
        rows = rows[: _leading(self._is_intact(rows))]
        return self._run(expected, starts[: len(rows)] * WORD + HEADER.size, rows) if len(rows) >= RUN_MIN else None

    def _rows(self, starts: npt.NDArray[np.intp]) -> npt.NDArray[np.void]:
        words = np.lib.stride_tricks.sliding_window_view(self._words, _ROW_WORDS)[starts]
        return words.view(Row)[:, 0]

    def _run(self, expected: int, begins: npt.NDArray[np.intp], rows: npt.NDArray[np.void]) -> FrameRun | None:
        """A run of those whose directories begin at `begins`, as far as directories with a producer and all bodies
        have their checksums."""
        data, middles = self._data, begins + rows["directory_bytes"]
        ends = middles + rows["data_bytes"]
        bodies = [data[middle:end] for middle, end in zip(middles.tolist(), ends.tolist(), strict=True)]
        is_whole = np.fromiter(map(crc32c, bodies), np.uint32, len(bodies)) == rows["data_crc"]
        sent = []
        for number in np.flatnonzero(rows["producer_bytes"]).tolist():
            directory, row = data[begins[number] : middles[number]], rows[number]
            is_whole[number] &= crc32c(directory) == row["directory_crc"]
            if is_whole[number]:
                sent.append(_sent(directory, row))
        count = _leading(is_whole)
        if count < RUN_MIN:
            return None
        sent = [each for each in sent if each.frame < expected + count]
        rows, end = rows[:count], int(ends[count - 1])
        entries = np.empty(count, Entry)
        for column in ("time_us", "sequence", "count"):
            entries[column] = rows[column]
        entries["size"] = rows["data_bytes"]
        places = (rows["stream"].astype(np.int64) << 32) | rows["partition"]
        size, bases = int(entries["size"].sum()), rows["base"].copy()
        return FrameRun(expected, end, size, places, bases, entries, bodies[:count], sent)

    def _is_chained(
        self, rows: npt.NDArray[np.void], starts: npt.NDArray[np.intp], expected: int
    ) -> npt.NDArray[np.bool_]:
        """Which are in their place, and have one entry of records and nothing else."""
        ends = starts * WORD + HEADER.size + rows["directory_bytes"].astype(np.int64) + rows["data_bytes"]
        producer_bytes = rows["producer_bytes"].astype(np.int64)
        chained: npt.NDArray[np.bool_] = (rows["kind"] == KIND_RECORDS) & (rows["body_bytes"] == rows["data_bytes"])
        chained &= rows["directory_bytes"] == RECORDS.size + producer_bytes + -producer_bytes % WORD
        chained &= rows["sequence"] == np.arange(expected, expected + len(rows), dtype=np.uint64)
        chained &= ends <= len(self._data)
        chained[1:] &= ends[:-1] == starts[1:] * WORD
        return chained

    def _is_intact(self, rows: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
        """Which have the checksums of their header and, without a producer, of their directory."""
        halves = rows.view("<u2").reshape(len(rows), -1)
        seed = crc32c_extend(self._salt.seed, bytes(2 * len(_HEAD)))
        intact: npt.NDArray[np.bool_] = _crcs(halves, _HEAD, self._head_tables, seed) == rows["crc"]
        zeros = crc32c(bytes(2 * len(_ENTRY)))
        entry_crcs = _crcs(halves, _ENTRY, self._entry_tables, zeros)
        intact &= (rows["producer_bytes"] > 0) | (entry_crcs == rows["directory_crc"])
        return intact


def _leading(good: npt.NDArray[np.bool_]) -> int:
    """How many are true before the first that is not."""
    return len(good) if good.all() else int(np.argmin(good))


def _sent(directory: bytes, row: np.void) -> Sent:
    producer = directory[RECORDS.size : RECORDS.size + int(row["producer_bytes"])].decode()
    columns = (int(row[name]) for name in ("producer_sequence", "base", "count"))
    return Sent(int(row["sequence"]), int(row["stream"]), int(row["partition"]), producer, *columns)


def _tables(size: int) -> npt.NDArray[np.uint32]:
    """For each 16 bits of `size` bytes, by their value: how they change the checksum of zeros. CRCs are linear, so all
    such changes together give the checksum of any bytes."""
    zeros = crc32c(bytes(size))
    tables = np.zeros((size // 2, 2**16), np.uint32)
    for place in range(8 * size):
        changed = bytearray(size)
        changed[place // 8] = 1 << place % 8
        number, bit = divmod(place, 16)
        tables[number, 1 << bit : 2 << bit] = tables[number, : 1 << bit] ^ np.uint32(crc32c(bytes(changed)) ^ zeros)
    return tables


def _crcs(
    halves: npt.NDArray[np.uint16], columns: range | list[int], tables: npt.NDArray[np.uint32], zeros: int
) -> npt.NDArray[np.uint32]:
    """The checksum of these columns of each row; `zeros` is that of as many zeros."""
    crcs = np.full(len(halves), zeros, np.uint32)
    for column, table in zip(columns, tables, strict=True):
        crcs ^= table[halves[:, column]]
    return crcs
