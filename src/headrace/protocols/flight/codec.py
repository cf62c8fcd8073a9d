"""The words of the Flight endpoint: tickets, descriptors, acknowledgements, errors, and the columns of a put.

Everything that is not Arrow data travels as JSON, so that any Flight client in any language can write it by hand:

    do_get     Ticket.ticket        = {"stream": "orders", "start": 0, "limit": 100}                → `ReadTicket`
                                    = {"sql": "SELECT count(*) FROM orders"}                        → `SqlTicket`
    do_put     descriptor.command   = {"stream": "orders", "partition": 0, "producer": "shop"}      → `PutCommand`
               descriptor.path      = ["orders"] or ["orders", "0"]                                 → `PutCommand`
               app_metadata of a batch = {"sequence": 7}                                            → `PutMetadata`
               metadata sent back      = {"batch": 0, "first": 41, "count": 3, "duplicate": false}  → `PutAck`
    do_action  Action.type          = a verb, Action.body = its parameters as a JSON object
    an error   FlightError.extra_info = {"code": "unknown-stream", "message": "…", "details": {…}}  → `ErrorBody`

A field that is not listed is refused, so a misspelt one is never silently ignored. Pure: no socket, no hub, no
event loop.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import lib

from headrace import errors
from headrace.log.columns import ASSIGNED, BYTES, COLUMNS, INTEGER, PUT_SCHEMA, SCHEMA, TEXT, TIME, Kind
from headrace.units import MIB, natural

# A ticket, command or metadata above this is refused unread. Large enough for 10,000 ranges of long names.
MESSAGE_BYTES_MAX = 4 << 20
# How many ranges one ticket may hold.
RANGES_MAX = 10_000
# Data messages stay below the 4 MiB that gRPC clients in other languages accept unless told otherwise.
BATCH_BYTES_DEFAULT = 2 << 20
BATCH_BYTES_MAX = 64 << 20

INDEX_MAX = (1 << 63) - 1
SEQUENCE_MAX = (1 << 64) - 1

#: The columns that name where a record came from; a ticket with `ranges`, or one that asks for them, has them in front.
ORIGIN_FIELDS = (pa.field("stream", pa.string()), pa.field("partition", pa.int32()))
WRITABLE_COLUMNS = tuple(PUT_SCHEMA.names)
# The hub gives these; a table that was read from one stream can be put into another as it is.
ASSIGNED_COLUMNS = (*ASSIGNED, "stream", "partition")


class AtTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first record that the hub accepted at this time or later."""

    time_us: int


Start = int | Literal["earliest", "latest"] | AtTime
End = int | Literal["latest"] | AtTime | None


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One stretch of one partition: `start` included, `end` not."""

    stream: str
    partition: int = 0
    start: Start = "earliest"
    end: End = None


class ReadTicket(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to read. Either `stream` (with partition, start, end), or `ranges` of several streams and partitions.

    `end` left out means the durable end at the time of the call, or without end when `follow` is true. `limit`
    counts the records that are sent. A `start` below the oldest kept record fails with `trimmed`, unless
    `on_trimmed` is "skip".
    """

    stream: str | None = None
    partition: int = 0
    start: Start = "earliest"
    end: End = None
    ranges: tuple[Range, ...] | None = None
    limit: int | None = None
    columns: tuple[str, ...] | None = None
    types: tuple[str | None, ...] | None = None
    follow: bool = False
    on_trimmed: Literal["fail", "skip"] = "fail"
    batch_bytes: int = BATCH_BYTES_DEFAULT


