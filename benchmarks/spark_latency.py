"""The latencies of bench_spark.py: from append to readable result, through Spark and back.

All peers have their query in one session, started before anything is measured, and warmed up for the same time. Then
they take turns: while one has records, the other has none. So none of them pays for a cold JVM, and whatever disturbs
the machine for a while disturbs each.
"""

from __future__ import annotations

import itertools
import re
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from spark_peers import HubPeer, KafkaPeer, Seen, Transform

from headrace.spark.pipelines.definition import TRIGGER_DEFAULT

DRAIN_S = 30
WARM_UP_TURNS = 2
PHASES = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets", "triggerExecution")
Peer = HubPeer | KafkaPeer


def copied(frame: Any) -> Any:
    """Without state: a filter."""
    return frame.where("length(payload) > 0").select("payload")


def counted(frame: Any) -> Any:
    """Counts per second. Each update carries when the newest record that it counts was sent."""
    from pyspark.sql import functions as F

    sent = frame.selectExpr("cast(split(cast(payload AS STRING), ' ')[0] AS BIGINT) AS sent", "time")
    counts = sent.groupBy(F.window("time", "1 second")).agg(F.max("sent").alias("sent"), F.count("*").alias("count"))
    return counts.selectExpr("concat(sent, ' ', count) AS payload", "cast(window.start AS STRING) AS key")


TRANSFORMS: dict[str, Transform] = {"copied": copied, "counted": counted}


class Load(NamedTuple):
    """What is measured: how often, with what."""

    trigger: str
    rate: int
    transform: Transform = copied
    turns: int = 4
    is_for_all: bool = True
    """Whether Kafka is measured, too."""

    @property
    def name(self) -> str:
        """Of streams and topics."""
        return f"{self.transform.__name__} {self.trigger} {self.rate}".replace(" ", "-")


LATENCIES = {
    "micro": Load(TRIGGER_DEFAULT, 1_000),
    "real-time": Load("real time 1 minute", 1_000),
    "counted": Load("real time 1 minute", 1_000, counted),
    # One turn: whether the lag stays flat shows only without pauses.
    "fast": Load("real time 1 minute", 50_000, turns=1, is_for_all=False),
}


@dataclass
class Run:
    """A peer's query, and what it was seen to do."""

    peer: Peer
    load: Load
    query: Any = None
    seen: Seen = field(default_factory=list)
    sent: int = 0
    turns: list[tuple[float, float]] = field(default_factory=list)
    """When a turn began and when its last record was sent."""
    turns_sent: int = 0
    """Of all records those of the turns."""
    lags: list[int] = field(default_factory=list)

    @property
    def source(self) -> str:
        return f"{self.load.name}.in"

    @property
    def sink(self) -> str:
        return f"{self.load.name}.out"

    def start(self) -> None:
        self.peer.create(self.source)
        self.peer.create(self.sink)
        self.query = self.peer.start(self.load.name, self.load.transform, self.load.trigger)
        self.peer.follow(self.sink, self.seen)

    def turn(self, seconds: float, *, is_counted: bool) -> None:
        """Send for some time, and wait until all of it is there: nothing of it may run into the other's turn."""
        began = time.monotonic()

        def look(sent: int) -> None:
            if is_counted and self.load.transform is copied and time.monotonic() - began > 10 * (len(self.lags) + 1):
                self.lags.append(sent - len(self.seen))

        before = self.sent
        self.sent = self.peer.produce(self.source, self.load.rate, seconds, look)
        if is_counted:
            self.turns.append((began, time.monotonic()))
            self.turns_sent += self.sent - before
        newest = -1
        deadline = time.monotonic() + DRAIN_S
        while time.monotonic() < deadline:
            if self.load.transform is copied:
                if len(self.seen) >= self.sent:
                    return
            elif self.seen and len(self.seen) == newest:  # how many updates there are is for Spark to say
                return
            newest = len(self.seen)
            time.sleep(0.5)

    def delays(self) -> list[list[float]]:
        """The delays in ms, of each turn."""
        return [
            [delay for at, delay in self.seen if began <= at - delay / 1000 <= ended + 0.1]
            for began, ended in self.turns
        ]


def marks(delays: Sequence[float]) -> str:
    """The median and the tail, in words."""
    ordered = sorted(delays)
    if not ordered:
        return "nothing came"
    found = "  ".join(f"p{mark} {ordered[int(len(ordered) * mark / 100)]:.1f}" for mark in (50, 95, 99))
    return f"{found} ms"


def percentile(delays: Sequence[float], mark: int) -> float:
    ordered = sorted(delays)
    return ordered[int(len(ordered) * mark / 100)] if ordered else float("nan")


