"""What the TCP servers of all protocols share: the life of a connection, its pace, and the listener around them.

A protocol derives its server from `TcpServer` and its connection from `TcpConnection` and one of asyncio's protocol
classes, and adds what its bytes mean. Kept here for all of them: the list of open connections, the session that people
see, bytes counted, tasks that end with their connection, and when to read: never while the peer does not take what it
is sent, while the disk is behind, or while the protocol's own `has_room` says no. A protocol says here when its peer
has signed in (`signed_in`) and what it holds of a message that is not whole (`keeps`): `hub.intake` ends those that
take too long or too much. A peer that ends its own side of the connection gets what the protocol says it is owed before
ours ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from headrace.config.address import join_address, split_address
from headrace.errors import HeadraceError, LimitExceeded
from headrace.hub.intake import Arrival
from headrace.hub.peers import address_from
from headrace.hub.sessions import Session
from headrace.hub.turns import TURN_S
from headrace.security import Principal
from headrace.security.admission import Quick
from headrace.serving import eager, sockets
from headrace.serving.listener import keep_alive, let_go, open_server
from headrace.units import KIB

if TYPE_CHECKING:
    from headrace.hub import Hub

logger = logging.getLogger("headrace.server")

GOODBYE_S = 1.0
"""How long a peer may take for its last answers when the listener stops, before it is cut off."""
SLICE_BYTES_MIN = 512
LOOK_AFTER_S = 1.0
"""How often to look whether a peer that has ended its side, and waits for answers, is still there."""


Peer = TypeVar("Peer", bound="TcpConnection")


class TcpServer(Generic[Peer]):
    """What the connections of one listener share."""

    def __init__(self, hub: Hub, protocol: str) -> None:
        self.hub = hub
        self.protocol = protocol
        self.counters = hub.metrics.protocol.of(protocol)
        self.connections: set[Peer] = set()
        self._emptied = asyncio.Event()
        self._unwatch = hub.admission.rights.watch(self._check_certificates)

    async def listen(
        self, address: str, connection: Callable[[], asyncio.BaseProtocol], tls: ssl.SSLContext | None = None
    ) -> asyncio.Server:
        """Accept connections at `address`, with the listener's certificate if it has one."""
        host, port = split_address(address)
        context = tls or self.hub.security.tls(self.protocol)
        return await open_server(connection, context, self.hub.config.limits.sign_in_s, host=host, port=port)

    async def stop(self, *servers: asyncio.Server) -> None:
        """Accept nobody more, end the connections, and cut off those that do not go."""
        for server in servers:
            server.close()
        for connection in tuple(self.connections):
            connection.finish()
        loop = asyncio.get_running_loop()
        cut_off = loop.call_later(GOODBYE_S, self._abort_all)
        while self.connections:
            self._emptied.clear()
            await self._emptied.wait()
        cut_off.cancel()
        self._unwatch()

    def left(self, connection: Peer) -> None:
        """A connection has ended."""
        self.connections.discard(connection)
        if not self.connections:
            self._emptied.set()

    def _check_certificates(self) -> None:
        """Users or authorities have changed: whoever shows a certificate that nobody vouches for any more is cut off,
        as in a handshake."""
        for connection in tuple(self.connections):
            if not self.hub.security.vouches(self.protocol, connection.transport):
                connection.last_error = "nobody vouches for its certificate any more"
                connection.transport.abort()

    def _abort_all(self) -> None:
        for connection in tuple(self.connections):
            connection.transport.abort()


def address_of(server: asyncio.Server) -> str:
    """Where a server listens, with the port that the system chose."""
    host, port = server.sockets[0].getsockname()[:2]
    return join_address(host, port)


def _watches_nothing() -> None:
    """There is nothing to be told of."""


