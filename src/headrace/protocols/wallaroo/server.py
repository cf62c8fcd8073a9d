"""asyncio and the hub around the worker's session.

    socket ──► Connection.buffer_updated ──► session.process ──► requests ──► hub
    socket ◄── one write per turn of the loop ◄── session.take_output ◄── hub results

Back-pressure: nothing is read while the session waits for the hub, while more than `wallaroo.in_flight_bytes_max` is on
its way to the disk, or while the hub is congested. Whatever credits a peer believes to have, that bounds the memory.
"""

from __future__ import annotations

import asyncio
import logging
import select
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, LimitExceeded, Unauthenticated
from headrace.log.ops import Appended, SetProducer
from headrace.protocols.wallaroo.codec import DRAFT, V3
from headrace.protocols.wallaroo.frames import PeerFault
from headrace.protocols.wallaroo.lane import Lane, Waiting
from headrace.protocols.wallaroo.requests import Close, Greet, Open, Release, Request, Store
from headrace.protocols.wallaroo.session import ServerSession
from headrace.protocols.wallaroo.states import StreamState
from headrace.protocols.wallaroo.worker import Rewind, Worker
from headrace.security import Principal
from headrace.security.admission import Nobody, Token, Unreadable
from headrace.security.login_limit import TooManyLogins
from headrace.serving import sockets
from headrace.serving.listener import Listener
from headrace.serving.tcp import TcpConnection, address_of

if TYPE_CHECKING:
    from headrace.hub import Hub

logger = logging.getLogger("headrace.wallaroo")

RETRY_AFTER_REFUSAL_S = 1.0
"""A refused v3 client asks again when an ACK comes: this often, or as soon as the stream is free."""
LINGER_S = 2.0
"""So long a peer that was told to go may still send: closing with its bytes unread would be a reset, which may overtake
what it was told."""


