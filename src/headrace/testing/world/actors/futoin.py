"""Those who speak FutoIn without a WebSocket, and those who only want what is new."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any
from urllib.parse import quote

from headrace.protocols.futoin import codec
from headrace.protocols.futoin.client import Client as FutoinClient
from headrace.protocols.futoin.client import Credentials, Event, Receiver, Signer
from headrace.protocols.futoin.codec import Coding, Undecodable
from headrace.testing.world.actors.actor import LOST, Actor, ask_http, soon
from headrace.testing.world.actors.consumers import FutoinReader
from headrace.testing.world.actors.producers import QUIET, Producer

GEN, POLL = "futoin.evt.gen:1.1", "futoin.evt.poll:1.1"


class NotDone(Exception):
    """What FutoIn answers instead of a result."""


async def post(
    actor: Actor, stream: str, function: str, params: dict[str, Any], *, credentials: Credentials = None
) -> Any:
    """One message as one HTTP request."""
    coding = actor.random.choice(list(Coding))
    if isinstance(credentials, Signer):
        unsigned = codec.decode_object(codec.request(function, params, "C1", None, coding), coding)
        credentials = credentials.sec(unsigned)
    assert credentials is None or isinstance(credentials, str)
    message = codec.request(function, params, "C1", credentials, coding)
    media_type = actor.random.choice(["application/futoin", "application/vnd.futoin"])
    headers = {"content-type": f"{media_type}+{coding.value}"}
    answer = await soon(ask_http(actor.port("http"), "POST", f"/futoin/{quote(stream, safe=';=')}", message, **headers))
    return _result(answer.body)


async def by_path(actor: Actor, stream: str, function: str, params: dict[str, str]) -> Any:
    """The same in a path, as a browser or `curl` asks."""
    interface, version, name = function.split(":")
    query = "&".join(f"{key}={quote(value)}" for key, value in params.items())
    path = f"/futoin/{quote(stream)}/{interface}/{version}/{name}?{query}"
    return _result((await soon(ask_http(actor.port("http"), "GET", path))).body)


def _result(body: bytes) -> Any:
    try:
        fields = codec.decode_object(body, codec.coding_of(body))
    except Undecodable as error:
        raise EOFError("the connection ended in the middle of the answer") from error
    if not isinstance(fields, dict) or "r" not in fields:
        raise NotDone(str(fields))
    return fields["r"]


class FutoinPoster(Producer):
    """`addEvent` with a request for each: what is not answered is added again."""

    kind = "poster"

    async def work(self) -> None:
        while self.next < self.count:
            with contextlib.suppress(NotDone, *LOST):
                while self.next < self.count:
                    self.written.sent.add(self.next)
                    index = self.written.acked[self.next] = int(await self._add(self.record(self.next).decode())) - 1
                    self.told(range(self.next, self.next + 1), f" at {index}")
                    self.next += 1
                    await self.rest()
            await self.retry()

    async def _add(self, data: str) -> str:
        if self.random.random() < 0.3:
            params = {"type": "EVENT", "data": json.dumps(data)}
            added: str = await by_path(self, self.stream, f"{GEN}:addEvent", params)
        else:
            added = await post(self, self.stream, f"{GEN}:addEvent", {"type": "EVENT", "data": data})
        return added


class HttpPoller(FutoinReader):
    """Asks for events with a request for each; confirmed ones do not come again, to whichever program it is."""

    kind = "asker"

    async def work(self) -> None:
        with contextlib.suppress(NotDone, *LOST):
            await post(self, self.stream, f"{POLL}:registerConsumer", {"component": self.component})
            while True:
                params: dict[str, Any] = {"component": self.component}
                if self.last_id:
                    params["last_id"] = str(self.last_id)
                for each in await post(self, self.stream, f"{POLL}:pollEvents", params):
                    if self.last_id is not None and int(each["id"]) <= self.last_id:
                        self.book.wrong.append(f"{self.name}: event {each['id']} came after {self.last_id}")
                    self.take(int(each["id"]), each["data"])
                await asyncio.sleep(self.random.uniform(0.05, 1))


class LiveReceiver(FutoinReader):
    """Wants what is added from now on, in order, and may miss some of it."""

    kind = "live"

    async def work(self) -> None:
        url = f"ws://{self.hub.address('http')}/futoin/{self.stream}"
        coding = self.random.choice(list(Coding))
        receiver = Receiver(url, handle=self._handle, coding=coding, **QUIET)
        with contextlib.suppress(Exception):
            async with asyncio.timeout(self.random.uniform(5, 40)):
                await receiver.run()

    async def _handle(self, events: list[Event]) -> None:
        for event in events:
            if self.last_id is not None and event.id <= self.last_id:
                self.book.wrong.append(f"{self.name}: event {event.id} came after {self.last_id}")
            self.last_id = None  # what lies between is nobody's promise
            self.take(event.id, event.data)
        await asyncio.sleep(self.random.uniform(0, 1))


class Replaced(FutoinReader):
    """Two programs of one consumer: the second takes the place of the first."""

    kind = "replaced"

    async def work(self) -> None:
        with contextlib.suppress(Exception):
            url = f"ws://{self.hub.address('http')}/futoin/{self.stream}"
            async with (
                await FutoinClient.connect(url, coding=Coding.MESSAGEPACK, **QUIET) as first,
                await FutoinClient.connect(url, coding=Coding.CBOR, **QUIET) as second,
            ):
                await soon(first.register(self.component))
                for client in (first, second):
                    await soon(client.ready_to_receive(self.component, self._group))
                    await asyncio.sleep(self.random.uniform(0, 5))
                if await soon(second.ping(7)) != 7:
                    self.book.wrong.append(f"{self.name} was not answered what it asked")

    async def _group(self, seq: int, events: list[Event]) -> None:
        ids = [event.id for event in events]
        if ids != sorted(ids):
            self.book.wrong.append(f"{self.name} was given the events {ids} together")
        for event in events:
            record = event.data if isinstance(event.data, str) else None
            if record is not None:
                self.book.saw(self.stream, event.id - 1, record.strip())
