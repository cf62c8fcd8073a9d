"""JSON as it came: what it would unfold to, and whether it is text at all, before anything is made of it.

A value of two bytes may become an object of a hundred, and msgspec makes all of them in one go, while no other thread
of Python runs. What is only passed on stays as it is (`msgspec.Raw`), but then nobody has looked at its strings: they
must be UTF-8. Both looks take a large text in pieces, so that others run in between.
"""

from __future__ import annotations

import codecs
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.units import KIB

PIECE_BYTES: Final = 256 * KIB
_QUOTE, _COMMA, _BRACE, _BRACKET_OR_BRACE = ord('"'), ord(","), ord("{"), ord("[") ^ ord("{")

Text = bytes | bytearray | memoryview


def check_utf8(text: Text) -> None:
    """Raises `UnicodeDecodeError` for bytes that are not UTF-8."""
    if len(text) <= PIECE_BYTES:
        str(text, "utf-8")
        return
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(text)
    for start in range(0, len(view), PIECE_BYTES):
        decoder.decode(view[start : start + PIECE_BYTES])
    decoder.decode(b"", final=True)


def count_values(text: Text) -> int:
    """How many values there are at most, nested ones included: one for each comma and each opening bracket outside of
    strings, and the outermost. That is exact but for empty lists and objects, which count twice. In a text that is not
    JSON it holds for all that comes before the mistake."""
    count, is_inside, is_escaped = 1, False, False
    view = memoryview(text)
    for start in range(0, len(view), PIECE_BYTES):
        piece = bytes(view[start + is_escaped : start + PIECE_BYTES])
        is_escaped = False
        if b"\\" in piece:
            piece = piece.replace(rb"\\", b"")
            is_escaped = piece.endswith(b"\\")
            piece = piece.replace(rb"\"", b"")
        if b'"' not in piece:
            count += 0 if is_inside else int(np.count_nonzero(_between(np.frombuffer(piece, np.uint8))))
            continue
        octets = np.frombuffer(piece, np.uint8)
        inside = np.bitwise_xor.accumulate((octets == _QUOTE).view(np.uint8)).view(bool) ^ is_inside
        count += int(np.count_nonzero(_between(octets) & ~inside))
        is_inside = bool(inside[-1])
    return count


def _between(octets: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Where a comma or an opening bracket is."""
    found: NDArray[np.bool_] = (octets == _COMMA) | ((octets | _BRACKET_OR_BRACE) == _BRACE)
    return found
