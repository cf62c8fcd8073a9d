"""msgspec learns every type before there are threads."""

from __future__ import annotations

import asyncio
import threading

import msgspec

from headrace.client import Client
from headrace.log.struct_types import learn_struct_types
from headrace.testing import memory_hub

learned: list[bool] = []
"""For each time that msgspec learned the type of a test: whether a writer had been started since the test began."""
before: set[threading.Thread] = set()
"""Threads of other tests' hubs."""


def number() -> type[int]:
    """msgspec looks at annotations when it learns a type, and only then."""
    learned.append(any(thread.name == "headrace-writer" for thread in {*threading.enumerate()} - before))
    return int


async def test_a_hub_learns_the_types_before_it_has_threads() -> None:
    class Asked(msgspec.Struct):
        value: number()  # type: ignore[valid-type]

    class More(Asked):
        other: number()  # type: ignore[valid-type]

    learned.clear()
    before.update(threading.enumerate())
    async with memory_hub():
        count = len(learned)
        assert count >= 2
        assert not any(learned)
        more = await asyncio.to_thread(msgspec.json.decode, b'{"value": 1, "other": 2}', type=More)
        assert (more.value, more.other) == (1, 2)
        assert len(learned) == count


def test_a_client_learns_the_types_before_threads_share_it() -> None:
    class Answer(msgspec.Struct):
        value: number()  # type: ignore[valid-type]

    learned.clear()
    Client("127.0.0.1:1").close()
    assert learned
    count = len(learned)
    assert msgspec.json.decode(b'{"value": 1}', type=Answer).value == 1
    assert len(learned) == count


def test_a_type_that_nobody_can_read_keeps_nobody_from_the_others() -> None:
    class Unreadable(msgspec.Struct):
        value: nowhere  # type: ignore[name-defined]  # noqa: F821

    class Behind(msgspec.Struct):
        value: number()  # type: ignore[valid-type]

    learned.clear()
    learn_struct_types()
    assert learned
    assert Unreadable.__struct_fields__ == Behind.__struct_fields__
