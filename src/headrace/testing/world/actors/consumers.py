"""Consumers: they see each record in its order, none left out, and their cursors never go back."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from typing import Any

from headrace.protocols.futoin.client import Client as FutoinClient
from headrace.protocols.futoin.client import Event, Receiver
from headrace.protocols.futoin.codec import Coding
from headrace.protocols.ockam.client import Consumer
from headrace.testing.world.actors.actor import LOST, Refused, Watcher, plain, soon
from headrace.testing.world.actors.producers import QUIET
from headrace.testing.world.book import Book, place_of
from headrace.testing.world.hub import HubProcess

REFUSED = 0.1
"""How often somebody who is pushed something does not take it yet."""


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
            name, partition = place_of(self.stream)
            consumer = Consumer(self.ockam_dial(), name, partition=partition, client_id=self.name, limit=50, idle_s=0.5)
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


class FutoinReader(Reader):
    """A reliable consumer: events come in order, and none is left out."""

    last_id: int | None = None

    @property
    def component(self) -> str:
        """FutoIn's names have no hyphens."""
        return self.name.replace("-", "")

    def take(self, id: int, data: object) -> None:
        if self.last_id is not None and id > self.last_id + 1 and self.last_id >= self.book.trimmed.get(self.stream, 0):
            self.book.wrong.append(f"{self.name}: event {id} came after {self.last_id}: some were left out")
        self.last_id = id
        if isinstance(data, dict) and "base64" in data:  # what is no JSON comes like this
            data = base64.b64decode(data["base64"]).decode()
        record = data if isinstance(data, str) else json.dumps(data)
        self.book.saw(self.stream, id - 1, record.strip())


class FutoinPoller(FutoinReader):
    """Asks for events; confirmed ones do not come again."""

    kind = "poller"

    async def work(self) -> None:
        with contextlib.suppress(Exception):
            url = f"ws://{self.hub.address('http')}/futoin/{self.stream}"
            coding = self.random.choice(list(Coding))
            async with await FutoinClient.connect(url, coding=coding, **QUIET) as client:
                await soon(client.register(self.component))
                while True:
                    for event in await soon(client.poll(self.component, self.last_id)):
                        self._check_order(event.id)
                        self.take(event.id, event.data)
                    await asyncio.sleep(self.random.uniform(0.05, 0.5))

    def _check_order(self, id: int) -> None:
        if self.last_id is not None and id <= self.last_id:
            self.book.wrong.append(f"{self.name}: event {id} came after {self.last_id}")


class FutoinReceiver(FutoinReader):
    """Has events pushed. What it has not confirmed comes again, to a program that was killed too."""

    kind = "receiver"

    async def work(self) -> None:
        url = f"ws://{self.hub.address('http')}/futoin/{self.stream}"
        coding = self.random.choice(list(Coding))
        receiver = Receiver(url, handle=self._handle, component=self.component, coding=coding, **QUIET)
        with contextlib.suppress(Exception):
            await receiver.run()

    async def _handle(self, events: list[Event]) -> None:
        if self.random.random() < REFUSED:
            raise TimeoutError("not now")
        ids = [event.id for event in events]
        if ids != sorted(ids):
            self.book.wrong.append(f"{self.name} was given the events {ids} together")
        for event in events:
            self.take(event.id, event.data)
        await asyncio.sleep(self.random.uniform(0, 0.3))


class CursorReader(Reader):
    """Reads from a cursor of its own and moves it on, as the SDK's groups do. Retention leaves what it still needs."""

    kind = "reader"

    def __init__(self, number: int, hub: HubProcess, book: Book, stream: str) -> None:
        super().__init__(number, hub, book, stream)
        self.saved: int | None = None
        """Where the cursor stands at least: so far it was answered."""
        self.pace_s = self.random.choice([0.3, 5.0, 20.0])
        name, partition = place_of(stream)
        self.place: dict[str, Any] = {"stream": name, "partition": partition}

    async def work(self) -> None:
        with contextlib.suppress(Refused, *LOST):
            at = await self._position()
            while True:
                at = await self._read_from(at)
                await self._save(at)
                if at and self.random.random() < 0.2:  # an older one that was on its way for long
                    await self._ask_to_save(self.random.randrange(at))
                    at = await self._position()
                await asyncio.sleep(self.random.uniform(0, self.pace_s))

    async def _save(self, at: int) -> None:
        saved = await self._ask_to_save(at)
        if saved < at:
            self.book.wrong.append(f"{self.name}: the cursor was moved to {at} and stands at {saved}")
        self.saved = self.book.cursors[self.name, self.stream] = max(at, self.saved or 0)

    async def _ask_to_save(self, index: int) -> int:
        return int((await self.verb("cursor.save", cursor=self.name, **self.place, index=index))["index"])

    async def _position(self) -> int:
        found: int | None = (await self.verb("cursor.get", cursor=self.name, **self.place))["index"]
        if self.saved is not None and (found is None or found < self.saved):
            self.book.wrong.append(f"{self.name}: the cursor was at {self.saved} and is at {found}: it went back")
        if found is None:  # from here on retention has to keep what comes
            await self._ask_to_save(0)
            found = self.saved = 0
        return found or int((await self.verb("stream.bounds", **self.place))[0]["first"])  # what was before has gone

    async def _read_from(self, at: int) -> int:
        page = await self.verb("stream.read", **self.place, start=at, limit=50, text=True)
        for record in page["records"]:
            index = int(record["index"])
            if index != at and index > self.book.trimmed.get(self.stream, 0):
                self.book.wrong.append(f"{self.name} needs {self.stream}/{at}, and was given {index}")
            self.book.saw(self.stream, index, plain(record["text"].encode()))
            at = index + 1
        if page["records"] and self.random.random() < 0.1:
            await self._look_up(page["records"])
        return at

    async def _look_up(self, records: list[dict[str, Any]]) -> None:
        """The first record of a time: none before it is as late."""
        times = {int(record["index"]): int(record["time_us"]) for record in records}
        index = self.random.choice(sorted(times))
        found = int((await self.verb("stream.index-at-time", **self.place, time_us=times[index]))["index"])
        is_late = found > max(index, self.book.trimmed.get(self.stream, 0))
        if is_late or times.get(found - 1, times[index] - 1) >= times[index]:
            self.book.wrong.append(f"{self.name} asked for the time of {self.stream}/{index} and was told {found}")


class Pipeline(CursorReader):
    """What its stream's acknowledgements hang on: a record is acknowledged when this has passed it."""

    kind = "pipeline"

    def __init__(self, number: int, hub: HubProcess, book: Book, stream: str) -> None:
        super().__init__(number, hub, book, stream)
        self.is_ready = False
        self.pace_s = self.random.choice([0.2, 2.0])

    async def work(self) -> None:
        with contextlib.suppress(Refused, *LOST):
            while not self.is_ready:
                await self.verb("stream.create", stream=self.stream, options={"ack": f"processed:{self.name}"})
                self.book.processed[self.stream] = 0
                self.is_ready = True
            await super().work()

    async def _ask_to_save(self, index: int) -> int:
        self.book.processed[self.stream] = max(self.book.processed[self.stream], index)
        return await super()._ask_to_save(index)
