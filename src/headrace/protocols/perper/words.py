"""Ignite data objects for people: what the console shows of a cache's keys and values instead of their bytes.

A text is itself, everything else is JSON; a complex object has the names of its type and its fields, if a client has
registered them. What is too large, damaged or Java's own (classes, its serialisation) has no words: its bytes are
shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from struct import error as struct_error
from struct import iter_unpack
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import HeadraceError
from headrace.protocols.descriptor import Words
from headrace.protocols.perper.errors import BinaryError
from headrace.protocols.perper.ignite import binary
from headrace.protocols.perper.ignite.binary import ComplexHeader, Limits, field_id, field_positions, skip
from headrace.protocols.perper.ignite.reader import I32
from headrace.protocols.perper.ignite.types import BinaryType, Field
from headrace.protocols.perper.records import (
    BUILT_IN_SCHEMAS,
    EXECUTION_FIELDS,
    EXECUTION_TYPE,
    LISTENER_FIELDS,
    LISTENER_TYPE,
)
from headrace.protocols.perper.registry import TYPES_TABLE, read_stored_type
from headrace.protocols.perper.sql.kinds import scalar

if TYPE_CHECKING:
    from headrace.hub import Hub

BYTES_MAX: Final = 65_536
"""A longer object is not read."""
ELEMENTS_MAX: Final = 20_000
"""Of all objects that are read at once: the hub does nothing else meanwhile."""
NESTING_MAX: Final = 16
TEXT_MAX: Final = 4_000
"""Characters; the rest is left out."""

KINDS: Final = (
    *("byte", "short", "int", "long", "float", "double", "char", "bool", "string", "UUID", "date", "bytes"),
    *("shorts", "ints", "longs", "floats", "doubles", "chars", "bools", "strings", "UUIDs", "dates", "array", "list"),
    *(
        "map",
        "",
        "",
        "enum",
        "enums",
        "decimal",
        "decimals",
        "",
        "timestamp",
        "timestamps",
        "",
        "time",
        "times",
        "enum",
    ),
)
"""What the type codes from 1 on are called."""
BUILT_IN: Final = {
    number: BinaryType(
        number,
        name,
        None,
        [Field(field, 0, field_id(field)) for field in fields],
        False,
        [],
        {schema: ids for (kind, schema), ids in BUILT_IN_SCHEMAS.items() if kind == number},
    )
    for number, name, fields in (
        (EXECUTION_TYPE, "ExecutionData", EXECUTION_FIELDS),
        (LISTENER_TYPE, "StreamListener", LISTENER_FIELDS),
    )
}
"""What every agent writes, even if nobody has registered it."""
_ARRAYS: Final = {13: "<h", 14: "<i", 15: "<q", 16: "<f", 17: "<d", 19: "<?"}
_EPOCH: Final = datetime.fromtimestamp(0, UTC).replace(tzinfo=None)

TypeOf = Callable[[int], BinaryType | None]


def words(hub: Hub, objects: list[bytes]) -> list[Words | None]:
    """Of each of them; None for what is not one whole data object, or cannot be shown."""
    limits = Limits(NESTING_MAX, ELEMENTS_MAX)
    known: dict[int, BinaryType | None] = {}

    def type_of(number: int) -> BinaryType | None:
        if number not in known:
            key = I32.pack(number)
            try:
                stored = hub.get(TYPES_TABLE, key) if hub.has_stream(TYPES_TABLE) else None
                known[number] = BUILT_IN.get(number) if stored is None else read_stored_type(key, stored)
            except HeadraceError:  # damaged: the hub says so elsewhere
                known[number] = None
        return known[number]

    return [read(data, type_of, limits) for data in objects]


def read(data: bytes, type_of: TypeOf, limits: Limits | None = None) -> Words | None:
    """One object."""
    limits = limits or Limits(NESTING_MAX, ELEMENTS_MAX)
    if not data or len(data) > BYTES_MAX:
        return None
    try:
        value, after = _Reading(data, type_of, limits).value(0, len(data), 0)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        kind = _kind(data, type_of)
    except (BinaryError, struct_error, ValueError, OverflowError):
        return None
    if after != len(data):
        return None
    return Words("ignite", kind, text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…")


def _kind(data: bytes, type_of: TypeOf) -> str:
    if data[0] == binary.COMPLEX:
        kind = type_of(ComplexHeader(data).type_id)
        return "object" if kind is None or kind.name is None else kind.name
    return (KINDS[data[0] - 1] if data[0] <= len(KINDS) else "") or "object"


class _Reading:
    """The objects of one value."""

    def __init__(self, data: bytes, type_of: TypeOf, limits: Limits) -> None:
        self._data = data
        self._type_of = type_of
        self._limits = limits

    def value(self, position: int, end: int, depth: int) -> tuple[Any, int]:
        """The value of the object at `position`, and the position after it."""
        data = self._data
        self._limits.take(1)
        if depth > NESTING_MAX:
            raise BinaryError(f"nested deeper than {NESTING_MAX} at {position}")
        after = skip(data, position, end, self._limits)
        code = data[position]
        if code == binary.NULL:
            return None, after
        if code in _ARRAYS:
            self._limits.take(I32.unpack_from(data, position + 1)[0])
            return [each for (each,) in iter_unpack(_ARRAYS[code], data[position + 5 : after])], after
        if code == 18:
            return data[position + 5 : after].decode("utf-16-le", "replace"), after
        if code in (binary.COLLECTION, binary.MAP, binary.OBJECT_ARRAY, binary.ENUM_ARRAY, 20, 21, 22, 31, 34, 37):
            return self._many(position, end, code, depth), after
        if code in (28, 38):
            return self._enum(position, after), after
        if code == binary.WRAPPED:
            inner = position + 5 + I32.unpack_from(data, after - 4)[0]
            if not position + 5 <= inner < after - 4:
                raise BinaryError(f"wrapped object at {position} has its root outside")
            return self.value(inner, after - 4, depth + 1)[0], after
        if code == binary.COMPLEX:
            return self._complex(data[position:after], position, depth), after
        if code == binary.HANDLE:
            return "(an object that is named above)", after
        return _plain(code, scalar(data, position, after)), after

    def _many(self, position: int, end: int, code: int, depth: int) -> Any:
        at, count = binary.elements(self._data, position + 1, end, code)
        found = []
        for _ in range(count):
            each, at = self.value(at, end, depth + 1)
            found.append(each)
        if code != binary.MAP:
            return found
        names = [key if isinstance(key, str) else json.dumps(key, default=str) for key in found[::2]]
        return dict(zip(names, found[1::2], strict=True))

    def _enum(self, position: int, after: int) -> Any:
        ordinal = I32.unpack_from(self._data, after - 4)[0]
        kind = self._type_of(I32.unpack_from(self._data, position + 1)[0])
        names = {number: name for name, number in kind.enum_values} if kind is not None else {}
        return names.get(ordinal) or ordinal

    def _complex(self, value: bytes, position: int, depth: int) -> dict[str, Any]:
        header = ComplexHeader(value)
        kind = self._type_of(header.type_id)
        names = {field.field_id: field.name for field in kind.fields} if kind is not None else {}
        schema = None if kind is None else kind.schemas.get(header.schema_id)
        found: dict[str, Any] = {}
        for number, start in field_positions(value, header, schema).items():
            each, _ = self.value(position + start, position + header.footer, depth + 1)
            found[names.get(number, f"field {number}")] = each
        return found


def _plain(code: int, value: Any) -> Any:
    """As JSON has it, or as people write it."""
    if code == 12:
        text = value.decode(errors="replace")
        return text if text.isprintable() else f"hex {value.hex()}"
    if code in (11, 33):
        return (_EPOCH + timedelta(microseconds=value)).isoformat(" ")
    if code == 36:
        return (_EPOCH + timedelta(microseconds=value)).time().isoformat()
    return str(value) if code in (10, 30) else value
