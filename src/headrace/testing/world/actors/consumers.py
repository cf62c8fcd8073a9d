"""Consumers: they see each record in its order, none left out, and their cursors never go back."""

from __future__ import annotations

import asyncio
import contextlib
import json

from headrace.protocols.futoin.client import Client as FutoinClient
from headrace.protocols.ockam.client import Consumer
from headrace.testing.world.actors.actor import LOST, Refused, Watcher, plain, soon
from headrace.testing.world.book import Book
from headrace.testing.world.hub import HubProcess


class Reader(Watcher):
    """What all of them have in common."""

    def __init__(self, number: int, hub: HubProcess, book: Book, stream: str) -> None:
        super().__init__(number, hub, book)
        self.stream = stream


class OckamConsumer(Reader):
    """Pulls a stream under a name, and finds its position again."""

    kind = "puller"
    began = 0

    async def work(self) -> None:
        with contextlib.suppress(Exception):
            consumer = Consumer(self.hub.address("ockam"), self.stream, client_id=self.name, limit=50, idle_s=0.5)
            async with consumer:
                is_first = True
                async for delivery in consumer:
                    if is_first:
                        self._begins(delivery.messages[0].index)
                        is_first = False
                    for message in delivery.messages:
                        self.book.saw(self.stream, message.index, plain(bytes(message.data)))

    def _begins(self, index: int) -> None:
        if index < self.began:
            self.book.wrong.append(f"{self.name} began at {self.began} once, and now at {index}: its cursor went back")
        self.began = index


class FutoinPoller(Reader):
    """A reliable consumer: events come in order, none is left out, and confirmed ones do not come again."""

    kind = "poller"
    last_id: int | None = None

    async def work(self) -> None:
        with contextlib.suppress(Exception):
            url = f"ws://{self.hub.address('http')}/futoin/{self.stream}"
            async with await FutoinClient.connect(url, ping_interval=None) as client:
                await soon(client.register(self.name))
                while True:
                    for event in await soon(client.poll(self.name, self.last_id)):
                        self._take(event.id, event.data)
                    await asyncio.sleep(self.random.uniform(0.05, 0.5))

    def _take(self, id: int, data: object) -> None:
        if self.last_id is not None and id <= self.last_id:
            self.book.wrong.append(f"{self.name}: event {id} came after {self.last_id}")
        self.last_id = id
        record = data if isinstance(data, str) else json.dumps(data)
        self.book.saw(self.stream, id - 1, record.strip())


class CursorReader(Reader):
    """Reads from a cursor of its own and moves it on, as the SDK's groups do. Retention leaves what it still needs."""

    kind = "reader"

    def __init__(self, number: int, hub: HubProcess, book: Book, stream: str) -> None:
        super().__init__(number, hub, book, stream)
        self.saved: int | None = None
        """Where the cursor stands at least: so far it was answered."""
        self.pace_s = self.random.choice([0.3, 5.0])

    async def work(self) -> None:
        with contextlib.suppress(Refused, *LOST):
            at = await self._position()
            while True:
                at = await self._read_from(at)
                saved = await self.verb("cursor.save", cursor=self.name, stream=self.stream, index=at)
                if saved["index"] < at:
                    self.book.wrong.append(f"{self.name}: the cursor was moved to {at} and stands at {saved['index']}")
                self.saved = self.book.cursors[self.name, self.stream] = max(at, self.saved or 0)
                if at and self.random.random() < 0.2:  # an older one that was on its way for long
                    back = self.random.randrange(at)
                    await self.verb("cursor.save", cursor=self.name, stream=self.stream, index=back)
                    at = await self._position()
                await asyncio.sleep(self.random.uniform(0, self.pace_s))

    async def _position(self) -> int:
        found: int | None = (await self.verb("cursor.get", cursor=self.name, stream=self.stream))["index"]
        if self.saved is not None and (found is None or found < self.saved):
            self.book.wrong.append(f"{self.name}: the cursor was at {self.saved} and is at {found}: it went back")
        if found is None:  # from here on retention has to keep what comes
            await self.verb("cursor.save", cursor=self.name, stream=self.stream, index=0)
            found = self.saved = int((await self.verb("stream.bounds", stream=self.stream))[0]["first"])
        return found

    async def _read_from(self, at: int) -> int:
        page = await self.verb("stream.read", stream=self.stream, start=at, limit=50, text=True)
        for record in page["records"]:
            index = int(record["index"])
            if index != at and index > self.book.trimmed.get(self.stream, 0):
                self.book.wrong.append(f"{self.name} needs {self.stream}/{at}, and was given {index}")
            self.book.saw(self.stream, index, plain(record["text"].encode()))
            at = index + 1
        return at
