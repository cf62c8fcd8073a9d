"""Routed messages and the original framing: what travels on the default port.

```
frame    u16 big-endian length N | N bytes of wire message                          no handshake, both directions
wire v1  uint version = 1 | []address onward | []address return | data payload      address = uint type | data value
wire v2  uint version = 2 | the same three fields | optional<string> tracing context
```

The routing proposal writes the version after the routes; every implementation writes it first, and so do we. Replies
are always v1. A message with an empty onward route is a heartbeat, a frame of length zero is nothing at all.

The length word could carry 65,535 bytes, and that much is received; the reference node refuses to send more than
65,000, and so do we, since a client may be built on the same code.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

import msgspec

from headrace.protocols.errors import LocalProtocolError, RemoteProtocolError
from headrace.protocols.ockam.bare import Reader, encode_data, encode_string, encode_uint

LOCAL: Final = 0
TCP: Final = 1
ADDRESS_TYPE_MAX: Final = 255

WIRE_VERSION: Final = 1
WIRE_VERSION_TRACED: Final = 2

SENT_FRAME_BYTES_MAX: Final = 65_000
# Every reply carries the request's return route. Bounding routes is what makes "a record that was accepted can be
# pulled" true for every puller: see RECORD_BYTES_MAX. Routes in practice have one to four hops of at most 40 bytes.
ROUTE_BYTES_MAX: Final = 1_000
HOPS_MAX: Final = ROUTE_BYTES_MAX // 2
"""An address takes two bytes at least: a route of more hops is too long, and is not even read."""
# What a pull reply adds to that route and the records, in either framing and with room to spare: version, own route,
# lengths, protocol name, request id, count (56 bytes here, 61 in CBOR); and for each record its index and length (14).
REPLY_FIXED_BYTES_MAX: Final = 80
RECORD_FIELDS_BYTES_MAX: Final = 20
REFUSAL_BYTES_MAX: Final = 500
"""What a refusal adds to its route: a confirm, or `error` with a reason."""
REPLY_OVERHEAD_BYTES_MAX: Final = ROUTE_BYTES_MAX + REPLY_FIXED_BYTES_MAX + RECORD_FIELDS_BYTES_MAX
RECORD_BYTES_MAX: Final = SENT_FRAME_BYTES_MAX - REPLY_OVERHEAD_BYTES_MAX


class Unroutable(RemoteProtocolError):
    """A well-formed message that we will not route. It is dropped and counted; the connection lives on."""


class Address(NamedTuple):
    """One hop: a kind of transport and a value that only that transport understands."""

    type: int
    value: bytes

    def __str__(self) -> str:
        return f"{self.type}#{self.value.decode(errors='backslashreplace')}"


Route = tuple[Address, ...]


def local(name: str | bytes) -> Address:
    return Address(LOCAL, name.encode() if isinstance(name, str) else name)


class Message(msgspec.Struct, frozen=True):
    """A payload, where it goes, and how to answer it."""

    onward: Route
    returning: Route
    payload: bytes
    tracing: str | None = None


class LongRoute(RemoteProtocolError):
    """A well-formed message whose return route is longer than we promise to answer. What it asks for is refused along
    that route if a frame can hold it; the connection lives on."""

    def __init__(self, size: int, message: Message) -> None:
        super().__init__(f"the return route takes {size} bytes, above {ROUTE_BYTES_MAX}")
        self.size = size
        self.message = message


def encode_route(route: Route) -> bytes:
    out = bytearray(encode_uint(len(route)))
    for kind, value in route:
        if not 0 <= kind <= ADDRESS_TYPE_MAX:
            raise LocalProtocolError(f"address type {kind} is not one byte")
        out += encode_uint(kind)
        out += encode_data(value)
    return bytes(out)


def read_route(reader: Reader) -> Route:
    count = reader.uint()
    if count * 2 > reader.left():
        raise RemoteProtocolError(f"{count} addresses are announced and {reader.left()} bytes are there")
    check_hops(count)
    hops = []
    for _ in range(count):
        kind = reader.uint()
        if kind > ADDRESS_TYPE_MAX:
            raise RemoteProtocolError(f"address type {kind} is not one byte")
        hops.append(Address(kind, reader.data()))
    return tuple(hops)


def check_hops(count: int) -> None:
    if count > HOPS_MAX:
        raise Unroutable(f"a route of {count} addresses, above {HOPS_MAX}")


def answerable(message: Message, route_bytes: int) -> Message:
    if route_bytes > ROUTE_BYTES_MAX:
        raise LongRoute(route_bytes, message)
    return message


def encode_wire(message: Message) -> bytes:
    """Version 1, or version 2 when there is a tracing context to carry."""
    version = WIRE_VERSION if message.tracing is None else WIRE_VERSION_TRACED
    out = encode_uint(version) + encode_route(message.onward) + encode_route(message.returning)
    out += encode_data(message.payload)
    return out if message.tracing is None else out + b"\x01" + encode_string(message.tracing)


def decode_wire(data: bytes) -> Message:
    reader = Reader(data)
    version = reader.uint()
    if version not in (WIRE_VERSION, WIRE_VERSION_TRACED):
        raise RemoteProtocolError(f"wire version {version} is not known")
    onward = read_route(reader)
    before = reader.position
    returning = read_route(reader)
    route_size = reader.position - before
    payload = reader.data()
    tracing = reader.optional_string() if version == WIRE_VERSION_TRACED else None
    reader.finish()
    return answerable(Message(onward, returning, payload, tracing), route_size)


def encode_bidirectional_record(return_stream: str, message: Message) -> bytes:
    """The record of an Elixir pair: the reply to the message goes to the return stream."""
    return encode_string(return_stream) + encode_data(encode_wire(message))


def decode_bidirectional_record(record: bytes) -> tuple[str, Message]:
    reader = Reader(record)
    return_stream, wire = reader.string(), reader.data()
    reader.finish()
    return return_stream, decode_wire(wire)


class Assembly:
    """Joins received chunks until a whole frame is there, copying each byte once, however large the frame is."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self.held_bytes = 0
        self._needed_bytes = 0

    def join(self, data: bytes) -> bytes | None:
        """The chunk behind what was held back before it; None while a frame is known to be incomplete."""
        if not self._chunks:
            return data
        self._chunks.append(data)
        self.held_bytes += len(data)
        if self.held_bytes < self._needed_bytes:
            return None
        buffer = b"".join(self._chunks)
        self.clear()
        return buffer

    def hold(self, rest: bytes, needed_bytes: int) -> None:
        """Keep the beginning of a frame that will have `needed_bytes` at least."""
        if rest:
            self._chunks = [rest]
            self.held_bytes = len(rest)
            self._needed_bytes = needed_bytes

    def clear(self) -> None:
        self._chunks.clear()
        self.held_bytes = 0


