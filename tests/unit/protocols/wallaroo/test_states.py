"""The tables themselves: what the specification says about them."""

from __future__ import annotations

from headrace.protocols.wallaroo import frames
from headrace.protocols.wallaroo.codec import DRAFT, V3
from headrace.protocols.wallaroo.states import (
    FROM_CONNECTOR,
    FROM_WORKER,
    SESSION,
    STREAM,
    SessionEvent,
    SessionState,
    StreamEvent,
    StreamState,
)


def test_error_is_possible_until_the_end_and_disconnected_is_final() -> None:
    for state in (SessionState.CONNECTED, SessionState.HANDSHAKE, SessionState.STREAMING):
        assert SESSION.step(state, SessionEvent.ERROR) is SessionState.ERROR
    assert list(SESSION.rows[SessionState.ERROR]) == [SessionEvent.CLOSE]
    assert SESSION.rows[SessionState.DISCONNECTED] == {}


def test_each_frame_has_a_sender_and_error_has_both() -> None:
    for dialect in (DRAFT, V3):
        for kind in dialect.tags:
            assert kind in FROM_CONNECTOR or kind in FROM_WORKER
    assert {frames.Error} == FROM_CONNECTOR & FROM_WORKER


def test_the_draft_as_written() -> None:
    """ "The state machine will always end up in the open state after a notification", by way of the hub's answer."""
    for state in (StreamState.INTRO, StreamState.OPEN, StreamState.CLOSED, StreamState.RESET):
        assert STREAM[DRAFT].get(state, StreamEvent.NOTIFY) is StreamState.OPENING
    assert STREAM[DRAFT].get(StreamState.OPENING, StreamEvent.OPENED) is StreamState.OPEN
    for state in (StreamState.OPEN, StreamState.CLOSED, StreamState.RESET):
        assert STREAM[DRAFT].get(state, StreamEvent.NACK) is StreamState.RESET
    for state in (StreamState.INTRO, StreamState.CLOSED):
        assert STREAM[DRAFT].get(state, StreamEvent.MESSAGE) is None
