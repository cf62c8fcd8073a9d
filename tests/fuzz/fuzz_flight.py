"""Feed anything to the parsers of the Flight endpoint: they answer with a value or with `BadRequest`, nothing else."""

import pyarrow as pa

from headrace.errors import BadRequest
from headrace.protocols.flight import codec

KINDS = (
    pa.binary(),
    pa.string(),
    pa.int8(),
    pa.uint64(),
    pa.timestamp("ns"),
    pa.timestamp("s", "UTC"),
    pa.float64(),
    pa.null(),
    pa.bool_(),
    pa.large_string(),
    pa.list_(pa.int8()),
    pa.dictionary(pa.int8(), pa.string()),
)
NAMES = ("payload", "id", "event_time", "type", "key", "index", "other")


def fuzz(data: bytes) -> None:
    for decode in (codec.decode_ticket, codec.decode_command, codec.decode_metadata, codec.decode_criteria):
        try:
            message = decode(data)
        except BadRequest:
            continue
        assert decode(codec.encode(message)) == message
        if isinstance(message, codec.ReadTicket):
            _schema_of(message)
    codec.decode_error(data)
    _fuzz_columns(data)


def _schema_of(ticket: codec.ReadTicket) -> None:
    try:
        assert codec.ticket_schema(ticket).names
        assert codec.ticket_ranges(ticket)
    except BadRequest:
        pass


def _fuzz_columns(data: bytes) -> None:
    """Every byte is a column: its name and type; rows come from what is left."""
    fields = [(NAMES[byte % len(NAMES)], KINDS[byte // len(NAMES) % len(KINDS)]) for byte in data[:6]]
    schema = pa.schema(fields)
    rows = len(data) % 4
    try:
        columns = codec.PutColumns(schema)
        arrays = [_array(kind, rows, data) for _, kind in fields]
        batch = columns.apply(pa.RecordBatch.from_arrays(arrays, schema=schema))
    except BadRequest:
        return
    assert batch.num_rows == rows
    assert set(batch.schema.names) <= set(codec.WRITABLE_COLUMNS)
    assert not batch.column("payload").null_count


def _array(kind: pa.DataType, rows: int, data: bytes) -> pa.Array:
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
        width = 1 if kind == pa.int8() else 8
        raw = (data * (width * rows + 1))[: width * rows]
        return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(raw.ljust(width * rows, b"\0"))])
    if pa.types.is_binary(kind):
        return pa.array([data[: row + 1] if data[row : row + 1] != b"\0" else None for row in range(rows)], kind)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.array([str(byte) for byte in (data * (rows + 1))[:rows]], kind)
    return pa.nulls(rows, kind)
