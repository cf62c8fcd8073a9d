"""A day of the hub: what is kept, for how long, and who sees what of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from headrace.config import Config, Grant, Http
from headrace.console import history as history_module
from headrace.console.alarms import Alarm, Alarms
from headrace.console.history import DAY_S, STREAM, History, HistoryRequest
from headrace.console.pipelines import PipelineViews
from headrace.console.pulse import Pulse
from headrace.console.server import start
from headrace.console.traffic import Traffic
from headrace.console.views import Views
from headrace.hub import Hub
from headrace.log.batch import Batch
from headrace.security import Principal, acting_as, is_reserved
from headrace.spark.hub.registry import Definition, Registry
from headrace.testing import FakeClock, memory_hub

STEP_US = 15_000_000


class World:
    """A hub whose seconds pass when the test says so."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.pipelines = PipelineViews(hub, Traffic(hub))
        self.views = Views(hub)
        self.history = History(hub, self.views, self.pipelines)
        self.alarms: list[Alarm] = []
        collected = Alarms(hub)
        collected.sources = [lambda: self.alarms]
        self.pulse = Pulse(hub, None, collected)

    async def pass_s(self, seconds: int) -> None:
        """So many seconds, with a sample each."""
        assert isinstance(self.hub.clock, FakeClock)
        for _ in range(seconds):
            self.hub.clock.advance(1)
            await self.pipelines.take()
            self.history.take(self.pulse.sample())
            if self.history._task is not None:
                await self.history._task

    async def look(self, seconds: float = DAY_S, **asked: object) -> history_module.HistoryView:
        now_us = self.hub.clock.now_us()
        return await self.history.history(HistoryRequest(int(now_us - seconds * 1e6), now_us + 1, **asked))  # type: ignore[arg-type]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with memory_hub(clock=FakeClock()) as hub:
        Registry(hub).register()
        made = World(hub)
        yield made
        await made.pulse.close()


async def test_a_record_every_fifteen_seconds_survives_a_new_start(world: World) -> None:
    await world.hub.create_stream("s")
    await world.pass_s(14)
    assert not world.hub.has_stream(STREAM)
    await world.hub.append("s", Batch.of([b"x"] * 30))
    await world.pass_s(31)
    again = World(world.hub)
    view = await again.look(60)
    moments = [moment for moment in view.moments if moment is not None]
    assert len(moments) == 3
    assert sum(moment.records_in for moment in moments) > 0
    assert [event.kind for event in view.events] == ["start", "start"]
    assert len(view.moments) == 5, "a step of fifteen seconds each, and null before the hub was there"
    await again.pulse.close()


async def test_a_clock_that_is_set_back_stops_nothing(world: World) -> None:
    """It was not written until the clock had caught up, and all samples stayed in memory meanwhile."""
    await world.pass_s(15)
    written = world.hub.bounds(STREAM).next
    assert isinstance(world.hub.clock, FakeClock)
    world.hub.clock.advance(-DAY_S)
    await world.pass_s(31)
    assert world.hub.bounds(STREAM).next >= written + 2
    assert len(world.history._gathered) < 15


async def test_it_is_small_bounded_and_the_hubs_own(world: World) -> None:
    await world.pass_s(15)
    options = world.hub.stream(STREAM).options
    assert (options.retention_age_s, options.retention_bytes) == (DAY_S, world.hub.config.http.history_bytes_max)
    assert is_reserved(STREAM)
    for number in range(25):
        await world.hub.create_stream(f"s{number}")
        await world.hub.append(f"s{number}", Batch.of([b"x"]))
        await world.hub.save_cursor("c", f"s{number}", 0)
    await world.pass_s(15)
    records = await world.hub.read(STREAM, 0)
    last = msgspec.json.decode(records.column("payload")[-1].as_py())
    assert len(last["lags"]) == history_module.NAMED_MAX


async def test_what_it_takes_is_a_setting_that_a_new_start_obeys() -> None:
    async with memory_hub(clock=FakeClock()) as hub:
        world = World(hub)
        world.history.register()
        assert b"headrace_console_history_bytes 0.0" in hub.metrics.text()
        await world.pass_s(15)
        assert b"headrace_console_history_bytes 0.0" not in hub.metrics.text()
        hub.config = Config(http=Http(history_bytes_max=1 << 20))
        await world.pass_s(15)
        assert hub.stream(STREAM).options.retention_bytes == 1 << 20
        await world.pulse.close()


async def test_many_moments_are_put_together(world: World) -> None:
    await world.pass_s(150)
    view = await world.look(150, points=2)
    assert len(view.moments) == 2
    assert view.step_us > 5 * STEP_US
    assert all(moment is not None for moment in view.moments)


