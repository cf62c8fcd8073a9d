"""Time is an argument of the log, so that tests and simulations decide what time it is."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of wall-clock time."""

    def now_us(self) -> int:
        """Microseconds since the Unix epoch. May jump; the log never lets a stream's time go back."""
        ...


def has_passed(wait_us: int, since_us: int, now_us: int) -> bool:
    """Whether this long has passed. A clock that was set back cannot tell: then it has, and the next wait begins."""
    return not since_us <= now_us < since_us + wait_us


class SystemClock:
    """The machine's own clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1000