def measure_latency(
    load: Load, peers: Sequence[Peer], seconds: float, warm_up_s: float, http: str, busy_cores: Callable[[], Any]
) -> None:
    """All peers with one load, in turns; prints what each took, and their ratio."""
    runs = [Run(peer, load) for peer in (peers if load.is_for_all else peers[:1])]
    print(f"\nlatency, {load.transform.__name__}, trigger {load.trigger}, {load.rate:,} records/s of 100 B:", end=" ")
    print(f"{seconds:g} s each, in {load.turns} turns, after {warm_up_s:g} s each to warm up", flush=True)
    with started(runs):
        for _, run in itertools.product(range(WARM_UP_TURNS), runs):
            run.turn(warm_up_s / WARM_UP_TURNS, is_counted=False)
        used, before = busy_cores(), hub_times(http)
        for turn in range(load.turns):
            for run in runs[:: 1 if turn % 2 == 0 else -1]:  # whoever was second is first then
                run.turn(seconds / load.turns, is_counted=True)
        print(f"  cores: {used()}")
        for run in runs:
            show(run)
    print(f"  inside the hub, mean: {', '.join(mean_times(before, hub_times(http)))}", flush=True)
    if len(runs) > 1:
        all_delays = [list(itertools.chain(*run.delays())) for run in runs]
        ratios = (f"p{at} {percentile(all_delays[0], at) / percentile(all_delays[1], at):.2f}" for at in (50, 95, 99))
        print(f"  {runs[0].peer.name} ÷ {runs[1].peer.name}: {', '.join(ratios)}", flush=True)


@contextmanager
def started(runs: list[Run]) -> Iterator[None]:
    try:
        for run in runs:
            run.start()
        yield
    finally:
        for run in runs:
            if run.query is not None:
                run.query.stop()
        wait_for_slots()


def wait_for_slots() -> None:
    """The task of a query that is stopped lives a moment longer, and Spark refuses the next query for want of slots."""
    from pyspark import SparkContext

    tracker = SparkContext.getOrCreate()._jsc.sc().statusTracker()
    deadline = time.monotonic() + DRAIN_S
    while any(one.numRunningTasks() for one in tracker.getExecutorInfos()) and time.monotonic() < deadline:
        time.sleep(0.1)


def show(run: Run) -> None:
    delays = run.delays()
    settings = run.peer.settings(run.load.transform is copied)
    print(f"  {run.peer.name:9} {marks(list(itertools.chain(*delays)))}  ({settings})")
    rate = run.turns_sent / sum(ended - began for began, ended in run.turns)
    print(f"    {rate:,.0f} records/s were sent")
    if run.load.transform is copied:
        print(f"    {run.sent:,} records in, {len(run.seen):,} results out", end="")
        print(f"; without a result yet, every 10 s: {run.lags}" if run.lags else "")
    if len(delays) > 1:
        print("    p50 / p99 of each turn:", end=" ")
        print(", ".join(f"{percentile(each, 50):.1f} / {percentile(each, 99):.1f}" for each in delays))
    else:
        thirds = [delays[0][len(delays[0]) * part // 3 : len(delays[0]) * (part + 1) // 3] for part in range(3)]
        print("    p50 / p99 of each third:", end=" ")
        print(", ".join(f"{percentile(each, 50):.1f} / {percentile(each, 99):.1f}" for each in thirds))
    progress = [one for one in run.query.recentProgress if one["numInputRows"]][-50:]
    if progress:
        medians = {one: statistics.median(each["durationMs"].get(one, 0) for each in progress) for one in PHASES}
        print(f"    median batch: {', '.join(f'{name} {ms:g} ms' for name, ms in medians.items())}")


def hub_times(http: str) -> dict[str, tuple[float, float]]:
    """Seconds spent so far, and how often, by what for: Spark's verbs, and commits of the log."""
    with urllib.request.urlopen(f"http://{http}/metrics") as answer:
        text = answer.read().decode()
    pattern = r'^headrace_(verb|log_commit)_seconds_(sum|count)(?:\{verb="(spark\.[^"]*)"\})? (\S+)'
    found = {
        (verb or "commit", kind): float(value)
        for what, kind, verb, value in re.findall(pattern, text, re.MULTILINE)
        if verb or what == "log_commit"
    }
    return {name: (found[name, "sum"], found[name, "count"]) for name, kind in found if kind == "sum"}


def mean_times(before: dict[str, tuple[float, float]], after: dict[str, tuple[float, float]]) -> Iterator[str]:
    for name, (seconds, count) in after.items():
        seconds_before, count_before = before.get(name, (0.0, 0.0))
        if count > count_before:
            yield f"{name} {(seconds - seconds_before) / (count - count_before) * 1000:.2f} ms"
