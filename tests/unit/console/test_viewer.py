"""Whoever may read some streams: the console shows them the same whatever happens to the others."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.config import Config, Grant, Listen
from headrace.console.alarms import Alarms
from headrace.console.changes import Changes
from headrace.console.history import STEP_S, History
from headrace.console.map import Maps
from headrace.console.pipelines import PipelineViews
from headrace.console.pulse import Pulse
from headrace.console.search import Search
from headrace.console.sessions import SessionViews
from headrace.console.trace import Traces
from headrace.console.traffic import Traffic
from headrace.console.views import Views
from headrace.console.words import Reading
from headrace.errors import Forbidden
from headrace.hub import Hub
from headrace.log.batch import Batch
from headrace.security import EVERYTHING, Principal
from headrace.spark.hub.registry import Definition, Registry
from headrace.spark.pipelines.report import Report
from headrace.testing import FakeClock, memory_hub

VIEWER = Principal("viewer", (), (Grant(rights=["read"], streams=["mine*"]),))
BEGIN_US = FakeClock().now_us()
QUESTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("console.map", {}),
    ("console.map", {"text": "s", "limit": 1}),
    ("console.streams", {"all": True}),
    ("console.streams", {"kind": "table", "all": True}),
    ("console.stream", {"stream": "mine"}),
    ("console.cursors", {}),
    ("console.search", {"text": "e"}),
    ("console.search", {"text": "*"}),
    ("console.history", {"since_us": BEGIN_US, "until_us": 1 << 60}),
    ("console.changes", {"before_us": BEGIN_US + 120_000_000}),
    ("record.trace", {"stream": "mine", "index": 0}),
)
REFUSED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("console.stream", {"stream": "secret"}),
    ("console.history", {"since_us": BEGIN_US, "until_us": 1 << 60, "stream": "secret"}),
    ("record.trace", {"stream": "secret", "index": 0}),
    ("record.frames", {"stream": "secret", "index": 0}),
    ("record.words", {"stream": "secret", "index": 0}),
    ("console.entries", {"table": "secret"}),
    ("console.sessions", {}),
    ("console.pipelines", {}),
)


class World:
    """A hub with the whole console, whose seconds pass when the test says so."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        Registry(hub).register()
        self.now_s = 0.0
        traffic = Traffic(hub, lambda: self.now_s)
        views = Views(hub)
        views._rates.of = lambda name: 1.0  # type: ignore[method-assign]  # otherwise by the machine's own clock
        self.pipelines = PipelineViews(hub, traffic)
        self.alarms = Alarms(hub)
        self.alarms.sources.insert(1, self.pipelines.alarms)
        self.history = History(hub, views, self.pipelines)
        self.history._rates.of = views._rates.of  # type: ignore[method-assign]
        self.pulse = Pulse(hub, None, self.alarms)
        self.pulse._task.cancel()  # its seconds are not the test's
        maps, traces = Maps(hub, views, self.pipelines, traffic), Traces(hub, self.pipelines, traffic)
        parts = (
            Reading(hub),
            views,
            maps,
            traces,
            Search(hub, self.pipelines),
            self.history,
            Changes(hub, self.history),
        )
        for part in (self.pipelines, self.alarms, SessionViews(hub), *parts):
            part.register()  # type: ignore[attr-defined]

    async def pass_s(self, seconds: int) -> None:
        assert isinstance(self.hub.clock, FakeClock)
        for _ in range(seconds):
            self.hub.clock.advance(1)
            self.now_s += 1
            await self.pipelines.take()
            sample = self.pulse.sample()
            self.pulse._publish(sample)
            self.history.take(sample)
            if self.history._task is not None:
                await self.history._task

    async def told(self, principal: Principal) -> dict[str, Any]:
        """All that the console tells them."""
        answers = {
            f"{verb} {asked}": msgspec.json.decode(
                await self.hub.verbs.call_json(verb, msgspec.json.encode(asked), principal)
            )
            for verb, asked in QUESTIONS
        }
        pages = self.pulse.watch(None, principal)
        answers["pulse"] = msgspec.json.decode((await anext(pages)).data)
        await pages.aclose()  # type: ignore[attr-defined]
        return answers