class TcpConnection:
    """One peer. The order of bases is `class Connection(TcpConnection, asyncio.Protocol)`."""

    write_buffer_bytes_max: int | None = None
    strangers_max: int | None = None
    """How many connections that have not signed in the listener has room for, if that is less than the hub has."""

    def __init__(self, server: TcpServer[Any]) -> None:
        self.hub = server.hub
        self.counters = server.counters
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.is_lost = False
        self.peer = "?"
        """Where it comes from; where there is a hub of the cluster between, `near` is that hub's address."""
        self.near = "?"
        self.last_error: str | None = None
        self.handle: Session | None = None
        self.arrival: Arrival | None = None
        self.principal: Principal | None = None
        """Who the peer is, as far as the protocol has found out; what it may do is true at every moment."""
        self.peer_reads = True
        self.says_no_more = False
        """The peer has ended its side of the connection."""
        self._tcp_server = server
        self._reading = True
        self._waits_for_hub = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._unwatch: Callable[[], None] = _watches_nothing

    # What a protocol fills in.

    def opened(self) -> None:
        """The peer has come and its session is open."""

    def refused(self, error: LimitExceeded) -> None:
        """The peer has come and there are too many sessions."""
        logger.warning("%s: connection from %s refused: %s", self._tcp_server.protocol, self.peer, error)
        self.transport.abort()

    def closed(self, error: Exception | None) -> None:
        """The peer is gone."""

    def describe(self) -> dict[str, object]:
        """What `headrace session ls` shows."""
        return {}

    def has_room(self) -> bool:
        """Whether more may be read, by the protocol's own limits."""
        return True

    def all_heard(self) -> None:
        """The peer has ended its side of the connection: what needs more of its words can end."""

    def owes(self) -> bool:
        """Whether something that the peer has asked for is still to be answered."""
        return False

    def stop(self) -> None:
        """The listener stops."""
        self.transport.close()

    def finish(self) -> None:
        """The listener stops: nothing more is taken, and what is owed is answered before the connection ends."""
        if self.transport.is_closing() or not self.owes():
            self.stop()
            return
        self.says_no_more = True
        self.transport.pause_reading()

    def cut_off(self, why: str) -> None:
        """The peer has met a limit of `hub.intake`. A protocol that has words for it says them before."""
        self.last_error = why
        self.transport.abort()

    def rights_changed(self, principal: Principal) -> None:
        """The peer may do something else than before. Whoever is not known any more (`principal.refusal`) goes."""
        if principal.refusal is not None:
            self.last_error = str(principal.refusal)
            self.stop()

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer has come."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop has a class of its own
        if self.write_buffer_bytes_max is not None:
            self.transport.set_write_buffer_limits(high=self.write_buffer_bytes_max)
        keep_alive(transport)
        name = transport.get_extra_info("peername")  # uvloop does not know a peer that has gone already
        if name:
            self.near = address_from(name)
            self.peer = self.hub.peers.client(self.near)
        server = self._tcp_server
        server.connections.add(self)
        if not self.hub.security.vouches(server.protocol, transport):
            self.transport.abort()  # as the authorities' file is now; the handshake knows what it was before, too
            return
        try:
            self.arrival = self.hub.intake.open(server.protocol, self.cut_off, self.strangers_max)
        except LimitExceeded as error:  # it says so to the log
            self.last_error = str(error)
            self.transport.abort()
            return
        try:
            self.handle = self.hub.sessions.open(server.protocol, self.peer, self.describe)
        except LimitExceeded as error:
            self.refused(error)
        else:
            self.opened()

    def connection_lost(self, error: Exception | None) -> None:
        """The peer is gone."""
        self.is_lost = True
        self._tcp_server.left(self)
        if self.arrival is not None:
            self.arrival.close()
        for task in self._tasks:
            task.cancel()
        self.closed(error)
        if self.handle is not None:
            self.handle.close(self.last_error or (str(error) if error else None))
        self._unwatch()
        self._unwatch = _watches_nothing
        let_go(self.transport)

    def eof_received(self) -> bool:
        """The peer has said all it will, and may still listen. TLS has no connections that are closed by half."""
        self.says_no_more = True
        self.all_heard()
        stays = self.owes() and self.transport.can_write_eof()
        if stays:
            self._look_after()
        return stays

    def _look_after(self) -> None:
        """Nothing is read any more that would tell of a peer that has gone altogether; the kernel knows, which asks it
        now and then."""
        if self.transport.is_closing():
            return
        if sockets.has_news(self.transport):
            self.transport.abort()
        else:
            asyncio.get_running_loop().call_later(LOOK_AFTER_S, self._look_after)

    def pause_writing(self) -> None:
        """The peer does not read what it is sent."""
        self.peer_reads = False
        self.pace()

    def resume_writing(self) -> None:
        """The peer reads again."""
        self.peer_reads = True
        self.pace()

    # For the protocol's use.

    def signed_in(self) -> None:
        """The peer has a name now or, where there is no login, has said something whole."""
        if self.arrival is not None:
            self.arrival.known()

    def keeps(self, nbytes: int, came: int) -> None:
        """So many bytes wait for the rest of their message, now that `came` more have come."""
        if self.arrival is not None:
            self.arrival.holds(nbytes, came)

    def admit(self, credential: Quick) -> Principal:
        """Find out who the peer is; raises what `Admission.admit_now` does."""
        return self.belongs_to(self.hub.admission.admit_now(self._tcp_server.protocol, self.peer, credential))

    def belongs_to(self, principal: Principal) -> Principal:
        """The peer is known from now on, and `rights_changed` is called when it may do something else."""
        self.principal = principal
        self._unwatch = principal.watch(lambda: None if self.is_lost else self.rights_changed(principal))
        return principal

    def write(self, data: bytes) -> None:
        """Send and count, if there is still somebody to send to."""
        if data and not self.transport.is_closing():
            self.transport.write(data)
            self.counters.sent_bytes.inc(len(data))

    def end_if_all_said(self) -> None:
        """For whenever something owed was sent: close if the peer has ended its side and that was the last."""
        if self.says_no_more and not self.owes() and not self.transport.is_closing():
            self.transport.close()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that ends with the connection at the latest."""
        self._keep(asyncio.ensure_future(work))

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """The same, and what it does before it waits for something is done when this returns (eager.py)."""
        task = eager.begin(work)
        if task is not None:
            self._keep(task)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.end_if_all_said()

    def pace(self) -> None:
        """Read only while what is read can be dealt with."""
        if self.transport.is_closing() or self.says_no_more:  # there is nothing more to read
            return
        if self.hub.congested and not self._waits_for_hub:
            self._waits_for_hub = True
            self.start(self._wait_for_hub())
        may_read = self.may_read()
        if may_read is not self._reading:
            self._reading = may_read
            if self.arrival is not None:
                self.arrival.is_read = may_read
            (self.transport.resume_reading if may_read else self.transport.pause_reading)()

    def may_read(self) -> bool:
        """Whether to read now."""
        return self.peer_reads and not self._waits_for_hub and self.has_room()

    async def _wait_for_hub(self) -> None:
        with contextlib.suppress(HeadraceError):  # a log that failed refuses what comes, each with its own answer
            await self.hub.drained()
        self._waits_for_hub = False
        self.pace()


class SlicedConnection(TcpConnection, asyncio.Protocol):
    """A peer whose bytes are taken a slice at a time, since even few may hold very many small messages: between two
    slices others have their turn (`hub.turns`). Slices begin small; one that took long makes the next one smaller, one
    that was quick makes it larger."""

    slice_bytes = 32 * KIB
    """The largest."""
    first_slice_bytes = SLICE_BYTES_MIN

    def __init__(self, server: TcpServer[Any]) -> None:
        super().__init__(server)
        self._slice_bytes = self.first_slice_bytes
        self._unsliced: deque[bytes] = deque()
        self._eof_came = False

    def received(self, data: bytes) -> None:
        """Bytes came, in the order in which they were sent."""
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        """Bytes came from the socket."""
        self.counters.received_bytes.inc(len(data))
        if self._unsliced:
            self._unsliced.append(data)
        elif len(data) <= SLICE_BYTES_MIN:
            self.received(data)
        else:
            self._unsliced.append(data)
            self._next_slice()

    def _next_slice(self) -> None:
        if not self._unsliced:
            return
        data = self._unsliced[0]
        if len(data) <= self._slice_bytes:
            self._unsliced.popleft()
        else:
            data, self._unsliced[0] = data[: self._slice_bytes], data[self._slice_bytes :]
        began_s = time.thread_time()
        self.received(data)
        took_s = time.thread_time() - began_s
        if took_s > TURN_S:
            self._slice_bytes = max(SLICE_BYTES_MIN, self._slice_bytes // 2)
        elif took_s < TURN_S / 4:
            self._slice_bytes = min(self.slice_bytes, self._slice_bytes * 2)
        if self._unsliced:
            self.hub.intake.turns.soon(self._next_slice)
        elif self._eof_came and not super().eof_received():
            self.transport.close()
        self.pace()

    def eof_received(self) -> bool:
        """The peer has said all it will: that is taken before the connection closes. TLS does not wait for it."""
        if self._unsliced and self.transport.can_write_eof():
            self._eof_came = True
            return True
        while self._unsliced:
            self.received(self._unsliced.popleft())
        return super().eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        """The peer is gone."""
        self._unsliced.clear()
        super().connection_lost(error)

    def may_read(self) -> bool:
        """Whether to read now."""
        return not self._unsliced and super().may_read()
