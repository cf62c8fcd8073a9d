"""Time is an argument of the log, so that tests and simulations decide what time it is."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of wall-clock time."""

    def now_us(self) -> int:
        """Microseconds since the Unix epoch. May jump; the log never lets a stream's time go back."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1000
