"""The handlers of the nouns' verbs: each a thin layer over one verb of the hub, with its arguments checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pyarrow as pa

from headrace.admin.requests import (
    AppendResult,
    Changed,
    CursorList,
    CursorMove,
    CursorName,
    CursorReset,
    CursorSave,
    Done,
    Index,
    IndexAtTime,
    Item,
    Moment,
    NewRecord,
    Page,
    PartitionBounds,
    PartitionOf,
    PartitionSegments,
    ProducerName,
    Sequence,
    StoredRecord,
    StreamAppend,
    StreamCreate,
    StreamDescription,
    StreamGrow,
    StreamList,
    StreamName,
    StreamRead,
    StreamSegments,
    StreamSetOptions,
    StreamSummary,
    StreamTrim,
    TableDelete,
    TableItems,
    TableKey,
    TableName,
    TablePut,
    TableSummary,
)
from headrace.errors import BadRequest
from headrace.log.batch import Batch
from headrace.log.ops import ABSENT, ANY, PRESENT, Bounds, CheckpointInfo, CursorInfo, Expect, StreamInfo
from headrace.security import current

if TYPE_CHECKING:
    from headrace.hub import Hub

# `stream.append` and `stream.read` are for small things; Flight's own put and get are for the rest.
RECORDS_MAX = 10_000
READ_BYTES_MAX = 16 << 20
ITEMS_MAX = 10_000


class Nouns:
    """The handlers, around one hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def register(self) -> None:
        """Add the verbs to the hub."""
        self._register_streams()
        self._register_cursors()
        self._register_tables()

    def _register_streams(self) -> None:
        add = self._hub.verbs.register
        add("stream.create", StreamCreate, self.stream_create, right="write", summary="Create a stream")
        add("stream.list", StreamList, self.stream_list, right="read", summary="List streams", filters=True)
        add("stream.describe", StreamName, self.stream_describe, right="read", summary="Bounds, options, cursors")
        add("stream.delete", StreamName, self.stream_delete, right="admin", summary="Delete a stream and its records")
        add("stream.trim", StreamTrim, self.stream_trim, right="admin", summary="Forget records below an index")
        add("stream.grow", StreamGrow, self.stream_grow, right="admin", summary="Give a stream more partitions")
        add("stream.set-options", StreamSetOptions, self.stream_set_options, right="admin", summary="Replace options")
        add("stream.bounds", PartitionOf, self.stream_bounds, right="read", summary="First and next index")
        add("stream.index-at-time", IndexAtTime, self.index_at_time, right="read", summary="First index at a time")
        add("stream.append", StreamAppend, self.append, right="write", summary="Append a few records")
        add("stream.read", StreamRead, self.read, right="read", summary="Read a few records")
        add("stream.segments", PartitionOf, self.segments, right="read", summary="Sealed Arrow files of a stream")
        add("producer.get", ProducerName, self.producer, right="read", summary="Last sequence of a producer")
        add("checkpoint.list", StreamName, self.checkpoints, right="read", summary="Checkpoints of a stream")

    def _register_cursors(self) -> None:
        add = self._hub.verbs.register
        add("cursor.list", CursorList, self.cursor_list, right="read", summary="List cursors", filters=True)
        add("cursor.get", CursorName, self.cursor_get, right="read", summary="The position of a cursor")
        add("cursor.save", CursorSave, self.cursor_save, right="write", summary="Move a cursor on")
        add("cursor.reset", CursorReset, self.cursor_reset, right="admin", summary="Move a cursor anywhere")
        add("cursor.delete", CursorName, self.cursor_delete, right="admin", summary="Forget a cursor")

    def _register_tables(self) -> None:
        def add(name: str, request: type[msgspec.Struct], handler: Any, right: Any, summary: str) -> None:
            self._hub.verbs.register(name, request, handler, right=right, summary=summary, stream_field="table")

        self._hub.verbs.register(
            "table.list", StreamList, self.table_list, right="read", summary="List tables", filters=True
        )
        add("table.create", TableName, self.table_create, "write", "Create a table")
        add("table.drop", TableName, self.table_drop, "admin", "Delete a table with all its keys")
        add("table.get", TableKey, self.table_get, "read", "The value of a key")
        add("table.put", TablePut, self.table_put, "write", "Set a key, if it is as expected")
        add("table.delete", TableDelete, self.table_delete, "write", "Remove a key, if it is as expected")
        add("table.items", TableItems, self.table_items, "read", "The entries of a table, in pages")

    # Streams -------------------------------------------------------------------------------------------------------

    async def stream_create(self, asked: StreamCreate) -> StreamSummary:
        """Create, and say what is there now."""
        _check_at_least("partitions", asked.partitions, 1)
        info = await self._hub.create_stream(
            asked.stream, partitions=asked.partitions, options=asked.options, exist_ok=asked.exist_ok
        )
        return self._summary(info)

    async def stream_list(self, asked: StreamList) -> list[StreamSummary]:
        """The streams that the caller may read."""
        may = current().may
        return [self._summary(info) for info in self._hub.streams(asked.pattern, asked.kind) if may("read", info.name)]

    def _summary(self, info: StreamInfo) -> StreamSummary:
        records = sum(each.next - each.first for each in self._bounds(info))
        return StreamSummary(info.name, info.id, info.kind, info.partitions, records, info.created_us, info.options)

    def _bounds(self, info: StreamInfo) -> list[PartitionBounds]:
        numbers = range(info.partitions)
        return [PartitionBounds(number, *self._hub.bounds(info.name, number)) for number in numbers]

    async def stream_describe(self, asked: StreamName) -> StreamDescription:
        """Everything about one stream."""
        info = self._hub.stream(asked.stream)
        bounds = self._bounds(info)
        return StreamDescription(
            name=info.name,
            id=info.id,
            kind=info.kind,
            partitions=info.partitions,
            records=sum(each.next - each.first for each in bounds),
            created_us=info.created_us,
            options=info.options,
            bounds=bounds,
            cursors=self._hub.cursors(stream=info.name),
        )

    async def stream_delete(self, asked: StreamName) -> Done:
        """Delete."""
        await self._hub.delete_stream(asked.stream)
        return Done()

    async def stream_trim(self, asked: StreamTrim) -> PartitionBounds:
        """Trim; the bounds after it."""
        _check_at_least("before", asked.before, 0)
        await self._hub.trim(asked.stream, asked.before, partition=asked.partition)
        return PartitionBounds(asked.partition, *self._hub.bounds(asked.stream, asked.partition))

    async def stream_grow(self, asked: StreamGrow) -> StreamSummary:
        """Grow."""
        await self._hub.grow_stream(asked.stream, asked.partitions)
        return self._summary(self._hub.stream(asked.stream))

    async def stream_set_options(self, asked: StreamSetOptions) -> StreamSummary:
        """Set."""
        await self._hub.set_options(asked.stream, asked.options)
        return self._summary(self._hub.stream(asked.stream))

    async def stream_bounds(self, asked: PartitionOf) -> list[PartitionBounds]:
        """Bounds of one partition or of all."""
        if asked.partition is None:
            return self._bounds(self._hub.stream(asked.stream))
        return [PartitionBounds(asked.partition, *self._hub.bounds(asked.stream, asked.partition))]

    async def index_at_time(self, asked: IndexAtTime) -> Index:
        """Look up by time."""
        return Index(await self._hub.index_at_time(asked.stream, asked.time_us, asked.partition))

    async def append(self, asked: StreamAppend) -> AppendResult:
        """Append a few records, all or none."""
        if len(asked.records) > RECORDS_MAX:
            raise BadRequest(
                f"'records' has {len(asked.records)} entries, above {RECORDS_MAX}; put larger batches by Flight"
            )
        batch = Batch.of(
            [_payload_of(number, record) for number, record in enumerate(asked.records)],
            ids=_column([record.id for record in asked.records]),
            event_times=_column([record.event_time_us for record in asked.records]),
            types=_column([record.type for record in asked.records]),
            keys=_column([record.key for record in asked.records]),
        )
        _check_producer(asked.producer, asked.sequence)
        appended = await self._hub.append(
            asked.stream, batch, partition=asked.partition, producer=asked.producer, sequence=asked.sequence
        )
        await self._hub.acknowledged(asked.stream, appended.first + appended.count, asked.partition)
        return AppendResult(appended.first, appended.count, appended.duplicate)

    async def read(self, asked: StreamRead) -> Page:
        """Read a few records."""
        _check_between("limit", asked.limit, 1, RECORDS_MAX)
        _check_between("bytes_max", asked.bytes_max, 1, READ_BYTES_MAX)
        bounds = self._hub.bounds(asked.stream, asked.partition)
        start = _place(asked.start, bounds)
        _check_at_least("start", start, 0)
        batch = await self._hub.read(
            asked.stream, start, partition=asked.partition, limit=asked.limit, max_bytes=asked.bytes_max
        )
        records = _stored_records(batch, text=asked.text)
        following = records[-1].index + 1 if records else max(start, bounds.first)
        return Page(records, following, bounds.first, bounds.next)

    async def segments(self, asked: PartitionOf) -> StreamSegments:
        """Sealed files, for readers on the same machine."""
        info = self._hub.stream(asked.stream)
        numbers = range(info.partitions) if asked.partition is None else [asked.partition]
        partitions = []
        for number in numbers:
            bounds = self._hub.bounds(info.name, number)
            files = self._hub.segments(info.name, number)
            partitions.append(PartitionSegments(number, bounds.first, bounds.next, files))
        return StreamSegments(info.name, info.id, partitions)

    async def producer(self, asked: ProducerName) -> Sequence:
        """How far a producer has come."""
        return Sequence(self._hub.producer(asked.stream, asked.producer, asked.partition))

    async def checkpoints(self, asked: StreamName) -> list[CheckpointInfo]:
        """Checkpoints of one stream."""
        return self._hub.checkpoints(asked.stream)

    # Cursors -------------------------------------------------------------------------------------------------------

    async def cursor_list(self, asked: CursorList) -> list[CursorInfo]:
        """The cursors of streams that the caller may read."""
        may = current().may
        found = self._hub.cursors(asked.pattern, stream=asked.stream)
        return [info for info in found if may("read", info.stream)]

    async def cursor_get(self, asked: CursorName) -> Index:
        """One cursor."""
        self._hub.bounds(asked.stream, asked.partition)
        return Index(self._hub.cursor(asked.cursor, asked.stream, asked.partition))

    async def cursor_save(self, asked: CursorSave) -> Index:
        """Move on; the position now stored."""
        _check_at_least("index", asked.index, 0)
        saved = await self._hub.save_cursor(
            asked.cursor, asked.stream, asked.index, partition=asked.partition, rewind=asked.rewind
        )
        return Index(saved)

    async def cursor_reset(self, asked: CursorReset) -> list[CursorMove]:
        """Move anywhere, or only say what that would do."""
        info = self._hub.stream(asked.stream)
        numbers = range(info.partitions) if asked.partition is None else [asked.partition]
        moves = [await self._planned_move(asked, number) for number in numbers]
        if not asked.dry_run:
            for move in moves:
                await self._hub.save_cursor(
                    asked.cursor, asked.stream, move.after, partition=move.partition, rewind=True
                )
        return moves

    async def _planned_move(self, asked: CursorReset, partition: int) -> CursorMove:
        bounds = self._hub.bounds(asked.stream, partition)
        before = self._hub.cursor(asked.cursor, asked.stream, partition)
        if isinstance(asked.to, Moment):
            after = await self._hub.index_at_time(asked.stream, asked.to.time_us, partition)
        else:
            after = _place(asked.to, bounds)
        if not bounds.first <= after <= bounds.next:
            raise BadRequest(
                f"'to' is {after}, outside {bounds.first} to {bounds.next}, the records of stream {asked.stream!r} "
                f"partition {partition}"
            )
        read_again = 0 if before is None else max(0, min(before, bounds.next) - after)
        skipped = max(0, after - max(bounds.first, before or 0))
        return CursorMove(partition, before, after, read_again, skipped)

    async def cursor_delete(self, asked: CursorName) -> Done:
        """Forget."""
        await self._hub.delete_cursor(asked.cursor, asked.stream, asked.partition)
        return Done()

    # Tables --------------------------------------------------------------------------------------------------------

    async def table_list(self, asked: StreamList) -> list[TableSummary]:
        """The tables that the caller may read."""
        may = current().may
        return [
            TableSummary(info.name, info.id, self._hub.table_size(info.name), info.created_us)
            for info in self._hub.streams(asked.pattern, "table")
            if may("read", info.name)
        ]

    async def table_create(self, asked: TableName) -> Done:
        """Create."""
        await self._hub.create_table(asked.table)
        return Done()

    async def table_drop(self, asked: TableName) -> Done:
        """Delete."""
        await self._hub.delete_table(asked.table)
        return Done()

    async def table_get(self, asked: TableKey) -> Item:
        """One value."""
        return Item(asked.key, self._hub.get(asked.table, asked.key))

    async def table_put(self, asked: TablePut) -> Changed:
        """Set one key."""
        expect = _expectation(asked.expect, asked.expect_value)
        return Changed(*await self._hub.put(asked.table, asked.key, asked.value, expect=expect))

    async def table_delete(self, asked: TableDelete) -> Changed:
        """Remove one key."""
        expect = _expectation(asked.expect, asked.expect_value)
        return Changed(*await self._hub.delete(asked.table, asked.key, expect=expect))

    async def table_items(self, asked: TableItems) -> list[Item]:
        """A page of entries, in the order in which the keys were first put."""
        _check_between("limit", asked.limit, 1, ITEMS_MAX)
        _check_at_least("offset", asked.offset, 0)
        page = []
        for number, (key, value) in enumerate(self._hub.items(asked.table)):
            if number >= asked.offset + asked.limit:
                break
            if number >= asked.offset:
                page.append(Item(key, value))
        return page


