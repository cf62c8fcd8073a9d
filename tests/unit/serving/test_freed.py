"""A connection that is gone leaves nothing that only the garbage collector can free: a crowd that comes and goes would
make it stop everybody for a look at everything, again and again."""

from __future__ import annotations

import asyncio
import gc
import importlib
import socket
import weakref
from asyncio import Future
from collections.abc import Iterator
from typing import Any

import pytest
from h2.connection import H2Connection
from support.collector import count, freed_without_collector, no_collector
from support.until import until
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from headrace.config import Config, Log
from headrace.config.address import split_address
from headrace.errors import ConditionFailed, LimitExceeded, UnknownStream
from headrace.hub import Hub
from headrace.hub.hooks import Read
from headrace.log.batch import Batch
from headrace.log.ops import Append, Delete, Put, SaveCursor, SetProducer
from headrace.protocols.futoin.connection import Connection
from headrace.protocols.futoin.server import start as serve_futoin
from headrace.protocols.futoin.settings import Futoin
from headrace.protocols.perper.fabric.client import FabricClient
from headrace.protocols.perper.fabric.server import ServerCall
from headrace.protocols.perper.fabric.server import serve as serve_fabric
from headrace.protocols.perper.ignite.client import IgniteClient
from headrace.protocols.perper.ignite.operations import Operations
from headrace.protocols.perper.ignite.server import serve as serve_ignite
from headrace.serving.http import serve as serve_http
from headrace.serving.http_connection import HttpConnection, WebSocketConnection
from headrace.serving.runtime import LISTENERS
from headrace.testing import memory_hub

HALVES = {
    "wallaroo": b"\0\0\0",
    "ockam": b"\1",
    "ignite": b"\1\0",
    "fabric": b"PRI * HTTP/2.0",
    "http": b"GET / HTTP/1.1\r\n",
}


def test_every_listener_of_ours_is_tried() -> None:
    assert {*HALVES, "flight"} == set(LISTENERS)  # Flight's connections are gRPC's


@pytest.mark.parametrize("name", HALVES)
async def test_a_connection_that_is_gone_is_freed_at_once(name: str) -> None:
    module, _, function = LISTENERS[name].partition(":")
    async with memory_hub() as hub:
        listener = await getattr(importlib.import_module(module), function)(hub, "127.0.0.1:0")
        address = split_address(listener.address)
        async with freed_without_collector(H2Connection):
            with socket.create_connection(address) as peer:
                peer.sendall(HALVES[name])
                await until(lambda: len(hub.intake) == 1)
                (arrival,) = hub.intake._arrivals
                connection = weakref.ref(arrival.end.__self__)  # type: ignore[attr-defined]
                transport = weakref.ref(connection().transport)  # type: ignore[union-attr]
                del arrival
                await asyncio.sleep(0)
            await until(lambda: len(hub.intake) == 0)
            await until(lambda: connection() is None and transport() is None)
        await listener.close()


async def test_a_websocket_that_is_gone_is_freed_with_the_connection_that_it_was() -> None:
    ask = (
        b"GET /futoin/s HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    async with memory_hub(Config(futoin=Futoin(insecure=True))) as hub:
        await serve_futoin(hub)
        listener = await serve_http(hub, "127.0.0.1:0")
        async with freed_without_collector(HttpConnection, WebSocketConnection, Connection):
            reader, writer = await asyncio.open_connection(*split_address(listener.address))
            writer.write(ask)
            assert (await reader.readline()).startswith(b"HTTP/1.1 101")
            assert count(WebSocketConnection) > 0
            writer.transport.abort()
            await until(lambda: len(hub.intake) == 0)
        await listener.close()


async def test_requests_that_wait_behind_others_are_freed_with_their_connection() -> None:
    async with memory_hub() as hub:
        listener = await serve_http(hub, "127.0.0.1:0")
        async with freed_without_collector(RequestResponseCycle) as more:
            _, writer = await asyncio.open_connection(*split_address(listener.address))
            writer.write(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n" * 50)
            await until(lambda: more() > 1)
            writer.transport.abort()
            await until(lambda: len(hub.intake) == 0)
        await listener.close()


async def test_a_client_of_ignite_that_is_gone_leaves_nothing_to_collect() -> None:
    async with memory_hub() as hub:
        listener = await serve_ignite(hub, "127.0.0.1:0")
        async with freed_without_collector(Operations) as more:
            client = await IgniteClient.connect(*split_address(listener.address))
            assert more() == 1
            await client.close()
        await listener.close()


async def test_a_scan_that_is_given_up_leaves_nothing_to_collect() -> None:
    """What it has read may be much."""
    async with memory_hub() as hub:
        await hub.create_stream("s")
        await hub.append("s", Batch.one(b"x"))
        async with freed_without_collector(Read):
            scan = hub.scan("s", 0, 1)
            next(scan)
            scan.close()  # type: ignore[attr-defined]
            del scan


LARGE = bytes(100_000)


def begun_again(hub: Hub, number: int) -> Iterator[Future[Any]]:
    """What hubs do all the time, of each kind one; three of them are refused."""
    append = Append("s", Batch.one(LARGE))
    yield hub.append("s", Batch.one(LARGE), producer="p", sequence=number)
    yield hub.transact([append, append, SetProducer("s", "q", number), SaveCursor("c", "s", number)])
    yield hub.transact([Put("t", b"k", LARGE), Delete("t", b"k"), append])
    yield hub.append("none", Batch.one(LARGE))
    yield hub.append("s", Batch.one(LARGE * 2))
    yield hub.transact([append, Put("t", b"none", b"", b"another")])


async def outcomes(hub: Hub, number: int) -> list[type[BaseException] | None]:
    results = await asyncio.gather(*begun_again(hub, number), return_exceptions=True)
    return [type(each) if isinstance(each, BaseException) else None for each in results]


async def test_a_transaction_leaves_nothing_to_collect() -> None:
    """A cycle that holds a commit holds the bytes of all its records."""
    async with memory_hub(Config(log=Log(record_bytes_max=len(LARGE) + 100))) as hub:
        await hub.create_stream("s")
        await hub.create_table("t")
        assert await outcomes(hub, 0) == [None, None, None, UnknownStream, LimitExceeded, ConditionFailed]
        with no_collector():
            for number in range(1, 20):
                await outcomes(hub, number)
            assert gc.collect() < 20


async def test_a_call_of_the_fabric_leaves_nothing_to_collect() -> None:
    async with memory_hub() as hub:
        listener = await serve_fabric(hub, "127.0.0.1:0")
        client = await FabricClient.connect(*split_address(listener.address))
        async with freed_without_collector(ServerCall):
            for _ in range(10):
                await client.call("/perper.Fabric/AllExecutions", {"agent": "a"})
        await client.close()
        await listener.close()
