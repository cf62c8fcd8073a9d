"""Reading and writing the primitive fields of one frame body, in either byte order.

    short := length u16, bytes       long := length u32, bytes

A `FieldReader` never reads past the frame it was given: a field that would is the peer's fault, named.
"""

from __future__ import annotations

import struct
from typing import Literal

from headrace.protocols.wallaroo.frames import LocalFault, PeerFault

SHORT_BYTES_MAX = 0xFFFF

ByteOrder = Literal["<", ">"]


class FieldReader:
    """A position in one frame body."""

    __slots__ = ("_body", "_order", "_position", "_what")

    def __init__(self, body: bytes, order: ByteOrder, what: str, position: int = 0) -> None:
        self._body = body
        self._order = order
        self._what = what
        self._position = position

    @property
    def left(self) -> int:
        return len(self._body) - self._position

    def take(self, count: int, field: str) -> bytes:
        if count > self.left:
            raise PeerFault(f"Unable to decode {self._what}: {field} needs {count} bytes, {self.left} are left")
        start = self._position
        self._position = start + count
        return self._body[start : start + count]

    def _integer(self, code: str, size: int, field: str) -> int:
        value: int = struct.unpack(self._order + code, self.take(size, field))[0]
        return value

    def u8(self, field: str) -> int:
        return self._integer("B", 1, field)

    def u16(self, field: str) -> int:
        return self._integer("H", 2, field)

    def u32(self, field: str) -> int:
        return self._integer("I", 4, field)

    def u64(self, field: str) -> int:
        return self._integer("Q", 8, field)

    def i64(self, field: str) -> int:
        return self._integer("q", 8, field)

    def short(self, field: str) -> bytes:
        return self.take(self.u16(f"the length of {field}"), field)

    def long(self, field: str) -> bytes:
        return self.take(self.u32(f"the length of {field}"), field)

    def rest(self) -> bytes:
        return self.take(self.left, "the rest")

    def count(self, size_each_min: int, field: str) -> int:
        """A u32 count, refused before anything is built when so many items cannot be in the frame."""
        count = self.u32(f"the count of {field}")
        if count * size_each_min > self.left:
            raise PeerFault(f"Unable to decode {self._what}: {count} {field} cannot be in {self.left} bytes")
        return count

    def pairs_to_end(self, field: str) -> tuple[tuple[int, int], ...]:
        """(u64, u64) pairs without a count, to the end of the frame."""
        if self.left % 16:
            raise PeerFault(f"Unable to decode {self._what}: {self.left} bytes of {field} are not pairs of 16 bytes")
        return tuple(struct.iter_unpack(self._order + "QQ", self.rest()))

    def pairs(self, count: int, field: str) -> tuple[tuple[int, int], ...]:
        return tuple(struct.iter_unpack(self._order + "QQ", self.take(count * 16, field)))

    def end(self) -> None:
        if self.left:
            raise PeerFault(f"Unable to decode {self._what}: {self.left} bytes too many")


def packed(order: ByteOrder, codes: str, *values: int) -> bytes:
    """`struct.pack` with our own error for a number that does not fit its field."""
    try:
        return struct.pack(order + codes, *values)
    except struct.error as error:
        raise LocalFault(f"{values} do not fit the fields {codes!r}: {error}") from error


def short(order: ByteOrder, value: bytes) -> bytes:
    if len(value) > SHORT_BYTES_MAX:
        raise LocalFault(f"{len(value)} bytes do not fit a field of at most {SHORT_BYTES_MAX}")
    return packed(order, "H", len(value)) + value


def pairs(order: ByteOrder, values: tuple[tuple[int, int], ...]) -> bytes:
    flat = [number for pair in values for number in pair]
    return packed(order, f"{len(flat)}Q", *flat)
