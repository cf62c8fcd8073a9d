"""Routed messages in both framings: round trips, independent encoders, and everything that must be refused."""

from __future__ import annotations

import io

import bare as bare_oracle
import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocols.errors import LocalProtocolError, RemoteProtocolError
from headrace.protocols.ockam import cbor
from headrace.protocols.ockam.bare import encode_uint
from headrace.protocols.ockam.cbor import CborFraming
from headrace.protocols.ockam.routing import (
    RECORD_BYTES_MAX,
    ROUTE_BYTES_MAX,
    SENT_FRAME_BYTES_MAX,
    Address,
    Framing,
    LegacyFraming,
    LongRoute,
    Message,
    constant_head,
    decode_wire,
    encode_route,
    encode_wire,
    local,
)

ADDRESSES = st.builds(Address, st.integers(0, 255), st.binary(max_size=40))
ROUTES = st.lists(ADDRESSES, max_size=5).map(tuple)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
MESSAGES = st.builds(Message, ROUTES, ROUTES, st.binary(max_size=300), st.none() | TEXTS)
FRAMINGS: list[Framing] = [LegacyFraming(), CborFraming()]
PING = Message((local("a"),), (local("b"),), b"payload")


class OracleAddress(bare_oracle.Struct):
    type = bare_oracle.Field(bare_oracle.UInt)
    value = bare_oracle.Field(bare_oracle.Data)


def oracle_wire(message: Message) -> bytes:
    """The layout of the specification, put together by the independent encoder."""

    def route(hops: tuple[Address, ...]) -> bytes:
        packed = [bytes(OracleAddress(type=hop.type, value=hop.value).pack()) for hop in hops]
        return bytes(bare_oracle.UInt(len(hops)).pack()) + b"".join(packed)

    version = 1 if message.tracing is None else 2
    out = bytes(bare_oracle.UInt(version).pack()) + route(message.onward) + route(message.returning)
    out += bytes(bare_oracle.Data(message.payload).pack())
    if message.tracing is not None:
        out += bytes(bare_oracle.optional(bare_oracle.Str)(bare_oracle.Str(message.tracing)).pack())
    return out


@given(MESSAGES)
def test_wire_like_the_oracle(message: Message) -> None:
    raw = encode_wire(message)
    assert raw == oracle_wire(message)
    assert decode_wire(raw) == message


@given(MESSAGES)
def test_cbor_like_the_oracle(message: Message) -> None:
    routes = [[[hop.type, hop.value] for hop in route] for route in (message.onward, message.returning)]
    raw = cbor2.dumps([*routes, message.payload, message.tracing])
    framing = CborFraming()
    assert framing.encode(message) == len(raw).to_bytes(4, "big") + raw
    assert framing.decode(raw) == message


@pytest.mark.parametrize("framing", FRAMINGS, ids=lambda framing: framing.name)
@given(ROUTES, ROUTES, st.binary(max_size=300))
def test_envelope_and_encode_agree(
    framing: Framing, onward: tuple[Address, ...], back: tuple[Address, ...], payload: bytes
) -> None:
    before, after = framing.envelope(onward, back, len(payload))
    frame = framing.encode(Message(onward, back, payload))
    assert before + payload + after == frame
    assert framing.frame_size(frame, 0) == len(frame) - framing.header_bytes


@given(ROUTES, ROUTES, st.binary(max_size=50))
def test_constant_head_is_what_untraced_messages_begin_with(
    onward: tuple[Address, ...], back: tuple[Address, ...], payload: bytes
) -> None:
    assert encode_wire(Message(onward, back, payload)).startswith(constant_head(onward, back))


@given(st.binary(max_size=60))
def test_random_bytes_decode_or_are_refused(raw: bytes) -> None:
    for framing in FRAMINGS:
        try:
            message = framing.decode(raw)
        except RemoteProtocolError:
            continue
        assert framing.decode(framing.encode(message)[framing.header_bytes :]) == message


