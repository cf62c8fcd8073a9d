"""The codec's own tests: what it refuses, its limits, and reading in pieces. The vectors are in tests/conformance."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocols.ambrosia import codec
from headrace.protocols.ambrosia.codec import (
    AttachTo,
    Blob,
    BodyKind,
    Call,
    Checkpoint,
    InitialMessage,
    Numbers,
    Ping,
    Return,
    RpcBatch,
    Signal,
    Type,
    decode_messages,
    encode,
    encode_checkpoint_record,
    encode_record,
    encode_signal_record,
)
from headrace.protocols.ambrosia.coordinator.record_feed import delivered_form
from headrace.protocols.ambrosia.coordinator.store import Registration
from headrace.protocols.ambrosia.record_reader import Record, RecordReader
from headrace.protocols.errors import LocalProtocolError, RemoteProtocolError

names = st.binary(max_size=20)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)


@given(int32)
def test_ints_come_back(value: int) -> None:
    data = codec.zigzag_int(value)
    assert codec.read_int(data, 0, len(data)) == (value, len(data))
    assert codec.peek_int(data[:-1], 0, len(data) - 1) is None


@given(int64)
def test_longs_come_back(value: int) -> None:
    data = codec.zigzag_int(value, 64)
    assert codec.read_int(data, 0, len(data), 64) == (value, len(data))


def test_overlong_integers_are_read_and_written_short() -> None:
    assert codec.read_int(b"\x82\x80\x80\x00", 0, 4) == (1, 4)
    assert codec.zigzag_int(1) == b"\x02"


def test_bits_above_32_are_ignored_as_published_decoders_do() -> None:
    assert codec.read_int(b"\x82\x80\x80\x80\x70", 0, 5) == (1, 5)


def test_an_integer_that_does_not_end_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="32 bits"):
        codec.read_int(b"\xff" * 6, 0, 6)
    with pytest.raises(RemoteProtocolError, match="64 bits"):
        codec.read_int(b"\xff" * 11, 0, 11, 64)
    with pytest.raises(RemoteProtocolError, match="past the end"):
        codec.read_int(b"\xff", 0, 1)
    with pytest.raises(RemoteProtocolError, match="past the end"):
        codec.read_int(b"", 0, 0, 64)


def test_what_does_not_fit_is_our_fault() -> None:
    with pytest.raises(LocalProtocolError):
        codec.zigzag_int(2**31)


calls = st.one_of(
    st.builds(Call, int32, st.sampled_from([1, 2, 3, 200]), names, st.none()),
    st.builds(Call, int32, st.just(0), names, st.none(), names, int64),
    st.builds(Return, st.sampled_from([BodyKind.VALUE, BodyKind.EMPTY, BodyKind.EXCEPTION]), names, int64, names),
)
messages = st.one_of(
    calls,
    st.builds(lambda each: RpcBatch(tuple(each)), st.lists(calls, max_size=4)),
    st.builds(lambda each: RpcBatch(tuple(each), len(each)), st.lists(calls, max_size=4)),
    st.builds(AttachTo, names),
    st.builds(InitialMessage, names),
    st.builds(Checkpoint, st.integers(0, 2**63 - 1)),
    st.builds(Signal, st.sampled_from(sorted(codec.SIGNALS))),
    st.builds(Numbers, st.sampled_from([Type.COMMIT, Type.REPLAY_FROM]), st.tuples(int64, int64)),
    st.builds(Numbers, st.just(Type.TRIM_TO), st.tuples(int64)),
    st.builds(
        Ping,
        st.sampled_from([Type.PING, Type.PING_RETURN]),
        st.builds(Call, int32, st.just(1), st.binary(min_size=40, max_size=40)),
    ),
)


@given(st.lists(messages, max_size=5))
def test_messages_come_back(sent: list[codec.Message]) -> None:
    data = b"".join(map(encode, sent))
    assert decode_messages(data, addressed=False) == sent


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("00", "a message of 0 bytes"),
        ("0200", "without a body"),
        ("0400", "where 1 are left"),
        ("0214", "unknown type 20"),
        ("040204", "TAKE_CHECKPOINT with 1 bytes"),
        ("040004", "unknown kind|past the end"),
        ("040009", "unknown kind 9"),
        ("06000002", "without an RPC type"),
        ("0a0000020006ff", "bytes"),
        ("060001" + "06", "a name of 3 bytes"),
        ("060001" + "01", "a name of -1 bytes"),
        ("080504" + "0201", "type 1 inside a batch"),
        ("080504" + "0800", "an RPC of 4 bytes in a batch"),
        ("0405" + "04", "a batch of 0 RPCs that says 2"),
        ("0608" + "ff00", "checkpoint of -"),
        ("0808" + "020202", "neither form"),
        ("1208" + "ffffffffffffffff", "checkpoint of -1"),
        ("080600020101", "five stamps"),
    ],
)
def test_malformed_messages_are_refused(data: str, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        decode_messages(bytes.fromhex(data), addressed=False)


def test_an_eight_byte_size_may_be_either_form() -> None:
    long = 2**50  # needs eight bytes as a ZigZagLong
    assert len(codec.zigzag_int(long, 64)) == 8
    for checkpoint in (Checkpoint(long), Checkpoint(9, fixed=True), Checkpoint(long, fixed=True)):
        assert decode_messages(encode(checkpoint), addressed=False) == [checkpoint]


def test_a_batch_of_one_is_never_sent() -> None:
    registration = Registration(name="a", committer=1, deliveries=[(0, "counted")])
    call = encode(Call(1, 2, b"x"))
    assert delivered_form(registration, 0, call, 1, 0) == call
    assert delivered_form(registration, 0, call * 2, 2, 0) == codec.frame_batch(call * 2, 2, 0)


RECORDS = (
    encode_checkpoint_record(-5, 3)
    + b"abc"
    + encode_record(-5, 7, encode(Call(1, 1, b"x")))
    + encode_signal_record(-5, Type.TAKE_BECOMING_PRIMARY_CHECKPOINT)
    + encode_record(-5, 8, encode(Call(1, 1, b"y")))
    + encode_checkpoint_record(-5, 0)
)


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_records_in_any_pieces(step: int) -> None:
    reader = RecordReader()
    found: list[Record | Blob] = []
    for at in range(0, len(RECORDS), step):
        found += reader.feed(RECORDS[at : at + step])
    assert [each.sequence for each in found if isinstance(each, Record)] == [-2, 7, -1, 8, -2]
    assert b"".join(each.data for each in found if isinstance(each, Blob)) == b"abc"
    assert sum(each.last for each in found if isinstance(each, Blob)) == 2


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (encode_record(1, 0, b"\x02\x02")[:-1] + b"\x03", "wrong check bytes"),
        (encode_record(1, 0, b"\x02\x02") + encode_record(1, 2, b"\x02\x02"), "record 2 where 1 was next"),
        (encode_record(1, 0, b"\x02\x02") * 2, "record 0 where 1 was next"),
        (encode_record(1, -3, b"\x02\x02"), "sequence id -3"),
        (codec.RECORD_HEADER.pack(1, -29, 0, 0), "a record of -29 bytes"),
        (codec.RECORD_HEADER.pack(1, 2**31 - 1, 0, 0), "a record of 2147483647 bytes"),
        (codec.RECORD_HEADER.pack(1, 26, 0, -2) + b"\x02\x02", "without exactly one Checkpoint"),
    ],
)
def test_bad_records_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        RecordReader().feed(data)
