"""An asyncio connector that hides credits, reconnecting and resuming. Both dialects.

    async with Connector("127.0.0.1:7100", cookie="…") as connector:
        await connector.run(FileSource("orders.csv", stream="orders"))     # a source that can rewind

        stream = await connector.stream("events")                          # or messages one by one
        await stream.send(b"hello")
        await stream.flush()                                               # returns when all of it is on the hub's disk
        await stream.end()

A lost connection is made again with growing pauses, and the stream goes on where the hub's disk is. What cannot be
helped by connecting again (a wrong cookie, a point nobody can go back to) is raised from whatever is being awaited.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol, cast

from headrace.config.address import split_address
from headrace.errors import HeadraceError
from headrace.protocols.wallaroo.client_session import (
    Acked,
    ClientSession,
    Ended,
    Event,
    Failed,
    Item,
    OutStream,
    Refused,
    Restarted,
)
from headrace.protocols.wallaroo.codec import DRAFT, V3, Dialect
from headrace.protocols.wallaroo.states import SessionState
from headrace.serving.listener import keep_alive

DIALECTS: dict[str, Dialect] = {"v3": V3, "draft": DRAFT}
PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 5.0
STEADY_S = 60.0
"""A connection that lasted so long was a good one: attempts are counted anew."""
ATTEMPTS_MAX = 20
"""Connections in a row that brought no progress before giving up."""
CONNECT_S = 10.0
QUEUED_MAX = 20_000
"""Messages a stream keeps unacknowledged before `send` waits."""
READ_ITEMS = 1_000


class ConnectorFailed(HeadraceError):
    """The connector gave up: connecting again would not help, or did not."""

    code = "wallaroo-connector-failed"


class Source(Protocol):
    """Something that can be read from any point. Ids grow with the position; `point` is the last id that is durable."""

    name: str

    def rewind(self, point: int | None) -> None:
        """Go to the first record behind `point`; `None` is the beginning."""

    async def read(self, limit: int) -> Sequence[Item] | None:
        """The next records, at most `limit`; `None` at the end."""


class ConnectorStream:
    """A stream of one connector."""

    def __init__(self, connector: Connector, out: OutStream) -> None:
        self._connector = connector
        self._out = out
        self._next_id = 0

    @property
    def point(self) -> int | None:
        """The last id that is durable in the hub and a point of reference, as far as is known here."""
        return self._out.point

    async def send(
        self,
        payload: bytes,
        *,
        message_id: int | None = None,
        event_time: int | None = None,
        key: bytes | None = None,
        flags: int = 0,
    ) -> int:
        """Queue one message and return its id. Waits while too much is unacknowledged. Without an id it gets the next
        one: from 1, or behind what the hub has."""
        await self._ready()
        if message_id is None:
            message_id = max(self._next_id, (self._out.point or 0) + 1)
        self._offer([Item(message_id, payload, event_time, key, flags)])
        return message_id

    async def send_many(self, items: Iterable[Item]) -> None:
        """Queue several messages at once."""
        await self._ready()
        self._offer(list(items))

    async def _ready(self) -> None:
        await self._connector._until(lambda: self._out.unacked < QUEUED_MAX)
        if self._connector._failure is not None:
            raise self._connector._failure

    def _offer(self, items: list[Item]) -> None:
        self._connector._session.offer(self._out, items)
        if items:
            self._next_id = items[-1].id + 1
        self._connector._pump()

    async def flush(self) -> int | None:
        """Wait until everything sent is durable; returns the last id."""
        await self._connector._until(lambda: self._out.unacked == 0)
        return self._out.acked

    async def end(self) -> None:
        """Send the end of the stream and wait until everything before it is durable."""
        self._connector._session.finish(self._out)
        self._connector._pump()
        await self._connector._until(lambda: self._out.ended)


class _Wire(asyncio.Protocol):
    """One connection of a connector."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self.transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.writable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop has a class of its own

    def data_received(self, data: bytes) -> None:
        self._connector._received(data)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self._connector._pump()

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        if not self.closed.done():
            self.closed.set_result(None)


