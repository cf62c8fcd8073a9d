"""The same record as each of the five protocols would send it, byte for byte, with its fields marked.

The bytes come from the protocols' own encoders; the marks are the lengths of the parts they are made of.
"""

from __future__ import annotations

import msgspec

from headrace.protocols.ambrosia.codec import Call, RpcType, Type, encode, zigzag_int
from headrace.protocols.futoin.codec import Coding, Event
from headrace.protocols.futoin.events import event_data, shown_type, timestamp
from headrace.protocols.ockam.bare import encode_uint
from headrace.protocols.ockam.codec import PULL, encode_pull
from headrace.protocols.perper.ignite.binary import encode_byte_array
from headrace.protocols.wallaroo.codec import V3Dialect

U16 = 2**16 - 1
U64 = 2**64 - 1


class Field(msgspec.Struct, frozen=True):
    """`size` bytes that mean something together."""

    name: str
    size: int
    text: str


class ProtocolFrame(msgspec.Struct, frozen=True):
    """A record on one protocol's wire. The sizes of `fields` add up to the bytes."""

    protocol: str
    message: str
    hex: str
    fields: list[Field]


class SeenRecord(msgspec.Struct, frozen=True):
    """What a frame can be made of."""

    index: int
    time_us: int
    payload: bytes
    event_time_us: int | None = None
    id: int | None = None
    type: str | None = None
    key: bytes | None = None


def record_frames(record: SeenRecord) -> list[ProtocolFrame]:
    """One frame for each protocol that can carry the record: Wallaroo has two bytes for the length of a key."""
    frames = [_ockam(record), _futoin(record), _perper(record), _ambrosia(record)]
    return frames if len(record.key or b"") > U16 else [_wallaroo(record), *frames]


def _frame(protocol: str, message: str, data: bytes, fields: list[Field]) -> ProtocolFrame:
    marked = sum(field.size for field in fields)
    assert marked == len(data), f"{protocol}: {marked} bytes are marked of {len(data)}"
    return ProtocolFrame(protocol, message, data.hex(), fields)


def _wallaroo(record: SeenRecord) -> ProtocolFrame:
    id = (record.index if record.id is None else record.id) & U64
    event_time = record.event_time_us or 0
    key = record.key or b""
    data = V3Dialect().encode_message(1, id, record.payload, event_time, key, 0)
    fields = [
        Field("length", 4, str(len(data) - 4)),
        Field("tag", 1, "MESSAGE"),
        Field("stream id", 8, "1, given by the connector"),
        Field("message id", 8, str(id)),
        Field("event time", 8, str(event_time)),
        Field("key length", 2, str(len(key))),
        Field("key", len(key), ""),
        Field("payload", len(record.payload), ""),
    ]
    return _frame("wallaroo", "MESSAGE (v3)", data, fields)


def _ockam(record: SeenRecord) -> ProtocolFrame:
    data, _ = encode_pull(1, [record.index], [record.payload], 2**62)
    name = PULL.encode()
    fields = [
        Field("protocol length", 1, str(len(name))),
        Field("protocol", len(name), PULL),
        Field("body length", 0, ""),
        Field("request id", 1, "1, given by the client"),
        Field("records", 1, "1"),
        Field("index", len(encode_uint(record.index)), str(record.index)),
        Field("length", len(encode_uint(len(record.payload))), str(len(record.payload))),
        Field("payload", len(record.payload), ""),
    ]
    rest = len(data) - sum(field.size for field in fields)
    fields[2] = Field("body length", rest, str(len(data) - len(name) - 1 - rest))
    return _frame("ockam", "pull response", data, [field for field in fields if field.size])


def _futoin(record: SeenRecord) -> ProtocolFrame:
    kind = shown_type(record.type)
    [value], _ = event_data([record.payload], Coding.JSON)
    event = Event(str(record.index + 1), kind, value, timestamp(record.time_us // 1_000_000))
    fields = []
    for position, name in enumerate(Event.__struct_fields__):
        inside = getattr(event, name)
        before = f'{"," if position else "{"}"{name}":'
        size = len(msgspec.json.encode(inside))
        shown = inside if isinstance(inside, str) else "the payload, if it is JSON; else as base64"
        fields += [Field("name", len(before), name), Field(name, size, shown)]
    fields.append(Field("end", 1, "}"))
    return _frame("futoin", "event in pollEvents or onEvents (JSON)", msgspec.json.encode(event), fields)


def _perper(record: SeenRecord) -> ProtocolFrame:
    data = encode_byte_array(record.payload)
    fields = [
        Field("type", 1, "byte array"),
        Field("length", 4, str(len(record.payload))),
        Field("payload", len(record.payload), ""),
    ]
    return _frame("perper", f"cache value under key {record.index}", data, fields)


def _ambrosia(record: SeenRecord) -> ProtocolFrame:
    data = encode(Call(destination=None, method=0, rpc_type=RpcType.IMPULSE, arguments=record.payload))
    body = zigzag_int(0)
    fields = [
        Field("size", len(data) - 3 - len(body) - len(record.payload), ""),
        Field("type", 1, f"RPC ({int(Type.RPC)})"),
        Field("kind", 1, "call"),
        Field("method", len(body), "0"),
        Field("rpc type", 1, "impulse"),
        Field("arguments", len(record.payload), ""),
    ]
    return _frame("ambrosia", "RPC delivered from the inbox", data, fields)
