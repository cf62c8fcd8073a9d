"""Pipelines that are started, stopped and reset at the hub."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.until import DEADLINE_S

from headrace.admin.requests import Moment
from headrace.config import Config, Spark
from headrace.config import Log as LogSection
from headrace.errors import BadRequest, Busy
from headrace.hub import Hub
from headrace.log.batch import Batch
from headrace.security import new_token
from headrace.security.admission import Token
from headrace.spark.hub import pipeline_processes as module
from headrace.spark.hub.pipeline_processes import PipelineProcesses
from headrace.spark.hub.pipeline_reset import PipelineReset, Resets
from headrace.spark.hub.positions import Positions
from headrace.spark.hub.registry import Definition, PipelineName, PipelineRunning, Registry, UnknownPipeline
from headrace.spark.hub.sink_state import SINKS, SinkState, SourcePosition
from headrace.spark.pipelines.checkpoints import checkpoint_of
from headrace.spark.pipelines.report import Report
from headrace.testing import FakeClock, memory_hub

NAME = PipelineName("p")
WAITS = "import time; time.sleep(60)"
FAILS = "import sys; print('some words'); print('error: no such column'); print('(a hint)'); sys.exit(3)"
ENDS = "print('fine')"


class Stage:
    """A registry with a pipeline, and a program that stands for Spark."""

    def __init__(self, hub: Hub, home: Path) -> None:
        self.hub = hub
        self.home = home
        self.program = WAITS
        self.registry = Registry(hub)
        self.registry.register()
        self.processes = PipelineProcesses(hub, self.registry, lambda name: ([sys.executable, "-c", self.program], {}))
        self.processes.register()
        self.resets = Resets(hub, self.registry, Positions(hub), self.processes)

    async def state(self, *wanted: str) -> str:
        async with asyncio.timeout(DEADLINE_S):
            while (now := (await self.registry.status(NAME)).state) not in wanted:
                await asyncio.sleep(0.01)
        return now


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def stage(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Stage]:
    spark = Spark(home=str(tmp_path / "home"))
    config = msgspec.structs.replace(Config(), log=LogSection(data=str(tmp_path)), spark=spark)
    async with memory_hub(config, clock=clock) as hub:
        made = Stage(hub, tmp_path / "home")
        await made.registry.create(Definition("p", sql="SELECT payload FROM stream('a')", into="b"))
        yield made
        await made.processes.close()


async def test_one_that_waits_for_spark_is_starting_and_can_be_stopped(stage: Stage) -> None:
    assert (await stage.processes.start(NAME)).state == "starting"
    with pytest.raises(PipelineRunning):
        await stage.processes.start(NAME)
    with pytest.raises(PipelineRunning):
        await stage.resets.reset(PipelineReset("p"))
    await stage.registry.stop(NAME)
    await stage.state("stopped")
    assert (await stage.processes.start(NAME)).state == "starting", "and can be started again"


async def test_one_that_fails_says_why_in_its_own_words(stage: Stage) -> None:
    stage.program = FAILS
    await stage.processes.start(NAME)
    await stage.state("failed")
    report = stage.registry.last_report("p")
    assert report is not None
    assert report.error == "no such column"


async def test_what_a_pipeline_reported_itself_stays(stage: Stage) -> None:
    await stage.processes.start(NAME)
    await stage.registry.report(Report("p", state="running", run="r", batch=4))
    await stage.registry.stop(NAME)
    assert (await stage.registry.report(Report("p", state="running", run="r", batch=5))).stop
    assert await stage.state("running") == "running", "it ends by itself, after its batch"
    await stage.registry.report(Report("p", state="stopped", run="r", batch=5))
    await stage.processes.close()
    report = stage.registry.last_report("p")
    assert report is not None
    assert (report.state, report.batch) == ("stopped", 5)


async def test_one_that_ends_without_a_word_is_stopped(stage: Stage) -> None:
    stage.program = ENDS
    await stage.processes.start(NAME)
    await stage.state("stopped")


async def test_what_cannot_be_started_is_refused_with_a_reason(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownPipeline):
        await stage.processes.start(PipelineName("nobody"))
    await stage.registry.report(Report("elsewhere", run="r"))
    with pytest.raises(BadRequest, match="start it where it ran"):
        await stage.processes.start(PipelineName("elsewhere"))
    monkeypatch.setattr(module, "RUNS_MAX", 0)
    with pytest.raises(Busy, match="0 pipelines"):
        await stage.processes.start(NAME)
    monkeypatch.setattr(module, "RUNS_MAX", 1)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadRequest, match="PySpark is not installed"):
        await stage.processes.start(NAME)


async def test_a_pipeline_of_the_configuration_that_runs_apart_is_not_started_twice(stage: Stage) -> None:
    assert stage.registry.apart == set()
    await stage.processes.start(NAME)
    assert stage.registry.apart == {"p"}
    await stage.registry.stop(NAME)
    await stage.state("stopped")
    assert stage.registry.apart == set()


async def prepared(stage: Stage, clock: FakeClock) -> Path:
    await stage.hub.create_stream("a", partitions=2)
    await stage.hub.append("a", Batch.of([b"x"] * 10))
    clock.advance(100)
    await stage.hub.append("a", Batch.of([b"x"] * 10))
    await stage.hub.save_cursor("p", "a", 15)
    await stage.hub.save_cursor("other", "a", 3)
    checkpoint = checkpoint_of(stage.home, "p")
    checkpoint.mkdir(parents=True)
    return checkpoint


@pytest.mark.parametrize(
    ("to", "after", "read_again", "skipped"),
    [("cursor", 15, 0, 0), ("earliest", 0, 15, 0), ("latest", 20, 0, 5), ("time", 10, 5, 0)],
)
async def test_a_reset_says_what_it_does_before_it_does_it(
    stage: Stage, clock: FakeClock, to: Any, after: int, read_again: int, skipped: int
) -> None:
    start_us = clock.now_us()
    checkpoint = await prepared(stage, clock)
    target = Moment(start_us + 50_000_000) if to == "time" else to
    plan = await stage.resets.reset(PipelineReset("p", target, dry_run=True))
    [move] = plan.moves
    assert (move.before, move.after, move.read_again, move.skipped) == (15, after, read_again, skipped)
    assert (plan.checkpoint, plan.checkpoint_found) == (str(checkpoint), True)
    assert checkpoint.exists()
    assert stage.hub.cursor("p", "a") == 15
    assert (await stage.resets.reset(PipelineReset("p", target))).moves == plan.moves
    assert not checkpoint.exists()
    assert stage.hub.cursor("p", "a") == after
    assert stage.hub.cursor("other", "a") == 3


async def test_a_reset_to_an_index_in_some_streams(stage: Stage, clock: FakeClock) -> None:
    checkpoint = await prepared(stage, clock)
    await stage.hub.create_stream("c")
    await stage.hub.append("c", Batch.of([b"x"] * 9))
    await stage.hub.save_cursor("p", "c", 9)
    with pytest.raises(BadRequest, match="outside 0 to 20"):
        await stage.resets.reset(PipelineReset("p", 21))
    with pytest.raises(BadRequest, match="has no cursor in b\\*, d"):
        await stage.resets.reset(PipelineReset("p", 4, streams=["b*", "d"]))
    assert checkpoint.exists()
    plan = await stage.resets.reset(PipelineReset("p", 4, streams=["[a-b]"]))
    assert [(one.stream, one.after) for one in plan.moves] == [("a", 4)]
    assert (stage.hub.cursor("p", "a"), stage.hub.cursor("p", "c")) == (4, 9)
    assert not checkpoint.exists()


async def test_a_pipeline_that_has_not_reported_is_reset_where_it_has_a_cursor(stage: Stage, clock: FakeClock) -> None:
    await prepared(stage, clock)
    with pytest.raises(UnknownPipeline):
        await stage.resets.reset(PipelineReset("other", "earliest"))
    await stage.resets.reset(PipelineReset("other", "earliest", streams=["*"]))
    assert stage.hub.cursor("other", "a") == 0


async def test_a_stream_that_was_deleted_does_not_stop_a_reset(stage: Stage, clock: FakeClock) -> None:
    await prepared(stage, clock)
    source = SourcePosition("p", "gone", [3])
    await stage.hub.create_table(SINKS)
    await stage.hub.put(SINKS, b"q", msgspec.msgpack.encode(SinkState(sources=[source])))
    plan = await stage.resets.reset(PipelineReset("p", "latest"))
    assert [one.stream for one in plan.moves] == ["a"]


async def test_a_process_that_is_still_ending_is_waited_for(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.program = "import time; time.sleep(0.3)"
    await stage.processes.start(NAME)
    await stage.registry.report(Report("p", state="stopped", run="r"))
    assert (await stage.resets.reset(PipelineReset("p"))).name == "p"
    stage.program = WAITS
    await stage.processes.start(NAME)
    await stage.registry.report(Report("p", state="stopped", run="r"))
    monkeypatch.setattr(module, "ENDING_S", 0.01)
    with pytest.raises(PipelineRunning, match="its process is at work"):
        await stage.resets.reset(PipelineReset("p"))
    with pytest.raises(PipelineRunning, match="its process is at work"):
        await stage.processes.start(NAME)


@pytest.mark.parametrize("roles", [None, ["reader"]])
async def test_one_whose_user_goes_fails_and_its_process_is_ended(
    stage: Stage, roles: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has started it does not matter: it works in the name of the user whose token it has."""
    monkeypatch.chdir(tmp_path)  # where a hub in memory keeps its users
    security = stage.hub.security
    token, digest = new_token()
    for name in ("robot", "bystander"):
        security.add_user(name, None, ["writer"])
    security.add_token("robot", digest)
    await stage.processes.start(NAME)
    for batch in (1, 2):  # each report shows the token anew
        robot = stage.hub.admission.admit_now("flight", "here", Token(token))
        report = {"name": "p", "state": "running", "run": "r", "batch": batch}
        await stage.hub.verbs.call("pipeline.report", report, robot)
    security.remove_user("bystander")
    assert await stage.state("running") == "running"
    if roles is None:
        security.remove_user("robot")
    else:
        security.add_user("robot", None, roles)
    assert await stage.state("failed") == "failed"
    async with asyncio.timeout(DEADLINE_S):
        await stage.processes.check_ended("p")
    last = stage.registry.last_report("p")
    assert last is not None
    assert (last.state, last.batch) == ("failed", 2)
    assert last.error == "the user 'robot', in whose name it runs, may not run it any more"
