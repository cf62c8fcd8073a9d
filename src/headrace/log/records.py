"""Records as Arrow arrays: the few ways in which the log makes and joins them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.log.columns import OPTIONAL, SCHEMA, TIMESTAMP

# The log avoids `pa.array`, `pa.scalar` and `pa.repeat`: where pandas is installed the first call imports it, and all
# other threads wait for a quarter of a second.
_INTEGER = pa.int64()
_OPTIONAL = tuple(column.kind.arrow for column in OPTIONAL)
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


def assembled(
    indexes: npt.NDArray[np.int64], times: npt.NDArray[np.int64], optional: Iterable[pa.Array | None], payload: pa.Array
) -> pa.RecordBatch:
    """Stored records from their columns; those that the producers left out are null."""
    count = len(indexes)
    given = [pa.nulls(count, kind) if array is None else array for kind, array in zip(_OPTIONAL, optional, strict=True)]
    return pa.RecordBatch.from_arrays(
        [longs(indexes, _INTEGER), longs(times, TIMESTAMP), *given, payload], schema=SCHEMA
    )
