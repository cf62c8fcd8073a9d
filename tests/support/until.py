"""The one way to wait for something that nobody tells a test of: `until` in a coroutine, `wait_until` elsewhere."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

DEADLINE_S = 60.0
"""Long enough for a busy machine: only a test that fails waits for it."""
POLL_S_MIN, POLL_S_MAX = 0.001, 0.02


async def until(condition: Callable[[], Any], what: str = "", deadline_s: float = DEADLINE_S) -> Any:
    """Wait until the condition gives something true, and return that."""
    pauses = _pauses(condition, what, deadline_s)
    while not (found := condition()):
        await asyncio.sleep(next(pauses))
    return found


def wait_until(condition: Callable[[], Any], what: str = "", deadline_s: float = DEADLINE_S) -> Any:
    """As `until`, for tests without an event loop."""
    pauses = _pauses(condition, what, deadline_s)
    while not (found := condition()):
        time.sleep(next(pauses))
    return found


def _pauses(condition: Callable[[], Any], what: str, deadline_s: float) -> Iterator[float]:
    pause_s, end = POLL_S_MIN, time.monotonic() + deadline_s
    while time.monotonic() < end:
        yield pause_s
        pause_s = min(pause_s * 1.2, POLL_S_MAX)
    raise AssertionError(f"within {deadline_s:g} s this did not happen: {what or _source(condition)}")


def _source(condition: Callable[[], Any]) -> str:
    try:
        return " ".join(inspect.getsource(condition).split())
    except (OSError, TypeError):
        return repr(condition)
