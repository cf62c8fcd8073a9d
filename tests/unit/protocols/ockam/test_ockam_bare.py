"""BARE against an independent implementation, and against what must be refused."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import bare as oracle
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.protocols.errors import LocalProtocolError, RemoteProtocolError
from headrace.protocols.ockam.bare import UINT_MAX, Reader, encode_data, encode_optional, encode_string, encode_uint

UINTS = st.one_of(st.integers(0, UINT_MAX), st.integers(0, 300), st.builds(lambda n: (1 << n) - 1, st.integers(0, 64)))
OPTIONAL_STRING = oracle.optional(oracle.Str)


@given(UINTS)
def test_uint_like_the_oracle(value: int) -> None:
    raw = bytes(oracle.UInt(value).pack())
    assert encode_uint(value) == raw
    reader = Reader(raw)
    assert reader.uint() == value
    reader.finish()


@given(st.binary(max_size=300))
def test_data_like_the_oracle(value: bytes) -> None:
    raw = bytes(oracle.Data(value).pack())
    assert encode_data(value) == raw
    assert Reader(raw).data() == value


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
def test_string_like_the_oracle(value: str) -> None:
    raw = bytes(oracle.Str(value).pack())
    assert encode_string(value) == raw
    assert Reader(raw).string() == value


@given(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=50))
def test_optional_like_the_oracle(value: str | None) -> None:
    raw = bytes(OPTIONAL_STRING(None if value is None else oracle.Str(value)).pack())
    assert encode_optional(None if value is None else encode_string(value)) == raw
    assert Reader(raw).optional_string() == value


def verdict(read: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "value", read()
    except (RemoteProtocolError, ValueError, TypeError, EOFError, OverflowError):
        return "refused", None


@given(st.binary(max_size=14))
@example(b"\x80\x00")
@example(b"\xff" * 9 + b"\x01")
@example(b"\xff" * 9 + b"\x02")
@example(b"\xff" * 10)
@example(b"\x80" * 9 + b"\x00")
@example(b"\x01\x02\xff\xfe")
def test_any_bytes_mean_the_same_to_the_oracle(raw: bytes) -> None:
    """Accept what it accepts, with the same value, and refuse what it refuses."""

    def oracle_optional() -> Any:
        inner = OPTIONAL_STRING.unpack(io.BytesIO(raw)).value
        return None if isinstance(inner, oracle.Void) else inner.value

    assert verdict(Reader(raw).uint) == verdict(lambda: oracle.UInt.unpack(io.BytesIO(raw)).value)
    assert verdict(Reader(raw).data) == verdict(lambda: oracle.Data.unpack(io.BytesIO(raw)).value)
    assert verdict(Reader(raw).string) == verdict(lambda: oracle.Str.unpack(io.BytesIO(raw)).value)
    assert verdict(Reader(raw).optional_string) == verdict(oracle_optional)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "cut short"),
        (b"\x80", "cut short"),
        (b"\x80\x00", "shortest"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", "above 64 bits"),
        (b"\x80" * 10 + b"\x01", "above 64 bits"),
    ],
)
def test_uint_refusals(raw: bytes, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        Reader(raw).uint()


def test_a_window_of_a_buffer_is_not_left() -> None:
    reader = Reader(b"\x01\x05abcdef", 1, 4)
    with pytest.raises(RemoteProtocolError, match="5 bytes are announced and 2 are there"):
        reader.data()
    reader = Reader(b"\xff\x80\x80", 1, 2)
    with pytest.raises(RemoteProtocolError, match="cut short"):
        reader.uint()


def test_left_over_bytes_are_refused() -> None:
    reader = Reader(b"\x00\x00")
    assert (reader.uint(), reader.left()) == (0, 1)
    with pytest.raises(RemoteProtocolError, match="1 bytes are left over"):
        reader.finish()


def test_tags_are_below_their_count() -> None:
    assert Reader(b"\x01").tag(2) == 1
    with pytest.raises(RemoteProtocolError, match="tag 2 is not below 2"):
        Reader(b"\x02").tag(2)
    assert Reader(b"\x00").optional_uint() is None
    assert Reader(b"\x01\x07").optional_uint() == 7


@pytest.mark.parametrize("value", [-1, UINT_MAX + 1])
def test_we_never_write_an_integer_out_of_range(value: int) -> None:
    with pytest.raises(LocalProtocolError):
        encode_uint(value)


def test_we_never_write_text_without_a_utf8_form() -> None:
    with pytest.raises(LocalProtocolError):
        encode_string("\ud800")
