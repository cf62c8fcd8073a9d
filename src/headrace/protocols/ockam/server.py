"""The two Ockam listeners: sockets and the hub around the session.

Each received chunk becomes one turn: all its pushes are appended at once, one batch per stream partition, and confirmed
when they are durable. Everything else goes through a lane that keeps the order of one connection:

- a pull sees the pushes that came before it on the same connection;
- a Get of a saved index sees the Saves that came before it, on whatever connection;
- a Save is waited for only by a Get of the same index, so a consumer's next pull does not wait for the disk;
- when the peer hangs up, Saves and creates that have arrived are still done; a peer that only ends its own side has
  everything that arrived done, and is told, before the connection closes.

Reading stops while the hub is congested, while the peer does not take its replies, and while too much is waiting.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any

import msgspec

from headrace.errors import Forbidden, HeadraceError, Unauthenticated, UnknownStream
from headrace.hub import Hub
from headrace.hub.turns import Pace
from headrace.log.batch import Batch
from headrace.log.ops import Appended
from headrace.protocols.ockam.addresses import AddressBook
from headrace.protocols.ockam.cbor import CborFraming
from headrace.protocols.ockam.metrics import OckamMetrics
from headrace.protocols.ockam.routing import Framing, LegacyFraming, Route
from headrace.protocols.ockam.session import (
    Create,
    Get,
    HubRequest,
    Pull,
    PushBatch,
    Save,
    Session,
    State,
    Turn,
    Worker,
)
from headrace.protocols.ockam.settings import Ockam
from headrace.protocols.ockam.streams import PullResult, Streams, cursor_name
from headrace.security import Principal, Right, is_reserved
from headrace.security.admission import Certificate
from headrace.serving.listener import Listener
from headrace.serving.tcp import SlicedConnection, TcpServer, address_of
from headrace.units import KIB

log = logging.getLogger(__name__)

IndexKey = tuple[str, str, int]


class Service(TcpServer["Connection"]):
    """What all connections of both listeners share."""

    def __init__(self, hub: Hub, config: Ockam, addresses: AddressBook) -> None:
        super().__init__(hub, "ockam")
        self.config = config
        self.addresses = addresses
        self.streams = Streams(hub, addresses, config)
        self.saves: dict[IndexKey, asyncio.Task[Any]] = {}
        """The last Save of each index that is under way."""
        self.metrics = hub.metrics.section(OckamMetrics)
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something that must come to its end even if its connection does not live to see it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def pulled(self, count: int, result: PullResult) -> None:
        self.metrics.pulls.inc()
        self.counters.records_out.inc(count)
        last_sent = result.indexes[count - 1] if count else -1
        skipped = result.oversized + sum(index < last_sent for index in result.oversized_between)
        if skipped:
            self.counters.skipped.inc(skipped)
        if result.damaged:
            self.metrics.damaged.inc(result.damaged)
        if result.trimmed:
            self.metrics.pulls_trimmed.inc()

    async def close(self, *servers: asyncio.Server) -> None:
        """End the connections, and finish what must be finished. A peer that does not take its replies is cut off."""
        await self.stop(*servers)
        while self._tasks:
            await asyncio.wait(list(self._tasks))


class PendingPush(msgspec.Struct, eq=False):
    """A batch on its way to the disk and, in mode `processed`, on to the cursor that acknowledges it."""

    batch: PushBatch
    received_s: float = msgspec.field(default_factory=lambda: time.perf_counter())
    first: int | None = None
    settled: bool = False
    silent: bool = False


class Connection(SlicedConnection):
    """One peer. The decisions are the session's; the order of things is kept here."""

    first_slice_bytes = 16 * KIB

    def __init__(self, service: Service, framing: Framing) -> None:
        super().__init__(service)
        self._service = service
        self._config = service.config
        record_bytes_max = self.hub.config.log.record_bytes_max
        self.session = Session(framing, service.addresses.resolve, service.config, record_bytes_max)
        self._greeting_timer: asyncio.TimerHandle | None = None
        self._lane: deque[HubRequest] = deque()
        self._lane_runs = False
        self._confirming: dict[Worker, deque[PendingPush]] = {}
        self._unconfirmed = 0
        self._appends: dict[Worker, asyncio.Future[Appended]] = {}
        self._saving = 0
        self._writable = asyncio.Event()
        self._writable.set()

    # --- the socket -----------------------------------------------------------------------------------------------

    def opened(self) -> None:
        try:
            self.admit(Certificate(self.transport))
        except Unauthenticated:
            self.end("the protocol has no login and anonymous callers are refused (security.anonymous)")
            return
        if self.session.framing.greeting:
            self.transport.write(self.session.framing.greeting)
            loop = asyncio.get_running_loop()
            self._greeting_timer = loop.call_later(
                self._config.greeting_timeout_s, lambda: self._act(self.session.greeting_late())
            )

    def received(self, data: bytes) -> None:
        turn = self.session.receive(data)
        if self.session.requests or turn.dropped:
            self.signed_in()
        self.keeps(self.session.unread_bytes, len(data))
        self._act(turn)

    def pause_writing(self) -> None:
        self._writable.clear()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._writable.set()
        super().resume_writing()

    def closed(self, error: Exception | None) -> None:
        self._writable.set()
        if self._greeting_timer is not None:
            self._greeting_timer.cancel()
        self.session.lost()
        self.last_error = self.session.last_error

    def _allowed(self, right: Right, stream: str) -> None:
        if self.principal is None or not self.principal.may(right, stream):
            raise Forbidden(f"{self.principal.name if self.principal else 'nobody'} may not {right} stream {stream!r}")
        if self.handle is not None and right != "admin":
            self.handle.uses(right, stream)

    def end(self, why: str) -> None:
        """Hang up, after what is already written."""
        self.session.last_error = why
        self.transport.close()

    def stop(self) -> None:
        self.end("the hub is stopping")

    def rights_changed(self, principal: Principal) -> None:
        """Whoever is not known any more is treated as at the door, where the protocol has no words either; whoever may
        do less is told with the next request."""
        if principal.refusal is not None:
            self.end(str(principal.refusal))

    def describe(self) -> dict[str, object]:
        return self.session.describe() | {
            "waiting_requests": self._waiting_requests,
            "unconfirmed_pushes": self._unconfirmed,
        }

    @property
    def _waiting_requests(self) -> int:
        """Saves leave the lane at once, and still wait for the disk."""
        return len(self._lane) + self._saving

    def _act(self, turn: Turn) -> None:
        for reply in turn.replies:
            self.write(reply)
            self.counters.peer_error("invalid-request")
        for why in turn.dropped:
            self._service.metrics.dropped.labels(reason=why.value).inc()
        for batch in turn.pushes.values():
            self._push(batch)
        if turn.requests:
            self._lane.extend(turn.requests)
            if not self._lane_runs:
                self._lane_runs = True
                self._service.spawn(self._run_lane())
        if turn.ended is not None:
            log.info("connection ended: %s", turn.ended)
            self.end(turn.ended)
        self.pace()

    def has_room(self) -> bool:
        return (
            self._waiting_requests < self._config.waiting_requests_max
            and self._unconfirmed < self._config.unconfirmed_pushes_max
        )

    def owes(self) -> bool:
        return self._unconfirmed > 0 or self._lane_runs

    # --- pushes -----------------------------------------------------------------------------------------------------

    def _push(self, batch: PushBatch) -> None:
        """Append at once; confirm when durable, in the order of arrival per stream partition."""
        worker = batch.worker
        pending = PendingPush(batch)
        self._confirming.setdefault(worker, deque()).append(pending)
        self._unconfirmed += batch.count()
        self._service.metrics.pushes_refused.inc(batch.refused())
        if not batch.records:
            self._settle(pending)
            return
        try:
            self._allowed("write", worker.stream)
            future = self.hub.append(worker.stream, Batch.of(batch.records), partition=worker.partition)
            batch.records.clear()  # the hub has them; only the ids are still needed
        except HeadraceError as error:
            self._not_stored(pending, error)
            return
        self._appends[worker] = future
        future.add_done_callback(lambda done: self._stored(pending, done))

    def _stored(self, pending: PendingPush, done: asyncio.Future[Appended]) -> None:
        worker = pending.batch.worker
        if self._appends.get(worker) is done:
            del self._appends[worker]
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if error is not None:
            self._not_stored(pending, error)
            return
        appended = done.result()
        pending.first = appended.first
        self.counters.records_in.inc(appended.count)
        if self.is_lost:
            return  # nobody is left to be told, and a wait for the cursor might have no end
        try:
            durable_is_enough = self.hub.stream(worker.stream).options.ack == "durable"
        except UnknownStream:
            durable_is_enough = True
        if durable_is_enough:
            self._settle(pending)
        else:
            self.start(self._acknowledge(pending, appended.first + appended.count))

    async def _acknowledge(self, pending: PendingPush, index_next: int) -> None:
        """Wait for the cursor that the stream's acknowledgements hang on."""
        worker = pending.batch.worker
        try:
            await self.hub.acknowledged(worker.stream, index_next, worker.partition)
        except HeadraceError as error:
            self._not_stored(pending, error)
        else:
            self._settle(pending)

    def _not_stored(self, pending: PendingPush, error: BaseException) -> None:
        """Say ERROR; but a deleted stream is an address that does not exist: silence, and clients create it anew."""
        log.warning("push to stream %r not confirmed: %s", pending.batch.worker.stream, error)
        self.session.last_error = str(error)
        self._service.metrics.pushes_refused.inc(pending.batch.count() - pending.batch.refused())
        pending.first = None
        pending.silent = isinstance(error, UnknownStream)
        self._settle(pending)

    def _settle(self, pending: PendingPush) -> None:
        pending.settled = True
        worker = pending.batch.worker
        queue = self._confirming[worker]
        while queue and queue[0].settled:
            head = queue.popleft()
            self._unconfirmed -= head.batch.count()
            if not head.silent:
                self.write(self.session.confirmed(head.batch, head.first))
                self.counters.ack_seconds.observe(time.perf_counter() - head.received_s)
        if not queue:
            del self._confirming[worker]
        self.pace()
        self.end_if_all_said()

    # --- everything else, in order ----------------------------------------------------------------------------------

    async def _run_lane(self) -> None:
        pace = Pace(self.hub.intake.turns)
        while self._lane:
            await pace.keep()
            if not self._writable.is_set():
                await self._writable.wait()
            request = self._lane.popleft()
            try:
                await self._serve(request)
            except Exception:
                log.exception("a request could not be served: %r", request)
                self.end("an error in the hub")
            self.pace()
        self._lane_runs = False
        self.end_if_all_said()

    async def _serve(self, request: HubRequest) -> None:
        is_open = self.session.state is State.OPEN
        match request:
            case Create():
                await self._create(request)
            case Save():
                self._save(request)
            case Pull() if is_open:
                await self._pull(request)
            case Get() if is_open:
                await self._get(request)

    async def _create(self, create: Create) -> None:
        request, streams = create.request, self._service.streams
        name = streams.new_name() if request.stream_name is None else request.stream_name
        try:
            self._allowed("read" if self._only_opens(name, request.partitions or 1) else "write", name)
            workers = await streams.open(name, request.partitions or 1)
        except HeadraceError as error:
            self._refuse(create.service, create.route, error)
            return
        self.write(self.session.created(create, name, workers))

    def _only_opens(self, name: str, partitions: int) -> bool:
        """Whether a create makes nothing in a stream of the hub's own: a consumer has no other way to its address."""
        return is_reserved(name) and self.hub.has_stream(name) and partitions <= self.hub.stream(name).partitions

    def _refuse(self, own: bytes, route: Route, error: HeadraceError) -> None:
        self.session.last_error = str(error)
        self.write(self.session.error(own, route, str(error)))
        self.counters.peer_error(error.code)

    async def _pull(self, pull: Pull) -> None:
        worker, request = pull.worker, pull.request
        own_push = self._appends.get(worker)
        if own_push is not None:
            await asyncio.wait([own_push])
        limit = min(request.limit, self._config.pull_records_max)
        session = self.session
        try:
            self._allowed("read", worker.stream)
            result = await self._service.streams.read(
                worker,
                request.index,
                limit,
                min(session.pull_bytes_max, self._config.pull_bytes_max),
                session.framing.record_bytes_max,
            )
        except UnknownStream:
            return  # deleted: an address that does not exist
        except Forbidden as error:
            self._refuse(worker.address, pull.route, error)
            return
        except HeadraceError as error:
            # The specification has no reply for this; the reference sends an empty list, and so clients ask again.
            log.warning("pull from stream %r failed: %s", worker.stream, error)
            session.last_error = str(error)
            self._service.metrics.pulls_failed.inc()
            self.write(session.pulled(pull, (), ())[0])
            return
        reply, count = session.pulled(pull, result.indexes, result.records)
        self._service.pulled(count, result)
        self.write(reply)

    def _save(self, save: Save) -> None:
        request = save.request
        partition = request.partition or 0
        key = (request.client_id, request.stream_name, partition)
        saves = self._service.saves

        async def keep() -> None:
            streams = self._service.streams
            try:
                self._allowed("read" if is_reserved(request.stream_name) else "write", request.stream_name)
                if not await streams.save_index(request.client_id, request.stream_name, partition, request.index):
                    self._service.metrics.dropped.labels(reason="save_without_stream").inc()
            except HeadraceError as error:  # a Save has no reply, not even for an error
                log.warning("index of client %r in %r not saved: %s", request.client_id, request.stream_name, error)
                self.session.last_error = str(error)
            finally:
                if saves.get(key) is task:
                    del saves[key]
                self._saving -= 1
                self.pace()

        self._saving += 1
        task = saves[key] = self._service.spawn(keep())

    async def _get(self, get: Get) -> None:
        request = get.request
        partition = request.partition or 0
        saving = self._service.saves.get((request.client_id, request.stream_name, partition))
        if saving is not None:
            await asyncio.wait([saving])
        try:
            self._allowed("read", request.stream_name)
        except Forbidden as error:
            self.session.last_error = str(error)
            return
        cursor = cursor_name(request.client_id)
        may_record = self.principal is not None and self.principal.may_move(cursor, request.stream_name)
        index = await self._service.streams.get_index(
            request.client_id, request.stream_name, partition, may_record=may_record
        )
        self.write(self.session.index(get, index))


class OckamListener(Listener):
    """The listener of the original framing and, when configured, the one of the newer framing."""

    cbor_address: str | None = None


async def serve(hub: Hub, address: str) -> OckamListener:
    """Listen on `address` with the original framing, and on `ockam.cbor_listen` with the newer one if that is set."""
    config = hub.config.section(Ockam)
    service = Service(hub, config, await AddressBook.open(hub, config.addresses_max))
    await service.streams.open_indexes()
    servers = [await service.listen(address, lambda: Connection(service, LegacyFraming()))]
    try:
        if config.cbor_listen != "off":
            servers.append(await service.listen(config.cbor_listen, lambda: Connection(service, CborFraming())))
    except BaseException:
        servers[0].close()
        raise
    listener = OckamListener(address_of(servers[0]), lambda: service.close(*servers))
    if len(servers) > 1:
        listener.cbor_address = address_of(servers[1])
        log.info("newer framing on %s", listener.cbor_address)
    return listener
