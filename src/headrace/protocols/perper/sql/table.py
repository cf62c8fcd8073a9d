"""What a query entity makes of the entries of a cache: rows with columns, and entries out of rows.

    _KEY, _VAL                the whole key and value
    _KEY_OBJECT, _VAL_OBJECT  the same as the bytes that are stored; changes need them

`*` means none of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa

from headrace.protocols.perper.errors import BinaryError, Refused
from headrace.protocols.perper.ignite.binary import (
    COMPLEX,
    DECIMAL,
    FLAG_HAS_RAW,
    NULL,
    NULL_OBJECT,
    STRING,
    ComplexHeader,
    encode_complex,
    field_id,
    field_positions,
    schema_id,
    skip,
    type_id,
)
from headrace.protocols.perper.ignite.configuration import (
    QUERY_ENTITIES,
    SQL_ESCAPE_ALL,
    SQL_SCHEMA,
    Configuration,
    QueryEntity,
    normal,
)
from headrace.protocols.perper.ignite.reader import I32
from headrace.protocols.perper.ignite.types import BinaryType, Field
from headrace.protocols.perper.sql import kinds
from headrace.protocols.perper.sql.kinds import Kind
from headrace.protocols.perper.sql.text import failed_to_parse

KEY: Final = "_KEY"
VALUE: Final = "_VAL"
KEY_OBJECT: Final = "_KEY_OBJECT"
VALUE_OBJECT: Final = "_VAL_OBJECT"
HIDDEN: Final = (KEY, VALUE, KEY_OBJECT, VALUE_OBJECT)
PUBLIC: Final = "PUBLIC"
COMPLEX_CODE: Final = 103

Part = Literal["key", "value"]
Schemas = Callable[[int, int], Sequence[int] | None]
"""(type id, schema id) → ids of the fields, in order."""


class Column(NamedTuple):
    """A column of a table. `path` leads to a field of the key or value; without one it is the whole."""

    name: str
    kind: Kind
    part: Part
    path: tuple[str, ...] = ()
    not_null: bool = False
    default: bytes = NULL_OBJECT
    precision: int = -1
    scale: int = -1

    def stored(self, data: bytes) -> bytes:
        """A data object of the column's type, if it is within what the column declares."""
        if data[0] == STRING and 0 < self.precision < (length := len(data[5:].decode(errors="replace"))):
            raise Refused(
                f"Value for a column '{self.name}' is too long. "
                f"Maximum length: {self.precision}, actual length: {length}"
            )
        if data[0] == DECIMAL and 0 <= self.scale < (scale := I32.unpack_from(data, 1)[0]):
            raise Refused(
                f"Value for a column '{self.name}' is out of range. Maximum scale: {self.scale}, actual scale: {scale}"
            )
        return data


class Entry(NamedTuple):
    """A key and its value, as they are stored."""

    key: bytes
    value: bytes


def schema_of(cache: str, configuration: Configuration) -> str:
    """The schema of a cache: that of its configuration, or its own name."""
    given: str | None = configuration.properties.get(SQL_SCHEMA)
    if not given:
        return cache
    return given[1:-1] if given[0] == given[-1] == '"' and len(given) > 1 else given.upper()


def tables_of(cache: str, configuration: Configuration) -> list[Table]:
    """The tables that the query entities of a cache make."""
    escape = bool(configuration.properties.get(SQL_ESCAPE_ALL))
    entities: list[QueryEntity] = configuration.properties.get(QUERY_ENTITIES) or []
    schema = schema_of(cache, configuration)
    return [Table(cache, schema, normal(entity, escape), escape) for entity in entities]


