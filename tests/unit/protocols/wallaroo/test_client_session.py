"""The connector's session by itself: what a hub may not say, and what an application may not ask."""

from __future__ import annotations

import pytest

from headrace.protocols.wallaroo import frames
from headrace.protocols.wallaroo.client_session import (
    SEND_BYTES,
    Acked,
    ClientSession,
    Ended,
    Event,
    Failed,
    Item,
    Opened,
    Refused,
    Restarted,
    Welcomed,
    stream_id_of,
)
from headrace.protocols.wallaroo.codec import DRAFT, V3, Dialect
from headrace.protocols.wallaroo.frames import NO_POINT, Frame, LocalFault, Message


def session(dialect: Dialect = V3, credits: int = 10, points: tuple[tuple[int, int], ...] = ()) -> ClientSession:
    found = ClientSession(dialect=dialect, frame_bytes_max=300_000)
    found.connected()
    assert dialect.decode(found.take_output()[0][4:]) == frames.Hello(b"0.0.1", b"", b"headrace", b"")
    assert say(found, frames.Ok(credits, points)) == [Welcomed(credits)]
    return found


def say(found: ClientSession, *said: Frame) -> list[Event]:
    return found.receive(b"".join(found.dialect.encode(frame) for frame in said))


def sent(found: ClientSession) -> list[Frame]:
    data, _ = found.take_output()
    result: list[Frame] = []
    while data:
        size = int.from_bytes(data[:4], "little" if found.dialect is DRAFT else "big")
        result.append(found.dialect.decode(data[4 : 4 + size]))
        data = data[4 + size :]
    return result


def test_ids_are_the_published_ones() -> None:
    assert stream_id_of(b"stream") == 0xDCA83E717B1F64EB


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (frames.Ok(1), "a second ok"),
        (frames.Notify(1, b"", 0), "Invalid message: notify"),
        (Message(1, 1, b""), "Invalid message: message"),
        (frames.NotifyAck(True, 99, 1), "Unknown stream_id 99"),
        (frames.Ack(1, ((99, 1),)), "Unknown stream_id 99"),
    ],
)
def test_what_a_hub_may_not_say(said: Frame, reason: str) -> None:
    found = session()
    events = say(found, said)
    assert isinstance(events[0], Failed)
    assert reason in events[0].reason
    assert not events[0].final
    assert isinstance(sent(found)[0], frames.Error)
    assert say(found, frames.Ack(1)) == []


def test_nothing_before_ok() -> None:
    found = ClientSession()
    found.connected()
    events = say(found, frames.Ack(1))
    assert isinstance(events[0], Failed)
    assert "before ok" in events[0].reason


@pytest.mark.parametrize(
    ("reason", "final"),
    [("Bad cookie", True), ("Frame of 9 bytes is above the limit", True), ("the disk has no room", False)],
)
def test_an_error_is_final_only_when_trying_again_is_of_no_use(reason: str, final: bool) -> None:
    assert say(session(), frames.Error(reason.encode())) == [Failed(reason, final)]


def test_an_acknowledgement_of_what_was_not_sent() -> None:
    found = session(credits=3)
    stream = found.add_stream(b"s", 1, rewindable=False)
    sent(found)
    say(found, frames.NotifyAck(True, 1, NO_POINT))
    found.offer(stream, [Item(n, b"x") for n in (1, 2, 3, 4)])
    assert len(sent(found)) == 2
    events = say(found, frames.Ack(0, ((1, 3),)))
    assert isinstance(events[0], Failed)
    assert "not sent yet" in events[0].reason


def test_refused_and_asked_again_with_the_next_ack() -> None:
    found = session()
    found.add_stream(b"s", 1, rewindable=False)
    assert sent(found) == [frames.Notify(1, b"s", NO_POINT)]
    assert say(found, frames.NotifyAck(False, 1, NO_POINT)) == [Refused(1)]
    assert sent(found) == []
    say(found, frames.Ack(1))
    assert sent(found) == [frames.Notify(1, b"s", NO_POINT)]


def test_restart_ends_the_connection() -> None:
    found = session()
    assert say(found, frames.Restart(b"h:1"), frames.Ack(1)) == [Restarted(b"h:1")]


