"""Two immortals exchange counted calls in one process while bindings are dropped and the power is cut at random.

A power cut leaves what was synced and an arbitrary part of what was not, so this is harder on the hub than kill -9.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack

import pytest
from support.ambrosia_peer import coordinator

from headrace.config import Ambrosia, Config, ImmortalSection
from headrace.protocols.ambrosia.client import Host, Immortal, call, fork, proxy_of
from headrace.protocols.ambrosia.server import ImmortalPorts
from headrace.testing import MemoryDisk, memory_hub

CALLS = 4_000
WINDOW = 60
FAULTS_MAX = 60
CONFIG = Config(
    ambrosia=Ambrosia(
        immortals={
            "ping": ImmortalSection(checkpoint_log_bytes=3_000, checkpoints_kept=1),
            "pong": ImmortalSection(checkpoint_log_bytes=5_000, delivery="counted"),
        }
    )
)


class Counting(Immortal):
    last: int = 0
    total: int = 0
    wrong: list[str]

    def __init__(self) -> None:
        self.wrong = []

    def count(self, number: int) -> None:
        if number != self.last + 1:
            self.wrong.append(f"{number} after {self.last}")
        self.last = number
        self.total += number


class Pong(Counting):
    @fork
    def ping(self, number: int) -> None:
        self.count(number)
        self.peer(proxy_of(Ping), "ping").pong(number)

    @call
    def double(self, number: int) -> int:
        return number * 2


class Ping(Counting):
    doubled: int = 0

    def first_start(self) -> None:
        for number in range(1, WINDOW + 1):
            self.peer(proxy_of(Pong), "pong").ping(number)

    @fork
    async def pong(self, number: int) -> None:
        self.count(number)
        pong = self.peer(proxy_of(Pong), "pong")
        if number + WINDOW <= CALLS:
            pong.ping(number + WINDOW)
        if number % 10 == 0:  # answers are awaited across checkpoints and crashes too
            answer = await pong.double(number)
            self.doubled += answer  # not in one line: `x += await …` reads x before it waits


class World:
    """A hub that comes back with whatever its disk has, and two services that come back with nothing."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = MemoryDisk()
        self.ports: ImmortalPorts | None = None
        self.hosts: dict[str, Host] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str) -> None:
        def addresses() -> tuple[str, str]:
            if self.ports is None:
                raise OSError("no hub")
            found = self.ports.addresses
            return found[f"ambrosia.{name}.receive"], found[f"ambrosia.{name}.send"]

        host = Host({"ping": Ping, "pong": Pong}[name], name=name, receive="", send="", addresses=addresses)
        self.hosts[name] = host
        self.tasks[name] = asyncio.ensure_future(host.run())

    async def drop(self, name: str) -> None:
        self.tasks[name].cancel()
        await asyncio.gather(self.tasks[name], return_exceptions=True)

    def finished(self) -> bool:
        ping, pong = (self.hosts[name].engine.immortal if self._up(name) else None for name in ("ping", "pong"))
        return (
            isinstance(ping, Ping) and isinstance(pong, Pong)
            and (ping.last, pong.last) == (CALLS, CALLS) and ping.doubled == sum(range(10, CALLS + 1, 10)) * 2
        )  # fmt: skip

    def _up(self, name: str) -> bool:
        return hasattr(self.hosts[name], "engine") and self.hosts[name].engine.primary

    async def life(self, faults_left: int) -> int:
        """One life of the hub; returns how many faults are left."""
        async with AsyncExitStack() as stack:
            hub = await stack.enter_async_context(memory_hub(CONFIG, disk=self.disk))
            self.ports = await stack.enter_async_context(coordinator(hub))
            while not self.finished():
                if not faults_left:
                    await asyncio.sleep(0.005)
                    continue
                await asyncio.sleep(self.chance.uniform(0, 0.08))
                faults_left -= 1
                if self.chance.random() < 0.4:
                    self.disk = self.disk.after_power_cut(self.chance)
                    break
                name = self.chance.choice(["ping", "pong"])
                await self.drop(name)
                self.start(name)
            self.ports = None
        return faults_left


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_no_call_is_lost_or_repeated_when_the_power_fails(seed: int) -> None:
    world = World(seed)
    for name in ("ping", "pong"):
        world.start(name)
    try:
        async with asyncio.timeout(240):
            faults_left = FAULTS_MAX
            while not world.finished():
                faults_left = await world.life(faults_left)
            states = [world.hosts[name].engine.immortal for name in ("ping", "pong")]
            assert [state.wrong for state in states if isinstance(state, Counting)] == [[], []]
            total = CALLS * (CALLS + 1) // 2
            assert [state.total for state in states if isinstance(state, Counting)] == [total, total]
    finally:
        for name in ("ping", "pong"):
            await world.drop(name)
