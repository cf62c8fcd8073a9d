"""The fields of a frame's body and their order: one description that both reading and writing follow.

    short := length u16, bytes       long := length u32, bytes

A `FieldReader` never reads past the frame it was given: a field that would is the peer's fault, named.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any, Literal, NamedTuple

import msgspec

from headrace.protocols.wallaroo.frames import LocalFault, PeerFault

SHORT_BYTES_MAX = 0xFFFF

ByteOrder = Literal["<", ">"]
Pairs = tuple[tuple[int, int], ...]


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

    def integer(self, code: str, field: str) -> int:
        """A number, by the code that `struct` has for it."""
        value: int = struct.unpack(self._order + code, self.take(struct.calcsize(self._order + code), field))[0]
        return value

    def text(self, code: str, field: str) -> bytes:
        """Bytes behind their length, whose code is given: `H` for a short one, `I` for a long one."""
        return self.take(self.integer(code, f"the length of {field}"), field)

    def rest(self) -> bytes:
        return self.take(self.left, "the rest")

    def count(self, size_each_min: int, field: str) -> int:
        """A u32 count, refused before anything is built when so many items cannot be in the frame."""
        count = self.integer("I", f"the count of {field}")
        if count * size_each_min > self.left:
            raise PeerFault(f"Unable to decode {self._what}: {count} {field} cannot be in {self.left} bytes")
        return count

    def pairs(self, count: int, field: str) -> Pairs:
        return tuple(struct.iter_unpack(self._order + "QQ", self.take(count * 16, field)))

    def pairs_to_end(self, field: str) -> Pairs:
        """(u64, u64) pairs without a count, to the end of the frame."""
        if self.left % 16:
            raise PeerFault(f"Unable to decode {self._what}: {self.left} bytes of {field} are not pairs of 16 bytes")
        return self.pairs(self.left // 16, field)

    def end(self) -> None:
        if self.left:
            raise PeerFault(f"Unable to decode {self._what}: {self.left} bytes too many")


def packed(order: ByteOrder, codes: str, *values: int) -> bytes:
    """`struct.pack` with our own error for a number that does not fit its field."""
    try:
        return struct.pack(order + codes, *values)
    except struct.error as error:
        raise LocalFault(f"{values} do not fit the fields {codes!r}: {error}") from error


def packed_text(code: str, order: ByteOrder, value: bytes | None) -> bytes:
    value = value or b""
    return packed(order, code, len(value)) + value


def packed_pairs(order: ByteOrder, values: Pairs) -> bytes:
    return packed(order, f"{2 * len(values)}Q", *chain.from_iterable(values))


class Field(NamedTuple):
    """How one field is read and written, and how many bytes it has at least."""

    read: Callable[[FieldReader], Any]
    write: Callable[[ByteOrder, Any], bytes]
    bytes_min: int = 0


def integer(code: str, name: str) -> Field:
    size = struct.calcsize(f"<{code}")
    return Field(lambda reader: reader.integer(code, name), lambda order, value: packed(order, code, value), size)


boolean, u32, u64, i64 = (partial(integer, code) for code in "?IQq")


def short(name: str) -> Field:
    return Field(lambda reader: reader.text("H", name), partial(packed_text, "H"), 2)


def long_or_nothing(name: str) -> Field:
    """A long text that may be missing at the end of a frame; written it always is."""
    return Field(lambda reader: reader.text("I", name) if reader.left else b"", partial(packed_text, "I"))


def pairs_to_end(name: str) -> Field:
    return Field(lambda reader: reader.pairs_to_end(name), packed_pairs)


def counted_pairs(name: str) -> Field:
    return Field(
        lambda reader: reader.pairs(reader.count(16, name), name),
        lambda order, values: packed(order, f"I{2 * len(values)}Q", len(values), *chain.from_iterable(values)),
    )


def counted(name: str, *fields: Field) -> Field:
    """A u32 count and so many items: values if there is one field, else tuples."""
    bytes_min = sum(field.bytes_min for field in fields)

    def read(reader: FieldReader) -> tuple[Any, ...]:
        items = (tuple(field.read(reader) for field in fields) for _ in range(reader.count(bytes_min, name)))
        return tuple(item if len(fields) > 1 else item[0] for item in items)

    def write(order: ByteOrder, values: tuple[Any, ...]) -> bytes:
        items = (value if len(fields) > 1 else (value,) for value in values)
        parts = [field.write(order, part) for item in items for field, part in zip(fields, item, strict=True)]
        return packed(order, "I", len(values)) + b"".join(parts)

    return Field(read, write, 4)


REST = Field(FieldReader.rest, lambda order, value: value)


class Layout:
    """The body of one kind of frame: its fields in order.

    Where they are not the first fields of the struct, `make` builds it from them, and `values` takes them from it.
    """

    def __init__(
        self,
        kind: type,
        *fields: Field,
        make: Callable[..., Any] | None = None,
        values: Callable[[Any], tuple[Any, ...]] = msgspec.structs.astuple,
    ) -> None:
        self.kind = kind
        self._fields = fields
        self._make = make or kind
        self._values = values

    def read(self, reader: FieldReader) -> Any:
        return self._make(*[field.read(reader) for field in self._fields])

    def write(self, order: ByteOrder, frame: Any) -> bytes:
        return b"".join([field.write(order, value) for field, value in zip(self._fields, self._values(frame))])  # noqa: B905
