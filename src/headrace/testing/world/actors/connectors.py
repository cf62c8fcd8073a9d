"""Wallaroo connectors that send message by message, to several streams at once; and somebody who sends one back."""

from __future__ import annotations

import asyncio
import contextlib

from headrace.errors import HeadraceError
from headrace.protocols.wallaroo.client import DIALECTS, Connector, ConnectorStream
from headrace.protocols.wallaroo.client_session import Item
from headrace.testing.world.actors.actor import LOST, Actor, Refused, Watcher
from headrace.testing.world.actors.producers import WallarooProducer
from headrace.testing.world.book import Book, Written
from headrace.testing.world.hub import HubProcess

STREAMS = 2


class Sender(Actor):
    """One connector with several streams: what is durable is behind the point that the hub names, and the rest is sent
    again under its ids."""

    kind = "sender"

    def __init__(self, number: int, hub: HubProcess, book: Book, count: int, pace_s: float) -> None:
        super().__init__(number, hub, book)
        self.count = count
        self.pace_s = pace_s
        self._dialect = self.random.choice(sorted(DIALECTS))
        self.names = [f"{self.name}-{stream}" for stream in range(STREAMS)]
        self.written = {name: book.producer(f"{name}-from", f".{name}", once=True) for name in self.names}
        for name, written in self.written.items():
            written.elsewhere.append(name)

    async def work(self) -> None:
        while any(len(written.acked) < self.count for written in self.written.values()):
            with contextlib.suppress(HeadraceError, *LOST):
                address = self.hub.address("wallaroo")
                async with Connector(address, attempts_max=None, dialect=self._dialect) as connector:
                    streams = {name: await connector.stream(name) for name in self.names}
                    for name, stream in streams.items():
                        self._told(self.written[name], stream.point or 0)
                    await self._send_all(streams)
            await self.retry()

    async def _send_all(self, streams: dict[str, ConnectorStream]) -> None:
        following = {name: len(self.written[name].acked) for name in self.names}
        while any(following[name] < self.count for name in self.names):
            for name in self.random.sample(self.names, self.random.randint(1, STREAMS)):
                numbers = range(following[name], min(self.count, following[name] + self.random.randint(1, 9)))
                self.written[name].sent.update(numbers)
                items = [self._item(name, number) for number in numbers]
                if len(items) == 1:
                    (only,) = items
                    assert only.payload is not None
                    await streams[name].send(only.payload, message_id=only.id, event_time=only.event_time, key=only.key)
                elif items:
                    await streams[name].send_many(items)
                following[name] = numbers.stop
            if self.random.random() < 0.3:
                await self._flush(streams)
            await asyncio.sleep(self.random.uniform(0, self.pace_s))
        await self._flush(streams)

    def _item(self, name: str, number: int) -> Item:
        payload = f"{self.written[name].producer}:{number}".encode()
        key = b"key" if self._dialect == "v3" and number % 2 else None  # the draft has none
        return Item(number + 1, payload, 1000 * number if number % 3 else None, key)

    async def _flush(self, streams: dict[str, ConnectorStream]) -> None:
        for name, stream in streams.items():
            self._told(self.written[name], await stream.flush() or 0)

    def _told(self, written: Written, point: int) -> None:
        fresh = range(len(written.acked), point)
        written.acked.update(dict.fromkeys(fresh))
        if fresh:
            self.world.tell(self.name, f"{written.stream} is durable up to {point}")


class Rewinder(Watcher):
    """An operator who sends connectors back: what they send again is stored again, and nothing is lost."""

    kind = "rewinder"

    def __init__(self, number: int, hub: HubProcess, book: Book, connectors: list[WallarooProducer]) -> None:
        super().__init__(number, hub, book)
        self._connectors = connectors
        for each in connectors:  # from now on some of it may be there twice
            book.written[book.written.index(each.written)] = each.written = each.written._replace(once=False)

    async def work(self) -> None:
        await asyncio.sleep(self.random.uniform(1, 15))
        connector = self.random.choice(self._connectors)
        if connector.is_done:
            return
        name = self.random.choice([connector.written.stream, *connector.written.elsewhere])
        point = self.random.choice([None, self.random.randint(0, len(connector.written.acked))])
        with contextlib.suppress(Refused, *LOST):
            await self.verb(
                "stream.rewind", stream=name, point=point or None, how=self.random.choice(["restart", "close"])
            )
            self.world.tell(self.name, f"sends {connector.name} back to {point}")
