"""`headrace.immortals`: a program is a class and a line; calls, queries, types and rights, through a real hub."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from support.until import until, wait_until

import headrace
from headrace.client.immortals import Aged
from headrace.config import Grant
from headrace.errors import BadRequest, Forbidden, HeadraceError, MethodRaised, StillRunning, Unauthenticated
from headrace.immortals import Immortal, method, query, serve
from headrace.protocols.ambrosia.call_verbs import WAIT_S_MAX
from headrace.security import Principal


@dataclass
class Order:
    number: int
    item: str
    qty: int


class Line(msgspec.Struct):
    text: str


class Shop(Immortal):
    stock: dict[str, int] = {"pear": 10}
    orders: list[Order] = []

    @method
    def order(self, item: str, qty: int = 1) -> Order:
        """Take some of an item."""
        if self.stock.get(item, 0) < qty:
            raise ValueError(f"only {self.stock.get(item, 0)} of {item} are left")
        self.stock[item] -= qty
        order = Order(len(self.orders) + 1, item, qty)
        self.orders.append(order)
        return order

    @method
    async def slow(self, seconds: float) -> str:
        await self.sleep(seconds)
        return "slept"

    @method
    def note(self, line: Line) -> Line:
        return line

    @query
    def left(self, item: str) -> int:
        return self.stock.get(item, 0)

    @query
    def bad(self) -> None:
        self.orders = []

    @query
    def sneaky(self) -> int:
        self.stock["pear"] = 1_000
        return 1


class Desk(Immortal):
    bought: list[int] = []

    @method
    async def buy(self, item: str) -> int:
        shop = self.proxy(Shop, "shop")
        order = await shop.order(item, qty=2)
        self.bought.append(order.number)
        return order.number

    @method
    async def buy_wrongly(self) -> None:
        await self.proxy(Shop, "shop").order(item=3)  # type: ignore[arg-type]


@pytest.fixture
async def shop(world: Any) -> Any:
    async with serve(Shop, "shop", hub=world.address) as immortal:
        yield immortal
    await asyncio.to_thread(world.client.call, "immortal.forget", {"name": "shop"})


def off_loop(function: Any, *args: Any, **kwargs: Any) -> Any:
    return asyncio.to_thread(function, *args, **kwargs)


def post(url: str, body: Any, **headers: str) -> Any:
    sent = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    request = urllib.request.Request(url, json.dumps(body).encode(), sent)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


async def test_a_call_from_outside_returns_the_result(world: Any, shop: Shop) -> None:
    handle = world.client.immortal("shop")
    assert await off_loop(handle.order, item="pear", qty=2) == {"number": 1, "item": "pear", "qty": 2}
    assert await off_loop(handle.order, "pear") == {"number": 2, "item": "pear", "qty": 1}
    assert await off_loop(handle.left, item="pear") == 7
    typed = world.client.immortal("shop", Shop)
    assert await off_loop(typed.call, Shop.order, item="pear", qty=1) == Order(3, "pear", 1)
    assert await off_loop(typed.call, Shop.left, "pear") == 6
    async with headrace.connect_async(world.address) as hub:
        assert await hub.immortal("shop", Shop).note(Line("a")) == Line("a")
    assert shop.stock == {"pear": 6}


class Reporter(Immortal):
    born: str = ""

    def first_start(self) -> None:
        self.born = self.now().isoformat()
        self.every("0 8 * * *", self.report)

    @method
    def report(self) -> None:
        """Say how things are."""

    @query
    def age(self) -> str:
        return self.born


async def test_the_first_start_knows_the_time(world: Any) -> None:
    before = datetime.now(UTC)
    async with serve(Reporter, "reporter", hub=world.address):
        born = await off_loop(world.client.immortal("reporter").age)
        assert before - timedelta(seconds=1) < datetime.fromisoformat(born) <= datetime.now(UTC)
    await off_loop(world.client.call, "immortal.forget", {"name": "reporter"})


async def test_a_method_that_raises_raises_at_the_caller(world: Any, shop: Shop) -> None:
    with pytest.raises(MethodRaised, match=r"shop.order raised ValueError: only 10 of pear are left"):
        await off_loop(world.client.immortal("shop").order, item="pear", qty=11)


async def test_the_same_idempotency_key_is_the_same_call(world: Any, shop: Shop) -> None:
    order = world.client.immortal("shop").order
    first = await off_loop(order, item="pear", idempotency_key="a")
    again = await asyncio.gather(*(off_loop(order, item="pear", idempotency_key="a") for _ in range(5)))
    assert again == [first] * 5
    both = await asyncio.gather(*(off_loop(order, item="pear", idempotency_key="b") for _ in range(5)))
    assert both == [both[0]] * 5
    assert len(shop.orders) == 2
    with pytest.raises(BadRequest, match="was used for another call"):
        await off_loop(order, item="pear", qty=2, idempotency_key="a")


async def test_a_call_that_takes_longer_is_waited_for_or_not(world: Any, shop: Shop) -> None:
    handle = world.client.immortal("shop")
    with pytest.raises(StillRunning, match="is logged and not answered yet"):
        await off_loop(handle.slow, seconds=0.3, idempotency_key="s", timeout_s=0.01)
    assert await off_loop(handle.slow, seconds=0.3, idempotency_key="s") == "slept"
    await off_loop(handle.send, "order", item="pear", idempotency_key="sent")
    assert (await off_loop(handle.order, item="pear", idempotency_key="sent"))["number"] == 1


@pytest.mark.parametrize("loses", ["the sign-in", "the right"])
async def test_whoever_loses_the_right_waits_no_longer_and_gets_no_answer(world: Any, shop: Shop, loses: str) -> None:
    hub = world.served.hub
    rights = {"read", "write"}
    grants = lambda: (Grant(rights=sorted(rights)),) if rights else ()  # noqa: E731
    caller = Principal("bob", (), grants(), lambda: Principal("bob", (), grants()))

    async def wait_and_lose() -> None:
        before = hub.bounds("immortal/shop/log").next
        request = b'{"name": "shop", "method": "slow", "arguments": {"seconds": 3600}}'
        calling = asyncio.ensure_future(hub.verbs.call("immortal.call", request, caller))
        await until(lambda: hub.bounds("immortal/shop/log").next > before)
        rights.remove("write")
        for changed in caller.end() if loses == "the sign-in" else caller.renew():
            changed()
        with pytest.raises(Unauthenticated if loses == "the sign-in" else Forbidden):
            await asyncio.wait_for(calling, WAIT_S_MAX / 2)

    await off_loop(world.served.run, wait_and_lose())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"item": "pear", "color": "red"}, "shop.order has no parameter 'color'; it takes item, qty"),
        ({}, "shop.order needs 'item'"),
        ({"item": 3}, "shop.order: 'item' must be of type string, not 3"),
        ({"item": "pear", "qty": True}, "shop.order: 'qty' must be of type integer, not True"),
    ],
)
async def test_a_wrong_argument_is_refused_before_it_is_logged(
    world: Any, shop: Shop, arguments: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadRequest, match=sentence):
        await off_loop(world.client.immortal("shop").order, **arguments)
    with pytest.raises(BadRequest, match="order"):
        await off_loop(world.client.immortal("shop", Shop).order, **arguments)
    with pytest.raises(BadRequest, match="has no method 'ordr'; it has order, slow, note, left, bad, sneaky"):
        await off_loop(world.client.immortal("shop").ordr)
    kinds = [message["kind"] for message in await off_loop(world.client.call, "immortal.log", {"name": "shop"})]
    assert "async" not in kinds


async def test_a_query_writes_nothing(world: Any, shop: Shop) -> None:
    def log_next() -> int:
        return int(world.client.bounds("immortal/shop/log").next)

    assert await off_loop(world.client.immortal("shop").left, item="pear") == 10  # it has started now
    before = await off_loop(log_next)
    assert await off_loop(world.client.immortal("shop").left, item="pear") == 10
    with pytest.raises(MethodRaised, match="a query reads the state and does not change it: orders was set"):
        await off_loop(world.client.immortal("shop").bad)
    assert await off_loop(log_next) == before


async def test_a_query_that_changes_what_an_attribute_holds_is_found_and_undone(world: Any, shop: Shop) -> None:
    handle = world.client.immortal("shop")
    await off_loop(handle.order, item="pear", qty=3)
    with pytest.raises(MethodRaised, match="sneaky changed what an attribute holds; make it a @method"):
        await off_loop(handle.sneaky)
    assert await off_loop(handle.left, item="pear") == 7  # recovered from the log
    assert (await off_loop(handle.order, item="pear", qty=7))["number"] == 2


async def test_over_http(world: Any, shop: Shop) -> None:
    url = f"{world.http}/api/immortals/shop"
    first = await off_loop(post, f"{url}/order", {"item": "pear", "qty": 2}, idempotency_key="web")
    assert first == {"number": 1, "item": "pear", "qty": 2}
    assert await off_loop(post, f"{url}/order", {"item": "pear", "qty": 2}, idempotency_key="web") == first
    assert await off_loop(post, f"{url}/left", {"item": "pear"}) == 8
    with pytest.raises(urllib.error.HTTPError) as refused:
        await off_loop(post, f"{url}/order", {"item": 3})
    assert refused.value.code == 400
    refused.value.close()
    with pytest.raises(urllib.error.HTTPError) as refused:
        await off_loop(post, f"{url}/order", {"item": "plum"})
    assert refused.value.code == 422
    refused.value.close()


async def test_the_api_document_comes_from_the_annotations(world: Any, shop: Shop) -> None:
    def get() -> Any:
        with urllib.request.urlopen(f"{world.http}/api/immortals/openapi.json", timeout=60) as response:
            return json.loads(response.read())

    document = await off_loop(get)
    operation = document["paths"]["/api/immortals/shop/order"]["post"]
    assert operation["summary"] == "Take some of an item."
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    assert body["required"] == ["item"]
    assert body["properties"]["qty"] == {"type": "integer", "default": 1}
    answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert answer == {"$ref": "#/components/schemas/shop.Order"}
    assert set(document["components"]["schemas"]["shop.Order"]["properties"]) == {"number", "item", "qty"}


async def test_from_the_inbox_by_name(world: Any, shop: Shop) -> None:
    await off_loop(world.client.append, "immortal/shop/inbox", {"item": "pear"}, type="order")
    await until(lambda: shop.orders)
    assert shop.orders == [Order(1, "pear", 1)]


async def test_a_typed_proxy_between_immortals(world: Any, shop: Shop) -> None:
    async with serve(Desk, "desk", hub=world.address) as desk:
        assert await off_loop(world.client.immortal("desk").buy, item="pear") == 1
        assert desk.bought == [1]
        with pytest.raises(
            MethodRaised,
            match=r"order\(item: str, qty: int = 1\) was called with the wrong arguments: Expected `str`, got `int`",
        ):
            await off_loop(world.client.immortal("desk").buy_wrongly)


async def test_what_was_answered_is_remembered_by_the_next_program(world: Any) -> None:
    async with serve(Shop, "shop2", hub=world.address):
        first = await off_loop(world.client.immortal("shop2").order, item="pear", idempotency_key="k")
    async with serve(Shop, "shop2", hub=world.address) as shop:
        assert shop.orders == [Order(1, "pear", 1)]
        assert await off_loop(world.client.immortal("shop2").order, item="pear", idempotency_key="k") == first
        assert len(shop.orders) == 1


class Failing(Immortal):
    async def on_primary(self, itself: Any) -> None:
        raise RuntimeError("no printer")


async def test_an_immortal_that_cannot_go_on_ends_the_program(world: Any) -> None:
    limit = asyncio.timeout(60)
    with pytest.raises(RuntimeError, match="no printer"):
        async with limit, serve(Failing, "failing", hub=world.address):
            await asyncio.Event().wait()
    assert not limit.expired()
    assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]


async def test_a_standby_takes_over_when_it_is_told_to(world: Any) -> None:
    options = {"clock": True, "delivery": "counted", "standby": True}
    await off_loop(world.client.call, "immortal.register", {"name": "moved", "options": options})
    handle = world.client.immortal("moved")
    async with serve(Shop, "moved", hub=world.address):
        await off_loop(handle.order, item="pear", qty=2)
        with pytest.raises(BadRequest, match="has no standby that could take over"):
            await off_loop(world.client.call, "immortal.hand-over", {"name": "moved"})
        moving = asyncio.ensure_future(_moved(world))
        async with serve(Shop, "moved", hub=world.address) as second:
            await moving
            await off_loop(handle.order, item="pear", qty=1)
            assert second.stock == {"pear": 7}
    await off_loop(world.client.call, "immortal.forget", {"name": "moved"})


async def _moved(world: Any) -> None:
    """Until a program stands by and the immortal is handed over to it."""

    async def is_moved() -> bool:
        try:
            await off_loop(world.client.call, "immortal.hand-over", {"name": "moved"})
        except BadRequest:
            return False
        return True

    while not await is_moved():
        await asyncio.sleep(0.02)


async def test_a_checkpointer_takes_the_checkpoints_and_never_serves(world: Any) -> None:
    handle = world.client.immortal("kept")

    def taken() -> dict[Any, Any]:
        details = [each.details for each in world.served.hub.sessions.list("ambrosia")]
        return {each["state"]: each["checkpoints"] for each in details if each.get("immortal") == "kept"}

    async with serve(Shop, "kept", hub=world.address):
        await off_loop(handle.order, item="pear", qty=2)
        async with serve(Shop, "kept", hub=world.address, checkpointer=True) as follower:
            await off_loop(handle.order, item="pear", qty=1)
            info = await off_loop(world.client.call, "immortal.checkpoint", {"name": "kept"})
            assert info["position"] == next(
                each["log_next"] for each in world.client.call("immortal.list") if each["name"] == "kept"
            )
            assert follower.stock == {"pear": 7}
            assert taken() == {"running": 1, "following": 1}
    async with serve(Shop, "kept", hub=world.address) as again:
        assert again.stock == {"pear": 7}
    await off_loop(world.client.call, "immortal.forget", {"name": "kept"})


async def test_a_checkpointer_needs_an_immortal_that_may_be_followed(world: Any) -> None:
    await off_loop(world.client.call, "immortal.register", {"name": "alone", "options": {"clock": True}})
    with pytest.raises(HeadraceError, match="'alone' cannot have a checkpointer"):
        async with serve(Shop, "alone", hub=world.address, checkpointer=True):
            pytest.fail("nothing to follow")
    await off_loop(world.client.call, "immortal.forget", {"name": "alone"})


def standbys(world: Any) -> int:
    (count,) = (each["standbys"] for each in world.client.call("immortal.list") if each["name"] == "shop")
    return int(count)


async def stand_by(address: str) -> None:
    async with serve(Shop, "shop", hub=address):
        pytest.fail("it took over, although the first program lives")


async def test_a_standby_answers_queries_and_says_how_far_behind_it_is(world: Any, shop: Shop) -> None:
    handle = world.client.immortal("shop")
    await off_loop(handle.order, item="pear", qty=3)
    assert await off_loop(handle.ask, "left", "pear", max_age_s=5) == Aged(7)  # nobody stands by: the program itself
    standing_by = asyncio.create_task(stand_by(world.address))
    try:
        await until(lambda: standbys(world) == 1)
        await off_loop(lambda: wait_until(lambda: handle.ask("left", "pear", max_age_s=60) == Aged(7, 0.0)))
        await off_loop(handle.order, item="pear", qty=1)

        def caught_up() -> bool:
            later = handle.ask("left", item="pear", max_age_s=60)
            assert later.age_s is not None
            assert later.value == 6 or later.age_s > 0
            return later.value == 6

        await off_loop(lambda: wait_until(caught_up))
        with pytest.raises(BadRequest, match="shop.order is not a query: only the running program can answer it"):
            await off_loop(handle.ask, "order", item="pear", max_age_s=5)
        with pytest.raises(MethodRaised, match="orders was set"):
            await off_loop(handle.ask, "bad", max_age_s=60)
    finally:
        standing_by.cancel()
        await asyncio.gather(standing_by, return_exceptions=True)
