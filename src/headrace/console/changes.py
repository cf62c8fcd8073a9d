"""What changed before a moment: what happened, and which figures left where they had been.

The last minutes before it are compared with those before them, as the hub's history has them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headrace.admin.requests import Asked
from headrace.console.history import NAMED_MAX, Happening, History, HistoryRequest, Moment

if TYPE_CHECKING:
    from headrace.hub import Hub

BEFORE_S = 1800.0
NEAR_S = 300.0
FACTOR = 2.0
"""A figure that has become so many times greater or smaller has changed."""
CHANGES_MAX = 20


class ChangesRequest(Asked, frozen=True):
    """The moment, such as that of an alarm."""

    before_us: int


class Change(msgspec.Struct, frozen=True):
    """A figure, on average as it had been (`was`) and in the last minutes before the moment (`became`)."""

    what: str
    unit: str
    was: float
    became: float
    page: list[str]


class ChangesView(msgspec.Struct, frozen=True):
    """The greatest changes first; what happened in the order of time."""

    since_us: int
    near_us: int
    changes: list[Change]
    events: list[Happening]


class _Figure(NamedTuple):
    """Something that is compared, and the least difference that somebody would notice."""

    what: str
    unit: str
    page: list[str]
    least: float
    earlier: list[float | None]
    near: list[float | None]


class Changes:
    """The handler, around one history."""

    def __init__(self, hub: Hub, history: History) -> None:
        self._hub = hub
        self._history = history

    def register(self) -> None:
        self._hub.verbs.register(
            "console.changes", ChangesRequest, self.changes, right="read", summary="What changed before", filters=True
        )

    async def changes(self, asked: ChangesRequest) -> ChangesView:
        """Of what the caller may read."""
        since_us = asked.before_us - int(BEFORE_S * 1_000_000)
        near_us = asked.before_us - int(NEAR_S * 1_000_000)
        view = await self._history.history(HistoryRequest(since_us, asked.before_us + 1, points=1000))
        moments = [moment for moment in view.moments if moment is not None]
        earlier = [moment for moment in moments if moment.time_us < near_us]
        near = [moment for moment in moments if moment.time_us >= near_us]
        return ChangesView(since_us, near_us, changed(earlier, near), view.events)


def changed(earlier: Sequence[Moment], near: Sequence[Moment]) -> list[Change]:
    """What differs between some moments and those that came after them."""
    found = []
    for figure in _figures(earlier, near):
        was, became = _mean(figure.earlier), _mean(figure.near)
        if was is None or became is None or abs(became - was) < figure.least:
            continue
        low, high = sorted((was, became))
        if high >= FACTOR * low:
            found.append((math.log((high + figure.least) / (low + figure.least)), figure, was, became))
    found.sort(key=lambda each: -each[0])
    return [Change(each.what, each.unit, round(was, 1), round(became, 1), each.page) for _, each, was, became in found][
        :CHANGES_MAX
    ]


def _figures(earlier: Sequence[Moment], near: Sequence[Moment]) -> Iterator[_Figure]:
    both = [*earlier, *near]
    for stream in sorted({name for moment in both for name in moment.rates}):
        sides = [[_rate(moment, stream) for moment in side] for side in (earlier, near)]
        yield _Figure(f"Stream {stream}", "records/s", ["stream", stream], 1.0, sides[0], sides[1])
    for stream, cursor in sorted({(each[0], each[1]) for moment in both for each in moment.lags}):
        sides = [[_lag(moment, stream, cursor) for moment in side] for side in (earlier, near)]
        what = f"Cursor {cursor} in {stream}"
        yield _Figure(what, "records behind", ["stream", stream], 10.0, sides[0], sides[1])
    for what, name, unit, least in (
        ("Records in", "records_in", "records/s", 1.0),
        ("Records out", "records_out", "records/s", 1.0),
        ("Append to durable, p99", "commit_p99_ms", "ms", 5.0),
        ("Open sessions", "sessions", "sessions", 1.0),
    ):
        sides = [[getattr(moment, name) for moment in side] for side in (earlier, near)]
        yield _Figure(what, unit, ["overview"], least, sides[0], sides[1])


def _rate(moment: Moment, stream: str) -> float | None:
    """None where the moment does not say: it names only those with the highest."""
    return moment.rates.get(stream, 0.0 if len(moment.rates) < NAMED_MAX else None)


def _lag(moment: Moment, stream: str, cursor: str) -> float | None:
    lags = {(each[0], each[1]): each[2] for each in moment.lags}
    return lags.get((stream, cursor), 0 if len(lags) < NAMED_MAX else None)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
