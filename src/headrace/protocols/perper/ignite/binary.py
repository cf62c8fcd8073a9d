"""Ignite data objects: how long they are, how they are wrapped, and how one field of a complex object is read.

Every object starts with a type code; all integers are little-endian::

    code                 bytes after the code
    1..8                 byte short int long float double char bool: 1 2 4 8 4 8 2 1
    9                    string: int32 n, n bytes UTF-8
    10, 11, 36, 33       UUID 16, date 8, time 8, timestamp 12
    12..19               arrays of primitives: int32 n, n * size
    20 21 22 31 34 37    arrays of string, UUID, date, decimal, timestamp, time: int32 n, n objects
    23                   object array: int32 element type [0: string], int32 n, n objects
    24, 25               collection, map: int32 n, byte kind, n (or 2n) objects
    27                   wrapped: int32 n, n bytes, int32 offset of the root inside
    28, 38               enum: int32 type [0: string], int32 ordinal
    29                   enum array: int32 type [0: string], int32 n, n objects
    30                   decimal: int32 scale, int32 n, n bytes
    32                   class: int32 type [0: string]
    101, 102             null; handle: int32
    103                  complex object: its whole length is the int32 at offset 12
    254                  optimized marshaller: int32 n, n bytes

    complex object: 67 | 01 | u16 flags | i32 type id | i32 hash | i32 length | i32 schema id | i32 footer offset |
                    fields | raw | footer

Values stay opaque: a stored value is exactly the bytes that came, except that an object which came in the envelope 27
is stored without it and its neighbours there, as Ignite does (so that equal objects are equal bytes), and that a
complex object leaves in the envelope, because clients expect it. Handles are never followed, so no graph can make the
reader run in circles; counts are compared with the bytes that are left before anything is read; nesting and the
elements of a request have limits. Every walk over a value looks at each of its elements once.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as struct_error
from typing import Final

from headrace.protocols.perper.errors import BinaryError
from headrace.slicing import cut

LONG: Final = 4
BOOL: Final = 8
STRING: Final = 9
OBJECT_ARRAY: Final = 23
COLLECTION: Final = 24
MAP: Final = 25
WRAPPED: Final = 27
ENUM_ARRAY: Final = 29
DECIMAL: Final = 30
NULL: Final = 101
HANDLE: Final = 102
COMPLEX: Final = 103
OPTIMIZED: Final = 254

NULL_OBJECT: Final = b"\x65"
COMPLEX_HEADER_BYTES: Final = 24

# The depth at which a nest of arrays, collections and maps is refused. Real clients stay below ten.
DEFAULT_NESTING_MAX: Final = 64  # perper.nesting_max
# Each element is looked at on the event loop, while everybody else waits: so many take a few tenths of a second.
DEFAULT_ELEMENTS_MAX: Final = 250_000  # perper.elements_max

FLAG_HAS_SCHEMA: Final = 2
FLAG_HAS_RAW: Final = 4
FLAG_OFFSET_ONE_BYTE: Final = 8
FLAG_OFFSET_TWO_BYTES: Final = 16
FLAG_COMPACT_FOOTER: Final = 32

_I32 = Struct("<i")
_I64 = Struct("<q")
_COMPLEX_HEADER = Struct("<BBHiiiii")
assert _COMPLEX_HEADER.size == COMPLEX_HEADER_BYTES

_FIXED_SIZE: Final = {1: 1, 2: 2, 3: 4, 4: 8, 5: 4, 6: 8, 7: 2, 8: 1, 10: 16, 11: 8, 36: 8, 33: 12, NULL: 0, HANDLE: 4}
_PRIMITIVE_ARRAY_ITEM: Final = {9: 1, 12: 1, 13: 2, 14: 4, 15: 8, 16: 4, 17: 8, 18: 2, 19: 1, OPTIMIZED: 1}
_OBJECT_ARRAYS: Final = frozenset((20, 21, 22, 31, 34, 37))
_REWRAPPED: Final = frozenset((OBJECT_ARRAY, COLLECTION, MAP))
_CONTAINERS: Final = _OBJECT_ARRAYS | _REWRAPPED | {ENUM_ARRAY}


class Limits:
    """How deep the objects of one request may be nested, and how many elements they may have together."""

    __slots__ = ("_elements_left", "elements_max", "nesting_max")

    def __init__(self, nesting_max: int = DEFAULT_NESTING_MAX, elements_max: int = DEFAULT_ELEMENTS_MAX) -> None:
        self.nesting_max = nesting_max
        self.elements_max = elements_max
        self.begin()

    def begin(self) -> None:
        """A new request."""
        self._elements_left = self.elements_max

    def take(self, count: int) -> None:
        """So many elements are about to be read."""
        self._elements_left -= count
        if self._elements_left < 0:
            raise BinaryError(
                f"more than {self.elements_max} elements in one request; the limit is set by 'perper.elements_max'"
            )


def _signed(value: int) -> int:
    """32 bits as a signed number."""
    return value - 0x100000000 if value >= 0x80000000 else value


def java_hash(text: str) -> int:
    """Java's String.hashCode over UTF-16 units, as a signed 32-bit number: cache ids, type ids, field ids."""
    units = text.encode("utf-16-le", "surrogatepass")
    value = 0
    for position in range(0, len(units), 2):
        value = (31 * value + units[position] + (units[position + 1] << 8)) & 0xFFFFFFFF
    return _signed(value)


