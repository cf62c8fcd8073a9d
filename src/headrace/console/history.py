"""A day of the hub, kept by the hub: rates, lags, latencies, and what happened.

The stream `console/history` has a record every `STEP_S` seconds (type `sample`) and one for each event (type `event`),
as JSON. Retention keeps it to a day and to `http.history_bytes_max`. It is the hub's own: the verb `console.history`
shows of it what the caller may read. `http.history = false` turns it off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec

from headrace import __version__
from headrace.admin.requests import Asked
from headrace.console.alarms import Alarm
from headrace.console.pipelines import PipelineViews
from headrace.console.pulse import Sample
from headrace.console.rates import Rates
from headrace.console.views import Views
from headrace.errors import HeadraceError
from headrace.log.batch import Batch
from headrace.log.clock import has_passed
from headrace.log.ops import StreamOptions
from headrace.protocols.descriptor import is_holding_cursor
from headrace.security import Principal, current, is_reserved

if TYPE_CHECKING:
    from headrace.hub import Hub

logger = logging.getLogger("headrace.console")
STREAM = "console/history"
STEP_S = 15.0
LATE_S = 2 * STEP_S + 1
"""Samples that are less apart than this follow each other; a second is what a pulse may be late."""
DAY_S = 86400.0
NAMED_MAX = 20
"""Streams and cursors that a sample names: those with the highest rate and the greatest lag."""
POINTS_MAX = 2000
EVENTS_MAX = 1000
READ_RECORDS = 2000
FOR_ALL = ("disk", "warning")
"""Alarms that everybody is told of."""

Key = TypeVar("Key")
Number = TypeVar("Number", int, float)


class Moment(msgspec.Struct, frozen=True):
    """Some seconds of the hub, on average; `commit_p99_ms` and `lag` are the worst. What is null is not known, or not
    for whoever asks."""

    time_us: int
    records_in: float | None
    records_out: float | None
    commit_p50_ms: float | None
    commit_p99_ms: float | None
    sessions: int | None
    lag: int
    alarms: int | None
    rates: dict[str, float] = {}
    lags: list[tuple[str, str, int]] = []
    """Stream, cursor, and how far behind it is."""


class Happening(msgspec.Struct, frozen=True):
    """Something that happened, and the page that shows it."""

    time_us: int
    kind: str
    title: str
    page: list[str] = []
    stream: str | None = None
    for_all: bool = True
    """Otherwise only those are told who may read every stream."""

    def is_for(self, principal: Principal) -> bool:
        if self.stream is not None:
            return principal.may("read", self.stream)
        return self.for_all or principal.may("read")


class HistoryRequest(Asked, frozen=True):
    """From `since_us` until before `until_us`, in about `points` steps; with `stream`, also its rate."""

    since_us: int
    until_us: int
    points: Annotated[int, msgspec.Meta(ge=1, le=POINTS_MAX)] = 300
    stream: str | None = None


class HistoryView(msgspec.Struct, frozen=True):
    """Steps of equal length; null where nothing is known, as when the hub was away. The newest event is last."""

    since_us: int
    step_us: int
    moments: list[Moment | None]
    events: list[Happening]


class History:
    """Writes it, once a second asked whether it is time, and shows it."""

    def __init__(self, hub: Hub, views: Views, pipelines: PipelineViews) -> None:
        self._hub = hub
        self._views = views
        self._pipelines = pipelines
        self._rates = Rates(lambda: hub.clock.now_us() / 1e6)
        """Its own: those of the pages are as old as the last page that asked."""
        self._gathered: list[Sample] = []
        self._written_us = hub.clock.now_us()
        self._events: list[Happening] = []
        self._alarms: dict[str, Alarm] | None = None
        self._states: dict[str, str] | None = None
        self._task: asyncio.Task[None] | None = None
        cluster = "cluster" in hub.health.report().notes
        title = f"The hub took over the log ({__version__})" if cluster else f"The hub started ({__version__})"
        self._happened("takeover" if cluster else "start", title, ["overview"])

    def register(self) -> None:
        self._hub.metrics.before_scrape(self._measure)
        self._hub.verbs.register(
            "console.history", HistoryRequest, self.history, right="read", summary="A day of the hub", filters=True
        )

    def _measure(self) -> None:
        stored = self._hub.stored_bytes(STREAM) if self._hub.has_stream(STREAM) else 0
        self._hub.metrics.console.history_bytes.set(stored)

    def take(self, sample: Sample) -> None:
        """A second has passed. What is due is written beside: nobody waits for it."""
        self._gathered.append(sample)
        self._compare(sample)
        if not self._rates.has_looked and self._task is None:
            self._task = asyncio.create_task(asyncio.to_thread(self._look), name="console-history")
        if not has_passed(int(STEP_S * 1_000_000), self._written_us, self._hub.clock.now_us()):
            return
        if self._task is None or self._task.done():
            self._written_us = self._hub.clock.now_us()
            self._task = asyncio.create_task(self.write(), name="console-history")

    async def close(self) -> None:
        """The last that is written is that the hub stopped."""
        if self._task is not None:
            await self._task
        if self._hub.has_stream(STREAM):  # one that lived for some seconds leaves no trace
            self._happened("stop", "The hub stopped", ["overview"])
            await self.write()

    async def write(self) -> None:
        """What was gathered, as one record, and the events. A log that takes nothing has more to tell than this."""
        gathered, self._gathered = self._gathered, []
        events, self._events = self._events, []
        try:
            # in a thread: a hub may have very many streams
            moments = await asyncio.to_thread(lambda: list(self._moments(gathered)))
            rows = [("event", event) for event in events] + [("sample", moment) for moment in moments]
            await self._make_stream()
            encoded = [msgspec.json.encode(row) for _, row in rows]
            await self._hub.append(STREAM, Batch.of(encoded, types=[kind for kind, _ in rows]))
        except HeadraceError as error:
            logger.warning("cannot save the console's history of the last few seconds: %s", error)

    async def _make_stream(self) -> None:
        """As the settings say now: they may have been others when it was made."""
        options = StreamOptions(retention_age_s=DAY_S, retention_bytes=self._hub.config.http.history_bytes_max)
        if not self._hub.has_stream(STREAM):
            await self._hub.create_stream(STREAM, options=options)
        elif self._hub.stream(STREAM).options != options:
            await self._hub.set_options(STREAM, options)

    def _look(self) -> None:
        nexts = self._views.nexts()
        self._rates.measure(nexts)
        self._views.measure_rates(nexts)  # so that the first page that asks knows the last seconds, not the last hours

    def _moments(self, gathered: list[Sample]) -> Iterator[Moment]:
        if not gathered:
            return
        self._look()
        lags: dict[tuple[str, str], int] = {}
        for cursor in self._hub.cursors():
            if cursor.lag and not is_holding_cursor(cursor.name, cursor.stream):
                key = (cursor.stream, cursor.name)
                lags[key] = lags.get(key, 0) + cursor.lag
        rates = {info.name: self._rates.of(info.name) for info in self._hub.streams() if not is_reserved(info.name)}
        yield Moment(
            self._hub.clock.now_us(),
            _mean(sample.records_in for sample in gathered),
            _mean(sample.records_out for sample in gathered),
            _most(sample.commit_p50_ms for sample in gathered),
            _most(sample.commit_p99_ms for sample in gathered),
            max(sum(sample.sessions.values()) for sample in gathered),
            max(lags.values(), default=0),
            max(len(sample.alarms) for sample in gathered),
            {name: round(rate, 1) for name, rate in _highest(rates).items()},
            [(*key, lag) for key, lag in _highest(lags).items()],
        )

    def _happened(
        self, kind: str, title: str, page: list[str], stream: str | None = None, for_all: bool = True
    ) -> None:
        if len(self._events) < EVENTS_MAX:
            self._events.append(Happening(self._hub.clock.now_us(), kind, title, page, stream, for_all))

    def _compare(self, sample: Sample) -> None:
        """Alarms that came and went, pipelines that changed their state."""
        alarms = {alarm.key: alarm for alarm in sample.alarms}
        states = {status.name: status.state for status in self._pipelines.statuses}
        for key, alarm in alarms.items():
            if self._alarms is None or key not in self._alarms:
                self._happened("alarm", alarm.title, alarm.page, alarm.stream, alarm.kind in FOR_ALL)
        for key, alarm in (self._alarms or {}).items():
            if key not in alarms:
                self._happened("clear", f"Over: {alarm.title}", alarm.page, alarm.stream, alarm.kind in FOR_ALL)
        known = self._states or {}
        for name, state in states.items():
            if self._states is not None and known.get(name) != state:
                title = f"Pipeline {name}: {state}" if name in known else f"Pipeline {name} was deployed: {state}"
                self._happened("pipeline", title, ["pipelines", name], for_all=False)
        for name in known.keys() - states.keys():
            self._happened("pipeline", f"Pipeline {name} was removed", ["pipelines"], for_all=False)
        self._alarms, self._states = alarms, states

    async def history(self, asked: HistoryRequest) -> HistoryView:
        """In steps of at least `STEP_S`."""
        now_us = self._hub.clock.now_us()
        since_us = max(asked.since_us, now_us - int(DAY_S * 1_000_000))
        until_us = min(max(asked.until_us, since_us + 1), now_us + 1)
        step_us = max(int(STEP_S * 1_000_000), (until_us - since_us) // asked.points + 1)
        steps: list[list[Moment]] = [[] for _ in range((until_us - since_us) // step_us + 1)]
        events: list[Happening] = []
        principal = current()
        async for kind, payload in self._rows(since_us, until_us):
            if kind == "sample":
                moment = msgspec.json.decode(payload, type=Moment)
                if since_us <= moment.time_us < until_us:
                    steps[(moment.time_us - since_us) // step_us].append(_shown(moment, principal, asked.stream))
            else:
                event = msgspec.json.decode(payload, type=Happening)
                if since_us <= event.time_us < until_us and event.is_for(principal):
                    events.append(event)
        events += [event for event in self._events if since_us <= event.time_us < until_us and event.is_for(principal)]
        return HistoryView(since_us, step_us, _filled([_together(step) for step in steps]), events[-EVENTS_MAX:])

    async def _rows(self, since_us: int, until_us: int) -> AsyncIterator[tuple[str, bytes]]:
        if not self._hub.has_stream(STREAM):
            return
        index = await self._hub.index_at_time(STREAM, since_us)
        while True:
            records = await self._hub.read(STREAM, index, limit=READ_RECORDS)
            if not records.num_rows:
                return
            for kind, payload in zip(records.column("type").to_pylist(), records.column("payload"), strict=True):
                yield kind, payload.as_py()
            index = records.column("index")[-1].as_py() + 1
            if records.column("time")[-1].value > until_us + STEP_S * 1_000_000:
                return


def _shown(moment: Moment, principal: Principal, stream: str | None) -> Moment:
    """With the names that the caller may know; of one stream, if one is asked for."""

    def fits(name: str) -> bool:
        return stream in (None, name) and principal.may("read", name)

    rates = {name: rate for name, rate in moment.rates.items() if fits(name)}
    if stream is not None and len(moment.rates) < NAMED_MAX and fits(stream):
        rates.setdefault(stream, 0.0)  # had it moved, it would be among them
    lags = [each for each in moment.lags if fits(each[0])]
    if principal.may("read"):
        return msgspec.structs.replace(moment, rates=rates, lags=lags)
    # figures of the whole hub tell of streams that they may not read
    furthest = max((lag for _, _, lag in lags), default=0)
    return Moment(moment.time_us, None, None, None, None, None, furthest, None, rates, lags)


def _together(moments: list[Moment]) -> Moment | None:
    if len(moments) < 2:
        return moments[0] if moments else None
    names = {name for moment in moments for name in moment.rates}
    lags: dict[tuple[str, str], int] = {}
    for stream, cursor, lag in (each for moment in moments for each in moment.lags):
        lags[stream, cursor] = max(lag, lags.get((stream, cursor), 0))
    return Moment(
        moments[-1].time_us,
        _mean(each.records_in for each in moments),
        _mean(each.records_out for each in moments),
        _most(each.commit_p50_ms for each in moments),
        _most(each.commit_p99_ms for each in moments),
        _most(each.sessions for each in moments),
        max(each.lag for each in moments),
        _most(each.alarms for each in moments),
        {name: _mean(each.rates.get(name, 0.0) for each in moments) or 0.0 for name in names},
        [(*key, lag) for key, lag in lags.items()],
    )


def _filled(moments: list[Moment | None]) -> list[Moment | None]:
    """A sample that was a little late is of the step before it as well: that one is not unknown."""
    for at in range(len(moments) - 2, 0, -1):
        before, after = moments[at - 1], moments[at + 1]
        if moments[at] is not None or before is None or after is None:
            continue
        if after.time_us - before.time_us < LATE_S * 1_000_000:
            moments[at] = after
    return moments


def _mean(values: Iterator[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return round(sum(found) / len(found), 2) if found else None


def _most(values: Iterator[Number | None]) -> Number | None:
    return max((value for value in values if value is not None), default=None)


def _highest(values: dict[Key, Number]) -> dict[Key, Number]:
    most = sorted((item for item in values.items() if item[1]), key=lambda item: -item[1])
    return dict(most[:NAMED_MAX])