class Table:
    """One table."""

    def __init__(self, cache: str, schema: str, entity: QueryEntity, escape: bool) -> None:
        key_type, value_type, name, self._key_field, self._value_field = entity.names
        self.cache = cache
        self.schema = schema
        self.key_type = key_type
        self.value_type = value_type or ""
        simple = self.value_type.rpartition(".")[2].rpartition("$")[2]
        self.name = name or (simple if escape else simple.upper())
        self.columns = _columns(entity, self._key_field, self._value_field)
        self._by_name = {column.name: column for column in self.columns}
        self._by_name |= {
            KEY: Column(KEY, kinds.by_java(key_type), "key"),
            VALUE: Column(VALUE, kinds.by_java(value_type), "value"),
            KEY_OBJECT: Column(KEY_OBJECT, kinds.BYTES, "key"),
            VALUE_OBJECT: Column(VALUE_OBJECT, kinds.BYTES, "value"),
        }
        self._type_ids = {type_id(self.value_type), type_id(simple)}
        self._is_standard = self.value_type.startswith("java.") or kinds.by_java(value_type) is not kinds.OBJECT

    def column(self, name: str) -> Column:
        """The column of that name."""
        column = self._by_name.get(name)
        if column is None:
            raise failed_to_parse(f'Column "{name}" not found')
        return column

    # rows of entries

    def all_columns(self, key_kind: Kind | None = None) -> dict[str, Column]:
        """All columns. `key_kind` is that of the keys, if the entity does not say it and somebody else knows."""
        columns = dict(self._by_name)
        if key_kind is not None and self.key_type is None:
            columns[KEY] = columns[KEY]._replace(kind=key_kind)
        return columns

    def batch(self, columns: list[Column], entries: Iterable[tuple[bytes, bytes]], schemas: Schemas) -> pa.RecordBatch:
        """The rows of those entries that belong to the table."""
        cells: list[list[Any]] = [[] for _ in columns]
        for key, value in entries:
            if self._is_row(value):
                reader = _EntryReader(key, value, schemas)
                for column, into in zip(columns, cells, strict=True):
                    into.append(self._cell(column, reader))
        arrays = []
        for each, column in zip(cells, columns, strict=True):
            try:
                arrays.append(_array(each, column.kind))
            except (pa.ArrowException, OverflowError) as error:
                raise Refused(f"column {column.name} of cache {self.cache!r}: {error}") from None
        return pa.record_batch(arrays, names=[column.name for column in columns])

    def _is_row(self, value: bytes) -> bool:
        """Whether a value is of the type that the table is about."""
        if value[0] == COMPLEX:
            return ComplexHeader(value).type_id in self._type_ids or not self.value_type
        return self._is_standard or not self.value_type

    def _cell(self, column: Column, reader: _EntryReader) -> Any:
        if column.name == KEY_OBJECT:
            return reader.key
        if column.name == VALUE_OBJECT:
            return reader.value
        try:
            return reader.read(column)
        except BinaryError as error:
            raise Refused(f"column {column.name} of cache {self.cache!r}: {error.message}") from None

    # entries of rows

    @property
    def has_wide_key(self) -> bool:
        """Whether the key is an object with fields."""
        return any(column.part == "key" and column.path for column in self.columns)

    def entry(self, values: Mapping[str, bytes]) -> Entry:
        """The entry of a row, of data objects by column. Columns that are not in it have their default."""
        return Entry(self._whole("key", KEY, values), self._whole("value", VALUE, values))

    def _whole(self, part: Part, name: str, values: Mapping[str, bytes]) -> bytes:
        if name in values:
            return _not_null(name, values[name])
        columns = [column for column in self.columns if column.part == part]
        given = [(column, values.get(column.name, column.default)) for column in columns]
        for column, data in given:
            if data[0] == NULL and (column.not_null or part == "key"):
                raise Refused(f"Null value is not allowed for column '{column.name}'")
        for column, data in given:
            if not column.path:
                return _not_null(column.name, data)
        if not given:
            raise Refused("Key is missing from query" if part == "key" else f"{VALUE} is missing from query")
        fields = [(field_id(_only(column)), data) for column, data in given]
        return encode_complex(type_id(self._type_name(part)), fields)

    def updated(self, value: bytes, changes: Mapping[str, bytes], schemas: Schemas) -> tuple[bytes, BinaryType | None]:
        """A value with some columns changed, and the type that this makes known."""
        for name, data in changes.items():
            column = self.column(name)
            if column.not_null and data[0] == NULL:
                raise Refused(f"Null value is not allowed for column '{name}'")
            if not column.path:
                return _not_null(name, data), None
        fields = _fields_of(value, schemas)
        fields |= {field_id(_only(self.column(name))): data for name, data in changes.items()}
        header = ComplexHeader(value)
        known = [self._field(self.column(name)) for name in changes]
        kind = BinaryType(
            header.type_id, self.value_type, None, known, False, [], {schema_id(list(fields)): tuple(fields)}
        )
        return encode_complex(header.type_id, list(fields.items())), kind

    def types(self) -> list[BinaryType]:
        """The binary types of keys and values that are made of rows."""
        parts: tuple[Part, Part] = ("key", "value")
        found = []
        for part in parts:
            columns = [column for column in self.columns if column.part == part and column.path]
            if not columns or any(column.part == part and not column.path for column in self.columns):
                continue
            name, fields = self._type_name(part), [self._field(column) for column in columns]
            ids = [field.field_id for field in fields]
            found.append(BinaryType(type_id(name), name, None, fields, False, [], {schema_id(ids): tuple(ids)}))
        return found

    def _type_name(self, part: Part) -> str:
        name = self.key_type if part == "key" else self.value_type
        if not name:
            raise Refused(f"the query entity of cache {self.cache!r} does not say of which type a {part} is")
        return name

    @staticmethod
    def _field(column: Column) -> Field:
        name = _only(column)
        return Field(name, column.kind.code or COMPLEX_CODE, field_id(name))


