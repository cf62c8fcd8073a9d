"""Metadata of binary types: its bytes (operations 3002 and 3003) and the rules by which two versions of a type merge.

::

    type   = int32 type id, string name, string affinity field or null, fields, bool is enum, [enum: values], schemas
    fields = int32 n, n * (string name, int32 field type, int32 field id)
    values = int32 n, n * (string name, int32 ordinal)
    schemas = int32 n, n * (int32 schema id, int32 k, k * int32 field id)
"""

from __future__ import annotations

import msgspec

from headrace.protocols.perper.errors import BinaryError, PeerError, Status
from headrace.protocols.perper.ignite.binary import encode_string
from headrace.protocols.perper.ignite.reader import I32, Reader, ints


class Field(msgspec.Struct, frozen=True):
    """One field of a binary type."""

    name: str
    type_code: int
    field_id: int


class BinaryType(msgspec.Struct):
    """What is known of a binary type."""

    type_id: int
    name: str | None
    affinity_field: str | None
    fields: list[Field]
    is_enum: bool
    enum_values: list[tuple[str | None, int]]
    schemas: dict[int, tuple[int, ...]]


def read_type(reader: Reader) -> BinaryType:
    """Metadata as it stands in a request, a response, or the registry's table."""
    type_id = reader.int()
    name = reader.string()
    affinity = reader.string()
    fields = [Field(reader.text(), reader.int(), reader.int()) for _ in range(reader.count(9))]
    is_enum = reader.bool()
    values = [(reader.string(), reader.int()) for _ in range(reader.count(5))] if is_enum else []
    schemas: dict[int, tuple[int, ...]] = {}
    for _ in range(reader.count(8)):
        schema = reader.int()
        schemas[schema] = tuple(reader.int() for _ in range(reader.count(4)))
    return BinaryType(type_id, name, affinity, fields, is_enum, values, schemas)


def write_type(kind: BinaryType) -> bytes:
    """The opposite of `read_type`."""
    parts = [I32.pack(kind.type_id), encode_string(kind.name), encode_string(kind.affinity_field)]
    parts.append(I32.pack(len(kind.fields)))
    for field in kind.fields:
        parts += (encode_string(field.name), I32.pack(field.type_code), I32.pack(field.field_id))
    parts.append(b"\1" if kind.is_enum else b"\0")
    if kind.is_enum:
        parts.append(I32.pack(len(kind.enum_values)))
        for name, ordinal in kind.enum_values:
            parts += (encode_string(name), I32.pack(ordinal))
    parts.append(I32.pack(len(kind.schemas)))
    for schema, field_ids in kind.schemas.items():
        parts += (I32.pack(schema), ints(field_ids))
    return b"".join(parts)


def for_clients(kind: BinaryType) -> BinaryType:
    """The type without the schemas that name an unknown field: pyignite cannot go on after one of those."""
    known = {field.field_id for field in kind.fields}
    schemas = {number: ids for number, ids in kind.schemas.items() if known.issuperset(ids)}
    return msgspec.structs.replace(kind, schemas=schemas)


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
    return BinaryType(
        old.type_id,
        old.name,
        old.affinity_field,
        list(fields.values()),
        old.is_enum,
        list(values.items()),
        old.schemas | new.schemas,
    )


def _conflict(kind: BinaryType, what: str) -> PeerError:
    return PeerError(
        Status.FAILED, f"binary type {kind.name!r} [typeId={kind.type_id}] conflicts with the registered one: {what}"
    )
