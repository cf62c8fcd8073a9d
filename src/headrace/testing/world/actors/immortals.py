"""Immortals: two that play with each other, and one that sleeps, asks the outside, and is upgraded on its way."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from headrace.protocols.ambrosia.client import Host, Immortal, StateError, UpgradeRefused, call, fork
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


class StandIn(ImmortalActor):
    """A second program of the same immortal: now and then it takes over for a while."""

    kind = "stand-in"

    def __init__(self, number: int, hub: HubProcess, book: Book, original: ImmortalActor) -> None:
        super().__init__(number, hub, book, original.immortal)
        self.is_done = True
        self._original = original
        self._leaves_s = 0.0
        self._least = 0
        """So far the other had come before it was replaced."""

    async def _live(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(2, 20))
            self._leaves_s = self.world.now_s + self.random.uniform(0.3, 3)
            self.world.tell(self.name, f"wants to be {self.immortal}")
            known, self._last = self._original._last, None
            self._least = 0 if known is None else known.last
            await super()._live()

    def is_over(self, host: Host) -> bool:
        return self.world.now_s > self._leaves_s

    def _look(self, immortal: Immortal) -> None:
        super()._look(immortal)
        assert isinstance(immortal, Counting)
        if immortal.last < self._least:
            self.book.wrong.append(f"{self.immortal} had come to {self._least}, and its stand-in is at {immortal.last}")
        self._original.is_done |= immortal.last >= self.ends_at


class Clerk(Counting):
    """Version 1."""

    noted: list[int]

    def __init__(self) -> None:
        super().__init__()
        self.noted = []

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

    @call
    def note(self, number: int) -> int:
        if number in self.noted:
            self.wrong.append(f"{number} is noted twice")
        self.noted.append(number)
        return len(self.noted)


class NewClerk(Clerk):
    """Version 2."""


class LeavingClerk(Clerk, saved_as="Clerk"):
    """Version 1 in a program that has version 2, too."""

    def upgrade(self) -> Immortal:
        new = NewClerk()
        new.last, new.wrong, new.noted = self.last, self.wrong, self.noted
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
        self._has_upgraded = False
        """Version 2 has gone on: what it began with is stored."""
        self._begun: tuple[Immortal | None, int] = None, 0

    async def _live(self) -> None:
        while True:
            await self._register()
            kind: type[Counting] = LeavingClerk if self.upgrades else Clerk
            if self._has_upgraded and self.random.random() < 0.3:
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
        return self._has_upgraded and self.random.random() < 0.02

    def _look(self, immortal: Immortal) -> None:
        assert isinstance(immortal, Counting)
        is_new = isinstance(immortal, NewClerk)
        if self._has_upgraded and not is_new:
            self.book.wrong.append(f"{self.name}: version 1 continues from what version 2 left")
        if self._begun[0] is not immortal:
            self._begun = immortal, immortal.last
        self._has_upgraded |= is_new and immortal.last > self._begun[1]
        self.ends_at = TICKS if is_new else TICKS + 1  # it is not done before it has been upgraded
        super()._look(immortal)


class Customer(Actor):
    """Has the clerk note numbers, by verbs. What was not answered is asked again under its key; answers are kept."""

    kind = "customer"
    COUNT = 12

    def __init__(self, number: int, hub: HubProcess, book: Book, clerk: ClerkActor) -> None:
        super().__init__(number, hub, book)
        self._clerk = clerk
        self._answers: list[int] = []

    async def work(self) -> None:
        while len(self._answers) < self.COUNT:
            with contextlib.suppress(Refused, *LOST):
                number = len(self._answers)
                answer = await self._ask(number)
                if answer != number + 1:
                    self.book.wrong.append(f"{self.name}: number {number} was noted as the {answer}.")
                self._answers.append(answer)
                if self.random.random() < 0.3:
                    await self._ask_again()
            await asyncio.sleep(self.random.uniform(0, 1))

    async def _ask_again(self) -> None:
        number = self.random.randrange(len(self._answers))
        if (answer := await self._ask(number)) != self._answers[number]:
            self.book.wrong.append(f"{self.name} was told {self._answers[number]} for {number}, and now {answer}")

    async def _ask(self, number: int) -> int:
        asked: dict[str, Any] = {"name": self._clerk.immortal, "method": "note", "arguments": {"number": number}}
        return int((await self.verb("immortal.call", **asked, idempotency_key=f"note {number}", wait_s=15))["value"])
