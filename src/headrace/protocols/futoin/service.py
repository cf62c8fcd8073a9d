"""The functions of FTN18 on the hub: add, register, poll. Nothing here knows HTTP or WebSocket.

Mapping. A stream is an endpoint; an event is a record; event id = index + 1. A registered consumer is the cursor
`futoin:<user>:<component>`: the index it reads next, which is the id of the last event it has. So `last_id` and the
cursor are the same number.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.errors import Damaged, UnknownStream
from headrace.log.batch import Batch
from headrace.log.ops import Appended, SaveCursor, StreamOptions
from headrace.protocols.futoin import events
from headrace.protocols.futoin.codec import Coding
from headrace.protocols.futoin.credentials import Caller
from headrace.protocols.futoin.errors import (
    LIVE_NOT_ALLOWED,
    NOT_REGISTERED,
    UNAUTHORIZED,
    UNKNOWN_INTERFACE,
    PeerError,
)
from headrace.protocols.futoin.interface import ENVELOPE_BYTES, LIVE, RIGHTS, Call, PollEvents
from headrace.protocols.futoin.lists import EventList, Key, ListCache, encoded
from headrace.protocols.futoin.metrics import FutoinMetrics
from headrace.protocols.futoin.ranges import Ranges
from headrace.protocols.futoin.settings import Futoin
from headrace.security import Principal

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.hub import Hub

logger = logging.getLogger("headrace.futoin")

Added = Callable[[int, BaseException | None], None]
"""Told the index of an added event, or why it was not added."""

READ_ROWS_FILTERED = 10_000
READ_BYTES_MAX = 1 << 20
UNLIMITED = 1 << 62
KNOWN_STREAMS_MAX = 10_000
"""Streams whose adder and whose known records are kept in memory."""


class Place:
    """A stream partition, as the path of an endpoint names it."""

    __slots__ = ("name", "partition")

    def __init__(self, name: str, partition: int = 0) -> None:
        self.name = name
        self.partition = partition


def cursor_name(user: str, component: str) -> str:
    """FTN18 2.2.4: a consumer is the local user and a component."""
    return f"futoin:{user}:{component}"


class Adder:
    """Gathers the events that arrive in one turn of the event loop, over all connections, into one append."""

    def __init__(self, service: Service, place: Place) -> None:
        self._service = service
        self._hub = service.hub
        self._place = place
        self._name = place.name
        self._partition = place.partition
        self._loop = asyncio.get_running_loop()
        # Many small things together must not be refused for being too large: half leaves room for types and the last.
        self._bytes_max = self._hub.config.log.batch_bytes_max // 2
        self._bytes = 0
        self._types: list[str] = []
        self._payloads: list[bytes] = []
        self._waiting: list[Added] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, type: str, payload: bytes, added: Added) -> None:
        """Append soon; `added` is called once the event is durable, or refused."""
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._types.append(type)
        self._payloads.append(payload)
        self._waiting.append(added)
        self._bytes += len(payload)
        if self._bytes >= self._bytes_max:
            self._flush()

    def _flush(self) -> None:
        types, payloads, waiting = self._types, self._payloads, self._waiting
        if not waiting:  # they became too many to wait for the end of the turn
            return
        self._types, self._payloads, self._waiting = [], [], []
        self._bytes = 0
        try:
            batch = Batch.of(payloads, types=types)
            future = self._hub.append(self._name, batch, partition=self._partition)
        except Exception as error:
            _tell(waiting, 0, error)
            return
        future.add_done_callback(functools.partial(self._appended, waiting))

    def _appended(self, waiting: list[Added], future: asyncio.Future[Appended]) -> None:
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if error is not None:
            _tell(waiting, 0, error)
            return
        appended = future.result()
        self._service.known_json(self._place).add(appended.first, appended.first + appended.count)
        self._service.records_in.inc(appended.count)
        if self._acks_when_processed():
            task = self._loop.create_task(self._processed(waiting, appended))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            _tell(waiting, appended.first, None)

    @property
    def is_busy(self) -> bool:
        """Whether events wait to be appended or acknowledged."""
        return bool(self._waiting or self._tasks)

    def _acks_when_processed(self) -> bool:
        try:
            return self._hub.stream(self._name).options.ack != "durable"
        except UnknownStream:  # deleted meanwhile; the events were durable
            return False

    async def _processed(self, waiting: list[Added], appended: Appended) -> None:
        try:
            await self._hub.acknowledged(self._name, appended.first + appended.count, self._partition)
        except Exception as error:
            _tell(waiting, 0, error)
        else:
            _tell(waiting, appended.first, None)


def _tell(waiting: list[Added], first: int, error: BaseException | None) -> None:
    for offset, added in enumerate(waiting):
        added(first + offset, error)


def _below(records: pa.RecordBatch, end: int) -> pa.RecordBatch:
    """Those with index < `end`: where records were trimmed, a read begins later than asked and reaches further."""
    if not records.num_rows:
        return records
    first: int = records.column(0)[0].as_py()
    return records.slice(0, max(0, end - first))


class Service:
    """What the endpoints of one hub share."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.settings = hub.config.section(Futoin)
        self.metrics = hub.metrics.section(FutoinMetrics)
        self.records_in = hub.metrics.protocol.of("futoin").records_in
        self.records_out = hub.metrics.protocol.of("futoin").records_out
        self._skipped = hub.metrics.protocol.of("futoin").skipped
        self._adders: dict[tuple[str, int], Adder] = {}
        self._known_json: dict[tuple[str, int], Ranges] = {}
        self._lists = ListCache()

    def check_right(self, caller: Caller, function: str, stream: str) -> None:
        """Per-stream rights: add, poll and push."""
        wanted = RIGHTS.get(function)
        if wanted is not None:
            right, verb = wanted
            if not caller.may(right, stream, verb):
                raise PeerError(UNAUTHORIZED, f"Not allowed: {verb} on this stream")

    def is_ready(self, place: Place) -> bool:
        """Whether the stream exists; otherwise `prepare` must come before any use."""
        try:
            info = self.hub.stream(place.name)
        except UnknownStream:
            return False
        return place.partition < info.partitions

    async def prepare(self, place: Place, principal: Principal) -> None:
        """Make sure of the stream: it is created for whoever may write to it, if settings allow."""
        if self.is_ready(place):
            return
        allowed = self.settings.create_streams and principal.may("write", place.name) and place.partition == 0
        if not allowed:
            raise PeerError(UNKNOWN_INTERFACE, "No such event stream")
        options = StreamOptions(retention_cursors=self.settings.discard)
        await self.hub.create_stream(place.name, options=options, exist_ok=True)

    def add(self, place: Place, type: str, payload: bytes, added: Added) -> None:
        """FTN18 3.2 addEvent."""
        key = (place.name, place.partition)
        adder = self._adders.get(key)
        if adder is None:
            if len(self._adders) >= KNOWN_STREAMS_MAX:
                self._adders = {key: adder for key, adder in self._adders.items() if adder.is_busy}
            adder = self._adders[key] = Adder(self, place)
        adder.add(type, payload, added)

    async def register(self, place: Place, user: str, component: str) -> bool:
        """FTN18 3.3.1 registerConsumer: a new consumer begins at the oldest event kept, a known one stays."""
        if component == LIVE:
            raise PeerError(LIVE_NOT_ALLOWED, "Live consumer should not register")
        name = cursor_name(user, component)
        if self.hub.cursor(name, place.name, place.partition) is None:
            first = self.hub.bounds(place.name, place.partition).first
            await self.hub.save_cursor(name, place.name, first, place.partition)
        return True

    def position(self, place: Place, user: str, component: str) -> int:
        """Where a registered consumer stands."""
        index = self.hub.cursor(cursor_name(user, component), place.name, place.partition)
        if index is None:
            raise PeerError(NOT_REGISTERED)
        return index

    async def poll(self, place: Place, user: str, params: PollEvents, call: Call, coding: Coding) -> Any:
        """FTN18 3.3.1 pollEvents: the list of events. The position that the caller names is durable before that."""
        component = params.component
        last = 0 if params.last_id is None else int(params.last_id)
        reliable = component != LIVE
        stored = self.position(place, user, component) if reliable else 0
        # An id beyond the end cannot have been delivered: taking it would hide events still to come.
        end = self.hub.bounds(place.name, place.partition).next
        start = max(stored, min(last, end))
        bytes_max = call.reply_bytes_max - ENVELOPE_BYTES
        want = None if params.want is None else frozenset(params.want)
        saving = None
        if reliable and start > stored:
            # Made durable while the events are read.
            saving = self._save(place, user, component, start)
        found = await self.event_list(place, start, want, coding, bytes_max, end)
        if saving is not None:
            await saving
        if reliable and found.first > start:
            # What was filtered out before the first event shown counts as delivered (FTN18 2.2.3).
            await self._save(place, user, component, found.first)
        self.metrics.polls.inc()
        self.records_out.inc(found.count)
        return found.events

    def _save(self, place: Place, user: str, component: str, index: int) -> asyncio.Future[list[int]]:
        operation = SaveCursor(cursor_name(user, component), place.name, index, place.partition)
        return self.hub.transact([operation])

    async def event_list(
        self, place: Place, start: int, want: frozenset[str] | None, coding: Coding, bytes_max: int, end: int
    ) -> EventList:
        """The wanted events at `start` ≤ index < `end`, as many as one message holds, ready for that message."""
        key = Key(place.name, place.partition, start, want, coding, bytes_max)
        known = self._lists.get(key)
        if known is not None and start >= self.hub.bounds(place.name, place.partition).first:
            return known
        page = await self.page(place, start, want, coding, bytes_max, end)
        found = EventList(encoded(page.events, coding), len(page.events), page.first, page.next)
        if page.full or found.count >= self.settings.group_events_max:
            self._lists.put(key, found)
        return found

    async def page(
        self,
        place: Place,
        start: int,
        want: frozenset[str] | None,
        coding: Coding,
        bytes_max: int,
        end: int,
        *,
        whole: bool = False,
    ) -> events.Page:
        """The wanted events at `start` ≤ index < `end`, as many as one message holds, in order.

        With `whole`, all of them: they were one message before, and sizes are estimated from how the log is read.
        """
        events_max = self.settings.group_events_max
        found = events.Page([], start, start, 0, False)
        while found.next < end and not found.full:
            room = events_max - len(found.events)
            limit = min(end - found.next, room if want is None else READ_ROWS_FILTERED)
            try:
                records = await self.hub.read(
                    place.name, found.next, partition=place.partition, limit=limit, max_bytes=READ_BYTES_MAX
                )
            except Damaged as damaged:
                logger.error("damaged events were left out: %s", damaged)
                self.metrics.damaged.inc(damaged.last + 1 - damaged.first)
                found.next = damaged.last + 1
                continue
            records = _below(records, end)
            if not records.num_rows:
                # Nothing below `end` is kept any more: what was trimmed is not waited for.
                found.next = end
                break
            space = events.Room(room, UNLIMITED if whole else bytes_max - found.bytes, bytes_max)
            self._extend(found, self._rendered(place, records, coding, want, space), place)
            if len(found.events) >= events_max:
                break
            await asyncio.sleep(0)
        if not found.events:
            found.first = found.next
        return found

    def _rendered(
        self, place: Place, records: pa.RecordBatch, coding: Coding, want: frozenset[str] | None, space: events.Room
    ) -> events.Page:
        first, next = records.column(0)[0].as_py(), records.column(0)[-1].as_py() + 1
        known = self.known_json(place)
        found = events.page(records, coding, want, space, known.covers(first, next))
        if found.all_json:
            known.add(first, next)
        return found

    def known_json(self, place: Place) -> Ranges:
        """Records that were checked when they were added or first read. Indexes are never used twice."""
        key = (place.name, place.partition)
        known = self._known_json.get(key)
        if known is None:
            if len(self._known_json) >= KNOWN_STREAMS_MAX:
                self._known_json.clear()
            known = self._known_json[key] = Ranges()
        return known

    def _extend(self, found: events.Page, more: events.Page, place: Place) -> None:
        if more.too_big:
            self._skipped.inc(more.too_big)
            logger.warning("%d events of %s are too big for a message and were left out", more.too_big, place.name)
        if more.events and not found.events:
            found.first = more.first
        found.events += more.events
        found.next = more.next
        found.bytes += more.bytes
        found.full = more.full
