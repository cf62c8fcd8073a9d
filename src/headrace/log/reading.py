"""Looking at a log: what it holds, and its records. All of it is durable; nothing here changes anything."""

from __future__ import annotations

import fnmatch
import re
from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter

import pyarrow as pa

from headrace.errors import BadRequest, Damaged, Trimmed, UnknownCheckpoint
from headrace.log import ops
from headrace.log.checkpoint import read_blob
from headrace.log.limits import check_pattern
from headrace.log.partition import OpenSegments, Partition
from headrace.log.state import State
from headrace.log.store import Store
from headrace.log.table import Table

SCAN_BYTES = 8 * 1024 * 1024


class LogView:
    """The half of `LogPort` that only looks. Any thread may."""

    def __init__(self, state: State, store: Store, open_segments_max: int) -> None:
        self.state = state
        self.store = store
        self.opened = OpenSegments(store, open_segments_max)

    def partition(self, name: str, number: int = 0) -> Partition:
        return self.state.stream(name).partition(number)

    # -- streams and their positions -----------------------------------------------------------------------------------

    def has_stream(self, name: str) -> bool:
        return name in self.state.streams

    def stream(self, name: str) -> ops.StreamInfo:
        return self.state.stream(name).info

    def streams(self, pattern: str = "*") -> list[ops.StreamInfo]:
        return [stream.info for stream in self.state.matching(pattern)]

    def streams_after(self, id: int, pattern: str = "*") -> Iterator[ops.StreamInfo]:
        check_pattern(pattern)
        fits = re.compile(fnmatch.translate(pattern)).match
        ids = sorted(self.state.by_id)
        for following in ids[bisect_right(ids, id) :]:
            stream = self.state.by_id.get(following)
            if stream is not None and (pattern == "*" or fits(stream.info.name)):
                yield stream.info

    def bounds(self, name: str, partition: int = 0) -> ops.Bounds:
        wanted = self.partition(name, partition)
        return ops.Bounds(wanted.first, wanted.next)

    def stored_bytes(self, name: str) -> int:
        return sum(partition.sealed_bytes + partition.tail.bytes for partition in self.state.stream(name).partitions)

    def producer(self, name: str, producer: str, partition: int = 0) -> int | None:
        state = self.partition(name, partition).producers.get(producer)
        return None if state is None else state.sequence

    def producers(self, name: str, partition: int = 0) -> dict[str, int]:
        producers = list(self.partition(name, partition).producers.items())
        return {producer: state.sequence for producer, state in producers}

    def cursor(self, cursor: str, stream: str, partition: int = 0) -> int | None:
        position = self.state.cursor(self.stream(stream).id, cursor, partition)
        return None if position is None else position.index

    def cursors(self, pattern: str = "*", stream: str | None = None) -> list[ops.CursorInfo]:
        return list(self.cursors_after(0, pattern, stream))

    def cursors_after(self, id: int, pattern: str = "*", stream: str | None = None) -> Iterator[ops.CursorInfo]:
        check_pattern(pattern)
        ids = sorted(self.state.cursors) if stream is None else [self.state.stream(stream).info.id]
        for holder in (self.state.by_id[each] for each in ids if each >= id and each in self.state.by_id):
            positions = self.state.cursors.get(holder.info.id, {}).copy()
            for (name, number), position in sorted(positions.items(), key=_name):
                if fnmatch.fnmatchcase(name, pattern):
                    partition = holder.partitions[number]
                    lag = max(0, partition.next - max(position.index, partition.first))
                    yield ops.CursorInfo(name, holder.info.name, number, position.index, position.updated_us, lag)

    # -- tables --------------------------------------------------------------------------------------------------------

    def _table(self, name: str) -> Table:
        table = self.state.stream(name).table
        if table is None:
            raise BadRequest(f"{name!r} is a stream, not a table")
        return table

    def table_get(self, name: str, key: bytes) -> bytes | None:
        return self._table(name).get(key)

    def table_items(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        return self._table(name).items()

    def table_keys(self, name: str) -> list[bytes]:
        return self._table(name).keys()

    def table_page(self, name: str, offset: int, limit: int) -> list[tuple[bytes, bytes]]:
        return self._table(name).page(offset, limit)

    def table_size(self, name: str) -> int:
        return len(self._table(name))

    # -- records -------------------------------------------------------------------------------------------------------

    def read_now(self, name: str, start: int, partition: int, limit: int, bytes_max: int) -> pa.RecordBatch | None:
        """As `read` when that needs no segment; otherwise None."""
        wanted = self.partition(name, partition)
        entries = wanted.tail.entries
        in_memory = start >= wanted.next or (bool(entries) and start >= entries[0].base)
        return self.read(name, start, partition, limit, bytes_max) if in_memory else None

    def read(
        self, name: str, start: int, partition: int = 0, limit: int = 1000, bytes_max: int = 1024 * 1024
    ) -> pa.RecordBatch:
        """Records from `start`, or from the first that is kept: `limit` at most, and at least one if there is any.

        Stops early where a segment ends. Raises `Damaged` when the record at `start` is."""
        if start < 0 or limit < 1:
            raise BadRequest(f"start is {start} and limit is {limit}; they must be at least 0 and 1")
        return self.partition(name, partition).read(self.opened, start, limit, bytes_max)

    def scan(self, name: str, start: int, end: int, partition: int = 0) -> Iterator[pa.RecordBatch]:
        """Exactly the records start ≤ index < end, in large batches. Raises `Trimmed` or `Damaged` instead of a gap."""
        wanted = self.partition(name, partition)
        at = start
        while at < end:
            if at < wanted.first:
                raise Trimmed(name, partition, at, wanted.first)
            records = wanted.read(self.opened, at, end - at, SCAN_BYTES)
            if not records.num_rows:
                raise BadRequest(f"stream {name!r} partition {partition} ends at {wanted.next}, below {end}")
            if records.column(0)[0].as_py() != at:
                raise Trimmed(name, partition, at, wanted.first)
            yield records
            at += records.num_rows

    def index_at_time(self, name: str, time_us: int, partition: int = 0) -> int:
        """The first index whose time is not before `time_us`; the next index when all are earlier."""
        wanted = self.partition(name, partition)
        low, high = wanted.first, wanted.next
        while low < high:
            middle = (low + high) // 2
            record = self._next_readable(wanted, middle, high)
            if record is not None and _time_of(record) < time_us:
                low = record.column(0)[0].as_py() + 1
            else:
                high = middle
        return low

    def _next_readable(self, partition: Partition, index: int, end: int) -> pa.RecordBatch | None:
        """The first record from an index on that is not damaged; None when there is none before `end`."""
        while index < end:
            try:
                record = partition.read(self.opened, index, 1, 1)
            except Damaged as damage:
                index = damage.last + 1
            else:
                return record if record.num_rows else None  # none at all: trimmed meanwhile
        return None

    def segments(self, name: str, partition: int = 0) -> list[ops.SegmentInfo]:
        """The sealed files of a partition, for readers on the same machine."""
        return [
            ops.SegmentInfo(ref.first, ref.next, ref.bytes, self.store.local_path(ref.path))
            for ref in self.partition(name, partition).segments
        ]

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def checkpoints(self) -> list[ops.CheckpointInfo]:
        return sorted(self.state.checkpoints.values(), key=lambda info: info.id)

    def checkpoint(self, id: int) -> ops.CheckpointInfo:
        try:
            return self.state.checkpoints[id]
        except KeyError:
            raise UnknownCheckpoint(f"there is no checkpoint {id}; list checkpoints to see the numbers") from None

    def read_checkpoint(self, id: int) -> Iterator[bytes]:
        return read_blob(self.store, self.state.checkpoint_name(id), self.checkpoint(id).size)


_name = itemgetter(0)


def _time_of(record: pa.RecordBatch) -> int:
    return int(record.column(1).cast(pa.int64())[0].as_py())
