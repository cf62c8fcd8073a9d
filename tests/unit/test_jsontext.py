"""What a JSON text would unfold to, and whether it is text."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from headrace import jsontext
from headrace.jsontext import check_utf8, count_values

STRINGS = ["", "a,b", "\\", '"', '[{\\",', '\\\\"', "é,[", "\n,\t{"]


@pytest.fixture(params=[1, 2, 3, 7, 1 << 18])
def piece_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(jsontext, "PIECE_BYTES", request.param)
    return int(request.param)


def some_value(dice: random.Random, depth: int = 0) -> Any:
    kind = dice.random()
    if depth > 4 or kind < 0.5:
        return dice.choice([1, -1.5e3, None, True, *STRINGS])
    if kind < 0.75:
        return [some_value(dice, depth + 1) for _ in range(dice.randrange(5))]
    return {dice.choice(STRINGS) + str(number): some_value(dice, depth + 1) for number in range(dice.randrange(5))}


def counted(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    if inside is None:
        return 1
    return 1 + (sum(map(counted, inside)) if inside else 1)


def test_values_are_counted_and_strings_are_one_value_each(piece_bytes: int) -> None:
    dice = random.Random(piece_bytes)
    for _ in range(300):
        value = some_value(dice)
        for text in (msgspec.json.encode(value), msgspec.json.format(msgspec.json.encode(value))):
            assert count_values(text) == counted(value), text


@pytest.mark.parametrize(("text", "count"), [(b"", 1), (b"[[[[", 5), (b"[1,2", 3), (b'["a,', 2), (b'["\\', 2)])
def test_half_a_text_counts_for_what_it_has(text: bytes, count: int, piece_bytes: int) -> None:
    assert count_values(text) == count


def test_text_is_utf8_wherever_it_is_cut(piece_bytes: int) -> None:
    check_utf8("aé€😀".encode() * 10)
    for wrong in (b"abc\xff", "é".encode()[:1], b"\xed\xa0\x80"):
        with pytest.raises(UnicodeDecodeError):
            check_utf8(b"x" * 10 + wrong)
