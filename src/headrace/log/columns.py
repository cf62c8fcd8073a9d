"""The columns of a record, once: the same on disk, in Arrow, over Flight, in JSON and in Spark.

Schemas, casts, JSON and SQL forms are made from this table. Written by hand are only what Python sees as named
arguments or fields (`Batch.one` and `Batch.of`, the structs of `admin/records.py`, `client/records.py` and the
console's dead letters) and the layout of a batch's body, where each column has its bit (`log/batch.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")


class Kind(NamedTuple):
    """What a column holds: its types in Arrow, in SQL and as a JSON schema."""

    arrow: pa.DataType
    sql: str
    json: tuple[tuple[str, object], ...]


INTEGER = Kind(pa.int64(), "BIGINT", (("type", "integer"),))
TIME = Kind(TIMESTAMP, "TIMESTAMP", (("type", "string"), ("format", "date-time")))
TEXT = Kind(pa.string(), "STRING", (("type", "string"),))
BYTES = Kind(pa.binary(), "BINARY", (("type", "string"), ("contentEncoding", "base64")))


class Column(NamedTuple):
    """One column. `assigned`: the hub gives the value, not the producer."""

    name: str
    kind: Kind
    description: str
    nullable: bool = True
    assigned: bool = False

    @property
    def json_name(self) -> str:
        """Its name where records are JSON objects of the admin API: times are microseconds there."""
        return f"{self.name}_us" if self.kind is TIME else self.name

    @property
    def json_schema(self) -> dict[str, object]:
        """The column as AsyncAPI describes it: a time is a date there."""
        schema = dict(self.kind.json)
        if self.nullable:
            schema["type"] = [schema["type"], "null"]
        return schema | ({"minimum": 0} if self.name == "index" else {}) | {"description": self.description}

    @property
    def sql(self) -> str:
        """Its type in Spark. What is never null is said so: Spark then need not look, row by row."""
        return self.kind.sql if self.nullable else f"{self.kind.sql} NOT NULL"


COLUMNS = (
    Column("index", INTEGER, "Position in the partition; never used twice", nullable=False, assigned=True),
    Column("time", TIME, "When the hub accepted the record", nullable=False, assigned=True),
    Column("event_time", TIME, "The producer's own time"),
    Column("id", INTEGER, "The producer's message id"),
    Column("type", TEXT, "Event type, method or content type"),
    Column("key", BYTES, "Partitioning or table key"),
    Column("payload", BYTES, "The bytes that were sent", nullable=False),
)

SCHEMA = pa.schema([pa.field(column.name, column.kind.arrow, column.nullable) for column in COLUMNS])
"""What every read gives. Unsigned ids keep their bit pattern in `id`."""
ASSIGNED = tuple(column.name for column in COLUMNS if column.assigned)
OPTIONAL = tuple(column for column in COLUMNS if column.nullable)
"""What a producer may give with a payload."""
PUT_SCHEMA = pa.schema(
    [
        pa.field(name, SCHEMA.field(name).type)
        for name in sorted(set(SCHEMA.names) - {*ASSIGNED}, key=["payload", "id", *SCHEMA.names].index)
    ]
)
"""What a producer gives, in the order in which Spark has always sent it: payload, id, event_time, type, key."""


def plain_rows(records: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Records by their JSON names, as plain values: times are microseconds since 1970, of any year."""
    names = [column.json_name for column in COLUMNS]
    values = [
        records.column(column.name).cast(pa.int64() if column.kind is TIME else column.kind.arrow).to_pylist()
        for column in COLUMNS
    ]
    return (dict(zip(names, row, strict=True)) for row in zip(*values, strict=True))
