"""The verbs of records: append a few, read a few; and how far a producer has come."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from headrace.admin.requests import Asked, StreamName, check_at_least, check_between, index_of
from headrace.errors import BadRequest
from headrace.log.batch import Batch
from headrace.log.columns import OPTIONAL, plain_rows

if TYPE_CHECKING:
    from headrace.hub import Hub

# These verbs are for small things; the SDK's writers and readers are for the rest.
RECORDS_MAX = 10_000
READ_BYTES_MAX = 16 << 20
# More records than these, or larger ones, become a batch beside the event loop.
AT_ONCE_MAX = 500
AT_ONCE_BYTES_MAX = 256 << 10


class NewRecord(Asked, frozen=True, omit_defaults=True, gc=False):
    """A record to append: exactly one of `payload` (base64), `text`, `json`."""

    payload: bytes | None = None
    text: str | None = None
    json: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    id: int | None = None
    event_time_us: int | None = None
    type: str | None = None
    key: bytes | None = None


class StreamAppend(StreamName, frozen=True):
    """A small append: all records or none."""

    records: list[NewRecord]
    partition: int = 0
    producer: str | None = None
    sequence: int | None = None


class AppendResult(msgspec.Struct, frozen=True):
    """Where the records stand. `duplicate`: they had been stored before, and were not stored again."""

    first: int
    count: int
    duplicate: bool


class StreamRead(StreamName, frozen=True):
    """A small read. With `text`, payloads that are UTF-8 come as `text` and not as base64."""

    start: int | Literal["earliest", "latest"] = "earliest"
    partition: int = 0
    limit: int = 100
    bytes_max: int = 1 << 20
    text: bool = False


class StoredRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record as JSON."""

    index: int
    time_us: int
    event_time_us: int | None = None
    id: int | None = None
    type: str | None = None
    key: bytes | None = None
    payload: bytes | None = None
    text: str | None = None


class Page(msgspec.Struct, frozen=True):
    """Records, and where to go on. `first` and `end` are the bounds of the partition now."""

    records: list[StoredRecord]
    next: int
    first: int
    end: int


class ProducerName(StreamName, frozen=True):
    """Names a producer in one partition."""

    producer: str
    partition: int = 0


class Sequence(msgspec.Struct, frozen=True):
    """The last durable sequence of a producer, or null."""

    sequence: int | None


class Records:
    """The handlers, around one hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def register(self) -> None:
        """Add the verbs to the hub."""
        add = self._hub.verbs.register
        add("stream.append", StreamAppend, self.append, right="write", summary="Append a few records")
        add("stream.read", StreamRead, self.read, right="read", summary="Read a few records")
        add("producer.get", ProducerName, self.producer, right="read", summary="Last sequence of a producer")

    async def append(self, asked: StreamAppend) -> AppendResult:
        """Append a few records, all or none."""
        return await append_records(self._hub, asked)

    async def read(self, asked: StreamRead) -> Page:
        """Read a few records."""
        check_between("limit", asked.limit, 1, RECORDS_MAX)
        check_between("bytes_max", asked.bytes_max, 1, READ_BYTES_MAX)
        bounds = self._hub.bounds(asked.stream, asked.partition)
        start = index_of(asked.start, bounds)
        check_at_least("start", start, 0)
        batch = await self._hub.read(
            asked.stream, start, partition=asked.partition, limit=asked.limit, max_bytes=asked.bytes_max
        )
        records = [_stored_record(row, text=asked.text) for row in plain_rows(batch)]
        following = records[-1].index + 1 if records else max(start, bounds.first)
        return Page(records, following, bounds.first, bounds.next)

    async def producer(self, asked: ProducerName) -> Sequence:
        """How far a producer has come."""
        return Sequence(self._hub.producer(asked.stream, asked.producer, asked.partition))


async def append_records(hub: Hub, asked: StreamAppend) -> AppendResult:
    """Append a few records, all or none."""
    from headrace.security import check_producer  # the SDK has these structs, and no hub

    if (count := len(asked.records)) > RECORDS_MAX:
        await hub.intake.apart(asked.records.clear)  # to free very many takes long
        raise BadRequest(f"'records' has {count} entries, above {RECORDS_MAX}; send larger batches with the SDK")
    if len(asked.records) <= AT_ONCE_MAX and sum(map(_size_of, asked.records)) <= AT_ONCE_BYTES_MAX:
        batch = _batch(asked.records)
    else:
        batch = await hub.intake.apart(lambda: _batch(asked.records))
    if (asked.producer is None) != (asked.sequence is None):
        raise BadRequest("'producer' and 'sequence' belong together: give both, or none")
    check_producer(asked.producer)
    appended = await hub.append(
        asked.stream, batch, partition=asked.partition, producer=asked.producer, sequence=asked.sequence
    )
    await hub.acknowledged(asked.stream, appended.first + appended.count, asked.partition)
    return AppendResult(appended.first, appended.count, appended.duplicate)


def _batch(records: Many[NewRecord]) -> Batch:
    if len(records) == 1:
        one = records[0]
        return Batch.one(_payload_of(0, one), id=one.id, event_time=one.event_time_us, type=one.type, key=one.key)
    return batch_of([_payload_of(number, record) for number, record in enumerate(records)], records)


def batch_of(payloads: Many[bytes], records: Many[msgspec.Struct]) -> Batch:
    """Payloads with the other columns of the structs that have them, under their JSON names."""
    optional: dict[str, Any] = {}
    for column in OPTIONAL:
        values = [getattr(record, column.json_name) for record in records]
        if any(value is not None for value in values):
            optional[f"{column.name}s"] = values
    return Batch.of(payloads, **optional)


def _payload_of(number: int, record: NewRecord) -> bytes:
    given = [record.payload is not None, record.text is not None, record.json is not msgspec.UNSET]
    if sum(given) != 1:
        raise BadRequest(f"records[{number}]: give exactly one of 'payload' (base64), 'text', 'json'")
    if isinstance(record.json, msgspec.Raw):
        return bytes(record.json)
    return record.text.encode() if record.text is not None else record.payload or b""


def _size_of(record: NewRecord) -> int:
    """What a record holds, as it came."""
    return sum(len(each) for each in (record.payload, record.text, record.json, record.key) if each)


def _stored_record(row: dict[str, Any], *, text: bool) -> StoredRecord:
    if text:
        try:
            return StoredRecord(**(row | {"payload": None}), text=row["payload"].decode())
        except UnicodeDecodeError:
            pass
    return StoredRecord(**row)
