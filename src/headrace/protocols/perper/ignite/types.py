"""Metadata of binary types: its bytes (operations 3002 and 3003) and the rules by which two versions of a type merge.

::

    type   = int32 type id, string name, string affinity field or null, fields, bool is enum, [enum: values], schemas
    fields = int32 n, n * (string name, int32 field type, int32 field id)
    values = int32 n, n * (string name, int32 ordinal)
    schemas = int32 n, n * (int32 schema id, int32 k, k * int32 field id)
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.protocols.perper.errors import BinaryError, PeerError, Refused
from headrace.protocols.perper.ignite.reader import BOOL, INT, STRING, TEXT, Reader, many, row


class Field(NamedTuple):
    """One field of a binary type."""

    name: str
    type_code: int
    field_id: int


class BinaryType(NamedTuple):
    """What is known of a binary type."""

    type_id: int
    name: str | None
    affinity_field: str | None
    fields: list[Field]
    is_enum: bool
    enum_values: list[tuple[str | None, int]]
    schemas: dict[int, tuple[int, ...]]


_HEAD: Final = row(INT, STRING, STRING, many(row(TEXT, INT, INT, of=Field), 9), BOOL)
_ENUM_VALUES: Final = many(row(STRING, INT), 5)
_SCHEMAS: Final = many(row(INT, many(INT, 4)), 8)


def read_type(reader: Reader) -> BinaryType:
    """Metadata as it stands in a request, a response, or the registry's table."""
    type_id, name, affinity_field, fields, is_enum = _HEAD.read(reader)
    values = _ENUM_VALUES.read(reader) if is_enum else []
    schemas = {schema: tuple(ids) for schema, ids in _SCHEMAS.read(reader)}
    return BinaryType(type_id, name, affinity_field, fields, is_enum, values, schemas)


def write_type(kind: BinaryType) -> bytes:
    """The opposite of `read_type`."""
    values = _ENUM_VALUES.write(kind.enum_values) if kind.is_enum else b""
    return _HEAD.write(kind[:5]) + values + _SCHEMAS.write(kind.schemas.items())


def for_clients(kind: BinaryType) -> BinaryType:
    """The type without the schemas that name an unknown field: pyignite cannot go on after one of those."""
    known = {field.field_id for field in kind.fields}
    schemas = {number: ids for number, ids in kind.schemas.items() if known.issuperset(ids)}
    return kind._replace(schemas=schemas)


def merge(old: BinaryType | None, new: BinaryType) -> BinaryType:
    """The union of both. No schema is ever dropped: stored objects point at them."""
    if new.name is None:
        raise BinaryError(f"binary type {new.type_id} has no name")
    if old is None:
        return new
    for what, before, after in (
        ("name", old.name, new.name),
        ("affinity field", old.affinity_field, new.affinity_field),
        ("enum flag", old.is_enum, new.is_enum),
    ):
        if before != after:
            raise _conflict(new, f"{what} was {before!r}, now is {after!r}")
    fields = {field.name: field for field in old.fields}
    for field in new.fields:
        before_field = fields.setdefault(field.name, field)
        if before_field.type_code != field.type_code:
            raise _conflict(new, f"field {field.name!r} has type {before_field.type_code}, not {field.type_code}")
    for schema, field_ids in new.schemas.items():
        if old.schemas.get(schema, field_ids) != field_ids:
            raise _conflict(new, f"schema {schema} has other fields")
    values = dict(old.enum_values) | dict(new.enum_values)
    return old._replace(
        fields=list(fields.values()), enum_values=list(values.items()), schemas=old.schemas | new.schemas
    )


def _conflict(kind: BinaryType, what: str) -> PeerError:
    return Refused(f"binary type {kind.name!r} [typeId={kind.type_id}] conflicts with the registered one: {what}")
