"""People: an operator, somebody at the gate with a guest, and one who means no good."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from headrace.protocols.perper.errors import PeerError
from headrace.protocols.perper.ignite.binary import encode_string
from headrace.protocols.perper.ignite.client import IgniteClient
from headrace.testing.world.actors.actor import LOST, Refused, Watcher, encoded, soon
from headrace.testing.world.book import Book
from headrace.testing.world.hub import HubProcess

PASSWORD = "a password of the world"
RESERVED = ("perper.caches", "ambrosia/immortals", "spark/pipelines", "ockam.addresses")


class Vandal(Watcher):
    """Sends anything to anybody, stops in the middle, and never reads."""

    kind = "vandal"

    async def work(self) -> None:
        with contextlib.suppress(*LOST):
            listener = self.random.choice(sorted(self.hub.ports))
            _, writer = await asyncio.open_connection("127.0.0.1", self.port(listener))
            for _ in range(self.random.randint(1, 5)):
                writer.write(self.random.randbytes(self.random.choice([1, 7, 100, 5000])))
                await asyncio.sleep(self.random.uniform(0, 2))
            if self.random.random() < 0.5:
                writer.close()
        await asyncio.sleep(self.random.uniform(0.1, 5))


class Operator(Watcher):
    """Uses verbs: trims streams and says how they are kept, makes and removes others, and looks at everything."""

    kind = "operator"

    def __init__(self, number: int, hub: HubProcess, book: Book, streams: Sequence[str]) -> None:
        super().__init__(number, hub, book)
        self.streams = list(streams)
        self.trims, self.retains = self.random.random() < 0.5, self.random.random() < 0.5
        self.scratch_next = 0
        """Where the next records of a stream stand that is deleted and made again: indexes are never used twice."""

    async def work(self) -> None:
        with contextlib.suppress(Refused, *LOST):
            await self.random.choice([self._trim, self._retain, self._scratch, self._look, self._look])()
        await asyncio.sleep(self.random.uniform(0.5, 6))

    async def _trim(self) -> None:
        stream = self.random.choice(self.streams)
        if self.trims:
            bounds = (await self.verb("stream.describe", stream=stream))["bounds"][0]
            before = self.random.randint(bounds["first"], (bounds["first"] + bounds["next"]) // 2)
            self.book.trimmed[stream] = max(before, self.book.trimmed.get(stream, 0))
            await self.verb("stream.trim", stream=stream, before=before)

    async def _retain(self) -> None:
        stream = self.random.choice(self.streams)
        if self.retains:
            options = self.random.choice([{}, {"retention_bytes": 3000}, {"retention_cursors": True}])
            self.book.retained.add(stream)
            await self.verb("stream.set-options", stream=stream, options=options)

    async def _scratch(self) -> None:
        name = f"{self.name}/scratch"
        await self.verb("stream.create", stream=name)
        for _ in range(self.random.randint(0, 3)):
            appended = await self.verb(
                "stream.append", stream=name, records=[{"text": "x"}] * self.random.randint(1, 9)
            )
            if appended["first"] < self.scratch_next:
                self.book.wrong.append(f"{name}: index {appended['first']} was used again")
            self.scratch_next = appended["first"] + appended["count"]
        await self.verb("cursor.save", cursor=self.name, stream=name, index=self.scratch_next)
        if self.random.random() < 0.5:
            await self.verb("stream.delete", stream=name)

    async def _look(self) -> None:
        for verb in ("stream.list", "table.list", "cursor.list", "session.list", "hub.info", "immortal.list"):
            await self.verb(verb)


class Gatekeeper(Watcher):
    """Lets a guest in, and takes the right away again. Within `SOON_S` of that nothing more may succeed."""

    kind = "gatekeeper"
    can_die = False
    SOON_S = 1.5

    def __init__(self, number: int, hub: HubProcess, book: Book) -> None:
        super().__init__(number, hub, book)
        self.removed_s: float | None = None
        """Since when the guest is out for sure; None while it may be in."""
        self.has_added = False

    async def work(self) -> None:
        with contextlib.suppress(Refused, *LOST):
            self.removed_s = None
            await self.verb("user.add", user="guest", secret=PASSWORD, roles=["writer"])
            self.has_added = True
            await asyncio.sleep(self.random.uniform(1, 10))
            if self.random.random() < 0.5:
                await self.verb("user.remove", user="guest")
            else:  # it stays, and may only read
                await self.verb("user.add", user="guest", secret=PASSWORD, roles=["reader"])
            self.removed_s = self.world.now_s
            await asyncio.sleep(self.random.uniform(2, 10))


class Guest(Watcher):
    """Writes while it may, tries while it may not, and always tries what only the hub itself may."""

    kind = "guest"

    def __init__(self, number: int, hub: HubProcess, book: Book, gatekeeper: Gatekeeper) -> None:
        super().__init__(number, hub, book)
        self._gatekeeper = gatekeeper

    async def work(self) -> None:
        if not self._gatekeeper.has_added:  # a hub that never had users lets in whoever comes
            return
        with contextlib.suppress(PeerError, Refused, *LOST):
            await self.random.choice([self._by_ignite, self._by_verbs])()

    async def _by_verbs(self) -> None:
        signed = ("guest", PASSWORD)
        while True:
            table = self.random.choice(RESERVED)
            with contextlib.suppress(Refused):
                await self.verb("table.put", signed=signed, table=table, key=encoded(b"x"), value=encoded(b"y"))
                self.book.wrong.append(f"{self.name} wrote to {table}, the hub's own")
            began = self._began()
            await self.verb("stream.create", signed=signed, stream="guests")
            await self.verb("stream.append", signed=signed, stream="guests", records=[{"text": "x"}])
            self._wrote(*began)
            await asyncio.sleep(self.random.uniform(0.1, 1))

    async def _by_ignite(self) -> None:
        connected = IgniteClient.connect("127.0.0.1", self.port("ignite"), user="guest", password=PASSWORD)
        client = await soon(connected)
        while True:
            began = self._began()
            await soon(client.request(1052, "guest-cache"))
            await soon(client.request(1001, encode_string("k"), encode_string("v"), cache="guest-cache"))
            self._wrote(*began)
            with contextlib.suppress(PeerError):
                cache = self.random.choice(RESERVED)
                await soon(client.request(1001, encode_string("x"), encode_string("y"), cache=cache))
                self.book.wrong.append(f"{self.name} wrote to {cache}, the hub's own")
            await asyncio.sleep(self.random.uniform(0.1, 1))

    def _began(self) -> tuple[float | None, float]:
        return self._gatekeeper.removed_s, self.world.now_s

    def _wrote(self, out_since_s: float | None, began_s: float) -> None:
        is_still_out = out_since_s is not None and out_since_s == self._gatekeeper.removed_s
        if is_still_out and began_s > (out_since_s or 0.0) + Gatekeeper.SOON_S:
            self.book.wrong.append(f"{self.name} was removed at {out_since_s:.1f} s and wrote at {began_s:.1f} s")
