"""Records on the client's side: what may be appended, and what a read gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa

from headrace.admin.records import NewRecord
from headrace.errors import BadRequest
from headrace.log.columns import BYTES, INTEGER, SCHEMA, TIME
from headrace.protocols.flight.codec import PutColumns

SHOWN_CHARACTERS = 60
# A single record up to this goes without Arrow.
SMALL_BYTES = 8 << 10
MICROSECONDS_PER_SECOND = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One record. To append one, give `payload` and what else you know; `index` and `time` come from the hub.

    `event_time` is whatever a producer has sent: where that lies outside the years 1 to 9999, which is all that a
    `datetime` holds, it is microseconds since 1970."""

    payload: bytes
    type: str | None = None
    key: bytes | None = None
    id: int | None = None
    event_time: datetime | int | None = None
    index: int = -1
    time: datetime = _EPOCH
    stream: str | None = None
    partition: int | None = None

    @property
    def text(self) -> str:
        """The payload as UTF-8 text."""
        try:
            return self.payload.decode()
        except UnicodeDecodeError as error:
            raise BadRequest(f"the payload of {self._named()} is not UTF-8 text: {error}") from None

    def json(self) -> Any:
        """The payload as JSON."""
        try:
            return msgspec.json.decode(self.payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            begins = shortened(self.payload)
            raise BadRequest(f"the payload of {self._named()} is not JSON: {error}; it is {begins}") from None

    def _named(self) -> str:
        of = "" if self.stream is None else f" of {self.stream!r}"
        return "this record" if self.index < 0 else f"record {self.index}{of}"

    def __repr__(self) -> str:
        named = ((name, getattr(self, name)) for name in ("stream", "partition", "type", "key", "id", "event_time"))
        said = [f"{name}={value!r}" for name, value in named if value is not None]
        where = [f"index={self.index}", f"time={self.time.isoformat()}"] if self.index >= 0 else []
        return f"Record({', '.join([*where, *said, f'payload={shortened(self.payload)}'])})"


def shortened(value: object) -> str:
    """A value for people who look at many."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def records_of(batch: pa.RecordBatch) -> Iterator[Record]:
    """The rows of a batch as records; columns that were not asked for have their defaults."""
    names = batch.schema.names
    columns = [_values(column) for column in batch.columns]
    if "payload" not in names:
        names = [*names, "payload"]
        columns.append([b""] * batch.num_rows)
    for row in zip(*columns, strict=True):
        yield Record(**dict(zip(names, row, strict=True)))


def _values(column: pa.Array) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        if not pa.types.is_timestamp(column.type):
            raise
        return [None if micros is None else _moment(micros) for micros in column.cast(pa.int64()).to_pylist()]
    return values


def _moment(micros: int) -> datetime | int:
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return micros


def to_microseconds(time: datetime | int) -> int:
    """A time as microseconds since 1970; a datetime without a zone is refused, because it names no moment."""
    if isinstance(time, int):
        return time
    if not isinstance(time, datetime):
        raise BadRequest(f"{_kind(time)} is not a time; give a datetime with a time zone, or microseconds since 1970")
    if time.tzinfo is None:
        raise BadRequest(f"the time {time.isoformat()} has no time zone; use datetime(..., tzinfo=UTC)")
    elapsed = time - _EPOCH
    return (elapsed.days * 86_400 + elapsed.seconds) * MICROSECONDS_PER_SECOND + elapsed.microseconds


def to_batch(
    data: Any,
    *,
    type: str | Sequence[str | None] | None = None,
    key: bytes | str | Sequence[bytes | str | None] | None = None,
    id: int | Sequence[int | None] | None = None,
    event_time: datetime | int | Sequence[datetime | int | None] | None = None,
    payload: str | None = None,
) -> pa.RecordBatch:
    """What a caller appends, as one batch with only the columns that say something.

    `data` is one payload, one `Record`, a sequence of these, or what Arrow can read (a table, a batch, a DataFrame).
    The other arguments hold for every record, or are sequences with one value for each; beside Arrow data they name
    columns of it.
    """
    extra = {"type": type, "key": key, "id": id, "event_time": event_time}
    if is_arrow(data):
        columns = extra | {"payload": payload}
        return _from_arrow(data, {name: column for name, column in columns.items() if column is not None})
    if payload is not None:
        raise BadRequest("'payload' names a column of Arrow data, and this is not Arrow data")
    if isinstance(data, bytes | bytearray | memoryview | str | Mapping | Record):
        data = [data]
    if not isinstance(data, Sequence):
        try:
            records = iter(data)
        except TypeError:
            advice = "give bytes, text, a mapping, or a sequence of them"
            raise BadRequest(f"{_kind(data)} cannot be appended: {advice}") from None
        data = list(records)
    return _from_sequence(data, extra)


def one_record(data: Any, type: Any, key: Any, id: Any, event_time: Any) -> NewRecord | None:
    """A single small record in the form that needs no Arrow; None for anything else, and for what does not fit."""
    if not isinstance(data, bytes | str | Mapping | Record | bytearray | memoryview):
        return None
    if isinstance(data, Record):
        given = zip((type, key, id, event_time), (data.type, data.key, data.id, data.event_time), strict=True)
        type, key, id, event_time = (own if value is None else value for value, own in given)
    fits = (
        (type is None or isinstance(type, str))
        and (key is None or isinstance(key, bytes | str))
        and (id is None or (isinstance(id, int) and -(1 << 63) <= id < 1 << 64))
    )
    if not fits:
        return None
    payload = _payload(0, data)
    if len(payload) > SMALL_BYTES or (key is not None and len(key) > SMALL_BYTES):
        return None
    return NewRecord(
        payload=payload,
        type=type,
        key=_utf8("the key", key) if isinstance(key, str) else key,
        id=_signed(id),
        event_time_us=None if event_time is None else to_microseconds(event_time),
    )


def is_arrow(data: object) -> bool:
    """Whether data is columns already: pyarrow, pandas, Polars, DuckDB."""
    return isinstance(data, pa.Table | pa.RecordBatch) or hasattr(data, "__arrow_c_stream__")


def _from_arrow(data: Any, named: dict[str, Any]) -> pa.RecordBatch:
    table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
    if not isinstance(table, pa.Table):
        table = pa.table(data)
    if named or "payload" not in table.column_names:
        table = _of_columns(table, named)
    columns = PutColumns(table.schema)
    parts = [columns.apply(batch) for batch in table.combine_chunks().to_batches()]
    if not parts:
        return columns.apply(pa.RecordBatch.from_pylist([], schema=table.schema))
    batches = pa.Table.from_batches(parts).combine_chunks().to_batches()
    if len(batches) != 1:
        raise BadRequest("the data has more than 2 GiB in one column; append it in parts")
    return batches[0]


def _of_columns(table: pa.Table, named: dict[str, Any]) -> pa.Table:
    """Records of a table that has columns of its own: each is JSON of its row, or what one column holds."""
    for name, column in named.items():
        if column not in table.column_names:
            known = ", ".join(table.column_names)
            raise BadRequest(f"{name}={column!r} is not a column of the data, which has {known}")
    columns = {name: table.column(column) for name, column in named.items()}
    if "payload" not in columns:
        if "payload" in table.column_names:
            columns["payload"] = table.column("payload")
        else:
            encode = msgspec.json.Encoder(enc_hook=str).encode
            columns["payload"] = pa.array([encode(row) for row in table.to_pylist()], pa.binary())
    if "key" in columns and not (
        pa.types.is_binary(columns["key"].type) or pa.types.is_large_binary(columns["key"].type)
    ):
        columns["key"] = columns["key"].cast(pa.string())
    return pa.table(columns)


def _from_sequence(data: Sequence[Any], extra: dict[str, Any]) -> pa.RecordBatch:
    arrays = {"payload": _bytes_as_they_are(data)}
    has_records = False
    if arrays["payload"] is None:
        arrays["payload"] = _array("payload", [_payload(number, record) for number, record in enumerate(data)])
        has_records = any(isinstance(each, Record) for each in data)
    for name, value in extra.items():
        if value is None and not has_records:
            continue
        values = _spread(name, value, data)
        if any(value is not None for value in values):
            arrays[name] = _array(name, values)
    return pa.RecordBatch.from_arrays(list(arrays.values()), list(arrays))


def _bytes_as_they_are(data: Sequence[Any]) -> pa.Array | None:
    """A list of bytes or text, the usual case, without a look at each in Python; None if there is something else."""
    if not data or not isinstance(data[0], bytes | str):
        return None
    try:
        payloads = pa.array(data, pa.binary())
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    return None if payloads.null_count else payloads


def _payload(number: int, data: Any) -> bytes:
    if isinstance(data, bytes):
        return data
    if isinstance(data, Record):
        return data.payload
    if isinstance(data, str):
        return _utf8(f"record {number}", data)
    if isinstance(data, Mapping):
        return _json(number, data)
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise BadRequest(f"record {number} is {_kind(data)}; a record is bytes, text, a mapping (sent as JSON) or a Record")


def _utf8(what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"{what} is not UTF-8 text: {error}") from None


def _json(number: int, data: Mapping[Any, Any]) -> bytes:
    try:
        return msgspec.json.encode(data, enc_hook=_plain)
    except (TypeError, ValueError) as error:
        raise BadRequest(f"record {number} cannot be sent as JSON: {error}") from None


def _plain(value: Any) -> Any:
    """NumPy's numbers and arrays as Python's: pandas hands them out."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{_kind(value)} has no form in JSON")


def _spread(name: str, value: Any, data: Sequence[Any]) -> list[Any]:
    """One value for each record: from the argument, or else from the record itself."""
    if value is None:
        return [getattr(each, name) if isinstance(each, Record) else None for each in data]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if len(value) != len(data):
            raise BadRequest(f"{name!r} has {len(value)} values for {len(data)} records")
        return list(value)
    return [value] * len(data)


def _array(name: str, values: Sequence[Any]) -> pa.Array:
    kind = SCHEMA.field(name).type
    if name != "payload":
        convert = _CONVERSIONS.get(kind)
        values = values if convert is None else [None if value is None else convert(value) for value in values]
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise BadRequest(f"{name!r} does not fit its column: {error}") from None


def _signed(value: Any) -> Any:
    """Unsigned ids keep their bit pattern."""
    return value - (1 << 64) if isinstance(value, int) and 1 << 63 <= value < 1 << 64 else value


_CONVERSIONS: dict[pa.DataType, Callable[[Any], Any]] = {
    BYTES.arrow: lambda value: _utf8("the key", value) if isinstance(value, str) else value,
    TIME.arrow: to_microseconds,
    INTEGER.arrow: _signed,
}


def _kind(data: object) -> str:
    return f"a value of type {type(data).__name__}"
