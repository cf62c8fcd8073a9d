"""The life of one gRPC call on the server, as a table.

Rules of this file: no I/O, no hub, and every change of state goes through `CALL`.
"""

from __future__ import annotations

from enum import Enum

from headrace.protocols.state_machine import StateMachine


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


_ENDS = {Event.STATUS: State.ENDED, Event.RESET: State.ENDED, Event.LOST: State.ENDED}

CALL = StateMachine(
    "fabric/call",
    State.WAITING,
    {
        State.WAITING: {Event.REQUEST: State.SERVING, Event.NO_MORE_REQUESTS: State.ANSWERING, **_ENDS},
        State.SERVING: {Event.REQUEST: State.SERVING, Event.NO_MORE_REQUESTS: State.ANSWERING, **_ENDS},
        State.ANSWERING: _ENDS,
    },
    of="a call",
)

MACHINES = (CALL,)


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
        self.state = CALL.step(self.state, event)

    def request(self) -> bool:
        """A request came; whether the method may have it."""
        self.move(Event.REQUEST)
        self.requests += 1
        return self.takes_many or self.requests == 1
