"""One honest client of each protocol: does a small thing again and again, and notes how long each took."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import httpx
from support import ockam_peer, wallaroo_peer
from support.ambrosia_peer import RawBinding, fork

from headrace.client import AsyncClient
from headrace.config.address import split_address
from headrace.protocols.futoin.client import Client as FutoinClient
from headrace.protocols.ockam import codec as ockam
from headrace.protocols.ockam.routing import LegacyFraming
from headrace.protocols.perper.fabric.client import FabricClient
from headrace.protocols.perper.ignite.binary import encode_long, encode_string
from headrace.protocols.perper.ignite.client import IgniteClient
from headrace.protocols.wallaroo import frames

PAUSE_S = 0.005
"""Between two: a client that measures is no load by itself."""
STEP_S = 60.0
"""An honest client that gets no answer in this time has been stopped."""

Step = Callable[[], Awaitable[object]]
Addresses = dict[str, str]


async def wallaroo(stack: AsyncExitStack, addresses: Addresses) -> Step:
    peer = await stack.enter_async_context(await wallaroo_peer.Peer.connect(addresses["wallaroo"]))
    await peer.hello(instance=b"honest")
    await peer.introduce(1, b"wallaroo")
    ids = itertools.count(1)

    async def step() -> None:
        number = next(ids)
        peer.send(frames.Message(1, number, b"x" * 100))
        await peer.acked(1, number)

    return step


async def ockam_push(stack: AsyncExitStack, addresses: Addresses) -> Step:
    reader, writer = await asyncio.open_connection(*split_address(addresses["ockam"]))
    peer = ockam_peer.Peer(reader, writer, LegacyFraming())
    stack.push_async_callback(peer.close)
    address = await peer.create("honest.ockam")
    ids = itertools.count(1)

    async def step() -> None:
        await peer.ask(address, ockam.PushRequest(next(ids), b"x" * 100))

    return step


async def ignite(stack: AsyncExitStack, addresses: Addresses) -> Step:
    client = await IgniteClient.connect(*split_address(addresses["ignite"]))
    stack.push_async_callback(client.close)
    await client.request(1052, "honest", cache=0)
    keys = itertools.count()

    async def step() -> None:
        await client.request(1001, encode_long(next(keys) % 1000), encode_string("x" * 100), cache="honest")

    return step


async def fabric(stack: AsyncExitStack, addresses: Addresses) -> Step:
    client = await FabricClient.connect(*split_address(addresses["fabric"]))
    stack.push_async_callback(client.close)
    return lambda: client.call("/perper.Fabric/AllExecutions", {"agent": "honest"})


async def futoin(stack: AsyncExitStack, addresses: Addresses) -> Step:
    client = await stack.enter_async_context(
        await FutoinClient.connect(f"ws://{addresses['http']}/futoin/honest.events")
    )
    return lambda: client.add("EVT", "x" * 100)


async def ambrosia(stack: AsyncExitStack, addresses: Addresses) -> Step:
    binding = await RawBinding.connect(addresses["ambrosia.honest.receive"], addresses["ambrosia.honest.send"])
    stack.push_async_callback(binding.close)
    await binding.first_start()

    async def step() -> None:
        binding.say(fork(b"x" * 100))
        await binding.calls(1)

    return step


async def http(stack: AsyncExitStack, addresses: Addresses) -> Step:
    client = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://{addresses['http']}", timeout=STEP_S))

    async def step() -> None:
        answer = await client.post("/api/v1/stream.list", json={"pattern": "honest*"})
        assert answer.status_code == 200, answer.text

    return step


async def flight(stack: AsyncExitStack, addresses: Addresses) -> Step:
    client = await stack.enter_async_context(AsyncClient(addresses["flight"]))
    await client.create("honest.flight")
    return lambda: client.append("honest.flight", b"x" * 100)


CLIENTS: dict[str, Callable[[AsyncExitStack, Addresses], Awaitable[Step]]] = {
    "wallaroo": wallaroo,
    "ockam": ockam_push,
    "ignite": ignite,
    "fabric": fabric,
    "futoin": futoin,
    "ambrosia": ambrosia,
    "http": http,
    "flight": flight,
}


class Honest:
    """All of them at work. `times_s` holds what each step took since the last `take`."""

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._times_s: dict[str, list[float]] = {name: [] for name in CLIENTS}

    async def __aenter__(self) -> Honest:
        for name, connect in CLIENTS.items():
            step = await connect(self._stack, self._addresses)
            self._tasks.append(asyncio.create_task(self._work(name, step)))
        return self

    async def _work(self, name: str, step: Step) -> None:
        while True:
            began_s = time.perf_counter()
            async with asyncio.timeout(STEP_S):
                await step()
            self._times_s[name].append(time.perf_counter() - began_s)
            await asyncio.sleep(PAUSE_S)

    def take(self) -> dict[str, list[float]]:
        """The times since the last call."""
        taken, self._times_s = self._times_s, {name: [] for name in CLIENTS}
        # `_work` looks the lists up each time, so nothing is lost between the two.
        return taken

    def check(self) -> None:
        """Raise what went wrong for one of them."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()
