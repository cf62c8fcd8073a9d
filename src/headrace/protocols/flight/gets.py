"""One `do_get`: an iterator of record batches that Flight pulls as fast as the client reads.

Flight asks for the next batch only when there is room for it on the way to the client, so a slow reader holds one batch
and nothing grows.
"""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.flight as flight

from headrace.errors import Closed, Trimmed
from headrace.hub.waiters import Bell
from headrace.protocols.flight.bridge import CANCEL_POLL_S, CANCEL_POLL_S_MAX, Bridge, translated
from headrace.protocols.flight.codec import AtTime, End, Range, ReadTicket, Start, ticket_ranges
from headrace.protocols.flight.permit import Permit
from headrace.protocols.flight.session import Reading, ReadSession

if TYPE_CHECKING:
    from headrace.hub import Hub


_Closed = Callable[[], None]


async def open_read(hub: Hub, ticket: ReadTicket) -> ReadSession:
    """In the loop: turn the ticket's words into indexes."""
    readings = [await _open_range(hub, each, follow=ticket.follow) for each in ticket_ranges(ticket)]
    return ReadSession(ticket, readings)


async def _open_range(hub: Hub, wanted: Range, *, follow: bool) -> Reading:
    bounds = hub.bounds(wanted.stream, wanted.partition)
    position = await _index_of(hub, wanted, wanted.start)
    end: int | None
    if wanted.end is None:
        end = None if follow else max(bounds.next, position)
    else:
        end = await _index_of(hub, wanted, wanted.end)
    lenient = not isinstance(wanted.start, int)
    return Reading(wanted.stream, wanted.partition, position, end, lenient=lenient, available=bounds.next)


async def _index_of(hub: Hub, wanted: Range, place: Start | End) -> int:
    bounds = hub.bounds(wanted.stream, wanted.partition)
    if isinstance(place, AtTime):
        return await hub.index_at_time(wanted.stream, place.time_us, wanted.partition)
    if isinstance(place, int):
        return place
    return bounds.first if place == "earliest" else bounds.next


class ReadStream:
    """The iterator behind one `do_get`. `closed` is called once, however it ends, even if it never began.

    Nothing that it holds refers to it, so that it is gone as soon as Flight has let go of it.
    """

    def __init__(
        self,
        hub: Hub,
        bridge: Bridge,
        session: ReadSession,
        permit: Permit,
        context: flight.ServerCallContext,
        closed: _Closed,
        got_on: Callable[[], None] = lambda: None,
    ) -> None:
        self._closed: _Closed | None = closed
        self._got_on = got_on
        self._records_out = hub.metrics.protocol.of("flight").records_out
        self._batches = _Batches(hub, bridge, session, permit, Caller(bridge, context)).read()
        # Flight calls in from threads that Python has never seen: what the call carries must be taken along.
        self._calling = contextvars.copy_context()

    def __iter__(self) -> ReadStream:
        return self

    @translated
    def __next__(self) -> pa.RecordBatch:
        try:
            batch = self._calling.run(next, self._batches)
            self._records_out.inc(batch.num_rows)
            self._got_on()
            return batch
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Forget the reader."""
        closed, self._closed = self._closed, None
        if closed is not None:
            self._batches.close()
            closed()

    def __del__(self) -> None:
        # A client that cancels before the first batch leaves an iterator that nobody ever asks.
        with contextlib.suppress(Exception):
            self.close()


class Caller:
    """Whoever reads, and may have gone, which is looked at from time to time. Sending to somebody who has gone fails
    anyway; this is for those to whom nothing is sent for long."""

    def __init__(self, bridge: Bridge, context: flight.ServerCallContext) -> None:
        self._bridge = bridge
        self._context = context
        self._looked_s = time.monotonic()

    def check(self) -> None:
        """Raise when there is no point in going on."""
        now_s = time.monotonic()
        if now_s - self._looked_s < CANCEL_POLL_S:
            self._bridge.check_stopping()
            return
        self._looked_s = now_s
        self._bridge.check(self._context)


class _Batches(NamedTuple):
    """What one `do_get` reads."""

    hub: Hub
    bridge: Bridge
    session: ReadSession
    permit: Permit
    caller: Caller

    def read(self) -> Generator[pa.RecordBatch]:
        if not self.session.ticket.follow:
            yield from self._all()
            return
        with self._listening() as bell:
            while True:
                yield from self._all()
                if self.session.finished:
                    return
                self._wait(bell)

    def _all(self) -> Generator[pa.RecordBatch]:
        """What is there."""
        for reading in self.session.readings:
            while reading.position < reading.upto and not self.session.finished:
                yield from self._scan(reading)

    def _scan(self, reading: Reading) -> Generator[pa.RecordBatch]:
        session = self.session
        stream, partition, columns = reading.stream, reading.partition, session.scan_columns
        batches = self.hub.scan(stream, reading.position, reading.upto, partition=partition, columns=columns)
        try:
            for batch in batches:
                for part in session.shape(reading, batch):
                    self.caller.check()
                    self.permit.check()
                    yield part
                if session.finished:
                    return
        except Trimmed as error:
            reading.trimmed(error, skip=session.ticket.on_trimmed == "skip")

    @contextlib.contextmanager
    def _listening(self) -> Iterator[Bell]:
        """A bell that rings when it is worth looking again: there may be more to read, or nothing may be any more."""
        bell = Bell()
        self.permit.on_refused = bell.ring
        self.bridge.bells.add(bell)
        try:
            with self.hub.new_records.listening(
                {(each.stream, each.partition) for each in self.session.readings}, bell
            ):
                yield bell
        finally:
            self.bridge.bells.discard(bell)

    def _wait(self, bell: Bell) -> None:
        """Return when one of the ranges has more to read; raise when none of it may be read any more."""
        waiting = [reading for reading in self.session.readings if not reading.finished]
        poll_s = CANCEL_POLL_S
        self.bridge.check_new()
        while True:
            self.caller.check()
            if self.bridge.leaving.is_set():
                raise Closed("the hub is stopping")
            self.permit.check()
            self.hub.check_open()
            for reading in waiting:
                reading.available = self.hub.bounds(reading.stream, reading.partition).next
            if any(reading.position < reading.available for reading in waiting):
                return
            if not bell.wait(poll_s):
                poll_s = min(poll_s * 1.5, CANCEL_POLL_S_MAX)
