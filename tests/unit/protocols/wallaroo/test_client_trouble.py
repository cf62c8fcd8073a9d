"""The asyncio connector and hubs that say nothing, hang up at once, or send it where nobody is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from support.until import until
from support.wallaroo_peer import hub_and_address, records, rewind

from headrace.log.ops import SetProducer
from headrace.protocols.wallaroo import client as client_module
from headrace.protocols.wallaroo import frames
from headrace.protocols.wallaroo.client import Connector, ConnectorFailed
from headrace.protocols.wallaroo.codec import V3
from headrace.protocols.wallaroo.worker import PRODUCER


def connector(address: str, attempts_max: int) -> Connector:
    return Connector(address, attempts_max=attempts_max, pause_s=lambda attempt: 0.001)


@asynccontextmanager
async def hub_that_says(*said: frames.Frame) -> AsyncIterator[str]:
    """The address of something that takes a HELLO, answers with these frames and hangs up; or is silent for good."""

    talking: set[asyncio.Task[None] | None] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talking.add(asyncio.current_task())
        try:
            with suppress(ConnectionError):
                await reader.read(1)
                writer.write(b"".join(V3.encode(frame) for frame in said))
                if not said:
                    await reader.read()
        finally:
            writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"
        await asyncio.sleep(0)  # who has come last has begun to talk
        for task in filter(None, talking):
            task.cancel()
        await asyncio.gather(*filter(None, talking), return_exceptions=True)


async def test_a_hub_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "CONNECT_S", 0.05)
    async with hub_that_says() as address, connector(address, attempts_max=2) as client:
        async with asyncio.timeout(60):
            with pytest.raises(ConnectorFailed, match="gave up after 2 attempts.*no answer to HELLO"):
                await client.stream("s")
        assert client.connections == 2


async def test_connections_that_bring_nothing_are_counted() -> None:
    async with hub_that_says(frames.Ok(10)) as address, connector(address, attempts_max=3) as client:
        with pytest.raises(ConnectorFailed, match="gave up after 3 attempts"):
            await client.stream("s")
        assert client.connections == 3


async def test_a_connection_that_lasted_lets_attempts_be_counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream on which nothing is sent for days, behind a network that fails once a day."""
    monkeypatch.setattr(client_module, "STEADY_S", 0, raising=False)  # every connection has lasted long enough
    async with hub_that_says(frames.Ok(10)) as address, connector(address, attempts_max=3) as client:
        opening = asyncio.create_task(client.stream("s"))
        await until(lambda: client.connections > 5 or opening.done())
        assert client._failure is None
        opening.cancel()


async def test_the_configured_address_is_tried_when_the_one_of_a_restart_is_not_there() -> None:
    async with (
        hub_and_address(restart_address="127.0.0.1:1") as (hub, address),
        connector(address, attempts_max=3) as client,
    ):
        stream = await client.stream("s")
        await stream.send(b"one")
        await stream.flush()
        await rewind(hub, "s", 1)
        await until(lambda: client.address == "127.0.0.1:1" or client.connections == 2)
        await stream.send(b"two")
        await stream.flush()
        assert client.address == address
        assert client.connections == 2
        assert [row["payload"] for row in await records(hub, "s")] == [b"one", b"two"]


async def test_a_restart_may_name_another_address_that_is_there() -> None:
    async with hub_and_address() as (second, elsewhere), hub_and_address(restart_address=elsewhere) as (first, address):
        async with connector(address, attempts_max=3) as client:
            stream = await client.stream("s")
            await stream.send(b"one")
            await stream.flush()
            await second.create_stream("s")
            await second.transact([SetProducer("s", PRODUCER, 1)])  # as if it had got a copy
            await rewind(first, "s", 1)
            await until(lambda: client.connections == 2)
            await stream.send(b"two")
            await stream.flush()
            assert client.address == elsewhere
        assert [row["payload"] for row in await records(second, "s")] == [b"two"]
