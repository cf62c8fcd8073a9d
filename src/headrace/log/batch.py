"""A batch: the columns of n records on their way into the log.

A batch is encoded once, by whoever makes it, and these bytes are what the journal stores. All integers are little
endian; every section is padded with zeros to 8 bytes, so that each can become an Arrow buffer without a copy.

    body     := head payload [event_time] [id] [type] [key]
    head     := columns:u16 nulls:u16 count:u32
    payload  := offsets data
    event_time, id := [validity] i64 × count
    type     := [validity] offsets data          or, with ONE_TYPE:  length:u32 zero:u32 utf-8
    key      := [validity] offsets data
    offsets  := i32 × (count + 1), the first is 0
    validity := Arrow bitmap, one bit a record, present when the column's bit is set in `nulls`

    columns and nulls are sums of:  EVENT_TIME 1   ID 2   TYPE 4   KEY 8   ONE_TYPE 16 (columns only)
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import BadRequest
from headrace.log.columns import INTEGER, OPTIONAL, TIME
from headrace.log.records import assembled, repeated
from headrace.slicing import SLICE, joined, lengths

EVENT_TIME = 1
ID = 2
TYPE = 4
KEY = 8
ONE_TYPE = 16
_BITS = {"event_time": EVENT_TIME, "id": ID, "type": TYPE, "key": KEY}

HEAD = struct.Struct("<HHI")
ONE_TYPE_HEAD = struct.Struct("<II")
SINGLE = struct.Struct("<HHIii")
I64_MIN = -(2**63)
U64_MAX = 2**64 - 1
JOIN_BYTES_MAX = 1 << 20
"""More is not joined by Python, which lets no other thread run meanwhile."""
DATA_BYTES_MAX = 2**31 - 1  # Arrow's offsets are 32 bit

Section = bytes | memoryview
"""Views, where the bytes are elsewhere already: they are copied once, into the body."""
Column = tuple[Section | None, Section]
VarColumn = tuple[Section | None, Section, Section]


class Slot(NamedTuple):
    """A column's place in a body."""

    bit: int
    name: str
    kind: pa.DataType
    is_fixed: bool


LAYOUT = tuple(
    Slot(_BITS[column.name], column.name, column.kind.arrow, column.kind in (INTEGER, TIME)) for column in OPTIONAL
)
"""The optional columns of a body in their order. `one`, `of` and `decode_single` name them by hand: they run for every
append, and a caller's arguments have names and types."""

_ORDER = tuple(slot.bit for slot in LAYOUT)
_PADDING = tuple(b"\0" * ((-n) % 8) for n in range(8))