def code_point_hash(text: str) -> int:
    """The same hash over code points, as pyignite computes it; differs from Java's only beyond the BMP."""
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return _signed(value)


def type_id(name: str) -> int:
    """The number of a binary type."""
    return java_hash(name.lower())


field_id = type_id
"""The number of a field of a binary type."""


def schema_id(field_ids: list[int] | tuple[int, ...]) -> int:
    """The number of a schema: FNV-1 style over the bytes of its field ids."""
    value = 0x811C9DC5
    for number in field_ids:
        for byte in _I32.pack(number):
            value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return _signed(value)


def object_hash(body: bytes) -> int:
    """The hash in a complex object's header: over the bytes between header and footer, taken as signed."""
    value = 1
    for byte in body:
        value = (31 * value + (byte - 256 if byte > 127 else byte)) & 0xFFFFFFFF
    return _signed(value)


def _read_i32(data: bytes, position: int, end: int) -> int:
    if position + 4 > end:
        raise BinaryError(f"data object ends early: an int32 at {position} passes the end at {end}")
    number: int = _I32.unpack_from(data, position)[0]
    return number


def _read_count(data: bytes, position: int, end: int, item_bytes: int) -> int:
    """A count whose items, of at least `item_bytes` each, must fit before `end`: checked before any item is read."""
    count = _read_i32(data, position, end)
    if count < 0 or count * item_bytes > end - position - 4:
        raise BinaryError(
            f"count {count} at {position} does not fit in the {max(end - position - 4, 0)} bytes that are left"
        )
    return count


def _skip_type_name(data: bytes, position: int, end: int) -> int:
    """An int32 type id, followed by a class name when it is 0."""
    if _read_i32(data, position, end) != 0:
        return position + 4
    return decode_string(data, position + 4, end)[1]


def skip(data: bytes, position: int, end: int, limits: Limits | None = None) -> int:
    """The position after the object that starts at `position`; nothing at or after `end` is read."""
    if position >= end:
        raise BinaryError(f"data object expected at {position}, where the data ends")
    code = data[position]
    size = _FIXED_SIZE.get(code)
    if size is not None:
        after = position + 1 + size
    elif code in _CONTAINERS:
        after = _walk(data, position, end, limits or Limits())
    else:
        after = _leaf_end(data, position, end, code)
    if after > end:
        raise BinaryError(f"data object of type {code} at {position} passes the end at {end}")
    return after


def _leaf_end(data: bytes, position: int, end: int, code: int) -> int:
    """The end of an object that holds no others and whose size lies in its data."""
    body = position + 1
    item_bytes = _PRIMITIVE_ARRAY_ITEM.get(code)
    if item_bytes is not None:
        return body + 4 + _read_count(data, body, end, item_bytes) * item_bytes
    if code == COMPLEX:
        return position + _complex_length(data, position, end)
    if code == WRAPPED:
        return body + 4 + _read_count(data, body, end, 1) + 4
    if code == DECIMAL:
        return body + 8 + _read_count(data, body + 4, end, 1)
    if code in (28, 38):
        return _skip_type_name(data, body, end) + 4
    if code == 32:
        return _skip_type_name(data, body, end)
    raise BinaryError(f"unknown data object type {code} at {position}")


def _walk(
    data: bytes,
    position: int,
    end: int,
    limits: Limits,
    opened: frozenset[int] = _CONTAINERS,
    leaf_end: Callable[[bytes, int, int, int], int] = _leaf_end,
) -> int:
    """The end of an object that holds others: those of the types `opened`. `leaf_end` finds that of any other object
    that has no fixed size. A loop, since calls at a depth that the peer chooses can cost a hundred times as much
    (CPython gets and gives back memory at some depths, for each call)."""
    left = [1]  # objects that are still to come, on each level
    while left:
        if left[-1] == 0:
            left.pop()
            continue
        left[-1] -= 1
        if position >= end:
            raise BinaryError(f"data object expected at {position}, where the data ends")
        code = data[position]
        size = _FIXED_SIZE.get(code)
        if size is not None:
            position += 1 + size
        elif code in opened:
            if len(left) > limits.nesting_max:
                raise BinaryError(
                    f"data object is nested deeper than {limits.nesting_max} at byte {position}; "
                    "the limit is set by 'perper.nesting_max'"
                )
            position, count = elements(data, position + 1, end, code)
            limits.take(count)
            left.append(count)
        else:
            position = leaf_end(data, position, end, code)
    return position


