"""Running pipelines: start their queries, watch them, start them again, and say how they are.

A query that fails is started again from its checkpoint, with growing pauses, a few times; staging and commit make
that safe at any point. A failure that comes back each time is given up with its Python error first.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from headrace.errors import BadRequest, HeadraceError
from headrace.spark import dataframes
from headrace.spark.errors import PipelineError
from headrace.spark.hub_client import HubPort
from headrace.spark.options import parse_point
from headrace.spark.pipelines.archive import Archive
from headrace.spark.pipelines.checkpoints import checkpoint_of, default_home
from headrace.spark.pipelines.definition import Pipeline
from headrace.spark.pipelines.failures import Failure, exception_name, explain
from headrace.spark.pipelines.report import Report
from headrace.spark.source.cursors import listen
from headrace.spark.spark_session import engine_of

REAL_TIME = "real time"
# Each batch ends with a pause of about 100 ms; a long one costs nothing at a restart, as results are stored meanwhile.
REAL_TIME_BATCH_DEFAULT = "5 minutes"
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
class RunningPipeline:
    pipeline: Pipeline
    query: Any
    report: Report
    started_s: float
    restart_at_s: float | None = None
    pause_s: float = RESTART_PAUSE_FIRST_S

    def stop(self) -> None:
        if self.query.isActive:
            self.query.stop()
        self.report.state = "stopped"


class Runner:
    """Runs pipelines in one Spark session against one hub."""

    def __init__(
        self,
        spark: Any,
        port: HubPort,
        *,
        home: Path | None = None,
        on_progress: Callable[[Sequence[Report]], None] = lambda progress: None,
        now_s: Callable[[], float] | None = None,
    ) -> None:
        self._spark = spark
        self._port = port
        self._reporting = port.waiting(REPORT_WAIT_S)
        self._home = home or default_home()
        self._on_progress = on_progress
        self._now_s = now_s or time.monotonic
        self._mover = listen(spark)
        self._running: dict[str, RunningPipeline] = {}
        self._is_asked_to_stop = False
        self.failures: dict[str, Failure] = {}

    def start(self, pipeline: Pipeline) -> Any:
        """Start a pipeline; its streaming query."""
        started = start_query(self._spark, self._port, pipeline, self._home)
        known = self._running.get(pipeline.name)
        report = known.report if known else Report(pipeline.name)
        report.state, report.run = "running", str(started.runId)
        self._running[pipeline.name] = RunningPipeline(
            pipeline, started, report, self._now_s(), pause_s=known.pause_s if known else RESTART_PAUSE_FIRST_S
        )
        return started

    def ask_to_stop(self) -> None:
        """Have `watch` stop everything: for a signal, which may come in the middle of anything."""
        self._is_asked_to_stop = True

    def watch(self) -> bool:
        """Watch until every pipeline has ended; whether all ended well."""
        while self._running:
            if self._is_asked_to_stop:
                self.stop()
                break
            alive = [running for running in self._running.values() if running.query.isActive]
            if alive:
                # Only the waiting matters: what it raises when the query has failed is looked at below.
                with contextlib.suppress(Exception):
                    alive[0].query.awaitTermination(POLL_S)
            elif any(running.restart_at_s is not None for running in self._running.values()):
                time.sleep(POLL_S / 5)
            self.look()
        return not self.failures

    def look(self) -> None:
        """One round: progress, ends, restarts, requests to stop."""
        for running in list(self._running.values()):
            self._take_progress(running)
            self._move_cursors(running)
            if running.restart_at_s is not None and running.report.state != "stopped":
                if self._now_s() >= running.restart_at_s:
                    self._restart(running)
            elif not running.query.isActive:
                self._ended(running)
        self._on_progress([running.report for running in self._running.values()])
        for running in list(self._running.values()):
            self._report(running)

    def stop(self) -> None:
        """Stop everything, after the batch that runs."""
        for running in self._running.values():
            running.stop()
            self._take_progress(running)
            if self._report(running):
                self._move_cursors(running)
        self._running.clear()

    def _take_progress(self, running: RunningPipeline) -> None:
        last = running.query.lastProgress
        if last is not None:
            missed = running.query.recentProgress if last["batchId"] > running.report.batch + 1 else ()
            for progress in (*missed, last):
                running.report.take(progress)

    def _move_cursors(self, running: RunningPipeline) -> None:
        """The session's listener does this too; here nothing is left behind when the process ends right after."""
        last = running.query.lastProgress
        if last is not None:
            self._mover.moved([source["endOffset"] for source in last["sources"]])

    def _restart(self, running: RunningPipeline) -> None:
        """Start a query again. That may fail too, as when the hub is away: other pipelines go on meanwhile."""
        try:
            self.start(running.pipeline)
        except Exception as error:
            self._failed(running, explain(error), ran_s=0.0)

    def _ended(self, running: RunningPipeline) -> None:
        error = None if running.report.state == "stopped" else running.query.exception()
        if error is not None:
            self._failed(running, explain(error), self._now_s() - running.started_s)
            return
        if running.report.state != "stopped":
            running.report.state = "done"
        self._report(running)
        del self._running[running.pipeline.name]

    def _failed(self, running: RunningPipeline, failure: Failure, ran_s: float) -> None:
        running.report.error = failure.headline
        running.report.restarts = 1 if ran_s > HEALTHY_S else running.report.restarts + 1
        if exception_name(failure.headline) in FINAL or running.report.restarts > RESTARTS_MAX:
            running.report.state = "failed"
            self.failures[running.pipeline.name] = failure
            self._report(running)
            self._on_progress([running.report])
            del self._running[running.pipeline.name]
            return
        running.report.state = "restarting"
        running.pause_s = RESTART_PAUSE_FIRST_S if ran_s > HEALTHY_S else min(running.pause_s * 2, RESTART_PAUSE_MOST_S)
        running.restart_at_s = self._now_s() + running.pause_s

    def _report(self, running: RunningPipeline) -> bool:
        """Tell the hub, and hear whether to stop; False when it is away, which the query itself waits out."""
        try:
            answer = self._reporting.call("pipeline.report", msgspec.structs.asdict(running.report))
        except HeadraceError:
            return False
        if answer.get("lag") is not None:
            running.report.lag = answer["lag"]
        if answer["stop"]:
            running.stop()
        return True


