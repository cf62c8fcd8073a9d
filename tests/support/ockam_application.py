"""What the published clients put beside and inside the stream protocol. The hub stores it unread.

```
binary                           data                                      an Elixir publisher's input, local to it
stream_bidirectional             string stream | string subscription       a request to an Elixir subscribe service
stream_bidirectional_publisher   string publisher stream | string consumer stream | string subscription
TCP address before August 2021   00 | 4 bytes | u16 little-endian port, or 01 | 8 × u16 little-endian | the port
```
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass
from typing import Final

from headrace.protocols.errors import RemoteProtocolError
from headrace.protocols.ockam.bare import encode_data, encode_string
from headrace.protocols.ockam.codec import encode_payload, open_payload

BINARY: Final = "binary"
BIDIRECTIONAL: Final = "stream_bidirectional"
BIDIRECTIONAL_PUBLISHER: Final = "stream_bidirectional_publisher"


@dataclass(frozen=True, slots=True)
class Binary:
    data: bytes


@dataclass(frozen=True, slots=True)
class Subscribe:
    stream_name: str
    subscription_id: str


@dataclass(frozen=True, slots=True)
class SubscribePublisher:
    publisher_stream: str
    consumer_stream: str
    subscription_id: str


ClientRequest = Binary | Subscribe | SubscribePublisher


def encode_client_request(request: ClientRequest) -> bytes:
    match request:
        case Binary(data):
            return encode_payload(BINARY, encode_data(data))
        case Subscribe(stream, subscription):
            return encode_payload(BIDIRECTIONAL, encode_string(stream) + encode_string(subscription))
        case SubscribePublisher(publisher, consumer, subscription):
            body = encode_string(publisher) + encode_string(consumer) + encode_string(subscription)
            return encode_payload(BIDIRECTIONAL_PUBLISHER, body)


def decode_client_request(payload: bytes) -> ClientRequest:
    protocol, reader = open_payload(payload)
    request: ClientRequest
    if protocol == BINARY:
        request = Binary(reader.data())
    elif protocol == BIDIRECTIONAL:
        request = Subscribe(reader.string(), reader.string())
    elif protocol == BIDIRECTIONAL_PUBLISHER:
        request = SubscribePublisher(reader.string(), reader.string(), reader.string())
    else:
        raise RemoteProtocolError(f"protocol {protocol!r} is not known")
    reader.finish()
    return request


def encode_old_tcp_value(host: str, port: int) -> bytes:
    """The value of a TCP address as Elixir nodes wrote it before August 2021."""
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv4Address):
        return b"\x00" + address.packed + struct.pack("<H", port)
    return b"\x01" + struct.pack("<8HH", *struct.unpack(">8H", address.packed), port)


def decode_old_tcp_value(value: bytes) -> tuple[str, int]:
    if len(value) == 7 and value[0] == 0:
        return str(ipaddress.IPv4Address(value[1:5])), int.from_bytes(value[5:], "little")
    if len(value) == 19 and value[0] == 1:
        groups = struct.unpack("<8H", value[1:17])
        return str(ipaddress.IPv6Address(struct.pack(">8H", *groups))), int.from_bytes(value[17:], "little")
    raise RemoteProtocolError("not a TCP address of the old form")
