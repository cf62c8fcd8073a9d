"""BARE, the part of it that Ockam streams use: strict in both directions.

```
uint         little-endian base 128: 7 bits a byte, the high bit says that more follow; at most 64 bits (10 bytes)
data         uint length, bytes
string       uint length, UTF-8
optional<T>  00, or 01 and T
enum, union  uint position (then the member)
[]T          uint count, items
struct       its fields in order: no names, no tags
```

BARE does not describe itself, so bytes read with the wrong schema easily decode to nonsense. The defence is to be
strict: an integer is read only in its shortest form and only up to 64 bits, text only as UTF-8, and nothing may be
left over.
"""

from __future__ import annotations

from typing import Final

from headrace.protocols.errors import LocalProtocolError, RemoteProtocolError

UINT_MAX: Final = (1 << 64) - 1
UINT_BYTES_MAX: Final = 10

_SINGLE: Final = [bytes((value,)) for value in range(256)]


def encode_uint(value: int) -> bytes:
    """The shortest form of an unsigned integer of at most 64 bits."""
    if 0 <= value < 0x80:
        return _SINGLE[value]
    if not 0 <= value <= UINT_MAX:
        raise LocalProtocolError(f"{value} is not an unsigned 64-bit integer")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_data(value: bytes) -> bytes:
    return encode_uint(len(value)) + value


def encode_string(value: str) -> bytes:
    try:
        return encode_data(value.encode())
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"{value!r} has no UTF-8 form") from error


def encode_optional(encoded: bytes | None) -> bytes:
    """An optional whose present value is already encoded."""
    return b"\x00" if encoded is None else b"\x01" + encoded


class Reader:
    """Reads fields one after the other from `buffer[position:end]`."""

    __slots__ = ("buffer", "end", "position")

    def __init__(self, buffer: bytes, position: int = 0, end: int | None = None) -> None:
        self.buffer = buffer
        self.position = position
        self.end = len(buffer) if end is None else end

    def uint(self) -> int:
        buffer, position = self.buffer, self.position
        end = min(self.end, position + UINT_BYTES_MAX)
        value = shift = 0
        while position < end:
            byte = buffer[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte == 0 and shift:
                    raise RemoteProtocolError("an integer is not in its shortest form")
                if value > UINT_MAX:
                    raise RemoteProtocolError("an integer is above 64 bits")
                self.position = position
                return value
            shift += 7
        raise RemoteProtocolError("an integer is above 64 bits" if shift == 70 else "an integer is cut short")

    def data(self) -> bytes:
        length = self.uint()
        start = self.position
        stop = start + length
        if stop > self.end:
            raise RemoteProtocolError(f"{length} bytes are announced and {self.end - start} are there")
        self.position = stop
        return self.buffer[start:stop]

    def string(self) -> str:
        value = self.data()
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError("a string is not UTF-8") from error

    def tag(self, count: int) -> int:
        """The position in an enum or union of `count` members, or the flag of an optional (two members)."""
        value = self.uint()
        if value >= count:
            raise RemoteProtocolError(f"tag {value} is not below {count}")
        return value

    def optional_string(self) -> str | None:
        return self.string() if self.tag(2) else None

    def optional_uint(self) -> int | None:
        return self.uint() if self.tag(2) else None

    def left(self) -> int:
        """How many bytes have not been read."""
        return self.end - self.position

    def finish(self) -> None:
        """Nothing may be left over."""
        if self.position != self.end:
            raise RemoteProtocolError(f"{self.end - self.position} bytes are left over")