class Framing(Protocol):
    """How messages stand on a connection. Both framings have this shape; everything above them is the same."""

    name: str
    greeting: bytes
    """What each side sends once, before its first frame."""
    header_bytes: int
    """The size of the length word."""
    sent_bytes_max: int
    """The largest frame we send."""
    record_bytes_max: int
    """The largest record that every puller on this framing can be sent."""

    def frame_size(self, buffer: bytes, position: int) -> int:
        """The length word at `position`, where at least `header_bytes` are."""

    def decode(self, data: bytes) -> Message: ...

    def encode(self, message: Message) -> bytes:
        """The whole frame, length word included."""

    def envelope(self, onward: Route, returning: Route, payload_bytes: int) -> tuple[bytes, bytes]:
        """What stands before and after a payload of that size, length word included: for replies by the thousand."""


class LegacyFraming:
    """Two bytes of length before each wire message."""

    name = "legacy"
    greeting = b""
    header_bytes = 2
    sent_bytes_max = SENT_FRAME_BYTES_MAX
    record_bytes_max = RECORD_BYTES_MAX

    def frame_size(self, buffer: bytes, position: int) -> int:
        return buffer[position] << 8 | buffer[position + 1]

    def decode(self, data: bytes) -> Message:
        return decode_wire(data)

    def encode(self, message: Message) -> bytes:
        wire = encode_wire(message)
        return _length_word(len(wire)) + wire

    def envelope(self, onward: Route, returning: Route, payload_bytes: int) -> tuple[bytes, bytes]:
        head = constant_head(onward, returning) + encode_uint(payload_bytes)
        return _length_word(len(head) + payload_bytes) + head, b""


def _length_word(size: int) -> bytes:
    if size > SENT_FRAME_BYTES_MAX:
        raise LocalProtocolError(f"a frame of {size} bytes is above {SENT_FRAME_BYTES_MAX}")
    return size.to_bytes(2, "big")


def constant_head(onward: Route, returning: Route) -> bytes:
    """The bytes after the length word that are the same in every untraced message with these two routes."""
    return encode_uint(WIRE_VERSION) + encode_route(onward) + encode_route(returning)
