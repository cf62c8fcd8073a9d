"""The map: who writes what, who reads what, how fast, how far behind; bounded, and only what one may read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from headrace.config import Grant
from headrace.console import traffic as traffic_module
from headrace.console.map import MapRequest, Maps, MapView
from headrace.console.pipelines import PipelineViews
from headrace.console.traffic import Edge, Traffic
from headrace.console.views import Views
from headrace.hub import Hub
from headrace.log.batch import Batch
from headrace.log.ops import Append, Put
from headrace.security import Principal, acting_as
from headrace.spark.hub.registry import Definition, Registry
from headrace.spark.hub.sink_state import SINKS, SinkState, SourcePosition
from headrace.spark.pipelines.report import Report
from headrace.testing import FakeClock, memory_hub


class World:
    """A hub, its traffic by a clock that the test moves, and its map."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.now_s = 100.0
        self.traffic = Traffic(hub, lambda: self.now_s)
        self.views = Views(hub)
        self.pipelines = PipelineViews(hub, self.traffic)
        self.maps = Maps(hub, self.views, self.pipelines, self.traffic)

    def later(self, seconds: float) -> None:
        assert isinstance(self.hub.clock, FakeClock)
        self.hub.clock.advance(seconds)
        self.now_s += seconds

    async def map(self, **asked: Any) -> tuple[dict[str, Any], dict[tuple[str, str], Any]]:
        """Nodes by id, and edges by where they lead."""
        view: MapView = await self.maps.map(MapRequest(**asked))
        return {node.id: node for node in view.nodes}, {(edge.source, edge.target): edge for edge in view.edges}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with memory_hub(clock=FakeClock()) as hub:
        yield World(hub)


async def test_a_hub_without_streams_has_an_empty_map(world: World) -> None:
    assert await world.maps.map(MapRequest()) == MapView(0, [], [])


async def test_protocols_that_write_and_read_are_on_it_also_without_a_session(world: World) -> None:
    await world.hub.create_stream("s")
    await world.hub.used_by("ockam").append("s", Batch.of([b"x"] * 3))
    await world.hub.used_by("ignite").read("s", 0)
    await world.hub.used_by("admin").append("s", Batch.of([b"x"]))
    nodes, edges = await world.map()
    assert {key: node.kind for key, node in nodes.items()} == {
        "producer/ockam": "producer",
        "producer/admin API": "producer",
        "stream/s": "stream",
        "consumer/perper": "consumer",
    }
    assert edges.keys() == {
        ("producer/ockam", "stream/s"),
        ("producer/admin API", "stream/s"),
        ("stream/s", "consumer/perper"),
    }


async def test_open_sessions_are_counted(world: World) -> None:
    await world.hub.create_stream("s")
    for _ in range(2):
        world.hub.sessions.open("wallaroo", "peer", lambda: {}).uses("write", "s")
    world.hub.sessions.open("fabric", "peer", lambda: {}).uses("read", "s")
    nodes, edges = await world.map()
    assert (nodes["producer/wallaroo"].count, nodes["consumer/perper"].count) == (2, 1)
    assert edges[("producer/wallaroo", "stream/s")].rate == 0


async def test_what_several_write_is_shared_out_by_what_each_has_sent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.hub.create_stream("s")
    await world.hub.used_by("ockam").append("s", Batch.of([b"x"] * 30))
    await world.hub.used_by("wallaroo").append("s", Batch.of([b"x"] * 10))
    world.later(1)
    monkeypatch.setattr(Views, "rate", lambda self, stream: 20.0)
    nodes, edges = await world.map()
    assert edges[("producer/ockam", "stream/s")].rate == 15.0
    assert edges[("producer/wallaroo", "stream/s")].rate == 5.0
    assert nodes["stream/s"].rate == 20.0


async def test_rates_follow_and_what_is_silent_is_forgotten(world: World) -> None:
    await world.hub.create_stream("s")
    await world.hub.used_by("ockam").append("s", Batch.of([b"x"] * 100))
    world.later(1)
    world.traffic.take()
    edge = Edge("write", "ockam", "s")
    assert dict(world.traffic.edges()) == {edge: pytest.approx(40.0)}
    world.later(0.5)
    world.traffic.take()
    assert dict(world.traffic.edges()) == {edge: pytest.approx(40.0)}, "too soon to say anything new"
    world.later(1)
    world.traffic.take()
    assert dict(world.traffic.edges()) == {edge: pytest.approx(24.0)}
    world.later(traffic_module.SILENT_S)
    world.traffic.take()
    assert dict(world.traffic.edges()) == {}


async def test_edges_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic_module, "EDGES_MAX", 2)
    for name in ("a", "b", "c"):
        await world.hub.create_stream(name)
        await world.hub.append(name, Batch.of([b"x"]))
        await world.hub.save_cursor("c", name, 1)
    assert [edge.stream for edge, _ in world.traffic.edges()] == ["a", "b"]
    assert list(world.traffic.moves()) == [("c", "a"), ("c", "b")]


