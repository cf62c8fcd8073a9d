"""Who lives in a world: clients of every protocol with their real code, an operator, and somebody who means no good.

An actor is a process. It may be killed and is started again; what it was promised is in the book, what it remembers is
what its protocol lets it find again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence

from headrace.protocols.ambrosia.client import Host, Immortal, fork, proxy_of
from headrace.protocols.futoin.client import Client as FutoinClient
from headrace.protocols.ockam.client import Consumer, Publisher
from headrace.protocols.perper.errors import PeerError
from headrace.protocols.perper.ignite.binary import encode_long, encode_string
from headrace.protocols.perper.ignite.client import IgniteClient
from headrace.protocols.wallaroo.client import Connector
from headrace.protocols.wallaroo.client_session import Item
from headrace.testing.world.book import Book, Counter, Register
from headrace.testing.world.hub import HubProcess
from headrace.testing.world.scheduler import Machine

RETRY_S = 0.2
ANSWER_S = 20.0
"""A client that hears nothing for so long tries again."""
PASSWORD = "a password of the world"
RESERVED = ("perper.caches", "ambrosia/immortals", "spark/pipelines", "ockam.addresses")
ROUNDS = 60
"""How often two immortals play."""
NULL = b"e"
"""What Ignite answers for a key that is not there."""
LOST = (OSError, TimeoutError, EOFError, asyncio.CancelledError)


class Actor:
    """One process, again and again until its work is done."""

    kind = "actor"
    can_die = True

    def __init__(self, number: int, hub: HubProcess, book: Book) -> None:
        self.name = f"{self.kind}-{number}"
        self.hub = hub
        self.world = hub.world
        self.random = self.world.random
        self.book = book
        self.is_done = False
        self.machine: Machine | None = None

    def start(self) -> None:
        self.machine = self.world.start(self.name, self._live)

    async def _live(self) -> None:
        await self.work()
        self.is_done = True
        self.world.tell(self.name, "done")

    async def work(self) -> None:
        raise NotImplementedError

    def port(self, listener: str) -> int:
        return self.hub.ports[listener]

    async def retry(self) -> None:
        await asyncio.sleep(RETRY_S * self.random.uniform(0.5, 2))


class _Numbered:
    """A Wallaroo source: ids are numbers from 1."""

    def __init__(self, actor: WallarooProducer) -> None:
        self.name = actor.stream
        self._actor = actor
        self._next = 0

    def rewind(self, point: int | None) -> None:
        self._next = point or 0

    async def read(self, limit: int) -> Sequence[Item] | None:
        actor = self._actor
        if self._next >= actor.count:
            return None
        await asyncio.sleep(actor.random.uniform(0, actor.pace_s))
        first, self._next = self._next, min(self._next + actor.random.randint(1, 20), actor.count, self._next + limit)
        actor.written.sent.update(range(first, self._next))
        return [Item(number + 1, actor.record(number)) for number in range(first, self._next)]


class Producer(Actor):
    """Writes numbered records to a stream."""

    once = False
    pace_s = 0.5

    def __init__(self, number: int, hub: HubProcess, book: Book, stream: str, count: int) -> None:
        super().__init__(number, hub, book)
        self.stream = stream
        self.count = count
        self.size = self.random.choice([0, 10, 300])
        self.written = book.producer(self.name, stream, once=self.once)
        self.next = 0
        """In the memory of the user, who has it on paper."""

    def record(self, number: int) -> bytes:
        return f"{self.name}:{number}{' ' * self.size}".encode()


class WallarooProducer(Producer):
    """The connector with a source that it can rewind: each record is stored once."""

    kind = "wallaroo"
    once = True

    def __init__(self, number: int, hub: HubProcess, book: Book, stream: str, count: int) -> None:
        super().__init__(number, hub, book, f"{stream}-{number}", count)  # a stream has one connector at a time

    async def work(self) -> None:
        async with Connector(self.hub.address("wallaroo"), attempts_max=None) as connector:
            await connector.run(_Numbered(self), self._durable)

    def _durable(self, point: int) -> None:
        for number in range(len(self.written.acked), point):
            self.written.acked[number] = None


class OckamProducer(Producer):
    """The publisher: what is not confirmed is pushed again."""

    kind = "ockam"

    async def work(self) -> None:
        while self.next < self.count:
            try:
                async with Publisher(self.hub.address("ockam"), self.stream) as publisher:
                    while self.next < self.count:
                        numbers = range(self.next, min(self.count, self.next + self.random.randint(1, 8)))
                        self.written.sent.update(numbers)
                        indexes = await publisher.publish_all([self.record(number) for number in numbers])
                        self.written.acked.update(zip(numbers, indexes, strict=True))
                        self.next = numbers.stop
                        await asyncio.sleep(self.random.uniform(0, self.pace_s))
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
                async with await FutoinClient.connect(url, ping_interval=None) as client:
                    while self.next < self.count:
                        self.written.sent.add(self.next)
                        added = client.add("EVENT", self.record(self.next).decode())
                        self.written.acked[self.next] = await asyncio.wait_for(added, ANSWER_S) - 1
                        self.next += 1
                        await asyncio.sleep(self.random.uniform(0, self.pace_s))
            await self.retry()


class OckamConsumer(Actor):
    """Pulls a stream under a name, and finds its position again."""

    kind = "puller"

    def __init__(self, number: int, hub: HubProcess, book: Book, stream: str) -> None:
        super().__init__(number, hub, book)
        self.stream = stream
        self.began = 0
        self.is_done = True  # it never ends, and nobody waits for it

    async def _live(self) -> None:
        while True:
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
            await self.retry()

    def _begins(self, index: int) -> None:
        if index < self.began:
            self.book.wrong.append(f"{self.name} began at {self.began} once, and now at {index}: its cursor went back")
        self.began = index


class FutoinPoller(Actor):
    """A reliable consumer: events come in order, none is left out, and confirmed ones do not come again."""

    kind = "poller"

    def __init__(self, number: int, hub: HubProcess, book: Book, stream: str) -> None:
        super().__init__(number, hub, book)
        self.stream = stream
        self.last_id: int | None = None
        self.is_done = True

    async def _live(self) -> None:
        while True:
            with contextlib.suppress(Exception):
                url = f"ws://{self.hub.address('http')}/futoin/{self.stream}"
                async with await FutoinClient.connect(url, ping_interval=None) as client:
                    await asyncio.wait_for(client.register(self.name), ANSWER_S)
                    while True:
                        events = await asyncio.wait_for(client.poll(self.name, self.last_id), ANSWER_S)
                        for event in events:
                            self._take(event.id, event.data)
                        await asyncio.sleep(self.random.uniform(0.05, 0.5))
            await self.retry()

    def _take(self, id: int, data: object) -> None:
        if self.last_id is not None and id <= self.last_id:
            self.book.wrong.append(f"{self.name}: event {id} came after {self.last_id}")
        self.last_id = id
        record = data if isinstance(data, str) else json.dumps(data)
        self.book.saw(self.stream, id - 1, record.strip())


class IgniteWriter(Actor):
    """The only writer of its keys, who reads what it has written."""

    kind = "ignite"

    def __init__(self, number: int, hub: HubProcess, book: Book, count: int) -> None:
        super().__init__(number, hub, book)
        self.cache = f"cache-{number % 2}"
        self.count = count
        self.next = 0
        self.registers = [Register(self.cache, f"{self.name}/{key}", {NULL}) for key in range(3)]
        book.registers += self.registers

    async def work(self) -> None:
        while self.next < self.count:
            with contextlib.suppress(PeerError, *LOST):
                client = await asyncio.wait_for(IgniteClient.connect("127.0.0.1", self.port("ignite")), ANSWER_S)
                await asyncio.wait_for(client.request(1052, self.cache), ANSWER_S)
                while self.next < self.count:
                    await self._step(client, self.random.choice(self.registers))
                    await asyncio.sleep(self.random.uniform(0, 0.4))
            await self.retry()

    async def _step(self, client: IgniteClient, register: Register) -> None:
        key = encode_string(register.key)
        if self.random.random() < 0.5:
            found = await asyncio.wait_for(client.request(1000, key, cache=self.cache), ANSWER_S)
            self.check(register, found)
            return
        value = encode_string(f"{self.name}={self.next}")
        register.may_hold.add(value)
        await asyncio.wait_for(client.request(1001, key, value, cache=self.cache), ANSWER_S)
        register.may_hold.intersection_update({value})
        self.next += 1

    def check(self, register: Register, found: bytes) -> None:
        if found not in register.may_hold:
            self.book.wrong.append(f"{register.key} holds {found!r}, and may hold {sorted(register.may_hold)}")


class IgniteCounter(Actor):
    """Raises a number that others raise too: compare, set, and count what was answered."""

    kind = "counter"
    KEY = "number"

    def __init__(self, number: int, hub: HubProcess, book: Book, count: int) -> None:
        super().__init__(number, hub, book)
        self.count = count
        self.counter = Counter("cache-0", self.KEY, [0, 0])
        book.counters.append(self.counter)

    async def work(self) -> None:
        while self.counter.raised[0] < self.count:
            with contextlib.suppress(PeerError, *LOST):
                client = await asyncio.wait_for(IgniteClient.connect("127.0.0.1", self.port("ignite")), ANSWER_S)
                await asyncio.wait_for(client.request(1052, "cache-0"), ANSWER_S)
                key = encode_string(self.KEY)
                await asyncio.wait_for(client.request(1002, key, encode_long(0), cache="cache-0"), ANSWER_S)
                while self.counter.raised[0] < self.count:
                    await self._raise(client, key)
                    await asyncio.sleep(self.random.uniform(0, 0.3))
            await self.retry()

    async def _raise(self, client: IgniteClient, key: bytes) -> None:
        old = await asyncio.wait_for(client.request(1000, key, cache="cache-0"), ANSWER_S)
        new = encode_long(int.from_bytes(old[1:], "little", signed=True) + 1)
        self.counter.raised[1] += 1
        was_set = await asyncio.wait_for(client.request(1010, key, old, new, cache="cache-0"), ANSWER_S)
        self.counter.raised[1] -= 1
        self.counter.raised[0] += bool(was_set)


class Vandal(Actor):
    """Sends anything to anybody, stops in the middle, and never reads."""

    kind = "vandal"

    def __init__(self, number: int, hub: HubProcess, book: Book) -> None:
        super().__init__(number, hub, book)
        self.is_done = True

    async def _live(self) -> None:
        while True:
            with contextlib.suppress(*LOST):
                listener = self.random.choice(sorted(self.hub.ports))
                _, writer = await asyncio.open_connection("127.0.0.1", self.port(listener))
                for _ in range(self.random.randint(1, 5)):
                    writer.write(self.random.randbytes(self.random.choice([1, 7, 100, 5000])))
                    await asyncio.sleep(self.random.uniform(0, 2))
                if self.random.random() < 0.5:
                    writer.close()
            await asyncio.sleep(self.random.uniform(0.1, 5))


class Operator(Actor):
    """Uses verbs over HTTP: makes and trims streams."""

    kind = "operator"

    def __init__(self, number: int, hub: HubProcess, book: Book, streams: Sequence[str]) -> None:
        super().__init__(number, hub, book)
        self.streams = list(streams)
        self.is_done = True

    async def _live(self) -> None:
        while True:
            with contextlib.suppress(*LOST, ValueError):
                stream = self.random.choice(self.streams)
                described = await self.verb("stream.describe", stream=stream)
                if self.random.random() < 0.3 and "bounds" in described:
                    bounds = described["bounds"][0]
                    before = self.random.randint(bounds["first"], (bounds["first"] + bounds["next"]) // 2)
                    self.book.trimmed[stream] = max(before, self.book.trimmed.get(stream, 0))
                    await self.verb("stream.trim", stream=stream, before=before)
                for verb in ("stream.list", "cursor.list", "session.list", "hub.info"):
                    await self.verb(verb)
            await asyncio.sleep(self.random.uniform(0.5, 6))

    async def verb(self, name: str, **body: object) -> dict[str, list[dict[str, int]]]:
        """Raises `ValueError` when the hub says no."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port("http"))
        data = json.dumps(body).encode()
        head = f"POST /api/v1/{name} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
        answer = await asyncio.wait_for(reader.read(-1), ANSWER_S)
        writer.close()
        status, _, rest = answer.partition(b"\r\n")
        if b" 200 " not in status:
            raise ValueError(status.decode())
        decoded: dict[str, list[dict[str, int]]] = json.loads(rest.partition(b"\r\n\r\n")[2])
        return decoded


