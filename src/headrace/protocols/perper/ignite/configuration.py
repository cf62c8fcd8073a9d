"""Cache configuration: the coded properties of operations 1053 and 1054, and the full form that 1055 answers.

A request carries `int32 length, int16 count, count * (int16 code, value)`. Its length cannot be trusted (pyignite
sends -18), so the properties are read one by one. The answer carries `int32 length` and all properties in a fixed
order without codes.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from headrace.protocols.perper.errors import BinaryError
from headrace.protocols.perper.ignite.reader import BOOL, BYTE, I16, INT, LONG, OBJECT, STRING, Form, Reader, many, row

NAME: Final = 0
CACHE_MODE: Final = 1
ATOMICITY: Final = 2
BACKUPS: Final = 3
QUERY_ENTITIES: Final = 200
SQL_SCHEMA: Final = 203
SQL_ESCAPE_ALL: Final = 205
KEY_CONFIGURATION: Final = 401
EXPIRY_POLICY: Final = 407

REPLICATED: Final = 1
EVERY_NODE: Final = 2**31 - 1
TRANSACTIONAL: Final = 0

# Ignite knows 31 properties; a few more leave room for newer clients.
PROPERTIES_MAX: Final = 64


class QueryField(NamedTuple):
    """One field of a query entity."""

    name: str | None
    type_name: str | None
    is_key: bool
    not_null: bool
    default: bytes
    precision: int
    scale: int


class QueryIndex(NamedTuple):
    """One index of a query entity."""

    name: str | None
    kind: int
    inline_size: int
    fields: list[tuple[str | None, bool]]


class QueryEntity(NamedTuple):
    """How a cache wants to be queried: a table of SQL. Nothing is indexed by it."""

    names: tuple[str | None, ...]  # key type, value type, table, key field, value field
    fields: list[QueryField]
    aliases: list[tuple[str | None, str | None]]
    indexes: list[QueryIndex]


_NAME_PAIRS: Final = many(row(STRING, STRING), 2)
_FIELD: Final = row(STRING, STRING, BOOL, BOOL, OBJECT, INT, INT, of=QueryField)
_INDEX: Final = row(STRING, BYTE, INT, many(row(STRING, BOOL), 2), of=QueryIndex)
_ENTITY: Final = row(row(*[STRING] * 5), many(_FIELD, 13), _NAME_PAIRS, many(_INDEX, 10), of=QueryEntity)
_THREE_LONGS: Final = row(LONG, LONG, LONG)

PROPERTIES: Final[dict[int, Form]] = {
    **dict.fromkeys((NAME, 100, 203, 400), STRING),
    **dict.fromkeys((5, 6, 101, 205, 405, 406), BOOL),
    **dict.fromkeys((301, 302, 304, 306, 402), LONG),
    **dict.fromkeys((1, 2, 3, 4, 201, 202, 204, 206, 300, 303, 305, 403, 404), INT),
    QUERY_ENTITIES: many(_ENTITY, 17),
    KEY_CONFIGURATION: _NAME_PAIRS,
    EXPIRY_POLICY: Form(
        lambda reader: _THREE_LONGS.read(reader) if reader.bool() else None,
        lambda expiry: b"\0" if expiry is None else b"\1" + _THREE_LONGS.write(expiry),
    ),
}


class Configuration(NamedTuple):
    """The properties a cache was created with, by code, in the order they came. Absent ones have the defaults below."""

    properties: dict[int, Any]

    @property
    def name(self) -> str | None:
        """The cache's name."""
        name: str | None = self.properties.get(NAME)
        return name

    @property
    def transactional(self) -> bool:
        """Whether transactions may use the cache; caches are atomic unless they were created otherwise."""
        return self.properties.get(ATOMICITY) == TRANSACTIONAL

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
        if code not in PROPERTIES:
            raise BinaryError(f"unknown cache property {code}")
        properties[code] = PROPERTIES[code].read(reader)
    return Configuration(properties)


def write_request(configuration: Configuration, declared_length: int | None = None) -> bytes:
    """The properties as a client sends them. `declared_length` overrides the length, to say it as pyignite does."""
    parts = [I16.pack(len(configuration.properties))]
    for code, value in configuration.properties.items():
        parts += (I16.pack(code), PROPERTIES[code].write(value))
    body = b"".join(parts)
    return INT.write(len(body) if declared_length is None else declared_length) + body


# What a cache says of itself when nothing else was asked for, in the order of the answer to 1055.
ANSWER: Final[tuple[tuple[int, Any], ...]] = (
    (2, 1), (3, 0), (1, 2), (5, True), (100, None), (405, True), (406, False), (400, None), (402, 0), (403, 500),
    (206, 1024), (0, None), (101, False), (404, 4), (202, 0), (201, 1), (6, True), (303, 524288), (304, 3), (301, 0),
    (300, 1), (305, 0), (306, 0), (302, 10000), (205, False), (204, -1), (203, None), (4, 2), (KEY_CONFIGURATION, []),
    (QUERY_ENTITIES, []),
)  # fmt: skip


def write_answer(configuration: Configuration, version: tuple[int, int, int]) -> bytes:
    """The full configuration as operation 1055 answers it."""
    shown = dict(ANSWER) | configuration.properties
    if shown[CACHE_MODE] == REPLICATED:
        shown[BACKUPS] = EVERY_NODE
    shown[QUERY_ENTITIES] = [normal(entity, shown[SQL_ESCAPE_ALL]) for entity in shown[QUERY_ENTITIES]]
    parts = [PROPERTIES[code].write(shown[code]) for code, _ in ANSWER]
    if version >= (1, 6, 0):
        parts.append(PROPERTIES[EXPIRY_POLICY].write(configuration.expiry))
    body = b"".join(parts)
    return INT.write(len(body)) + body


def normal(entity: QueryEntity, escape: bool) -> QueryEntity:
    """A query entity with the names SQL would know it by, as Ignite shows it: every field has an alias, and names are
    in capitals unless the cache escapes them."""

    def shown(name: str | None) -> str | None:
        return name if name is None or escape else name.upper()

    key_type, value_type, table, *key_and_value = entity.names
    given = dict(entity.aliases)
    fields = [field.name for field in entity.fields]
    aliases: dict[str | None, str | None] = {
        name: given.get(name) or (name or "").rpartition(".")[2] for name in fields
    }
    if escape:
        aliases = given | aliases
    return entity._replace(
        names=(key_type, value_type, shown(table), *key_and_value),
        aliases=[(name, shown(alias)) for name, alias in aliases.items()],
        indexes=[index._replace(name=shown(index.name)) for index in entity.indexes],
    )
