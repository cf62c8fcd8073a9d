"""Calls of the async client: many under way on one line, and none lost or repeated when it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.until import until

import headrace
from headrace.client.asynchronous import AsyncClient
from headrace.client.client import connection_of
from headrace.client.lines import CALLS_BEFORE, NotTaken
from headrace.errors import BadRequest, Busy, MethodRaised
from headrace.immortals import Immortal, method, serve


class Counter(Immortal):
    total: int = 0
    calls: int = 0

    @method
    def add(self, amount: int) -> int:
        self.calls += 1
        self.total += amount
        return self.total

    @method
    def fail(self) -> None:
        raise ValueError("no")

    @method
    async def wait(self, seconds: float) -> str:
        await self.sleep(seconds)
        return "waited"


@pytest.fixture
async def counter(world: Any) -> AsyncIterator[Counter]:
    world.served.hub.addresses["http"] = world.http.removeprefix("http://")
    async with serve(Counter, "counter", hub=world.address) as immortal:
        yield immortal
    await asyncio.to_thread(world.client.call, "immortal.forget", {"name": "counter"})


@pytest.fixture
async def hub(world: Any, counter: Counter) -> AsyncIterator[AsyncClient]:
    async with headrace.connect_async(world.address) as client:
        for _ in range(CALLS_BEFORE + 1):
            await client.immortal("counter").add(amount=0)
        await until(lambda: client._pipe._requests_max, "the pipe to be opened")
        yield client


async def test_many_calls_are_under_way_on_one_line(world: Any, hub: AsyncClient, counter: Counter) -> None:
    handle, taken = hub.immortal("counter"), []
    transport = hub._pipe._transport
    connection_of(hub._twin).call = lambda *asked: taken.append(asked)  # type: ignore[method-assign, assignment, return-value, func-returns-value]
    answers = await asyncio.gather(*(handle.add(amount=1) for _ in range(100)))
    assert sorted(answers) == list(range(1, 101))
    assert not taken
    assert hub._pipe._transport is transport
    with pytest.raises(MethodRaised, match="ValueError: no"):
        await handle.fail()
    with pytest.raises(BadRequest, match="extra"):
        await handle.add(amount=1, extra=2)


async def test_calls_of_a_line_that_breaks_are_made_again_once(hub: AsyncClient, counter: Counter) -> None:
    handle, transport = hub.immortal("counter"), hub._pipe._transport
    assert transport is not None
    transport.pause_reading()  # no answer comes
    before = counter.calls

    calls = [asyncio.ensure_future(handle.add(amount=1)) for _ in range(50)]
    await until(lambda: counter.calls == before + 50, "the calls to arrive")
    transport.abort()
    answers = await asyncio.gather(*calls)
    assert sorted(answers) == list(range(1, 51))
    assert counter.calls == before + 50


async def test_the_last_answer_of_a_hub_that_stops_is_no_answer(hub: AsyncClient, counter: Counter) -> None:
    pipe = hub._pipe
    waiting = asyncio.ensure_future(pipe.ask("immortal.call", b"{}"))
    await asyncio.sleep(0)
    pipe.data_received(b'\0\0\0\x0d{"last":true}')
    with pytest.raises(NotTaken):
        await waiting
    assert await hub.immortal("counter").add(amount=1) == 1


async def test_more_than_the_hub_takes_goes_another_way(hub: AsyncClient, counter: Counter) -> None:
    hub._pipe._requests_max = 1
    handle = hub.immortal("counter")
    assert sorted(await asyncio.gather(*(handle.add(amount=1) for _ in range(5)))) == [1, 2, 3, 4, 5]
    hub._pipe._request_bytes_max = 10
    with pytest.raises(NotTaken):
        await hub._pipe.ask("immortal.list", b"{}")
    assert await handle.add(amount=1) == 6


async def test_an_answer_that_does_not_come_in_time(hub: AsyncClient, counter: Counter) -> None:
    connection_of(hub._twin).timeout_s = 0.01
    with pytest.raises(Busy, match="in time"):
        await hub._pipe.ask("immortal.call", b'{"name":"counter","method":"wait","arguments":{"seconds":5}}')


async def test_a_call_that_is_given_up_leaves_the_line_to_others(hub: AsyncClient, counter: Counter) -> None:
    handle = hub.immortal("counter")
    waiting = asyncio.ensure_future(handle.wait(seconds=30))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await handle.add(amount=1) == 1
    assert not hub._pipe._waiting
