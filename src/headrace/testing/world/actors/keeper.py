"""A client of Ignite that uses what others leave: conditional changes of one key, questions about keys, transactions
that are taken back, entries that expire, types, and caches that go and come again."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.protocols.perper.errors import PeerError
from headrace.protocols.perper.ignite.binary import java_hash
from headrace.protocols.perper.ignite.client import IgniteClient
from headrace.protocols.perper.ignite.codec import VERSIONS, Version
from headrace.protocols.perper.ignite.configuration import TRANSACTIONAL, Configuration
from headrace.protocols.perper.ignite.types import BinaryType, Field
from headrace.testing.world.actors.actor import soon
from headrace.testing.world.actors.caches import (
    BEGIN,
    CREATE_CONFIGURED,
    END,
    GET,
    IN_TRANSACTION,
    NULL,
    OPTIMISTIC,
    PUT,
    READ_COMMITTED,
    REPEATABLE_READ,
    SERIALIZABLE,
    Mapper,
    changing,
)
from headrace.testing.world.book import Book, Register
from headrace.testing.world.hub import HubProcess

GET_AND_REPLACE, GET_AND_PUT_IF_ABSENT, REPLACE, CONTAINS, CONTAINS_ALL = 1006, 1008, 1009, 1011, 1012
CLEAR_KEY, CLEAR_KEYS, REMOVE_KEY, REMOVE_IF_EQUALS, REMOVE_ALL, PEEK = 1014, 1015, 1016, 1017, 1019, 1021
CREATE_NEW, CONFIGURATION, DESTROY, PARTITIONS = 1051, 1055, 1056, 1101
TYPE_NAME, PUT_TYPE_NAME, GET_TYPE, PUT_TYPE = 3000, 3001, 3002, 3003
PESSIMISTIC = 1
EXPIRES = 4
NEVER_MS = -1
TYPE = BinaryType(4711, "Thing", None, [Field("size", 3, 77)], False, [], {5: (77,)})


class Keeper(Mapper):
    """The only writer of its cache."""

    kind = "keeper"

    def __init__(self, number: int, hub: HubProcess, book: Book, count: int) -> None:
        super().__init__(number, hub, book, count)
        self._expiring: set[bytes] = set()
        self.version: Version = self.random.choice(VERSIONS)
        one = [self._replace, self._replace_and_tell, self._put_if_absent, self._remove_if_equals, self._remove_one]
        many = [self._contains, self._clear, self._take_back, self._let_expire, self._get_all, self._scan, self._count]
        many += [self._at_once, self._at_once]
        self.steps = [*one, *many, self._look, self._name_types, self._put_all, self._swap]
        if self.random.random() < 0.5:
            self.steps.append(self._make_again)

    async def connected(self) -> IgniteClient:
        return await soon(IgniteClient.connect("127.0.0.1", self.port("ignite"), version=self.version))

    async def prepare(self, client: IgniteClient) -> None:
        await soon(client.request(CREATE_CONFIGURED, Configuration({0: self.cache, 2: TRANSACTIONAL})))

    def _wrong(self, what: str) -> None:
        self.book.wrong.append(f"{self.name}: {what}")

    def _settle(self, register: Register, value: bytes) -> None:
        """It holds this from now on; nobody else writes it."""
        self.book.holds(register, value)
        register.may_hold.intersection_update({value, NULL} if value in self._expiring else {value})

    async def _ask(self, client: IgniteClient, op: int, *arguments: Any, **more: Any) -> Any:
        return await soon(client.request(op, *arguments, cache=self.cache, **more))

    # -- one key ---------------------------------------------------------------------------------------------------

    async def _replace(self, client: IgniteClient, keys: list[bytes]) -> None:
        register, value = self.registers[keys[0]], self._value()
        if register.may_hold != {NULL}:
            register.may_hold.add(value)
        self._settle(register, value if await self._ask(client, REPLACE, keys[0], value) else NULL)

    async def _replace_and_tell(self, client: IgniteClient, keys: list[bytes]) -> None:
        register, value = self.registers[keys[0]], self._value()
        before = set(register.may_hold)
        if before != {NULL}:
            register.may_hold.add(value)
        old = await self._ask(client, GET_AND_REPLACE, keys[0], value)
        self.book.holds(register._replace(may_hold=before), old)
        self._settle(register, NULL if old == NULL else value)

    async def _put_if_absent(self, client: IgniteClient, keys: list[bytes]) -> None:
        register, value = self.registers[keys[0]], self._value()
        before = set(register.may_hold)
        if NULL in before:
            register.may_hold.add(value)
        old = await self._ask(client, GET_AND_PUT_IF_ABSENT, keys[0], value)
        self.book.holds(register._replace(may_hold=before), old)
        self._settle(register, value if old == NULL else old)

    async def _remove_if_equals(self, client: IgniteClient, keys: list[bytes]) -> None:
        register = self.registers[keys[0]]
        values = sorted(value for value in register.may_hold if value is not None and value != NULL)
        wanted = self.random.choice([*values, self._value()])
        known = register.may_hold == {wanted}
        if wanted in register.may_hold:
            register.may_hold.add(NULL)
        was_removed = await self._ask(client, REMOVE_IF_EQUALS, keys[0], wanted)
        if known and not was_removed:
            self._wrong(f"{register.key} held {wanted!r} and was not removed")
        if was_removed:
            self._settle(register, NULL)

    async def _remove_one(self, client: IgniteClient, keys: list[bytes]) -> None:
        register = self.registers[keys[0]]
        before = set(register.may_hold)
        with changing([register], NULL):
            was_there = await self._ask(client, REMOVE_KEY, keys[0])
        if before in ({NULL}, {*before} - {NULL}) and was_there == (before == {NULL}):
            self._wrong(f"{register.key} might hold {before}, and was {'' if was_there else 'not '}removed")

    # -- many keys -------------------------------------------------------------------------------------------------

    async def _contains(self, client: IgniteClient, keys: list[bytes]) -> None:
        registers = [self.registers[key] for key in keys]
        are_all = all(NULL not in register.may_hold for register in registers)
        is_none = any(register.may_hold == {NULL} for register in registers)
        said = await self._ask(client, CONTAINS_ALL, keys)
        one = await self._ask(client, CONTAINS, keys[0])
        if (are_all and not (said and one)) or (is_none and said) or (said and not one):
            self._wrong(f"the cache has {keys}: {said}, and the first: {one}; it may hold {registers}")

    async def _at_once(self, client: IgniteClient, keys: list[bytes]) -> None:
        """Puts that are on their way together, with questions behind them: whoever writes reads what it wrote."""
        value = self._value()
        registers = [self.registers[key] for key in keys]
        with changing(registers, value):
            puts = [client.request(PUT, key, value, cache=self.cache) for key in keys]
            gets = [client.request(GET, key, cache=self.cache) for key in keys]
            await soon(asyncio.gather(*puts, *gets))
        for register, got in zip(registers, gets, strict=True):
            self.book.holds(register, got.result())

    async def _clear(self, client: IgniteClient, keys: list[bytes]) -> None:
        ways: list[tuple[Any, ...]] = [(CLEAR_KEY, keys[0]), (CLEAR_KEYS, keys), (REMOVE_ALL,)]
        op, *asked = self.random.choice(ways)
        gone = {CLEAR_KEY: keys[:1], CLEAR_KEYS: keys}.get(op, list(self.registers))
        await self._change(client, op, gone, NULL, *asked)

    async def _take_back(self, client: IgniteClient, keys: list[bytes]) -> None:
        """Nothing of a transaction that is taken back was ever there; inside of it everything is."""
        isolation = self.random.choice([READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE])
        kind = self.random.choice([OPTIMISTIC, PESSIMISTIC])
        number = await soon(client.request(BEGIN, kind, isolation, self.random.choice([0, 60_000]), None))
        inside = {"flags": IN_TRANSACTION, "transaction": number}
        value = self._value()
        await self._ask(client, PUT, keys[0], value, **inside)
        if await self._ask(client, GET, keys[0], **inside) != value:
            self._wrong("a transaction does not see what it has put")
        await self._ask(client, REMOVE_KEY, keys[-1], **inside)
        if await self._ask(client, CONTAINS, keys[-1], **inside):
            self._wrong("a transaction sees what it has removed")
        await soon(client.request(END, number, False))
        for key in {keys[0]: 0, keys[-1]: 0}:
            self.book.holds(self.registers[key], await self._ask(client, GET, key))

    async def _let_expire(self, client: IgniteClient, keys: list[bytes]) -> None:
        """It may be gone any time from now on: clocks jump."""
        register, value = self.registers[keys[0]], self._value()
        register.may_hold.update((value, NULL))
        self._expiring.add(value)
        expiry = (self.random.choice([1, 1000, 20_000]), NEVER_MS, NEVER_MS)
        await self._ask(client, PUT, keys[0], value, flags=EXPIRES, expiry=expiry)
        self._settle(register, value)

    # -- the cache itself ------------------------------------------------------------------------------------------

    async def _look(self, client: IgniteClient, keys: list[bytes]) -> None:
        self.book.holds(self.registers[keys[0]], await self._ask(client, PEEK, keys[0], b""))
        if not await self._ask(client, CONFIGURATION):
            self._wrong("the cache has no configuration")
        await soon(client.request(PARTITIONS, [java_hash(self.cache)]))
        try:
            await soon(client.request(CREATE_NEW, self.cache))
        except PeerError as error:
            if "already started" not in str(error):
                raise
        else:
            self._wrong("a cache was created twice")

    async def _name_types(self, client: IgniteClient, keys: list[bytes]) -> None:
        await soon(client.request(PUT_TYPE_NAME, 0, TYPE.type_id, TYPE.name))
        if await soon(client.request(TYPE_NAME, 0, TYPE.type_id)) != TYPE.name:
            self._wrong("a type has lost its name")
        await soon(client.request(PUT_TYPE, TYPE))
        if await soon(client.request(GET_TYPE, TYPE.type_id)) != TYPE:
            self._wrong("a type is not what it was")

    async def _make_again(self, client: IgniteClient, keys: list[bytes]) -> None:
        """It comes back empty."""
        with changing([*self.registers.values()], NULL):
            await soon(client.request(DESTROY, java_hash(self.cache)))
        await self.prepare(client)
