"""The hub's side of pipelines: which there are, what they report, and which should stop.

Definitions made with `headrace pipeline create` live in the table
`spark/pipelines`; those of the configuration come with the process. Reports are kept in memory: they are about now.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from headrace.config import PipelineEntry
from headrace.errors import BadRequest, HeadraceError
from headrace.pages import Listed
from headrace.security import Principal, current
from headrace.spark.hub.live_results import Progress
from headrace.spark.pipelines.report import Report

PIPELINES = "spark/pipelines"
REPORT_STALE_S = 15.0
ENDED = ("done", "stopped")
ALIVE = ("starting", "running", "restarting")
REPORTING = ("running", "restarting")
"""States in which a pipeline says every second how it is."""
STATES = ("starting", "running", "restarting", "done", "stopped", "failed", "lost")


class UnknownPipeline(HeadraceError):
    """No pipeline of that name was created or has reported."""

    code = "unknown-pipeline"
    status = 404


class PipelineRunning(HeadraceError):
    """The pipeline is at work, and this needs it to be stopped."""

    code = "pipeline-running"
    status = 409


class Definition(PipelineEntry, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A pipeline that someone runs: a SQL text or a Python file, and where its results go."""


def read_definition(key: bytes, value: bytes) -> Definition:
    """A row of the table."""
    definition = msgspec.msgpack.decode(value, type=Definition)
    if definition.name.encode() != key:
        raise BadRequest(f"it defines the pipeline {definition.name!r}, which belongs elsewhere")
    return definition


class Heard(msgspec.Struct, frozen=True):
    """The answer to a report: whether someone asked the pipeline to stop; and how many records a pipeline in real time
    has no results of yet."""

    stop: bool
    lag: int | None = None


class Status(msgspec.Struct, frozen=True):
    """A pipeline as it is known: its definition, if it has one here, and its last report."""

    name: str
    state: str
    definition: Definition | None
    report: Report | None
    reported_us: int | None