def _columns(entity: QueryEntity, key_field: str | None, value_field: str | None) -> list[Column]:
    aliases = dict(entity.aliases)
    columns = []
    for field in entity.fields:
        name = field.name or ""
        is_key = field.is_key or name == key_field
        path = () if name in (key_field, value_field) else tuple(name.split("."))
        kind = kinds.by_java(field.type_name, field.precision, field.scale)
        columns.append(
            Column(
                aliases.get(name) or name,
                kind,
                "key" if is_key else "value",
                path,
                field.not_null,
                field.default,
                field.precision,
                field.scale,
            )
        )
    return columns


def _array(values: list[Any], kind: Kind) -> pa.Array:
    if kind is kinds.UUID:
        storage = pa.array([None if value is None else value.bytes for value in values], pa.binary(16))
        return pa.ExtensionArray.from_storage(pa.uuid(), storage)
    return pa.array(values, kind.arrow)


def _not_null(name: str, data: bytes) -> bytes:
    if data[0] == NULL:
        raise Refused(f"Null value is not allowed for column '{name}'")
    return data


def _only(column: Column) -> str:
    """The field of a column that is to be written."""
    if len(column.path) != 1:
        raise Refused(f"column {column.name} is a field of an object inside the {column.part}: it can only be read")
    return column.path[0]


def _fields_of(value: bytes, schemas: Schemas) -> dict[int, bytes]:
    """The fields of a complex object as they are stored, in order, by their ids."""
    if value[0] != COMPLEX:
        raise Refused("the value is not an object with fields")
    header = ComplexHeader(value)
    if header.flags & FLAG_HAS_RAW:
        raise Refused("an object with raw data behind its fields cannot be changed by SQL")
    positions = field_positions(value, header, schemas(header.type_id, header.schema_id))  # type: ignore[arg-type]
    return {name: value[start : skip(value, start, header.footer)] for name, start in positions.items()}


class _EntryReader:
    """The fields of one entry, found when they are wanted."""

    def __init__(self, key: bytes, value: bytes, schemas: Schemas) -> None:
        self.key = key
        self.value = value
        self._schemas = schemas
        self._places: dict[int, dict[int, int]] = {}

    def read(self, column: Column) -> Any:
        """The value of a column; null where there is no such field."""
        data, position = self.key if column.part == "key" else self.value, 0
        for name in column.path:
            if data[position] != COMPLEX:
                return None
            if position:
                data = data[position : skip(data, position, len(data))]
            found = self._positions(data).get(field_id(name))
            if found is None:
                return None
            position = found
        return kinds.read(column.kind, data, position, len(data))

    def _positions(self, data: bytes) -> dict[int, int]:
        known = self._places.get(id(data))
        if known is None:
            header = ComplexHeader(data)
            schema = self._schemas(header.type_id, header.schema_id)
            known = field_positions(data, header, schema)  # type: ignore[arg-type]
            if data is self.key or data is self.value:
                self._places[id(data)] = known
        return known