def elements(data: bytes, body: int, end: int, code: int) -> tuple[int, int]:
    """Where the first element of a container stands, and how many there are; `body` is after its code."""
    if code in (COLLECTION, MAP):
        per_entry = 2 if code == MAP else 1
        return body + 5, _read_count(data, body, end, per_entry) * per_entry
    if code in (OBJECT_ARRAY, ENUM_ARRAY):
        body = _skip_type_name(data, body, end)
    return body + 4, _read_count(data, body, end, 1)


def _complex_length(data: bytes, position: int, end: int) -> int:
    if position + COMPLEX_HEADER_BYTES > end:
        raise BinaryError(f"complex object at {position} has no room for its header of {COMPLEX_HEADER_BYTES} bytes")
    length: int = _I32.unpack_from(data, position + 12)[0]
    if length < COMPLEX_HEADER_BYTES or length > end - position:
        raise BinaryError(f"complex object at {position} says it is {length} bytes long; {end - position} are left")
    footer: int = _I32.unpack_from(data, position + 20)[0]
    if footer < COMPLEX_HEADER_BYTES or footer > length:
        raise BinaryError(f"complex object at {position} has its footer at {footer}, outside of its {length} bytes")
    return length


def read_object(data: bytes, position: int, end: int, limits: Limits | None = None) -> tuple[bytes, int]:
    """The object at `position` in the form in which it is stored (without envelopes), and the position after it."""
    after = skip(data, position, end, limits)
    code = data[position]  # `skip` has seen that it is there
    value = cut(data, position, after)
    return unwrap(value) if code == WRAPPED or code in _REWRAPPED else value, after


def unwrap(value: bytes) -> bytes:
    """Take the envelope off an object, or off the elements of an array, collection or map. It was measured before."""
    if value[0] == WRAPPED:
        return _without_envelope(value)
    return _edited(value, WRAPPED, _without_envelope) if value[0] in _REWRAPPED else value


def wrap(value: bytes) -> bytes:
    """Put a complex object into the envelope clients expect, also inside of a top-level array, collection or map."""
    if value[0] == COMPLEX:
        return _in_envelope(value)
    return _edited(value, COMPLEX, _in_envelope) if value[0] in _REWRAPPED else value


def _in_envelope(value: bytes) -> bytes:
    return b"".join((b"\x1b", _I32.pack(len(value)), value, b"\0\0\0\0"))


def _without_envelope(value: bytes) -> bytes:
    """The root of a wrapped object, which need not stand first; an envelope around anything else stays."""
    end = 5 + _I32.unpack_from(value, 1)[0]
    offset: int = _I32.unpack_from(value, end)[0]
    root = 5 + offset
    if offset < 0 or root > end:
        raise BinaryError(f"wrapped object has its root at {offset}, outside of its {end - 5} bytes")
    if root == end or value[root] != COMPLEX:
        return value
    return value[root : root + _complex_length(value, root, end)]


def _edited(value: bytes, code: int, change: Callable[[bytes], bytes]) -> bytes:
    """A container that was measured before, with `change` applied to its elements of type `code`, however deep."""
    if code not in value:
        return value
    parts: list[bytes] = []
    copied = 0
    end = len(value)
    limits = Limits(end, end)  # it passed those of its time, which may have been others

    def changed_end(value: bytes, position: int, end: int, found: int) -> int:
        nonlocal copied
        after = skip(value, position, end, limits)
        if found == code:
            parts.extend((value[copied:position], change(value[position:after])))
            copied = after
        return after

    _walk(value, 0, end, limits, _REWRAPPED, changed_end)
    parts.append(value[copied:])
    return b"".join(parts)


