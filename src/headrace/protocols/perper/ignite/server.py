"""The Ignite listener: asyncio and the hub around the session.

Requests are handed to the hub as they come and answered in the order they came. A put does not wait for the put
before it; a read waits until the writes that came before it on the same connection are on disk, so a client reads
what it wrote. Puts that arrive together go into one transaction.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from asyncio import Future
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from headrace.errors import Busy, HeadraceError, LimitExceeded
from headrace.hub.intake import LARGE_BYTES
from headrace.protocols.perper.catalogue import Entry
from headrace.protocols.perper.errors import BinaryError, FrameError, PeerError, Refused, Status, translate
from headrace.protocols.perper.ignite.binary import NULL, Limits
from headrace.protocols.perper.ignite.codec import BadRequest, Handshake, Request
from headrace.protocols.perper.ignite.operations import FOREIGN, NEXT_PAGES, NotReady, Operations, Pending
from headrace.protocols.perper.ignite.session import Session, Slot, State
from headrace.protocols.perper.ignite.shapes import OPERATIONS
from headrace.protocols.perper.metrics import PerperMetrics
from headrace.protocols.perper.settings import Perper
from headrace.protocols.perper.state import Fabric, acquire, listen
from headrace.protocols.perper.streams import StreamCache
from headrace.protocols.perper.tables import TableCache
from headrace.security import Principal
from headrace.security.admission import Nobody, Password
from headrace.serving.listener import Listener
from headrace.serving.tcp import SlicedConnection, TcpServer

if TYPE_CHECKING:
    from headrace.hub import Hub

logger = logging.getLogger("headrace.perper.ignite")

PUT: Final = 1001
PUT_IF_ABSENT: Final = 1002
GROUPED: Final = (PUT, PUT_IF_ABSENT)
# Puts that share one transaction: enough to make the cost per put small, few enough to keep others waiting little.
GROUP_MAX: Final = 512
WRITE_BUFFER_BYTES_MAX: Final = 4 * 1024 * 1024
# Requests that read from the log at the same time, for one connection: each may bring a whole record into memory.
READS_MAX: Final = 32
# A transport may hand over what it had read before it was told to stop.
EARLY_BYTES_MAX: Final = 1024 * 1024


class Connection(SlicedConnection):
    """One client."""

    write_buffer_bytes_max = WRITE_BUFFER_BYTES_MAX

    def __init__(self, server: IgniteServer) -> None:
        super().__init__(server)
        self._server = server
        settings = server.settings
        limits = Limits(settings.nesting_max, settings.elements_max)
        self._session = Session(server.node_id, settings.frame_bytes_max, limits)
        self._operations: Operations | None = None
        self._backlog: deque[tuple[Request, Slot]] = deque()
        self._writes_pending = 0
        self._reads_pending = 0
        self._answer_bytes = 0  # answers that are known and not handed to the transport
        self._draining = False
        self._blocked = False
        self._flush_due = False
        self._user: str | None = None
        self._requests = 0
        self._early = b""
        self._reads_apart = False
        self._later: list[bytes] = []
        self._told_to_go = False
        self._login_timer: asyncio.TimerHandle | None = None

    # the transport's side

    def opened(self) -> None:
        """A client came."""
        self._login_timer = asyncio.get_running_loop().call_later(self._server.settings.login_s, self._check_login)

    def _check_login(self) -> None:
        if self._session.state is not State.READY:
            self._end("no login in time")

    def closed(self, error: Exception | None) -> None:
        """The client is gone; what it had asked for and is under way still happens."""
        self._session.disconnect()
        self._backlog.clear()
        if self._operations is not None:
            self._operations.close()
        if self._login_timer is not None:
            self._login_timer.cancel()

    def resume_writing(self) -> None:
        """The client reads its answers again."""
        self.peer_reads = True
        self._drain()
        self.pace()

    def received(self, data: bytes) -> None:
        """Bytes came."""
        try:
            if self._reads_apart:
                self._later.append(data)
                return
            if self._session.state is State.READY:
                self._read(data)
            elif self._session.state is State.NEW:
                handshake = self._session.receive_handshake(data)
                if handshake is not None:
                    self._greet(handshake)
            elif self._session.state is State.LOGIN:
                self._keep_early(data)
        except FrameError as error:
            self._end(str(error))
        self.keeps(self._session.unread_bytes, len(data))

    def _read(self, data: bytes) -> None:
        """Take requests as they come; a large one is read beside the loop, and what follows it waits."""
        large = self._session.cut_large(data, LARGE_BYTES)
        if large is not None:
            pieces, rest = large
            self._later = [rest] if rest else []
            self._begin_apart(lambda: self._session.decode_large(pieces))
            return
        frames = self._session.cut(data)
        if all(end - start < LARGE_BYTES for start, end in frames[1]):
            self._take(self._session.decode(*frames))
        else:
            self._begin_apart(lambda: self._session.decode(*frames))

    def _begin_apart(self, decode: Callable[[], list[Request | BadRequest]]) -> None:
        self._reads_apart = True
        self.pace()
        self.start(self._read_apart(decode))

    async def _read_apart(self, decode: Callable[[], list[Request | BadRequest]]) -> None:
        try:
            requests = await self.hub.intake.apart(decode)
        except FrameError as error:
            self._end(str(error))
            return
        self._reads_apart = False
        self._take(requests)
        later, self._later = b"".join(self._later), []
        if later:
            self.received(later)

    def _keep_early(self, data: bytes) -> None:
        """Bytes that came while the password is checked, although we had stopped reading."""
        self._early += data
        if len(self._early) > EARLY_BYTES_MAX:
            raise FrameError(f"more than {EARLY_BYTES_MAX} bytes before the login was answered")

    def _end(self, reason: str) -> None:
        self.last_error = reason
        logger.info("connection from %s closed: %s", self.peer, reason)
        self.counters.peer_error("frame")
        self.transport.close()

    # login

    def _greet(self, handshake: Handshake) -> None:
        if self._session.state is State.CLOSED:
            self.last_error = f"version {handshake.version}, client type {handshake.client_type}"
            self.transport.write(self._session.refuse_version(handshake))
            self.transport.close()
            return
        self.start(self._log_in(handshake))
        self.pace()

    async def _log_in(self, handshake: Handshake) -> None:
        shown: Nobody | Password = Nobody()
        told = "this hub wants to know who you are: give a user name and a password"
        if handshake.user is not None and self.hub.security.asks_names():  # where nobody has a name, any name will do
            shown = Password(handshake.user, handshake.password or "")
            told = "The user name or password is incorrect"
        try:
            principal = await self.hub.admission.admit("ignite", self.peer, shown, told)
        except HeadraceError as error:
            self.last_error = "login refused"
            self.transport.write(self._session.refuse_login(str(error)))
            self.transport.close()
            return
        self.belongs_to(principal)
        self._user = principal.name
        self.signed_in()
        assert self.handle is not None
        self._operations = Operations(
            self._server.fabric, principal, self._server.settings.cursors_max, self.handle.uses, self._server.owner
        )
        self.transport.write(self._session.welcome(handshake, self._server.node_behind(self.near)))
        self.pace()
        early, self._early = self._early, b""
        self.received(early)

    def rights_changed(self, principal: Principal) -> None:
        """Each request asks for its rights. Whoever is not known any more is told so with the next one, and goes."""
        if principal.refusal is not None:
            farewell_s = self.hub.config.security.farewell_s
            self._login_timer = asyncio.get_running_loop().call_later(farewell_s, self._go)

    def _go(self) -> None:
        self.last_error = "the sign-in no longer holds"
        self.transport.close()

    # requests

    def _take(self, requests: list[Request | BadRequest]) -> None:
        """Do what was asked; what can be answered already goes out in one write."""
        self._flush_due = True
        try:
            self._admit_all(requests)
        finally:
            self._flush()
        self.pace()

    def _admit_all(self, requests: list[Request | BadRequest]) -> None:
        counts: Counter[int] = Counter()
        position = 0
        while position < len(requests):
            request = requests[position]
            if isinstance(request, BadRequest):
                slot = self._session.reserve()
                self._fail(slot, request.request_id, request.error)
                position += 1
                continue
            counts[request.op] += 1
            if request.op in GROUPED and not self._backlog and not self._blocked:
                taken = self._take_puts(requests, position)
                if taken:
                    counts[request.op] += taken - 1
                    position += taken
                    continue
            self._admit(request, self._session.reserve())
            position += 1
        self._requests += len(requests)
        self._server.count(counts)

    def _take_puts(self, requests: list[Request | BadRequest], start: int) -> int:
        """Puts of one kind that stand together go to the cache as one. How many were taken; 0 for none."""
        first = cast(Request, requests[start])
        op, cache_id = first.op, first.cache_id
        group: list[Request] = []
        for request in requests[start : start + GROUP_MAX]:
            if not isinstance(request, Request) or request.op != op or request.cache_id != cache_id:
                break
            key, value = request.arguments
            if request.flags & 6 or key[0] == NULL or value[0] == NULL:
                break
            group.append(request)
        if len(group) < 2:
            return 0
        future = self._put_group(first, [request.arguments for request in group])
        if future is None:
            return 0
        slot = self._session.reserve()
        self._writes_pending += 1
        future.add_done_callback(lambda finished: self._group_done(finished, slot, group))
        return len(group)

    def _put_group(self, first: Request, pairs: list[Any]) -> Future[Any] | None:
        assert self._operations is not None
        try:
            cache = self._operations.cache_for_writing(first)
            entry = self._server.fabric.catalogue.find(first.cache_id)
        except (PeerError, NotReady):
            return None
        if isinstance(cache, StreamCache):
            return cache.add_new(pairs)
        if first.op == PUT and type(cache) is TableCache and entry.configuration.expiry is None:
            return cache.put_many(pairs)
        return None

    def _group_done(self, finished: Future[Any], slot: Slot, group: list[Request]) -> None:
        error = None if finished.cancelled() else finished.exception()
        if isinstance(error, LimitExceeded | Busy):  # too much at once: each by itself then
            self._writes_pending -= 1
            parts = [Slot() for _ in group]
            self._split(slot, parts)
            for request, part in zip(group, parts, strict=True):
                self._run(request, part, lambda: self._split(slot, parts))
            return
        if error is not None:
            status, message = translate(error)
            data = b"".join([self._session.fail(request.request_id, status, message) for request in group])
        else:
            body = b"" if group[0].op == PUT else b"\1"
            data = self._session.answer_alike([request.request_id for request in group], body)
        self._fill(slot, data)
        self._write_done()

    def _split(self, slot: Slot, parts: list[Slot]) -> None:
        """A place in the order that several answers share is filled when all of them are known."""
        known = [part.data for part in parts if part.data is not None]
        if len(known) == len(parts):
            data = b"".join(known)
            self._answer_bytes -= len(data)  # they are counted with the place they share
            self._fill(slot, data)

    def _admit(self, request: Request, slot: Slot) -> None:
        if self._backlog or self._must_wait(request):
            self._backlog.append((request, slot))
        else:
            self._run(request, slot)

    def _must_wait(self, request: Request) -> bool:
        """Whether a request cannot be done yet: a cache is being made, or it would read before the writes that came
        first, or bring more into memory while the client has not taken what it asked for."""
        if self._blocked or OPERATIONS[request.op].right == "write":
            return self._blocked
        # Without a read under way this one is the first to be answered: nothing can wait before it.
        behind_reads = self._reads_pending > 0 and self._answer_bytes > WRITE_BUFFER_BYTES_MAX
        too_much = not self.peer_reads or behind_reads or self._reads_pending >= READS_MAX
        return too_much or self._writes_pending > 0

    def _run(self, request: Request, slot: Slot, filled: Callable[[], None] | None = None) -> None:
        assert self._operations is not None
        try:
            answer = self._operations.execute(request)
        except NotReady as error:
            self._backlog.appendleft((request, slot))
            self._prepare(error.entry, error.stream)
            return
        except (PeerError, HeadraceError) as error:
            self._fail(slot, request.request_id, error)
        except Exception as error:
            logger.exception("operation %s failed", request.op)
            self._fail(slot, request.request_id, error)
        else:
            if not isinstance(answer, Pending):
                self._answer(slot, request, answer)
            else:
                is_write = OPERATIONS[request.op].right != "read" and request.op not in NEXT_PAGES
                self._writes_pending += is_write
                self._reads_pending += not is_write
                answer.future.add_done_callback(
                    lambda finished: self._done(finished, answer, request, slot, is_write, filled)
                )
                return
        if filled is not None:
            filled()

    def _done(
        self,
        finished: Future[Any],
        answer: Pending,
        request: Request,
        slot: Slot,
        is_write: bool,
        filled: Callable[[], None] | None,
    ) -> None:
        error = asyncio.CancelledError("the hub is stopping") if finished.cancelled() else finished.exception()
        if error is not None:
            self._fail(slot, request.request_id, error)
        else:
            self._answer(slot, request, answer.render(finished.result()))
        if filled is not None:
            filled()
        if is_write:
            self._write_done()
        else:
            self._reads_pending -= 1
            self._drain()

    def _write_done(self) -> None:
        self._writes_pending -= 1
        self._drain()

    def _drain(self) -> None:
        if self._draining:
            return  # an answer to one of the backlog made room: the loop that gave it goes on
        self._draining = True
        try:
            while self._backlog and not self._must_wait(self._backlog[0][0]):
                self._run(*self._backlog.popleft())
        finally:
            self._draining = False

    def _prepare(self, entry: Entry, stream: bool) -> None:
        """Make or load the cache; requests wait in order meanwhile."""
        self._blocked = True
        work = asyncio.ensure_future(self._server.fabric.catalogue.prepare(entry, stream=stream))

        def prepared(finished: Future[None]) -> None:
            self._blocked = False
            error = None if finished.cancelled() else finished.exception()
            if error is not None and self._backlog:
                request, slot = self._backlog.popleft()
                self._fail(slot, request.request_id, error)
            self._drain()

        work.add_done_callback(prepared)

    # answers

    def _answer(self, slot: Slot, request: Request, value: Any) -> None:
        try:
            data = self._session.answer(request.op, request.request_id, value)
        except (BinaryError, IndexError):  # put there by another protocol
            self._fail(slot, request.request_id, Refused(FOREIGN))
        else:
            self._fill(slot, data)

    def _fail(self, slot: Slot, request_id: int, error: BaseException) -> None:
        status, message = translate(error)
        self.last_error = message
        self._told_to_go = self._told_to_go or status == Status.LOGIN_FAILED
        self.counters.peer_error(str(status))
        self._fill(slot, self._session.fail(request_id, status, message))

    def _fill(self, slot: Slot, data: bytes) -> None:
        slot.data = data
        self._answer_bytes += len(data)
        if self._answer_bytes > WRITE_BUFFER_BYTES_MAX:
            self._flush()  # and learn whether the client takes it
            return
        if self._flush_due:
            return
        if self._session.waiting == 1:
            self._flush()  # a client that waits for this answer only: nothing is gained by waiting for more
            return
        self._flush_due = True
        asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        data = self._session.take_answers()
        self._answer_bytes -= len(data)
        self.write(data)
        if self._told_to_go and not self._session.waiting:
            self._go()
        if self._backlog:
            self._drain()
        if not self._reading:
            self.pace()
        self.end_if_all_said()

    def has_room(self) -> bool:
        """Read no further while a password is checked, or answers pile up."""
        busy = self._reads_apart or self._session.state is State.LOGIN
        return not busy and self._session.waiting <= self._server.settings.requests_max

    def owes(self) -> bool:
        """Whether requests wait for their answer, or the login does."""
        return self._session.waiting > 0 or bool(self._tasks)

    def stop(self) -> None:
        """The listener stops."""
        self.last_error = "the hub is stopping"
        self.transport.close()

    def describe(self) -> dict[str, object]:
        return {
            "state": self._session.state.value,
            "user": self._user,
            "version": ".".join(map(str, self._session.version)),
            "requests": self._requests,
            "waiting": self._session.waiting,
            "backlog": len(self._backlog),
            "last_error": self.last_error,
        }


class IgniteServer(TcpServer[Connection]):
    """What the connections of one listener share."""

    def __init__(self, hub: Hub, fabric: Fabric) -> None:
        super().__init__(hub, "ignite")
        self.settings = hub.config.section(Perper)
        self.fabric = fabric
        self.node_id = uuid.uuid4()
        self.owner = self.node_id if hub.peers.own else None  # whom clients of several hubs should choose
        operations = hub.metrics.section(PerperMetrics).operations
        self._counters = {op: operations.labels(operation=line.name) for op, line in OPERATIONS.items()}

    def node_behind(self, near: str) -> uuid.UUID:
        """The node that a client is connected with: another hub, if that has passed it on."""
        return uuid.uuid5(self.node_id, between) if (between := self.hub.peers.through(near)) else self.node_id

    def count(self, counts: Counter[int]) -> None:
        """Operations came."""
        for op, number in counts.items():
            self._counters[op].inc(number)


async def serve(hub: Hub, address: str) -> Listener:
    """Listen for thin clients."""
    fabric = await acquire(hub)
    shared = IgniteServer(hub, fabric)
    return await listen(shared, address, lambda: Connection(shared))