def _check_at_least(name: str, value: int, minimum: int) -> None:
    if value < minimum:
        raise BadRequest(f"{name!r} is {value}, below {minimum}")


def _check_between(name: str, value: int, minimum: int, maximum: int) -> None:
    if not minimum <= value <= maximum:
        raise BadRequest(f"{name!r} is {value}, outside {minimum} to {maximum}")


def _check_producer(producer: str | None, sequence: int | None) -> None:
    if (producer is None) != (sequence is None):
        raise BadRequest("'producer' and 'sequence' belong together: give both, or none")


def _place(wanted: int | Literal["earliest", "latest"], bounds: Bounds) -> int:
    if isinstance(wanted, int):
        return wanted
    return bounds.first if wanted == "earliest" else bounds.next


def _expectation(name: str, value: bytes | None) -> Expect | bytes:
    if value is not None:
        return value
    return {"any": ANY, "absent": ABSENT, "present": PRESENT}[name]


def _column(values: list[Any]) -> list[Any] | None:
    return None if all(value is None for value in values) else values


def _payload_of(number: int, record: NewRecord) -> bytes:
    given = [record.payload is not None, record.text is not None, record.json is not msgspec.UNSET]
    if sum(given) != 1:
        raise BadRequest(f"records[{number}]: give exactly one of 'payload' (base64), 'text', 'json'")
    if record.payload is not None:
        return record.payload
    return record.text.encode() if record.text is not None else msgspec.json.encode(record.json)


def _stored_records(batch: pa.RecordBatch, *, text: bool) -> list[StoredRecord]:
    columns = [
        batch.column("index").to_pylist(),
        batch.column("time").cast(pa.int64()).to_pylist(),
        batch.column("event_time").cast(pa.int64()).to_pylist(),
        *(batch.column(name).to_pylist() for name in ("id", "type", "key", "payload")),
    ]
    records = []
    for index, time_us, event_time_us, id, type, key, payload in zip(*columns, strict=True):
        shown = _as_text(payload) if text else None
        kept = payload if shown is None else None
        records.append(StoredRecord(index, time_us, event_time_us, id, type, key, kept, shown))
    return records


def _as_text(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None