def start_query(spark: Any, port: HubPort, pipeline: Pipeline, home: Path) -> Any:
    """Build the frames of a pipeline and start its query."""
    result = pipeline.result(
        spark,
        partial(dataframes.read_stream, spark),
        hub=port.address,
        cursor=pipeline.name,
        moveCursor=False,  # done here, for all sources together: two of them may read the same stream
        start=first_start(port, pipeline),
    )
    check_engine(pipeline, engine_of(spark))
    checkpoint = checkpoint_of(home, pipeline.name)
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    return start_sink(result, pipeline, port.address, checkpoint)


def check_engine(pipeline: Pipeline, engine: str) -> None:
    """Refuse what only the Java engine can do, where it is not: in real time nothing takes its place."""
    is_live = real_time(pipeline.trigger) is not None
    is_update = pipeline.output_mode == "update" and pipeline.sink.kind == "stream"
    if engine != "java" and (is_live or is_update):
        what = "real-time mode" if is_live else "output mode 'update' into a stream"
        raise PipelineError(
            f"pipeline {pipeline.name!r}: {what} needs the Java engine, and this session has the Python one; "
            "`headrace doctor` says why"
        )
    if is_live and pipeline.decode != "raw":
        raise PipelineError(
            f"pipeline {pipeline.name!r}: real-time mode needs decode='raw', not {pipeline.decode!r}; "
            "Spark's from_json takes JSON apart there"
        )


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
    is_live = real_time(pipeline.trigger) is not None
    output_mode = "update" if is_live else pipeline.output_mode  # real-time mode knows no other
    if sink.kind == "archive":
        archive = Archive(sink.target, result.sparkSession, writer=pipeline.name)
        writer = result.writeStream.foreachBatch(archive.store)
    elif sink.kind == "stream":
        records = result if "streamColumn" in sink.options else dataframes.to_records(result)
        writer = records.writeStream.format("headrace").option("hub", hub).outputMode(output_mode)
        if sink.target:
            writer = writer.option("stream", sink.target)
    else:
        writer = result.writeStream.format(sink.kind).outputMode(output_mode)
        if sink.target:
            writer = writer.option("path", sink.target)
    writer = writer.options(**dataframes.option_texts(sink.options)).queryName(pipeline.name)
    writer = writer.option("checkpointLocation", str(checkpoint))
    return writer.trigger(**trigger_arguments(pipeline.trigger)).start()


def trigger_arguments(trigger: str) -> dict[str, Any]:
    """`1 second`, `available now`, `once` or `real time` as arguments of Spark's `trigger`."""
    word = _words(trigger)
    if word in ("available now", "once"):
        return {"availableNow": True}
    batch = real_time(trigger)
    return {"processingTime": trigger} if batch is None else {"realTime": batch}


def real_time(trigger: str) -> str | None:
    """How long a batch of `real time` or `real time 1 minute` is; None for other triggers."""
    word = _words(trigger)
    if word != REAL_TIME and not word.startswith(f"{REAL_TIME} "):
        return None
    return word.removeprefix(REAL_TIME).strip() or REAL_TIME_BATCH_DEFAULT


def _words(trigger: str) -> str:
    return " ".join(trigger.lower().replace("-", " ").split())


def reset(port: HubPort, home: Path, name: str, streams: Sequence[str], start: str | None) -> None:
    """Forget a pipeline's checkpoint. It goes on at its cursor, or at `start`, where the hub puts the cursor then."""
    if start is not None:
        point = parse_point("start", start)
        targets: dict[str, Any] = {"index": point.value, "time": {"time_us": point.value}}
        to = targets.get(point.kind, point.kind)
        if to in ("cursor", "positions"):
            raise BadRequest(f"a pipeline cannot be reset to {start!r}: earliest, latest, an index or a time")
        port.call("pipeline.reset", {"name": name, "to": to, "streams": list(streams)})
    shutil.rmtree(checkpoint_of(home, name), ignore_errors=True)