class SqlTicket(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The rows of a SQL query; at most `limit`. `id` is for the verb `sql.cancel`."""

    sql: str
    parameters: tuple[Any, ...] = ()
    limit: int | None = None
    id: str | None = None


class PutCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a put appends. With `producer` and `sequence`, the first batch has that sequence and each next one more."""

    stream: str
    partition: int = 0
    producer: str | None = None
    sequence: int | None = None
    acks: Literal["each", "last"] = "each"


class PutMetadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What may stand beside one batch of a put; it goes before what the descriptor says. `after` is the producer's last
    sequence as the client knows it, -1 for none: if it is another, the batch is refused as `fenced`."""

    producer: str | None = None
    sequence: int | None = None
    after: int | None = None


class ErrorBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as it travels: a stable code, a text for people, and the fields of that kind of error. In the status of
    a put, `batch` is the number of the batch that was refused."""

    code: str
    message: str
    details: dict[str, Any] = {}
    batch: int | None = None


class PutAck(msgspec.Struct, frozen=True):
    """One batch is on disk, or (with `error`) refused. With `acks: "last"` there is one of these, for all batches."""

    batch: int
    first: int = -1
    count: int = 0
    duplicate: bool = False
    error: ErrorBody | None = None


class FlightCriteria(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `list_flights` lists; with `all` also what the hub keeps for itself."""

    pattern: str = "*"
    kind: Literal["stream", "table"] | None = "stream"
    all: bool = False


_Message = TypeVar("_Message", bound=msgspec.Struct)


def encode(message: Any) -> bytes:
    """Any message above, or the parameters or result of a verb, as JSON."""
    try:
        return msgspec.json.encode(message)
    except UnicodeEncodeError:
        raise errors.BadRequest("an argument is not UTF-8 text") from None  # which is not shown: it may be a password


def _decode(data: bytes, kind: type[_Message], what: str) -> _Message:
    if len(data) > MESSAGE_BYTES_MAX:
        raise errors.BadRequest(f"the {what} has {len(data)} bytes, above the maximum of {MESSAGE_BYTES_MAX}")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise errors.BadRequest(f"the {what} is not valid: {error}") from None


def _check_range(where: str, stream: str, partition: int, start: Start, end: End) -> None:
    if not stream:
        raise errors.BadRequest(f"{where}: 'stream' is empty")
    if partition < 0:
        raise errors.BadRequest(f"{where}: 'partition' is {partition}, below 0")
    for name, value in (("start", start), ("end", end)):
        if isinstance(value, int) and not 0 <= value <= INDEX_MAX:
            raise errors.BadRequest(f"{where}: {name!r} is {value}, outside 0 to {INDEX_MAX}")
    if isinstance(start, int) and isinstance(end, int) and end < start:
        raise errors.BadRequest(f"{where}: 'end' is {end}, below 'start' {start}")


class _Named(msgspec.Struct):
    """What tells messages apart that come in one place."""

    sql: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    verb: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def has_field(data: bytes, name: Literal["sql", "verb"]) -> bool:
    """Whether a message is an object that has this field. What is no message, or too large to be one, has not."""
    if len(data) > MESSAGE_BYTES_MAX or f'"{name}"'.encode() not in data:
        return False
    try:
        return getattr(msgspec.json.decode(data, type=_Named), name) is not msgspec.UNSET
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def decode_sql_ticket(data: bytes) -> SqlTicket | None:
    """A `do_get` ticket of a query; None for one that reads a stream."""
    if not has_field(data, "sql"):
        return None
    ticket = _decode(data, SqlTicket, "ticket")
    if ticket.limit is not None and not 0 <= ticket.limit <= INDEX_MAX:
        raise errors.BadRequest(f"ticket: 'limit' is {ticket.limit}, outside 0 to {INDEX_MAX}")
    return ticket


def decode_ticket(data: bytes) -> ReadTicket:
    """A `do_get` ticket; every field is checked."""
    ticket = _decode(data, ReadTicket, "ticket")
    if (ticket.stream is None) == (ticket.ranges is None):
        raise errors.BadRequest("ticket: give either 'stream' or 'ranges'")
    if ticket.stream is not None:
        _check_range("ticket", ticket.stream, ticket.partition, ticket.start, ticket.end)
    if ticket.ranges is not None:
        if not 0 < len(ticket.ranges) <= RANGES_MAX:
            raise errors.BadRequest(f"ticket: 'ranges' has {len(ticket.ranges)} entries, outside 1 to {RANGES_MAX}")
        for number, each in enumerate(ticket.ranges):
            _check_range(f"ticket: ranges[{number}]", each.stream, each.partition, each.start, each.end)
    if ticket.limit is not None and not 0 <= ticket.limit <= INDEX_MAX:
        raise errors.BadRequest(f"ticket: 'limit' is {ticket.limit}, outside 0 to {INDEX_MAX}")
    if not 1 <= ticket.batch_bytes <= BATCH_BYTES_MAX:
        raise errors.BadRequest(f"ticket: 'batch_bytes' is {ticket.batch_bytes}, outside 1 to {BATCH_BYTES_MAX}")
    return ticket


def ticket_ranges(ticket: ReadTicket) -> tuple[Range, ...]:
    """The ranges of a ticket, whichever way they were written."""
    if ticket.ranges is not None:
        return ticket.ranges
    assert ticket.stream is not None
    return (Range(ticket.stream, ticket.partition, ticket.start, ticket.end),)


def ticket_schema(ticket: ReadTicket) -> pa.Schema:
    """The schema of what a ticket reads; an unknown or repeated column is refused by name."""
    known = {field.name: field for field in (*ORIGIN_FIELDS, *SCHEMA)}
    if ticket.columns is None:
        return SCHEMA if ticket.ranges is None else pa.schema([*ORIGIN_FIELDS, *SCHEMA])
    if not ticket.columns:
        raise errors.BadRequest("ticket: 'columns' is empty; leave it out for all columns")
    for name in ticket.columns:
        if name not in known:
            raise errors.BadRequest(f"ticket: no column {name!r}; the columns are {', '.join(known)}")
        if ticket.columns.count(name) > 1:
            raise errors.BadRequest(f"ticket: column {name!r} is named twice")
    return pa.schema([known[name] for name in ticket.columns])


def command_from_path(path: Sequence[bytes]) -> PutCommand:
    """A descriptor path: the stream's name, and optionally the partition."""
    try:
        parts = [part.decode() for part in path]
    except UnicodeDecodeError:
        raise errors.BadRequest("descriptor: the path is not UTF-8") from None
    if len(parts) == 1:
        return _checked_command(PutCommand(parts[0]))
    if len(parts) == 2 and (partition := natural(parts[1], 9)) is not None:
        return _checked_command(PutCommand(parts[0], partition))
    raise errors.BadRequest(f"descriptor: the path is [stream] or [stream, partition number], not {parts!r}")


def decode_command(data: bytes) -> PutCommand:
    """A descriptor command."""
    return _checked_command(_decode(data, PutCommand, "descriptor command"))


def _checked_command(command: PutCommand) -> PutCommand:
    _check_range("descriptor", command.stream, command.partition, 0, None)
    _check_producer("descriptor", command.producer, command.sequence)
    return command


def _check_producer(where: str, producer: str | None, sequence: int | None) -> None:
    if producer == "":
        raise errors.BadRequest(f"{where}: 'producer' is empty")
    if sequence is not None and not 0 <= sequence <= SEQUENCE_MAX:
        raise errors.BadRequest(f"{where}: 'sequence' is {sequence}, outside 0 to {SEQUENCE_MAX}")


def decode_metadata(data: bytes | None) -> PutMetadata:
    """The metadata beside one batch of a put; none is fine."""
    if not data:
        return PutMetadata()
    metadata = _decode(data, PutMetadata, "app_metadata")
    _check_producer("app_metadata", metadata.producer, metadata.sequence)
    if metadata.after is not None and not -1 <= metadata.after <= SEQUENCE_MAX:
        raise errors.BadRequest(f"app_metadata: 'after' is {metadata.after}, outside -1 to {SEQUENCE_MAX}")
    return metadata


def decode_ack(data: bytes) -> PutAck:
    """What the hub sends back during a put."""
    return _decode(data, PutAck, "acknowledgement")


def decode_criteria(data: bytes) -> FlightCriteria:
    """`list_flights` criteria: nothing, or JSON."""
    return _decode(data, FlightCriteria, "criteria") if data else FlightCriteria()


# Errors ---------------------------------------------------------------------------------------------------------------


def _plain(value: object) -> object:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _unplain(value: object) -> object:
    if isinstance(value, dict) and set(value) == {"base64"} and isinstance(value["base64"], str):
        return base64.b64decode(value["base64"], validate=True)
    return value


def error_body(error: errors.HeadraceError, batch: int | None = None) -> ErrorBody:
    """One of our errors, ready to travel."""
    details = {name: _plain(value) for name, value in vars(error).items() if not name.startswith("_")}
    return ErrorBody(error.code, str(error), details, batch)


def error_from_body(body: ErrorBody) -> errors.HeadraceError:
    """The same error on the other side: the same class, text and fields."""
    kind = errors.error_classes().get(body.code, errors.HeadraceError)
    error = kind.__new__(kind)
    Exception.__init__(error, body.message)
    for name, value in body.details.items():
        if name.isidentifier() and not name.startswith("_") and not hasattr(Exception, name):
            setattr(error, name, _unplain(value))
    if type(error) is errors.HeadraceError:
        error.code = body.code
    return error


def refused_batch(data: bytes) -> int | None:
    """The batch that the status of a put names as the one that was refused."""
    try:
        return msgspec.json.decode(data, type=ErrorBody).batch
    except msgspec.DecodeError:
        return None


def decode_error(data: bytes) -> errors.HeadraceError | None:
    """The error in a Flight error's `extra_info`, if it is one of ours."""
    try:
        return error_from_body(msgspec.json.decode(data, type=ErrorBody))
    except (msgspec.DecodeError, ValueError):
        return None


# The columns of a put -------------------------------------------------------------------------------------------------

_Cast = Callable[[pa.Array], pa.Array]


_BYTES = frozenset((lib.Type_BINARY, lib.Type_LARGE_BINARY, lib.Type_BINARY_VIEW, lib.Type_FIXED_SIZE_BINARY))
_TEXT = frozenset((lib.Type_STRING, lib.Type_LARGE_STRING, lib.Type_STRING_VIEW))
# A cast follows what these columns say of themselves, such as where their values lie. Arrow trusts that, so those of a
# stranger must be checked before; what is taken as it is, `Batch.from_arrow` checks.
_TAKEN_AS_IT_IS = {lib.Type_BINARY, lib.Type_FIXED_SIZE_BINARY, lib.Type_STRING}
_VIEWS = frozenset((lib.Type_BINARY_VIEW, lib.Type_STRING_VIEW))
NUMBER_BYTES = 8
ROW_BYTES_MIN = 4
"""Each payload has an offset, at least: a batch that says that it has more rows than that is not looked at."""
_READ_BY_CAST = (_BYTES | _TEXT | {lib.Type_DICTIONARY}) - _TAKEN_AS_IT_IS


def _cast_bytes(kind: pa.DataType) -> _Cast | None:
    return (lambda column: column.cast(pa.binary())) if kind.id in _BYTES | _TEXT else None


def _cast_text(kind: pa.DataType) -> _Cast | None:
    return (lambda column: column.cast(pa.string())) if kind.id in _TEXT else None


def _cast_integer(kind: pa.DataType) -> _Cast | None:
    if pa.types.is_uint64(kind):
        return lambda column: column.view(pa.int64())  # unsigned ids keep their bit pattern
    if pa.types.is_integer(kind):
        return lambda column: column.cast(pa.int64())
    return None


def _cast_time(kind: pa.DataType) -> _Cast | None:
    if pa.types.is_timestamp(kind):
        return _to_microseconds
    if pa.types.is_int64(kind):
        return lambda column: column.cast(TIME.arrow)
    return None


def _to_microseconds(column: pa.Array) -> pa.Array:
    # Nanoseconds lose their last three digits; a time too large for microseconds is an error, not a wrong time.
    options = pc.CastOptions(target_type=pa.timestamp("us", column.type.tz), allow_time_truncate=True)
    return pc.cast(column, options=options).cast(TIME.arrow)


_CASTS: dict[Kind, tuple[Callable[[pa.DataType], _Cast | None], str]] = {
    BYTES: (_cast_bytes, "binary or string"),
    INTEGER: (_cast_integer, "an integer"),
    TIME: (_cast_time, "a timestamp, or int64 microseconds since 1970"),
    TEXT: (_cast_text, "string"),
}
_KINDS = {column.name: column.kind for column in COLUMNS}


class PutColumns:
    """How the columns of one put become the columns of records; made once per put from its schema."""

    def __init__(self, schema: pa.Schema, batch_bytes_max: int = 64 * MIB) -> None:
        self._batch_bytes_max = batch_bytes_max
        self._casts: list[tuple[str, _Cast]] = []
        for name in schema.names:
            if schema.names.count(name) > 1:
                raise errors.BadRequest(f"column {name!r} is there twice")
            if name in ASSIGNED_COLUMNS:
                continue
            if name not in WRITABLE_COLUMNS:
                raise errors.BadRequest(
                    f"no column {name!r} in a record; the columns are {', '.join(WRITABLE_COLUMNS)}"
                )
            self._casts.append((name, self._cast_for(name, schema.field(name).type)))
        if "payload" not in schema.names:
            raise errors.BadRequest("column 'payload' is missing; it holds the bytes of each record")

    @staticmethod
    def _cast_for(name: str, kind: pa.DataType) -> _Cast:
        choose, accepted = _CASTS[_KINDS[name]]
        if pa.types.is_null(kind) and name != "payload":
            target = SCHEMA.field(name).type
            return lambda column: pa.nulls(len(column), target)
        value_kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        cast = choose(value_kind)
        if cast is None:
            raise errors.BadRequest(f"column {name!r} has the type {kind}; it must be {accepted}")
        if value_kind is not kind:
            return lambda column: cast(column.dictionary_decode())
        return cast

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with exactly the columns and types of a record; a value that does not fit is refused."""
        names = []
        columns = []
        self._check_size(batch.num_rows * ROW_BYTES_MIN)
        unfolded = 0
        for name, cast in self._casts:
            column = batch.column(name)
            try:
                column.validate(full=column.type.id in _READ_BY_CAST)
                if name != "payload" and column.null_count == len(column):
                    continue  # a column that says nothing takes no room in the log
                unfolded += unfolded_bytes(column)
                self._check_size(unfolded)
                columns.append(cast(column))
            except (pa.ArrowInvalid, pa.ArrowIndexError, pa.ArrowNotImplementedError) as error:
                raise errors.BadRequest(f"column {name!r}: {error}") from None
            names.append(name)
        payload = columns[names.index("payload")]
        if payload.null_count:
            row = pc.index(payload.is_null(), True).as_py()
            raise errors.BadRequest(f"column 'payload' row {row} is null; a record without bytes has an empty payload")
        return pa.RecordBatch.from_arrays(columns, names)

    def _check_size(self, size: int) -> None:
        if size > self._batch_bytes_max:
            raise errors.LimitExceeded("bytes of a batch", size, self._batch_bytes_max, "log.batch_bytes_max")


def unfolded_bytes(column: pa.Array) -> int:
    """What a column takes with each value written out, found without writing it out: rows of a dictionary, and views,
    may all show the same bytes. 0 for columns that cannot: they are no larger than they came."""
    if pa.types.is_dictionary(column.type):
        lengths = _lengths(column.dictionary)
        uses = np.bincount(column.indices.drop_null().cast(pa.int64()).to_numpy(), minlength=len(lengths))
        return int(uses @ lengths)
    if column.type.id in _VIEWS:
        return int(_lengths(column).sum())
    return 0


def _lengths(values: pa.Array) -> npt.NDArray[np.int64]:
    if values.type.id in _VIEWS:  # each view is four words, and the first of them is its length
        words = np.frombuffer(values.buffers()[1], np.int32)
        return words[values.offset * 4 : (values.offset + len(values)) * 4 : 4].astype(np.int64)
    if values.type.id in _BYTES | _TEXT:
        lengths: npt.NDArray[np.int64] = pc.fill_null(pc.binary_length(values), 0).cast(pa.int64()).to_numpy()
        return lengths
    return np.full(len(values), NUMBER_BYTES, np.int64)


def split(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Halves of halves, in order, until each fits or is one record."""
    if batch.num_rows <= 1 or batch.nbytes <= bytes_max:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from split(batch.slice(0, middle), bytes_max)
    yield from split(batch.slice(middle), bytes_max)
