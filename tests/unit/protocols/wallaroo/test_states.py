"""The tables themselves: what the specification says about them, and that the docs show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.protocols.wallaroo import frames
from headrace.protocols.wallaroo.codec import DRAFT, V3
from headrace.protocols.wallaroo.frames import LocalFault
from headrace.protocols.wallaroo.states import (
    DRAFT_STREAM,
    FROM_CONNECTOR,
    FROM_WORKER,
    SESSION,
    V3_STREAM,
    SessionEvent,
    SessionState,
    StreamEvent,
    StreamState,
    advance_session,
    mermaid,
    next_stream_state,
)

DOCS = Path(__file__).parents[4] / "docs" / "protocols" / "wallaroo.md"


def test_error_is_possible_until_the_end_and_disconnected_is_final() -> None:
    for state in (SessionState.CONNECTED, SessionState.HANDSHAKE, SessionState.STREAMING):
        assert advance_session(state, SessionEvent.ERROR) is SessionState.ERROR
    assert list(SESSION[SessionState.ERROR]) == [SessionEvent.CLOSE]
    assert SESSION[SessionState.DISCONNECTED] == {}


def test_every_transition_that_is_not_in_the_table_is_refused() -> None:
    for state in SessionState:
        for event in SessionEvent:
            if event not in SESSION[state]:
                with pytest.raises(LocalFault, match=f"{state.value} has no"):
                    advance_session(state, event)


def test_each_frame_has_a_sender_and_error_has_both() -> None:
    for dialect in (DRAFT, V3):
        for kind in dialect.tags:
            assert kind in FROM_CONNECTOR or kind in FROM_WORKER
    assert {frames.Error} == FROM_CONNECTOR & FROM_WORKER


@pytest.mark.parametrize("table", [DRAFT_STREAM, V3_STREAM])
def test_every_stream_state_is_reachable(table: dict[StreamState, dict[StreamEvent, StreamState]]) -> None:
    reached = {StreamState.INTRO}
    for _ in table:
        reached |= {after for state in reached for after in table.get(state, {}).values()}
    assert reached == set(table)


def test_the_draft_as_written() -> None:
    """ "The state machine will always end up in the open state after a notification", by way of the hub's answer."""
    for state in (StreamState.INTRO, StreamState.OPEN, StreamState.CLOSED, StreamState.RESET):
        assert next_stream_state(DRAFT, state, StreamEvent.NOTIFY) is StreamState.OPENING
    assert next_stream_state(DRAFT, StreamState.OPENING, StreamEvent.OPENED) is StreamState.OPEN
    for state in (StreamState.OPEN, StreamState.CLOSED, StreamState.RESET):
        assert next_stream_state(DRAFT, state, StreamEvent.NACK) is StreamState.RESET
    for state in (StreamState.INTRO, StreamState.CLOSED):
        assert next_stream_state(DRAFT, state, StreamEvent.MESSAGE) is None


@pytest.mark.parametrize("table", [SESSION, DRAFT_STREAM, V3_STREAM], ids=["session", "draft", "v3"])
def test_the_docs_show_the_tables(table: dict[SessionState, dict[SessionEvent, SessionState]]) -> None:
    assert mermaid(table) in DOCS.read_text(), "regenerate the diagrams: see the end of docs/protocols/wallaroo.md"