WIRE = encode_wire(PING)
TRACED = encode_wire(Message(PING.onward, PING.returning, PING.payload, "trace"))


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00" + WIRE[1:],
        b"\x03" + WIRE[1:],
        WIRE + b"\x00",
        b"\x02" + WIRE[1:],
        TRACED + b"\x00",
        b"\x02" + WIRE[1:] + b"\x02",
        b"\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x01\x01\x80\x02\x01x\x00\x00",
    ],
    ids=[
        "version 0",
        "version 3",
        "version 1 with a stray byte",
        "version 2 without its optional",
        "version 2 with a stray byte",
        "version 2 with a bad optional",
        "2^64 - 1 hops",
        "address type 256",
    ],
)
def test_wire_refusals(raw: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_wire(raw)


@pytest.mark.parametrize("cut", range(len(WIRE)))
def test_wire_cut_short(cut: int) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_wire(WIRE[:cut])


def test_version_2_with_absent_context_is_read() -> None:
    assert decode_wire(b"\x02" + WIRE[1:] + b"\x00") == PING


CBOR = cbor2.dumps([[[0, b"a"]], [[0, b"b"]], b"payload", None])


@pytest.mark.parametrize("cut", range(len(CBOR)))
def test_cbor_cut_short(cut: int) -> None:
    with pytest.raises(RemoteProtocolError):
        cbor.decode_message(CBOR[:cut])


@pytest.mark.parametrize(
    "raw",
    [
        cbor2.dumps([[], b""]),
        cbor2.dumps([[], [], b"", None, None]),
        cbor2.dumps({"a": 1}),
        cbor2.dumps([[[0, b"a", b"b"]], [], b"", None]),
        cbor2.dumps([[[256, b"a"]], [], b"", None]),
        cbor2.dumps([[[-1, b"a"]], [], b"", None]),
        cbor2.dumps([[], [], "text", None]),
        cbor2.dumps([[], [], b"", 7]),
        b"\x84\x80\x80\x40\x61\xff",
        b"\x84\x9f\xff\x80\x40\xf6",
        b"\x84\x9b\xff\xff\xff\xff\xff\xff\xff\xff\x80\x40\xf6",
        CBOR + b"\x00",
    ],
)
def test_cbor_refusals(raw: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        cbor.decode_message(raw)


def test_cbor_without_tracing_field_is_read() -> None:
    assert cbor.decode_message(cbor2.dumps([[[0, b"a"]], [[0, b"b"]], b"payload"])) == PING


def test_cbor_lengths_need_not_be_shortest() -> None:
    assert cbor.decode_message(b"\x84\x80\x80\x58\x01x\xf6") == Message((), (), b"x")


def test_cbor_frame_limit() -> None:
    framing = CborFraming()
    assert framing.frame_size((16 << 20).to_bytes(4, "big"), 0) == 16 << 20
    with pytest.raises(RemoteProtocolError, match="above 16777216"):
        framing.frame_size(((16 << 20) + 1).to_bytes(4, "big"), 0)
    with pytest.raises(LocalProtocolError):
        framing.encode(Message((), (), bytes(16 << 20)))
    with pytest.raises(LocalProtocolError):
        framing.encode(Message((), (), bytes((16 << 20) - 100), "t" * 200))


def test_legacy_frame_limit() -> None:
    framing = LegacyFraming()
    overhead = len(encode_wire(Message((), (), bytes(60_000)))) - 60_000
    largest = SENT_FRAME_BYTES_MAX - overhead
    assert len(framing.encode(Message((), (), bytes(largest)))) == SENT_FRAME_BYTES_MAX + 2
    with pytest.raises(LocalProtocolError):
        framing.encode(Message((), (), bytes(largest + 1)))
    with pytest.raises(LocalProtocolError):
        framing.envelope((), (), largest + 1)


@pytest.mark.parametrize("framing", FRAMINGS, ids=lambda framing: framing.name)
def test_return_route_limit(framing: Framing) -> None:
    def message(size: int) -> bytes:
        return framing.encode(Message((local("a"),), (local(b"x" * size),), b""))[framing.header_bytes :]

    longest = ROUTE_BYTES_MAX - 4 if framing.name == "legacy" else ROUTE_BYTES_MAX - 6
    assert len(framing.decode(message(longest)).returning[0].value) == longest
    with pytest.raises(LongRoute):
        framing.decode(message(longest + 1))


def test_what_a_head_and_an_address_may_hold() -> None:
    assert cbor.encode_head(0, (1 << 64) - 1) == b"\x1b" + b"\xff" * 8
    with pytest.raises(LocalProtocolError):
        cbor.encode_head(0, 1 << 64)
    with pytest.raises(LocalProtocolError):
        encode_route((Address(256, b""),))
    with pytest.raises(LocalProtocolError):
        cbor.encode_route((Address(256, b""),))


def test_address_types_from_128_up_are_echoed_as_they_came() -> None:
    raw = b"\x01" + encode_uint(200) + b"\x01x"
    assert encode_route(decode_wire(b"\x01\x00" + raw + b"\x00").returning) == raw


def test_text_form() -> None:
    assert str(Address(1, b"localhost:4000")) == "1#localhost:4000"
    assert str(local(b"\xff")) == "0#\\xff"


def test_record_limits_leave_room_for_any_route() -> None:
    assert RECORD_BYTES_MAX == 63_900
    assert CborFraming.record_bytes_max == (16 << 20) - 1_100
    assert io.BytesIO(bytes(RECORD_BYTES_MAX)).getbuffer().nbytes < SENT_FRAME_BYTES_MAX - ROUTE_BYTES_MAX
