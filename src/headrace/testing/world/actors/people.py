"""People: an operator, somebody at the gate with a guest, and one who means no good."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from headrace.errors import HeadraceError
from headrace.protocols.futoin.client import Credentials, Signer
from headrace.protocols.perper.errors import PeerError
from headrace.protocols.perper.fabric.client import FabricClient, RpcError
from headrace.protocols.perper.ignite.binary import encode_string
from headrace.protocols.perper.ignite.client import IgniteClient
from headrace.protocols.wallaroo.client import Connector
from headrace.testing.world.actors.actor import LOST, Refused, Watcher, basic, encoded, soon
from headrace.testing.world.actors.futoin import NotDone, post
from headrace.testing.world.book import Book
from headrace.testing.world.hub import FAREWELL_S, GUEST_KEY, HubProcess

LOOKS = (
    *("stream.list", "table.list", "cursor.list", "session.list", "checkpoint.list", "dead.list", "user.list"),
    *("hub.info", "hub.asyncapi", "verb.list", "config.show", "user.whoami", "pipeline.list", "immortal.list"),
    *("immortal.openapi", "agents.list", "agents.executions", "agents.caches", "console.map", "console.streams"),
    *("console.sessions", "console.cursors", "console.history", "console.changes", "console.pipelines"),
)
"""Verbs that change nothing."""
LOOKS_AT_STREAMS = ("stream.describe", "stream.bounds", "stream.segments", "console.stream")
KEPT: tuple[dict[str, Any], ...] = (
    {},
    {"retention_bytes": 500},
    {"retention_bytes": 3000},
    {"retention_age_s": 3},
    {"retention_cursors": True},
)
"""How streams may be kept."""
HELD_S = 5.0
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
        self.trims, self.retains, self.holds = (self.random.random() < 0.5 for _ in range(3))
        self.scratch_next = 0
        """Where the next records of a stream stand that is deleted and created again: indexes are never used twice."""

    async def work(self) -> None:
        with contextlib.suppress(Refused, *LOST):
            doings = [self._trim, self._retain, self._hold, self._scratch, self._look, self._look]
            await self.random.choice(doings)()
        await asyncio.sleep(self.random.uniform(0.5, 6))

    async def _trim(self) -> None:
        stream = self.random.choice(self.streams)
        if self.trims:
            bounds = (await self.verb("stream.describe", stream=stream))["bounds"][0]
            before = self.random.randint(bounds["first"], (bounds["first"] + bounds["next"]) // 2)
            self.book.trimmed[stream] = max(before, self.book.trimmed.get(stream, 0))
            await self.verb("stream.trim", stream=stream, before=before)

    async def _retain(self, stream: str | None = None) -> None:
        stream = stream or self.random.choice(self.streams)
        if self.retains:
            options = self.random.choice(KEPT)
            self.book.retained.add(stream)
            await self.verb("stream.set-options", stream=stream, options=options)

    async def _hold(self) -> None:
        """Somebody who reads very slowly: what their cursor needs is kept, whatever retention wants."""
        stream = self.random.choice(self.streams)
        cursor = f"{self.name}/slow"
        if not self.holds or (cursor, stream) in self.book.cursors:
            return
        bounds = (await self.verb("stream.describe", stream=stream))["bounds"][0]
        index = self.random.randint(bounds["first"], bounds["next"])
        await self.verb("cursor.save", cursor=cursor, stream=stream, index=index)
        await asyncio.sleep(HELD_S)  # what was decided before may still go
        bounds = (await self.verb("stream.describe", stream=stream))["bounds"][0]
        if bounds["first"] <= index:
            self.book.cursors[cursor, stream] = index
            await self._retain(stream)

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
        for verb in self.random.sample(LOOKS, 4):
            await self._ask(verb)
        for verb in self.random.sample(LOOKS_AT_STREAMS, 2):
            await self._ask(verb, stream=self.random.choice(self.streams))

    async def _ask(self, verb: str, **body: Any) -> None:
        """A question may be refused, and never breaks anything."""
        try:
            await self.verb(verb, **body)
        except Refused as refused:
            if refused.status == 500:
                self.book.wrong.append(f"{verb} {body}: {refused}")


class Gatekeeper(Watcher):
    """Lets a guest in, and takes the right away again. Within `SOON_S` of that nothing more may succeed."""

    kind = "gatekeeper"
    can_die = False
    SOON_S = 1.5

    def __init__(self, number: int, hub: HubProcess, book: Book) -> None:
        super().__init__(number, hub, book)
        self.removed_s: float | None = None
        """Since when the guest is out for sure; None while it may be in."""
        self.stays = False
        """The guest is still known, and may do less."""
        self.has_added = False
        self.token = ""
        """With which the guest may come, too."""

    async def work(self) -> None:
        with contextlib.suppress(Refused, *LOST):
            self.removed_s, self.stays = None, False
            await self.verb("user.add", user="guest", secret=PASSWORD, roles=["writer"])
            self.has_added = True
            self.token = (await self.verb("user.token", user="guest"))["token"]
            await asyncio.sleep(self.random.uniform(1, 10))
            if self.random.random() < 0.5:
                await self.verb("user.remove", user="guest")
            else:  # it stays, and may only read
                await self.verb("user.add", user="guest", secret=PASSWORD, roles=["reader"])
                self.stays = True
            self.removed_s = self.world.now_s
            await asyncio.sleep(self.random.uniform(2, 10))
            if not self.stays and self.world.now_s > self.removed_s + self.SOON_S + FAREWELL_S:
                await self._check_sessions()

    async def _check_sessions(self) -> None:
        """None of somebody who was removed is left, but one that waits for its line to come back."""
        for session in await self.verb("session.list"):
            details = session["details"]
            if details.get("user") == "guest" and not session["closed_us"] and not details["last_error"]:
                self.book.wrong.append(
                    f"a session of guest is open, who was removed at {self.removed_s:.1f} s: {session}"
                )


class Guest(Watcher):
    """Writes while it may, tries while it may not, and always tries what only the hub itself may."""

    kind = "guest"

    def __init__(self, number: int, hub: HubProcess, book: Book, gatekeeper: Gatekeeper) -> None:
        super().__init__(number, hub, book)
        self._gatekeeper = gatekeeper

    async def work(self) -> None:
        if not self._gatekeeper.has_added:  # a hub that never had users lets in whoever comes
            return
        with contextlib.suppress(PeerError, RpcError, Refused, NotDone, HeadraceError, *LOST):
            ways = [self._by_ignite, self._by_verbs, self._by_futoin, self._by_fabric, self._by_wallaroo]
            await self.random.choice([*ways, self._in_silence])()

    async def _in_silence(self) -> None:
        """Sign in, and say nothing more: nobody refuses what is not asked."""
        connected = IgniteClient.connect("127.0.0.1", self.port("ignite"), user="guest", password=PASSWORD)
        client = await soon(connected)
        await asyncio.sleep(self.random.uniform(5, 30))
        await soon(client.close())

    async def _by_verbs(self) -> None:
        token = self._gatekeeper.token
        signed = f"Bearer {token}" if token and self.random.random() < 0.5 else basic("guest", PASSWORD)
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

    async def _by_futoin(self) -> None:
        add, event = "futoin.evt.gen:1.1:addEvent", {"type": "EVENT", "data": "x"}
        ways: list[Credentials] = [f"guest:{PASSWORD}", Signer("guest", GUEST_KEY)]
        credentials = self.random.choice(ways)
        with contextlib.suppress(NotDone):
            await post(self, "guests", add, event, credentials=Signer("guest", GUEST_KEY[:-1]))
            self.book.wrong.append(f"{self.name} wrote with a wrong signature")
        while True:
            began = self._began()
            await post(self, "guests", add, event, credentials=credentials)
            self._wrote(*began)
            await asyncio.sleep(self.random.uniform(0.1, 1))

    async def _by_fabric(self) -> None:
        """A worker's call is open for as long as the guest may have it."""
        client = await soon(FabricClient.connect("127.0.0.1", self.port("fabric")))
        try:
            signed = [("authorization", basic("guest", PASSWORD))]
            began = self._began()
            asked = {"reserveNext": 1, "workGroup": "guests", "filter": {"agent": "guests"}}
            call = client.start("/perper.Fabric/ReservedExecutions", asked, end=False, metadata=signed)
            async with asyncio.timeout(self.random.uniform(5, 30)):
                await call.next()
                self._wrote(*began)
                await call.next()
        finally:
            client._transport.abort()

    async def _by_wallaroo(self) -> None:
        cookie = self._gatekeeper.token
        if cookie:
            address = self.hub.address("wallaroo")
            async with Connector(address, attempts_max=2, cookie=cookie, instance="guest") as connector:
                stream = await soon(connector.stream("guests"))
                while True:
                    began = self._began()
                    await soon(stream.send(b"x"))
                    await soon(stream.flush())
                    self._wrote(*began)
                    await asyncio.sleep(self.random.uniform(0.1, 1))

    def _began(self) -> tuple[float | None, float]:
        return self._gatekeeper.removed_s, self.world.now_s

    def _wrote(self, out_since_s: float | None, began_s: float) -> None:
        is_still_out = out_since_s is not None and out_since_s == self._gatekeeper.removed_s
        if is_still_out and began_s > (out_since_s or 0.0) + Gatekeeper.SOON_S:
            self.book.wrong.append(f"{self.name} was removed at {out_since_s:.1f} s and wrote at {began_s:.1f} s")
