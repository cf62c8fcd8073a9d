"""Pipelines that are started, stopped and reset at the hub."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.admin.requests import Moment
from headrace.config import Config, Spark
from headrace.config import Log as LogSection
from headrace.errors import BadRequest, Busy
from headrace.hub import Hub
from headrace.log.batch import Batch
from headrace.spark.hub import on_demand as module
from headrace.spark.hub.checkpoint_paths import checkpoint_of
from headrace.spark.hub.on_demand import PipelineReset, Runs
from headrace.spark.hub.planning import Planning
from headrace.spark.hub.registry import Definition, PipelineName, PipelineRunning, Registry, Report, UnknownPipeline
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
        planning = Planning(hub)
        self.runs = Runs(hub, self.registry, planning, lambda name: ([sys.executable, "-c", self.program], {}))
        self.runs.register()

    async def state(self, *wanted: str) -> str:
        async with asyncio.timeout(30):
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
        await made.runs.close()


async def test_one_that_waits_for_spark_is_starting_and_can_be_stopped(stage: Stage) -> None:
    assert (await stage.runs.start(NAME)).state == "starting"
    with pytest.raises(PipelineRunning):
        await stage.runs.start(NAME)
    with pytest.raises(PipelineRunning):
        await stage.runs.reset(PipelineReset("p"))
    await stage.registry.stop(NAME)
    await stage.state("stopped")
    assert (await stage.runs.start(NAME)).state == "starting", "and can be started again"


async def test_one_that_fails_says_why_in_its_own_words(stage: Stage) -> None:
    stage.program = FAILS
    await stage.runs.start(NAME)
    await stage.state("failed")
    report = stage.registry.last_report("p")
    assert report is not None
    assert report.error == "no such column"


async def test_what_a_pipeline_reported_itself_stays(stage: Stage) -> None:
    await stage.runs.start(NAME)
    await stage.registry.report(Report("p", state="running", run="r", batch=4))
    await stage.registry.stop(NAME)
    assert (await stage.registry.report(Report("p", state="running", run="r", batch=5))).stop
    assert await stage.state("running") == "running", "it ends by itself, after its batch"
    await stage.registry.report(Report("p", state="stopped", run="r", batch=5))
    await stage.runs.close()
    report = stage.registry.last_report("p")
    assert report is not None
    assert (report.state, report.batch) == ("stopped", 5)


async def test_one_that_ends_without_a_word_is_stopped(stage: Stage) -> None:
    stage.program = ENDS
    await stage.runs.start(NAME)
    await stage.state("stopped")


async def test_what_cannot_be_started_is_refused_with_a_reason(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownPipeline):
        await stage.runs.start(PipelineName("nobody"))
    await stage.registry.report(Report("elsewhere", run="r"))
    with pytest.raises(BadRequest, match="start it where it ran"):
        await stage.runs.start(PipelineName("elsewhere"))
    monkeypatch.setattr(module, "RUNS_MAX", 0)
    with pytest.raises(Busy, match="0 pipelines"):
        await stage.runs.start(NAME)
    monkeypatch.setattr(module, "RUNS_MAX", 1)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadRequest, match="PySpark is not installed"):
        await stage.runs.start(NAME)


async def test_a_pipeline_of_the_configuration_that_runs_apart_is_not_started_twice(stage: Stage) -> None:
    assert stage.registry.apart == set()
    await stage.runs.start(NAME)
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
    plan = await stage.runs.reset(PipelineReset("p", target, dry_run=True))
    [move] = plan.moves
    assert (move.before, move.after, move.read_again, move.skipped) == (15, after, read_again, skipped)
    assert (plan.checkpoint, plan.checkpoint_found) == (str(checkpoint), True)
    assert checkpoint.exists()
    assert stage.hub.cursor("p", "a") == 15
    assert (await stage.runs.reset(PipelineReset("p", target))).moves == plan.moves
    assert not checkpoint.exists()
    assert stage.hub.cursor("p", "a") == after
    assert stage.hub.cursor("other", "a") == 3


async def test_a_process_that_is_still_ending_is_waited_for(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.program = "import time; time.sleep(0.3)"
    await stage.runs.start(NAME)
    await stage.registry.report(Report("p", state="stopped", run="r"))
    assert (await stage.runs.reset(PipelineReset("p"))).name == "p"
    stage.program = WAITS
    await stage.runs.start(NAME)
    await stage.registry.report(Report("p", state="stopped", run="r"))
    monkeypatch.setattr(module, "ENDING_S", 0.01)
    with pytest.raises(PipelineRunning, match="its process is at work"):
        await stage.runs.reset(PipelineReset("p"))
    with pytest.raises(PipelineRunning, match="its process is at work"):
        await stage.runs.start(NAME)
