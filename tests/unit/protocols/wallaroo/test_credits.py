"""How many credits a connector gets: so many frames, and so many bytes."""

from __future__ import annotations

import pytest

from headrace.config import Wallaroo
from headrace.protocols.wallaroo import frames
from headrace.protocols.wallaroo.codec import V3
from headrace.protocols.wallaroo.credits import Credits
from headrace.protocols.wallaroo.frames import Message, PeerFault
from headrace.protocols.wallaroo.requests import Store
from headrace.protocols.wallaroo.scan import FrameBuffer
from headrace.protocols.wallaroo.session import ServerSession
from headrace.units import MIB


def granted(session: ServerSession) -> int:
    """The credits in what the session has to say."""
    buffer = FrameBuffer(dialect=V3)
    buffer.feed(session.take_output())
    total = 0
    while (frame := buffer.next()) is not None:
        total += frame.credits if isinstance(frame, frames.Ok | frames.Ack) else 0
    return total


@pytest.mark.parametrize("size", [100, 4_096, 16_000, 60_000])
def test_what_a_connector_may_have_under_way_is_bounded_in_frames_and_bytes(size: int) -> None:
    """It sends whenever it may, as the published one does, which garbles frames that do not fit its socket."""
    session = ServerSession(Wallaroo())
    session.receive(V3.encode(frames.Hello(frames.VERSION, b"", b"p", b"i")))
    session.greeted([])
    credits = granted(session)
    session.receive(V3.encode(frames.Notify(1, b"s", frames.NO_POINT)))
    session.opened(1, None)
    credits += granted(session) - 1
    message_id = 0
    for turn in range(50):
        assert 2 <= credits <= 500
        if turn:
            assert credits * size <= 2 * MIB
        burst = range(message_id + 1, message_id + 1 + credits)
        message_id += credits
        requests = session.receive(b"".join(V3.encode(Message(1, id, bytes(size))) for id in burst))
        for store in requests:
            assert isinstance(store, Store)
            session.stored(store.ticket)
        credits = granted(session)
    assert credits == pytest.approx(min(500, 2 * MIB / size), rel=0.05)


def test_frames_that_grow_cost_credits_at_once_and_smaller_ones_bring_them_back() -> None:
    credits = Credits(window=100, credit_bytes=10_000)
    has = credits.take()
    assert has == 15  # frames of 64 KiB are feared as long as none has come
    for size, expected in ((100_000, 10), (2_000_000, 2), (1, 2)):
        credits.use(has)
        credits.saw(size)
        credits.due += has
        has = credits.take()
        assert has == expected
    for _ in range(200):
        credits.saw(0)
    assert has + credits.take() == 100


def test_an_overdraft_of_more_than_a_window_is_refused() -> None:
    credits = Credits(window=20, credit_bytes=1)
    credits.use(40)
    with pytest.raises(PeerFault, match="Credit exceeded: 41 frames under way, 20 were granted"):
        credits.use(1)


def test_a_tiny_window_is_given_whole() -> None:
    assert Credits(window=1, credit_bytes=0).take() == 1
    assert Credits(window=3, credit_bytes=0).take() == 2


def test_a_larger_window_has_room_for_more_bytes() -> None:
    """Whoever raises it has a connector that gets along with partial sends, and frames of 1 KiB do not cost it any."""
    credits = Credits(window=5_000, credit_bytes=Wallaroo().credit_bytes)
    for _ in range(100):
        credits.use(credits.take())
        credits.saw(1_024)
        credits.due = credits.used
    assert credits.take() == 5_000
