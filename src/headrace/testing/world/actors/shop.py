"""A shop that sells with its own database: what it tells others is in an outbox, and a relay brings that to the hub."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3

from headrace.errors import HeadraceError
from headrace.protocols.futoin.outbox import Events, Relay, add_event, create_tables
from headrace.testing.world.actors.actor import LOST, Actor, Refused, encoded
from headrace.testing.world.actors.producers import Producer
from headrace.testing.world.book import Book
from headrace.testing.world.hub import HubProcess

TAKEN_BACK = 0.2
"""How often an order is not made after all, with the event about it."""


class Away(HeadraceError):
    """The hub said no, or nothing."""


class VerbSink:
    """The hub by its verbs."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    async def append(self, stream: str, events: Events, producer: str, sequence: int) -> None:
        columns = zip(events.payloads, events.types, events.times_us, strict=True)
        records = [{"payload": encoded(data), "type": kind, "event_time_us": at} for data, kind, at in columns]
        try:
            await self._actor.verb("stream.create", stream=stream)
            await self._actor.verb(
                "stream.append", stream=stream, records=records, producer=producer, sequence=sequence
            )
        except (Refused, *LOST) as error:
            raise Away(str(error)) from error

    async def last_sequence(self, stream: str, producer: str) -> int | None:
        try:
            last: int | None = (await self._actor.verb("producer.get", stream=stream, producer=producer))["sequence"]
        except Refused as refused:
            if refused.code == "unknown-stream":
                return None
            raise Away(str(refused)) from refused
        except LOST as error:
            raise Away(str(error)) from error
        return last


class Shop(Producer):
    """What was committed is in the stream, once and in order; what was taken back never is. It sells what is left when
    it is started again, and its relay brings what it had not brought."""

    kind = "shop"
    once = True

    def __init__(self, number: int, hub: HubProcess, book: Book, stream: str, count: int, pace_s: float) -> None:
        super().__init__(number, hub, book, stream, count, pace_s)
        self._database = hub.world.folder / f"{self.name}.db"

    async def work(self) -> None:
        with contextlib.closing(self._open()) as database:
            create_tables(database)
            relay = Relay(self._open, VerbSink(self), name=self.name, batch_rows_max=self.random.choice([2, 1000]))
            running = asyncio.ensure_future(relay.run())
            try:
                while self.next < self.count:
                    self._sell(database)
                    await self.rest()
                while self._waiting(database):
                    await self.retry()
            finally:
                running.cancel()
        fresh = range(len(self.written.acked), self.next)
        self.written.acked.update(dict.fromkeys(fresh))
        self.told(fresh, "")

    def _open(self) -> sqlite3.Connection:
        """Without syncs: no power is cut where it sells."""
        database = sqlite3.connect(self._database, check_same_thread=False)
        database.execute("PRAGMA synchronous = OFF")
        return database

    def _sell(self, database: sqlite3.Connection) -> None:
        numbers = range(self.next, min(self.count, self.next + self.random.randint(1, 4)))
        if self.random.random() < TAKEN_BACK:
            with contextlib.suppress(KeyError), database:
                add_event(database, self.stream, "ORDER", f"{self.name}:{self.count + self.next}")
                raise KeyError("nobody wants it")
        with database:
            for number in numbers:
                add_event(database, self.stream, "ORDER", self.record(number).decode())
        self.written.sent.update(numbers)
        self.next = numbers.stop

    def _waiting(self, database: sqlite3.Connection) -> int:
        found: int = database.execute("SELECT COUNT(*) FROM headrace_outbox").fetchone()[0]
        return found