def test_what_an_application_may_not_ask() -> None:
    found = session()
    stream = found.add_stream(b"s", 1, rewindable=False)
    with pytest.raises(LocalFault, match="in use"):
        found.add_stream(b"t", 1, rewindable=False)
    found.offer(stream, [Item(5, b"x")])
    with pytest.raises(LocalFault, match="not above 5"):
        found.offer(stream, [Item(5, b"x")])
    with pytest.raises(LocalFault, match="at most 300000"):
        found.offer(stream, [Item(6, bytes(300_000))])
    with pytest.raises(LocalFault, match="message 18446744073709551616"):
        found.offer(stream, [Item(2**64, b"x")])
    found.finish(stream)
    found.finish(stream)
    with pytest.raises(LocalFault, match="ended"):
        found.offer(stream, [Item(7, b"x")])


def test_keys_and_event_times_travel() -> None:
    found = session()
    stream = found.add_stream(b"s", 1, rewindable=False)
    sent(found)
    say(found, frames.NotifyAck(True, 1, 4))
    found.offer(stream, [Item(4, b"known"), Item(5, b"x", event_time=7, key=b"k")])
    assert sent(found) == [Message(1, 5, b"x", event_time=7, key=b"k")]
    found.finish(stream)
    assert sent(found) == [frames.Eos(1)]
    assert say(found, frames.Ack(1, ((1, 5),))) == [Acked(1, 5), Ended(1)]


def test_a_draft_nack_goes_back_in_the_queue() -> None:
    found = session(DRAFT, points=((1, 3),))
    stream = found.add_stream(b"s", 1, rewindable=False)
    found.offer(stream, [Item(3, b"c"), Item(9, b"d"), Item(4, b"e")])
    assert sent(found) == [frames.Notify(1, b"s", 3), Message(1, 9, b"d"), Message(1, 4, b"e")]
    say(found, frames.Nack(3, 1, 9))
    assert sent(found) == [frames.Notify(1, b"s", 9), Message(1, 4, b"e")]
    events = say(found, frames.Nack(0, 1, 3))
    assert isinstance(events[0], Failed)
    assert events[0].final
    assert isinstance(sent(found)[0], frames.Error)


def test_a_rewindable_draft_stream_is_told_where_to_begin() -> None:
    found = session(DRAFT, points=((1, 3),))
    found.add_stream(b"s", 1, rewindable=True)
    assert found.take_output()[1] == [Opened(1, 3)]
    say(found, frames.Nack(0, 1, 0), frames.Nack(0, 1, 2))
    data, events = found.take_output()
    assert data == 2 * DRAFT.encode(frames.Notify(1, b"s", 2))
    assert events == [Opened(1, 2)]


def test_a_busy_stream_leaves_credits_for_another() -> None:
    """Whoever has little to say says it; the rest is shared."""
    found = session(credits=13)
    streams = {number: found.add_stream(b"%d" % number, number, rewindable=False) for number in (1, 2, 3)}
    assert len(sent(found)) == 3
    say(found, *(frames.NotifyAck(True, number, NO_POINT) for number in streams))
    for number, waiting in ((1, 100), (2, 100), (3, 1)):
        found.offer(streams[number], [Item(id, b"x") for id in range(1, waiting + 1)])

    def shares() -> list[int]:
        output = [frame for frame in sent(found) if isinstance(frame, Message)]
        return [sum(message.stream_id == number for message in output) for number in streams]

    assert shares() == [5, 4, 1]
    say(found, frames.Ack(1))
    found.offer(streams[3], [Item(2, b"x")])
    assert shares() == [0, 0, 1]


def test_the_drafts_0_is_no_point_to_go_back_to() -> None:
    found = session(DRAFT)
    stream = found.add_stream(b"s", 1, rewindable=False)
    found.offer(stream, [Item(0, b"zero"), Item(1, b"one")])
    assert len(sent(found)) == 3
    say(found, frames.Ack(1, ((1, 0),)))
    assert stream.point == 0
    say(found, frames.Nack(0, 1, 0))
    assert sent(found) == [frames.Notify(1, b"s", 0), Message(1, 1, b"one")]


def test_a_lot_of_bytes_is_handed_out_in_turns() -> None:
    found = session()
    streams = [found.add_stream(b"%d" % number, number, rewindable=False) for number in (1, 2)]
    sent(found)
    say(found, *(frames.NotifyAck(True, stream.id, NO_POINT) for stream in streams))
    for stream in streams:
        found.offer(stream, [Item(1, bytes(SEND_BYTES))])
    turns = [[frame.stream_id for frame in sent(found) if isinstance(frame, Message)] for _ in range(3)]
    assert turns == [[1], [2], []]
