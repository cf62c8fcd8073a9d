"""Data objects of Ignite as people read them."""

from __future__ import annotations

import json
import uuid
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocols.descriptor import Words
from headrace.protocols.perper.ignite.binary import (
    NULL_OBJECT,
    encode_byte_array,
    encode_complex,
    encode_long,
    encode_string,
    field_id,
    schema_id,
    type_id,
    wrap,
)
from headrace.protocols.perper.ignite.shapes import encode_node_id
from headrace.protocols.perper.ignite.types import BinaryType, Field
from headrace.protocols.perper.words import BYTES_MAX, ELEMENTS_MAX, NESTING_MAX, TEXT_MAX, read

NUMBER = type_id("Order")
NAMES = {"item": 9, "count": 4}
IDS = tuple(field_id(name) for name in NAMES)
ORDER = BinaryType(
    NUMBER,
    "Order",
    None,
    [Field(name, code, field_id(name)) for name, code in NAMES.items()],
    False,
    [],
    {schema_id(IDS): IDS},
)
COLOUR = BinaryType(7, "Colour", None, [], True, [("RED", 0), ("BLUE", 1)], {})
KNOWN = {NUMBER: ORDER, 7: COLOUR}
MOMENT = 1_700_000_000_000
ID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")


def said(data: bytes) -> Words | None:
    return read(data, KNOWN.get)


def order(item: str, count: int) -> bytes:
    return encode_complex(NUMBER, list(zip(IDS, (encode_string(item), encode_long(count)), strict=True)))


def array(*objects: bytes) -> bytes:
    return b"\x17" + pack("<ii", -1, len(objects)) + b"".join(objects)


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (encode_string("pear"), "string", "pear"),
        (encode_string(""), "string", ""),
        (encode_long(-7), "long", "-7"),
        (b"\x08\1", "bool", "true"),
        (b"\x06" + pack("<d", 1.5), "double", "1.5"),
        (encode_node_id(ID), "UUID", str(ID)),
        (b"\x0b" + pack("<q", MOMENT), "date", "2023-11-14 22:13:20"),
        (b"\x21" + pack("<qi", MOMENT, 1000), "timestamp", "2023-11-14 22:13:20.000001"),
        (b"\x24" + pack("<q", 3_600_000), "time", "01:00:00"),
        (b"\x1e" + pack("<ii", 2, 1) + b"\x7d", "decimal", "1.25"),
        (encode_byte_array(b"some text"), "bytes", "some text"),
        (encode_byte_array(b"\0\xff"), "bytes", "hex 00ff"),
        (b"\x0e" + pack("<iii", 2, 1, -2), "ints", "[1, -2]"),
        (b"\x12" + pack("<i", 2) + "hé".encode("utf-16-le"), "chars", "hé"),
        (array(encode_string("a"), NULL_OBJECT, encode_long(1)), "array", '["a", null, 1]'),
        (b"\x18" + pack("<ib", 1, 1) + encode_string("ü"), "list", '["ü"]'),
        (b"\x19" + pack("<ib", 1, 1) + encode_long(3) + encode_string("x"), "map", '{"3": "x"}'),
        (b"\x26" + pack("<ii", 7, 1), "enum", "BLUE"),
        (b"\x26" + pack("<ii", 8, 5), "enum", "5"),
        (order("pear", 3), "Order", '{"item": "pear", "count": 3}'),
        (array(wrap(order("fig", 1))), "array", '[{"item": "fig", "count": 1}]'),
    ],
)
def test_an_object_is_read_as_people_write_it(data: bytes, kind: str, text: str) -> None:
    assert said(data) == Words("ignite", kind, text)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xff",
        encode_long(1) + b"\0",
        encode_long(1)[:-1],
        b"\x20" + pack("<i", 5),  # a class
        encode_complex(99, [(1, encode_long(1))]),  # nobody has said which fields it has
        b"\x0b" + pack("<q", 2**62),  # no calendar has that day
    ],
)
def test_what_cannot_be_read_has_no_words(data: bytes) -> None:
    assert said(data) is None


def test_what_is_read_is_bounded() -> None:
    assert said(encode_string("x" * (BYTES_MAX - 5))) is not None
    assert said(encode_string("x" * (BYTES_MAX - 4))) is None
    long = said(encode_string("x" * (TEXT_MAX + 1)))
    assert long is not None
    assert long.text == "x" * TEXT_MAX + "…"
    deep, deeper = encode_long(1), encode_long(1)
    for _ in range(NESTING_MAX):
        deep = array(deep)
    assert said(deep) is not None
    deeper = array(deep)
    assert said(deeper) is None
    assert said(array(*[NULL_OBJECT] * (ELEMENTS_MAX // 2 - 1))) is not None, "counted when measured and when read"
    assert said(array(*[NULL_OBJECT] * (ELEMENTS_MAX // 2))) is None


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda data: order("x", 1)[:30] + data))
def test_no_bytes_are_an_error(data: bytes) -> None:
    words = said(data)
    assert words is None or isinstance(words.text, str)


@given(st.recursive(st.text(max_size=5) | st.none(), lambda each: st.lists(each, max_size=3), max_leaves=8))
def test_what_was_written_is_what_is_read(value: object) -> None:
    def written(one: object) -> bytes:
        if isinstance(one, list):
            return array(*[written(each) for each in one])
        return encode_string(one if isinstance(one, str) else None)

    words = said(written([value]))
    assert words is not None
    assert json.loads(words.text) == [value]