class Batch:
    """`count` records, encoded. Make one with `one`, `of` or `from_arrow`."""

    __slots__ = ("body", "count", "largest")

    def __init__(self, body: bytes, count: int, largest: int) -> None:
        self.body = body
        """Bytes, or an Arrow buffer of them where that saves a copy."""
        self.count = count
        self.largest = largest
        """Bytes of the largest payload."""

    @property
    def nbytes(self) -> int:
        return len(self.body)

    @classmethod
    def one(
        cls,
        payload: bytes,
        *,
        id: int | None = None,
        event_time: int | None = None,
        type: str | None = None,
        key: bytes | None = None,
    ) -> Batch:
        """A single record."""
        size = len(payload)
        columns = 0
        rest = b""
        if event_time is not None:
            columns |= EVENT_TIME
            rest = _signed(event_time, "event_time").to_bytes(8, "little", signed=True)
        if id is not None:
            columns |= ID
            rest += _signed(id, "id").to_bytes(8, "little", signed=True)
        if type is not None:
            columns |= TYPE | ONE_TYPE
            rest += _one_type(type)
        if key is not None:
            columns |= KEY
            rest += struct.pack("<ii", 0, len(key)) + key + _PADDING[len(key) % 8]
        # Joined and not added: a large payload is copied once, and other threads run meanwhile.
        body = b"".join((SINGLE.pack(columns, 0, 1, 0, size), payload, _PADDING[size % 8], rest))
        return cls(body, 1, size)

    @classmethod
    def of(
        cls,
        payloads: Sequence[bytes],
        *,
        ids: Sequence[int | None] | None = None,
        event_times: Sequence[int | None] | None = None,
        types: str | Sequence[str | None] | None = None,
        keys: Sequence[bytes | None] | None = None,
    ) -> Batch:
        """Records whose columns are given side by side, all of one length."""
        count = len(payloads)
        if not count:
            raise BadRequest("a batch needs at least one record")
        for name, column in (("ids", ids), ("event_times", event_times), ("keys", keys)):
            if column is not None and len(column) != count:
                raise BadRequest(f"{name} has {len(column)} values for {count} payloads")
        offsets, data, largest = _join(payloads, "payload")
        return cls._encode(
            count,
            largest,
            (None, offsets, data),
            (
                _fixed(event_times, "event_time"),
                _fixed(ids, "id"),
                _type_column(types, count),
                _variable(keys, "key"),
            ),
        )

    @classmethod
    def from_arrow(cls, records: pa.RecordBatch) -> Batch:
        """Records from Arrow columns: `payload`, and those optional ones that are there."""
        names = records.schema.names
        if "payload" not in names:
            raise BadRequest("an Arrow batch to append needs a column 'payload'")
        if not records.num_rows:
            raise BadRequest("a batch needs at least one record")
        validity, offsets, data = _arrow_variable(records, "payload", pa.binary())
        if validity is not None:
            raise BadRequest("column 'payload' has nulls; an empty payload is b''")
        largest = int(np.diff(np.frombuffer(offsets, np.int32)).max())
        return cls._encode(
            records.num_rows,
            largest,
            (None, offsets, data),
            [_arrow_section(records, names, slot) for slot in LAYOUT],
        )

    @classmethod
    def even(cls, payloads: npt.NDArray[np.uint8], ids: npt.NDArray[np.int64]) -> Batch:
        """Records whose payloads have one length: the rows of a matrix, which need not lie close together. They are
        copied once, to where they stand in the body."""
        count, size = payloads.shape
        if count * size > DATA_BYTES_MAX:
            raise BadRequest(f"the payloads have {count * size} bytes; one batch holds at most {DATA_BYTES_MAX}")
        lengths = (HEAD.size, 4 * (count + 1), count * size, 8 * count)
        starts = list(accumulate((length + -length % 8 for length in lengths), initial=0))
        body = np.empty(starts[-1], np.uint8)
        sections = [body[start : start + length] for start, length in zip(starts, lengths, strict=False)]
        sections[0][:] = np.frombuffer(HEAD.pack(ID, 0, count), np.uint8)
        np.multiply(np.arange(count + 1, dtype=np.int32), np.int32(size), out=sections[1].view(np.int32))
        sections[2].reshape(count, size)[:] = payloads
        sections[3].view(np.int64)[:] = ids
        for start, length, end in zip(starts, lengths, starts[1:], strict=False):
            body[start + length : end] = 0
        return cls(pa.py_buffer(body), count, size)

    @classmethod
    def _encode(
        cls, count: int, largest: int, payload: VarColumn, optional: Sequence[Column | VarColumn | bytes | None]
    ) -> Batch:
        columns = nulls = 0
        parts: list[Section] = [b"", *_pad(payload[1]), *_pad(payload[2])]
        for bit, sections in zip(_ORDER, optional, strict=True):
            if sections is None:
                continue
            columns |= bit
            if isinstance(sections, bytes):
                columns |= ONE_TYPE
                parts.append(sections)
                continue
            if sections[0] is not None:
                nulls |= bit
                parts += _pad(sections[0])
            for section in sections[1:]:
                parts += _pad(section)
        parts[0] = HEAD.pack(columns, nulls, count)
        return cls(_joined(parts) if count > 1 else b"".join(parts), count, largest)


def _pad(section: Section) -> tuple[Section, bytes]:
    return section, _PADDING[len(section) % 8]


def _joined(parts: list[Section]) -> bytes:
    """The parts in one piece: bytes, or an Arrow buffer of them when there are many."""
    size = sum(map(len, parts))
    if size <= JOIN_BYTES_MAX:
        return b"".join(parts)
    body = np.empty(size, np.uint8)
    at = 0
    for part in filter(len, parts):
        body[at : at + len(part)] = np.frombuffer(part, np.uint8)
        at += len(part)
    joined: bytes = pa.py_buffer(body)
    return joined


def _signed(value: int, name: str) -> int:
    """A 64-bit integer of either sign as its signed bit pattern."""
    if not I64_MIN <= value <= U64_MAX:
        raise BadRequest(f"{name} {value} does not fit 64 bits")
    return value - 2**64 if value > 2**63 - 1 else value


def _one_type(type: str) -> bytes:
    text = type.encode()
    return ONE_TYPE_HEAD.pack(len(text), 0) + text + _PADDING[len(text) % 8]


