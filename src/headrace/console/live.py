"""The pulse of the hub: once a second a few numbers, kept for some minutes and sent to every open page."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec
from prometheus_client import Histogram

from headrace.errors import LimitExceeded
from headrace.metrics import counted

if TYPE_CHECKING:
    from headrace.hub import Hub

INTERVAL_S = 1.0
KEPT = 300
"""Samples kept, so that a page that is opened has a past."""
WATCHERS_MAX = 64
WAITING_MAX = 5
"""A page that falls this many samples behind is cut off; it connects again."""
STUCK_S = 60.0


class Sample(msgspec.Struct, frozen=True):
    """One second of the hub. Rates are per second; latencies are of the commits in this interval."""

    time_ms: int
    records_in: float
    records_out: float
    bytes_in: float
    commits: float
    commit_p50_ms: float | None
    commit_p99_ms: float | None
    queue_bytes: float
    tail_bytes: float
    segment_bytes: float
    free_bytes: float
    resident_bytes: float
    streams: float
    tables: float
    sessions: dict[str, int]
    alarms: list[str]


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


class Pulse:
    """Takes samples and hands them to whoever watches."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._watchers: set[asyncio.Queue[Sample | None]] = set()
        self._quantiles = Quantiles(hub.metrics.log.commit_seconds)
        self._before: tuple[float, dict[str, float]] | None = None
        self._task = asyncio.create_task(self._run(), name="console-pulse")

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._end()

    def _end(self) -> None:
        for watcher in self._watchers:
            watcher.put_nowait(None)

    async def _run(self) -> None:
        """Samples until the hub stops; then every page is told, or the HTTP server would wait for them."""
        while not self._hub.stopping.is_set():
            self._publish(self.sample())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hub.stopping.wait(), INTERVAL_S)
        self._end()

    def _publish(self, sample: Sample) -> None:
        self._samples.append(sample)
        for watcher in list(self._watchers):
            if watcher.qsize() >= WAITING_MAX:
                self._watchers.discard(watcher)
                watcher.put_nowait(None)
            else:
                watcher.put_nowait(sample)

    async def watch(self) -> AsyncIterator[list[Sample]]:
        """First the past, then each new sample. Ends when the watcher is too slow or the hub stops."""
        if len(self._watchers) >= WATCHERS_MAX:
            raise LimitExceeded("open console pages", len(self._watchers) + 1, WATCHERS_MAX, "console WATCHERS_MAX")
        queue: asyncio.Queue[Sample | None] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            yield list(self._samples)
            while (sample := await queue.get()) is not None:
                yield [sample]
        finally:
            self._watchers.discard(queue)

    def sample(self) -> Sample:
        """The numbers now; rates since the last call."""
        hub = self._hub
        gauges = hub.gauges()
        totals = {
            "in": counted(hub.metrics.log.records),
            "out": counted(hub.metrics.log.read_records),
            "bytes": counted(hub.metrics.log.bytes),
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
            records_in=rates["in"],
            records_out=rates["out"],
            bytes_in=rates["bytes"],
            commits=rates["commits"],
            commit_p50_ms=None if p50 is None else p50 * 1000,
            commit_p99_ms=None if p99 is None else p99 * 1000,
            queue_bytes=gauges["queue_bytes"],
            tail_bytes=gauges["tail_bytes"],
            segment_bytes=gauges["segment_bytes"],
            free_bytes=gauges["free_bytes"],
            resident_bytes=_resident_bytes(),
            streams=gauges["streams"],
            tables=gauges["tables"],
            sessions=hub.sessions.counts(),
            alarms=self.alarms(),
        )

    def alarms(self) -> list[str]:
        """What somebody should look at, in words."""
        found = [f"{part}: {reason}" for part, reason in self._hub.health.report().reasons.items()]
        found += self._hub.security.warnings()
        now_us = self._hub.clock.now_us()
        stuck = [one for one in self._hub.cursors() if one.lag and now_us - one.updated_us > STUCK_S * 1_000_000]
        found += [
            f"cursor {one.name} of stream {one.stream} is {one.lag:,} records behind and has not moved for "
            f"{(now_us - one.updated_us) // 1_000_000} s"
            for one in stuck[:5]
        ]
        if len(stuck) > 5:
            found.append(f"{len(stuck) - 5} more cursors have not moved for a minute")
        return found


def _resident_bytes() -> float:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096.0
    except OSError:  # not Linux
        return 0.0