async def live(others: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a viewer and an admin are told of two minutes of a hub, with others on it or without."""
    async with memory_hub(Config(listen=Listen(http="0.0.0.0:80")), clock=FakeClock()) as hub:
        world = World(hub)
        await hub.create_stream("mine")
        await hub.append("mine", Batch.of([b"x"] * 3))
        await hub.save_cursor("mine-reader", "mine", 1)
        hub.sessions.open("ockam", "mine:1", lambda: {}).uses("write", "mine")
        if others:
            await others_come(hub)
        await world.pass_s(30)
        if others:
            await hub.append("secret", Batch.of([b"y"] * 1000))
            await hub.delete_stream("secret-2")
            hub.health.note("tables", lambda: "row 'secret' of a table is set aside")
            hub.health.check("damage", lambda: "records of secret are damaged")
        await world.pass_s(90)
        viewer, admin = await world.told(VIEWER), await world.told(EVERYTHING)
        for verb, asked in REFUSED:
            with pytest.raises(Forbidden):
                await hub.verbs.call_json(verb, msgspec.json.encode(asked), VIEWER)
        await world.pulse.close()
        return viewer, admin


async def others_come(hub: Hub) -> None:
    """Streams, tables, cursors that stop, sessions and pipelines that a viewer is told nothing of."""
    for name in ("secret", "secret-2"):
        await hub.create_stream(name, partitions=2)
        await hub.append(name, Batch.of([b"y"] * 50))
    await hub.create_table("secret-table")
    for number in range(12):
        await hub.save_cursor(f"secret-reader-{number}", "secret", 2)
    session = hub.sessions.open("wallaroo", "secret:1", lambda: {})
    session.uses("write", "secret")
    session.uses("read", "secret")
    create, report = (hub.verbs.get(f"pipeline.{verb}").handler for verb in ("create", "report"))
    await create(Definition(name="secret-pipeline", sql="select * from stream('mine')", into="secret-2"))
    await report(Report("secret-pipeline", state="failed", error="secret"))


def settled(told: dict[str, Any]) -> dict[str, Any]:
    """Without what a viewer may know of the hub itself: that it is not ready, and not why."""
    text = msgspec.json.encode(told).decode()
    assert "secret" not in text
    alarms = told["pulse"][-1]["alarms"]
    told["pulse"][-1]["alarms"] = [one for one in alarms if one["kind"] != "unready"]
    for name, answer in told.items():
        if name.startswith(("console.history", "console.changes")):
            answer["events"] = [one for one in answer["events"] if "not ready" not in one["title"]]
    return told


async def test_what_happens_to_others_changes_nothing_that_a_viewer_is_told() -> None:
    alone, _ = await live(others=False)
    among_others, admin = await live(others=True)
    shown = settled(among_others)
    for name, answer in settled(alone).items():
        assert shown[name] == answer, name
    assert "secret" in msgspec.json.encode(admin).decode()


async def test_a_viewer_is_told_of_what_is_theirs() -> None:
    viewer, _ = await live(others=True)
    assert [one["title"] for one in viewer["console.map {}"]["nodes"] if one["kind"] == "stream"] == ["mine"]
    assert "cursor/mine/mine-reader" in [one["key"] for one in viewer["pulse"][-1]["alarms"]]
    [history] = [answer for name, answer in viewer.items() if name.startswith("console.history")]
    known = [moment for moment in history["moments"] if moment]
    assert len(known) >= 90 // STEP_S
    assert {moment["records_in"] for moment in known} == {None}
    assert (known[-1]["lag"], known[-1]["rates"]) == (2, {"mine": 1.0})
