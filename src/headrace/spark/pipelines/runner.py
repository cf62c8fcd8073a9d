"""Running pipelines: start their queries, watch them, start them again, and say how they are.

A query that fails is started again from its checkpoint, with growing pauses, a few times; staging and commit make
that safe at any point. A failure that comes back each time is given up with its Python error first.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import BadRequest, HeadraceError
from headrace.spark import dataframes, query
from headrace.spark.hub.checkpoint_paths import checkpoint_of, default_home
from headrace.spark.hub_client import HubPort
from headrace.spark.options import parse_point
from headrace.spark.pipelines.definition import Pipeline
from headrace.spark.pipelines.failures import Failure, exception_name, explain
from headrace.spark.source.cursors import listen

POLL_S = 0.5
# A hub that is away gets its report later; meanwhile a request to stop must be heard.
REPORT_WAIT_S = 1.0
RESTARTS_MAX = 5
RESTART_PAUSE_FIRST_S = 1.0
RESTART_PAUSE_MOST_S = 30.0
# A query that ran this long before it failed has proved itself: its count of restarts begins again.
HEALTHY_S = 120.0
# Failures that come back however often one tries.
FINAL = {"BatchChanged", "Fenced", "DataLoss", "BadOption", "Forbidden", "Unauthenticated", "Damaged"}


@dataclass
class Progress:
    """How a pipeline is, in numbers that people watch."""

    name: str
    state: str = "starting"
    run: str = ""
    batch: int = -1
    rows: int = 0
    rows_per_s: float = 0.0
    batch_ms: float = 0.0
    lag: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    restarts: int = 0
    error: str = ""

    def take(self, progress: dict[str, Any]) -> None:
        """Take over what Spark reports of a batch."""
        if progress["batchId"] > self.batch:
            self.rows += progress["numInputRows"]
        self.batch = max(self.batch, progress["batchId"])
        self.rows_per_s = float(progress.get("processedRowsPerSecond") or 0.0)
        self.batch_ms = float(progress.get("durationMs", {}).get("triggerExecution", 0.0))
        self.lag = sum(_lag(source) for source in progress.get("sources", ()))
        operators = progress.get("stateOperators", ())
        self.state_rows = sum(one.get("numRowsTotal", 0) for one in operators)
        self.state_bytes = sum(one.get("memoryUsedBytes", 0) for one in operators)


def _lag(source: dict[str, Any]) -> int:
    end, latest = _positions(source.get("endOffset")), _positions(source.get("latestOffset"))
    return sum(
        max(0, after - (end[name][partition] if partition < len(end.get(name, ())) else 0))
        for name, nexts in latest.items()
        for partition, after in enumerate(nexts)
    )


def _positions(offset: Any) -> dict[str, list[int]]:
    if isinstance(offset, str):
        import json

        try:
            offset = json.loads(offset)
        except ValueError:
            return {}
    if not isinstance(offset, dict):
        return {}
    return {name: one["next"] for name, one in offset.get("streams", {}).items()}


@dataclass
class _Running:
    pipeline: Pipeline
    query: Any
    progress: Progress
    started_s: float
    restart_at_s: float | None = None
    pause_s: float = RESTART_PAUSE_FIRST_S
    failure: Failure | None = field(default=None)


class Runner:
    """Runs pipelines in one Spark session against one hub."""

    def __init__(
        self,
        spark: Any,
        port: HubPort,
        *,
        home: Path | None = None,
        on_progress: Callable[[Sequence[Progress]], None] = lambda progress: None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark = spark
        self._port = port
        self._reporting = port.waiting(REPORT_WAIT_S)
        self._home = home or default_home()
        self._on_progress = on_progress
        self._now_s = now_s
        self._mover = listen(spark)
        self._running: dict[str, _Running] = {}
        self.failures: dict[str, Failure] = {}

    def start(self, pipeline: Pipeline) -> Any:
        """Start a pipeline; its streaming query."""
        started = start_query(self._spark, self._port, pipeline, self._home)
        known = self._running.get(pipeline.name)
        progress = known.progress if known else Progress(pipeline.name)
        progress.state, progress.run = "running", str(started.runId)
        self._running[pipeline.name] = _Running(
            pipeline, started, progress, self._now_s(), pause_s=known.pause_s if known else RESTART_PAUSE_FIRST_S
        )
        return started

    def watch(self) -> bool:
        """Watch until every pipeline has ended; whether all ended well."""
        while self._running:
            alive = [one for one in self._running.values() if one.query.isActive]
            if alive:
                # Only the waiting matters: what it raises when the query has failed is looked at below.
                with contextlib.suppress(Exception):
                    alive[0].query.awaitTermination(POLL_S)
            elif any(one.restart_at_s is not None for one in self._running.values()):
                time.sleep(POLL_S / 5)
            self.look()
        return not self.failures

    def look(self) -> None:
        """One round: progress, ends, restarts, requests to stop."""
        for one in list(self._running.values()):
            self._take_progress(one)
            self._move_cursors(one)
            if one.restart_at_s is not None and one.progress.state != "stopped":
                if self._now_s() >= one.restart_at_s:
                    self._restart(one)
            elif not one.query.isActive:
                self._ended(one)
        self._on_progress([one.progress for one in self._running.values()])
        for one in list(self._running.values()):
            self._report(one)

    def stop(self) -> None:
        """Stop everything, after the batch that runs."""
        for one in self._running.values():
            if one.query.isActive:
                one.query.stop()
            one.progress.state = "stopped"
            self._take_progress(one)
            if self._report(one):
                self._move_cursors(one)
        self._running.clear()

    def _take_progress(self, one: _Running) -> None:
        last = one.query.lastProgress
        if last is None:
            return
        if last["batchId"] > one.progress.batch + 1:
            for progress in one.query.recentProgress:
                one.progress.take(progress)
        one.progress.take(last)

    def _move_cursors(self, one: _Running) -> None:
        """The session's listener does this too; here nothing is left behind when the process ends right after."""
        last = one.query.lastProgress
        if last is not None:
            self._mover.moved([source["endOffset"] for source in last["sources"]])

    def _restart(self, one: _Running) -> None:
        """Start a query again. That may fail too, as when the hub is away: other pipelines go on meanwhile."""
        try:
            self.start(one.pipeline)
        except Exception as error:
            self._failed(one, explain(error), ran_s=0.0)

    def _ended(self, one: _Running) -> None:
        error = None if one.progress.state == "stopped" else one.query.exception()
        if error is None:
            if one.progress.state != "stopped":
                one.progress.state = "done"
            self._report(one)
            del self._running[one.pipeline.name]
            return
        self._failed(one, explain(error), self._now_s() - one.started_s)

    def _failed(self, one: _Running, failure: Failure, ran_s: float) -> None:
        one.progress.error = failure.headline
        one.progress.restarts = 1 if ran_s > HEALTHY_S else one.progress.restarts + 1
        if exception_name(failure.headline) in FINAL or one.progress.restarts > RESTARTS_MAX:
            one.progress.state = "failed"
            self.failures[one.pipeline.name] = failure
            self._report(one)
            self._on_progress([one.progress])
            del self._running[one.pipeline.name]
            return
        one.progress.state = "restarting"
        one.pause_s = RESTART_PAUSE_FIRST_S if ran_s > HEALTHY_S else min(one.pause_s * 2, RESTART_PAUSE_MOST_S)
        one.restart_at_s = self._now_s() + one.pause_s

    def _report(self, one: _Running) -> bool:
        """Tell the hub, and hear whether to stop; False when it is away, which the query itself waits out."""
        fields = {name: getattr(one.progress, name) for name in Progress.__dataclass_fields__}
        try:
            heard = self._reporting.call("pipeline.report", fields)
        except HeadraceError:
            return False
        if heard["stop"]:
            if one.query.isActive:
                one.query.stop()
            one.progress.state = "stopped"
        return True