class Connector:
    """A connection to a hub that is kept up. Use it with `async with`."""

    def __init__(
        self,
        address: str,
        *,
        dialect: str = "v3",
        cookie: str = "",
        program: str = "headrace",
        instance: str = "",
        tls: ssl.SSLContext | None = None,
        attempts_max: int | None = ATTEMPTS_MAX,
        pause_s: Callable[[int], float] | None = None,
    ) -> None:
        """`attempts_max` `None` tries for ever. `pause_s(attempt)` replaces the pauses between attempts."""
        self.address = address
        self._configured_address = address
        self.last_error: str | None = None
        self.connections = 0
        self._session = ClientSession(
            dialect=DIALECTS[dialect], cookie=cookie.encode(), program=program.encode(), instance=instance.encode()
        )
        self._tls = tls
        self._attempts_max = attempts_max
        self._pause_s = pause_s or growing_pause_s
        self._attempt = 0
        self._wire: _Wire | None = None
        self._task: asyncio.Task[None] | None = None
        self._failure: HeadraceError | None = None
        self._changed = asyncio.Event()
        self._pumping = False

    async def __aenter__(self) -> Connector:
        self._task = asyncio.create_task(self._keep_connected())
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # What the application does.

    async def stream(self, name: str, stream_id: int | None = None) -> ConnectorStream:
        """Open a stream whose unacknowledged messages are kept here and sent again when needed."""
        out = self._session.add_stream(name.encode(), stream_id, rewindable=False)
        self._pump()
        await self._until(lambda: out.opened)
        return ConnectorStream(self, out)

    async def run(self, source: Source, progress: Callable[[int], Awaitable[None] | None] | None = None) -> int | None:
        """Send a whole source, from the hub's point to its end; returns the last id. `progress` is told each durable
        id. However often the connection is lost, the source is rewound to the hub's point and goes on."""
        out = self._session.add_stream(source.name.encode(), rewindable=True)
        self._pump()
        openings = 0
        reported: int | None = None
        while not out.ended:
            await self._until(lambda: out.ended or out.opened)
            if openings != out.openings:
                openings = out.openings
                source.rewind(out.point)
            if out.point != reported and progress is not None:
                reported = out.point
                await _maybe(progress(reported or 0))
            if out.opened and not out.ending:
                items = await source.read(READ_ITEMS)
                if openings == out.openings and out.opened:
                    self._offer(out, items)
            await self._until(
                lambda seen=openings, last=reported: (  # type: ignore[misc]
                    out.ended
                    or out.openings != seen
                    or (out.opened and not out.ending and out.unacked < QUEUED_MAX)
                    or (progress is not None and out.point != last)
                )
            )
        if out.point != reported and progress is not None:
            await _maybe(progress(out.point or 0))
        return out.point

    def _offer(self, out: OutStream, items: Sequence[Item] | None) -> None:
        if items is None:
            self._session.finish(out)
        else:
            self._session.offer(out, items)
        self._pump()

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that events bring about; raises when the connector has given up."""
        while not condition():
            if self._failure is not None:
                raise self._failure
            await self._changed.wait()
        await asyncio.sleep(0)  # a long run of true conditions must not keep the loop from the socket

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # The connection.

    async def _keep_connected(self) -> None:
        try:
            while self._failure is None:
                await self._one_connection()
                if self._failure is None:
                    self._attempt += 1
                    if self._attempts_max is not None and self._attempt >= self._attempts_max:
                        why = self.last_error or "the connection is lost again and again"
                        self._failure = ConnectorFailed(
                            f"gave up after {self._attempt} attempts at {self.address}: {why}"
                        )
                        break
                    await asyncio.sleep(self._pause_s(self._attempt))
        except Exception as error:
            self._failure = ConnectorFailed(f"the connector stopped: {error!r}")
            raise
        finally:
            self._wake()

    async def _one_connection(self) -> None:
        host, port = split_address(self.address)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                server_name = host if self._tls is not None else None
                transport, wire = await loop.create_connection(
                    lambda: _Wire(self), host, port, ssl=self._tls, server_hostname=server_name
                )
        except (OSError, TimeoutError) as error:
            self.last_error = str(error) or "no answer"
            self.address = self._configured_address  # a RESTART may have named another, which is not there
            return
        keep_alive(transport)
        self._wire = wire
        self.connections += 1
        began = loop.time()
        self._session.connected()
        self._pump()
        try:
            await asyncio.wait([wire.closed], timeout=CONNECT_S)
            if self._session.state is SessionState.HANDSHAKE:
                self.last_error = "no answer to HELLO"
                return
            await wire.closed
            if loop.time() - began >= STEADY_S:
                self._attempt = 0
        finally:
            transport.abort()
            self._wire = None
            self._session.disconnected()
            for out in self._session.streams.values():
                out.opened = False

    def _received(self, data: bytes) -> None:
        self._on_events(self._session.receive(data))
        self._pump()

    def _on_events(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Acked() | Ended():
                    self._attempt = 0
                case Restarted(address):
                    if address:
                        self.address = address.decode()
                    self._hang_up()
                case Failed(reason, final):
                    self.last_error = reason
                    if final:
                        self._failure = ConnectorFailed(reason)
                    self._hang_up()
                case Refused():
                    asyncio.get_running_loop().call_later(PAUSE_S_MAX, self._retry_refused)
        if events:
            self._wake()

    def _retry_refused(self) -> None:
        self._session.retry_refused()
        self._pump()

    def _pump(self) -> None:
        """Write what the credits allow, as long as the socket takes it."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._wire is not None and self._wire.transport is not None and self._wire.writable:
                output, events = self._session.take_output()
                if output:
                    self._wire.transport.write(output)
                self._on_events(events)
                if not output:
                    break
        finally:
            self._pumping = False

    def _hang_up(self) -> None:
        """After the last words, which say why."""
        if self._wire is not None and self._wire.transport is not None:
            self._wire.transport.write(self._session.take_output()[0])
            self._wire.transport.close()


async def _maybe(result: Awaitable[None] | None) -> None:
    if result is not None:
        await result


def growing_pause_s(attempt: int) -> float:
    """0.1 s, doubling to 5 s, each with up to half of it taken off at random, so that many do not come at once."""
    pause = min(PAUSE_S_MAX, PAUSE_S_MIN * 2.0 ** min(attempt - 1, 10))
    return pause * random.uniform(0.5, 1.0)
