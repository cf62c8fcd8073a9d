"""Python's garbage collector, off: what is freed then is freed without it."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from support.until import until


def count(*kinds: type) -> int:
    """How many there are of these."""
    return sum(isinstance(each, kinds) for each in gc.get_objects())


@contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@asynccontextmanager
async def freed_without_collector(*kinds: type) -> AsyncIterator[Callable[[], int]]:
    """Of these kinds nothing that the block makes is left behind it. Yields how many there are now."""
    with no_collector():
        before = count(*kinds)
        yield lambda: count(*kinds) - before
        await until(lambda: count(*kinds) == before)
