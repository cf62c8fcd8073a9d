"""A peer that ends its own side of the connection behind its last request gets the answers that it is owed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support import ambrosia_peer, ockam_peer, wallaroo_peer
from support.perper_peer import key, put_listener, served
from support.until import DEADLINE_S, until

from headrace.config import Config, Futoin, ImmortalSection
from headrace.config.address import split_address
from headrace.hub import Hub
from headrace.log.ops import StreamOptions
from headrace.protocols.futoin import server as futoin
from headrace.protocols.ockam import codec
from headrace.protocols.wallaroo import frames
from headrace.protocols.wallaroo.codec import DRAFT
from headrace.serving import http, tcp
from headrace.serving.http_connection import HttpConnection
from headrace.serving.tcp import TcpConnection
from headrace.testing import memory_hub


class Slow:
    """A hub that keeps results back until the end of the peer's side has come."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seen_by: type = TcpConnection) -> None:
        self.ends = 0
        self._kept: list[Callable[[], None]] = []
        eof_received, self._resolve = seen_by.eof_received, Hub._resolve

        def noted(connection: Any) -> Any:
            self.ends += 1
            return eof_received(connection)

        def keep(hub: Hub, *outcomes: Any) -> None:
            self._kept.append(lambda: self._resolve(hub, *outcomes))

        monkeypatch.setattr(seen_by, "eof_received", noted)
        monkeypatch.setattr(Hub, "_resolve", keep)
        self._monkeypatch = monkeypatch

    async def release(self) -> None:
        await until(lambda: self.ends and self._kept)
        self._monkeypatch.setattr(Hub, "_resolve", self._resolve)
        for resolve in self._kept:
            resolve()


