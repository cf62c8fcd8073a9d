"""Which keys of a stream a listener gets, in which order.

======  ==================================================  ==========================================
stride  startKey -1                                         any other startKey
======  ==================================================  ==========================================
0       items that arrive after the call, ascending         keys from startKey on, then new ones
not 0   from the largest key (smallest for a negative       startKey, startKey + stride, …; each once
        stride), or from the first one to appear            it is there
======  ==================================================  ==========================================

A listener is a position, not a queue: however slow it is, it costs the same few numbers, and it continues exactly
where it stood.
"""

from __future__ import annotations

from typing import Final, Protocol

AUTODETECT: Final = -1


class Keys(Protocol):
    """What a stream says of its keys."""

    def first(self) -> int | None:
        """The smallest."""

    def last(self) -> int | None:
        """The largest."""

    def above(self, key: int | None, limit: int, index_min: int = 0) -> list[int]:
        """Keys above another, ascending, of records at `index_min` or later."""

    def run(self, key: int, stride: int, limit: int) -> list[int]:
        """Keys at equal distances, as long as none is missing."""


class ItemFeed:
    """One listener's position."""

    def __init__(self, keys: Keys, arrivals: int, start_key: int, stride: int) -> None:
        """`arrivals` is where the next new item will stand in the order of arrival."""
        self._keys = keys
        self._stride = stride
        self._index_min = 0
        self._last: int | None = None
        self._next: int | None = None
        if stride:
            self._next = self._detect() if start_key == AUTODETECT else start_key
        elif start_key == AUTODETECT:
            self._index_min = arrivals
        elif start_key > -(2**63):
            self._last = start_key - 1

    def _detect(self) -> int | None:
        return self._keys.last() if self._stride > 0 else self._keys.first()

    def take(self, limit: int) -> list[int]:
        """The next keys that are there, up to `limit`."""
        if not self._stride:
            keys = self._keys.above(self._last, limit, self._index_min)
            if keys:
                self._last = keys[-1]
            return keys
        if self._next is None:
            # An empty stream: it starts with the first key to appear, which is the smallest of what came together.
            self._next = self._keys.first() if self._stride > 0 else self._keys.last()
            if self._next is None:
                return []
        keys = self._keys.run(self._next, self._stride, limit)
        if keys:
            self._next = keys[-1] + self._stride
        return keys
