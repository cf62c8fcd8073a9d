"""The pulse of the hub: once a second a few numbers, kept for some minutes and sent to every open page.

A page has one connection, server-sent events. It carries the samples (event `pulse`) and, for the stream that the page
shows, a word that there are new records (event `moved`, with the next index): the page then reads them itself. Whoever
loses the right to it is told so by the last event, `refused`. All of it is bounded: so many pages, so many samples
waiting for one page, and one `moved` however many records came.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from prometheus_client import Histogram

from headrace.console.alarms import Alarm, Alarms, told_to
from headrace.errors import Forbidden, HeadraceError, LimitExceeded
from headrace.security import EVERYTHING, Principal
from headrace.serving.memory import resident_bytes
from headrace.telemetry.metrics import counted

if TYPE_CHECKING:
    from headrace.hub import Hub

logger = logging.getLogger("headrace.console")
INTERVAL_S = 1.0
KEPT = 300
"""Samples kept, so that a page that is opened has a past."""
WAITING_MAX = 5
"""A page that falls this many samples behind is cut off; it connects again."""
MOVED_PAUSE_S = 0.1
"""A page hears of new records at most this often."""
SHOWN_GAUGES = ("queue_bytes", "tail_bytes", "segment_bytes", "free_bytes", "streams", "tables")


class Sample(msgspec.Struct, frozen=True):
    """One second of the hub. Rates are per second; latencies are of the commits in this interval. What is null is not
    known, or not for whoever asks."""

    time_ms: int
    records_in: float | None = None
    records_out: float | None = None
    bytes_in: float | None = None
    commits: float | None = None
    commit_p50_ms: float | None = None
    commit_p99_ms: float | None = None
    queue_bytes: float | None = None
    tail_bytes: float | None = None
    segment_bytes: float | None = None
    free_bytes: float | None = None
    resident_bytes: float | None = None
    streams: float | None = None
    tables: float | None = None
    sessions: dict[str, int] = {}
    alarms: list[Alarm] = []

    def shown_to(self, principal: Principal) -> Sample:
        """The sample with what `principal` may know. Figures of the whole hub tell of streams that they may not read:
        those get only the alarms that concern them."""
        alarms = told_to(principal, self.alarms)
        if principal.may("read"):
            return msgspec.structs.replace(self, alarms=alarms)
        return Sample(self.time_ms, alarms=alarms)


class Shown(NamedTuple):
    """The stream that a page shows, and the next index that it knows of."""

    stream: str
    partition: int
    next: int


def refusal(principal: Principal, shown: Shown | None) -> HeadraceError | None:
    """Why a page may not be told what happens, if that is so."""
    if principal.refusal is not None:
        return principal.refusal
    if not principal.may_some("read"):
        return Forbidden("looking at it needs the right 'read'")
    if shown is not None and not principal.may("read", shown.stream):
        return Forbidden(f"{principal.name!r} may not read stream {shown.stream!r}")
    return None


class Event(NamedTuple):
    """One server-sent event."""

    name: str
    data: bytes

    def encoded(self) -> bytes:
        return b"event: %s\ndata: %s\n\n" % (self.name.encode(), self.data)


class Quantiles:
    """Quantiles of what a histogram counted since the last look."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._before: list[tuple[float, float]] = []

    def take(self, *quantiles: float) -> list[float | None]:
        """Upper bounds of the buckets that hold each quantile; None when nothing was counted."""
        [metric] = self._histogram.collect()
        now = [(float(s.labels["le"]), s.value) for s in metric.samples if s.name.endswith("_bucket")]
        before = self._before or [(bound, 0.0) for bound, _ in now]
        self._before = now
        counted = [(bound, value - old) for (bound, value), (_, old) in zip(now, before, strict=True)]
        total = counted[-1][1] if counted else 0
        if not total:
            return [None] * len(quantiles)
        finite = counted[-2][0]
        return [min(next(bound for bound, value in counted if value >= q * total), finite) for q in quantiles]


class Watcher:
    """One page: what waits to be sent to it."""

    def __init__(self, principal: Principal) -> None:
        self._principal = principal
        self._samples: deque[Sample] = deque()
        self._moved: int | None = None
        self._ended = False
        self._refused: HeadraceError | None = None
        self._something = asyncio.Event()

    def sample(self, sample: Sample) -> bool:
        """Add a sample; False when the page is too slow and was given up."""
        if len(self._samples) >= WAITING_MAX:
            self.end()
            return False
        self._samples.append(sample)
        self._something.set()
        return True

    def moved(self, next_index: int) -> None:
        """The stream has new records; a word that was not sent yet is replaced."""
        self._moved = next_index
        self._something.set()

    def end(self) -> None:
        """Send what waits, then nothing more."""
        self._ended = True
        self._something.set()

    def refuse(self, error: HeadraceError | None) -> None:
        """If there is a reason to, send it, and nothing else any more."""
        self._refused = self._refused or error
        self._something.set()

    async def events(self) -> AsyncIterator[Event]:
        """What there is, as it comes."""
        while True:
            await self._something.wait()
            self._something.clear()
            if self._refused is not None:
                yield Event("refused", msgspec.json.encode({"code": self._refused.code, "message": str(self._refused)}))
                return
            if self._moved is not None:
                moved, self._moved = self._moved, None
                yield Event("moved", msgspec.json.encode(moved))
            while self._samples and self._refused is None:
                yield Event("pulse", msgspec.json.encode([self._samples.popleft().shown_to(self._principal)]))
            if self._ended:
                return


