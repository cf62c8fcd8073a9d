"""The two record types the fabric itself reads: ExecutionData and StreamListener. All other values stay opaque.

Clients write compact footers, so the place of a field is known only through the schema in the type registry. The
schemas of the published Python and .NET agents are built in: a record of theirs can be read even when nobody
registered its type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from headrace.protocols.perper.errors import BinaryError
from headrace.protocols.perper.ignite.binary import (
    COMPLEX,
    NULL,
    ComplexHeader,
    decode_bool,
    decode_long,
    decode_string,
    encode_complex,
    encode_long,
    encode_string,
    field_id,
    field_positions,
    schema_id,
    type_id,
)

EXECUTION_FIELDS: Final = ("agent", "instance", "delegate", "finished", "parameters", "result", "error")
LISTENER_FIELDS: Final = ("stream", "position")

# The agent whose executions are the instances of all agents.
REGISTRY_AGENT: Final = "Registry"

EXECUTION_TYPE: Final = type_id("ExecutionData")
LISTENER_TYPE: Final = type_id("StreamListener")

LISTENER_HOLDS_ALL: Final = -(2**63)
LISTENER_HOLDS_NOTHING: Final = 2**63 - 1

# (type id, schema id) -> ids of the fields in order
SchemaLookup = Callable[[int, int], Sequence[int] | None]


class Execution(NamedTuple):
    """What the fabric needs to know of an execution."""

    agent: str
    instance: str
    delegate: str
    finished: bool


class StreamListener(NamedTuple):
    """What the fabric needs to know of a listener."""

    stream: str
    position: int


def _built_in() -> dict[tuple[int, int], tuple[int, ...]]:
    schemas: dict[tuple[int, int], tuple[int, ...]] = {}
    for number, names in ((EXECUTION_TYPE, EXECUTION_FIELDS), (LISTENER_TYPE, LISTENER_FIELDS)):
        for order in (names, sorted(names)):  # Python keeps the order of the class, .NET sorts by name
            ids = tuple(map(field_id, order))
            schemas[number, schema_id(ids)] = ids
    return schemas


BUILT_IN_SCHEMAS: Final = _built_in()
_IDS: Final = {name: field_id(name) for name in (*EXECUTION_FIELDS, *LISTENER_FIELDS)}


def _fields(value: bytes, kind: str, expected: int, schemas: SchemaLookup) -> tuple[dict[int, int], int]:
    """Where the fields of a record lie, and where its data ends."""
    if value[0] != COMPLEX:
        raise BinaryError(f"{kind} expected, found a data object of type {value[0]}")
    header = ComplexHeader(value)
    if header.type_id != expected:
        raise BinaryError(f"{kind} expected (type {expected}), found an object of type {header.type_id}")
    schema = schemas(header.type_id, header.schema_id)
    if schema is None:
        schema = BUILT_IN_SCHEMAS.get((header.type_id, header.schema_id))
    return field_positions(value, header, None if schema is None else tuple(schema)), header.footer


def _text(value: bytes, places: dict[int, int], name: str, end: int) -> str:
    start = places.get(_IDS[name])
    return "" if start is None else decode_string(value, start, end)[0] or ""


def read_execution(value: bytes, schemas: SchemaLookup) -> Execution:
    """An ExecutionData record. Absent and null fields are empty; `finished` is false unless it says otherwise."""
    places, end = _fields(value, "ExecutionData", EXECUTION_TYPE, schemas)
    start = places.get(_IDS["finished"])
    finished = start is not None and value[start] != NULL and decode_bool(value, start, end)
    return Execution(
        _text(value, places, "agent", end),
        _text(value, places, "instance", end),
        _text(value, places, "delegate", end),
        finished,
    )


def read_listener(value: bytes, schemas: SchemaLookup) -> StreamListener:
    """A StreamListener record."""
    places, end = _fields(value, "StreamListener", LISTENER_TYPE, schemas)
    start = places.get(_IDS["position"])
    if start is None:
        raise BinaryError("StreamListener has no field 'position'")
    return StreamListener(_text(value, places, "stream", end), decode_long(value, start, end))


def write_execution(execution: Execution, parameters: bytes | None = None, error: str | None = None) -> bytes:
    """An ExecutionData record as the Python agent writes it. `parameters` is a data object."""
    null = encode_string(None)
    objects = (
        encode_string(execution.agent),
        encode_string(execution.instance),
        encode_string(execution.delegate),
        bytes((8, execution.finished)),
        parameters or null,
        null,
        encode_string(error),
    )
    return encode_complex(EXECUTION_TYPE, [(_IDS[n], data) for n, data in zip(EXECUTION_FIELDS, objects, strict=True)])


def write_listener(listener: StreamListener) -> bytes:
    """A StreamListener record as the Python agent writes it."""
    objects = (encode_string(listener.stream), encode_long(listener.position))
    return encode_complex(LISTENER_TYPE, [(_IDS[n], data) for n, data in zip(LISTENER_FIELDS, objects, strict=True)])
