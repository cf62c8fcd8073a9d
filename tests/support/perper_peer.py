"""A hub in memory with both listeners, and our own clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from headrace.config import Config
from headrace.config.address import split_address
from headrace.hub import Hub
from headrace.protocols.perper import state
from headrace.protocols.perper.fabric.client import FabricClient
from headrace.protocols.perper.fabric.server import serve as serve_fabric
from headrace.protocols.perper.ignite.binary import encode_long, encode_string
from headrace.protocols.perper.ignite.client import IgniteClient
from headrace.protocols.perper.ignite.configuration import ANSWER, EXPIRY_POLICY, PROPERTIES, Configuration
from headrace.protocols.perper.ignite.reader import Reader
from headrace.protocols.perper.ignite.server import serve as serve_ignite
from headrace.protocols.perper.records import Execution, StreamListener, write_execution, write_listener
from headrace.testing import memory_hub


class Served:
    """What a test needs."""

    def __init__(self, hub: Hub, ignite: str, fabric: str) -> None:
        self.hub = hub
        self.ignite = split_address(ignite)
        self.grpc = split_address(fabric)
        self._open: list[Any] = []

    @property
    def fabric(self) -> state.Fabric:
        loaded: asyncio.Future[state.Fabric] = self.hub.shared[state.Fabric]
        return loaded.result()

    async def client(self, **options: Any) -> IgniteClient:
        client = await IgniteClient.connect(*self.ignite, **options)
        self._open.append(client)
        return client

    async def rpc(self, **options: Any) -> FabricClient:
        client = await FabricClient.connect(*self.grpc, **options)
        self._open.append(client)
        return client

    async def close(self) -> None:
        for client in self._open:
            await client.close()


@asynccontextmanager
async def served(config: Config | None = None, disk: Any = None, clock: Any = None) -> AsyncIterator[Served]:
    async with memory_hub(config, disk=disk, clock=clock) as hub:
        # Each listener has the hub under its own name, as in a process; what they know they share all the same.
        ignite = await serve_ignite(hub.used_by("ignite"), "127.0.0.1:0")
        fabric = await serve_fabric(hub.used_by("fabric"), "127.0.0.1:0")
        pair = Served(hub, ignite.address, fabric.address)
        try:
            yield pair
        finally:
            await pair.close()
            await fabric.close()
            await ignite.close()


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def key(value: int | str) -> bytes:
    return encode_long(value) if isinstance(value, int) else encode_string(value)


async def new_stream(client: IgniteClient, name: str) -> None:
    await client.request(1053, Configuration({0: name, 200: []}))


async def put_execution(
    client: IgniteClient, name: str, agent: str = "a", delegate: str = "d", finished: bool = False
) -> None:
    value = write_execution(Execution(agent, "i", delegate, finished))
    await client.request(1001, key(name), value, cache="executions")


async def put_listener(client: IgniteClient, name: str, stream: str, position: int) -> None:
    await client.request(1001, key(name), write_listener(StreamListener(stream, position)), cache="stream-listeners")


def read_answer(reader: Reader, version: tuple[int, int, int]) -> Configuration:
    """A cache's configuration as operation 1055 answers it."""
    reader.int()
    properties = {code: PROPERTIES[code].read(reader) for code, _ in ANSWER}
    if version >= (1, 6, 0):
        properties[EXPIRY_POLICY] = PROPERTIES[EXPIRY_POLICY].read(reader)
    return Configuration(properties)
