"""What has come in and is not understood yet, over all listeners: connections that have not signed in, and the bytes
of messages that are not whole.

A server opens an `Arrival` for each connection, says what it holds of it after each piece that came, and that it is
known once it has signed in. When there is too much, somebody goes: of the connections that have not signed in the
oldest, of half messages the largest, those of strangers first. So whoever sends whole messages, or has a name, is never
kept out by those who do not. A peer that does not get on goes, too: `sweep` looks, about once a second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from headrace.errors import LimitExceeded
from headrace.hub.turns import Turns
from headrace.telemetry.log_lines import fields
from headrace.units import KIB

if TYPE_CHECKING:
    from headrace.config import Limits
    from headrace.telemetry.metrics import IntakeMetrics

logger = logging.getLogger("headrace.server")

SLOWEST_BYTES_PER_S: Final = 64 * KIB
"""A message that comes at this pace is never late."""
SWEEP_S: Final = 1.0
TELL_S: Final = 10.0
"""One line in the log for all connections that were ended for one reason in this time."""

LARGE_BYTES: Final = 32 * KIB
"""A message of this size may take some milliseconds to read: it is read beside the event loop."""
Result = TypeVar("Result")
Reason = Literal["silent", "slow", "strangers", "bytes", "files"]


def _ended(why: str) -> None:
    """A connection that is gone already."""


class Arrival:
    """One connection."""

    __slots__ = ("_intake", "end", "held_bytes", "is_gone", "is_known", "is_read", "listener", "since_s")

    def __init__(self, intake: Intake, listener: str, end: Callable[[str], None]) -> None:
        self._intake = intake
        self.listener = listener
        self.end = end
        self.held_bytes = 0
        self.is_gone = False
        self.is_known = False
        self.is_read = True
        """Whether it is the peer that we wait for: while we do not read it cannot be late."""
        self.since_s = intake.now_s
        """When it came; later, when the message began that it has sent half of."""

    def known(self) -> None:
        """It has signed in or, where the protocol has no login, said something whole."""
        if not self.is_known:
            self.is_known = True
            self._intake.no_stranger(self)

    def holds(self, nbytes: int, came: int) -> None:
        """So many of its bytes wait for the rest of their message, now that `came` more have come. When that is less
        than there were, a message has become whole, and the time of the next one begins."""
        held = self.held_bytes
        if nbytes == held == 0 or self.is_gone:
            return
        if (not held or nbytes < held + came) and self.is_known:
            self.since_s = self._intake.now_s
        self.held_bytes = nbytes
        self._intake.changed(nbytes - held)

    def close(self) -> None:
        """The connection is gone, and with it what it held."""
        self._intake.left(self)


class Intake:
    """All connections of one hub. Its event loop uses it; nothing here blocks."""

    def __init__(
        self, limits: Limits, metrics: IntakeMetrics, clock_s: Callable[[], float] = lambda: time.monotonic()
    ) -> None:
        self.now_s = clock_s()
        """The time of the last look: as fine as the limits need it, and free to read."""
        self.held_bytes = 0
        self.connections_max: int | None = None
        """How many the process has file descriptors for; None where nobody has looked."""
        self.sign_in_s = limits.sign_in_s
        self.unread_bytes_max = limits.unread_bytes_max
        self.turns = Turns()
        """For what many small messages need of the event loop."""
        self._limits = limits
        self._metrics = metrics
        self._clock_s = clock_s
        self._arrivals: dict[Arrival, None] = {}
        self._strangers: dict[str, dict[Arrival, None]] = {}
        self._sweep_s = max(0.01, min(SWEEP_S, limits.sign_in_s / 4, limits.message_s / 4))
        self._timer: asyncio.TimerHandle | None = None
        self._workshop = ThreadPoolExecutor(1, thread_name_prefix="large-messages")
        self._told: dict[Reason, float] = {}
        self._untold: Counter[Reason] = Counter()

    def open(self, listener: str, end: Callable[[str], None], strangers_max: int | None = None) -> Arrival:
        """A connection came. `end(why)` must cut it off; `strangers_max` is what this listener has room for. Raises
        `LimitExceeded` when it cannot be kept."""
        if self._timer is None:
            self.now_s = self._clock_s()
            self._timer = asyncio.get_running_loop().call_later(self._sweep_s, self._tick)
        full = self.connections_max is not None and len(self._arrivals) >= self.connections_max
        if full and not self._end_oldest(None, "files"):
            self._count("files", listener)
            maximum = len(self._arrivals)
            raise LimitExceeded("connections", maximum + 1, maximum, "limits.files_reserved")
        arrival = Arrival(self, listener, end)
        self._arrivals[arrival] = None
        own = self._strangers.setdefault(listener, {})
        own[arrival] = None
        if strangers_max is not None and len(own) > max(1, strangers_max):
            self._end_oldest(listener, "strangers")
        elif self.strangers > self._limits.strangers_max:
            self._end_oldest(None, "strangers")
        return arrival

    async def apart(self, work: Callable[[], Result]) -> Result:
        """Do what takes long because a message is large: beside the event loop, one at a time for all connections."""
        return await asyncio.get_running_loop().run_in_executor(self._workshop, work)

    @property
    def strangers(self) -> int:
        """Connections that have not signed in."""
        return sum(map(len, self._strangers.values()))

    def __len__(self) -> int:
        return len(self._arrivals)

    def no_stranger(self, arrival: Arrival) -> None:
        """It has signed in."""
        arrival.since_s = self.now_s
        self._strangers[arrival.listener].pop(arrival, None)

    def changed(self, by: int) -> None:
        """What some connection holds has changed."""
        self.held_bytes += by
        while by > 0 and self.held_bytes > self.unread_bytes_max:
            most = max(self._arrivals, key=lambda one: (not one.is_known and one.held_bytes > 0, one.held_bytes))
            self._end(most, "bytes", "too much was received that is not whole yet (limits.unread_bytes_max)")

    def left(self, arrival: Arrival) -> None:
        """It is gone. Further calls do nothing."""
        if arrival not in self._arrivals:
            return
        del self._arrivals[arrival]
        arrival.is_gone = True
        arrival.end = _ended  # nothing is to be ended any more: the connection can be freed without a search for cycles
        self._strangers[arrival.listener].pop(arrival, None)
        self.held_bytes -= arrival.held_bytes
        arrival.held_bytes = 0

    def sweep(self) -> None:
        """End those that were given time enough."""
        self.now_s = now_s = self._clock_s()
        sign_in_s, message_s = self._limits.sign_in_s, self._limits.message_s
        for arrival in list(self._arrivals):
            if not arrival.is_read:
                arrival.since_s = now_s
                continue
            waited_s = now_s - arrival.since_s
            if not arrival.is_known:
                if waited_s > sign_in_s:
                    self._end(arrival, "silent", "it did not sign in, or say anything, in time (limits.sign_in_s)")
            elif arrival.held_bytes and waited_s > message_s + arrival.held_bytes / SLOWEST_BYTES_PER_S:
                self._end(arrival, "slow", "the rest of a message did not come in time (limits.message_s)")

    def _tick(self) -> None:
        self._timer = None
        self.sweep()
        for reason in list(self._untold):
            self._tell(reason)
        if self._arrivals or self._untold:
            self._timer = asyncio.get_running_loop().call_later(self._sweep_s, self._tick)

    def _end_oldest(self, listener: str | None, reason: Reason) -> bool:
        """End the stranger that has been there longest; False when there is none."""
        lists = self._strangers.values() if listener is None else [self._strangers[listener]]
        oldest = min((next(iter(own)) for own in lists if own), key=lambda arrival: arrival.since_s, default=None)
        if oldest is None:
            return False
        self._end(oldest, reason, "newer connections need its place: it has not signed in (limits.strangers_max)")
        return True

    def _end(self, arrival: Arrival, reason: Reason, why: str) -> None:
        end = arrival.end
        self.left(arrival)
        self._count(reason, arrival.listener)
        end(why)

    def _count(self, reason: Reason, listener: str) -> None:
        self._metrics.ended.labels(protocol=listener, reason=reason).inc()
        self._untold[reason] += 1
        self._tell(reason)

    def _tell(self, reason: Reason) -> None:
        if self.now_s - self._told.get(reason, -TELL_S) < TELL_S:
            return
        self._told[reason] = self.now_s
        logger.warning("connections ended", extra=fields(reason=reason, count=self._untold.pop(reason)))