async def test_alarms_and_pipelines_that_change_are_events(world: World) -> None:
    await world.hub.create_stream("s")
    create = world.hub.verbs.get("pipeline.create").handler
    await create(Definition(name="old", sql="select 1", into="x"))
    await world.pass_s(1)
    world.alarms = [Alarm("cursor/s/c", "cursor", "Cursor c in s has stopped", page=["stream", "s"], stream="s")]
    await create(Definition(name="sums", sql="select 1", into="x"))
    await world.pass_s(1)
    world.alarms = []
    await world.hub.verbs.get("pipeline.delete").handler(msgspec.convert({"name": "sums"}, type=_name(world.hub)))
    await world.pass_s(1)
    assert [event.title for event in (await world.look()).events[1:]] == [
        "Cursor c in s has stopped",
        "Pipeline sums was deployed: stopped",
        "Over: Cursor c in s has stopped",
        "Pipeline sums was removed",
    ]
    with acting_as(Principal("m", (), (Grant(rights=["read"], streams=["other"]),))):
        assert [event.kind for event in (await world.look()).events] == ["start"]


def _name(hub: Hub) -> type[msgspec.Struct]:
    return hub.verbs.get("pipeline.delete").request


async def test_a_rate_is_of_all_seconds_of_its_step_and_the_first_one_is_known(world: World) -> None:
    await world.hub.create_stream("old")
    await world.hub.append("old", Batch.of([b"x"] * 500))
    await world.pass_s(1)
    await world.hub.create_stream("new")
    for name in ("old", "new"):
        await world.hub.append(name, Batch.of([b"x"] * 28))
    await world.pass_s(14)
    await world.hub.append("old", Batch.of([b"x"] * 45))
    await world.pass_s(15)
    rates = [moment.rates for moment in (await world.look(60)).moments if moment is not None]
    assert rates == [{"old": 2.0, "new": 2.0}, {"old": 3.0}]


async def test_samples_that_come_late_leave_no_hole(world: World) -> None:
    assert isinstance(world.hub.clock, FakeClock)
    await world.pass_s(1)
    for _ in range(8):
        world.hub.clock.advance(16)
        await world.pass_s(1)
    known = [moment is not None for moment in (await world.look(8 * 17 + 1)).moments]
    assert len(known) == 10
    assert all(known[1:-1])
    world.hub.clock.advance(60)
    await world.pass_s(1)
    known = [moment is not None for moment in (await world.look(9 * 17 + 61)).moments]
    assert known.count(False) > 3, "where the hub was away nothing is known"


async def test_the_first_page_that_asks_knows_the_rates_of_the_last_seconds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.hub.create_stream("s")
    await world.pass_s(1)
    monkeypatch.setattr("headrace.console.views.RATE_AGE_MIN_S", 0.0)
    await world.hub.append("s", Batch.of([b"x"] * 28))
    await world.pass_s(14)
    await world.hub.append("s", Batch.of([b"x"]))
    world.views.measure_rates()
    assert world.views.rate("s") > 0


async def test_names_are_for_those_who_may_read_them_and_one_stream_can_be_asked_for(world: World) -> None:
    await world.pass_s(1)
    for name in ("mine", "other"):
        await world.hub.create_stream(name)
        await world.hub.append(name, Batch.of([b"x"] * 98))
        await world.hub.save_cursor("c", name, 97)
    await world.pass_s(14)
    [moment] = [one for one in (await world.look(20)).moments if one is not None]
    assert (moment.rates, moment.lags) == ({"mine": 7.0, "other": 7.0}, [("mine", "c", 1), ("other", "c", 1)])
    [moment] = [one for one in (await world.look(20, stream="mine")).moments if one is not None]
    assert (moment.rates, moment.lags) == ({"mine": 7.0}, [("mine", "c", 1)])
    with acting_as(Principal("m", (), (Grant(rights=["read"], streams=["mine"]),))):
        [moment] = [one for one in (await world.look(20)).moments if one is not None]
    assert (moment.rates, moment.lags) == ({"mine": 7.0}, [("mine", "c", 1)])


async def test_that_the_hub_stopped_is_the_last_event(world: World) -> None:
    await world.history.close()
    assert not world.hub.has_stream(STREAM), "a hub that lived for seconds leaves no trace"
    await world.pass_s(15)
    await world.history.close()
    assert [event.kind for event in (await world.look()).events] == ["start", "stop"]


async def test_a_log_that_takes_nothing_is_not_the_end_of_the_pulse(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.pass_s(15)
    await world.hub.delete_stream(STREAM)

    async def refused(*asked: object, **more: object) -> None:
        raise history_module.HeadraceError("no room")

    world.hub.create_stream = refused  # type: ignore[assignment,method-assign]
    await world.pass_s(15)
    assert "cannot save the console's history of the last few seconds: no room" in caplog.text


async def test_it_can_be_switched_off() -> None:
    async with memory_hub(Config(http=Http(history=False))) as hub:
        listener = await start(hub)
        assert listener is not None
        assert "console.history" not in hub.verbs
        await listener.close()
