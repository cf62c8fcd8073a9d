"""Python's garbage collector in a hub that serves: no look at objects takes long.

Everybody waits while it looks, and by itself it looks at everything again and again. Here, what has survived a look is
frozen: the next one sees only what came since. That is some fifteen hundred objects, a millisecond or two where they
are spread over much memory.

What is frozen is freed as ever once nobody refers to it, and nearly everything ends like that. Only objects that refer
to each other in a circle, and are not needed any more since they were frozen, have to wait for a look at everything
(`thaw`). It comes when the hub has grown a little and has nothing to do, or has doubled: so such circles never take
more than that.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.collection import freeze

if TYPE_CHECKING:
    from headrace.telemetry.metrics import ProcessMetrics

COLLECT_AFTER: Final = (500, 0, 0)
"""New objects, and how often each generation but the oldest is looked at, beside the first time, before the next is."""
OLDEST: Final = len(COLLECT_AFTER) - 1
LOOK_S: Final = 2.0
IDLE_PART: Final = 0.05
"""A hub that uses less than this of a processor has nothing to do."""
GROWN_BLOCKS: Final = 150_000
GROWN_PART: Final = 0.25
GROWN_BUSY_BLOCKS: Final = 2_000_000
GROWN_BUSY_PART: Final = 1.0


class Garbage:
    """The collector of this process, from `begin` to `end`."""

    def __init__(self, blocks: Callable[[], int] = sys.getallocatedblocks) -> None:
        self._blocks = blocks
        self._known_blocks = 0
        """How many pieces of memory Python had after the last look at everything."""
        self._began_s = 0.0
        self._before: tuple[int, int, int] = COLLECT_AFTER
        self._taken_s = 0.0
        self._longest_s = 0.0
        self.thaws = 0
        """How often it has looked at everything."""

    def begin(self) -> None:
        """What there is by now stays."""
        freeze()
        gc.collect()  # of nothing: the collector waits until a quarter of what it saw the last time has come
        self._before = gc.get_threshold()
        gc.set_threshold(*COLLECT_AFTER)
        gc.callbacks.append(self._looked)
        self._known_blocks = self._blocks()

    def end(self) -> None:
        """The collector is as it was."""
        if self._looked in gc.callbacks:
            gc.callbacks.remove(self._looked)
            gc.set_threshold(*self._before)

    def _looked(self, phase: str, info: dict[str, int]) -> None:
        """Before and after each look, in whatever thread made the last object: nothing here may wait for a lock."""
        if phase == "start":
            self._began_s = time.perf_counter()
            return
        if info["generation"] == OLDEST:
            gc.freeze()
        took_s = time.perf_counter() - self._began_s
        self._taken_s += took_s
        self._longest_s = max(self._longest_s, took_s)

    def look(self, *, is_idle: bool) -> None:
        """Look at everything if it is time."""
        count, part = (GROWN_BLOCKS, GROWN_PART) if is_idle else (GROWN_BUSY_BLOCKS, GROWN_BUSY_PART)
        if self._blocks() - self._known_blocks > max(count, part * self._known_blocks):
            self.thaw()

    def thaw(self) -> None:
        """Look at everything, what was frozen too."""
        gc.unfreeze()
        gc.collect()
        gc.collect()  # of nothing, as in `begin`
        self._known_blocks = self._blocks()
        self.thaws += 1

    def tell(self, metrics: ProcessMetrics) -> None:
        """How it has been since the last time."""
        metrics.collector_seconds.set(self._taken_s)
        metrics.collector_longest_seconds.set(self._longest_s)
        self._longest_s = 0.0


async def look_when_idle(garbage: Garbage, cpu_s: Callable[[], float] = lambda: time.process_time()) -> None:
    """For as long as the hub serves."""
    while True:
        began_s = cpu_s()
        await asyncio.sleep(LOOK_S)
        garbage.look(is_idle=cpu_s() - began_s < IDLE_PART * LOOK_S)
