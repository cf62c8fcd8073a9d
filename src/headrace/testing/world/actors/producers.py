"""Producers: each writes numbered records to a stream, through its protocol."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from headrace.protocols.futoin.client import Client as FutoinClient
from headrace.protocols.futoin.codec import Coding
from headrace.protocols.ockam.client import Publisher
from headrace.protocols.wallaroo import naming
from headrace.protocols.wallaroo.client import DIALECTS, Connector
from headrace.protocols.wallaroo.client_session import Item
from headrace.testing.world.actors.actor import LOST, Actor, Refused, encoded, soon
from headrace.testing.world.book import Book, place_of
from headrace.testing.world.hub import HubProcess

QUIET: dict[str, Any] = {"ping_interval": None, "proxy": None}
"""Options of WebSockets that ask nothing of the machine, and nobody now and then."""
NAMES = "{instance}.{stream}"
"""The default of `wallaroo.stream_name`."""
REPEATED = 0.15
"""How often a producer with sequences sends again what it was told is stored."""


class Producer(Actor):
    """Writes numbered records to a stream."""

    once = False

    def __init__(self, number: int, hub: HubProcess, book: Book, stream: str, count: int, pace_s: float) -> None:
        super().__init__(number, hub, book)
        self.stream = stream
        self.count = count
        self.pace_s = pace_s
        self.size = self.random.choice([0, 10, 300])
        self.written = book.producer(self.name, stream, once=self.once)
        self.next = 0
        """In the memory of the user, who has it on paper."""

    def record(self, number: int) -> bytes:
        return f"{self.name}:{number}{' ' * self.size}".encode()

    def told(self, numbers: range, where: object) -> None:
        """The hub has acknowledged some records."""
        passed = self.book.processed.get(self.stream)
        late = max((index for number in numbers if (index := self.written.acked[number]) is not None), default=-1)
        if passed is not None and late >= passed:
            self.book.wrong.append(f"{self.name} is told of index {late}, and the pipeline is at {passed} at most")
        self.world.tell(self.name, f"records {numbers.start} to {numbers.stop - 1} are acknowledged{where}")

    async def rest(self) -> None:
        await asyncio.sleep(self.random.uniform(0, self.pace_s))


class _Numbered:
    """A Wallaroo source: ids are numbers from 1."""

    def __init__(self, actor: WallarooProducer, name: str) -> None:
        self.name = name
        self._actor = actor
        self._next = 0

    def rewind(self, point: int | None) -> None:
        self._next = point or 0

    async def read(self, limit: int) -> Sequence[Item] | None:
        actor = self._actor
        if self._next >= actor.count:
            return None
        await actor.rest()
        first, self._next = self._next, min(self._next + actor.random.randint(1, 20), actor.count, self._next + limit)
        actor.written.sent.update(range(first, self._next))
        return [Item(number + 1, actor.record(number)) for number in range(first, self._next)]


class WallarooProducer(Producer):
    """The connector with a source that it can rewind: each record is stored once.

    A stream has one connector at a time. Number 0 writes to `w.orders` without an instance and number 1 to `orders` of
    the instance `w`: names that differ never meet.
    """

    kind = "wallaroo"
    once = True

    def __init__(self, number: int, hub: HubProcess, book: Book, stream: str, count: int, pace_s: float) -> None:
        super().__init__(number, hub, book, f"w.{stream}", count, pace_s)
        self._instance, self._own_name = ("w", stream) if number else ("", f"w.{stream}")
        apart = naming.name_apart(NAMES, b"", self._instance.encode(), self._own_name.encode())
        self.written.elsewhere.append(apart)
        self._dialect = self.random.choice(sorted(DIALECTS))

    async def work(self) -> None:
        connector = Connector(
            self.hub.address("wallaroo"), attempts_max=None, instance=self._instance, dialect=self._dialect
        )
        async with connector:
            await connector.run(_Numbered(self, self._own_name), self._durable)

    def _durable(self, point: int) -> None:
        fresh = range(len(self.written.acked), point)
        self.written.acked.update(dict.fromkeys(fresh))
        if fresh:
            self.told(fresh, "")


class OckamProducer(Producer):
    """The publisher: what is not confirmed is pushed again."""

    kind = "ockam"

    async def work(self) -> None:
        while self.next < self.count:
            try:
                name, partition = place_of(self.stream)
                async with Publisher(self.ockam_dial(), name, partition=partition) as publisher:
                    while self.next < self.count:
                        numbers = range(self.next, min(self.count, self.next + self.random.randint(1, 8)))
                        self.written.sent.update(numbers)
                        indexes = await publisher.publish_all([self.record(number) for number in numbers])
                        self.written.acked.update(zip(numbers, indexes, strict=True))
                        self.told(numbers, f" at {indexes[0]} to {indexes[-1]}")
                        self.next = numbers.stop
                        await self.rest()
            except Exception as error:
                self.world.tell(self.name, f"{type(error).__name__}")
                await self.retry()


class FutoinProducer(Producer):
    """`addEvent` over a WebSocket: what is not answered is added again."""

    kind = "futoin"

    async def work(self) -> None:
        while self.next < self.count:
            with contextlib.suppress(Exception):
                url = f"ws://{self.hub.address('http')}/futoin/{self.stream}"
                coding = self.random.choice(list(Coding))
                async with await FutoinClient.connect(url, coding=coding, **QUIET) as client:
                    while self.next < self.count:
                        self.written.sent.add(self.next)
                        added = client.add("EVENT", self.record(self.next).decode())
                        index = self.written.acked[self.next] = await soon(added) - 1
                        self.told(range(self.next, self.next + 1), f" at {index}")
                        self.next += 1
                        await self.rest()
            await self.retry()


class SdkProducer(Producer):
    """A producer with sequences, as the SDK is one: what is not answered is sent again under its number, and now and
    then what was."""

    kind = "sdk"
    once = True

    def __init__(self, number: int, hub: HubProcess, book: Book, stream: str, count: int, pace_s: float) -> None:
        super().__init__(number, hub, book, stream, count, pace_s)
        self.batches: list[range] = []
        """Sequence → the numbers of its records; the last may not have been answered."""
        self.batch_max = self.random.choice([1, 8, 8])
        self.columns = self.random.choice([(), ("id",), ("type", "key"), ("id", "type", "key", "event_time_us")])

    async def work(self) -> None:
        while self.next < self.count:
            with contextlib.suppress(Refused, *LOST):
                await self._open()
                while self.next < self.count:
                    await self._send_next()
                    if self.random.random() < REPEATED:
                        await self._repeat()
                    await self.rest()
            await self.retry()

    async def _open(self) -> None:
        name, partition = place_of(self.stream)
        await self.verb("stream.create", stream=name, partitions=partition + 1)
        if partition:
            await self.verb("stream.grow", stream=name, partitions=partition + 1)

    async def _send_next(self) -> None:
        if not self.batches or self.batches[-1].stop == self.next:
            size = self.random.randint(1, self.batch_max)
            self.batches.append(range(self.next, min(self.count, self.next + size)))
        numbers = self.batches[-1]
        self.written.sent.update(numbers)
        answer = await self._append(len(self.batches) - 1)
        self.written.acked.update(zip(numbers, range(answer["first"], answer["first"] + len(numbers)), strict=True))
        self.told(numbers, f" from {answer['first']} on, as sequence {len(self.batches) - 1}")
        self.next = numbers.stop

    async def _repeat(self) -> None:
        sequence = self.random.randrange(len(self.batches))
        if not (await self._append(sequence))["duplicate"]:
            self.book.wrong.append(f"{self.name}: sequence {sequence} was stored again")

    def _more(self, number: int) -> dict[str, Any]:
        """What else a record may have; the same whenever it is sent."""
        values = {"id": number, "type": f"type {number % 3}", "key": encoded(b"key"), "event_time_us": 1000 * number}
        return {name: values[name] for name in self.columns if number % 2 or name == "id"}

    async def _append(self, sequence: int) -> dict[str, int]:
        records = [{"text": self.record(number).decode(), **self._more(number)} for number in self.batches[sequence]]
        stream, partition = place_of(self.stream)
        answer: dict[str, int] = await self.verb(
            "stream.append",
            stream=stream,
            partition=partition,
            records=records,
            producer=self.name,
            sequence=sequence,
        )
        return answer
