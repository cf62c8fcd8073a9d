"""The life of one gRPC call on the server, as a table.

Rules of this file: no I/O, no hub, and every change of state goes through `TRANSITIONS`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from headrace.protocols.perper.errors import LocalProtocolError


class State(Enum):
    """Where a call stands."""

    WAITING = "waiting"  # headers came, the request has not
    SERVING = "serving"  # the client may send more
    ANSWERING = "answering"  # the client has said all it will say
    ENDED = "ended"


class Event(Enum):
    """What moves it."""

    REQUEST = "request"
    NO_MORE_REQUESTS = "no more requests"
    STATUS = "status sent"
    RESET = "reset by the client"
    LOST = "connection lost"


TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (State.WAITING, Event.REQUEST): State.SERVING,
    (State.WAITING, Event.NO_MORE_REQUESTS): State.ANSWERING,
    (State.WAITING, Event.STATUS): State.ENDED,
    (State.WAITING, Event.RESET): State.ENDED,
    (State.WAITING, Event.LOST): State.ENDED,
    (State.SERVING, Event.REQUEST): State.SERVING,
    (State.SERVING, Event.NO_MORE_REQUESTS): State.ANSWERING,
    (State.SERVING, Event.STATUS): State.ENDED,
    (State.SERVING, Event.RESET): State.ENDED,
    (State.SERVING, Event.LOST): State.ENDED,
    (State.ANSWERING, Event.STATUS): State.ENDED,
    (State.ANSWERING, Event.RESET): State.ENDED,
    (State.ANSWERING, Event.LOST): State.ENDED,
}


class CallSession:
    """The state of one call. A method that takes one request refuses a second one."""

    __slots__ = ("requests", "state", "takes_many")

    def __init__(self, takes_many: bool) -> None:
        self.state = State.WAITING
        self.takes_many = takes_many
        self.requests = 0

    @property
    def ended(self) -> bool:
        """Nothing more may be sent."""
        return self.state is State.ENDED

    def move(self, event: Event) -> None:
        """Something happened."""
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            raise LocalProtocolError(f"{event.value} in state {self.state.value}")
        self.state = following

    def request(self) -> bool:
        """A request came; whether the method may have it."""
        self.move(Event.REQUEST)
        self.requests += 1
        return self.takes_many or self.requests == 1


def diagram() -> str:
    """The transitions as a mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> waiting"]
    lines += [
        f"    {state.value} --> {following.value}: {event.value}" for (state, event), following in TRANSITIONS.items()
    ]
    return "\n".join([*lines, "    ended --> [*]"])
