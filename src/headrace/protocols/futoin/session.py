"""The rules of a FutoIn conversation, without I/O: who may call what, and how a group of events is delivered.

Two rules for this file. First, nothing here waits, reads a clock or knows a socket. Second, a delivery changes its
phase only through `DELIVERY`; a pair that is not in the table is a bug of ours, never of the peer.

    phase     what it means
    IDLE      nothing is under way
    FLOWING   groups are under way, and more may follow while the window has room
    HELD      a group was refused or timed out: nothing new is sent until it has been sent again
    ENDED     the consumer left, or another readyToReceive took its place

FTN18 2.2.2: "Sequence ID must start from 0 with no gaps for reliable delivery. Live delivery must add sequence ID gap
for skipped event group."
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

import msgspec

from headrace.protocols.futoin.errors import INVALID_REQUEST, SECURITY_ERROR, PeerError
from headrace.protocols.futoin.interface import Interface
from headrace.protocols.state_machine import StateMachine

BACK_OFF_FIRST_S = 0.1
BACK_OFF_MAX_S = 30.0


class Endpoint(NamedTuple):
    """A stream partition, as the path of an endpoint names it."""

    stream: str
    partition: int = 0


class Channel(NamedTuple):
    """How a peer reaches us."""

    secure: bool
    bidirectional: bool
    open_to_all: bool = False
    """Whether a caller without a name is let in: `futoin.insecure`, from this machine."""
    peer: str = ""
    recognized: Callable[[], None] = lambda: None
    """Called when the peer turns out to be somebody."""


def check_constraints(interface: Interface, channel: Channel, known: bool) -> None:
    """FTN3 `requires`, in the order in which executors check them."""
    if interface.secure and not channel.secure:
        raise PeerError(SECURITY_ERROR, "Insecure channel")
    if not known and not interface.anonymous:
        raise PeerError(SECURITY_ERROR, "Anonymous not allowed")
    if interface.bidirectional and not channel.bidirectional:
        raise PeerError(INVALID_REQUEST, "Bi-Direct Channel is required")


class Phase(Enum):
    IDLE = "idle"
    FLOWING = "flowing"
    HELD = "held"
    ENDED = "ended"


class Signal(Enum):
    SENT = "sent"
    CONFIRMED = "confirmed"
    DRAINED = "drained"
    REFUSED = "refused"
    REPEATED = "repeated"
    RELEASED = "released"
    CLOSED = "closed"


DELIVERY = StateMachine(
    "futoin/delivery",
    Phase.IDLE,
    {
        Phase.IDLE: {Signal.SENT: Phase.FLOWING},
        Phase.FLOWING: {
            Signal.SENT: Phase.FLOWING,
            Signal.CONFIRMED: Phase.FLOWING,
            Signal.DRAINED: Phase.IDLE,
            Signal.REFUSED: Phase.HELD,
        },
        Phase.HELD: {
            Signal.CONFIRMED: Phase.HELD,
            Signal.REFUSED: Phase.HELD,
            Signal.REPEATED: Phase.HELD,
            Signal.RELEASED: Phase.FLOWING,
        },
    },
    everywhere={Signal.CLOSED: Phase.ENDED},
    of="a reliable receiver",
)

MACHINES = (DELIVERY,)


class Group(msgspec.Struct):
    """A group of events under way: records first ≤ index < next, of which those wanted were sent."""

    seq: int
    first: int
    next: int
    confirmed: bool = False
    held: bool = False
    refusals: int = 0


class Delivery:
    """The groups of one reliable consumer: what is under way, what may be sent, how far the consumer has come."""

    def __init__(self, position: int, window: int) -> None:
        self.phase = Phase.IDLE
        self.position = position
        """The consumer has everything below this index."""
        self.next = position
        """Where the next group begins."""
        self.next_seq = 0
        self._window = window
        self._groups: dict[int, Group] = {}

    def _signal(self, signal: Signal) -> None:
        self.phase = DELIVERY.step(self.phase, signal)

    @property
    def in_flight(self) -> int:
        return len(self._groups)

    @property
    def may_send(self) -> bool:
        """Whether a new group may go out now."""
        return self.phase in (Phase.IDLE, Phase.FLOWING) and len(self._groups) < self._window

    def send(self, next_index: int) -> Group:
        """A new group that ends before `next_index`."""
        assert self.may_send
        assert next_index > self.next
        group = Group(self.next_seq, self.next, next_index)
        self._groups[group.seq] = group
        self.next_seq += 1
        self.next = next_index
        self._signal(Signal.SENT)
        return group

    def skip(self, next_index: int) -> None:
        """Nothing wanted below `next_index`: filtered events count as delivered (FTN18 2.2.3)."""
        self.next = max(self.next, next_index)
        if self._groups:
            last = self._groups[max(self._groups)]
            last.next = max(last.next, self.next)
        else:
            self.position = self.next

    def confirm(self, seq: int) -> bool:
        """The consumer took group `seq`. Whether `position` moved: it follows the confirmed groups without a gap."""
        group = self._groups.get(seq)
        if group is None or self.phase is Phase.ENDED:
            return False
        group.confirmed = True
        before = self.position
        for each in sorted(self._groups):
            if not self._groups[each].confirmed:
                break
            self.position = max(self.position, self._groups.pop(each).next)
        self._signal(Signal.CONFIRMED if self._groups or self.phase is Phase.HELD else Signal.DRAINED)
        return self.position > before

    def refuse(self, seq: int) -> float | None:
        """The consumer failed on group `seq`, or did not answer: the pause before it is sent again."""
        group = self._groups.get(seq)
        if group is None or group.confirmed or group.held or self.phase is Phase.ENDED:
            return None
        self._signal(Signal.REFUSED)
        group.held = True
        pause_s = min(BACK_OFF_FIRST_S * 2.0**group.refusals, BACK_OFF_MAX_S)
        group.refusals += 1
        return pause_s

    def repeat(self, seq: int) -> Group | None:
        """The pause is over: the same group with the same seq goes out again."""
        group = self._groups.get(seq)
        if group is None or not group.held:
            return None
        group.held = False
        still_held = any(each.held for each in self._groups.values())
        self._signal(Signal.REPEATED if still_held else Signal.RELEASED)
        return group

    def advance(self, position: int) -> None:
        """The consumer moved its own position forward, by a poll."""
        if not self._groups and position > self.next:
            self.next = self.position = position

    def close(self) -> None:
        """The consumer left: what is under way will be sent again, with seq 0, when it comes back."""
        self._signal(Signal.CLOSED)
        self._groups.clear()


class LiveDelivery:
    """The groups of one LIVE consumer: nothing is repeated, and what it cannot keep up with is dropped with a gap."""

    def __init__(self, position: int, window: int, backlog_max: int, group_events: int) -> None:
        assert backlog_max >= group_events
        self.next = position
        self.next_seq = 0
        self.dropped = 0
        self._window = window
        self._backlog_max = backlog_max
        self._group_events = group_events
        self._in_flight: set[int] = set()

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def may_send(self) -> bool:
        return len(self._in_flight) < self._window

    def send(self, next_index: int) -> int:
        """The seq of a new group that ends before `next_index`."""
        seq = self.next_seq
        self._in_flight.add(seq)
        self.next_seq += 1
        self.next = next_index
        return seq

    def skip(self, next_index: int) -> None:
        """Nothing wanted below `next_index`."""
        self.next = max(self.next, next_index)

    def finish(self, seq: int) -> None:
        """An answer came, good or bad, or none in time: either way the slot is free."""
        self._in_flight.discard(seq)

    def drop_backlog(self, end: int) -> int:
        """Drop the oldest groups while more than the backlog waits below `end`: one seq is left out for each."""
        groups = 0
        while end - self.next > self._backlog_max:
            self.next += self._group_events
            self.next_seq += 1
            groups += 1
        self.dropped += groups
        return groups
