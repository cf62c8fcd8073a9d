"""Large changes of tables, a slice at a time: the writer does what is small between two slices.

A change of very many keys takes the writer tens of milliseconds. When it is alone in its commit, that is done in
slices: before the commit, to find which of the keys to remove are there; after it, once the records are durable and
visible in their stream, to fold them into the table. Meanwhile only transactions pass that touch nothing of it, and it
is acknowledged when all is done. Readers of the table may see a part of it before, as they may of any large change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from headrace.log.table import Table

SLICE_KEYS: Final = 2_000
"""About a millisecond."""


class ManyChanges:
    """Changes that have become durable as the records from `base` on."""

    def __init__(self, table: Table, keys: Sequence[bytes], values: Sequence[bytes | None], base: int) -> None:
        self.table = table
        self.keys = keys
        self.values = values
        self.base = base

    def __call__(self) -> None:
        """Fold all of them in."""
        self.table.apply_many(self.keys, self.values, self.base)

    @property
    def is_long(self) -> bool:
        """Whether it is worth while to slice."""
        return len(self.keys) > SLICE_KEYS

    def slices(self) -> Iterator[None]:
        """Fold them in; stops between two slices."""
        for start in range(0, len(self.keys), SLICE_KEYS):
            end = start + SLICE_KEYS
            self.table.apply_many(self.keys[start:end], self.values[start:end], self.base + start)
            yield


class Removals:
    """Which of many keys are there, so that they must be removed. Nobody else changes the table meanwhile."""

    def __init__(self, table: Table, keys: Sequence[bytes]) -> None:
        self._table = table
        self._wanted = keys
        self._found: set[bytes] = set()
        self.keys: list[bytes] = []
        self.there = 0
        self.growth = 0

    def slices(self) -> Iterator[None]:
        """Find out; stops between two slices."""
        for start in range(0, len(self._wanted), SLICE_KEYS):
            wanted = [key for key in self._wanted[start : start + SLICE_KEYS] if key not in self._found]
            keys, there, growth = self._table.to_delete(wanted)
            self._found.update(keys)
            self.keys += keys
            self.there += there
            self.growth += growth
            yield

    def complete(self) -> Removals:
        """All of it at once."""
        for _ in self.slices():
            pass
        return self
