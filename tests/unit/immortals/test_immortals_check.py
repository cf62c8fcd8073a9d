"""`check`: new code is held against what was logged, before it is deployed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.immortals import Immortal, StateError, immortal, method, serve
from headrace.immortals.checking import check
from headrace.immortals.comparing import compare


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


@immortal(saved_as="Desk")
class Generous(Immortal):
    done: int = 0

    @method
    async def order(self, amount: int) -> int:
        self.done += 2
        return 10 * await self.proxy(Ledger, "ledger").add(amount)


async def test_two_programs_are_shown_side_by_side(world: Any) -> None:
    async with serve(Ledger, "ledger", hub=world.address), serve(Desk, "desk", hub=world.address):
        for amount in (1, 2):
            await asyncio.to_thread(world.client.immortal("desk").order, amount=amount)
        same = await compare(Desk, Renamed, "desk", world.client)
        assert (same.difference, same.not_logged) == (None, None)
        found = await compare(Desk, Generous, "desk", world.client)
        assert found.not_logged is None
        assert found.difference is None  # the calls are the same: only what they lead to is not
        orders = [step for step in found.steps if step.message == 'order {"amount":2}']
        (order,) = orders
        before, after = order.before, order.after
        assert before.calls == after.calls
        assert before.calls[0].startswith("ledger: method ")
        assert '{"amount":2}' in before.calls[0]
        ends = [step for step in found.steps if step.message.startswith("answer of ledger")]
        assert [step.before.results for step in ends][-1][0].startswith("returned ")
        value = int(ends[-1].before.results[0].split()[1])
        assert ends[-1].after.results == [f"returned {10 * value}"]
        assert after.state["done"] - before.state["done"] == 2  # one more for each of the two orders
        assert order.differs
        logged = await asyncio.to_thread(world.client.call, "immortal.log", {"name": "desk"})
        assert {each["text"] for each in logged if each["index"] == order.index} == {'{"amount":2}'}
        not_it = await compare(Doubled, Desk, "desk", world.client)
        assert not_it.not_logged is not None
