"""Which message led to which: of Python programs exactly, of other bindings by what they had been sent."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest
from support.ambrosia_peer import RawBinding, call_verb, coordinator, fork
from support.until import until

from headrace.config import Config
from headrace.immortals import Immortal, method, serve
from headrace.protocols.ambrosia import lineage
from headrace.protocols.ambrosia.call_reader import Calls
from headrace.protocols.ambrosia.codec import AttachTo, decode_messages
from headrace.protocols.ambrosia.lineage import END, SHOWN_MAX, Lineage, Origin, Place, mark_of, read_mark
from headrace.protocols.ambrosia.settings import Ambrosia, ImmortalSection
from headrace.telemetry.tracing import OFF
from headrace.testing import memory_hub


class Shop(Immortal):
    sold: list[str] = []

    @method
    def order(self, item: str) -> int:
        self.sold.append(item)
        return len(self.sold)


class Desk(Immortal):
    bought: list[int] = []

    @method
    async def buy(self, item: str) -> int:
        number = await self.proxy(Shop, "the shop").order(item)
        self.bought.append(number)
        return number


def logged(world: Any, name: str, **where: Any) -> list[dict[str, Any]]:
    return [each for each in world.client.call("immortal.log", {"name": name, **where}) if each["name"] != "clock"]


async def test_a_call_leads_to_the_callee_and_back(world: Any) -> None:
    async with serve(Shop, "the shop", hub=world.address), serve(Desk, "the desk", hub=world.address):
        handle = world.client.immortal("the desk")
        items = [f"item {number}" for number in range(10)]
        await asyncio.gather(*(asyncio.to_thread(handle.buy, item=item) for item in items))
        desk = {each["index"]: each for each in await asyncio.to_thread(logged, world, "the desk")}
        shop = {each["index"]: each for each in await asyncio.to_thread(logged, world, "the shop")}
        buys = [each for each in desk.values() if each["name"] == "buy"]
        assert len(buys) == 10
        for buy in buys:  # exactly its own, whatever came together in a record
            (order,) = (shop[place["index"]] for place in buy["led_to"])
            assert order["text"] == buy["text"]
            assert order["cause"] == {"name": "the desk", "index": buy["index"]}
            (answer,) = (desk[place["index"]] for place in order["led_to"])
            assert (answer["kind"], answer["cause"]) == ("return", {"name": "the shop", "index": order["index"]})
            assert buy["cause"] is None  # from outside
    await asyncio.to_thread(world.client.call, "immortal.forget", {"name": "the shop"})
    assert not any(
        each["led_to"] for each in await asyncio.to_thread(logged, world, "the desk") if each["name"] == "buy"
    )
    await asyncio.to_thread(world.client.call, "immortal.forget", {"name": "the desk"})


async def test_a_binding_that_says_nothing_of_it_is_linked_by_what_it_was_sent_last() -> None:
    config = Config(ambrosia=Ambrosia(immortals={"a": ImmortalSection(), "b": ImmortalSection()}))
    async with memory_hub(config) as hub, coordinator(hub) as ports:
        a, b = await RawBinding.to(ports, "a"), await RawBinding.to(ports, "b")
        await a.first_start()
        await b.first_start()
        b.say(fork(b"question", b"a"))
        await a.calls(1)  # index 1 of a; 0 is the initial message
        a.say(fork(b"one", b"b"), fork(b"two", b"b"))
        await until(lambda: hub.bounds("immortal/b/log").next == 3)
        words = await call_verb(hub, "immortal.log", name="b")
        assert [each.cause for each in words] == [None, Place("a", 1), Place("a", 1)]
        words = await call_verb(hub, "immortal.log", name="a")
        assert [each.led_to for each in words] == [(), (Place("b", 1), Place("b", 2))]
        assert words[1].cause == Place("b", 0)
        await a.close()
        await b.close()


def test_marks_are_messages_that_others_pass_over() -> None:
    (mark,) = decode_messages(mark_of(12, 3), addressed=True)
    assert isinstance(mark, AttachTo)
    assert read_mark(mark.destination) == (12, 3)
    (end,) = decode_messages(END, addressed=True)
    assert isinstance(end, AttachTo)
    assert read_mark(end.destination) is None
    assert read_mark(b"@after:x:1") is None
    assert read_mark(b"@after:" + b"9" * 5000 + b":1") is None


def test_only_the_last_links_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "RUNS_MAX", 3)
    links = Lineage(OFF)
    calls = Calls(b"b", "fork/1", True, [1], [b"x"])
    for index in range(5):
        origin = links.origin(Place("a", index), "b", calls, lambda: "m")
        assert origin == Origin(Place("a", index))
        links.logged("b", 10 * index, 2, origin)
    causes, _ = links.around("b", 0, 50)
    assert causes == {10 * n + place: Place("a", n) for n in (2, 3, 4) for place in (0, 1)}
    assert links.around("b", 21, 31)[0] == {21: Place("a", 2), 30: Place("a", 3)}
    assert links.around("a", 3, 5)[1] == {n: [Place("b", 10 * n), Place("b", 10 * n + 1)] for n in (3, 4)}
    assert isinstance(links._causes["b"], deque)
    links.forget("b")
    assert links.around("b", 0, 50) == ({}, {})
    assert links.around("a", 0, 50) == ({}, {})


def test_of_what_a_message_led_to_the_first_messages_are_told() -> None:
    links = Lineage(OFF)
    for first, count in ((0, SHOWN_MAX - 2), (100, 10), (200, 10)):
        links.logged("b", first, count, Origin(Place("a", 7)))
    _, led_to = links.around("a", 7, 8)
    assert led_to == {7: [*(Place("b", n) for n in range(SHOWN_MAX - 2)), Place("b", 100), Place("b", 101)]}
