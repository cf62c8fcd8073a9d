"""A clock for tests."""

from __future__ import annotations


class FakeClock:
    """Stands still until it is moved. May be moved back, as real clocks are."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = now_us

    def now_us(self) -> int:
        return self._now_us

    def advance(self, seconds: float) -> None:
        self._now_us += int(seconds * 1_000_000)
