"""What the verbs of the nouns take and give: one struct each, JSON on the wire, bytes as base64.

A request with a field that is not listed is refused, so that a misspelt one is never silently ignored.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headrace.log.ops import CursorInfo, SegmentInfo, StreamOptions


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The base of all requests."""


class StreamCreate(Asked, frozen=True):
    """A new stream. With `exist_ok` an existing one is left as it is."""

    stream: str
    partitions: int = 1
    options: StreamOptions = StreamOptions()
    exist_ok: bool = True


class StreamList(Asked, frozen=True):
    """Streams by pattern, such as `orders.*`; `kind` is `stream`, `table` or both."""

    pattern: str = "*"
    kind: Literal["stream", "table"] | None = "stream"


class StreamName(Asked, frozen=True):
    """Names a stream."""

    stream: str


class StreamGrow(Asked, frozen=True):
    """More partitions; never fewer."""

    stream: str
    partitions: int


class StreamTrim(Asked, frozen=True):
    """Forget records below the index `before`."""

    stream: str
    before: int
    partition: int = 0


class StreamSetOptions(Asked, frozen=True):
    """Replace the options of a stream."""

    stream: str
    options: StreamOptions


class PartitionOf(Asked, frozen=True):
    """One partition, or with null all of them."""

    stream: str
    partition: int | None = None


class IndexAtTime(Asked, frozen=True):
    """The first record accepted at `time_us` (microseconds since 1970) or later."""

    stream: str
    time_us: int
    partition: int = 0


class NewRecord(Asked, frozen=True, omit_defaults=True):
    """A record to append: exactly one of `payload` (base64), `text`, `json`."""

    payload: bytes | None = None
    text: str | None = None
    json: Any = msgspec.UNSET
    id: int | None = None
    event_time_us: int | None = None
    type: str | None = None
    key: bytes | None = None


class StreamAppend(Asked, frozen=True):
    """A small append: all records or none."""

    stream: str
    records: list[NewRecord]
    partition: int = 0
    producer: str | None = None
    sequence: int | None = None


class AppendResult(msgspec.Struct, frozen=True):
    """Where the records stand. `duplicate`: they had been stored before, and were not stored again."""

    first: int
    count: int
    duplicate: bool


class StreamRead(Asked, frozen=True):
    """A small read. With `text`, payloads that are UTF-8 come as `text` and not as base64."""

    stream: str
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


class PartitionBounds(msgspec.Struct, frozen=True):
    """The durable records of a partition: first ≤ index < next."""

    partition: int
    first: int
    next: int


class StreamSummary(msgspec.Struct, frozen=True):
    """A stream at a glance."""

    name: str
    id: int
    kind: str
    partitions: int
    records: int
    created_us: int
    options: StreamOptions


class StreamDescription(msgspec.Struct, frozen=True):
    """Everything about a stream."""

    name: str
    id: int
    kind: str
    partitions: int
    records: int
    created_us: int
    options: StreamOptions
    bounds: list[PartitionBounds]
    cursors: list[CursorInfo]


class PartitionSegments(msgspec.Struct, frozen=True):
    """The sealed Arrow files of a partition. Records of first ≤ index < next that no file holds are read by Flight."""

    partition: int
    first: int
    next: int
    segments: list[SegmentInfo]


class StreamSegments(msgspec.Struct, frozen=True):
    """Where the records of a stream lie. `stream_id` changes when a stream is deleted and created again."""

    stream: str
    stream_id: int
    partitions: list[PartitionSegments]


class Index(msgspec.Struct, frozen=True):
    """An index, or null."""

    index: int | None


class CursorList(Asked, frozen=True):
    """Cursors by pattern, of one stream or of all."""

    pattern: str = "*"
    stream: str | None = None


class CursorName(Asked, frozen=True):
    """Names a cursor in one partition."""

    cursor: str
    stream: str
    partition: int = 0


class CursorSave(Asked, frozen=True):
    """Set the next index to read. It goes back only with `rewind`."""

    cursor: str
    stream: str
    index: int
    partition: int = 0
    rewind: bool = False


class Moment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A time, in microseconds since 1970."""

    time_us: int


class CursorReset(Asked, frozen=True):
    """Move a cursor in one partition (null: all) to an index, a time, the earliest or the latest record."""

    cursor: str
    stream: str
    to: int | Literal["earliest", "latest"] | Moment
    partition: int | None = None
    dry_run: bool = False


class CursorMove(msgspec.Struct, frozen=True):
    """What a reset does: from `before` (null: there was no cursor) to `after`."""

    partition: int
    before: int | None
    after: int
    read_again: int
    skipped: int


class TableName(Asked, frozen=True):
    """Names a table."""

    table: str


class TableKey(Asked, frozen=True):
    """Names a key of a table."""

    table: str
    key: bytes


class TablePut(Asked, frozen=True):
    """Set a key. It fails unless the key is as expected: `any`, `absent`, `present`, or equal to `expect_value`."""

    table: str
    key: bytes
    value: bytes
    expect: Literal["any", "absent", "present"] = "any"
    expect_value: bytes | None = None


class TableDelete(Asked, frozen=True):
    """Remove a key, if it is as expected."""

    table: str
    key: bytes
    expect: Literal["any", "absent", "present"] = "any"
    expect_value: bytes | None = None


class TableItems(Asked, frozen=True):
    """The entries of a table, from number `offset` on."""

    table: str
    offset: int = 0
    limit: int = 1000


class TableSummary(msgspec.Struct, frozen=True):
    """A table at a glance."""

    name: str
    id: int
    keys: int
    created_us: int


class Item(msgspec.Struct, frozen=True):
    """One entry of a table; a `value` of null means that the key is absent."""

    key: bytes
    value: bytes | None


class Changed(msgspec.Struct, frozen=True):
    """Whether a put or delete applied, and what was there before."""

    applied: bool
    previous: bytes | None


class ProducerName(Asked, frozen=True):
    """Names a producer in one partition."""

    stream: str
    producer: str
    partition: int = 0


class Sequence(msgspec.Struct, frozen=True):
    """The last durable sequence of a producer, or null."""

    sequence: int | None


class Done(msgspec.Struct, frozen=True):
    """It is done, and durable."""
