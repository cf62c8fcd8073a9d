"""One thin-client connection as a state machine: bytes in, requests out; answers in, bytes out in the order of the
requests.

Rules of this file: no I/O, no hub, and every change of state goes through `CONNECTION`.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Any
from uuid import UUID

from headrace.protocols.perper.errors import FrameError, Status
from headrace.protocols.perper.ignite import codec
from headrace.protocols.perper.ignite.binary import Limits
from headrace.protocols.state_machine import StateMachine


class State(Enum):
    """Where a connection stands."""

    NEW = "new"
    LOGIN = "login"
    READY = "ready"
    CLOSED = "closed"


class Event(Enum):
    """What moves it."""

    HANDSHAKE = "handshake"
    BAD_VERSION = "handshake of another version"
    WELCOME = "login accepted"
    REFUSED = "login refused"
    REQUEST = "request"
    BROKEN = "frame that cannot be read"
    DISCONNECT = "disconnect"


CONNECTION = StateMachine(
    "ignite/connection",
    State.NEW,
    {
        State.NEW: {
            Event.HANDSHAKE: State.LOGIN,
            Event.BAD_VERSION: State.CLOSED,
            Event.BROKEN: State.CLOSED,
        },
        State.LOGIN: {Event.WELCOME: State.READY, Event.REFUSED: State.CLOSED, Event.BROKEN: State.CLOSED},
        State.READY: {Event.REQUEST: State.READY, Event.BROKEN: State.CLOSED},
    },
    everywhere={Event.DISCONNECT: State.CLOSED},
)

MACHINES = (CONNECTION,)


Frames = tuple[bytes, list[tuple[int, int]]]
"""Received bytes, and where each whole frame begins and ends in them."""


class Slot:
    """The place of one answer (or of several that are known together) in the order of answers."""

    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data: bytes | None = None


class Session:
    """The server's side of one connection."""

    def __init__(self, node_id: UUID, frame_bytes_max: int, limits: Limits | None = None) -> None:
        self.state = State.NEW
        self.version: codec.Version = codec.NEWEST
        self._node_id = node_id
        self._frame_bytes_max = frame_bytes_max
        self._limits = limits or Limits()
        self._buffer = codec.FrameBuffer(min(codec.HANDSHAKE_BYTES_MAX, frame_bytes_max))
        self._answers: deque[Slot] = deque()
        self._features = b"\0"

    def _move(self, event: Event) -> None:
        self.state = CONNECTION.step(self.state, event)

    # in

    def receive_handshake(self, data: bytes) -> codec.Handshake | None:
        """Feed bytes while the state is NEW. The handshake, once it is whole; bytes after it wait."""
        try:
            payload = self._buffer.feed_first(data)
            if payload is None:
                return None
            handshake = codec.decode_handshake(payload)
        except FrameError:
            self._move(Event.BROKEN)
            raise
        known = handshake.version in codec.VERSIONS and handshake.client_type == codec.THIN_CLIENT
        self._move(Event.HANDSHAKE if known else Event.BAD_VERSION)
        return handshake

    def receive(self, data: bytes) -> list[codec.Request | codec.BadRequest]:
        """Feed bytes while the state is READY."""
        return self.decode(*self.cut(data))

    def cut(self, data: bytes) -> Frames:
        """The first half of `receive`: where the whole frames are."""
        try:
            return self._buffer.feed(data)
        except FrameError:
            self._move(Event.BROKEN)
            raise

    def cut_large(self, data: bytes, large_bytes: int) -> tuple[list[bytes], bytes] | None:
        """In place of `cut`: the pieces of a large frame that is whole now, for `decode_large`, and what is behind it;
        None where there is none."""
        return self._buffer.feed_large(data, large_bytes)

    def decode_large(self, pieces: list[bytes]) -> list[codec.Request | codec.BadRequest]:
        """As `decode`. The pieces are gone afterwards: the frame is in memory as few times as possible."""
        buffer = b"".join(pieces)
        pieces.clear()
        return self.decode(buffer, [(4, len(buffer))])

    def decode(self, buffer: bytes, spans: list[tuple[int, int]]) -> list[codec.Request | codec.BadRequest]:
        """The second half: what they say. Takes long where a frame is large, and may be done in another thread."""
        decode, limits = codec.decode_request, self._limits
        try:
            requests = [decode(buffer, start, end, limits) for start, end in spans]
        except FrameError:
            self._move(Event.BROKEN)
            raise
        if requests and self.state is State.READY:
            self._move(Event.REQUEST)
        return requests

    # out

    def welcome(self, handshake: codec.Handshake, node_id: UUID | None = None) -> bytes:
        """The answer to an accepted login. `node_id` is of a hub between, if there is one."""
        self._move(Event.WELCOME)
        self.version = handshake.version
        self._features = codec.common_features(handshake.features)
        self._buffer.bytes_max = self._frame_bytes_max
        return codec.encode_handshake_success(self.version, self._features, node_id or self._node_id)

    def refuse_login(self, message: str) -> bytes:
        """The answer to a wrong user or password."""
        self._move(Event.REFUSED)
        return codec.encode_handshake_refusal((0, 0, 0), message, Status.LOGIN_FAILED)

    @staticmethod
    def refuse_version(handshake: codec.Handshake) -> bytes:
        """The answer to a version or kind of client that is not served: the nearest version that is."""
        if handshake.client_type != codec.THIN_CLIENT:
            return codec.encode_handshake_refusal(
                codec.NEWEST,
                f"Unsupported client type {handshake.client_type}: only thin clients (2) are served.",
                Status.FAILED,
            )
        nearest = codec.NEWEST if handshake.version > codec.NEWEST else codec.VERSIONS[0]
        return codec.encode_handshake_refusal(nearest, "Unsupported version.", Status.FAILED)

    def reserve(self) -> Slot:
        """The next place in the order of answers."""
        slot = Slot()
        self._answers.append(slot)
        return slot

    def answer(self, op: int, request_id: int, value: Any) -> bytes:
        """The bytes of a response that says yes."""
        return codec.encode_response(request_id, codec.encode_answer(op, value, self.version), self.version)

    def answer_alike(self, request_ids: list[int], body: bytes) -> bytes:
        """The bytes of many responses with the same body."""
        return b"".join([codec.encode_response(request_id, body, self.version) for request_id in request_ids])

    def fail(self, request_id: int, status: int, message: str) -> bytes:
        """The bytes of a response that says no."""
        return codec.encode_error(request_id, status, message, self.version)

    def take_answers(self) -> bytes:
        """Whatever can be sent now: the answers up to the first that is not known yet."""
        answers = self._answers
        ready: list[bytes] = []
        while answers and answers[0].data is not None:
            data = answers.popleft().data
            assert data is not None
            ready.append(data)
        return b"".join(ready)

    @property
    def waiting(self) -> int:
        """How many answers are outstanding."""
        return len(self._answers)

    @property
    def unread_bytes(self) -> int:
        """Bytes that wait for the rest of their frame."""
        return self._buffer.kept_bytes

    def disconnect(self) -> None:
        """The connection is gone."""
        self._move(Event.DISCONNECT)
        self._buffer = codec.FrameBuffer(0)