def start_query(spark: Any, port: HubPort, pipeline: Pipeline, home: Path) -> Any:
    """Build the frames of a pipeline and start its query."""
    options = pipeline.reading() | {
        "hub": port.address,
        "cursor": pipeline.name,
        "moveCursor": False,  # done here, for all sources together: two of them may read the same stream
        "start": first_start(port, pipeline),
    }
    if pipeline.sql is not None:
        result = query.bind(spark, pipeline.sql, streaming=True, options=options)
    else:
        sources = {
            name: dataframes.read_stream(spark, *streams, **options) for name, streams in pipeline.sources.items()
        }
        result = pipeline.apply(sources)
    checkpoint = checkpoint_of(home, pipeline.name)
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    return start_sink(result, pipeline, port.address, checkpoint)


def first_start(port: HubPort, pipeline: Pipeline) -> str:
    """Where a query without a checkpoint begins: at the pipeline's cursor, if it ever had one."""
    names = [stream for streams in pipeline.sources.values() for stream in streams]
    for state in port.describe(names):
        if any(at is not None for at in port.position(pipeline.name, state.name)):
            return "cursor"
    return pipeline.start


def start_sink(result: Any, pipeline: Pipeline, hub: str, checkpoint: Path) -> Any:
    """Start the query that writes `result`."""
    sink = pipeline.sink
    if sink.kind == "archive":
        from headrace.spark.pipelines.archive import Archive

        archive = Archive(sink.target, result.sparkSession, writer=pipeline.name)
        writer = result.writeStream.foreachBatch(archive.store)
    elif sink.kind == "stream":
        records = result if "streamColumn" in sink.options else dataframes.to_records(result)
        writer = records.writeStream.format("headrace").option("hub", hub).outputMode(pipeline.output_mode)
        if sink.target:
            writer = writer.option("stream", sink.target)
    else:
        writer = result.writeStream.format(sink.kind).outputMode(pipeline.output_mode)
        if sink.target:
            writer = writer.option("path", sink.target)
    for name, value in dataframes.option_texts(dict(sink.options)).items():
        writer = writer.option(name, value)
    writer = writer.queryName(pipeline.name).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**trigger_arguments(pipeline.trigger)).start()


