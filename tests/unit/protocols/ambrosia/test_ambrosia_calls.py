"""The fast reader against the plain codec, in any pieces; its limits; what it refuses and what it keeps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.log.batch import Columns
from headrace.protocols.ambrosia import codec
from headrace.protocols.ambrosia.call_reader import Calls, Event, Malformed, MessageReader, label_of_call
from headrace.protocols.ambrosia.codec import (
    AttachTo,
    Blob,
    BodyKind,
    Call,
    Checkpoint,
    InitialMessage,
    Return,
    RpcBatch,
    Signal,
    Type,
    encode,
)
from headrace.protocols.ambrosia.coordinator import call_queue
from headrace.protocols.ambrosia.settings import Ambrosia


def read(data: bytes, step: int = 1 << 30, limits: Ambrosia | None = None) -> list[Event]:
    reader = MessageReader(limits)
    events: list[Event] = []
    for at in range(0, len(data), step):
        events += reader.feed(data[at : at + step])
    return events


def delivered(events: list[Event]) -> list[tuple[bytes, str, bytes]]:
    """Destination, label and delivered bytes of each call, one by one."""
    found = []
    for event in events:
        if isinstance(event, Calls):
            payload, at = event.payload(), 0
            for length in event.lengths:
                found.append((event.destination, event.label, payload[at : at + length]))
                at += length
            assert at == len(payload)
    return found


def plainly(sent: list[Call | Return]) -> list[tuple[bytes, str, bytes]]:
    found = []
    for each in sent:
        if isinstance(each, Call):
            label = label_of_call(each.method, each.rpc_type)
        else:
            label = {BodyKind.VALUE: "return", BodyKind.EMPTY: "return-empty"}.get(each.kind, "exception")
        found.append((each.destination or b"", label, codec.frame(Type.RPC, codec.encode_body(each))))
    return found


int32 = st.integers(-(2**31), 2**31 - 1)
few = st.sampled_from([b"", b"", b"server", b"other"])
arguments = st.one_of(st.binary(max_size=6), st.sampled_from([b"x" * 100, b"y" * 3000]))
some_calls = st.one_of(
    st.builds(Call, st.sampled_from([1, -1, 300]), st.sampled_from([1, 1, 2, 3]), arguments, few),
    st.builds(Call, int32, st.just(0), arguments, few, st.binary(max_size=5), st.integers(0, 9)),
    st.builds(Return, st.sampled_from(list(BodyKind)[1:]), st.binary(max_size=5), int32, arguments, few),
)
runs = st.lists(st.tuples(some_calls, st.integers(1, 40)), max_size=6)


@settings(deadline=None)
@given(runs, st.integers(1, 4000), st.booleans())
def test_the_fast_reader_reads_what_the_codec_writes(
    groups: list[tuple[Call | Return, int]], step: int, batched: bool
) -> None:
    sent = [call for call, count in groups for _ in range(count)]
    data = encode(RpcBatch(tuple(sent))) if batched else b"".join(map(encode, sent))
    assert delivered(read(data, step)) == plainly(sent)


EVERYTHING = (
    encode(InitialMessage(b"hi"))
    + encode(Checkpoint(5))
    + b"\x00\x01\x02\xff\x00"
    + encode(AttachTo(b"server"))
    + encode(Call(33, 1, b"abc", b"server"))
    + encode(Checkpoint(2, fixed=True))
    + b"zz"
    + encode(RpcBatch((Call(1, 1, b"a", b""), Call(1, 2, b"b", b""))))
    + encode(RpcBatch(()))
    + encode(RpcBatch((Call(7, 1, b"one", b""),)))
    + encode(Signal(Type.TAKE_CHECKPOINT))
    + encode(Checkpoint(0))
)


@pytest.mark.parametrize("step", [1, 2, 3, 5, 64, 1 << 20])
def test_every_message_in_any_pieces(step: int) -> None:
    events = read(EVERYTHING, step)
    assert [label for _, label, _ in delivered(events)] == ["fork/33", "fork/1", "impulse/1", "fork/7"]
    kinds = [type(each) for each in events if not isinstance(each, Blob)]
    assert kinds == [
        InitialMessage, Checkpoint, AttachTo, Calls, Checkpoint, Calls, Calls, Calls, Signal, Checkpoint,
    ]  # fmt: skip
    assert b"".join(each.data for each in events if isinstance(each, Blob)) == b"\x00\x01\x02\xff\x00zz"
    assert sum(each.last for each in events if isinstance(each, Blob)) == 3


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("00", "a message of 0 bytes"),
        ("01", "a message of -1 bytes"),
        ("0214", "type 20"),
        ("020f", "type 15"),
        ("020b", "type 11"),
        ("040e01", "type 14"),
        ("060d0200", "type 13"),
        ("5a06", "type 6"),
        ("ffffffffffff", "more than 32 bits"),
        ("0200", "past the end"),
        ("040000", "without a body"),
        ("06000005", "unknown kind 5"),
        ("0800000002", "without an RPC type"),
        ("06000c61", "a name of 6 bytes"),
        ("0201", "without a destination"),
        ("040205", "TakeCheckpoint with 1 bytes"),
        ("0a0502" + "040161", "something other than whole RPCs"),
        ("0805060a0000", "something other than whole RPCs"),
        ("100504" + "0a0000004001", "a batch of 1 RPCs that says 2"),
        ("0408" + "01", "a checkpoint of -1 bytes"),
        ("0e0000000000" + "0661", "a name of 3 bytes"),
        ("0c0000000000" + "00", "past the end"),
    ],
)
@pytest.mark.parametrize("step", [1, 1 << 20])
def test_malformed_messages_end_the_reading_and_keep_what_came_before(data: str, why: str, step: int) -> None:
    good = encode(Call(33, 1, b"abc", b""))
    reader = MessageReader()
    events: list[Event] = []
    sent = good + bytes.fromhex(data)
    for at in range(0, len(sent), step):
        events += reader.feed(sent[at : at + step])
    assert len(delivered(events)) == 1
    last = events[-1]
    assert isinstance(last, Malformed), events
    assert why in last.reason
    assert reader.failed
    assert reader.feed(good) == []


def test_impulses_are_not_replayable() -> None:
    sent = (Call(1, 1, b"", b""), Return(BodyKind.EMPTY, b"\x02", 1, b"", b""), Call(1, 2, b"", b""))
    assert [calls.replayable for calls in read(b"".join(map(encode, sent))) if isinstance(calls, Calls)] == [
        True, True, False,
    ]  # fmt: skip


def test_a_batch_has_so_many_calls_and_no_more() -> None:
    call = encode(Call(1, 1, b"", b""))
    limits = Ambrosia(batch_calls_max=3)
    assert len(delivered(read(codec.frame_batch(call * 3, 3, None), limits=limits))) == 3
    (event,) = read(codec.frame_batch(call * 4, 4, None), limits=limits)
    assert event == Malformed("a batch of 4 calls, above ambrosia.batch_calls_max = 3")


def test_a_large_message_is_known_when_its_end_comes() -> None:
    message = encode(Call(1, 1, bytes(100_000), b""))
    reader = MessageReader()
    assert not reader.completes_large(message)  # in one piece: as much as a socket gives at once
    reader.feed(message[:50_000])
    assert not reader.completes_large(message[50_000:60_000])
    assert reader.completes_large(message[50_000:])
    reader.release()
    assert reader.buffered_bytes == 0
    assert reader.feed(message) == []


def test_a_batch_is_taken_whole_or_not_at_all() -> None:
    inner = encode(Call(1, 1, b"a", b"")) + encode(AttachTo(b"x"))
    events = read(codec.frame(Type.RPC_BATCH, codec.zigzag_int(2) + inner))
    assert [type(each) for each in events] == [Malformed]


@pytest.mark.parametrize(
    ("message", "limits", "key"),
    [
        (Call(1, 1, bytes(200), b""), Ambrosia(message_bytes_max=100), "message_bytes_max"),
        (AttachTo(b"a" * 20), Ambrosia(name_bytes_max=10), "name_bytes_max"),
        (Call(1, 1, b"", b"a" * 20), Ambrosia(name_bytes_max=10), "name_bytes_max"),
        (Call(1, 0, b"", b"", b"a" * 20, 1), Ambrosia(name_bytes_max=10), "name_bytes_max"),
        (InitialMessage(b"a" * 20), Ambrosia(initial_bytes_max=10), "initial_bytes_max"),
        (Checkpoint(1000), Ambrosia(checkpoint_bytes_max=10), "checkpoint_bytes_max"),
    ],
)
def test_limits_name_their_key(message: codec.Message, limits: Ambrosia, key: str) -> None:
    (event,) = (each for each in read(encode(message), limits=limits) if not isinstance(each, Calls))
    assert isinstance(event, Malformed)
    assert f"ambrosia.{key}" in event.reason


def test_a_large_message_is_refused_before_it_is_gathered() -> None:
    reader = MessageReader(Ambrosia(message_bytes_max=1000))
    (event,) = reader.feed(codec.zigzag_int(1001))
    assert isinstance(event, Malformed)
    assert reader.buffered_bytes == 0


def test_an_illegal_type_is_refused_before_its_data_comes() -> None:
    reader = MessageReader()
    (event,) = reader.feed(codec.zigzag_int(1 << 20) + b"\x0d")
    assert isinstance(event, Malformed)


def test_a_large_message_is_joined_once() -> None:
    reader = MessageReader()
    data = encode(Call(1, 1, bytes(1 << 20), b""))
    for at in range(0, len(data) - 1, 1000):
        assert reader.feed(data[at : min(at + 1000, len(data) - 1)]) == []
    assert reader.buffered_bytes == len(data) - 1
    assert len(delivered(reader.feed(data[-1:]))) == 1
    assert reader.buffered_bytes == 0


def test_calls_cut_into_pieces() -> None:
    calls = Calls(b"b", "fork/1", True)
    messages = [bytes([number]) * size for number, size in enumerate((3, 3, 9, 1, 1, 1, 1, 2))]
    calls.parts, calls.lengths = [b"".join(messages)], [len(each) for each in messages]
    pieces = calls.cut(6, 3)
    assert [piece.lengths for piece in pieces] == [[3, 3], [9], [1, 1, 1], [1, 2]]
    assert b"".join(piece.payload() for piece in pieces) == calls.payload()
    assert {(piece.destination, piece.label, piece.replayable) for piece in pieces} == {(b"b", "fork/1", True)}


def test_a_single_large_call_is_not_copied_to_be_cut() -> None:
    call = Calls(b"to", "fork/1", True, [100], [bytes(100)])
    assert call.cut(6, 3) == [call]
    assert call.cut(6, 3)[0].parts[0] is call.parts[0]


def test_calls_without_the_first_ones() -> None:
    (calls,) = read(b"".join(encode(Call(1, 1, bytes(size), b"")) for size in range(5)))
    assert isinstance(calls, Calls)
    rest = calls.without_first(2)
    assert rest.count == 3
    assert rest.payload() == b"".join(encode(Call(1, 1, bytes(size))) for size in range(2, 5))


@pytest.mark.parametrize("senders", [[None], [None, "desk"], ["desk", "desk"]])
def test_few_calls_are_packed_as_many_are(senders: list[str | None], monkeypatch: pytest.MonkeyPatch) -> None:
    arrivals = [call_queue.CallQueue._time_of_record(7)]
    for number, sender in enumerate(senders):
        parts = [b"a" * number, b"bc"]
        calls = Calls(b"", f"async/{number}", True, [number, 2], [b"".join(parts)])
        arrivals.append(call_queue.Arrival.of(sender, calls, (), None))
    for sequence in (None, 5):
        monkeypatch.setattr(call_queue, "FEW", 100)
        few, few_data, few_replayable = call_queue.pack(arrivals, sequence)
        monkeypatch.setattr(call_queue, "FEW", 0)
        many, data, replayable = call_queue.pack(arrivals, sequence)
        assert (few_data, few_replayable, few.count, few.largest) == (data, replayable, many.count, many.largest)
        assert Columns(few.body).to_arrow(3, 4).equals(Columns(many.body).to_arrow(3, 4))
