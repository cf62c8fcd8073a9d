"""Filters of a batch query, turned into smaller ranges.

Filters on `index`, `stream` and `partition` are met exactly and taken off Spark's hands. Filters on `time` and `type`
narrow what is read, and Spark checks them again: it costs little and keeps its rules for nulls and time zones.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from headrace.units import microseconds

INDEX_MAX = (1 << 63) - 1
# Filters of Spark that bound a value from below and from above; its name says whether the bound itself fits.
EQUAL = {"EqualTo", "EqualNullSafe"}
AT_LEAST = {*EQUAL, "GreaterThan", "GreaterThanOrEqual"}
AT_MOST = {*EQUAL, "LessThan", "LessThanOrEqual"}


class PushedFilters:
    """What the filters seen so far leave over."""

    def __init__(self) -> None:
        self._low = 0
        self._high = INDEX_MAX
        self._time_low_us: int | None = None
        self._time_high_us: int | None = None
        self._streams: set[str] | None = None
        self._partitions: set[int] | None = None
        self._types: set[str] | None = None

    def take(self, one: Any) -> bool:
        """Use a filter; True when Spark need not check it again."""
        kind = type(one).__name__
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        name = attribute[0] if len(attribute) == 1 else ""
        value = getattr(one, "value", None)
        if name == "index":
            return kind == "IsNotNull" or self._take_index(kind, value)
        if name == "time":
            self._take_time(kind, value)
        elif name == "type" and (texts := _values(kind, value, str)) is not None:
            self._types = _meet(self._types, texts)
        elif name == "stream" and (texts := _values(kind, value, str)) is not None:
            self._streams = _meet(self._streams, texts)
            return True
        elif name == "partition" and (numbers := _values(kind, value, int)) is not None:
            self._partitions = _meet(self._partitions, numbers)
            return True
        return False

    def _take_index(self, kind: str, value: Any) -> bool:
        if not isinstance(value, int) or kind not in AT_LEAST | AT_MOST:
            return False
        if kind in AT_LEAST:
            self._low = max(self._low, value + (kind == "GreaterThan"))
        if kind in AT_MOST:
            self._high = min(self._high, value + (kind != "LessThan"))
        return True

    def _take_time(self, kind: str, value: Any) -> None:
        if not isinstance(value, datetime):
            return
        time_us = microseconds(value)
        if kind in AT_LEAST:
            self._time_low_us = max(time_us, time_us if self._time_low_us is None else self._time_low_us)
        if kind in AT_MOST:
            self._time_high_us = min(time_us, time_us if self._time_high_us is None else self._time_high_us)

    def indexes(self) -> tuple[int, int]:
        """(first, after the last) index wanted."""
        return self._low, self._high

    def times_us(self) -> tuple[int | None, int | None]:
        """(not before, before) in microseconds; a record at the upper bound itself is still read."""
        high = self._time_high_us
        return self._time_low_us, None if high is None else high + 1

    def wants_stream(self, name: str) -> bool:
        return self._streams is None or name in self._streams

    def wants_partition(self, partition: int) -> bool:
        return self._partitions is None or partition in self._partitions

    def types(self, already: Sequence[str] | None) -> tuple[str, ...] | None:
        """The types wanted by filters and by the option `types` together; None for all."""
        if self._types is None:
            return None if already is None else tuple(already)
        return tuple(sorted(self._types if already is None else self._types & set(already)))


def _values(kind: str, value: Any, of: type) -> set[Any] | None:
    """The values that a filter allows; None when no list of values says it.

    A null among them matches rows that no list can name, so the whole filter is left to Spark then.
    """
    values = [value] if kind in EQUAL else list(value) if kind == "In" else None
    if values is None or any(not isinstance(one, of) for one in values):
        return None
    return set(values)


def _meet(known: set[Any] | None, values: set[Any]) -> set[Any]:
    return values if known is None else known & values
