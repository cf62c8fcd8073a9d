"""Perper agents: one fills a stream, others follow it; one asks for executions, workers reserve and finish them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import cast

from headrace.protocols.perper.errors import PeerError
from headrace.protocols.perper.fabric.client import ClientCall, FabricClient, RpcError
from headrace.protocols.perper.ignite.binary import encode_long, encode_string
from headrace.protocols.perper.ignite.client import IgniteClient
from headrace.protocols.perper.ignite.configuration import Configuration
from headrace.protocols.perper.records import Execution, write_execution
from headrace.testing.world.actors.actor import LOST, Actor, Watcher, soon
from headrace.testing.world.actors.caches import (
    CREATE_CONFIGURED,
    GET,
    NULL,
    PUT,
    PUT_IF_ABSENT,
    REPLACE_IF_EQUALS,
    IgniteActor,
)
from headrace.testing.world.book import Book, Register
from headrace.testing.world.hub import HubProcess
from headrace.testing.world.network import Transport

EXECUTIONS = "executions"
AGENT = "agent"
ITEMS = "/perper.Fabric/StreamItems"
RESERVED = "/perper.Fabric/ReservedExecutions"
FINISHED = "/perper.Fabric/ExecutionFinished"
LEAVES = 0.1
"""How often a worker goes away in the middle of an execution."""
CHANGED = 0.3
"""How often an execution is written again before it is over; nobody is told of it a second time."""
IS_STREAM = 200
"""The option of a cache that makes it a stream."""


class ItemsAgent(IgniteActor):
    """Puts items with keys that count up into a stream; what was not answered is put again under its key."""

    kind = "items"

    def __init__(self, number: int, hub: HubProcess, book: Book, count: int) -> None:
        super().__init__(number, hub, book)
        self.cache = f"{self.name}-stream"
        self.count = count
        self.next = 0
        self._under_way: Register | None = None

    def has_ended(self) -> bool:
        return self.next >= self.count

    def value(self, key: int) -> bytes:
        return encode_string(f"{self.name}:{key}")

    async def prepare(self, client: IgniteClient) -> None:
        await soon(client.request(CREATE_CONFIGURED, Configuration({0: self.cache, IS_STREAM: []})))

    async def step(self, client: IgniteClient) -> None:
        key, value = encode_long(self.next), self.value(self.next)
        if self._under_way is None:
            self._under_way = Register(self.cache, self.next, {NULL, value})
            self.book.registers.append(self._under_way)
        await soon(client.request(PUT_IF_ABSENT, key, value, cache=self.cache))
        self._under_way.may_hold.discard(NULL)
        self._under_way = None
        self.next += 1


@contextlib.asynccontextmanager
async def connected(actor: Actor) -> AsyncIterator[tuple[FabricClient, IgniteClient]]:
    """With fabric and caches. Whoever fails in the middle leaves both: what it had reserved is free for others."""
    fabric = await soon(FabricClient.connect("127.0.0.1", actor.port("fabric")))
    try:
        client = await soon(IgniteClient.connect("127.0.0.1", actor.port("ignite")))
        try:
            yield fabric, client
        finally:
            client._transport.abort()
    finally:
        fabric._transport.abort()


class ItemsListener(Watcher):
    """Follows such a stream: keys come one after the other, none is left out, and their items are there."""

    kind = "listener"

    def __init__(self, number: int, hub: HubProcess, book: Book, agent: ItemsAgent) -> None:
        super().__init__(number, hub, book)
        self.agent = agent
        self.next = 0

    async def work(self) -> None:
        with contextlib.suppress(PeerError, RpcError, *LOST):
            async with connected(self) as (fabric, client):
                call = fabric.start(ITEMS, {"stream": self.agent.cache, "startKey": self.next, "stride": 1})
                async for item in call:
                    await self._take(item.key, client)

    async def _take(self, key: int, client: IgniteClient) -> None:
        if key != self.next:
            self.book.wrong.append(f"{self.name} waits for item {self.next} and was given {key}")
        self.next = key + 1
        found = await soon(client.request(GET, encode_long(key), cache=self.agent.cache))
        if found != self.agent.value(key):
            self.book.wrong.append(f"{self.name} was told of item {key}, and it is {found!r}")


class Caller(IgniteActor):
    """Asks for executions, and waits until each is finished."""

    kind = "caller"
    cache = EXECUTIONS

    def __init__(self, number: int, hub: HubProcess, book: Book, count: int) -> None:
        super().__init__(number, hub, book)
        self.count = count
        self.next = 0
        self.finished: set[str] = set()
        """Those that a worker wants to finish."""
        self.over: set[str] = set()
        """Those of which a worker was told that they are."""
        self.stored = ""
        """The last that was stored for sure."""
        self.count_sent = 0

    def has_ended(self) -> bool:
        return self.next >= self.count

    @property
    def count_stored(self) -> int:
        return self.next + (self.stored == f"{self.name}/{self.next}")

    async def step(self, client: IgniteClient) -> None:
        name = f"{self.name}/{self.next}"
        self.count_sent = self.next + 1
        asked = write_execution(Execution(AGENT, "", "delegate", False))
        await soon(client.request(PUT_IF_ABSENT, encode_string(name), asked, cache=EXECUTIONS))
        self.stored = name
        if self.random.random() < CHANGED:
            key = encode_string(name)
            await soon(client.request(REPLACE_IF_EQUALS, key, asked, asked, cache=EXECUTIONS))
        with contextlib.suppress(RpcError):
            async with connected(self) as (fabric, _):
                await soon(fabric.call(FINISHED, {"execution": name}))
                if name not in self.finished:
                    self.book.wrong.append(f"{self.name} was told that {name} is finished, and nobody has finished it")
                self.next += 1


class AgentWorker(Watcher):
    """Reserves executions and finishes them. While it is connected, nobody else is given what it has."""

    kind = "worker"
    holders: dict[str, tuple[AgentWorker, FabricClient]]
    """Who was given an execution last, of all workers of a world."""

    def __init__(self, number: int, hub: HubProcess, book: Book, caller: Caller, first: AgentWorker | None) -> None:
        super().__init__(number, hub, book)
        self.caller = caller
        self.holders = {} if first is None else first.holders

    async def work(self) -> None:
        with contextlib.suppress(PeerError, RpcError, *LOST):
            async with connected(self) as (fabric, client):
                asked = {"reserveNext": 1, "workGroup": "group", "filter": {"agent": AGENT}}
                call = fabric.start(RESERVED, asked, end=False)
                async for execution in call:
                    if not execution.startOfStream and not execution.cancelled:
                        self._given(execution.execution, fabric)
                        await self._finish(execution.execution, client, call)

    def _given(self, name: str, fabric: FabricClient) -> None:
        if not is_connected(self.hub, fabric):  # a hub that was replaced, and has not heard of it yet
            return
        holder = self.holders.get(name)
        if holder is not None and holder[0] is not self and is_connected(self.hub, holder[1]):
            self.book.wrong.append(f"{name} was given to {self.name} while {holder[0].name} had it")
        self.holders[name] = self, fabric
        self.world.tell(self.name, f"given {name}")

    async def _finish(self, name: str, client: IgniteClient, call: ClientCall) -> None:
        await asyncio.sleep(self.random.uniform(0, 1.5))
        if self.random.random() < LEAVES:
            self.world.tell(self.name, f"leaves {name} to others")
            raise EOFError("a worker that has left")
        finished = write_execution(Execution(AGENT, "", "delegate", True))
        self.caller.finished.add(name)
        await soon(client.request(PUT, encode_string(name), finished, cache=EXECUTIONS))
        self.caller.over.add(name)
        self.holders.pop(name, None)
        self.world.tell(self.name, f"finished {name}")
        call.send({"reserveNext": 1})


def is_connected(hub: HubProcess, client: FabricClient) -> bool:
    """With the hub that serves now, and on both sides: one that has not heard of an end yet is right to wait."""
    here = cast(Transport, client._transport)
    is_open = not any(end.is_closing() or end.loop.machine.is_dead for end in (here, here.peer))
    return is_open and here.peer.loop.machine is hub.machine


def agents(hub: HubProcess, book: Book, count: int) -> list[Actor]:
    """A stream with listeners, and a caller with workers."""
    chance = hub.world.random
    stream, caller = ItemsAgent(0, hub, book, count), Caller(0, hub, book, max(2, count // 10))
    workers: list[AgentWorker] = []
    for number in range(chance.randint(1, 3)):
        workers.append(AgentWorker(number, hub, book, caller, workers[0] if workers else None))
    listeners = [ItemsListener(number, hub, book, stream) for number in range(chance.randint(1, 2))]
    return [stream, *listeners, caller, *workers]