def trigger_arguments(trigger: str) -> dict[str, Any]:
    """`1 second`, `available now` or `once` as arguments of Spark's `trigger`."""
    word = trigger.strip().lower().replace("-", " ")
    if word in ("available now", "once"):
        return {"availableNow": True}
    return {"processingTime": trigger}


def reset(port: HubPort, home: Path, name: str, streams: Sequence[str], start: str | None) -> None:
    """Forget a pipeline's checkpoint. It goes on at its cursor, or at `start`, where the cursor is put then."""
    if start is not None:
        place = _place(start)
        read = [
            state.name
            for state in port.describe(streams)
            if any(at is not None for at in port.position(name, state.name))
        ]
        if not read:
            raise BadRequest(
                f"pipeline {name!r} has no cursor in {', '.join(streams)}: it begins where its definition says"
            )
        for stream in read:
            port.call("cursor.reset", {"cursor": name, "stream": stream, "to": place})
        port.call("spark.forget", {"cursor": name})
    shutil.rmtree(checkpoint_of(home, name), ignore_errors=True)


def _place(start: str) -> Any:
    """A start as the hub's verbs spell it."""
    point = parse_point("start", start)
    match point.kind:
        case "index":
            return point.value
        case "time":
            return {"time_us": point.value}
        case "earliest" | "latest":
            return point.kind
    raise BadRequest(f"a pipeline cannot be reset to {start!r}: earliest, latest, an index or a time")
