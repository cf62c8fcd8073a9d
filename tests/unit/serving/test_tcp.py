"""What all TCP servers share, with a protocol that echoes."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.until import until

from headrace.config import Config, Limits
from headrace.config.address import split_address
from headrace.errors import LogFailed
from headrace.hub import Hub
from headrace.hub.turns import TURN_S
from headrace.serving.tcp import SLICE_BYTES_MIN, SlicedConnection, TcpConnection, TcpServer, address_of
from headrace.telemetry.metrics import counted
from headrace.testing import memory_hub


class Echo(TcpConnection, asyncio.Protocol):
    """Says back what it is told."""

    room = True

    def describe(self) -> dict[str, object]:
        return {"state": "echoing"}

    def has_room(self) -> bool:
        return self.room

    def data_received(self, data: bytes) -> None:
        self.write(data)


class EchoServer(TcpServer[Echo]):
    """Echoes, as the protocol `flight`: any that the metrics know."""

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub, "flight")


@asynccontextmanager
async def serving(hub: Hub) -> AsyncIterator[tuple[EchoServer, str]]:
    server = EchoServer(hub)
    listening = await server.listen("127.0.0.1:0", lambda: Echo(server))
    try:
        yield server, address_of(listening)
    finally:
        await server.stop(listening)


class Client(asyncio.Protocol):
    """The other end."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.received = b""
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set()


async def connect(address: str) -> Client:
    _, client = await asyncio.get_running_loop().create_connection(Client, *split_address(address))
    return client


async def connected(address: str) -> Client:
    """A client that was heard."""
    client = await connect(address)
    client.transport.write(b"hello")
    while client.received != b"hello":
        await asyncio.sleep(0)
    return client


async def test_a_connection_is_seen_counted_and_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[asyncio.BaseTransport] = []
    monkeypatch.setattr("headrace.serving.tcp.keep_alive", asked.append)
    async with memory_hub() as hub, serving(hub) as (server, address):
        client = await connected(address)
        [session] = hub.sessions.list()
        assert (session.protocol, session.details) == ("flight", {"state": "echoing"})
        assert session.peer == "{}:{}".format(*client.transport.get_extra_info("sockname"))
        assert len(asked) == len(server.connections) == 1
        assert counted(server.counters.sent_bytes) == 5
        [connection] = server.connections
        connection.last_error = "enough"
        client.transport.close()
        while server.connections:
            await asyncio.sleep(0)
        assert connection.is_lost
        assert [ended.reason for ended in hub.sessions.list(ended=True)] == ["enough"]


async def test_one_session_too_many_is_refused() -> None:
    async with memory_hub(Config(limits=Limits(sessions_max=1))) as hub, serving(hub) as (_, address):
        await connected(address)
        refused = await connect(address)
        await refused.ended.wait()
        assert len(hub.sessions) == 1


async def test_reading_stops_while_there_is_no_room_or_the_peer_does_not_read() -> None:
    async with memory_hub() as hub, serving(hub) as (server, address):
        await connected(address)
        [connection] = server.connections
        for stop, go in (
            (lambda: setattr(connection, "room", False), lambda: setattr(connection, "room", True)),
            (connection.pause_writing, connection.resume_writing),
        ):
            stop()
            connection.pace()
            assert not connection.transport.is_reading()
            go()
            connection.pace()
            assert connection.transport.is_reading()


@pytest.mark.parametrize("error", [None, LogFailed("no disk")])
async def test_reading_stops_while_the_disk_is_behind(monkeypatch: pytest.MonkeyPatch, error: LogFailed | None) -> None:
    async with memory_hub() as hub, serving(hub) as (server, address):
        await connected(address)
        [connection] = server.connections
        caught_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(type(hub), "congested", property(lambda hub: not caught_up.done()))
        monkeypatch.setattr(hub, "drained", lambda: caught_up)
        connection.pace()
        connection.pace()
        assert not connection.transport.is_reading()
        if error is None:
            caught_up.set_result(None)
        else:
            caught_up.set_exception(error)
        while not connection.transport.is_reading():
            await asyncio.sleep(0)


async def test_tasks_end_with_their_connection() -> None:
    async with memory_hub() as hub, serving(hub) as (server, address):
        client = await connected(address)
        [connection] = server.connections
        ended = asyncio.Event()

        async def wait_for_ever() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        connection.start(wait_for_ever())
        await asyncio.sleep(0)
        client.transport.close()
        await ended.wait()


async def test_a_peer_that_takes_nothing_is_cut_off_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.serving.tcp.GOODBYE_S", 0.01)
    async with memory_hub() as hub:
        async with serving(hub) as (server, address):
            client = await connected(address)
            [connection] = server.connections
            client.transport.pause_reading()
            while connection.peer_reads:
                connection.write(bytes(1 << 20))
                await asyncio.sleep(0)
        assert not server.connections
        connection.write(b"to nobody")
        client.transport.abort()


class Slow(SlicedConnection):
    """Notes what it is given, and whether others had their turn between."""

    slice_bytes = 8 * SLICE_BYTES_MIN

    def __init__(self, server: TcpServer[Any]) -> None:
        super().__init__(server)
        self.seen: list[bytes] = []
        self.turns = 0
        self.hard = False

    def received(self, data: bytes) -> None:
        self.seen.append(data)
        asyncio.get_running_loop().call_soon(self._turn)
        began_s = time.thread_time()
        while self.hard and time.thread_time() - began_s <= TURN_S:
            pass

    def _turn(self) -> None:
        self.turns += 1


async def test_many_bytes_are_taken_a_slice_at_a_time_and_in_order() -> None:
    async with memory_hub() as hub:
        server = EchoServer(hub)
        made: list[Slow] = []

        def make() -> Slow:
            made.append(Slow(server))
            return made[0]

        listening = await server.listen("127.0.0.1:0", make)
        client = await connect(address_of(listening))
        await until(lambda: made)
        [connection] = made
        sent = os.urandom(20 * SLICE_BYTES_MIN)
        connection.hard = True
        client.transport.write(sent)
        await until(lambda: len(b"".join(connection.seen)) == len(sent))
        assert b"".join(connection.seen) == sent
        assert {len(each) for each in connection.seen} == {SLICE_BYTES_MIN}  # what takes long is taken in small slices
        assert connection.turns >= 19
        assert connection.may_read()
        connection.hard = False
        connection.data_received(sent)
        assert not connection.may_read()  # until the rest is taken
        connection.data_received(b"more")
        assert connection.eof_received()
        assert not connection.says_no_more  # what came before is taken first, in slices, too
        await until(lambda: connection.is_lost)
        assert b"".join(connection.seen) == sent + sent + b"more"
        assert max(map(len, connection.seen)) == Slow.slice_bytes  # what is quick, in larger ones
        client.transport.close()
        await server.stop(listening)
