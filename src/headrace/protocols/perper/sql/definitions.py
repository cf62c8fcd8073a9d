"""CREATE TABLE: a cache, configured as Ignite would."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from headrace.protocols.perper.errors import Refused
from headrace.protocols.perper.ignite.binary import NULL_OBJECT
from headrace.protocols.perper.ignite.configuration import (
    NAME,
    QUERY_ENTITIES,
    SQL_ESCAPE_ALL,
    SQL_SCHEMA,
    Configuration,
    QueryEntity,
    QueryField,
)
from headrace.protocols.perper.sql import kinds
from headrace.protocols.perper.sql.kinds import Kind
from headrace.protocols.perper.sql.table import PUBLIC
from headrace.protocols.perper.sql.text import ColumnDefinition, CreateTable, Words, failed_to_parse
from headrace.protocols.perper.sql.values import constant
from headrace.units import natural

_MODES: Final = {"PARTITIONED": 2, "REPLICATED": 1}
_ATOMICITIES: Final = {"TRANSACTIONAL": 0, "ATOMIC": 1}
_SYNCHRONIZATIONS: Final = {"FULL_SYNC": 0, "FULL_ASYNC": 1, "PRIMARY_SYNC": 2}
# Name of an option → the property of the cache that it sets, and its values; None for a number, text for free text.
_PROPERTIES: Final[dict[str, tuple[int, Any]]] = {
    "TEMPLATE": (1, _MODES),
    "ATOMICITY": (2, _ATOMICITIES),
    "BACKUPS": (3, None),
    "WRITE_SYNCHRONIZATION_MODE": (4, _SYNCHRONIZATIONS),
    "DATA_REGION": (100, "text"),
    "PARALLELISM": (201, None),
    "CACHE_GROUP": (400, "text"),
}
_OWN: Final = {"CACHE_NAME", "KEY_TYPE", "VALUE_TYPE", "WRAP_KEY", "WRAP_VALUE"}
# They say where data lies among nodes, and how an index does: there is one node, and there are no indexes.
_WITHOUT_EFFECT: Final = {"AFFINITY_KEY", "AFFINITYKEY", "PK_INLINE_SIZE", "AFFINITY_INLINE_SIZE"}


def cache_name(statement: CreateTable, schema: str) -> str:
    """The name of the cache that a table is."""
    return statement.options.get("CACHE_NAME") or f"SQL_{schema}_{statement.table[-1]}"


def configuration_of(statement: CreateTable, schema: str) -> Configuration:
    """The configuration of the cache that a table is."""
    if schema != PUBLIC:
        raise failed_to_parse(f"CREATE TABLE can only be executed on {PUBLIC} schema.")
    properties: dict[int, Any] = {NAME: cache_name(statement, schema), SQL_SCHEMA: schema, SQL_ESCAPE_ALL: True}
    for name, value in statement.options.items():
        if name in _PROPERTIES:
            code, allowed = _PROPERTIES[name]
            properties[code] = _option(name, value, allowed)
        elif name not in _OWN | _WITHOUT_EFFECT:
            raise failed_to_parse(f"Unsupported parameter: {name}")
    properties[QUERY_ENTITIES] = [_entity(statement, properties[NAME])]
    return Configuration(properties)


def _option(name: str, value: str, allowed: Any) -> Any:
    if allowed == "text":
        return value
    if allowed is None:
        number = natural(value, 10)
        if number is None or number >= 2**31:
            raise failed_to_parse(f"Invalid value of {name}: {value}")
        return number
    if value.upper() not in allowed:
        raise failed_to_parse(f"Invalid value of {name} ({', '.join(allowed)} was expected): {value}")
    return allowed[value.upper()]


def _entity(statement: CreateTable, cache: str) -> QueryEntity:
    names = [column.name for column in statement.columns]
    key = statement.primary_key
    for name in names:
        if names.count(name) > 1:
            raise failed_to_parse(f"Duplicate column name: {name}")
    if not key:
        raise failed_to_parse("No PRIMARY KEY defined for CREATE TABLE")
    for name in key:
        if name not in names:
            raise failed_to_parse(f"PRIMARY KEY column is not defined: {name}")
    values = [column for column in statement.columns if column.name not in key]
    if not values:
        raise failed_to_parse("Table must have at least one non PRIMARY KEY column.")
    is_wide_key = len(key) > 1 or _is_wrapped(statement, "WRAP_KEY", "KEY_TYPE" in statement.options)
    is_wide_value = _is_wrapped(statement, "WRAP_VALUE", True)
    if not is_wide_value and len(values) > 1:
        raise failed_to_parse("WRAP_VALUE cannot be false when multiple non-primary key columns exist.")
    types = {column.name: _kind(column) for column in statement.columns}
    # The same table always has the same types: tables that come and go do not fill the registry.
    digest = hashlib.sha256(repr([(name, types[name].java, name in key) for name in names]).encode()).hexdigest()[:16]
    key_type = statement.options.get("KEY_TYPE", f"{cache}_{digest}_KEY") if is_wide_key else types[key[0]].java
    value_type = (
        statement.options.get("VALUE_TYPE", f"{cache}_{digest}") if is_wide_value else types[values[0].name].java
    )
    return QueryEntity(
        (
            key_type,
            value_type,
            statement.table[-1],
            None if is_wide_key else key[0],
            None if is_wide_value else values[0].name,
        ),
        [_field(column, types[column.name], column.name in key) for column in statement.columns],
        [],
        [],
    )


def _is_wrapped(statement: CreateTable, option: str, otherwise: bool) -> bool:
    given = statement.options.get(option)
    if given is not None and given.upper() not in ("TRUE", "FALSE"):
        raise failed_to_parse(f"Invalid value of {option} (TRUE or FALSE was expected): {given}")
    return otherwise if given is None else given.upper() == "TRUE"


def _kind(column: ColumnDefinition) -> Kind:
    kind = kinds.by_sql(column.type_name, column.precision, column.scale)
    if kind is None:
        raise failed_to_parse(f'Unknown data type: "{column.type_name}"')
    return kind


def _field(column: ColumnDefinition, kind: Kind, is_key: bool) -> QueryField:
    is_sized = kind.code in (9, 12, 30)
    return QueryField(
        column.name,
        kind.java,
        is_key,
        column.not_null or is_key,
        NULL_OBJECT if column.default is None else _default(column.default, column.name, kind),
        column.precision if is_sized else -1,
        column.scale if kind.code == 30 else -1,
    )


def _default(words: Words, name: str, kind: Kind) -> bytes:
    value = constant(words, ())
    fitted = None if value is None else kinds.object_as(kind, value)
    if fitted is None:
        raise Refused(f"the default of column {name} is not a constant of its type")
    return fitted
