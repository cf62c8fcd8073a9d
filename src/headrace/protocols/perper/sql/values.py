"""Expressions that need no DuckDB: constants, and `?` by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from headrace.protocols.perper.ignite.binary import NULL_OBJECT, encode_long, encode_string
from headrace.protocols.perper.sql import kinds
from headrace.protocols.perper.sql.text import Words, argument

_WORDS = {"NULL": NULL_OBJECT, "TRUE": b"\x08\1", "FALSE": b"\x08\0"}


def constant(words: Words, arguments: Sequence[bytes]) -> bytes | None:
    """The data object that an expression means; `arguments` are those of `?`. None for one that must be computed."""
    is_negative = len(words) == 2 and words[0].text == "-" and words[1].kind == "number"
    if len(words) != 1 and not is_negative:
        return None
    word = words[-1]
    if word.kind == "parameter":
        return argument(word, arguments)
    if word.kind == "string":
        return encode_string(word.text[1:-1].replace("''", "'"))
    if word.kind == "number":
        return _number(("-" if is_negative else "") + word.text)
    return _WORDS.get(word.word) if word.kind == "name" else None


def _number(text: str) -> bytes | None:
    if "e" in text.lower():
        return kinds.write(kinds.DOUBLE, float(text))
    if "." in text:
        return kinds.write(kinds.decimal(scale=1), Decimal(text))
    return encode_long(int(text)) if -(2**63) <= int(text) < 2**63 else None
