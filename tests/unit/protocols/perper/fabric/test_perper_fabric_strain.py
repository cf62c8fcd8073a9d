"""The gRPC listener under strain: peers that wait in crowds, do not read, or lose their stream."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from support.perper_peer import key, new_stream, put_execution, served
from unit.protocols.perper.fabric.test_perper_fabric_server import ITEMS, RESERVED, keys, take

from headrace.protocols.perper.fabric import http2
from headrace.protocols.perper.fabric.client import RpcError
from headrace.protocols.perper.fabric.server import Connection
from headrace.security import EVERYTHING, Principal


async def test_a_stream_cache_that_another_protocol_deletes() -> None:
    async with served() as pair:
        client, rpc = await pair.client(), await pair.rpc()
        await new_stream(client, "s")
        await client.request(1002, key(5), key("x"), cache="s")
        call = rpc.start(ITEMS, {"stream": "s", "startKey": 0})
        assert await keys(call, 1) == [5]
        await pair.hub.delete_stream("s")
        with pytest.raises(RpcError, match="was destroyed") as ended:
            await asyncio.wait_for(call.next(), 60)
        assert ended.value.status == http2.ABORTED
        await new_stream(client, "s")  # it can be made again
        assert await client.request(1002, key(5), key("new"), cache="s") is True
        assert await keys(rpc.start(ITEMS, {"stream": "s", "startKey": 0}), 1) == [5]


async def test_many_who_wait_for_an_execution_that_finishes() -> None:
    async with served() as pair:
        client, worker, rpc = await pair.client(), await pair.rpc(), await pair.rpc()
        await put_execution(client, "one")
        held = worker.start(RESERVED, {"filter": {"agent": "a"}, "reserveNext": 1}, end=False)
        assert await take(held, 2) == ["|", "+one"]
        request = {"execution": "one"}
        calls = [rpc.start("/perper.Fabric/ReserveExecution", request) for _ in range(500)]
        await asyncio.gather(*[call.headers for call in calls])
        await put_execution(client, "one", finished=True)
        ends = await asyncio.wait_for(asyncio.gather(*[call.next() for call in calls], return_exceptions=True), 60)
        assert {end.status for end in ends if isinstance(end, RpcError)} == {http2.CANCELLED}
        assert not any(info.details["calls"] for info in pair.hub.sessions.list("fabric")[1:])


async def test_who_does_not_read_is_not_read_from(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Connection] = []
    register = Connection.connection_made
    monkeypatch.setattr(Connection, "connection_made", lambda self, by: (made.append(self), register(self, by)))
    async with served() as pair:
        _reader, writer = await asyncio.open_connection(*pair.grpc, limit=1)
        ping = bytes((0, 0, 8, 6, 0, 0, 0, 0, 0)) + bytes(8)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
        with contextlib.suppress(TimeoutError):
            for _ in range(100):
                writer.write(ping * 20_000)
                await asyncio.wait_for(writer.drain(), 1)
        assert made[0].transport.get_write_buffer_size() < 3_000_000
        writer.transport.abort()


async def test_a_hub_that_stops_while_a_password_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by seed 631631 of the world."""
    checking: list[asyncio.Task[Any] | None] = []
    begun, stopped = asyncio.Event(), asyncio.Event()
    goodbye = http2.GrpcConnection.goodbye

    async def admit(*_: object) -> Principal:
        checking.append(asyncio.current_task())
        begun.set()
        await stopped.wait()
        return EVERYTHING

    def say_goodbye(connection: http2.GrpcConnection) -> None:
        goodbye(connection)
        stopped.set()

    monkeypatch.setattr(http2.GrpcConnection, "goodbye", say_goodbye)
    async with served() as pair:
        monkeypatch.setattr(pair.hub.admission, "admit", admit)
        rpc = await pair.rpc()
        call = rpc.start(RESERVED, {"filter": {"agent": "a"}}, metadata=[("authorization", "Basic YTpi")])
        await begun.wait()
    with pytest.raises(RpcError):
        await call.next()
    (task,) = checking
    assert task is not None
    await task
