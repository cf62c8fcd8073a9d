"""Compaction of tables: what only the oldest segment of a table holds is written again, a piece at a time, and the
segment is trimmed when nothing is left there. A piece is one operation of the log, and few keys: whoever else writes
waits no longer than for another small transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.log import ops
from headrace.log.partition import Partition
from headrace.log.pending import Pending
from headrace.log.state import Stream
from headrace.log.table import Table

if TYPE_CHECKING:
    from headrace.log.log import Log

PIECE_BYTES = 1024 * 1024
PIECE_KEYS = 2_000
GARBAGE_FACTOR = 2
"""A table is compacted when its stream has more than this many records for each live key. Records and not bytes are
counted, since a small record takes more room on disk than its key and value."""


class Compaction:
    """Of all tables of a log, one at a time. Only maintenance uses it."""

    def __init__(self, log: Log, is_sealed: Callable[[Partition], bool]) -> None:
        """`is_sealed` sees to it that a partition has a segment: the end of a tail moves on with each piece, and the
        first would be written for ever. False while one is being stored."""
        self._log = log
        self._is_sealed = is_sealed
        self._piece: Pending | None = None
        self._table: Table | None = None
        self._cutoff = 0
        self._left: list[tuple[bytes, bytes]] = []
        """Of that table, with its newest record below that index; the last come first."""

    @property
    def is_under_way(self) -> bool:
        """Whether a piece waits for a commit."""
        return self._piece is not None

    def step(self) -> None:
        """One piece of the first table that has too much garbage. Waits for the piece before to be durable."""
        if self._piece is not None and not self._piece.done:
            return
        self._piece = None
        for stream in list(self._log.state.streams.values()):
            if stream.table is not None and self._has_garbage(stream, stream.table):
                self._piece = self._next_piece(stream, stream.table)
                return
        self._left, self._table = [], None

    def _has_garbage(self, stream: Stream, table: Table) -> bool:
        if table.damage is not None:
            return False  # the trim would take the damage away, and old values would pass for the newest
        partition = stream.partitions[0]
        if partition.first < table.accepted_below:
            return True  # that is what was asked for
        is_large = partition.sealed_bytes + partition.tail.bytes > self._log.settings.compact_bytes_min
        return is_large and partition.next - partition.first > GARBAGE_FACTOR * len(table)

    def _next_piece(self, stream: Stream, table: Table) -> Pending | None:
        partition = stream.partitions[0]
        if not self._is_sealed(partition):
            return None
        cutoff = partition.segments[0].next if partition.segments else partition.next
        if not self._left or (self._table, self._cutoff) != (table, cutoff):
            with self._log.lock:
                if table.is_behind:
                    return None
            self._table, self._cutoff = table, cutoff
            self._left = table.written_before(cutoff)[::-1]
            if not self._left:
                return self._log.submit([ops.Trim(stream.info.name, cutoff, cause=ops.Cause.COMPACTION)])
        keys: list[bytes] = []
        size = 0
        while self._left and size < PIECE_BYTES and len(keys) < PIECE_KEYS:
            key, value = self._left.pop()
            keys.append(key)
            size += len(key) + len(value)
        return self._log.submit([ops.Rewrite(stream.info.name, keys, cutoff, size)])
