"""The types of columns: what SQL, Java and Arrow call them, and the data objects that hold their values.

A value that SQL has no type for is an object: opaque bytes in a structure with one field, so that it is told from bytes
that are a value themselves.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from decimal import Decimal, localcontext
from struct import Struct
from typing import Any, Final, NamedTuple

import pyarrow as pa

from headrace.protocols.perper.errors import BinaryError, Refused
from headrace.protocols.perper.ignite.binary import NULL, NULL_OBJECT, encode_byte_array, encode_string, skip
from headrace.protocols.perper.ignite.reader import I32, I64
from headrace.protocols.perper.ignite.shapes import encode_node_id

DIGITS_MAX: Final = 38
"""Of a decimal in Arrow and DuckDB."""
FRACTION_DIGITS: Final = 15
"""Of a decimal whose column does not say how many it has."""
DECIMAL_BYTES_MAX: Final = 1_024
FIELD: Final = "object"

_TIMESTAMP = Struct("<qi")
_NUMBERS: Final = {
    1: Struct("<b"),
    2: Struct("<h"),
    3: Struct("<i"),
    4: Struct("<q"),
    5: Struct("<f"),
    6: Struct("<d"),
}


class Kind(NamedTuple):
    """A type of columns."""

    sql: str
    arrow: pa.DataType
    code: int
    """The type code of its data objects; 0 for any."""
    java: str


BOOLEAN: Final = Kind("BOOLEAN", pa.bool_(), 8, "java.lang.Boolean")
TINYINT: Final = Kind("TINYINT", pa.int8(), 1, "java.lang.Byte")
SMALLINT: Final = Kind("SMALLINT", pa.int16(), 2, "java.lang.Short")
INTEGER: Final = Kind("INTEGER", pa.int32(), 3, "java.lang.Integer")
BIGINT: Final = Kind("BIGINT", pa.int64(), 4, "java.lang.Long")
REAL: Final = Kind("REAL", pa.float32(), 5, "java.lang.Float")
DOUBLE: Final = Kind("DOUBLE", pa.float64(), 6, "java.lang.Double")
VARCHAR: Final = Kind("VARCHAR", pa.string(), 9, "java.lang.String")
UUID: Final = Kind("UUID", pa.uuid(), 10, "java.util.UUID")
DATE: Final = Kind("DATE", pa.date32(), 11, "java.sql.Date")
MOMENT: Final = Kind("TIMESTAMP", pa.timestamp("us"), 11, "java.util.Date")
TIMESTAMP: Final = Kind("TIMESTAMP", pa.timestamp("us"), 33, "java.sql.Timestamp")
TIME: Final = Kind("TIME", pa.time64("us"), 36, "java.sql.Time")
BYTES: Final = Kind("BLOB", pa.binary(), 12, "[B")
WHOLE: Final = Kind("HUGEINT", pa.decimal128(38, 0), 30, "java.math.BigInteger")
"""What DuckDB makes of a sum of whole numbers."""
OBJECT: Final = Kind(f'STRUCT("{FIELD}" BLOB)', pa.struct([(FIELD, pa.binary())]), 0, "java.lang.Object")


def decimal(precision: int = -1, scale: int = -1) -> Kind:
    """Decimals with as many digits as there is room for. What a client puts may have more than its column declares."""
    most = DIGITS_MAX - max(precision - max(scale, 0), 0) if 0 < precision <= DIGITS_MAX else DIGITS_MAX
    fraction = min(max(scale, FRACTION_DIGITS), max(most, scale, 0), DIGITS_MAX)
    return Kind(f"DECIMAL({DIGITS_MAX},{fraction})", pa.decimal128(DIGITS_MAX, fraction), 30, "java.math.BigDecimal")


_INTEGERS: Final = (TINYINT, SMALLINT, INTEGER, BIGINT)
_BY_JAVA: Final = {
    kind.java: kind
    for kind in (BOOLEAN, *_INTEGERS, REAL, DOUBLE, VARCHAR, UUID, DATE, MOMENT, TIMESTAMP, TIME, BYTES)
} | {
    "byte[]": BYTES, "java.lang.Character": VARCHAR, "boolean": BOOLEAN, "byte": TINYINT, "short": SMALLINT,
    "int": INTEGER, "long": BIGINT, "float": REAL, "double": DOUBLE, "char": VARCHAR, "java.time.LocalDate": DATE,
    "java.time.LocalTime": TIME, "java.time.LocalDateTime": TIMESTAMP,
}  # fmt: skip
_BY_SQL: Final[dict[str, Kind]] = {
    **dict.fromkeys(("BOOLEAN", "BIT", "BOOL"), BOOLEAN),
    "TINYINT": TINYINT,
    **dict.fromkeys(("SMALLINT", "INT2", "YEAR"), SMALLINT),
    **dict.fromkeys(("INT", "INTEGER", "MEDIUMINT", "INT4", "SIGNED"), INTEGER),
    **dict.fromkeys(("BIGINT", "INT8"), BIGINT),
    **dict.fromkeys(("REAL", "FLOAT4"), REAL),
    **dict.fromkeys(("DOUBLE", "FLOAT", "FLOAT8"), DOUBLE),
    **dict.fromkeys(
        ("VARCHAR", "CHAR", "CHARACTER", "LONGVARCHAR", "VARCHAR2", "NVARCHAR", "NCHAR", "NVARCHAR2", "TEXT"), VARCHAR
    ),
    "UUID": UUID,
    "DATE": DATE,
    "TIME": TIME,
    **dict.fromkeys(("TIMESTAMP", "DATETIME", "SMALLDATETIME"), TIMESTAMP),
    **dict.fromkeys(("BINARY", "VARBINARY", "LONGVARBINARY", "BYTEA", "RAW"), BYTES),
    **dict.fromkeys(("DECIMAL", "NUMERIC", "DEC", "NUMBER"), decimal()),
}


def by_java(name: str | None, precision: int = -1, scale: int = -1) -> Kind:
    """The type of a class; what SQL has no type for is an object."""
    if name == "java.math.BigDecimal":
        return decimal(precision, scale)
    return _BY_JAVA.get(name or "", OBJECT)


def by_sql(name: str, precision: int = -1, scale: int = -1) -> Kind | None:
    """The type that a word of CREATE TABLE names."""
    kind = _BY_SQL.get(name)
    return decimal(precision, scale) if kind is not None and kind.code == 30 else kind


def by_result(arrow: pa.DataType, sql: str) -> Kind:
    """The type of a column of a result; text for what thin clients have no type for."""
    for kind in (UUID, WHOLE):
        if sql == kind.sql:
            return kind
    if arrow == OBJECT.arrow:
        return OBJECT
    if pa.types.is_decimal(arrow):
        return decimal(scale=arrow.scale)._replace(arrow=arrow)
    if pa.types.is_unsigned_integer(arrow):
        return BIGINT
    if pa.types.is_timestamp(arrow):
        return TIMESTAMP
    fitting = (kind for kind in (BOOLEAN, *_INTEGERS, REAL, DOUBLE, DATE, TIME, BYTES) if kind.arrow == arrow)
    return next(fitting, VARCHAR)


# ------------------------------------------------------------------------------------------------------- data objects


def _integer(kind: Kind) -> Callable[[Any], bytes]:
    pack, code = _NUMBERS[kind.code].pack, bytes((kind.code,))
    return lambda number: code + pack(number)


def _number_reader(form: Struct) -> Callable[[bytes, int, int], Any]:
    return lambda data, at, end: form.unpack_from(data, at + 1)[0]


def _decimal_object(value: Decimal) -> bytes:
    """Scale, and the magnitude with the sign in its first bit. Zeros at the end of the fraction are left out."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)  # neither infinite nor no number
    magnitude = int("".join(map(str, digits)))
    while exponent < 0 and magnitude % 10 == 0:
        magnitude, exponent = magnitude // 10, exponent + 1
    if exponent > 0:
        magnitude, exponent = magnitude * 10**exponent, 0
    data = bytearray(magnitude.to_bytes(magnitude.bit_length() // 8 + 1, "big"))
    data[0] |= 0x80 if sign and magnitude else 0
    return b"\x1e" + I32.pack(-exponent) + I32.pack(len(data)) + bytes(data)


def _read_decimal(data: bytes, position: int, end: int) -> Decimal:
    scale, size = I32.unpack_from(data, position + 1)[0], I32.unpack_from(data, position + 5)[0]
    if size > DECIMAL_BYTES_MAX:
        raise BinaryError(f"a decimal of {size} bytes is too long for SQL")
    magnitude = bytearray(data[position + 9 : position + 9 + size])
    if not magnitude:
        return Decimal(0)
    is_negative = magnitude[0] & 0x80
    magnitude[0] &= 0x7F
    value = Decimal((1 if is_negative else 0, tuple(map(int, str(int.from_bytes(magnitude, "big")))), -scale))
    return value


_WRITERS: Final[dict[int, Callable[[Any], bytes]]] = {
    **{kind.code: _integer(kind) for kind in (*_INTEGERS, REAL, DOUBLE)},
    8: lambda value: b"\x08\1" if value else b"\x08\0",
    9: lambda value: encode_string(str(value)),
    10: lambda value: encode_node_id(uuid.UUID(value) if isinstance(value, str) else value),
    11: lambda value: b"\x0b" + I64.pack(value // 1000),
    12: encode_byte_array,
    30: _decimal_object,
    33: lambda value: b"\x21" + _TIMESTAMP.pack(value // 1000, value % 1000 * 1000),
    36: lambda value: b"\x24" + I64.pack(value // 1000),
    0: lambda value: value[FIELD],
}

DAY_US: Final = 86_400_000_000
_READERS: Final[dict[int, Callable[[bytes, int, int], Any]]] = {
    **{code: _number_reader(form) for code, form in _NUMBERS.items()},
    7: lambda data, at, end: data[at + 1 : at + 3].decode("utf-16-le", "replace"),
    8: lambda data, at, end: data[at + 1] != 0,
    9: lambda data, at, end: data[at + 5 : end].decode(errors="replace"),
    10: lambda data, at, end: uuid.UUID(bytes=data[at + 8 : at : -1] + data[at + 16 : at + 8 : -1]),
    11: lambda data, at, end: I64.unpack_from(data, at + 1)[0] * 1000,
    12: lambda data, at, end: data[at + 5 : end],
    30: _read_decimal,
    33: lambda data, at, end: I64.unpack_from(data, at + 1)[0] * 1000 + I32.unpack_from(data, at + 9)[0] // 1000,
    36: lambda data, at, end: I64.unpack_from(data, at + 1)[0] * 1000,
}
"""Times are microseconds."""


def write(kind: Kind, value: Any) -> bytes:
    """The data object of a value: as Arrow has it, times as numbers."""
    if value is None:
        return NULL_OBJECT
    if kind is DATE:
        return b"\x0b" + I64.pack(value * (DAY_US // 1000))
    if kind is WHOLE and -(2**63) <= value < 2**63:
        return _WRITERS[BIGINT.code](int(value))
    return _WRITERS[kind.code](value)


def read(kind: Kind, data: bytes, position: int, end: int) -> Any:
    """What Arrow takes as the value of the data object at `position`, in a column of a type."""
    code = data[position]
    if code == NULL:
        return None
    after = skip(data, position, end)
    if kind.code == 0:
        return {FIELD: data[position:after]}
    fitted = _fitted(kind, code, data, position, after)
    if fitted is None:
        raise BinaryError(f"a data object of type {code} is not {kind.sql} ({kind.java})")
    return fitted


def scalar(data: bytes, position: int, end: int) -> Any:
    """The value of a data object that holds no others, whatever its type."""
    reader = _READERS.get(data[position])
    if reader is None:
        raise BinaryError(f"a data object of type {data[position]} is no single value")
    return reader(data, position, end)


def object_as(kind: Kind, data: bytes) -> bytes | None:
    """A data object as one of a type; None if that takes more than to write it down in another way."""
    if data[0] == NULL or kind.code == 0:
        return data
    value = _fitted(kind, data[0], data, 0, len(data))
    return None if value is None else write(kind, value)


def _fitted(kind: Kind, code: int, data: bytes, position: int, end: int) -> Any:
    """The value of a data object as one of a type of the same family; None for one of another."""
    reader = _READERS.get(code)
    if reader is None:
        return None
    value = reader(data, position, end)
    wanted = kind.code
    if wanted in (1, 2, 3, 4):
        return value if code in (1, 2, 3, 4) and _is_within(wanted, value) else None
    if wanted in (5, 6):
        return float(value) if code in (1, 2, 3, 4, 5, 6) else None
    if wanted == 30:
        return _scaled(kind, value) if code in (1, 2, 3, 4, 30) else None
    if wanted in (11, 33):
        if code not in (11, 33):
            return None
        return value // DAY_US if kind is DATE else value
    if wanted == 9:
        return value if code in (7, 9) else None
    return value if wanted == code else None


def _is_within(code: int, value: int) -> bool:
    half = 1 << (8 * _NUMBERS[code].size - 1)
    return -half <= value < half


def _scaled(kind: Kind, value: Any) -> Decimal | None:
    with localcontext() as context:
        context.prec = 2 * DIGITS_MAX
        scaled = Decimal(value).quantize(Decimal(1).scaleb(-kind.arrow.scale)) if _fits(kind, Decimal(value)) else None
    return scaled


def _fits(kind: Kind, value: Decimal) -> bool:
    """Whether none of its digits would be lost."""
    exponent = value.normalize().as_tuple().exponent
    return (
        isinstance(exponent, int) and -exponent <= kind.arrow.scale and value.adjusted() < DIGITS_MAX - kind.arrow.scale
    )


# --------------------------------------------------------------------------------------------------------- parameters


class Parameter(NamedTuple):
    """An argument of a statement: what DuckDB is given, and the type it is given as."""

    value: Any
    sql: str | None


_PARAMETERS: Final = {kind.code: kind.sql for kind in (*_INTEGERS, REAL, DOUBLE, BOOLEAN, BYTES)}


def parameter(data: bytes) -> Parameter:
    """What an argument is to DuckDB."""
    code = data[0]
    if code == NULL:
        return Parameter(None, None)
    reader = _READERS.get(code)
    if reader is None:
        return Parameter({FIELD: data}, OBJECT.sql)
    value = reader(data, 0, len(data))
    if code in _PARAMETERS:
        return Parameter(value, _PARAMETERS[code])
    if code in (7, 9):
        return Parameter(value, None)
    if code == 10:
        return Parameter(str(value), UUID.sql)
    if code == 30:
        scale = max(0, -value.as_tuple().exponent)
        if scale > DIGITS_MAX or value.adjusted() + scale >= DIGITS_MAX:
            raise Refused(f"a decimal with more than {DIGITS_MAX} digits is not supported in queries")
        return Parameter(f"{value:f}", f"DECIMAL({DIGITS_MAX},{scale})")
    text = "TIME" if code == 36 else "TIMESTAMP"
    return Parameter(_moment(value, code == 36), text)


def _moment(value_us: int, is_time: bool) -> str:
    kind = TIME if is_time else TIMESTAMP
    try:
        value = pa.scalar(value_us, pa.int64()).cast(kind.arrow).as_py()
        return f"{value:%H:%M:%S.%f}" if is_time else f"{value.isoformat(' ', 'microseconds')}"
    except (pa.ArrowException, OverflowError, ValueError):
        raise Refused("a time before the year 1 or after 9999 is not supported in queries") from None