class ComplexHeader:
    """The fixed part of a complex object."""

    __slots__ = ("flags", "footer", "hash", "length", "schema_id", "type_id")

    def __init__(self, value: bytes) -> None:
        try:
            code, version, self.flags, self.type_id, self.hash, self.length, self.schema_id, self.footer = (
                _COMPLEX_HEADER.unpack_from(value)
            )
        except struct_error:
            raise BinaryError(f"complex object of {len(value)} bytes has no room for its header") from None
        if code != COMPLEX or version != 1:
            raise BinaryError(f"complex object expected, found type {code} version {version}")
        if not COMPLEX_HEADER_BYTES <= self.footer <= self.length <= len(value):
            raise BinaryError(f"complex object: footer {self.footer}, length {self.length}, {len(value)} bytes present")

    @property
    def offset_bytes(self) -> int:
        """The width of one offset in the footer."""
        if self.flags & FLAG_OFFSET_ONE_BYTE:
            return 1
        return 2 if self.flags & FLAG_OFFSET_TWO_BYTES else 4


def field_positions(
    value: bytes, header: ComplexHeader, schema_fields: list[int] | tuple[int, ...] | None
) -> dict[int, int]:
    """Where each field of a complex object starts, by field id.

    `schema_fields` are the field ids of the object's schema in order; needed only when the footer is compact.
    """
    if not header.flags & FLAG_HAS_SCHEMA:
        return {}
    width = header.offset_bytes
    compact = bool(header.flags & FLAG_COMPACT_FOOTER)
    footer_end = header.length - 4 if header.flags & FLAG_HAS_RAW else header.length
    entry_bytes = width if compact else width + 4
    if footer_end < header.footer or (footer_end - header.footer) % entry_bytes:
        raise BinaryError(f"complex object of type {header.type_id} has a footer of {footer_end - header.footer} bytes")
    count = (footer_end - header.footer) // entry_bytes
    if compact and (schema_fields is None or len(schema_fields) != count):
        raise BinaryError(
            f"complex object of type {header.type_id}: schema {header.schema_id} with {count} fields is not registered"
        )
    positions: dict[int, int] = {}
    for number in range(count):
        entry = header.footer + number * entry_bytes
        if compact:
            assert schema_fields is not None
            name = schema_fields[number]
        else:
            name = _I32.unpack_from(value, entry)[0]
            entry += 4
        start = int.from_bytes(value[entry : entry + width], "little")
        if not COMPLEX_HEADER_BYTES <= start < header.footer:
            raise BinaryError(f"complex object of type {header.type_id} has a field at {start}, outside of its data")
        positions[name] = start
    return positions


def encode_string(text: str | None) -> bytes:
    """A string object, or null."""
    if text is None:
        return NULL_OBJECT
    data = text.encode()
    return b"\x09" + _I32.pack(len(data)) + data


def decode_string(value: bytes, position: int, end: int) -> tuple[str | None, int]:
    """A string object or null at `position`, and the position after it."""
    after = skip(value, position, end)
    if value[position] == NULL:
        return None, after
    if value[position] != STRING:
        raise BinaryError(f"string expected at {position}, found type {value[position]}")
    try:
        return value[position + 5 : after].decode(), after
    except UnicodeDecodeError:
        raise BinaryError(f"string at {position} is not UTF-8") from None


def encode_long(number: int) -> bytes:
    """A long object."""
    return b"\x04" + _I64.pack(number)


def encode_byte_array(data: bytes) -> bytes:
    """A byte array object."""
    return b"\x0c" + _I32.pack(len(data)) + data


def decode_long(value: bytes, position: int, end: int) -> int:
    """A long object at `position`."""
    if position + 9 > end or value[position] != LONG:
        raise BinaryError(f"long expected at {position}")
    number: int = _I64.unpack_from(value, position + 1)[0]
    return number


def decode_bool(value: bytes, position: int, end: int) -> bool:
    """A bool object at `position`."""
    if position + 2 > end or value[position] != BOOL:
        raise BinaryError(f"bool expected at {position}")
    return value[position + 1] != 0


def encode_complex(type_number: int, fields: list[tuple[int, bytes]]) -> bytes:
    """A complex object with a compact footer, as pyignite writes it: (field id, object) in schema order."""
    offsets: list[int] = []
    position = COMPLEX_HEADER_BYTES
    for _, data in fields:
        offsets.append(position)
        position += len(data)
    width, flag = (1, 8) if position < 0x100 else (2, 16) if position < 0x10000 else (4, 0)
    body = b"".join(data for _, data in fields)
    footer = b"".join(offset.to_bytes(width, "little") for offset in offsets)
    schema = schema_id([name for name, _ in fields]) if fields else 0
    flags = 1 | (FLAG_HAS_SCHEMA | FLAG_COMPACT_FOOTER | flag if fields else 0)
    length = position + len(footer)
    return (
        _COMPLEX_HEADER.pack(COMPLEX, 1, flags, type_number, object_hash(body), length, schema, position)
        + body
        + footer
    )
