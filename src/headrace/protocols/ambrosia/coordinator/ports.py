"""The two sockets of an immortal. No name is ever said on them: an immortal is known by its pair of ports.

    listen    the coordinator listens on both ports (coordinators since mid-2020; Node, C#, our Python binding)
    connect   it listens on the receive port and connects out to the binding's send port (2018 to mid-2020; C)

Sockets are paired by what a program says (`pairing.py`), and otherwise in the order in which they come. Where programs
are expected to say it, a socket that says nothing is paired after `MARK_S`. A pair that comes while a binding is linked
waits a moment, since a restarted binding may be quicker than the news of its predecessor's end, and is then refused, or
becomes a standby.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from typing import Final, cast

from headrace.config.address import join_address, split_address
from headrace.errors import HeadraceError, LimitExceeded
from headrace.hub import Hub
from headrace.hub.intake import Arrival, Intake
from headrace.protocols.ambrosia.coordinator.link import Link
from headrace.protocols.ambrosia.pairing import MARK_BYTES, Mark, mark_in
from headrace.protocols.ambrosia.settings import Sockets
from headrace.security import Principal
from headrace.serving.listener import let_go, open_server

logger = logging.getLogger("headrace.ambrosia")
GRACE_S: Final = 1.0
MARK_S: Final = 5.0
RETRY_S: Final = 0.05
WRITE_BUFFER_BYTES: Final = 1 << 20
EARLY_BYTES_MAX: Final = 64 << 10
MakeLink = Callable[[asyncio.Transport, asyncio.Transport, bool], Link | None]
"""Of two sockets, and whether the binding said that it only takes checkpoints."""


class Guest:
    """Whoever is at the other end of a socket, for as long as they may be an immortal's binding."""

    def __init__(self, hub: Hub, principal: Principal, log: str, transport: asyncio.Transport) -> None:
        self._hub = hub
        self._principal = principal
        self._log = log
        self._transport = transport

    def may_stay(self) -> bool:
        """Whether they would be let in now."""
        vouched = self._hub.security.vouches("ambrosia", self._transport)
        return vouched and self._principal.granted("write", self._log)

    def watch(self, turned_away: Callable[[], None]) -> Callable[[], None]:
        """Have `turned_away` called when they may not stay. The result ends that."""
        return self._hub.admission.rights.watch(lambda: None if self.may_stay() else turned_away())


