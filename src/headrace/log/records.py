"""The columns of a record: the same on disk, in Arrow, over Flight and in Spark."""

from __future__ import annotations

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")

SCHEMA = pa.schema(
    [
        pa.field("index", pa.int64(), nullable=False),
        pa.field("time", TIMESTAMP, nullable=False),
        pa.field("event_time", TIMESTAMP),
        pa.field("id", pa.int64()),
        pa.field("type", pa.string()),
        pa.field("key", pa.binary()),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
"""What every read gives. Unsigned ids keep their bit pattern in `id`."""

# `pa.nulls` and not `pa.array`: the latter imports pandas, which costs every process that starts a quarter of a second.
EMPTY = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in SCHEMA], schema=SCHEMA)


def concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Several record batches of one schema as one."""
    if not batches:
        return EMPTY
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches).combine_chunks()
    return table.to_batches()[0] if table.num_rows else batches[0]
