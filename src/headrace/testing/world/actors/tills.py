"""A keyed immortal with programs that serve it, stand by, and take its checkpoints; somebody who calls its instances,
and somebody who writes to its inbox. Each number comes to its till once, in order, whoever dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import msgspec

from headrace.immortals import Immortal, immortal, method, query
from headrace.protocols.ambrosia.binding.declaring import interface_of
from headrace.protocols.ambrosia.client import Host
from headrace.testing.world.actors.actor import ANSWER_S, LOST, Actor, Refused, Watcher, ask_http, encoded, soon
from headrace.testing.world.book import Book
from headrace.testing.world.hub import HubProcess

NAME = "tills"
KEYS = ("alice", "bob", "carol")
INBOX = f"immortal/{NAME}/inbox"
WAIT_S = 10.0
ADDED_MAX, POSTED_MAX = 30, 30
CHECKPOINT_BYTES = 3000


@immortal(keyed=True)
class Till(Immortal):
    """One of the tills."""

    added: list[int]
    posted: list[int]
    wrong: list[str]

    def __init__(self) -> None:
        self.added, self.posted, self.wrong = [], [], []

    @method
    async def add(self, number: int) -> int:
        if number != len(self.added):
            self.wrong.append(f"{self.key}: {number} is added after {self.added}")
        self.added.append(number)
        if number % 4 == 0 and await self.effect(_doubled, number) != 2 * number:
            self.wrong.append(f"{self.key}: twice {number} is something else")
        return len(self.added)

    @method
    def post(self, number: int) -> None:
        if number != len(self.posted):
            self.wrong.append(f"{self.key}: {number} is posted after {self.posted}")
        self.posted.append(number)

    @query
    def told(self) -> tuple[int, int, list[str]]:
        return len(self.added), len(self.posted), self.wrong


def _doubled(number: int) -> int:
    return 2 * number


class TillProgram(Watcher):
    """Serves all tills; a second one stands by; a third takes checkpoints only."""

    kind = "till-program"

    def __init__(self, number: int, hub: HubProcess, book: Book, *, takes_checkpoints: bool = False) -> None:
        super().__init__(number, hub, book)
        self._takes_checkpoints = takes_checkpoints

    async def work(self) -> None:
        with contextlib.suppress(Refused, *LOST):
            receive, send = (f"127.0.0.1:{port}" for port in self.hub.immortal_ports[NAME])
            options = {"clock": True, "delivery": "counted", "standby": True, "checkpoint_log_bytes": CHECKPOINT_BYTES}
            options |= {"receive": receive, "send": send}
            await self.verb("immortal.register", name=NAME, options=options)
            interface = msgspec.to_builtins(interface_of(Till))
            await self.verb("immortal.describe", name=NAME, interface=interface)
            host = Host(Till, name=NAME, receive=receive, send=send, takes_checkpoints=self._takes_checkpoints)
            host.says_pair, host.says_cause = True, self.random.random() < 0.5
            await host.run()


class Teller(Actor):
    """Calls the tills, one number after the other for each. The same call again has the same answer."""

    kind = "teller"

    def __init__(self, number: int, hub: HubProcess, book: Book) -> None:
        super().__init__(number, hub, book)
        self.added = dict.fromkeys(KEYS, 0)
        self.count = self.random.randint(5, ADDED_MAX)

    async def work(self) -> None:
        while any(added < self.count for added in self.added.values()):
            with contextlib.suppress(Refused, *LOST):
                key = self.random.choice([key for key in KEYS if self.added[key] < self.count])
                if self.random.random() < 0.2:
                    await self._look(key)
                await self._add(key, self.added[key])
                self.added[key] += 1
                if self.random.random() < 0.2:
                    await self._add(key, self.random.randrange(self.added[key]))
            await asyncio.sleep(self.random.uniform(0, 0.5))
        for key in KEYS:
            while True:
                with contextlib.suppress(Refused, *LOST):
                    await self._look(key)
                    break
                await self.retry()

    async def _add(self, key: str, number: int) -> None:
        answer = None
        while answer is None:
            answer = await self.random.choice([self._by_verb, self._by_path])(key, number)
        if answer != number + 1:
            self.book.wrong.append(f"{self.name} added {number} to {key} and was told {answer}")

    async def _by_verb(self, key: str, number: int) -> int | None:
        asked: dict[str, Any] = {"name": NAME, "method": "add", "arguments": {"number": number}, "key": key}
        done = await self.verb("immortal.call", **asked, idempotency_key=f"{key} {number}", wait_s=WAIT_S)
        return int(done["value"]) if done.get("done", True) else None

    async def _by_path(self, key: str, number: int) -> int | None:
        headers = {"content-type": "application/json", "idempotency-key": f"{key} {number}"}
        body = json.dumps({"number": number}).encode()
        path = f"/api/immortals/{NAME}/add?key={key}"
        answer = await soon(ask_http(self.port("http"), "POST", path, body, **headers))
        try:
            said = json.loads(answer.body)
        except ValueError as error:
            raise EOFError("the connection ended in the middle of the answer") from error
        if answer.status != 200:
            raise EOFError(f"{answer.status}: {said}")
        return None if said is None else int(said)

    async def _look(self, key: str) -> None:
        least = self.added[key]
        older: dict[str, Any] = {"max_age_s": 1.0} if self.random.random() < 0.3 else {}
        answer = await self.verb("immortal.call", name=NAME, method="told", key=key, wait_s=WAIT_S, **older)
        if answer.get("done", True):
            added, _, wrong = answer["value"]
            self.book.wrong.extend(wrong)
            if not older and added < least:
                self.book.wrong.append(f"{self.name} has added {least} to {key}, which has {added}")


class Messenger(Actor):
    """Writes to the inbox, in batches that are repeated under their number until they are answered; waits until the
    tills have all of it."""

    kind = "messenger"

    def __init__(self, number: int, hub: HubProcess, book: Book) -> None:
        super().__init__(number, hub, book)
        self.posted = dict.fromkeys(KEYS, 0)
        self.left = self.random.randint(2, POSTED_MAX)
        self.batch: list[dict[str, Any]] = []
        self.sequence = 0

    async def work(self) -> None:
        while self.left or self.batch:
            with contextlib.suppress(Refused, *LOST):
                await self._send()
            await asyncio.sleep(self.random.uniform(0, 1))
        while not await self._has_come():
            await self.retry()

    async def _send(self) -> None:
        if not self.batch:
            for _ in range(min(self.left, self.random.randint(1, 3))):
                key = self.random.choice(KEYS)
                said: dict[str, Any] = {"number": self.posted[key]}
                named = {"type": "post", "key": encoded(key.encode())}
                if self.random.random() < 0.3:
                    said, named = said | {"@method": "post", "@key": key}, {}
                self.batch.append({"json": said, **named})
                self.posted[key] += 1
                self.left -= 1
        asked: dict[str, Any] = {
            "stream": INBOX,
            "records": self.batch,
            "producer": self.name,
            "sequence": self.sequence,
        }
        await self.verb("stream.append", **asked)
        self.sequence += 1
        self.batch = []

    async def _has_come(self) -> bool:
        with contextlib.suppress(Refused, *LOST):
            for key in KEYS:
                answer = await self.verb("immortal.call", name=NAME, method="told", key=key, wait_s=ANSWER_S / 2)
                if not answer.get("done", True) or answer["value"][1] < self.posted[key]:
                    return False
            return True
        return False


def tills(hub: HubProcess, book: Book) -> list[Actor]:
    """Programs, and those who use them."""
    chance = hub.world.random
    programs = [TillProgram(number, hub, book) for number in range(chance.randint(1, 2))]
    if chance.random() < 0.5:
        programs.append(TillProgram(len(programs), hub, book, takes_checkpoints=True))
    return [*programs, Teller(0, hub, book), Messenger(0, hub, book)]
