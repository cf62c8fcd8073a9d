"""What people see of an immortal: its calls by name, its state now and in checkpoints, and what it waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from headrace.errors import BadRequest, MethodRaised
from headrace.immortals import Immortal, Retry, immortal, method, query, serve
from headrace.protocols.ambrosia.binding.look import readable
from headrace.protocols.ambrosia.coordinator import outside

TIMEOUT_S = 60.0


def fails(number: int) -> None:
    raise OSError(f"the bank is away ({number})")


class Shop(Immortal):
    orders: list[str] = []
    closed: bool = False

    @method
    def order(self, item: str) -> int:
        if item == "nothing":
            raise ValueError("nothing cannot be ordered")
        self.orders.append(item)
        return len(self.orders)

    @method
    async def approve(self, item: str) -> bool:
        return await self.token(bool)

    @method
    async def pay(self, number: int) -> None:
        await self.effect(fails, number, retry=Retry(attempts=3, first_s=3600))

    @method
    async def nap(self) -> None:
        await self.sleep(3600)

    @method
    def remind(self, item: str) -> None:
        self.later("1d", self.order, item)
        self.every("0 8 * * *", self.order, "coffee")

    @query
    def count(self) -> int:
        return len(self.orders)


@immortal(keyed=True)
class Cart(Immortal):
    items: list[str] = []

    @method
    def add(self, item: str) -> int:
        self.items.append(item)
        return len(self.items)


def until(look: Callable[[], Any], condition: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition(found := look()):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found


async def test_calls_have_names_arguments_and_answers(world: Any) -> None:
    def check() -> None:
        shop = world.client.immortal("named")
        assert shop.order(item="pear") == 1
        with pytest.raises(MethodRaised):
            shop.order(item="nothing")
        logged = world.client.call("immortal.log", {"name": "named"})
        calls = [each for each in logged if each["name"] == "order"]
        assert [each["text"] for each in calls] == ['{"item":"pear"}', '{"item":"nothing"}']
        assert [(each["answer"]["raised"], each["answer"]["text"]) for each in calls] == [
            (False, "1"),
            (True, '"ValueError: nothing cannot be ordered"'),
        ]
        assert all(each["answer"]["after_us"] >= 0 for each in calls)
        assert [each["answer"] for each in logged if each["kind"] == "initial"] == [None]

    async with serve(Shop, "named", hub=world.address):
        await asyncio.to_thread(check)


async def test_answers_are_kept_for_the_last_calls(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "ANSWERS_SHOWN_MAX", 2)

    def check() -> None:
        for item in "abc":
            world.client.immortal("bounded").order(item=item)
        logged = world.client.call("immortal.log", {"name": "bounded"})
        answers = [each["answer"] and each["answer"]["text"] for each in logged if each["name"] == "order"]
        assert answers == [None, "2", "3"]

    async with serve(Shop, "bounded", hub=world.address):
        await asyncio.to_thread(check)


async def test_it_says_what_waits_for_what(world: Any) -> None:
    def look() -> Any:
        return world.client.call("immortal.look", {"name": "waiting"})

    def start(name: str, **arguments: Any) -> None:
        request = {"name": "waiting", "method": name, "arguments": arguments, "wait_s": 0}
        world.client.call("immortal.call", {**request, "idempotency_key": f"the {name}"})

    def check() -> None:
        quiet = until(look, lambda found: True)
        assert (quiet["kind"], quiet["methods"], quiet["timers"], quiet["effects"]) == ("Shop", [], [], [])
        start("remind", item="pear")
        start("approve", item="pear")
        start("pay", number=7)
        start("nap")
        found = until(look, lambda found: any(each.get("attempts") for each in found["effects"]))
        words = {each["method"]: each["waits_for"] for each in found["methods"]}
        assert words["nap"].startswith("sleep (effect ")
        assert words["pay"].startswith("fails (effect ")
        assert words["approve"].startswith("token ")
        assert all(each["call"] for each in found["methods"])
        effects = {each["what"].partition(" ")[0]: each for each in found["effects"]}
        assert effects["fails"]["last_error"] == "OSError: the bank is away (7)"
        assert effects["fails"]["not_before_s"] > time.time()
        assert effects["sleep"]["deadline_s"] > time.time()
        assert [(each["arguments"], each.get("cron")) for each in found["timers"]] in (
            [('{"item":"pear"}', None), ('{"item":"coffee"}', "0 8 * * *")],
            [('{"item":"coffee"}', "0 8 * * *"), ('{"item":"pear"}', None)],
        )
        logged = [each["name"] for each in world.client.call("immortal.log", {"name": "waiting"})]
        assert {"remind", "approve", "pay", "nap", "effect failed"} <= set(logged)
        world.client.call("immortal.fulfil", {"name": "waiting", "token": effects["token"]["token"], "value": True})
        world.client.call("immortal.cancel", {"name": "waiting", "idempotency_key": "the nap"})
        left = until(look, lambda found: len(found["methods"]) == 1)
        assert [each["method"] for each in left["methods"]] == ["pay"]

    async with serve(Shop, "waiting", hub=world.address):
        await asyncio.to_thread(check)


async def test_the_state_is_seen_now_and_in_every_checkpoint(world: Any) -> None:
    def state(checkpoint: int) -> Any:
        return world.client.call("immortal.state", {"name": "stated", "checkpoint": checkpoint})

    def check() -> None:
        shop = world.client.immortal("stated")
        shop.order(item="pear")
        first = world.client.call("immortal.checkpoint", {"name": "stated"})["id"]
        shop.order(item="fig")
        second = world.client.call("immortal.checkpoint", {"name": "stated"})["id"]
        assert state(first)["state"] == {"orders": ["pear"], "closed": False}
        assert (state(second)["state"]["orders"], state(second)["since"]) == (["pear", "fig"], 0)
        shop.order(item="nut")
        assert world.client.call("immortal.look", {"name": "stated"})["state"]["orders"] == ["pear", "fig", "nut"]
        with pytest.raises(BadRequest, match="has no checkpoint 999999"):
            state(999_999)

    async with serve(Shop, "stated", hub=world.address):
        await asyncio.to_thread(check)


async def test_of_a_keyed_one_an_instance_is_looked_at(world: Any) -> None:
    def check() -> None:
        world.client.immortal("seen", key="ann").add(item="pear")
        world.client.immortal("seen", key="ben").add(item="fig")
        assert world.client.call("immortal.look", {"name": "seen", "key": "ben"})["state"] == {"items": ["fig"]}
        with pytest.raises(BadRequest, match="is keyed: name the instance"):
            world.client.call("immortal.look", {"name": "seen"})
        with pytest.raises(MethodRaised, match="no instance 'eve'"):
            world.client.call("immortal.look", {"name": "seen", "key": "eve"})
        saved = world.client.call("immortal.checkpoint", {"name": "seen"})["id"]
        asked = {"name": "seen", "checkpoint": saved}
        assert world.client.call("immortal.state", asked)["keys"] == ["ann", "ben"]
        assert world.client.call("immortal.state", asked | {"key": "ann"})["state"] == {"items": ["pear"]}
        assert world.client.call("immortal.state", asked | {"key": "eve"})["keys"] == ["ann", "ben"]

    async with serve(Cart, "seen", hub=world.address):
        await asyncio.to_thread(check)


async def test_one_whose_program_has_not_said_what_it_is_is_not_asked(world: Any) -> None:
    def check() -> None:
        world.client.call("immortal.register", {"name": "foreign"})
        with pytest.raises(BadRequest, match="has not declared its methods"):
            world.client.call("immortal.look", {"name": "foreign"})

    await asyncio.to_thread(check)


def test_a_state_that_json_cannot_say_is_left_out() -> None:
    assert readable(msgspec.msgpack.encode({"a": [1, b"x"]})) == {"a": [1, "eA=="]}
    assert readable(b"\xc1") is None
    assert readable(b"\xc4" * (256 * 1024 + 1)) is None
