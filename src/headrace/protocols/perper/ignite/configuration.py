"""Cache configuration: the coded properties of operations 1053 and 1054, and the full form that 1055 answers.

A request carries `int32 length, int16 count, count * (int16 code, value)`. Its length cannot be trusted (pyignite
sends -18), so the properties are read one by one. The answer carries `int32 length` and all properties in a fixed
order without codes.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headrace.protocols.perper.errors import BinaryError
from headrace.protocols.perper.ignite.binary import encode_string
from headrace.protocols.perper.ignite.reader import I16, I32, I64, Reader

NAME: Final = 0
QUERY_ENTITIES: Final = 200
KEY_CONFIGURATION: Final = 401
EXPIRY_POLICY: Final = 407

# Ignite knows 31 properties; a few more leave room for newer clients.
PROPERTIES_MAX: Final = 64

_STRINGS: Final = frozenset((0, 100, 203, 400))
_BOOLS: Final = frozenset((5, 6, 101, 205, 405, 406))
_LONGS: Final = frozenset((301, 302, 304, 306, 402))
_INTS: Final = frozenset((1, 2, 3, 4, 201, 202, 204, 206, 300, 303, 305, 403, 404))


class QueryField(msgspec.Struct, array_like=True):
    """One field of a query entity."""

    name: str | None
    type_name: str | None
    is_key: bool
    not_null: bool
    default: bytes
    precision: int
    scale: int


class QueryIndex(msgspec.Struct, array_like=True):
    """One index of a query entity."""

    name: str | None
    kind: int
    inline_size: int
    fields: list[tuple[str | None, bool]]


class QueryEntity(msgspec.Struct, array_like=True):
    """How a cache wants to be queried. Kept and given back; nothing is indexed by it."""

    names: tuple[str | None, ...]  # key type, value type, table, key field, value field
    fields: list[QueryField]
    aliases: list[tuple[str | None, str | None]]
    indexes: list[QueryIndex]


class Configuration(msgspec.Struct):
    """The properties a cache was created with, by code, in the order they came. Absent ones have the defaults below."""

    properties: dict[int, Any]

    @property
    def name(self) -> str | None:
        """The cache's name."""
        name: str | None = self.properties.get(NAME)
        return name

    @property
    def expiry(self) -> tuple[int, int, int] | None:
        """Milliseconds to live after creation, update and access."""
        expiry: tuple[int, int, int] | None = self.properties.get(EXPIRY_POLICY)
        return expiry


def read_configuration(reader: Reader) -> Configuration:
    """The properties in a request."""
    reader.int()  # the length, which published clients get wrong
    count = reader.short()
    if count < 0 or count > PROPERTIES_MAX:
        raise BinaryError(f"cache configuration has {count} properties")
    properties: dict[int, Any] = {}
    for _ in range(count):
        code = reader.short()
        properties[code] = _read_property(reader, code)
    return Configuration(properties)


def _read_property(reader: Reader, code: int) -> Any:
    if code in _STRINGS:
        return reader.string()
    if code in _BOOLS:
        return reader.bool()
    if code in _INTS:
        return reader.int()
    if code in _LONGS:
        return reader.long()
    if code == QUERY_ENTITIES:
        return read_entities(reader)
    if code == KEY_CONFIGURATION:
        return [(reader.string(), reader.string()) for _ in range(reader.count(2))]
    if code == EXPIRY_POLICY:
        return (reader.long(), reader.long(), reader.long()) if reader.bool() else None
    raise BinaryError(f"unknown cache property {code}")


def read_entities(reader: Reader) -> list[QueryEntity]:
    """Query entities, with the precision and scale that every protocol version from 1.2 on carries."""
    return [_read_entity(reader) for _ in range(reader.count(17))]


