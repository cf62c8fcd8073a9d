"""Whose turn it is on the event loop."""

from __future__ import annotations

import asyncio
import time

import pytest

from headrace.hub.turns import TURN_S, Pace, Turns


async def test_one_of_all_who_ask_has_its_turn_and_then_everything_else() -> None:
    turns, seen = Turns(), []
    loop = asyncio.get_running_loop()

    def work(name: str, left: int) -> None:
        seen.append(name)
        loop.call_soon(seen.append, "others")
        if left > 1:
            turns.soon(lambda: work(name, left - 1))

    turns.soon(lambda: work("a", 3))
    turns.soon(lambda: work("b", 2))
    for _ in range(20):
        await asyncio.sleep(0)
    assert seen == ["a", "others", "b", "others", "a", "others", "b", "others", "a", "others"]


async def test_work_that_fails_does_not_keep_the_next_from_its_turn(caplog: pytest.LogCaptureFixture) -> None:
    turns, seen = Turns(), []
    turns.soon(lambda: 1 // 0)
    turns.soon(lambda: seen.append("next"))
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: seen.append(str(context["exception"])))
    for _ in range(5):
        await asyncio.sleep(0)
    assert seen == ["integer division or modulo by zero", "next"]


async def test_who_waits_for_its_turn_may_be_cancelled() -> None:
    turns = Turns()
    first, second = (asyncio.ensure_future(turns.wait()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert first.cancelled()


async def test_a_task_goes_on_until_it_has_been_long_at_it() -> None:
    pace = Pace(Turns())
    others = 0

    async def look() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    looking = asyncio.ensure_future(look())
    pace = Pace(Turns())
    await pace.keep()
    assert others == 0
    began_s = time.thread_time()
    while time.thread_time() - began_s <= TURN_S:
        pass
    await pace.keep()
    assert others > 0
    looking.cancel()
