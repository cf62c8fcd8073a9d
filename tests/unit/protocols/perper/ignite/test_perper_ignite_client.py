"""The client of Ignite's thin protocol, where its server is slow."""

from __future__ import annotations

import asyncio

import pytest

from headrace.protocols.perper.ignite.client import IgniteClient


async def test_a_client_that_waits_no_longer_for_the_greeting_hangs_up() -> None:
    hung_up = asyncio.Event()

    async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1000):
            pass
        hung_up.set()
        writer.close()

    async with await asyncio.start_server(says_nothing, "127.0.0.1", 0) as server:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(IgniteClient.connect(*server.sockets[0].getsockname()), 0.05)
        await asyncio.wait_for(hung_up.wait(), 60)
