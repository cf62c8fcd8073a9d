"""Just enough CBOR (RFC 8949) for FutoIn messages: the data model of JSON, and byte strings.

Lengths are taken only when that many bytes are there, nesting has a limit, and tags are stepped over.
"""

from __future__ import annotations

import struct
from typing import Any

NESTING_MAX = 200

UNSIGNED, NEGATIVE, BYTES, TEXT, ARRAY, MAP, TAG, SIMPLE = range(8)
INDEFINITE = 31
BREAK = 0xFF
_SIMPLE_VALUES = {20: False, 21: True, 22: None, 23: None}
_FLOATS = {25: (">e", 2), 26: (">f", 4), 27: (">d", 8)}


class CborError(ValueError):
    """The bytes are not CBOR, or hold what JSON cannot."""


def decode(data: bytes | memoryview) -> Any:
    """The one value that `data` holds."""
    reader = _Reader(bytes(data))
    value = reader.value(0)
    if reader.at != len(reader.data):
        raise CborError(f"{len(reader.data) - reader.at} bytes follow the value")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        piece = self.data[self.at : self.at + size]
        if len(piece) != size:
            raise CborError("the value is cut short")
        self.at += size
        return piece

    def head(self) -> tuple[int, int, int]:
        """Major type, additional information, argument."""
        first = self.take(1)[0]
        major, info = first >> 5, first & 31
        if info < 24:
            return major, info, info
        if info < 28 and (major != SIMPLE or info == 24):
            return major, info, int.from_bytes(self.take(1 << (info - 24)), "big")
        if (info == INDEFINITE and BYTES <= major <= MAP) or (major == SIMPLE and info in _FLOATS):
            return major, info, 0
        raise CborError(f"byte 0x{first:02x} begins no value")

    def value(self, depth: int) -> Any:
        if depth > NESTING_MAX:
            raise CborError(f"nested more than {NESTING_MAX} deep")
        major, info, argument = self.head()
        if major == UNSIGNED:
            return argument
        if major == NEGATIVE:
            return -1 - argument
        if major in (BYTES, TEXT):
            data = self.chunks(major) if info == INDEFINITE else self.take(argument)
            return data if major == BYTES else data.decode()
        if major == ARRAY:
            return self.array(info, argument, depth + 1)
        if major == MAP:
            return self.map(info, argument, depth + 1)
        if major == TAG:
            return self.value(depth + 1)
        return self.simple(info, argument)

    def simple(self, info: int, argument: int) -> Any:
        if info in _FLOATS:
            form, size = _FLOATS[info]
            return struct.unpack(form, self.take(size))[0]
        if argument in _SIMPLE_VALUES:
            return _SIMPLE_VALUES[argument]
        raise CborError(f"simple value {argument} means nothing here")

    def chunks(self, major: int) -> bytes:
        """A string of unknown length: pieces of the same kind until a break."""
        pieces = []
        while not self.at_break():
            piece_major, info, argument = self.head()
            if piece_major != major or info == INDEFINITE:
                raise CborError("a string of pieces holds something else")
            pieces.append(self.take(argument))
        return b"".join(pieces)

    def array(self, info: int, count: int, depth: int) -> list[Any]:
        if info == INDEFINITE:
            values = []
            while not self.at_break():
                values.append(self.value(depth))
            return values
        self.check_count(count)
        return [self.value(depth) for _ in range(count)]

    def map(self, info: int, count: int, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if info == INDEFINITE:
            while not self.at_break():
                self.pair(found, depth)
            return found
        self.check_count(count)
        for _ in range(count):
            self.pair(found, depth)
        return found

    def pair(self, into: dict[str, Any], depth: int) -> None:
        key = self.value(depth)
        if not isinstance(key, str):
            raise CborError("a map has a key that is not text")
        into[key] = self.value(depth)

    def check_count(self, count: int) -> None:
        """Every item takes a byte at least, so a larger count is a lie that must not reserve memory."""
        if count > len(self.data) - self.at:
            raise CborError("the value is cut short")

    def at_break(self) -> bool:
        if self.at >= len(self.data):
            raise CborError("the value is cut short")
        if self.data[self.at] != BREAK:
            return False
        self.at += 1
        return True


def encode(value: Any) -> bytes:
    """`value`, made of None, bool, int, float, str, bytes, list and dict, in the shortest form."""
    parts: list[bytes] = []
    _write(value, parts)
    return b"".join(parts)


def _head(major: int, argument: int) -> bytes:
    for info, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if argument < 24:
            return bytes([major << 5 | argument])
        if argument < 1 << (8 * size):
            return bytes([major << 5 | info]) + argument.to_bytes(size, "big")
    raise CborError(f"{argument} needs more than 64 bits")


def _write(value: Any, parts: list[bytes]) -> None:
    if value is None:
        parts.append(b"\xf6")
    elif isinstance(value, bool):
        parts.append(b"\xf5" if value else b"\xf4")
    elif isinstance(value, int):
        parts.append(_head(UNSIGNED, value) if value >= 0 else _head(NEGATIVE, -1 - value))
    elif isinstance(value, float):
        parts.append(b"\xfb" + struct.pack(">d", value))
    elif isinstance(value, str):
        data = value.encode()
        parts.append(_head(TEXT, len(data)) + data)
    elif isinstance(value, bytes):
        parts.append(_head(BYTES, len(value)) + value)
    elif isinstance(value, list):
        parts.append(_head(ARRAY, len(value)))
        for item in value:
            _write(item, parts)
    elif isinstance(value, dict):
        parts.append(_head(MAP, len(value)))
        for key, item in value.items():
            _write(key, parts)
            _write(item, parts)
    else:
        raise CborError(f"{type(value).__name__} has no CBOR form here")