@pytest.mark.parametrize("framing", ["legacy", "cbor"])
async def test_ockam(framing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ockam_peer.hub_and_listener() as (_, listener), ockam_peer.peer_of(listener, framing) as peer:
        address = await peer.create()
        hub = Slow(monkeypatch)
        peer.send(address, codec.PushRequest(1, b"x"))
        peer.send(address, codec.PullRequest(2, 0, 10))
        peer.save_index("cl", "orders", 1)
        peer.send("stream_index", codec.GetIndex(codec.INDEX, "cl", "orders", None))
        peer.writer.write_eof()
        await hub.release()
        answers = [await peer.response() for _ in range(3)]
        assert codec.PushConfirm(1, True, 0) in answers
        assert codec.PullResponse(2, [codec.StreamMessage(0, b"x")]) in answers
        assert any(isinstance(answer, codec.Index) and answer.index == 1 for answer in answers)
        assert await peer.at_end()


async def test_ockam_that_waits_for_nothing_is_closed() -> None:
    async with ockam_peer.hub_and_listener() as (_, listener), ockam_peer.peer_of(listener) as peer:
        await peer.push(await peer.create(), b"x")
        peer.writer.write_eof()
        assert await peer.at_end()


async def test_a_peer_that_goes_altogether_is_noticed_though_a_pipeline_keeps_it_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is read from it any more, and nothing is written to it."""
    monkeypatch.setattr(tcp, "LOOK_AFTER_S", 0.01)
    async with ockam_peer.hub_and_listener() as (hub, listener), ockam_peer.peer_of(listener) as peer:
        address = await peer.create()
        await hub.set_options("orders", StreamOptions(ack="processed:pipeline"))
        peer.send(address, codec.PushRequest(1, b"x"))
        peer.writer.write_eof()
        await hub.wait("orders", 0)
        (session,) = hub.sessions.list("ockam")
        await until(lambda: session.details["unconfirmed_pushes"] == 1)
        peer.vanish()
        await until(lambda: not hub.sessions.list("ockam"))


async def test_wallaroo_during_a_rewind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is looked at while a rewind is under way; what came before the end is stored behind it."""
    async with (
        wallaroo_peer.hub_and_address() as (_, address),
        await wallaroo_peer.Peer.connect(address, DRAFT) as peer,
    ):
        await peer.hello()
        await peer.introduce(1, b"a")
        (connection,) = CONNECTIONS
        disk, opening = wallaroo_peer.hold_transactions(monkeypatch), wallaroo_peer.hold_openings(monkeypatch)
        peer.send(frames.Message(1, 1, b"first"))
        await until(lambda: disk.handed_in)
        peer.send(frames.Notify(2, b"b", 0), frames.Message(2, 1, b"second"))
        peer.writer.write_eof()
        await until(lambda: connection.says_no_more and opening.handed_in)
        disk.released.set()
        await peer.acked(1, 1)
        connection.hold()
        opening.released.set()
        await until(lambda: not connection._tasks)
        connection.let_go()
        await peer.acked(2, 1)
        await peer.closed_by_hub()


CONNECTIONS: list[Any] = []


@pytest.fixture(autouse=True)
def _connections(monkeypatch: pytest.MonkeyPatch) -> None:
    CONNECTIONS.clear()
    made = TcpConnection.connection_made

    def noted(connection: TcpConnection, transport: Any) -> None:
        CONNECTIONS.append(connection)
        made(connection, transport)

    monkeypatch.setattr(TcpConnection, "connection_made", noted)


async def test_ignite(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "c")
        await client.request(1001, key(1), key(1), cache="c")
        hub = Slow(monkeypatch)
        put = client.request(1001, key(2), key(2), cache="c")
        got = client.request(1000, key(2), cache="c")
        client._transport.write_eof()
        await hub.release()
        async with asyncio.timeout(DEADLINE_S):
            await put
            assert await got == key(2)
            await client.lost


async def test_fabric() -> None:
    """One answer is owed; a stream ends, as it does when an agent is gone: its work goes to others at once."""
    async with served() as pair:
        client, rpc = await pair.client(), await pair.rpc()
        answer = rpc.start("/perper.Fabric/ListenerAttached", {"stream": "s"})
        rpc.start("/perper.Fabric/Executions", {"agent": "a"})
        connection = await until(lambda: CONNECTIONS[1:] and CONNECTIONS[1])
        await until(lambda: len(connection.calls) == 2)
        rpc._transport.write_eof()
        await until(lambda: len(connection.calls) == 1)
        await put_listener(client, "listener", "s", 0)
        async with asyncio.timeout(DEADLINE_S):
            assert await answer.next() is not None
            await rpc.lost


BODY = b'{"f":"futoin.evt.gen:1.0:addEvent","p":{"type":"T","data":1}}'
ADD_EVENT = b"POST /futoin/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


@asynccontextmanager
async def http_connection() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async with memory_hub(Config(futoin=Futoin(insecure=True))) as hub:
        mounted, listener = await futoin.start(hub), await http.serve(hub, "127.0.0.1:0")
        assert mounted is not None
        reader, writer = await asyncio.open_connection(*split_address(listener.address))
        try:
            yield reader, writer
        finally:
            writer.close()
            await listener.close()
            await mounted.close()


async def rest(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(DEADLINE_S):
        return await reader.read()


async def test_http(monkeypatch: pytest.MonkeyPatch) -> None:
    async with http_connection() as (reader, writer):
        hub = Slow(monkeypatch, HttpConnection)
        writer.write(ADD_EVENT)
        writer.write_eof()
        await hub.release()
        answer = await rest(reader)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b'"1"' in answer


async def test_http_with_requests_one_behind_the_other() -> None:
    async with http_connection() as (reader, writer):
        writer.write(3 * ADD_EVENT)
        writer.write_eof()
        answers = await rest(reader)
        assert answers.count(b"HTTP/1.1 200") == 3
        assert b'"3"' in answers


async def test_http_with_half_a_request_is_owed_nothing() -> None:
    async with http_connection() as (reader, writer):
        writer.write(ADD_EVENT[:-1])
        writer.write_eof()
        assert b"200" not in await rest(reader)


async def test_ambrosia_loses_the_link_and_keeps_what_was_said() -> None:
    config = ambrosia_peer.settings(a=ImmortalSection(), b=ImmortalSection())
    async with memory_hub(config) as hub, ambrosia_peer.coordinator(hub) as ports:
        a, b = [await ambrosia_peer.RawBinding.to(ports, name) for name in "ab"]
        for each in (a, b):
            await each.first_start()
        a.say(*[ambrosia_peer.fork(b"%d" % number, b"b") for number in range(50)])
        a.to_hub.write_eof()
        assert len(await b.calls(50)) == 50
        await until(lambda: ports.coordinator.instances["a"].primary is None)
        for each in (a, b):
            await each.close()
