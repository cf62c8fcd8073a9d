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
from headrace.protocols.futoin.lists import EventList, ListCache, Selection, encoded
from headrace.protocols.futoin.metrics import FutoinMetrics
from headrace.protocols.futoin.ranges import Ranges
from headrace.protocols.futoin.session import Endpoint
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


def cursor_name(user: str, component: str) -> str:
    """FTN18 2.2.4: a consumer is the local user and a component."""
    return f"futoin:{user}:{component}"


class Adder:
    """Gathers the events that arrive in one turn of the event loop, over all connections, into one append."""

    def __init__(self, service: Service, endpoint: Endpoint) -> None:
        self._service = service
        self._hub = service.hub
        self._endpoint = endpoint
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
            future = self._hub.append(self._endpoint.stream, batch, partition=self._endpoint.partition)
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
        self._service.known_json(self._endpoint).add(appended.first, appended.first + appended.count)
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
            return self._hub.stream(self._endpoint.stream).options.ack != "durable"
        except UnknownStream:  # deleted meanwhile; the events were durable
            return False

    async def _processed(self, waiting: list[Added], appended: Appended) -> None:
        try:
            index_next = appended.first + appended.count
            await self._hub.acknowledged(self._endpoint.stream, index_next, self._endpoint.partition)
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
        counters = hub.metrics.protocol.of("futoin")
        self.records_in, self.records_out, self._skipped = counters.records_in, counters.records_out, counters.skipped
        self._adders: dict[Endpoint, Adder] = {}
        self._known_json: dict[Endpoint, Ranges] = {}
        self._lists = ListCache()

    def check_right(self, caller: Caller, function: str, stream: str) -> None:
        """Per-stream rights: add, poll and push."""
        right, verb = RIGHTS.get(function, (None, ""))
        if right is not None and not caller.may(right, stream, verb):
            raise PeerError(UNAUTHORIZED, f"Not allowed: {verb} on this stream")

    def is_ready(self, endpoint: Endpoint) -> bool:
        """Whether the stream exists; otherwise `prepare` must come before any use."""
        try:
            info = self.hub.stream(endpoint.stream)
        except UnknownStream:
            return False
        return endpoint.partition < info.partitions and info.kind == "stream"

    async def prepare(self, endpoint: Endpoint, principal: Principal) -> None:
        """Make sure of the stream: it is created for whoever may write to it, if settings allow."""
        if self.is_ready(endpoint):
            return
        allowed = self.settings.create_streams and principal.may("write", endpoint.stream) and endpoint.partition == 0
        if not allowed or self.hub.has_stream(endpoint.stream):  # a table, or too few partitions
            raise PeerError(UNKNOWN_INTERFACE, "No such event stream")
        options = StreamOptions(retention_cursors=self.settings.discard)
        await self.hub.create_stream(endpoint.stream, options=options, exist_ok=True)

    def add(self, endpoint: Endpoint, type: str, payload: bytes, added: Added) -> None:
        """FTN18 3.2 addEvent."""
        adder = self._adders.get(endpoint)
        if adder is None:
            if len(self._adders) >= KNOWN_STREAMS_MAX:
                self._adders = {key: adder for key, adder in self._adders.items() if adder.is_busy}
            adder = self._adders[endpoint] = Adder(self, endpoint)
        adder.add(type, payload, added)

    async def register(self, endpoint: Endpoint, user: str, component: str) -> bool:
        """FTN18 3.3.1 registerConsumer: a new consumer begins at the oldest event kept, a known one stays."""
        if component == LIVE:
            raise PeerError(LIVE_NOT_ALLOWED, "Live consumer should not register")
        name = cursor_name(user, component)
        if self.hub.cursor(name, *endpoint) is None:
            await self.hub.save_cursor(name, endpoint.stream, self.hub.bounds(*endpoint).first, endpoint.partition)
        return True

    def position(self, endpoint: Endpoint, user: str, component: str) -> int:
        """Where a registered consumer stands."""
        index = self.hub.cursor(cursor_name(user, component), *endpoint)
        if index is None:
            raise PeerError(NOT_REGISTERED)
        return index

    async def poll(self, endpoint: Endpoint, user: str, params: PollEvents, call: Call, coding: Coding) -> Any:
        """FTN18 3.3.1 pollEvents: the list of events. The position that the caller names is durable before that."""
        component = params.component
        last = 0 if params.last_id is None else int(params.last_id)
        reliable = component != LIVE
        stored = self.position(endpoint, user, component) if reliable else 0
        # An id beyond the end cannot have been delivered: taking it would hide events still to come.
        end = self.hub.bounds(*endpoint).next
        start = max(stored, min(last, end))
        want = None if params.want is None else frozenset(params.want)
        selection = Selection(endpoint, start, want, coding, call.reply_bytes_max - ENVELOPE_BYTES)
        saving = None
        if reliable and start > stored:
            # Made durable while the events are read.
            saving = self._save(endpoint, user, component, start)
            saving.add_done_callback(lambda done: done.cancelled() or done.exception())  # should the reading fail first
        shown = await self.event_list(selection, end)
        if saving is not None:
            await saving
        if reliable and shown.first > start:
            # What was filtered out before the first event shown counts as delivered (FTN18 2.2.3).
            await self._save(endpoint, user, component, shown.first)
        self.metrics.polls.inc()
        self.records_out.inc(shown.count)
        return shown.events

    def _save(self, endpoint: Endpoint, user: str, component: str, index: int) -> asyncio.Future[list[int]]:
        operation = SaveCursor(cursor_name(user, component), endpoint.stream, index, endpoint.partition)
        return self.hub.transact([operation])

    async def event_list(self, selection: Selection, end: int) -> EventList:
        """The selected events below index `end`, as many as one message holds, ready for that message."""
        known = self._lists.get(selection)
        if known is not None and selection.start >= self.hub.bounds(*selection.endpoint).first:
            return known
        page = await self.page(selection, end)
        event_list = EventList(encoded(page.events, selection.coding), len(page.events), page.first, page.next)
        if page.full or event_list.count >= self.settings.group_events_max:
            self._lists.put(selection, event_list)
        return event_list

    async def page(self, selection: Selection, end: int, *, whole: bool = False) -> events.Page:
        """The selected events below index `end`, as many as one message holds, in order.

        With `whole`, all of them: they were one message before, and sizes are estimated from how the log is read.
        """
        (stream, partition), start, want, _, bytes_max = selection
        events_max = self.settings.group_events_max
        page = events.Page([], start, start, 0, False)
        while page.next < end and not page.full:
            room = events_max - len(page.events)
            limit = min(end - page.next, room if want is None else READ_ROWS_FILTERED)
            try:
                records = await self.hub.read(
                    stream, page.next, partition=partition, limit=limit, max_bytes=READ_BYTES_MAX
                )
            except Damaged as damaged:
                logger.error("damaged events were left out: %s", damaged)
                self.metrics.damaged.inc(damaged.last + 1 - damaged.first)
                page.next = damaged.last + 1
                continue
            records = _below(records, end)
            if not records.num_rows:
                # Nothing below `end` is kept any more: what was trimmed is not waited for.
                page.next = end
                break
            space = events.Room(room, UNLIMITED if whole else bytes_max - page.bytes, bytes_max)
            self._extend(page, self._rendered(selection, records, space), stream)
            if len(page.events) >= events_max:
                break
            await asyncio.sleep(0)
        if not page.events:
            page.first = page.next
        return page

    def _rendered(self, selection: Selection, records: pa.RecordBatch, space: events.Room) -> events.Page:
        first, next = records.column(0)[0].as_py(), records.column(0)[-1].as_py() + 1
        known = self.known_json(selection.endpoint)
        page = events.page(records, selection.coding, selection.want, space, known.covers(first, next))
        if page.all_json:
            known.add(first, next)
        return page

    def known_json(self, endpoint: Endpoint) -> Ranges:
        """Records that were checked when they were added or first read. Indexes are never used twice."""
        known = self._known_json.get(endpoint)
        if known is None:
            if len(self._known_json) >= KNOWN_STREAMS_MAX:
                self._known_json.clear()
            known = self._known_json[endpoint] = Ranges()
        return known

    def _extend(self, page: events.Page, more: events.Page, stream: str) -> None:
        if more.too_big:
            self._skipped.inc(more.too_big)
            logger.warning("%d events of %s are too big for a message and were left out", more.too_big, stream)
        if more.events and not page.events:
            page.first = more.first
        page.events += more.events
        page.next = more.next
        page.bytes += more.bytes
        page.full = more.full