class Connection(TcpConnection, asyncio.BufferedProtocol):
    """One connector."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.worker = worker
        self.strangers_max = 2 * worker.settings.connections_max
        self.session = ServerSession(worker.settings, self._accepts_cookie)
        self._lanes: dict[int, Lane] = {}
        self._has_unread = False
        self._under_way = 0
        """Transactions that have been submitted and not answered."""
        self._in_flight_bytes = 0
        self._write_scheduled = False
        self._handshake_timer: asyncio.TimerHandle | None = None
        self._duplicates_counted = 0

    # asyncio.BufferedProtocol

    def opened(self) -> None:
        loop = asyncio.get_running_loop()
        self._handshake_timer = loop.call_later(self.worker.settings.handshake_s, self._no_hello)

    def refused(self, error: LimitExceeded) -> None:
        self.opened()  # the HELLO is answered with ERROR, in the peer's dialect

    def describe(self) -> dict[str, object]:
        return self.session.describe()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.session.room()

    def buffer_updated(self, nbytes: int) -> None:
        self.counters.received_bytes.inc(nbytes)
        self._has_unread = True
        is_full = self.session.arrived(nbytes)
        # Looking at bytes has a price per look. While the disk works nothing can be submitted, so they may gather.
        if is_full or not self._under_way:
            self._look()

    def eof_received(self) -> bool:
        """The peer has said all it will. What it said is stored and acknowledged before the connection closes."""
        self._look()
        self._write()
        return super().eof_received()

    def owes(self) -> bool:
        """Whether something that was said is still on its way: to the disk, to a stream, past a pipeline's cursor."""
        return self._under_way > 0 or bool(self._tasks) or (self.session.held and not self.session.ended)

    def _look(self) -> None:
        self._has_unread = False
        session = self.session
        unread = session.buffer.held
        requests = session.process()
        if self.arrival is not None:
            self.arrival.holds(session.buffer.held, unread - self.arrival.held_bytes)
        self._do(requests)

    def closed(self, error: Exception | None) -> None:
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
        self.session.closed()
        for lane in self._lanes.values():
            lane.waiting.clear()
            self.worker.release(lane.name, self)
        self.last_error = self.session.error

    def _no_hello(self) -> None:
        if self.session.state.value == "Connected":
            self._do(self.session.fail("No HELLO in time (wallaroo.handshake_s)"))

    # Requests of the session.

    def _do(self, requests: list[Request]) -> None:
        for request in requests:
            match request:
                case Store():
                    if not self._store(request):
                        return
                case Greet():
                    self.start(self._greet())
                case Open():
                    self.start(self._open(request))
                case Release(stream_id):
                    self._release(stream_id)
                case Close(reason):
                    self._close(reason)
        self.pace()
        self._schedule_write()

    def _accepts_cookie(self, cookie: bytes) -> bool:
        """The configured cookie, in constant time; or a user's token, whose rights then count."""
        configured = self.worker.settings.cookie
        nothing = Unreadable() if configured else Nobody()
        shown = Token(cookie.decode("utf-8", "replace"), configured) if cookie else nothing
        try:
            self.admit(shown)
        except TooManyLogins as error:
            raise PeerFault(str(error)) from error
        except Unauthenticated:
            return False
        return True

    def _check_right(self, name: str) -> None:
        if self.principal is None or not self.principal.may("write", name):
            raise PeerFault(f"Stream {name!r}: this cookie may not write to it")

    def rights_changed(self, principal: Principal) -> None:
        """ERROR also where only one of its streams is concerned: no dialect can take back a single one."""
        try:
            if principal.refusal is not None:
                raise PeerFault(str(principal.refusal))
            for lane in self._lanes.values():
                self._check_right(lane.name)
        except PeerFault as fault:
            self._do(self.session.fail(str(fault)))

    async def _greet(self) -> None:
        if self.handle is None or self.worker.is_full():
            key = "limits.sessions_max" if self.handle is None else "wallaroo.connections_max"
            self._do(self.session.fail(f"Too many connections: the limit is set by {key}"))
            return
        self.signed_in()
        points = await self.worker.points(self) if self.session.dialect is DRAFT else []
        elsewhere = self.hub.peers.redirect(self.near, "wallaroo") if self.session.dialect is V3 else None
        self._do(self.session.greeted(points, None if elsewhere is None else elsewhere.encode()))

    async def _open(self, request: Open) -> None:
        session = self.session
        name = self.worker.claims.stream_name(session, request.name)
        self._check_right(name)
        held = self._lanes.get(request.stream_id)
        if held is not None and held.name != name:
            self._release(request.stream_id)
        if session.dialect is DRAFT and request.point is not None:
            self._succeed(name)
        if not await self.worker.acquire(name, self, request.stream_id):
            await self._refuse(request, name)
            return
        self._check_right(name)  # it may have waited for the stream
        # From here on connection_lost gives the stream back. A lane that is there knows what waits for a pipeline.
        if request.stream_id not in self._lanes:
            producer = self.worker.producer(session, request.stream_id)
            self._lanes[request.stream_id] = Lane(name, producer)
        if not session.is_opening(request.stream_id):
            self._do(session.overtaken(request.stream_id))
            return
        if self.handle is not None:
            self.handle.uses("write", name)
        self.worker.submitted(name)  # a rewind waits until the stream is open
        try:
            await self._resume(request, self._lanes[request.stream_id])
        finally:
            self.worker.resolved(name)

    async def _resume(self, request: Open, lane: Lane) -> None:
        """Have the connector go on where the hub is."""
        session = self.session
        info = await self.hub.create_stream(lane.name)
        if info.kind != "stream":
            raise PeerFault(f"Stream {lane.name!r} is a {info.kind} of the hub")
        point = self.hub.producer(lane.name, lane.producer)
        await self.worker.claims.take(session, request.stream_id, lane.name, point)
        await self.worker.introduce(self, request.stream_id, lane.name)
        point = self.hub.producer(lane.name, lane.producer)
        if session.dialect is DRAFT and request.point is not None and request.point != point:
            if not self.worker.settings.draft_trust_notify:
                self._do(session.contradict(request.stream_id, point))
                return
            await self.hub.transact([SetProducer(lane.name, lane.producer, request.point)])
            point = request.point
        self._do(session.opened(request.stream_id, point))

    def _succeed(self, name: str) -> None:
        """Draft: who resumes a stream takes it over from an earlier connection of the same connector."""
        for other in list(self.worker.connections):
            if other is not self and other.same_connector(self) and other.holds(name):
                other._do(other.session.fail(f"Stream {name!r} was resumed by a newer connection"))

    async def _refuse(self, request: Open, name: str) -> None:
        if self.session.dialect is DRAFT:
            raise PeerFault(f"Stream {name!r} is in use by another connection")
        self.session.refused(request.stream_id)
        self._schedule_write()
        await self.worker.freed(name, RETRY_AFTER_REFUSAL_S)
        self.session.nudge()
        self._schedule_write()

    def _release(self, stream_id: int) -> None:
        lane = self._lanes.pop(stream_id, None)
        if lane is not None:
            self.worker.release(lane.name, self)

    def same_connector(self, other: Connection) -> bool:
        mine, theirs = self.session, other.session
        return (mine.program, mine.instance) == (theirs.program, theirs.instance)

    def holds(self, name: str) -> bool:
        return any(lane.name == name for lane in self._lanes.values())

    def busy_with(self, name: str) -> int:
        """How many of its transactions on a stream are under way."""
        return sum(lane.busy for lane in self._lanes.values() if lane.name == name)

    def ended_streams(self, name: str) -> list[int]:
        """The ids by which a draft connector knows a stream that it has ended: it may be asked to begin again."""
        session = self.session
        if session.dialect is not DRAFT or session.ended:
            return []
        ended = [stream for stream in session.streams.values() if stream.state is StreamState.CLOSED]
        return [stream.id for stream in ended if self.worker.claims.stream_name(session, stream.name) == name]

    def quiet(self) -> bool:
        """Whether the peer has sent nothing that was not looked at."""
        if self.is_lost:
            return True
        if self._has_unread:
            return False
        if self.says_no_more:  # and its socket is readable for ever
            return True
        return not sockets.has_news(self.transport, select.POLLIN)

    # Records.

    def _store(self, store: Store) -> bool:
        lane = self._lanes[store.ticket.stream_id]
        try:
            self._in_flight_bytes += lane.add(store, self.worker.settings.event_time_unit, time.perf_counter())
        except PeerFault as fault:
            # `fail` says nothing when a later frame of the same look has ended the session already.
            self._do(self.session.fail(str(fault)) or [Close(str(fault))])
            return False
        if not lane.busy:
            self._submit(lane)
        return True

    def _submit(self, lane: Lane) -> None:
        taken, operations = lane.take()
        if not operations:  # nothing to make durable: boundaries that are no points of reference
            self._finish(lane, None, taken)
            return
        lane.busy = True
        self._under_way += 1
        self.worker.submitted(lane.name)
        future = self.hub.transact(operations)
        future.add_done_callback(lambda done: self._submitted(lane, taken, done))

    def _submitted(self, lane: Lane, taken: list[Waiting], done: asyncio.Future[list[Any]]) -> None:
        lane.busy = False
        self._under_way -= 1
        self._in_flight_bytes -= sum(waiting.nbytes for waiting in taken)
        error = None if done.cancelled() else done.exception()
        self.worker.resolved(lane.name)
        if self.is_lost:
            return
        if error is not None or done.cancelled():
            self._hub_failed(error or HeadraceError("the hub is closing"))
            return
        self.counters.records_in.inc(sum(waiting.records for waiting in taken))
        ends = [result.first + result.count for result in done.result() if isinstance(result, Appended)]
        try:
            self._finish(lane, ends[-1] if ends else None, taken)
        except HeadraceError as gone:  # the stream was deleted meanwhile
            self._hub_failed(gone)
            return
        if self._has_unread and not self.session.ended:
            self._look()
        if lane.waiting and not lane.busy and not self.session.ended:
            self._submit(lane)
        self.end_if_all_said()
        self.pace()

    def _finish(self, lane: Lane, next_index: int | None, taken: list[Waiting]) -> None:
        """Acknowledge what is durable: now, or with `ack = "processed:<cursor>"` when the pipeline has passed it. In
        the order in which it came, always: an acknowledgement covers everything before it."""
        waits = next_index is not None and self.hub.stream(lane.name).options.ack != "durable"
        if not waits and not lane.unacknowledged:
            self._acknowledge(taken)
            return
        lane.unacknowledged.append((next_index, taken))
        if len(lane.unacknowledged) == 1:
            self.start(self._acknowledge_in_turn(lane))

    async def _acknowledge_in_turn(self, lane: Lane) -> None:
        while lane.unacknowledged:
            next_index, taken = lane.unacknowledged[0]
            if next_index is not None:
                await self.hub.acknowledged(lane.name, next_index)
            lane.unacknowledged.popleft()
            self._acknowledge(taken)

    def _acknowledge(self, taken: list[Waiting]) -> None:
        requests: list[Request] = []
        for waiting in taken:
            requests += self.session.stored(waiting.ticket)
        self.counters.ack_seconds.observe(time.perf_counter() - taken[0].received_s)
        self._do(requests)

    def _hub_failed(self, error: BaseException) -> None:
        if isinstance(error, HeadraceError):  # a PeerFault is one
            self._do(self.session.fail(str(error)))
            return
        logger.error("a request failed", exc_info=error)
        self._do(self.session.fail("internal error"))

    # Rewinding, called by the worker.

    def hold(self) -> None:
        self.session.hold()
        self.pace()

    def let_go(self) -> None:
        self._do(self.session.let_go())
        self.end_if_all_said()

    def rewind(self, stream_id: int, point: int | None, *, restart: bool) -> None:
        if self.is_lost:
            return
        if self.session.dialect is not DRAFT and not restart:
            self.session.closed()
            self.transport.close()
            return
        address = self.worker.settings.restart_address.encode() or None
        self._do(self.session.rewind(stream_id, point, address))

    def cut_off(self, why: str) -> None:
        if self.arrival is None or not self.arrival.is_known:  # nothing is known of its dialect, and there may be many
            super().cut_off(why)
        else:
            self._do(self.session.fail(why) or [Close(why)])

    def stop(self) -> None:
        """A plain close, after the last acknowledgements: every published client reconnects if it has more to say."""
        self._write()
        self.transport.close()

    # Tasks, pace and output.

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        super().start(self._guarded(work))

    def end_if_all_said(self) -> None:
        if not self.says_no_more:
            return
        if not self._under_way:  # nothing more can come: acknowledgements may still wait, and others have the streams
            for lane in self._lanes.values():
                self.worker.release(lane.name, self)
        if not self.owes():
            self.stop()

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self._hub_failed(error)

    def has_room(self) -> bool:
        return self._in_flight_bytes <= self.worker.settings.in_flight_bytes_max and not self.session.held

    def may_read(self) -> bool:
        return self.session.ended or super().may_read()  # what a peer still sends that was told to go is read away

    def _schedule_write(self) -> None:
        if not self._write_scheduled and not self.is_lost:
            self._write_scheduled = True
            asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        self._write_scheduled = False
        if self.transport.is_closing():
            return
        self.write(self.session.take_output())
        new = self.session.duplicates - self._duplicates_counted
        if new:
            self._duplicates_counted += new
            self.worker.metrics.duplicates.inc(new)

    def _close(self, reason: str | None) -> None:
        if reason is not None:
            logger.info("session ended: %s", reason)
            self.counters.peer_error("error")
        self._write()
        for stream_id in list(self._lanes):
            self._release(stream_id)
        if self.transport.is_closing():
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
            asyncio.get_running_loop().call_later(LINGER_S, self.transport.abort)
        else:
            self.transport.close()


async def serve(hub: Hub, address: str) -> Listener:
    """Listen for connectors."""
    worker = Worker(hub)
    await worker.open()
    server = await worker.listen(address, lambda: Connection(worker))
    hub.verbs.register(
        "stream.rewind",
        Rewind,
        worker.rewind,
        right="admin",
        summary="Send a Wallaroo connector's stream back to a point of reference.",
    )
    return Listener(address_of(server), lambda: worker.stop(server))
