"""`check`: new code is held against what was logged, before it is deployed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.immortals import Immortal, StateError, immortal, method, serve
from headrace.immortals.checking import check


class Ledger(Immortal):
    total: int = 0

    @method
    def add(self, amount: int) -> int:
        self.total += amount
        return self.total


class Desk(Immortal):
    done: int = 0

    @method
    async def order(self, amount: int) -> int:
        self.done += 1
        return await self.proxy(Ledger, "ledger").add(amount)


@immortal(saved_as="Desk")
class Doubled(Immortal):
    done: int = 0

    @method
    async def order(self, amount: int) -> int:
        self.done += 1
        return await self.proxy(Ledger, "ledger").add(2 * amount)


@immortal(saved_as="Desk")
class Lazy(Immortal):
    done: int = 0

    @method
    async def order(self, amount: int) -> int:
        self.done += 1
        return amount


@immortal(saved_as="Desk", renamed={"done": "finished"})
class Renamed(Immortal):
    finished: int = 0

    @method
    async def order(self, amount: int) -> int:
        self.finished += 1
        return await self.proxy(Ledger, "ledger").add(amount)


@immortal(saved_as="Desk")
class Careless(Immortal):
    finished: int = 0


async def test_new_code_is_held_against_the_log(world: Any) -> None:
    async with serve(Ledger, "ledger", hub=world.address), serve(Desk, "desk", hub=world.address):
        for amount in (1, 2, 3):
            await asyncio.to_thread(world.client.immortal("desk").order, amount=amount)
        for kind in (Desk, Renamed):
            checked = await check(kind, "desk", world.client)
            assert checked.difference is None
            assert checked.messages >= 6
        checked = await check(Doubled, "desk", world.client)
        assert checked.difference is not None
        assert '"amount":1' in checked.difference
        assert '"amount":2' in checked.difference
        checked = await check(Lazy, "desk", world.client)
        assert checked.difference == "3 of the calls to ledger that were made are not made again"
        with pytest.raises(StateError, match="holds done, which the class does not have"):
            await check(Careless, "desk", world.client)
        assert await asyncio.to_thread(world.client.call, "immortal.debugging") == []
        assert await asyncio.to_thread(world.client.immortal("ledger").add, amount=0) == 6