class Gatekeeper(Operator):
    """Lets a guest in, and takes the right away again. Within `SOON_S` of that nothing more may succeed."""

    kind = "gatekeeper"
    can_die = False
    SOON_S = 1.5

    def __init__(self, number: int, hub: HubProcess, book: Book) -> None:
        super().__init__(number, hub, book, ["orders"])
        self.removed_s: float | None = None
        """Since when the guest is out for sure; None while it may be in."""
        self.has_added = False

    async def _live(self) -> None:
        while True:
            with contextlib.suppress(*LOST, ValueError):
                self.removed_s = None
                await self.verb("user.add", user="guest", secret=PASSWORD, roles=["writer"])
                self.has_added = True
                await asyncio.sleep(self.random.uniform(1, 10))
                await self.verb("user.remove", user="guest")
                self.removed_s = self.world.now_s
                await asyncio.sleep(self.random.uniform(2, 10))
            await self.retry()


class Guest(Actor):
    """Writes while it may, tries while it may not, and always tries what only the hub itself may."""

    kind = "guest"

    def __init__(self, number: int, hub: HubProcess, book: Book, gatekeeper: Gatekeeper) -> None:
        super().__init__(number, hub, book)
        self.is_done = True
        self._gatekeeper = gatekeeper

    async def _live(self) -> None:
        while True:
            if not self._gatekeeper.has_added:  # a hub that never had users lets in whoever comes
                await self.retry()
                continue
            with contextlib.suppress(PeerError, *LOST):
                connected = IgniteClient.connect("127.0.0.1", self.port("ignite"), user="guest", password=PASSWORD)
                client = await asyncio.wait_for(connected, ANSWER_S)
                while True:
                    await self._try(client)
                    await asyncio.sleep(self.random.uniform(0.1, 1))
            await self.retry()

    async def _try(self, client: IgniteClient) -> None:
        out_since_s, began_s = self._gatekeeper.removed_s, self.world.now_s
        await asyncio.wait_for(client.request(1052, "guests"), ANSWER_S)
        await asyncio.wait_for(client.request(1001, encode_string("k"), encode_string("v"), cache="guests"), ANSWER_S)
        if out_since_s is not None and began_s > out_since_s + Gatekeeper.SOON_S:
            self.book.wrong.append(f"{self.name} was removed at {out_since_s:.1f} s and wrote at {began_s:.1f} s")
        with contextlib.suppress(PeerError):
            put = client.request(1001, encode_string("x"), encode_string("y"), cache=self.random.choice(RESERVED))
            await asyncio.wait_for(put, ANSWER_S)
            self.book.wrong.append(f"{self.name} wrote to a table of the hub's own")


