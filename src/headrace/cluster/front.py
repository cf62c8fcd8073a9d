"""What listens at a hub that does not own the cell: connections are passed on to the owner's listener of the same name.

A connection that comes while nobody owns the cell waits for the next owner, `cluster.wait_s` at most. The owner is told
where the client comes from (`introductions`) and checks who it is; this hub only moves bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Callable, Sequence

from headrace.cluster.introductions import Introducer
from headrace.cluster.route import Owner, Route
from headrace.cluster.splice import End, connect
from headrace.config.address import split_address
from headrace.hub.peers import address_from
from headrace.serving import sockets
from headrace.serving.tcp import address_of
from headrace.telemetry.log_lines import fields
from headrace.telemetry.metrics import ClusterMetrics

logger = logging.getLogger("headrace.cluster")

CONNECT_S = 3.0
"""How long the owner's machine may take for one attempt to connect."""
AGAIN_S = 0.2


class Front:
    """One listener."""

    connections_max = 10_000
    """At this hub's listener, those that wait among them (`limits.sessions_max`)."""

    def __init__(
        self,
        name: str,
        route: Route,
        wait_s: float,
        metrics: ClusterMetrics,
        tls_on: Sequence[ssl.SSLContext] = (),
        introducer: Introducer | None = None,
    ) -> None:
        """`tls_on` is for the connection to the owner, where TLS ends here and begins again: ways to know its
        certificate, one of which must do."""
        self.name = name
        self.address = ""
        self._route = route
        self._wait_s = wait_s
        self._metrics = metrics
        self._tls_on = tls_on
        self._introducer = introducer
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._joined: dict[End, Owner] = {}

    async def open(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        """Listen. Raises an `OSError` when the port is taken."""
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accepted, host, port, ssl=tls)
        self.address = address_of(self._server)

    def _accepted(self) -> End:
        return Client(self._come)

    def _come(self, client: Client) -> None:
        if len(self._tasks) + len(self._joined) >= self.connections_max:
            self._metrics.forward_failures.labels(listener=self.name).inc()
            logger.warning(
                "connection refused: limits.sessions_max is reached",
                extra=fields(listener=self.name, maximum=self.connections_max),
            )
            client.abort()
            return
        task = asyncio.ensure_future(self._serve(client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, client: Client) -> None:
        await self._pass_on(client)

    async def _pass_on(self, client: Client) -> None:
        """Join a client with the owner."""
        try:
            owner, far = await self._reach(client)
        except OSError as error:
            self._metrics.forward_failures.labels(listener=self.name).inc()
            logger.warning(
                "a connection was not forwarded to the owner", extra=fields(listener=self.name, error=str(error))
            )
            client.abort()
            return
        if client.is_lost:
            far.abort()
            return
        self._metrics.forwarded.labels(listener=self.name).inc()
        self._joined[client] = owner
        client.when_lost(lambda: self._left(client))
        client.join(far)

    def _left(self, client: End) -> None:
        self._joined.pop(client, None)

    async def _reach(self, client: Client) -> tuple[Owner, End]:
        """The owner, and a connection to it: the next owner's, if this one does not answer."""
        deadline = time.monotonic() + self._wait_s
        problem = "nobody owns the cell"
        while not client.is_lost and time.monotonic() < deadline:
            owner = self._route.owner
            if owner is not None and self.name in owner.addresses:
                try:
                    return owner, await self._connect(owner, client)
                except OSError as error:  # gone, and the next one not known yet; a timeout is one, too
                    problem = f"{owner.hub} at {owner.addresses[self.name]} does not answer: {error or 'no answer'}"
            elif owner is not None:
                problem = f"{owner.hub} does not serve {self.name}"
            await self._route.news(AGAIN_S)
        raise OSError(f"{problem} (waited cluster.wait_s, {self._wait_s:g} s)")

    async def _connect(self, owner: Owner, client: Client) -> End:
        """A connection to the owner, by the first way to know its certificate that does."""
        for tls in self._tls_on[:-1]:
            with contextlib.suppress(ssl.SSLCertVerificationError):
                return await self._connect_by(owner, client, tls)
        return await self._connect_by(owner, client, self._tls_on[-1] if self._tls_on else None)

    async def _connect_by(self, owner: Owner, client: Client, tls: ssl.SSLContext | None) -> End:
        """A connection to the owner, who knows whose it is before it comes."""
        host, port = split_address(owner.addresses[self.name])
        timeout_s = min(CONNECT_S, self._wait_s)
        if self._introducer is None:
            return await connect(host, port, timeout_s, tls)
        async with self._introducer.introducing(owner, client.address) as guest:
            far = await connect(host, port, timeout_s, tls, guest.comes_from)
        if not guest.is_introduced:
            self._metrics.unintroduced.labels(listener=self.name).inc()
        far.when_lost(guest.leaves)
        return far

    def drop_all_but(self, owner: Owner | None) -> None:
        """Cut the connections to those who own the cell no more: a machine that is gone does not say so itself. One at
        the same address is the owner's: it was made when the owner listened, and others had not heard of it yet."""
        address = None if owner is None else owner.addresses.get(self.name)
        for client, joined in list(self._joined.items()):
            if joined.addresses.get(self.name) != address:
                client.abort()

    @property
    def connections(self) -> int:
        return len(self._joined)

    async def stop_accepting(self) -> None:
        """Leave the port to the hub's own listener. Connections that are there stay."""
        server, self._server = self._server, None
        if server is not None:
            sockets.accept_no_more(server)
            await asyncio.sleep(0)
            server.close()

    async def close(self) -> None:
        await self.stop_accepting()
        for task in tuple(self._tasks):
            task.cancel()
        for client in tuple(self._joined):
            client.abort()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks, return_exceptions=True)


class Client(End):
    """Somebody who has come."""

    def __init__(self, come: Callable[[Client], None]) -> None:
        super().__init__()
        self.address = ""
        """Where it comes from."""
        self._come = come
        self._more = asyncio.Event()

    async def more(self) -> None:
        """Returns when more has come, or nothing will."""
        self._more.clear()
        await self._more.wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._more.set()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._more.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        name = transport.get_extra_info("peername")
        if name:
            self.address = address_from(name)
        self._come(self)
