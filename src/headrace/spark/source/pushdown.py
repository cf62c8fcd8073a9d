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
# Columns of which a list of values is taken.
LISTED = {"stream": str, "partition": int, "type": str}


class PushedFilters:
    """What the filters seen so far leave over."""

    def __init__(self) -> None:
        self._low = 0
        self._high = INDEX_MAX
        self._time_low_us: int | None = None
        self._time_high_us: int | None = None
        self._allowed: dict[str, set[Any]] = {}

    def take(self, condition: Any) -> bool:
        """Use a filter; True when Spark need not check it again."""
        kind = type(condition).__name__
        attribute: tuple[str, ...] = getattr(condition, "attribute", ())
        name = attribute[0] if len(attribute) == 1 else ""
        value = getattr(condition, "value", None)
        if name == "index":
            return kind == "IsNotNull" or self._take_index(kind, value)
        if name == "time":
            self._take_time(kind, value)
        elif name in LISTED and (values := _values(kind, value, LISTED[name])) is not None:
            self._allowed[name] = self._allowed.get(name, values) & values
            return name != "type"
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

    def wants(self, column: str, value: Any) -> bool:
        """Whether records with this value in the column `stream` or `partition` are asked for."""
        return column not in self._allowed or value in self._allowed[column]

    def types(self, already: Sequence[str] | None) -> tuple[str, ...] | None:
        """The types wanted by filters and by the option `types` together; None for all."""
        if "type" not in self._allowed:
            return None if already is None else tuple(already)
        types = self._allowed["type"]
        return tuple(sorted(types if already is None else types & set(already)))


def _values(kind: str, value: Any, of: type) -> set[Any] | None:
    """The values that a filter allows; None when no list of values says it.

    A null among them matches rows that no list can name, so the whole filter is left to Spark then.
    """
    values = [value] if kind in EQUAL else list(value) if kind == "In" else None
    if values is None or any(not isinstance(item, of) for item in values):
        return None
    return set(values)
