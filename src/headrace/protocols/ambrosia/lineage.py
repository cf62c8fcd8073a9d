"""Which message led to which: what a call from one immortal to another was made after, and what came of it.

The protocol has no place for that, and published bindings say nothing of it. The hub knows what a binding was sent last
before it made a call. Our own binding says it exactly, by an AttachTo to `@after:RECORD:PLACE` before what a message
led to and to `@after:` behind it; whoever does not know these names passes over them (`pairing.py` has the like). The
last links of each immortal are kept in memory, for people who look and for traces.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from headrace.protocols.ambrosia.call_reader import Calls
from headrace.protocols.ambrosia.codec import AttachTo, Call, Return, decode_messages, encode
from headrace.telemetry.tracing import Followed, Tracing, Value
from headrace.units import natural

PREFIX: Final = b"@after:"
END: Final = encode(AttachTo(PREFIX))
RUNS_MAX: Final = 2_000
"""Of each immortal, as caller and as callee."""
SHOWN_MAX: Final = 20
"""Of what one message led to."""
TRACES_MAX: Final = 10_000


def mark_of(record: int, place: int) -> bytes:
    """What a binding says before what the message at a place of a record led to."""
    return encode(AttachTo(b"%b%d:%d" % (PREFIX, record, place)))


def read_mark(destination: bytes) -> tuple[int, int] | None:
    """The record and the place in it; None behind what a message led to."""
    record, _, place = destination.removeprefix(PREFIX).partition(b":")
    numbers = natural(record), natural(place)
    return None if numbers[0] is None or numbers[1] is None else (numbers[0], numbers[1])


class Place(msgspec.Struct, frozen=True):
    """A logged message of an immortal."""

    name: str
    index: int


class Origin(NamedTuple):
    """What calls were made after, and the trace that they are part of."""

    after: Place | None
    trace: object | None = None


class _Run(NamedTuple):
    after: Place
    name: str
    first: int
    next: int


class Lineage:
    """The links of all immortals of a hub."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._causes: dict[str, deque[_Run]] = {}
        self._effects: dict[str, deque[_Run]] = {}
        self._traces: OrderedDict[Place, object] = OrderedDict()
        self._open: OrderedDict[tuple[str, bytes, int], tuple[Followed, object]] = OrderedDict()

    def outside(self) -> Origin | None:
        """Of a call from outside: the caller's trace, if somebody keeps it."""
        trace = self._tracing.context()
        return None if trace is None else Origin(None, trace)

    def origin(self, after: Place, destination: str, calls: Calls, method: Callable[[], str]) -> Origin:
        """Of calls that an immortal makes, named by the method. In a trace they are a span, until their answer."""
        parent = self._traces.get(after) if self._traces else None
        return Origin(after, None if parent is None else self._follow(after, destination, calls, method, parent))

    def _follow(
        self, after: Place, destination: str, calls: Calls, method: Callable[[], str], parent: object
    ) -> object:
        messages = decode_messages(calls.payload(), addressed=False)
        answers = [each for each in messages if isinstance(each, Return)]
        for answer in answers:
            opened = self._open.pop((destination, answer.responder, answer.call_number), None)
            if opened is not None:
                span, parent = opened  # what the caller does next is part of what it did before
                span.end()
        if answers:
            return parent
        about: dict[str, Value] = {"headrace.immortal": destination, "headrace.caller": after.name}
        span = self._tracing.follow(f"{destination}.{method()}", parent, about | {"headrace.caller.index": after.index})
        asked = [each.call_number for each in messages if isinstance(each, Call) and each.caller]
        if asked:
            self._open[after.name, destination.encode(), asked[-1]] = (span, parent)
            if len(self._open) > TRACES_MAX:
                self._open.popitem(last=False)[1][0].end()
        else:
            span.end()
        return span.context

    def logged(self, name: str, first: int, count: int, origin: Origin) -> None:
        """So many calls are in an immortal's log now."""
        if origin.after is not None:
            run = _Run(origin.after, name, first, first + count)
            self._causes.setdefault(name, deque(maxlen=RUNS_MAX)).append(run)
            self._effects.setdefault(origin.after.name, deque(maxlen=RUNS_MAX)).append(run)
        if origin.trace is not None:
            for index in range(first, first + count):
                self._traces[Place(name, index)] = origin.trace
            while len(self._traces) > TRACES_MAX:
                self._traces.popitem(last=False)

    def around(self, name: str, first: int, next: int) -> tuple[dict[int, Place], dict[int, list[Place]]]:
        """Of an immortal's messages from `first` up to `next`: what each was said after, and what was said after each,
        as far as it is known."""
        causes: dict[int, Place] = {}
        for run in self._causes.get(name, ()):
            causes |= dict.fromkeys(range(max(run.first, first), min(run.next, next)), run.after)
        led_to: dict[int, list[Place]] = {}
        for run in self._effects.get(name, ()):
            if first <= run.after.index < next:
                known = led_to.setdefault(run.after.index, [])
                last = min(run.next, run.first + SHOWN_MAX - len(known))
                known += [Place(run.name, index) for index in range(run.first, last)]
        return causes, led_to

    def forget(self, name: str) -> None:
        """An immortal is no more: another of its name begins at index 0."""
        for links in (self._causes, self._effects):
            links.pop(name, None)
            for other, runs in links.items():
                kept = [run for run in runs if name not in (run.name, run.after.name)]
                links[other] = deque(kept, maxlen=RUNS_MAX)
        for place in [place for place in self._traces if place.name == name]:
            with contextlib.suppress(KeyError):
                del self._traces[place]
