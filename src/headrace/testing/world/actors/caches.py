"""Writers of tables: by Ignite's thin protocol, in transactions too, and by the verbs of tables."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from headrace.protocols.perper.errors import PeerError
from headrace.protocols.perper.ignite.binary import encode_long, encode_string
from headrace.protocols.perper.ignite.client import IgniteClient
from headrace.protocols.perper.ignite.configuration import TRANSACTIONAL, Configuration
from headrace.testing.world.actors.actor import LOST, Actor, Refused, encoded, soon
from headrace.testing.world.book import Book, Counter, Register
from headrace.testing.world.hub import HubProcess

NULL = b"e"
"""What Ignite answers for a key that is not there."""
GET, PUT, PUT_IF_ABSENT, REPLACE_IF_EQUALS, CREATE, CREATE_CONFIGURED = 1000, 1001, 1002, 1010, 1052, 1054
GET_ALL, PUT_ALL, GET_AND_PUT, GET_AND_REMOVE, CLEAR, REMOVE_KEYS, SIZE = 1003, 1004, 1005, 1007, 1013, 1018, 1020
SCAN, SCAN_MORE = 2000, 2001
NAMES = 1050
BEGIN, END = 4000, 4001
OPTIMISTIC = 0
READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE = 0, 1, 2
IN_TRANSACTION = 2
ACCOUNTS = 4
MONEY = 1000
OPENED = encode_string("opened")
Step = Callable[[IgniteClient, list[bytes]], Awaitable[None]]


class IgniteActor(Actor):
    """A thin client that connects again whenever it has to."""

    cache = ""

    async def work(self) -> None:
        while not self.has_ended():
            with contextlib.suppress(PeerError, *LOST):
                client = await self.connected()
                try:
                    await self.prepare(client)
                    while not self.has_ended():
                        await self.step(client)
                        await asyncio.sleep(self.random.uniform(0, 0.4))
                finally:
                    client._transport.abort()  # what was not answered must not be done later, behind something newer
            await self.retry()

    async def connected(self) -> IgniteClient:
        return await soon(IgniteClient.connect("127.0.0.1", self.port("ignite")))

    def has_ended(self) -> bool:
        raise NotImplementedError

    async def prepare(self, client: IgniteClient) -> None:
        await soon(client.request(CREATE, self.cache))

    async def step(self, client: IgniteClient) -> None:
        raise NotImplementedError


class IgniteWriter(IgniteActor):
    """The only writer of its keys, who reads what it has written."""

    kind = "ignite"

    def __init__(self, number: int, hub: HubProcess, book: Book, count: int) -> None:
        super().__init__(number, hub, book)
        self.cache = f"cache-{number % 2}"
        self.count = count
        self.next = 0
        self.registers = [Register(self.cache, f"{self.name}/{key}", {NULL}) for key in range(3)]
        book.registers += self.registers

    def has_ended(self) -> bool:
        return self.next >= self.count

    async def step(self, client: IgniteClient) -> None:
        register = self.random.choice(self.registers)
        key = encode_key(register.key)
        if self.random.random() < 0.5:
            found = await soon(client.request(GET, key, cache=self.cache))
            self.book.holds(register, found)
            return
        value = encode_string(f"{self.name}={self.next}")
        register.may_hold.add(value)
        await soon(client.request(PUT, key, value, cache=self.cache))
        register.may_hold.intersection_update({value})
        self.next += 1


class Mapper(IgniteActor):
    """The only writer of a cache, with all that Ignite has for several keys, for old values and for pages of a scan."""

    kind = "mapper"

    def __init__(self, number: int, hub: HubProcess, book: Book, count: int) -> None:
        super().__init__(number, hub, book)
        self.cache = f"{self.name}-cache"
        self.left = count
        self.registers = {encode_string(f"k{key}"): Register(self.cache, f"k{key}", {NULL}) for key in range(6)}
        book.registers += self.registers.values()
        self.steps: list[Step] = [self._put_all, self._remove, self._swap, self._take]
        self.steps += [self._get_all, self._scan, self._count]

    def has_ended(self) -> bool:
        return self.left <= 0

    async def step(self, client: IgniteClient) -> None:
        keys = self.random.sample(sorted(self.registers), self.random.randint(1, len(self.registers)))
        await self.random.choice(self.steps)(client, keys)
        self.left -= 1

    def _value(self) -> bytes:
        return encode_string(f"{self.name}={self.left}")

    async def _change(self, client: IgniteClient, op: int, keys: list[bytes], value: bytes, *arguments: Any) -> Any:
        with changing([self.registers[key] for key in keys], value):
            return await soon(client.request(op, *arguments, cache=self.cache))

    async def _put_all(self, client: IgniteClient, keys: list[bytes]) -> None:
        value = self._value()
        await self._change(client, PUT_ALL, keys, value, [(key, value) for key in keys])

    async def _remove(self, client: IgniteClient, keys: list[bytes]) -> None:
        if len(keys) == len(self.registers):
            await self._change(client, CLEAR, keys, NULL)
        else:
            await self._change(client, REMOVE_KEYS, keys, NULL, keys)

    async def _swap(self, client: IgniteClient, keys: list[bytes]) -> None:
        register, value = self.registers[keys[0]], self._value()
        before = set(register.may_hold)
        old = await self._change(client, GET_AND_PUT, keys[:1], value, keys[0], value)
        self.book.holds(register._replace(may_hold=before), old)

    async def _take(self, client: IgniteClient, keys: list[bytes]) -> None:
        register = self.registers[keys[0]]
        before = set(register.may_hold)
        old = await self._change(client, GET_AND_REMOVE, keys[:1], NULL, keys[0])
        self.book.holds(register._replace(may_hold=before), old)

    async def _get_all(self, client: IgniteClient, keys: list[bytes]) -> None:
        found = dict(await soon(client.request(GET_ALL, keys, cache=self.cache)))
        for key in keys:
            self.book.holds(self.registers[key], found.get(key, NULL))

    async def _scan(self, client: IgniteClient, keys: list[bytes]) -> None:
        page = await soon(client.request(SCAN, NULL, len(keys), -1, False, cache=self.cache))
        rows, cursor = list(page.rows), page.cursor
        while page.more:
            page = await soon(client.request(SCAN_MORE, cursor))
            rows += page.rows
        found = dict(rows)
        if len(found) != len(rows):
            self.book.wrong.append(f"{self.name}: a scan shows a key twice: {rows}")
        for key, register in self.registers.items():
            self.book.holds(register, found.get(key, NULL))

    async def _count(self, client: IgniteClient, keys: list[bytes]) -> None:
        size = await soon(client.request(SIZE, b"", cache=self.cache))
        least = sum(NULL not in register.may_hold for register in self.registers.values())
        most = sum(register.may_hold != {NULL} for register in self.registers.values())
        if not least <= size <= most:
            self.book.wrong.append(f"{self.cache} has {size} entries; it may have {least} to {most}")


class IgniteCounter(IgniteActor):
    """Raises a number that others raise too: compare, set, and count what was answered. It never sees less than it has
    seen, or made of it."""

    kind = "counter"
    cache = "cache-0"
    KEY = "number"

    def __init__(self, number: int, hub: HubProcess, book: Book, count: int) -> None:
        super().__init__(number, hub, book)
        self.count = count
        self.counter = Counter(self.cache, self.KEY, [0, 0])
        self.seen = 0
        book.counters.append(self.counter)

    def has_ended(self) -> bool:
        return self.counter.raised[0] >= self.count

    async def prepare(self, client: IgniteClient) -> None:
        await super().prepare(client)
        await soon(client.request(PUT_IF_ABSENT, encode_string(self.KEY), encode_long(0), cache=self.cache))

    async def step(self, client: IgniteClient) -> None:
        key = encode_string(self.KEY)
        old = await soon(client.request(GET, key, cache=self.cache))
        value = number_of(old)
        if value < self.seen:
            self.book.wrong.append(f"{self.name} saw the counter at {self.seen}, and then at {value}")
        self.seen = value
        self.counter.raised[1] += 1
        was_set = await soon(client.request(REPLACE_IF_EQUALS, key, old, encode_long(value + 1), cache=self.cache))
        self.counter.raised[1] -= 1
        if was_set:
            self.counter.raised[0] += 1
            self.seen = value + 1


class Bank(IgniteActor):
    """Moves money between accounts, each time in one transaction. What was looked at and then written is unchanged when
    a transaction commits, whatever its isolation: so the sum stays."""

    kind = "bank"
    cache = "bank"

    def __init__(self, number: int, hub: HubProcess, book: Book, count: int) -> None:
        super().__init__(number, hub, book)
        self.left = count
        book.banks.add(self.cache)

    def has_ended(self) -> bool:
        return self.left <= 0

    async def prepare(self, client: IgniteClient) -> None:
        await soon(client.request(CREATE_CONFIGURED, Configuration({0: self.cache, 2: TRANSACTIONAL})))
        tx = await self._begin(client, SERIALIZABLE)
        if await self._get(client, OPENED, tx) == NULL:
            for account in (*map(account_key, range(ACCOUNTS)), OPENED):
                await soon(client.request(PUT, account, encode_long(MONEY), cache=self.cache, **tx))
        await self._end(client, tx)

    async def step(self, client: IgniteClient) -> None:
        isolation = self.random.choice([READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE])
        tx = await self._begin(client, isolation)
        accounts = self.random.sample(range(ACCOUNTS), ACCOUNTS)
        held = {account: number_of(await self._get(client, account_key(account), tx)) for account in accounts}
        giver, taker, amount = *accounts[:2], self.random.randint(1, 50)
        for account, now in ((giver, held[giver] - amount), (taker, held[taker] + amount)):
            await soon(client.request(PUT, account_key(account), encode_long(now), cache=self.cache, **tx))
        await self._end(client, tx)
        if isolation == SERIALIZABLE and sum(held.values()) != ACCOUNTS * MONEY:
            self.book.wrong.append(f"{self.name} saw {held} in a transaction that was committed")
        self.left -= 1

    async def _get(self, client: IgniteClient, key: bytes, tx: dict[str, int]) -> bytes:
        found: bytes = await soon(client.request(GET, key, cache=self.cache, **tx))
        return found

    async def _begin(self, client: IgniteClient, isolation: int) -> dict[str, int]:
        number = await soon(client.request(BEGIN, OPTIMISTIC, isolation, 0, None))
        return {"flags": IN_TRANSACTION, "transaction": number}

    async def _end(self, client: IgniteClient, tx: dict[str, int]) -> None:
        self.hub.tempt()
        await soon(client.request(END, tx["transaction"], True))


class TableWriter(Actor):
    """The only writer of its keys in a table, by verbs: puts, removals and several at once."""

    kind = "table"
    table = "table"

    def __init__(self, number: int, hub: HubProcess, book: Book, count: int) -> None:
        super().__init__(number, hub, book)
        self.left = count
        self.registers = [Register(self.table, f"{self.name}/{key}", {None}) for key in range(4)]
        book.rows += self.registers

    async def work(self) -> None:
        while self.left > 0:
            with contextlib.suppress(Refused, *LOST):
                await self.verb("table.create", table=self.table)
                while self.left > 0:
                    await self._step()
                    self.left -= 1
                    await asyncio.sleep(self.random.uniform(0, 0.8))
            await self.retry()

    async def _step(self) -> None:
        what = self.random.choice(["get", "put", "put-many", "delete", "compare"])
        register = self.random.choice(self.registers)
        key, value = encoded(str(register.key).encode()), f"{self.name}={self.left}".encode()
        if what == "get":
            found = (await self.verb("table.get", table=self.table, key=key))["value"]
            self.book.holds(register, None if found is None else decoded(found))
        elif what == "compare":
            await self._compare(register, key, value)
        elif what == "put-many":
            self.hub.tempt()
            items = [(encoded(str(each.key).encode()), encoded(value)) for each in self.registers]
            with changing(self.registers, value):
                await self.verb("table.put-many", table=self.table, items=items)
        elif what == "put":
            with changing([register], value):
                await self.verb("table.put", table=self.table, key=key, value=encoded(value))
        else:
            with changing([register], None):
                await self.verb("table.delete", table=self.table, key=key)

    async def _compare(self, register: Register, key: str, value: bytes) -> None:
        """One that does not fit changes nothing; one that fits does."""
        known = next(iter(register.may_hold)) if len(register.may_hold) == 1 else None
        if known is None:
            return
        asked: dict[str, Any] = {"table": self.table, "key": key, "value": encoded(value)}
        if (await self.verb("table.put", **asked, expect_value=encoded(b"what never was")))["applied"]:
            self.book.wrong.append(f"{register.key} was set although it held something else")
        with changing([register], value):
            changed = await self.verb("table.put", **asked, expect_value=encoded(known))
        if not changed["applied"]:
            self.book.wrong.append(f"{register.key} was not set, as if it did not hold {known!r}")


class Librarian(TableWriter):
    """The only writer of a table, by the verbs for many keys and for all."""

    kind = "librarian"
    table = "library"

    def __init__(self, number: int, hub: HubProcess, book: Book, count: int) -> None:
        Actor.__init__(self, number, hub, book)
        self.left = count
        self.registers = [Register(self.table, f"k{key}", {None}) for key in range(12)]
        book.rows += self.registers

    async def _step(self) -> None:
        some = self.random.sample(self.registers, self.random.randint(1, len(self.registers)))
        keys, value = [encoded(str(each.key).encode()) for each in some], f"{self.name}={self.left}".encode()
        what = self.random.choice(["put-many", "put-many", "delete-many", "clear", "drop", "items", "items"])
        known = _known(some if what == "delete-many" else self.registers)
        if what == "items":
            await self._look_through(self.random.randint(1, 14))
        elif what == "put-many":
            with changing(some, value):
                await self.verb("table.put-many", table=self.table, items=[(key, encoded(value)) for key in keys])
        elif what == "delete-many":
            with changing(some, None):
                removed = await self.verb("table.delete-many", table=self.table, keys=keys)
            self._count(what, known, removed["keys"])
        elif what == "clear":
            with changing(self.registers, None):
                removed = await self.verb("table.clear", table=self.table)
            self._count(what, known, removed["keys"])
        else:
            with changing(self.registers, None):
                await self.verb("table.drop", table=self.table)
            await self.verb("table.create", table=self.table)

    async def _look_through(self, limit: int) -> None:
        """Page by page: nobody else changes it meanwhile."""
        found: dict[bytes, bytes] = {}
        while page := await self.verb("table.items", table=self.table, offset=len(found), limit=limit):
            shown = {decoded(item["key"]): decoded(item["value"]) for item in page}
            if len(shown) < len(page) or shown.keys() & found.keys():
                self.book.wrong.append(f"{self.table}: pages of {limit} show a key twice")
                return
            found |= shown
        for register in self.registers:
            self.book.holds(register, found.get(str(register.key).encode()))

    def _count(self, what: str, known: int | None, said: int) -> None:
        if known is not None and said != known:
            self.book.wrong.append(f"{self.table}: {what} says that {said} keys are gone, and {known} were there")


def _known(registers: list[Register]) -> int | None:
    """How many of these keys there are, if that is certain."""
    if any(len(each.may_hold) > 1 for each in registers):
        return None
    return sum(None not in each.may_hold for each in registers)


@contextlib.contextmanager
def changing(registers: list[Register], value: bytes | None) -> Iterator[None]:
    """Until it is answered they may hold the old or the new, and the new from then on."""
    for register in registers:
        register.may_hold.add(value)
    yield
    for register in registers:
        register.may_hold.intersection_update({value})


def decoded(value: str) -> bytes:
    return base64.b64decode(value)


def encode_key(key: str | int) -> bytes:
    return encode_string(key) if isinstance(key, str) else encode_long(key)


def account_key(account: int) -> bytes:
    return encode_string(f"account {account}")


def number_of(value: bytes) -> int:
    """A long as Ignite sends it; 0 where there is none."""
    return 0 if value == NULL else int.from_bytes(value[1:9], "little", signed=True)
