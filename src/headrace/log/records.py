"""The columns of a record: the same on disk, in Arrow, over Flight and in Spark."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
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

# The log avoids `pa.array`, `pa.scalar` and `pa.repeat`: where pandas is installed the first call imports it, and all
# other threads wait for a quarter of a second.
EMPTY = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in SCHEMA], schema=SCHEMA)


def longs(values: npt.NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    """Numbers as an Arrow array of a 64-bit type, without a copy."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def repeated(text: str, count: int) -> pa.Array:
    """A column that says the same everywhere."""
    data = text.encode()
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data * count)])


def concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Several record batches of one schema as one."""
    if not batches:
        return EMPTY
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches).combine_chunks()
    return table.to_batches()[0] if table.num_rows else batches[0]