class Pulse:
    """Takes samples and hands them to whoever watches."""

    def __init__(
        self, hub: Hub, beside: Callable[[Sample], Awaitable[None]] | None = None, alarms: Alarms | None = None
    ) -> None:
        """`beside` is done with every sample: others who want to look once a second."""
        self._hub = hub
        self._alarms = alarms or Alarms(hub)
        self._beside = beside
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._watchers: set[Watcher] = set()
        self._quantiles = Quantiles(hub.metrics.log.commit_seconds)
        self._before: tuple[float, dict[str, float]] | None = None
        hub.metrics.before_scrape(lambda: hub.metrics.console.pages.set(len(self._watchers)))
        self._task = asyncio.create_task(self._run(), name="console-pulse")

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._end()

    def _end(self) -> None:
        for watcher in self._watchers:
            watcher.end()

    async def _run(self) -> None:
        """Samples until the hub stops; then every page is told, or the HTTP server would wait for them."""
        while not self._hub.stopping.is_set():
            try:
                sample = self.sample()
                self._publish(sample)
                if self._beside is not None:
                    await self._beside(sample)
            except Exception:  # what is wrong this second may be well in the next; no pulse at all tells nobody
                logger.exception("the console could not be updated")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hub.stopping.wait(), INTERVAL_S)
        self._end()

    def _publish(self, sample: Sample) -> None:
        self._samples.append(sample)
        self._watchers = {watcher for watcher in self._watchers if watcher.sample(sample)}

    def check_room(self) -> None:
        """Raise when no more pages may watch."""
        limit = self._hub.config.http.console_pages_max
        if len(self._watchers) >= limit:
            self._hub.metrics.console.refused.labels(limit="http.console_pages_max").inc()
            raise LimitExceeded("open console pages", limit + 1, limit, "http.console_pages_max")

    async def watch(self, shown: Shown | None = None, principal: Principal = EVERYTHING) -> AsyncIterator[Event]:
        """First the past, then what happens, as far as `principal` may know it. Ends when the watcher is too slow or
        the hub stops; and, with the event `refused`, when `principal` would not be let in any more."""
        self.check_room()
        watcher = Watcher(principal)
        self._watchers.add(watcher)
        unwatch = principal.watch(lambda: watcher.refuse(refusal(principal, shown)))
        following = None if shown is None else asyncio.create_task(self._follow(shown, watcher))
        try:
            yield Event("pulse", msgspec.json.encode(self._past(principal)))
            async for event in watcher.events():
                yield event
        finally:
            self._watchers.discard(watcher)
            unwatch()
            if following is not None:
                following.cancel()

    def _past(self, principal: Principal) -> list[Sample]:
        """What was, for a page that is opened. Only the last sample says what is wrong: that is about now."""
        *before, last = self._samples or [None]
        quiet = [msgspec.structs.replace(sample, alarms=[]) for sample in before if sample is not None]
        return [sample.shown_to(principal) for sample in (*quiet, last) if sample is not None]

    async def _follow(self, shown: Shown, watcher: Watcher) -> None:
        """Say when the stream moves. One that is deleted moves no more; the page finds out when it reads."""
        following = shown.next
        with contextlib.suppress(HeadraceError):
            while True:
                await self._hub.wait(shown.stream, following, shown.partition)
                following = self._hub.bounds(shown.stream, shown.partition).next
                watcher.moved(following)
                await asyncio.sleep(MOVED_PAUSE_S)

    def sample(self) -> Sample:
        """The numbers now; rates since the last call."""
        hub = self._hub
        gauges = hub.gauges()
        totals = {
            "records_in": counted(hub.metrics.log.records),
            "records_out": counted(hub.metrics.log.read_records),
            "bytes_in": counted(hub.metrics.log.bytes),
            "commits": counted(hub.metrics.log.commits),
        }
        now = time.monotonic()
        since, before = self._before or (now, totals)
        self._before = (now, totals)
        passed = max(now - since, 1e-9)
        rates = {name: (value - before[name]) / passed for name, value in totals.items()}
        p50, p99 = self._quantiles.take(0.5, 0.99)
        return Sample(
            time_ms=hub.clock.now_us() // 1000,
            **rates,
            commit_p50_ms=None if p50 is None else p50 * 1000,
            commit_p99_ms=None if p99 is None else p99 * 1000,
            **{name: gauges[name] for name in SHOWN_GAUGES},
            resident_bytes=resident_bytes(),
            sessions=hub.sessions.counts(),
            alarms=self._alarms.take(),
        )