class _Socket(asyncio.Protocol):
    """One half of a pair."""

    def __init__(self, ports: PortPair, *, called_out: bool = False) -> None:
        """`called_out`: we connected to it, at the address that its registration names."""
        self.ports = ports
        self._called_out = called_out
        self._arrival: Arrival | None = None
        self.link: Link | None = None
        self.came_s = asyncio.get_running_loop().time()
        self.peer_port: int | None = None
        """At the other end."""
        self.transport: asyncio.Transport
        self._unwatch: Callable[[], None] = lambda: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are not instances of it
        peer = transport.get_extra_info("peername")
        self.peer_port = peer[1] if peer else None
        if not self._called_out:
            guest = self.ports.admitted(self.transport)
            if guest is None:
                self.transport.abort()
                return
            self._unwatch = guest.watch(self._turned_away)
        try:
            self._arrival = self.ports.intake.open("ambrosia", self._cut_off)
        except LimitExceeded:  # it says so to the log
            self.transport.abort()
            return
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.ports.arrived(self)

    def _held_back(self, is_held_back: bool) -> None:
        if self._arrival is not None:
            self._arrival.is_read = not is_held_back

    def _cut_off(self, why: str) -> None:
        if self.link is not None:
            self.link.close(why, failed=True)
        self.transport.abort()

    def linked(self, link: Link) -> None:
        """The other half has come."""
        self.link = link
        if self._arrival is not None:
            self._arrival.known()
            link.on_hold = self._held_back

    def _turned_away(self) -> None:
        """The protocol has no word for it: bindings see their sockets end, as when they come without a right."""
        if self.link is not None:
            self.link.close("the binding may not be here any more", failed=True)
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End of file or reset: the link is lost. It never means data."""
        self._unwatch()
        let_go(self.transport)
        self.ports.left(self)
        if self._arrival is not None:
            self._arrival.close()
        if self.link is not None:
            self.link.close(f"the binding closed its socket{f': {exc}' if exc else ''}")
            self.ports.pair_up()  # a successor may be waiting


class ReceiveSocket(_Socket):
    """Carries messages of the binding. It is read from the start: only so is its end noticed while it waits for its
    other half, which must never be paired with the half of another binding."""

    def __init__(self, ports: PortPair) -> None:
        super().__init__(ports)
        self.mark: Mark | None = None
        """From which port the other half comes, if it was said."""
        self._early = bytearray()

    def data_received(self, data: bytes) -> None:
        if self.link is not None:
            self.link.data(data)
            if self._arrival is not None:
                self._arrival.holds(self.link.unread_bytes, len(data))
            return
        may_be_marked = len(self._early) < MARK_BYTES
        self._early += data
        if self._arrival is not None:
            self._arrival.holds(len(self._early), len(data))
        if len(self._early) > EARLY_BYTES_MAX:  # a binding has little to say before it is told to start
            self.transport.abort()
        elif may_be_marked and (mark := mark_in(bytes(self._early[:MARK_BYTES]))) is not None:
            self.mark = mark
            self.ports.marked(self, mark)

    def linked(self, link: Link) -> None:
        """The other half has come."""
        super().linked(link)
        if self._early:
            data, self._early = bytes(self._early), bytearray()
            link.data(data)
            if self._arrival is not None:
                self._arrival.holds(link.unread_bytes, 0)


class SendSocket(_Socket):
    """Carries records to the binding; a binding has nothing to say here and is not listened to. One that talks and
    talks goes: to read it away would take a processor for ever."""

    def __init__(self, ports: PortPair, *, called_out: bool = False) -> None:
        super().__init__(ports, called_out=called_out)
        self._said_bytes = 0

    def data_received(self, data: bytes) -> None:
        self._said_bytes += len(data)
        if self._said_bytes > EARLY_BYTES_MAX:
            self._cut_off("it talks on the socket on which a binding only listens")

    def pause_writing(self) -> None:
        if self.link is not None:
            self.link.feed.pause()

    def resume_writing(self) -> None:
        if self.link is not None:
            self.link.feed.resume()


class PortPair:
    """The port pair of one immortal, or of one debugging session."""

    def __init__(
        self,
        name: str,
        sockets: Sockets,
        receive: str,
        send: str,
        link: MakeLink,
        admitted: Callable[[asyncio.Transport], Guest | None],
        tls: ssl.SSLContext | None,
        intake: Intake,
    ) -> None:
        """`link` makes a link of two sockets, or None while there is no room for another binding; `admitted` says who
        is at the other end of a socket, if they may be a binding at all."""
        self.name = name
        self.sockets = sockets
        self.receive = receive
        self.send = send
        self.admitted = admitted
        self.intake = intake
        self.expects_marks: Callable[[], bool] = lambda: False
        """Whether programs are known to say which sockets are theirs."""
        self._link = link
        self._tls = tls
        self._receives: dict[ReceiveSocket, None] = {}
        """Halves that wait, in the order in which they came. There may be a crowd of them that nobody wants."""
        self._sends: dict[_Socket, None] = {}
        self._send_from: dict[int | None, _Socket] = {}
        self._marked: dict[int, ReceiveSocket] = {}
        """By the port that they have named."""
        self._servers: list[asyncio.Server] = []
        self._connecting: asyncio.Task[None] | None = None
        self._closed = False
        self._serving = False

    async def open(self) -> None:
        """Bind the ports, both or none; port 0 becomes the one that the system chose. They may have been closed.
        Whoever connects waits until `serve`."""
        self._closed = self._serving = False
        try:
            self.receive = await self._listen(self.receive, lambda: ReceiveSocket(self))
            if self.sockets == "listen":
                self.send = await self._listen(self.send, lambda: SendSocket(self))
        except BaseException:
            await self.close()
            raise

    async def _listen(self, address: str, protocol: Callable[[], _Socket]) -> str:
        host, port = split_address(address)
        server = await open_server(protocol, self._tls, self.intake.sign_in_s, host=host, port=port)
        self._servers.append(server)
        return join_address(host, server.sockets[0].getsockname()[1])

    def serve(self) -> None:
        """Link bindings from now on, those that have come already too."""
        self._serving = True
        self.pair_up()

    async def close(self) -> None:
        """Free the ports and drop sockets that no link has taken."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        for socket in (*self._receives, *self._sends):
            socket.transport.abort()
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()  # and no `wait_closed`: from Python 3.12 on that lasts as long as its links

    def arrived(self, socket: _Socket) -> None:
        """A socket has been accepted, or a connection made."""
        if isinstance(socket, ReceiveSocket):
            self._receives[socket] = None
            if self.sockets == "connect" and self._connecting is None:
                self._connecting = asyncio.ensure_future(self._connect())
        else:
            self._sends[socket] = None
            self._send_from[socket.peer_port] = socket
        self.pair_up()

    def marked(self, socket: ReceiveSocket, mark: Mark) -> None:
        """A socket that waits has named its other half."""
        if socket in self._receives:
            self._marked[mark.port] = socket
            self.pair_up()

    def left(self, socket: _Socket) -> None:
        """A socket is gone, or waits no more."""
        if isinstance(socket, ReceiveSocket):
            self._receives.pop(socket, None)
            if socket.mark is not None and self._marked.get(socket.mark.port) is socket:
                del self._marked[socket.mark.port]
        else:
            self._sends.pop(socket, None)
            if self._send_from.get(socket.peer_port) is socket:
                del self._send_from[socket.peer_port]

    def pair_up(self) -> None:
        """Link a waiting pair if there is room for it; otherwise look again in a moment and then refuse it."""
        pair = None if self._closed or not self._serving else self._next_pair()
        if pair is None:
            return
        receive, send = pair
        try:
            takes_checkpoints = receive.mark is not None and receive.mark.takes_checkpoints
            link = self._link(receive.transport, send.transport, takes_checkpoints)
        except HeadraceError as error:
            logger.warning("immortal %s: a binding was refused: %s", self.name, error)
            receive.transport.abort()
            send.transport.abort()
            return
        if link is None:
            asyncio.get_running_loop().call_later(GRACE_S, self._refuse, receive, send)
            return
        self.left(receive)
        self.left(send)
        send.linked(link)
        receive.linked(link)

    def _next_pair(self) -> tuple[ReceiveSocket, _Socket] | None:
        for port in self._marked.keys() & self._send_from.keys():
            return self._marked[port], self._send_from[port]
        if not self._receives or not self._sends:
            return None
        receive, send = next(iter(self._receives)), next(iter(self._sends))
        loop = asyncio.get_running_loop()
        left_s = max(receive.came_s, send.came_s) + MARK_S - loop.time()
        if self.expects_marks() and left_s > 0:
            loop.call_later(left_s, self.pair_up)
            return None
        return receive, send

    def _refuse(self, receive: ReceiveSocket, send: _Socket) -> None:
        if receive in self._receives and send in self._sends:
            logger.warning("immortal %s: a second binding was refused: one is linked already", self.name)
            for socket in (receive, send):
                self.left(socket)
                socket.transport.abort()
            self.pair_up()  # others may have come behind them

    async def _connect(self) -> None:
        """The old arrangement: the binding listens once its own connection has succeeded, so try until it does. One
        connection at a time, however many wait for one: a crowd on the receive port is none on the binding's."""
        host, port = split_address(self.send)
        try:
            while self._receives and not self._closed:
                if not self._sends:
                    with contextlib.suppress(OSError):
                        await asyncio.get_running_loop().create_connection(
                            lambda: SendSocket(self, called_out=True), host, port
                        )
                await asyncio.sleep(RETRY_S)
        finally:
            self._connecting = None
