"""CBOR, checked against the examples of RFC 8949 appendix A that JSON's data model has."""

from __future__ import annotations

import contextlib
import math
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocols.errors import LocalProtocolError, RemoteProtocolError
from headrace.protocols.futoin import cbor

RFC_EXAMPLES: list[tuple[str, Any]] = [
    ("00", 0), ("17", 23), ("1818", 24), ("1903e8", 1000), ("1a000f4240", 1000000), ("1bffffffffffffffff", 2**64 - 1),
    ("20", -1), ("3863", -100), ("3903e7", -1000), ("f4", False), ("f5", True), ("f6", None), ("40", b""),
    ("4401020304", b"\x01\x02\x03\x04"), ("60", ""), ("62c3bc", "ü"), ("80", []), ("83010203", [1, 2, 3]), ("a0", {}),
    ("a26161016162820203", {"a": 1, "b": [2, 3]}), ("fb3ff199999999999a", 1.1), ("fbc010666666666666", -4.1),
]  # fmt: skip
DECODED_ONLY: list[tuple[str, Any]] = [
    ("f93e00", 1.5), ("fa47c35000", 100000.0), ("f7", None), ("9fff", []),
    ("9f01820203ff", [1, [2, 3]]),
    ("bf61610161629f0203ffff", {"a": 1, "b": [2, 3]}), ("5f42010243030405ff", b"\1\2\3\4\5"),
    ("7f657374726561646d696e67ff", "streaming"),
    ("c074323031332d30332d32315432303a30343a30305a", "2013-03-21T20:04:00Z"),
    ("1800", 0),
]  # fmt: skip
MALFORMED = [
    "", "18", "19 01", "1c", "1f", "3f", "61", "62 61", "82 01", "a1 61 61", "a1 01 02", "9f", "9f 01", "5f",
    "5f 61 61 ff",
    "5f 5f ff ff", "7f 41 61 ff", "7f 61 c3 61 a9 ff", "ff", "00 00", "61 ff", "df", "f8 ff", "f8 14", "f0", "fc",
    "9b ff ff ff ff ff ff ff ff",
    "bb ff ff ff ff ff ff ff ff", "5b 7f ff ff ff ff ff ff ff", "bf", "bf 61", "fb 00", "c0",
]  # fmt: skip


@pytest.mark.parametrize(("data", "value"), RFC_EXAMPLES)
def test_both_ways(data: str, value: Any) -> None:
    assert cbor.decode(bytes.fromhex(data)) == value
    assert cbor.encode(value).hex() == data


@pytest.mark.parametrize(("data", "value"), DECODED_ONLY)
def test_decoded_only(data: str, value: Any) -> None:
    assert cbor.decode(bytes.fromhex(data)) == value


@pytest.mark.parametrize("data", MALFORMED)
def test_malformed(data: str) -> None:
    with pytest.raises(RemoteProtocolError):
        cbor.decode(bytes.fromhex(data))


def test_floats_of_every_width() -> None:
    assert cbor.decode(b"\xf9" + struct.pack(">e", 0.5)) == 0.5
    assert math.isnan(cbor.decode(bytes.fromhex("f97e00")))
    assert cbor.decode(bytes.fromhex("f97c00")) == math.inf


def test_nesting_limit() -> None:
    cbor.decode(b"\x81" * cbor.NESTING_MAX + b"\x00")
    with pytest.raises(RemoteProtocolError, match="nesting"):
        cbor.decode(b"\x81" * (cbor.NESTING_MAX + 1) + b"\x00")
    with pytest.raises(RemoteProtocolError, match="nesting"):
        cbor.decode(b"\xc0" * 100_000 + b"\x00")


def test_what_has_no_form() -> None:
    for value in (object(), 2**64, -(2**64) - 1, [2**64], {"a": 2**64}):
        with pytest.raises(LocalProtocolError):
            cbor.encode(value)


def test_a_value_too_deep_to_encode_is_an_error_and_not_the_end_of_the_process() -> None:
    deep: list[Any] = []
    for _ in range(50_000):
        deep = [deep]
    with pytest.raises(RecursionError):
        cbor.encode(deep)


@pytest.mark.parametrize("tag", [*range(64), 100, 256, 258, 260, 261, 1004, 43000, 55799, 2**32, 2**64 - 1])
def test_every_tag_is_stepped_over(tag: int) -> None:
    head = cbor.encode(tag)
    tagged = bytes([head[0] | 0xC0]) + head[1:]
    for inner in (b"\x00", b"\x41\xff", b"\x61a", b"\x82\x01\x80", b"\xa1\x61a\xa0"):
        assert cbor.decode(tagged + inner) == cbor.decode(inner)
        assert cbor.decode(b"\xa1\x61k\x81" + tagged + inner) == {"k": [cbor.decode(inner)]}
    assert cbor.decode(b"\xa1" + tagged + b"\x61a\x00") == {"a": 0}


def test_no_memory_is_taken_for_what_is_only_announced() -> None:
    tracemalloc.start()
    try:
        for kind in "5b", "7b", "9b", "bb", "5b 7f", "9f 9a 7f":
            with pytest.raises(RemoteProtocolError):
                cbor.decode(bytes.fromhex(kind).ljust(9, b"\x0f"))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=10,
)


@settings(max_examples=50)
@given(json_values)
def test_round_trip(value: Any) -> None:
    assert cbor.decode(cbor.encode(value)) == value


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        cbor.decode(data)
