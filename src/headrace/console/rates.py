"""Records per second of many streams at once, from how far each has come."""

from __future__ import annotations

import time
from collections.abc import Mapping


class Rates:
    """Of each stream, since the last look."""

    def __init__(self) -> None:
        self._before: Mapping[str, int] = {}
        self._at_s = 0.0
        self._rates: dict[str, float] = {}

    def age_s(self) -> float:
        """How long ago the last look was."""
        return time.monotonic() - self._at_s

    def measure(self, nexts: Mapping[str, int]) -> None:
        """Look again: `nexts` is name → next index."""
        passed_s = self.age_s()
        if self._before and passed_s > 0:
            self._rates = {name: (value - self._before.get(name, value)) / passed_s for name, value in nexts.items()}
        self._before, self._at_s = nexts, time.monotonic()

    def of(self, name: str) -> float:
        """The rate of one stream; 0 when it was not seen twice."""
        return self._rates.get(name, 0.0)
