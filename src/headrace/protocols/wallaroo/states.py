"""The state machines of the protocol, as tables. Both ends, the tests and the diagrams in the docs use these.

Two rules for this file: a transition that is not in a table does not exist, and nothing here looks at a frame's
contents: what depends on contents (a refused stream, a stack of NACKs) is an event of its own.

A session is the draft's "Protocol State Machine" with v3's frames added to Streaming. A stream is its "Stream State
Machine", once per dialect: `Opening` is the time in which the hub looks up or creates the stream, and v3's `Closing`
the time between EOS and its last acknowledgement.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from headrace.protocols.state_machine import StateMachine
from headrace.protocols.wallaroo import frames
from headrace.protocols.wallaroo.codec import DRAFT, V3, Dialect


class SessionState(Enum):
    CONNECTED = "Connected"
    HANDSHAKE = "Handshake"
    STREAMING = "Streaming"
    ERROR = "Error"
    DISCONNECTED = "Disconnected"


class SessionEvent(Enum):
    HELLO = "HELLO"
    OK = "OK"
    NOTIFY = "NOTIFY"
    NOTIFY_ACK = "NOTIFY_ACK"
    MESSAGE = "MESSAGE"
    EOS = "EOS"
    ACK = "ACK"
    NACK = "NACK"
    RESTART = "RESTART"
    ERROR = "ERROR"
    CLOSE = "close"


_S, _E = SessionState, SessionEvent

_SESSION: dict[SessionState, dict[SessionEvent, SessionState]] = {
    _S.CONNECTED: {_E.HELLO: _S.HANDSHAKE, _E.ERROR: _S.ERROR, _E.CLOSE: _S.DISCONNECTED},
    _S.HANDSHAKE: {_E.OK: _S.STREAMING, _E.ERROR: _S.ERROR, _E.CLOSE: _S.DISCONNECTED},
    _S.STREAMING: {
        **dict.fromkeys((_E.NOTIFY, _E.NOTIFY_ACK, _E.MESSAGE, _E.EOS, _E.ACK, _E.NACK), _S.STREAMING),
        _E.RESTART: _S.DISCONNECTED,
        _E.ERROR: _S.ERROR,
        _E.CLOSE: _S.DISCONNECTED,
    },
    _S.ERROR: {_E.CLOSE: _S.DISCONNECTED},
}

SESSION = StateMachine("wallaroo/connection", SessionState.CONNECTED, _SESSION)

FROM_CONNECTOR: frozenset[type] = frozenset({frames.Hello, frames.Notify, frames.Message, frames.Eos, frames.Error})
"""What a connector may send. The rest is the worker's, and refused from a connector by name."""

FROM_WORKER: frozenset[type] = frozenset(
    {frames.Ok, frames.NotifyAck, frames.Ack, frames.Nack, frames.Restart, frames.Error, frames.WorkersLeft},
)


class StreamState(Enum):
    INTRO = "Intro"
    OPENING = "Opening"
    OPEN = "Open"
    CLOSING = "Closing"
    CLOSED = "Closed"
    RESET = "Reset"


class StreamEvent(Enum):
    NOTIFY = "NOTIFY"
    NOTIFY_STACKED = "NOTIFY, more NACKs open"
    OPENED = "hub: opened"
    REFUSED = "hub: refused"
    MESSAGE = "MESSAGE"
    EOS = "EOS"
    NACK = "NACK"
    RELEASED = "hub: all stored"


_T, _V = StreamState, StreamEvent

_DRAFT_STREAM: dict[StreamState, dict[StreamEvent, StreamState]] = {
    _T.INTRO: {_V.NOTIFY: _T.OPENING},
    _T.OPENING: {_V.OPENED: _T.OPEN, _V.NACK: _T.RESET},
    _T.OPEN: {
        _V.NOTIFY: _T.OPENING,  # a re-introduction
        _V.MESSAGE: _T.OPEN,
        _V.EOS: _T.CLOSED,
        _V.NACK: _T.RESET,
    },
    _T.CLOSED: {_V.NOTIFY: _T.OPENING, _V.NACK: _T.RESET},
    _T.RESET: {
        _V.NOTIFY: _T.OPENING,
        _V.NOTIFY_STACKED: _T.RESET,  # "each NACK will require a NOTIFY"
        _V.MESSAGE: _T.RESET,  # ignored, and its credit returned
        _V.EOS: _T.RESET,
        _V.NACK: _T.RESET,
    },
}

_V3_STREAM: dict[StreamState, dict[StreamEvent, StreamState]] = {
    _T.INTRO: {_V.NOTIFY: _T.OPENING},
    _T.OPENING: {_V.OPENED: _T.OPEN, _V.REFUSED: _T.INTRO},
    _T.OPEN: {_V.MESSAGE: _T.OPEN, _V.EOS: _T.CLOSING},
    _T.CLOSING: {_V.RELEASED: _T.CLOSED},
    _T.CLOSED: {_V.NOTIFY: _T.OPENING},
}

StreamMachine = StateMachine[StreamState, StreamEvent]

STREAM: dict[Dialect, StreamMachine] = {
    dialect: StateMachine(f"wallaroo/stream {dialect.name}", StreamState.INTRO, table, of="a stream")
    for dialect, table in ((DRAFT, _DRAFT_STREAM), (V3, _V3_STREAM))
}

MACHINES: tuple[StateMachine[Any, Any], ...] = (SESSION, *STREAM.values())