def _type_column(types: str | Sequence[str | None] | None, count: int) -> VarColumn | bytes | None:
    if types is None:
        return None
    if isinstance(types, str):
        return _one_type(types)
    if len(types) != count:
        raise BadRequest(f"types has {len(types)} values for {count} payloads")
    return _variable([None if one is None else one.encode() for one in types], "type")


def _join(values: Sequence[bytes], name: str) -> tuple[bytes, bytes, int]:
    """Offsets, the bytes laid end to end, and the length of the longest."""
    data = joined(values)
    if len(data) > DATA_BYTES_MAX:
        raise BadRequest(f"the {name} column has {len(data)} bytes; one batch holds at most {DATA_BYTES_MAX}")
    if len(values) <= SLICE:
        sizes = list(map(len, values))
        return array("i", accumulate(sizes, initial=0)).tobytes(), data, max(sizes)
    offsets, each = np.zeros(len(values) + 1, np.int32), lengths(values)
    np.cumsum(each, out=offsets[1:])
    return offsets.tobytes(), data, int(each.max())


def _validity(present: Sequence[bool]) -> bytes:
    return np.packbits(np.array(present, np.bool_), bitorder="little").tobytes()


def _fixed(values: Sequence[int | None] | None, name: str) -> Column | None:
    if values is None:
        return None
    try:
        return None, array("q", cast(Sequence[int], values)).tobytes()
    except (TypeError, OverflowError):  # nulls, or unsigned values with the high bit set
        signed = array("q", (0 if value is None else _signed(value, name) for value in values))
    present = [value is not None for value in values]
    return (None if all(present) else _validity(present)), signed.tobytes()


def _variable(values: Sequence[bytes | None] | None, name: str) -> VarColumn | None:
    if values is None:
        return None
    present = [value is not None for value in values]
    if all(present):
        offsets, data, _ = _join(values, name)  # type: ignore[arg-type]
        return None, offsets, data
    offsets, data, _ = _join([value or b"" for value in values], name)
    return _validity(present), offsets, data


def _arrow_array(records: pa.RecordBatch, name: str, wanted: pa.DataType) -> pa.Array:
    """One column as an array of the type that the log stores."""
    column = records.column(name)
    if column.type != wanted:
        try:
            column = column.cast(wanted)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise BadRequest(f"column {name!r} is {column.type} and cannot become {wanted}: {error}") from error
    try:
        column.validate(full=True)  # the column may come from a stranger: bad offsets or text must not reach the disk
    except pa.ArrowInvalid as error:
        raise BadRequest(f"column {name!r} is malformed: {error}") from error
    if column.offset and column.null_count:  # its bitmap need not begin with a whole byte: lay it out anew
        column = pa.concat_arrays([column, column.slice(0, 0)])
    return column


