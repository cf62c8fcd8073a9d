"""Watching queries, without Spark: what becomes of those that fail."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import pipeline_run
from headrace.errors import Unreachable
from headrace.spark.errors import PipelineError
from headrace.spark.hub_client import StreamState
from headrace.spark.pipelines import runner as module
from headrace.spark.pipelines.definition import Pipeline, Sink, pipeline, sql_pipeline
from headrace.spark.pipelines.report import Report
from headrace.spark.pipelines.runner import Runner


class Query:
    """A streaming query that runs until it is told otherwise."""

    lastProgress = None  # as Spark names it

    def __init__(self, run: str) -> None:
        self.runId = run
        self.isActive = True
        self.error: Exception | None = None

    def fail(self, error: str) -> None:
        self.isActive, self.error = False, RuntimeError(error)

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        self.isActive = False


class Hub:
    """Where reports go, and who is told to stop."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, str]] = []
        self.stop: set[str] = set()

    def waiting(self, wait_s: float) -> Hub:
        return self

    def call(self, verb: str, request: dict[str, Any]) -> Any:
        self.reports.append((request["name"], request["state"]))
        return {"stop": request["run"] in self.stop}


class Stage:
    """A runner whose queries are made here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
        self.hub = Hub()
        self.now_s = 0.0
        self.started: list[Query] = []
        self.refused: Exception | None = None
        self.seen: dict[str, Report] = {}
        monkeypatch.setattr(module, "listen", lambda spark: None)
        monkeypatch.setattr(module, "start_query", lambda *arguments: self._start())
        self.runner = Runner(
            None,
            self.hub,  # type: ignore[arg-type]
            home=home,
            on_progress=lambda found: self.seen.update({one.name: one for one in found}),
            now_s=lambda: self.now_s,
        )

    def _start(self) -> Query:
        if self.refused is not None:
            raise self.refused
        self.started.append(Query(f"run-{len(self.started)}"))
        return self.started[-1]

    def look(self, after_s: float = 0.0) -> None:
        self.now_s += after_s
        self.runner.look()


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stage:
    return Stage(monkeypatch, tmp_path)


def a_pipeline(name: str = "p") -> Pipeline:
    return Pipeline(name, Sink("stream", "out"), sources={"source": ("in",)})


class Positions:
    """A hub at which only stream `b` has been read, by `p`."""

    def describe(self, names: Sequence[str]) -> list[StreamState]:
        return [StreamState(name, 1, ((0, 9),)) for name in names if name in ("a", "b")]

    def position(self, cursor: str, stream: str) -> list[int | None]:
        return [7 if (cursor, stream) == ("p", "b") else None]


@pytest.mark.parametrize("source", ["b", "a,b", ["a, b"], {"left": "a", "right": "b"}])
def test_a_pipeline_goes_on_at_its_cursor_however_its_streams_are_named(source: Any) -> None:
    made = pipeline(source, "out", name="p")(lambda frame: frame)
    assert module.first_start(Positions(), made) == "cursor"  # type: ignore[arg-type]


def test_sql_too() -> None:
    made = sql_pipeline("p", "SELECT payload FROM stream('a, b')", "out")
    assert made.sources == {"sql": ("a", "b")}
    assert module.first_start(Positions(), made) == "cursor"  # type: ignore[arg-type]


def test_a_stop_is_heard_while_a_query_waits_to_be_started_again(stage: Stage) -> None:
    query = stage.runner.start(a_pipeline())
    query.fail("boom")
    stage.look()
    assert stage.seen["p"].state == "restarting"
    stage.hub.stop.add("run-0")
    stage.look()
    stage.look(after_s=60)
    assert len(stage.started) == 1
    assert stage.hub.reports[-1] == ("p", "stopped")
    assert stage.runner.watch()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_queries_and_interrupts_no_call(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Programs such as `timeout` send it twice at once; only a later one ends everything."""
    monkeypatch.setattr(pipeline_run, "AGAIN_S", 3600.0)
    handler = signal.getsignal(number)
    query = stage.runner.start(a_pipeline())

    def wait(seconds: float) -> None:
        signal.raise_signal(number)
        signal.raise_signal(number)
        stage.seen["waited to the end"] = Report("")

    query.awaitTermination = wait
    with pipeline_run.stopping(stage.runner):
        assert stage.runner.watch()
    assert "waited to the end" in stage.seen
    assert (query.isActive, stage.hub.reports[-1]) == (False, ("p", "stopped"))
    monkeypatch.setattr(pipeline_run, "AGAIN_S", -1.0)
    with pipeline_run.stopping(stage.runner):
        signal.raise_signal(number)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) == handler


def test_a_restart_that_fails_is_tried_again_and_harms_no_other(stage: Stage) -> None:
    stage.runner.start(a_pipeline("p"))
    stage.runner.start(a_pipeline("q"))
    stage.started[0].fail("boom")
    stage.look()
    stage.refused = Unreachable("the hub has not answered")
    stage.look(after_s=60)
    assert (stage.seen["p"].state, stage.seen["q"].state) == ("restarting", "running")
    stage.refused = None
    stage.look(after_s=60)
    assert (stage.seen["p"].state, stage.seen["p"].run) == ("running", "run-2")


def test_restarts_that_always_fail_are_given_up(stage: Stage) -> None:
    stage.runner.start(a_pipeline()).fail("boom")
    stage.refused = Unreachable("the hub has not answered")
    for _ in range(module.RESTARTS_MAX + 1):
        stage.look(after_s=60)
    assert stage.hub.reports[-1] == ("p", "failed")
    assert stage.runner.failures["p"].headline == "the hub has not answered"
    assert not stage.runner.watch()


@pytest.mark.parametrize(
    ("trigger", "arguments"),
    [
        ("1 second", {"processingTime": "1 second"}),
        ("available-now", {"availableNow": True}),
        ("once", {"availableNow": True}),
        ("real time", {"realTime": "5 minutes"}),
        ("Real-Time  1 minute", {"realTime": "1 minute"}),
    ],
)
def test_triggers(trigger: str, arguments: dict[str, Any]) -> None:
    assert module.trigger_arguments(trigger) == arguments


@pytest.mark.parametrize(
    ("options", "engine", "problem"),
    [
        ({"trigger": "real time"}, "python", "real-time mode needs the Java engine"),
        ({"output_mode": "update"}, "python", "output mode 'update' into a stream needs the Java engine"),
        ({"trigger": "real time", "decode": "json", "schema": "a INT"}, "java", "needs decode='raw', not 'json'"),
    ],
)
def test_what_only_one_engine_can_do_is_refused_at_the_start(
    options: dict[str, Any], engine: str, problem: str
) -> None:
    made = pipeline(source="a", sink="b", **options)(lambda frame: frame)
    with pytest.raises(PipelineError, match=problem):
        module.check_engine(made, engine)


def test_what_an_engine_can_do_passes() -> None:
    for engine, options in (("java", {"trigger": "real time"}), ("java", {"output_mode": "update"}), ("python", {})):
        module.check_engine(pipeline(source="a", sink="b", **options)(lambda frame: frame), engine)
