"""The messages of the fabric's gRPC services on the wire. Pure bytes; the work is protobuf's, but for the stream items.

Fields with zero values are left out: the item with key 0 is a message of no bytes at all. Unknown fields are read over,
so newer clients are understood. `descriptors` has the messages and the methods.

On the stream each message has a prefix of five bytes: 0 for uncompressed, and its length as a big-endian u32.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Any, Final

from google.protobuf.message import DecodeError

from headrace.protocols.errors import RemoteProtocolError

# gRPC's own default in every implementation.
DEFAULT_MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024

PREFIX = Struct(">BI")

Message = Any
"""A message that was received: the fields are its attributes."""
Fields = dict[str, Any]
"""What is sent; fields that are not given are zero."""


class MessageError(RemoteProtocolError):
    """The peer's message cannot be read: INVALID_ARGUMENT."""


class TooLong(MessageError):
    """The peer's message passes a limit: RESOURCE_EXHAUSTED."""


def decode(kind: Any, data: bytes) -> Message:
    """A message of a class of `descriptors.MESSAGES`."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise MessageError(f"not a {kind.DESCRIPTOR.full_name}: {error}") from None


def encode(kind: Any, fields: Fields) -> bytes:
    """The opposite of `decode`; the same fields are always the same bytes."""
    data: bytes = kind(**fields).SerializeToString(deterministic=True)
    return data


def varint(value: int) -> bytes:
    """A number, seven bits a byte; negative ones as their 64-bit pattern."""
    value &= 0xFFFFFFFFFFFFFFFF
    if value < 0x80:
        return bytes((value,))
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def prefixed(data: bytes) -> bytes:
    """A message with the five bytes gRPC puts before it."""
    return PREFIX.pack(0, len(data)) + data


def encode_keys(keys: Iterable[int]) -> bytes:
    """Many StreamItemsResponse messages with their prefixes: the hot path of a listener."""
    parts: list[bytes] = []
    for key in keys:
        if key == 0:
            parts.append(b"\0\0\0\0\0")
        elif 0 < key < 0x80:
            parts.append(b"\0\0\0\0\2\x08%c" % key)
        else:
            number = varint(key)
            parts.append(b"\0\0\0\0%c\x08%b" % (len(number) + 1, number))
    return b"".join(parts)


class MessageBuffer:
    """Cuts the data of one call into messages. Bounded by `bytes_max`."""

    __slots__ = ("_bytes_max", "_data")

    def __init__(self, bytes_max: int = DEFAULT_MESSAGE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._data = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are whole now."""
        self._data += data
        messages: list[bytes] = []
        position = 0
        while len(self._data) - position >= PREFIX.size:
            compressed, length = PREFIX.unpack_from(self._data, position)
            if compressed:
                raise MessageError("compressed messages are not understood; grpc-accept-encoding says identity")
            if length > self._bytes_max:
                raise TooLong(f"message of {length} bytes; the most is {self._bytes_max}")
            end = position + PREFIX.size + length
            if end > len(self._data):
                break
            messages.append(bytes(self._data[position + PREFIX.size : end]))
            position = end
        del self._data[:position]
        return messages

    @property
    def kept_bytes(self) -> int:
        """What waits for the rest of its message."""
        return len(self._data)
