"""The newer framing (from July 2024), for the second listener: a greeting, 32-bit lengths, routes in CBOR.

```
once, each side   1 byte: protocol version = 1
frame             u32 big-endian length N | N bytes of CBOR, at most 16 MiB
CBOR              array(4) [ route onward, route return, bytes payload, text tracing context | null ]
route             array of [ uint type, bytes value ]
```

An array of three (no tracing context) is read as well. The payload inside is BARE, exactly as in the original framing.
Only what these messages need of CBOR is here: integers, byte and text strings, arrays of definite length, and null.
"""

from __future__ import annotations

import struct
from typing import Final

from headrace.protocols.errors import LocalProtocolError, RemoteProtocolError
from headrace.protocols.ockam.routing import (
    ADDRESS_TYPE_MAX,
    REPLY_OVERHEAD_BYTES_MAX,
    Address,
    Message,
    Route,
    answerable,
    check_hops,
)

PROTOCOL_VERSION: Final = 1
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024

_UNSIGNED: Final = 0
_BYTES: Final = 2
_TEXT: Final = 3
_ARRAY: Final = 4
_NULL: Final = b"\xf6"
_KIND_NAMES: Final = (
    "unsigned integer",
    "negative integer",
    "byte string",
    "text string",
    "array",
    "map",
    "tag",
    "simple value",
)
_WIDTHS: Final = {24: 1, 25: 2, 26: 4, 27: 8}
_LENGTH: Final = struct.Struct(">I")


def encode_head(kind: int, value: int) -> bytes:
    """The first bytes of an item: its kind and its value or length, in the shortest form."""
    if value < 24:
        return bytes((kind << 5 | value,))
    for extra, width in _WIDTHS.items():
        if value < 1 << (8 * width):
            return bytes((kind << 5 | extra,)) + value.to_bytes(width, "big")
    raise LocalProtocolError(f"{value} does not fit in 64 bits")


def encode_route(route: Route) -> bytes:
    out = bytearray(encode_head(_ARRAY, len(route)))
    for kind, value in route:
        if not 0 <= kind <= ADDRESS_TYPE_MAX:
            raise LocalProtocolError(f"address type {kind} is not one byte")
        out += encode_head(_ARRAY, 2) + encode_head(_UNSIGNED, kind) + encode_head(_BYTES, len(value)) + value
    return bytes(out)


class _Items:
    """Reads CBOR items one after the other."""

    def __init__(self, buffer: bytes) -> None:
        self.buffer = buffer
        self.position = 0

    def head(self, expected: int) -> int:
        if self.position >= len(self.buffer):
            raise RemoteProtocolError("the message is cut short")
        first = self.buffer[self.position]
        kind, value = first >> 5, first & 0x1F
        if kind != expected:
            raise RemoteProtocolError(f"a CBOR {_KIND_NAMES[kind]} stands where a {_KIND_NAMES[expected]} should")
        self.position += 1
        if value < 24:
            return value
        width = _WIDTHS.get(value)
        if width is None:
            raise RemoteProtocolError("CBOR items of indefinite length are not part of this protocol")
        raw = self.take(width)
        return int.from_bytes(raw, "big")

    def take(self, count: int) -> bytes:
        stop = self.position + count
        if stop > len(self.buffer):
            raise RemoteProtocolError("the message is cut short")
        raw = self.buffer[self.position : stop]
        self.position = stop
        return raw

    def route(self) -> Route:
        count = self.head(_ARRAY)
        if count * 3 > len(self.buffer) - self.position:
            raise RemoteProtocolError(f"{count} addresses are announced and the message is shorter")
        check_hops(count)
        return tuple(self.address() for _ in range(count))

    def address(self) -> Address:
        if self.head(_ARRAY) != 2:
            raise RemoteProtocolError("an address is not a pair")
        kind = self.head(_UNSIGNED)
        if kind > ADDRESS_TYPE_MAX:
            raise RemoteProtocolError(f"address type {kind} is not one byte")
        return Address(kind, self.take(self.head(_BYTES)))

    def text_or_null(self) -> str | None:
        if self.buffer[self.position : self.position + 1] == _NULL:
            self.position += 1
            return None
        try:
            return self.take(self.head(_TEXT)).decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError("a text is not UTF-8") from error


def decode_message(data: bytes) -> Message:
    items = _Items(data)
    fields = items.head(_ARRAY)
    if fields not in (3, 4):
        raise RemoteProtocolError(f"a message has four fields, not {fields}")
    onward = items.route()
    before = items.position
    returning = items.route()
    route_size = items.position - before
    payload = items.take(items.head(_BYTES))
    tracing = items.text_or_null() if fields == 4 else None
    if items.position != len(data):
        raise RemoteProtocolError(f"{len(data) - items.position} bytes are left over")
    return answerable(Message(onward, returning, payload, tracing), route_size)


class CborFraming:
    """Four bytes of length before each CBOR message, after a greeting of one byte."""

    name = "cbor"
    greeting = bytes((PROTOCOL_VERSION,))
    header_bytes = 4
    sent_bytes_max = FRAME_BYTES_MAX
    record_bytes_max = FRAME_BYTES_MAX - REPLY_OVERHEAD_BYTES_MAX

    def frame_size(self, buffer: bytes, position: int) -> int:
        size = int.from_bytes(buffer[position : position + 4], "big")
        if size > FRAME_BYTES_MAX:
            raise RemoteProtocolError(f"a frame of {size} bytes is announced, above {FRAME_BYTES_MAX}")
        return size

    def decode(self, data: bytes) -> Message:
        return decode_message(data)

    def encode(self, message: Message) -> bytes:
        head, _ = self.envelope(message.onward, message.returning, len(message.payload))
        if message.tracing is None:
            return head + message.payload + _NULL
        text = message.tracing.encode()
        tail = encode_head(_TEXT, len(text)) + text
        body = head[4:] + message.payload + tail
        if len(body) > FRAME_BYTES_MAX:
            raise LocalProtocolError(f"a frame of {len(body)} bytes is above {FRAME_BYTES_MAX}")
        return _LENGTH.pack(len(body)) + body

    def envelope(self, onward: Route, returning: Route, payload_bytes: int) -> tuple[bytes, bytes]:
        routes = encode_head(_ARRAY, 4) + encode_route(onward) + encode_route(returning)
        head = routes + encode_head(_BYTES, payload_bytes)
        size = len(head) + payload_bytes + len(_NULL)
        if size > FRAME_BYTES_MAX:
            raise LocalProtocolError(f"a frame of {size} bytes is above {FRAME_BYTES_MAX}")
        return _LENGTH.pack(size) + head, _NULL