class PipelineName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names a pipeline."""

    name: str


class Told(NamedTuple):
    """A report and when it came: for people, and by the monotonic clock, which nobody sets back."""

    report: Report
    time_us: int
    at_s: float


class Registry:
    """The pipelines of one hub."""

    def __init__(self, hub: Any, now_s: Callable[[], float] | None = None) -> None:
        self._hub = hub
        self._now_s = now_s or time.monotonic
        self._told: dict[str, Told] = {}
        self._stopping: dict[str, str] = {}
        self._positions: dict[str, tuple[int, float]] = {}
        self.apart: set[str] = set()
        """Those that run in a process of their own, although they may stand in the configuration."""
        self.on_stop: Callable[[str], None] = lambda name: None
        """Told of every request to stop."""
        self.on_refused: Callable[[str], None] = lambda name: None
        """Told of every pipeline whose user may not run it any more."""
        self.live: Callable[[str], Progress | None] = lambda name: None
        """How far a pipeline in real time has come: Spark says so only when a batch ends."""
        self._unwatch: dict[str, Callable[[], None]] = {}
        self._configured = {entry.name: Definition(**structs.asdict(entry)) for entry in hub.config.pipeline}

    def register(self) -> None:
        """Offer the verbs, and count the pipelines."""
        self._definitions()  # names rows that cannot be used
        self._hub.metrics.before_scrape(self._count)
        add = self._hub.verbs.register
        add("pipeline.create", Definition, self.create, right="admin", summary="Keep a pipeline's definition")
        add("pipeline.delete", PipelineName, self.delete, right="admin", summary="Forget a pipeline")
        add(
            "pipeline.list",
            Listed,
            self.list,
            right="read",
            summary="Pipelines and how they are",
            listed_by=lambda each: [each.name],
        )
        add("pipeline.status", PipelineName, self.status, right="read", summary="One pipeline")
        add("pipeline.stop", PipelineName, self.stop, right="admin", summary="Ask a running pipeline to stop")
        add("pipeline.report", Report, self.report, right="write", summary="What a running pipeline says of itself")

    def to_run(self) -> list[str]:
        """The pipelines of the configuration that have neither ended nor been stopped."""
        candidates = {name for name, definition in self._configured.items() if definition.enabled} - self.apart
        ended = {name for name, told in self._told.items() if told.report.state in ENDED}
        return [name for name in self._configured if name in candidates - ended]

    def project_of(self, name: str) -> Definition | None:
        """The definition of a pipeline that is a project, which runs in a process of its own."""
        definition = self._definitions().get(name)
        return definition if definition is not None and definition.project else None

    async def create(self, request: Definition) -> Status:
        """Keep a definition; one of the same name is replaced."""
        await self._hub.create_table(PIPELINES)
        await self._hub.put(PIPELINES, request.name.encode(), msgspec.msgpack.encode(request))
        return self._status(request.name)

    async def delete(self, request: PipelineName) -> None:
        """Forget a definition and ask what runs to stop."""
        if request.name in self._configured:
            raise BadRequest(f"pipeline {request.name!r} is defined in the configuration; remove it there")
        await self.stop(request)
        await self._hub.create_table(PIPELINES)
        await self._hub.delete(PIPELINES, request.name.encode())

    async def list(self, request: Listed) -> Iterable[Status]:
        """All that are defined or have reported."""
        return map(self._status, sorted({*self._definitions(), *self._told}))

    async def status(self, request: PipelineName) -> Status:
        """One of them."""
        return self._status(request.name)

    async def stop(self, request: PipelineName) -> Status:
        """The run that reports now is told to stop with its next report; a later run is not."""
        status = self._status(request.name)
        if status.report is not None:
            self._stopping[request.name] = status.report.run
        self.on_stop(request.name)
        return status

    async def report(self, request: Report) -> Heard:
        """Take a report."""
        before = self.last_report(request.name)
        if before is not None and before.run == request.run and request.batch > before.batch:
            self._hub.metrics.spark.batch_seconds.observe(request.batch_ms / 1000)
            self._hub.metrics.spark.batch_records.inc(max(0, request.rows - before.rows))
        report, lag = self._with_progress(request)
        self.note(report)
        principal = current()
        self._unwatch.pop(request.name, lambda: None)()
        self._unwatch[request.name] = principal.watch(lambda: self._rights_changed(request.name, principal))
        return Heard(stop=request.run != "" and self._stopping.get(request.name) == request.run, lag=lag)

    def _with_progress(self, report: Report) -> tuple[Report, int | None]:
        """A report with the lag and the rate of a pipeline in real time, and that lag."""
        now = self.live(report.name) if report.state == "running" else None
        before = self._positions.pop(report.name, None)
        if now is None:
            return report, None
        now_s = self._now_s()
        self._positions[report.name] = (now.position, now_s)
        rate = report.rows_per_s
        if before is not None and now_s > before[1]:
            rate = max(0, now.position - before[0]) / (now_s - before[1])
        return structs.replace(report, lag=now.lag, rows_per_s=rate), now.lag

    def _rights_changed(self, name: str, principal: Principal) -> None:
        """A pipeline works in the name of the user whose token it has. What it reads and stores is refused as for
        everyone; here it is said why it fails, since it cannot report that itself any more."""
        report = self.last_report(name)
        if report is None or report.state not in ALIVE or principal.may("write", verb="pipeline.report"):
            return
        error = f"the user {principal.name!r}, in whose name it runs, may not run it any more"
        self.note(structs.replace(report, state="failed", error=error))
        self.on_refused(name)

    def last_report(self, name: str) -> Report | None:
        """What a pipeline said last, however long ago."""
        told = self._told.get(name)
        return None if told is None else told.report

    def note(self, report: Report) -> None:
        """What the hub itself knows of a pipeline that does not report yet, or no more."""
        self._told[report.name] = Told(report, self._hub.clock.now_us(), self._now_s())

    def _count(self) -> None:
        gauge = self._hub.metrics.spark.pipelines
        states = [self.state(name) for name in {*self._definitions(), *self._told}]
        for state in STATES:
            gauge.labels(state=state).set(states.count(state))

    def _definitions(self) -> dict[str, Definition]:
        definitions = dict(self._configured)
        if self._hub.has_stream(PIPELINES):
            stored = self._hub.set_aside.read(PIPELINES, self._hub.items(PIPELINES), read_definition)
            definitions |= {definition.name: definition for definition in stored}
        return definitions

    def _status(self, name: str) -> Status:
        definition = self._definitions().get(name)
        told = self._told.get(name)
        if definition is None and told is None:
            raise UnknownPipeline(f"there is no pipeline {name!r}; `headrace pipeline ls` shows all")
        report, reported_us = (None, None) if told is None else (told.report, told.time_us)
        return Status(name, self.state(name), definition, report, reported_us)

    def state(self, name: str) -> str:
        """How a pipeline is, by what it said last and when."""
        told = self._told.get(name)
        if told is None:
            return "stopped"
        is_silent = self._now_s() - told.at_s > REPORT_STALE_S
        return "lost" if is_silent and told.report.state in REPORTING else told.report.state
