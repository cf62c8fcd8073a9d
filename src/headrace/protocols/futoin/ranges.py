"""Sets of indexes that are mostly one long run: which records are known to be JSON."""

from __future__ import annotations

from bisect import bisect_right

RANGES_MAX = 1000
"""Runs remembered per stream; when there are more, the oldest is forgotten, and checked again if it is read."""


class Ranges:
    """Disjoint runs first ≤ index < next, in order."""

    __slots__ = ("_firsts", "_nexts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._nexts: list[int] = []

    def add(self, first: int, next: int) -> None:
        """Join a run to the set."""
        assert first < next
        firsts, nexts = self._firsts, self._nexts
        if nexts and nexts[-1] == first:  # nearly always: what was added last goes on
            nexts[-1] = next
            return
        low = bisect_right(nexts, first - 1)
        high = bisect_right(firsts, next)
        if low < high:
            first = min(first, firsts[low])
            next = max(next, nexts[high - 1])
        firsts[low:high] = [first]
        nexts[low:high] = [next]
        if len(firsts) > RANGES_MAX:
            del firsts[0], nexts[0]

    def covers(self, first: int, next: int) -> bool:
        """Whether the whole run is in the set."""
        at = bisect_right(self._firsts, first) - 1
        return at >= 0 and next <= self._nexts[at]

    def __len__(self) -> int:
        return len(self._firsts)