def _read_entity(reader: Reader) -> QueryEntity:
    names = tuple(reader.string() for _ in range(5))
    fields = [
        QueryField(
            reader.string(), reader.string(), reader.bool(), reader.bool(), reader.object(), reader.int(), reader.int()
        )
        for _ in range(reader.count(13))
    ]
    aliases = [(reader.string(), reader.string()) for _ in range(reader.count(2))]
    indexes = [
        QueryIndex(
            reader.string(),
            reader.byte(),
            reader.int(),
            [(reader.string(), reader.bool()) for _ in range(reader.count(2))],
        )
        for _ in range(reader.count(10))
    ]
    return QueryEntity(names, fields, aliases, indexes)


def write_entities(entities: list[QueryEntity]) -> bytes:
    """The opposite of `read_entities`."""
    parts = [I32.pack(len(entities))]
    for entity in entities:
        parts += [encode_string(text) for text in entity.names]
        parts.append(I32.pack(len(entity.fields)))
        for field in entity.fields:
            parts += (encode_string(field.name), encode_string(field.type_name))
            parts.append(bytes((field.is_key, field.not_null)))
            parts += (field.default, I32.pack(field.precision), I32.pack(field.scale))
        parts += _write_name_pairs(entity.aliases)
        parts.append(I32.pack(len(entity.indexes)))
        for index in entity.indexes:
            parts += (encode_string(index.name), bytes((index.kind & 0xFF,)), I32.pack(index.inline_size))
            parts.append(I32.pack(len(index.fields)))
            for name, descending in index.fields:
                parts += (encode_string(name), b"\1" if descending else b"\0")
    return b"".join(parts)


def _write_name_pairs(pairs: list[tuple[str | None, str | None]]) -> list[bytes]:
    return [I32.pack(len(pairs))] + [encode_string(text) for pair in pairs for text in pair]


def write_request(configuration: Configuration, declared_length: int | None = None) -> bytes:
    """The properties as a client sends them. `declared_length` overrides the length, to say it as pyignite does."""
    parts = [I16.pack(len(configuration.properties))]
    for code, value in configuration.properties.items():
        parts += (I16.pack(code), _write_property(code, value))
    body = b"".join(parts)
    return I32.pack(len(body) if declared_length is None else declared_length) + body


def _write_property(code: int, value: Any) -> bytes:
    if code in _STRINGS:
        return encode_string(value)
    if code in _BOOLS:
        return b"\1" if value else b"\0"
    if code == QUERY_ENTITIES:
        return write_entities(value)
    if code == KEY_CONFIGURATION:
        return b"".join(_write_name_pairs(value))
    if code == EXPIRY_POLICY:
        return b"\0" if value is None else b"\1" + b"".join(map(I64.pack, value))
    return I64.pack(value) if code in _LONGS else I32.pack(value)


# What a cache says of itself when nothing else was asked for, in the order of the answer to 1055.
_ANSWER: Final[tuple[tuple[int, Any], ...]] = (
    (2, 1), (3, 0), (1, 2), (5, True), (100, None), (405, True), (406, False), (400, None), (402, 0), (403, 500),
    (206, 1024), (0, None), (101, False), (404, 4), (202, 0), (201, 1), (6, True), (303, 524288), (304, 3), (301, 0),
    (300, 1), (305, 0), (306, 0), (302, 10000), (205, False), (204, -1), (203, None), (4, 2), (KEY_CONFIGURATION, []),
    (QUERY_ENTITIES, []),
)  # fmt: skip


def write_answer(configuration: Configuration, version: tuple[int, int, int]) -> bytes:
    """The full configuration as operation 1055 answers it."""
    parts = [_write_property(code, configuration.properties.get(code, default)) for code, default in _ANSWER]
    if version >= (1, 6, 0):
        parts.append(_write_property(EXPIRY_POLICY, configuration.expiry))
    body = b"".join(parts)
    return I32.pack(len(body)) + body


def read_answer(reader: Reader, version: tuple[int, int, int]) -> Configuration:
    """The opposite of `write_answer`."""
    reader.int()
    properties = {code: _read_property(reader, code) for code, _ in _ANSWER}
    if version >= (1, 6, 0):
        properties[EXPIRY_POLICY] = _read_property(reader, EXPIRY_POLICY)
    return Configuration(properties)