class Counting(Immortal):
    """What both immortals have in common: every number comes once, in order."""

    last: int = 0
    wrong: list[str]

    def __init__(self) -> None:
        self.wrong = []

    def count(self, number: int) -> None:
        if number != self.last + 1:
            self.wrong.append(f"{number} after {self.last}")
        self.last = number


class Pong(Counting):
    @fork
    def ping(self, number: int) -> None:
        self.count(number)
        self.peer(proxy_of(Ping), "ping").pong(number)


class Ping(Counting):
    def first_start(self) -> None:
        self.peer(proxy_of(Pong), "pong").ping(1)

    @fork
    def pong(self, number: int) -> None:
        self.count(number)
        if number < ROUNDS:
            self.peer(proxy_of(Pong), "pong").ping(number + 1)


class ImmortalActor(Actor):
    """One of two immortals that play."""

    kind = "immortal"

    def __init__(self, number: int, hub: HubProcess, book: Book, name: str) -> None:
        super().__init__(number, hub, book)
        self.immortal = name
        book.checks.append(self._judge)
        self._last: Counting | None = None

    def _judge(self) -> str:
        wrong = [] if self._last is None else self._last.wrong
        return f"{self.immortal}: {wrong[:3]}" if wrong else ""

    async def _live(self) -> None:
        factory = Ping if self.immortal == "ping" else Pong
        receive, send = self.hub.immortal_ports[self.immortal]
        host = Host(factory, name=self.immortal, receive=f"127.0.0.1:{receive}", send=f"127.0.0.1:{send}")
        running = asyncio.ensure_future(host.run())
        while not running.done():
            await asyncio.sleep(0.25)
            if host.recoveries or hasattr(host, "engine"):
                immortal = host.immortal
                assert isinstance(immortal, Counting)
                self._last = immortal
                if immortal.last >= ROUNDS and not self.is_done:
                    self.is_done = True
                    self.world.tell(self.name, f"reached {ROUNDS}")
        await running


def plain(record: bytes) -> str:
    """A record as its producer named it: FutoIn's are JSON strings."""
    text = record.decode("utf-8", "replace")
    return (json.loads(text) if text.startswith('"') else text).strip()
