"""No look of Python's garbage collector is at many objects, and yet nothing that is not needed stays."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest
from support.until import until

from headrace.serving import garbage
from headrace.serving.garbage import COLLECT_AFTER, Garbage, look_when_idle
from headrace.telemetry.metrics import Metrics

YOUNG, MIDDLE, OLD = COLLECT_AFTER
SEEN_MAX = YOUNG * (MIDDLE + 2) * (OLD + 2) * 5 // 4
"""What can have come since the look before the last, and the quarter by which the collector waits for more."""


class Ring:
    """Refers to itself: only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def blocks() -> list[int]:
    return [4_000_000]


@pytest.fixture
def collector(blocks: list[int]) -> Iterator[Garbage]:
    before = gc.get_threshold(), list(gc.callbacks)
    collector = Garbage(lambda: blocks[0])
    collector.begin()
    yield collector
    collector.end()
    gc.unfreeze()
    assert (gc.get_threshold(), gc.callbacks) == before


def test_no_look_is_at_many_objects_however_many_stay(collector: Garbage) -> None:
    seen: list[int] = []

    def count(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            seen.append(sum(len(gc.get_objects(generation)) for generation in range(info["generation"] + 1)))

    gc.callbacks.append(count)
    try:
        kept: list[list[object]] = [[] for _ in range(10 * SEEN_MAX)]
    finally:
        gc.callbacks.remove(count)
    assert len(seen) > len(kept) / SEEN_MAX  # it did look
    assert max(seen) <= SEEN_MAX


def frozen_ring(collector: Garbage) -> weakref.ref[Ring]:
    """A ring that nobody needs since it was frozen."""
    ring = Ring()
    gc.collect()
    seen = weakref.ref(ring)
    del ring
    gc.collect()
    assert seen() is not None
    return seen


@pytest.mark.parametrize(
    ("is_idle", "least"), [(True, garbage.GROWN_PART), (False, garbage.GROWN_BUSY_PART)], ids=["idle", "busy"]
)
def test_what_died_frozen_goes_when_the_process_has_grown(
    collector: Garbage, blocks: list[int], is_idle: bool, least: float
) -> None:
    ring = frozen_ring(collector)
    blocks[0] += int(blocks[0] * least)
    collector.look(is_idle=is_idle)
    assert ring() is not None
    blocks[0] += 1
    collector.look(is_idle=is_idle)
    assert ring() is None
    assert collector.thaws == 1
    collector.look(is_idle=is_idle)  # it has not grown since
    assert collector.thaws == 1


def test_a_small_process_may_grow_by_more_than_a_part(collector: Garbage, blocks: list[int]) -> None:
    blocks[0] = 1000
    collector.thaw()
    blocks[0] += garbage.GROWN_BLOCKS
    collector.look(is_idle=True)
    assert collector.thaws == 1
    blocks[0] += 1
    collector.look(is_idle=True)
    assert collector.thaws == 2


async def test_a_hub_with_nothing_to_do_looks_sooner(
    collector: Garbage, blocks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "LOOK_S", 0.001)
    used_s, step_s, looks = [0.0], [1.0], [0]

    def cpu_s() -> float:
        looks[0] += 1
        used_s[0] += step_s[0]
        return used_s[0]

    blocks[0] += int(blocks[0] * garbage.GROWN_PART) + 1
    task = asyncio.create_task(look_when_idle(collector, cpu_s))
    await until(lambda: looks[0] > 10)
    assert collector.thaws == 0
    step_s[0] = 0.0
    await until(lambda: collector.thaws == 1)
    task.cancel()


def test_it_says_what_it_took(collector: Garbage) -> None:
    metrics = Metrics().process
    rings = [Ring() for _ in range(1000)]
    del rings
    gc.collect()
    collector.tell(metrics)
    taken_s = metrics.collector_seconds._value.get()
    assert 0 < metrics.collector_longest_seconds._value.get() <= taken_s
    with_nothing_since = metrics.collector_longest_seconds
    gc.disable()
    try:
        collector.tell(metrics)
        collector.tell(metrics)
    finally:
        gc.enable()
    assert with_nothing_since._value.get() == 0
