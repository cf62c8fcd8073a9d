"""Immortals: two that play with each other, and one that sleeps, asks the outside, and is upgraded on its way."""

from __future__ import annotations

import asyncio
import contextlib

from headrace.protocols.ambrosia.client import Host, Immortal, StateError, UpgradeRefused, fork
from headrace.testing.ping_pong import Counting, players
from headrace.testing.world.actors.actor import LOST, Actor, Refused
from headrace.testing.world.book import Book
from headrace.testing.world.hub import HubProcess

ROUNDS = 60
"""How often two immortals play."""
TICKS = 24
WATCHED_S = 0.25


class ImmortalActor(Actor):
    """The process of an immortal."""

    kind = "immortal"

    def __init__(self, number: int, hub: HubProcess, book: Book, name: str) -> None:
        super().__init__(number, hub, book)
        self.immortal = name
        self.ends_at = ROUNDS
        self._last: Counting | None = None
        book.checks.append(self._judge)

    def _judge(self) -> str:
        wrong = [] if self._last is None else self._last.wrong
        return f"{self.immortal}: {wrong[:3]}" if wrong else ""

    async def _live(self) -> None:
        ping, pong = players(ROUNDS)
        await self.host(ping if self.immortal == "ping" else pong)

    async def host(self, kind: type[Counting]) -> None:
        """Until it cannot go on."""
        receive, send = self.hub.immortal_ports[self.immortal]
        host = Host(kind, name=self.immortal, receive=f"127.0.0.1:{receive}", send=f"127.0.0.1:{send}")
        running = asyncio.ensure_future(host.run())
        try:
            while not running.done() and not self.is_over(host):
                await asyncio.sleep(WATCHED_S)
                if host.is_primary:
                    self._look(host.immortal)
            if running.done():
                await running
        finally:
            running.cancel()

    def is_over(self, host: Host) -> bool:
        """Whether this program has run for long enough."""
        return False

    def _look(self, immortal: Immortal) -> None:
        assert isinstance(immortal, Counting)
        if self._last is not None and immortal.last < self._last.last:
            self.book.wrong.append(f"{self.immortal} had come to {self._last.last}, and is at {immortal.last}")
        self._last = immortal
        if immortal.last >= self.ends_at and not self.is_done:
            self.is_done = True
            self.world.tell(self.name, f"reached {self.ends_at}")


class Clerk(Counting):
    """Version 1."""

    def first_start(self) -> None:
        self.itself.tick(1)

    @fork
    async def tick(self, number: int) -> None:
        self.count(number)
        await self.sleep(0.5)
        doubled = await self.outside(_double, number)
        if doubled != 2 * number:
            self.wrong.append(f"twice {number} is {doubled}")
        if number < TICKS:
            self.itself.tick(number + 1)


class NewClerk(Clerk):
    """Version 2."""


class LeavingClerk(Clerk, saved_as="Clerk"):
    """Version 1 in a program that has version 2, too."""

    def upgrade(self) -> Immortal:
        new = NewClerk()
        new.last, new.wrong = self.last, self.wrong
        return new


def _double(number: int) -> int:
    return 2 * number


class ClerkActor(ImmortalActor):
    """A program of version 1, one that upgrades it when a third is done, and by mistake the old one again."""

    kind = "clerk"

    def __init__(self, number: int, hub: HubProcess, book: Book) -> None:
        super().__init__(number, hub, book, "clerk")
        self.ends_at = TICKS
        self.upgrades = False
        self.is_registered = 0

    async def _live(self) -> None:
        while True:
            await self._register()
            kind: type[Counting] = LeavingClerk if self.upgrades else Clerk
            if isinstance(self._last, NewClerk) and self.random.random() < 0.3:
                kind = Clerk  # somebody starts what is no longer
            with contextlib.suppress(StateError, UpgradeRefused):
                await self.host(kind)

    async def _register(self) -> None:
        receive, send = (f"127.0.0.1:{port}" for port in self.hub.immortal_ports[self.immortal])
        options = {"receive": receive, "send": send, "checkpoint_log_bytes": 2000}
        wanted = 2 if self.upgrades else 1
        while self.is_registered < wanted:
            with contextlib.suppress(Refused, *LOST):
                options |= {"upgrade_version": 1} if self.upgrades else {}
                await self.verb("immortal.register", name=self.immortal, options=options)
                self.is_registered = wanted
                self.world.tell(self.name, f"registered, version {wanted}")
            await self.retry()

    def is_over(self, host: Host) -> bool:
        if not self.upgrades and self._last is not None and self._last.last > TICKS // 3:
            self.upgrades = True
            return True
        return isinstance(self._last, NewClerk) and self.random.random() < 0.02

    def _look(self, immortal: Immortal) -> None:
        if isinstance(self._last, NewClerk) and not isinstance(immortal, NewClerk):
            self.book.wrong.append(f"{self.name}: version 1 goes on with what version 2 has left")
        is_new = isinstance(immortal, NewClerk)
        self.ends_at = TICKS if is_new else TICKS + 1  # it is not done before it has been upgraded
        super()._look(immortal)
