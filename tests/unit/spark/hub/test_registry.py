"""What the hub knows of pipelines."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from headrace.config import Config, PipelineEntry
from headrace.errors import BadRequest
from headrace.hub import Hub
from headrace.hub.verbs import Nothing
from headrace.security import EVERYTHING
from headrace.spark.hub.live_results import Progress
from headrace.spark.hub.registry import Definition, PipelineName, Registry, UnknownPipeline
from headrace.spark.pipelines.report import Report
from headrace.testing import FakeClock, memory_hub

CONFIGURED = [PipelineEntry("fixed", sql="SELECT payload FROM stream('a')", into="b")]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def hub(clock: FakeClock) -> AsyncIterator[Hub]:
    async with memory_hub(msgspec.structs.replace(Config(), pipeline=CONFIGURED), clock=clock) as opened:
        yield opened


@pytest.fixture
def passed() -> FakeClock:
    """The monotonic clock, which nobody sets."""
    return FakeClock()


@pytest.fixture
def registry(hub: Hub, passed: FakeClock) -> Registry:
    made = Registry(hub, lambda: passed.now_us() / 1e6)
    made.register()
    return made


async def test_definitions_last_and_come_from_both_places(hub: Hub, registry: Registry) -> None:
    await registry.create(Definition("mine", sql="SELECT payload FROM stream('x')", into="y"))
    again = Registry(hub)
    assert [(one.name, one.state) for one in await again.list(Nothing())] == [("fixed", "stopped"), ("mine", "stopped")]
    await again.delete(PipelineName("mine"))
    assert [one.name for one in await again.list(Nothing())] == ["fixed"]
    with pytest.raises(BadRequest, match="configuration"):
        await again.delete(PipelineName("fixed"))
    with pytest.raises(UnknownPipeline):
        await again.status(PipelineName("mine"))


@pytest.mark.parametrize("given", [{}, {"sql": "x"}, {"sql": "x", "file": "y"}, {"name": "", "file": "y"}])
async def test_definitions_that_cannot_run_are_refused(hub: Hub, registry: Registry, given: dict[str, str]) -> None:
    with pytest.raises(BadRequest):
        await hub.verbs.call("pipeline.create", {"name": "p", **given}, EVERYTHING)
    assert [one.name for one in await registry.list(Nothing())] == ["fixed"]


async def test_a_stop_is_heard_by_the_run_that_was_meant(registry: Registry) -> None:
    assert not (await registry.report(Report("p", run="one"))).stop
    await registry.stop(PipelineName("p"))
    assert (await registry.report(Report("p", run="one"))).stop
    assert not (await registry.report(Report("p", run="two"))).stop


@pytest.mark.parametrize("set_s", [-86_400, 86_400])
async def test_a_clock_that_is_set_does_not_change_whether_a_pipeline_reports(
    hub: Hub, registry: Registry, clock: FakeClock, passed: FakeClock, set_s: int
) -> None:
    """Set back, a pipeline that had died ran on in every list until the clock had caught up; set forward, all died."""
    await registry.report(Report("p", run="one"))
    clock.advance(set_s)
    passed.advance(14)
    assert (await registry.status(PipelineName("p"))).state == "running"
    passed.advance(2)
    assert (await registry.status(PipelineName("p"))).state == "lost"
    assert 'headrace_pipelines{state="lost"} 1.0' in hub.metrics.text().decode()


async def test_reports_are_counted(hub: Hub, registry: Registry) -> None:
    await registry.report(Report("p", run="one", batch=1, rows=100, batch_ms=50))
    await registry.report(Report("p", run="one", batch=3, rows=150, batch_ms=70))
    await registry.report(Report("p", run="one", batch=3, rows=150, batch_ms=70))
    text = hub.metrics.text().decode()
    assert "headrace_pipeline_records_total 50.0" in text
    assert 'headrace_pipelines{state="running"} 1.0' in text
    assert "headrace_pipeline_batch_seconds_count 1.0" in text


async def test_what_the_hub_itself_runs(registry: Registry) -> None:
    """Those of the configuration, until they have ended or were stopped."""
    await registry.create(Definition("mine", sql="SELECT payload FROM stream('x')", into="y"))
    assert registry.to_run() == ["fixed"]
    for state in ("running", "failed", "restarting"):
        await registry.report(Report("fixed", state))
        assert registry.to_run() == ["fixed"]
    for state in ("stopped", "done"):
        await registry.report(Report("fixed", state))
        assert registry.to_run() == []


@pytest.mark.parametrize("state", ["running", "restarting"])
async def test_a_pipeline_that_no_longer_reports_is_lost(registry: Registry, passed: FakeClock, state: str) -> None:
    await registry.report(Report("p", state=state, run="one"))
    assert (await registry.status(PipelineName("p"))).state == state
    passed.advance(60)
    assert (await registry.status(PipelineName("p"))).state == "lost"


async def test_a_pipeline_in_real_time_shows_its_lag_and_rate_while_a_batch_runs(
    registry: Registry, clock: FakeClock, passed: FakeClock
) -> None:
    progress = Progress(100, 40)
    registry.live = lambda name: progress if name == "live" else None
    assert (await registry.report(Report("live", rows_per_s=7.0))).lag == 40
    clock.advance(-60)
    passed.advance(2)
    progress = Progress(700, 5)
    assert (await registry.report(Report("live"))).lag == 5
    report = registry.last_report("live")
    assert report is not None
    assert (report.lag, report.rows_per_s) == (5, 300.0)
    assert (await registry.report(Report("micro", lag=3))).lag is None
    assert (await registry.report(Report("live", state="stopped"))).lag is None