def _arrow_validity(column: pa.Array) -> Section | None:
    if not column.null_count:
        return None
    return memoryview(column.buffers()[0])[: (len(column) + 7) // 8]


def _arrow_fixed(records: pa.RecordBatch, name: str, wanted: pa.DataType) -> Column:
    column = _arrow_array(records, name, wanted)
    start = 8 * column.offset
    return _arrow_validity(column), memoryview(column.buffers()[1])[start : start + 8 * len(column)]


def _arrow_variable(records: pa.RecordBatch, name: str, wanted: pa.DataType) -> VarColumn:
    column = _arrow_array(records, name, wanted)
    _, offsets_buffer, data_buffer = column.buffers()
    count = len(column)
    offsets = np.frombuffer(offsets_buffer, np.int32, count + 1, 4 * column.offset)
    start, end = int(offsets[0]), int(offsets[-1])
    if start:
        offsets = offsets - np.int32(start)
    data = b"" if data_buffer is None else memoryview(data_buffer)[start:end]
    return _arrow_validity(column), offsets.view(np.uint8).data, data


def _arrow_section(records: pa.RecordBatch, names: list[str], slot: Slot) -> Column | VarColumn | None:
    _, name, kind, is_fixed = slot
    if name not in names:
        return None
    return (_arrow_fixed if is_fixed else _arrow_variable)(records, name, kind)


class Columns:
    """A decoded body: Arrow arrays for the columns that producers give; None for an optional one that is not there."""

    __slots__ = ("count", "optional", "payload")

    def __init__(self, body: bytes) -> None:
        """Trusts the body: the journal's checksum has been verified before."""
        columns, nulls, count = HEAD.unpack_from(body)
        self.count = count
        buffer = pa.py_buffer(body)
        self.payload, at = _read_variable(buffer, HEAD.size, count, False, pa.binary())
        self.optional: list[pa.Array | None] = []
        if not columns:  # many have only payloads
            self.optional = [None] * len(LAYOUT)
            return
        for bit, _, kind, is_fixed in LAYOUT:
            array = None
            if bit == TYPE and columns & ONE_TYPE:
                text, at = read_one_type(body, at)
                array = repeated(text, count)
            elif columns & bit:
                read = _read_fixed if is_fixed else _read_variable
                array, at = read(buffer, at, count, bool(nulls & bit), kind)
            self.optional.append(array)

    def to_arrow(self, base: int, time_us: int) -> pa.RecordBatch:
        """The stored records, first index `base`, all accepted at `time_us`."""
        indexes = np.arange(base, base + self.count, dtype=np.int64)
        times = np.empty(self.count, np.int64)
        times.fill(time_us)
        return assembled(indexes, times, self.optional, self.payload)


Row = tuple[int | None, int | None, str | None, bytes | None, bytes]
"""event_time, id, type, key, payload."""


def decode_single(body: bytes) -> Row:
    """The one record of a body with count 1, without Arrow: much quicker for tails made of single appends."""
    columns, nulls, _count, _zero, size = SINGLE.unpack_from(body)
    at = SINGLE.size + size
    payload = body[SINGLE.size : at]
    at += -at % 8
    event_time = id = type = key = None
    if columns & EVENT_TIME:
        event_time, at = _single_fixed(body, at, bool(nulls & EVENT_TIME))
    if columns & ID:
        id, at = _single_fixed(body, at, bool(nulls & ID))
    if columns & ONE_TYPE:
        type, at = read_one_type(body, at)
    elif columns & TYPE:
        text, at = _single_variable(body, at, bool(nulls & TYPE))
        type = None if text is None else text.decode()
    if columns & KEY:
        key, at = _single_variable(body, at, bool(nulls & KEY))
    return event_time, id, type, key, payload


def _single_fixed(body: bytes, at: int, has_validity: bool) -> tuple[int | None, int]:
    present = not has_validity or bool(body[at] & 1)
    at += 8 * has_validity
    return (int.from_bytes(body[at : at + 8], "little", signed=True) if present else None), at + 8


def _single_variable(body: bytes, at: int, has_validity: bool) -> tuple[bytes | None, int]:
    present = not has_validity or bool(body[at] & 1)
    at += 8 * has_validity
    size = int.from_bytes(body[at + 4 : at + 8], "little")
    data = body[at + 8 : at + 8 + size]
    at += 8 + size
    return (data if present else None), at + -at % 8


def read_one_type(body: Section, at: int) -> tuple[str, int]:
    """The type that all records of a body share, and where the next section starts."""
    size, _ = ONE_TYPE_HEAD.unpack_from(body, at)
    at += ONE_TYPE_HEAD.size
    return bytes(body[at : at + size]).decode(), at + size + -size % 8


def _read_validity(buffer: pa.Buffer, at: int, count: int, present: bool) -> tuple[pa.Buffer | None, int]:
    if not present:
        return None, at
    size = (count + 7) // 8
    return buffer.slice(at, size), at + size + -size % 8


def _read_fixed(buffer: pa.Buffer, at: int, count: int, nulls: bool, kind: pa.DataType) -> tuple[pa.Array, int]:
    validity, at = _read_validity(buffer, at, count, nulls)
    end = at + 8 * count
    return pa.Array.from_buffers(kind, count, [validity, buffer.slice(at, end - at)]), end


def _read_variable(buffer: pa.Buffer, at: int, count: int, nulls: bool, kind: pa.DataType) -> tuple[pa.Array, int]:
    validity, at = _read_validity(buffer, at, count, nulls)
    offsets_bytes = 4 * (count + 1)
    offsets = buffer.slice(at, offsets_bytes)
    size = last_offset(offsets, count)
    at += offsets_bytes + -offsets_bytes % 8
    data = buffer.slice(at, size)
    return pa.Array.from_buffers(kind, count, [validity, offsets, data]), at + size + -size % 8


def last_offset(offsets: pa.Buffer | bytes, count: int) -> int:
    """The end of the last value, from an offsets section."""
    return int(np.frombuffer(offsets, np.int32, 1, 4 * count)[0])