async def test_a_consumer_is_known_by_who_moves_its_cursor_and_by_its_lag(world: World) -> None:
    await world.hub.create_stream("s")
    await world.hub.append("s", Batch.of([b"x"] * 10))
    await world.hub.used_by("flight").read("s", 0)
    await world.hub.used_by("admin").save_cursor("sdk", "s", 4)
    await world.hub.used_by("futoin").save_cursor("futoin:a:B", "s", 10)
    nodes, edges = await world.map()
    assert edges[("stream/s", "consumer/flight")].lag == 6, "moved by a verb, read by a protocol"
    assert edges[("stream/s", "consumer/flight")].trouble == ""
    assert edges[("stream/s", "consumer/futoin")].lag == 0
    world.later(6)
    nodes, edges = await world.map()
    assert (nodes["consumer/flight"].trouble, nodes["stream/s"].trouble) == ("warn", "warn")
    world.later(60)
    nodes, edges = await world.map()
    assert (nodes["consumer/flight"].trouble, edges[("stream/s", "consumer/flight")].trouble) == ("bad", "bad")
    assert nodes["consumer/futoin"].trouble == ""


async def test_cursors_of_an_earlier_life_of_the_hub_stand_apart(world: World) -> None:
    await world.hub.create_stream("s")
    await world.hub.append("s", Batch.of([b"x"]))
    for cursor in ("mine", "ockam:pull", "s-persist"):
        await world.hub.save_cursor(cursor, "s", 0)
    later = World(world.hub)
    nodes, _ = await later.map()
    assert {node.id for node in nodes.values() if node.kind == "consumer"} == {"consumer/-", "consumer/ockam"}


async def test_pipelines_stand_between_what_they_read_and_what_they_write(world: World) -> None:
    hub = world.hub
    for name in ("orders", "sums", "more"):
        await hub.create_stream(name)
    registry = Registry(hub)
    registry.register()
    await registry.create(Definition(name="sql", sql="select 1 from stream('orders')", into="sums"))
    await registry.report(Report(name="file", state="failed"))
    await hub.create_table(SINKS)
    state = SinkState(batch=1, sources=[SourcePosition("file", "orders", [1])])
    ops = [Append("more", Batch.of([b"x"])), Put(SINKS, b"query", msgspec.msgpack.encode(state))]
    await hub.transact(ops)
    await hub.save_cursor("file", "orders", 0)
    await world.pipelines.take()
    nodes, edges = await world.map()
    assert ("stream/orders", "pipeline/sql") in edges
    assert ("pipeline/sql", "stream/sums") in edges
    assert edges[("stream/orders", "pipeline/file")].trouble == "bad"
    assert ("pipeline/file", "stream/more") in edges
    assert (nodes["pipeline/file"].state, nodes["pipeline/file"].trouble) == ("failed", "bad")
    assert not [node for node in nodes.values() if node.kind in ("producer", "consumer")]
    only = Principal("m", (), (Grant(rights=["read"], streams=["orders"]),))
    with acting_as(only):
        nodes, _ = await world.map()
    assert nodes.keys() == {"stream/orders"}, "whoever may not read all is not told of pipelines"


async def test_many_streams_are_groups_that_can_be_opened(world: World) -> None:
    for name in ("a.x.1", "a.x.2", "a.y", "b/1", "b/2", "alone"):
        await world.hub.create_stream(name)
    nodes, _ = await world.map(limit=3)
    assert {key: node.count for key, node in nodes.items()} == {"group/a.": 3, "group/b/": 2, "stream/alone": 0}
    nodes, _ = await world.map(limit=2, group="a.")
    assert {key: node.count for key, node in nodes.items()} == {"group/a.x.": 2, "stream/a.y": 0}
    nodes, _ = await world.map(limit=2)
    assert {key: node.count for key, node in nodes.items()} == {"group/a.": 3, "rest": 3}
    nodes, _ = await world.map(text="y")
    assert nodes.keys() == {"stream/a.y"}
    view = await world.maps.map(MapRequest(limit=2))
    assert view.streams == 6


async def test_what_the_hub_keeps_for_itself_is_shown_if_something_flowed_there_of_late(world: World) -> None:
    for name in ("immortal/x/log", "console/history"):
        await world.hub.create_stream(name)
    assert (await world.map())[0] == {}
    for name in ("immortal/x/log", "console/history"):
        await world.hub.append(name, Batch.of([b"x"]))
    world.later(60)
    nodes, _ = await world.map()
    assert "stream/immortal/x/log" in nodes, "it does not come and go with every record"
    assert "stream/console/history" not in nodes, "nobody but the console writes or reads it"
