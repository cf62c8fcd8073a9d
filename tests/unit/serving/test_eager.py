"""Coroutines that begin at once."""

import asyncio
import contextvars

import pytest

from headrace.serving import eager

WHO = contextvars.ContextVar("who", default="nobody")


async def test_it_begins_before_begin_returns_and_a_task_does_the_rest():
    answer = asyncio.get_running_loop().create_future()
    said = []

    async def work():
        said.append("begun")
        said.append(await answer)
        await asyncio.sleep(0)
        said.append("done")

    task = eager.begin(work())
    assert said == ["begun"]
    answer.set_result("answered")
    await task
    assert said == ["begun", "answered", "done"]


async def test_what_waits_for_nothing_needs_no_task():
    said = []

    async def work():
        said.append("done")

    assert eager.begin(work()) is None
    assert said == ["done"]


async def test_it_has_one_context_and_leaves_ours_alone():
    async def work():
        token = WHO.set("alice")
        await asyncio.sleep(0)
        assert WHO.get() == "alice"
        WHO.reset(token)  # raises in another context

    task = eager.begin(work())
    assert WHO.get() == "nobody"
    await task


async def test_errors_reach_it_and_come_out_of_it():
    async def fails():
        raise KeyError("at once")

    with pytest.raises(KeyError):
        eager.begin(fails())
    answer = asyncio.get_running_loop().create_future()
    answer.set_exception(ValueError("of the answer"))

    async def waits():
        try:
            await answer
        except ValueError:
            await asyncio.sleep(0)
            raise LookupError("of the work") from None

    with pytest.raises(LookupError):
        await eager.begin(waits())


@pytest.mark.parametrize("steps", [0, 1])
async def test_cancelling_the_task_cancels_the_work(steps):
    said = []

    async def work():
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            said.append("cleaned up")

    task = eager.begin(work())
    for _ in range(steps + 1):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert said == ["cleaned up"]
