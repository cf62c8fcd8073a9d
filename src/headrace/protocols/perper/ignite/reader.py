"""A bounded reader over one request or response body, and forms: how a kind of value is read and written."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NamedTuple

from headrace.protocols.perper.errors import BinaryError
from headrace.protocols.perper.ignite import binary

I16 = Struct("<h")
I32 = Struct("<i")
I64 = Struct("<q")


_Int = int  # inside of the class `int` is a method


class Reader:
    """Reads typed values one after the other; whatever passes the end is the peer's error."""

    __slots__ = ("data", "end", "limits", "position")

    def __init__(
        self, data: bytes, position: int = 0, end: int | None = None, limits: binary.Limits | None = None
    ) -> None:
        self.data = data
        self.position = position
        self.end = len(data) if end is None else end
        self.limits = limits or binary.Limits()

    def _take(self, size: int) -> int:
        position = self.position
        if position + size > self.end:
            raise BinaryError(f"body ends at byte {self.end}; {size} bytes are wanted at {position}")
        self.position = position + size
        return position

    def byte(self) -> int:
        """A signed byte."""
        number = self.data[self._take(1)]
        return number - 256 if number > 127 else number

    def bool(self) -> bool:
        """One byte, not zero for true."""
        return self.data[self._take(1)] != 0

    def short(self) -> int:
        """An int16."""
        number: int = I16.unpack_from(self.data, self._take(2))[0]
        return number

    def int(self) -> int:
        """An int32."""
        number: int = I32.unpack_from(self.data, self._take(4))[0]
        return number

    def long(self) -> _Int:
        """An int64."""
        number: _Int = I64.unpack_from(self.data, self._take(8))[0]
        return number

    def count(self, item_bytes: _Int = 1) -> _Int:
        """An int32 that counts items of at least `item_bytes` each; refused when they cannot fit in what is left."""
        number = self.int()
        if number < 0 or number * item_bytes > self.end - self.position:
            raise BinaryError(f"count {number} does not fit in the {self.end - self.position} bytes that are left")
        return number

    def elements(self, item_bytes: _Int = 1) -> _Int:
        """A count of what is read one by one."""
        number = self.count(item_bytes)
        self.limits.take(number)
        return number

    def raw(self, size: _Int) -> bytes:
        """The next `size` bytes as they are."""
        position = self._take(size)
        return self.data[position : position + size]

    def object(self) -> bytes:
        """A data object in its stored form."""
        value, self.position = binary.read_object(self.data, self.position, self.end, self.limits)
        return value

    def string(self) -> str | None:
        """A string object or null."""
        text, self.position = binary.decode_string(self.data, self.position, self.end)
        return text

    def text(self) -> str:
        """A string object that must not be null."""
        text = self.string()
        if text is None:
            raise BinaryError(f"string expected at {self.position - 1}, found null")
        return text

    def finish(self) -> None:
        """The body must be used up."""
        if self.position != self.end:
            raise BinaryError(f"{self.end - self.position} bytes are left over after the body")


class Form(NamedTuple):
    """How a value stands in a body: both directions."""

    read: Callable[[Reader], Any]
    write: Callable[[Any], bytes]


BYTE: Final = Form(Reader.byte, lambda number: bytes((number & 0xFF,)))
BOOL: Final = Form(Reader.bool, lambda value: b"\1" if value else b"\0")
INT: Final = Form(Reader.int, I32.pack)
LONG: Final = Form(Reader.long, I64.pack)
STRING: Final = Form(Reader.string, binary.encode_string)
TEXT: Final = Form(Reader.text, binary.encode_string)
OBJECT: Final = Form(Reader.object, lambda value: value)


def many(form: Form, item_bytes: int = 1) -> Form:
    """A count and as many values, of at least `item_bytes` each."""
    read, write = form
    return Form(
        lambda reader: [read(reader) for _ in range(reader.elements(item_bytes))],
        lambda values: I32.pack(len(values)) + b"".join(map(write, values)),
    )


def row(*forms: Form, of: Callable[..., Any] = lambda *values: values) -> Form:
    """Values of these forms one after the other; `of` makes what is read of them."""
    return Form(
        lambda reader: of(*[form.read(reader) for form in forms]),
        lambda values: b"".join([form.write(value) for form, value in zip(forms, values, strict=True)]),
    )
