"""Records per second of many streams at once, from how far each has come."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


class Rates:
    """Of each stream, since the last look. `now_s` is the clock; without one it is the process's own."""

    def __init__(self, now_s: Callable[[], float] | None = None) -> None:
        self._now_s = now_s
        self._before: Mapping[str, int] | None = None
        self._at_s = 0.0
        self._rates: dict[str, float] = {}

    @property
    def has_looked(self) -> bool:
        """There is something to compare the next look with."""
        return self._before is not None

    def age_s(self) -> float:
        """How long ago the last look was."""
        return self._clock_s() - self._at_s

    def measure(self, nexts: Mapping[str, int]) -> None:
        """Look again: `nexts` is name → next index. A stream that is new began at 0."""
        passed_s = self.age_s()
        if self._before is not None and passed_s > 0:
            moved = {name: value - self._before.get(name, 0) for name, value in nexts.items()}
            self._rates = {name: max(0, records) / passed_s for name, records in moved.items()}
        self._before, self._at_s = nexts, self._clock_s()

    def of(self, name: str) -> float:
        """The rate of one stream; 0 before the second look."""
        return self._rates.get(name, 0.0)

    def _clock_s(self) -> float:
        return self._now_s() if self._now_s is not None else time.monotonic()
