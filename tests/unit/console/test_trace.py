"""Following a record, and finding things by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from headrace.config import Grant
from headrace.console.server import start
from headrace.console.views import retention_text
from headrace.errors import BadRequest
from headrace.hub import Hub
from headrace.log.batch import Batch
from headrace.log.ops import StreamOptions
from headrace.security import EVERYTHING, Principal
from headrace.spark.hub.registry import Definition, Registry
from headrace.testing import FakeClock, memory_hub


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with memory_hub(clock=FakeClock()) as made:
        Registry(made).register()
        listener = await start(made)
        assert listener is not None
        yield made
        await listener.close()


async def ask(hub: Hub, verb: str, principal: Principal = EVERYTHING, **request: Any) -> Any:
    return msgspec.json.decode(await hub.verbs.call_json(verb, msgspec.json.encode(request), principal))


def later(hub: Hub, seconds: float) -> None:
    assert isinstance(hub.clock, FakeClock)
    hub.clock.advance(seconds)


async def test_a_record_was_written_by_those_who_had_the_stream_open_then(hub: Hub) -> None:
    await hub.create_stream("s")
    early = hub.sessions.open("ockam", "early", lambda: {})
    early.uses("write", "s")
    other = hub.sessions.open("ockam", "reads only", lambda: {})
    other.uses("read", "s")
    await hub.append("s", Batch.of([b"x"]))
    later(hub, 5)
    early.close()
    later(hub, 5)
    hub.sessions.open("wallaroo", "late", lambda: {}).uses("write", "s")
    await hub.append("s", Batch.of([b"y"]))
    first, second = [await ask(hub, "record.trace", stream="s", index=index) for index in (0, 1)]
    assert [(one["peer"], one["ended"]) for one in first["writers"]] == [("early", True)]
    assert [(one["peer"], one["ended"]) for one in second["writers"]] == [("late", False)]
    assert second["time_us"] - first["time_us"] == 10_000_000
    with pytest.raises(BadRequest, match="has no record 2"):
        await ask(hub, "record.trace", stream="s", index=2)


async def test_a_record_that_came_without_a_session_says_how_its_stream_is_written(hub: Hub) -> None:
    await hub.create_stream("s")
    await hub.used_by("admin").append("s", Batch.of([b"x"]))
    assert (await ask(hub, "record.trace", stream="s", index=0))["ways"] == ["admin API"]
    await hub.used_by("ignite").append("s", Batch.of([b"y"]))
    trace = await ask(hub, "record.trace", stream="s", index=1)
    assert (trace["writers"], trace["ways"]) == ([], ["admin API", "perper"])
    hub.sessions.open("ignite", "peer", lambda: {}).uses("write", "s")
    await hub.used_by("ignite").append("s", Batch.of([b"z"]))
    trace = await ask(hub, "record.trace", stream="s", index=2)
    assert ([one["peer"] for one in trace["writers"]], trace["ways"]) == (["peer"], ["admin API"])


async def test_a_record_was_read_by_the_cursors_that_are_past_it(hub: Hub) -> None:
    await hub.create_stream("s", partitions=2)
    await hub.append("s", Batch.of([b"x"] * 5))
    for cursor, index in (("done", 5), ("late", 1), ("s-persist", 0)):
        await hub.save_cursor(cursor, "s", index)
    await hub.save_cursor("elsewhere", "s", 0, partition=1)
    trace = await ask(hub, "record.trace", stream="s", index=3)
    assert [(one["cursor"], one["to_go"]) for one in trace["readers"]] == [("done", 0), ("late", 3)]


async def test_a_record_is_followed_through_pipelines(hub: Hub) -> None:
    for name in ("orders", "sums"):
        await hub.create_stream(name)
        await hub.append(name, Batch.of([b"x"]))
    sql = "select * from stream('orders')"
    create = hub.verbs.get("pipeline.create").handler
    await create(Definition(name="totals", sql=sql, into="sums"))
    pipelines = await ask(hub, "console.pipelines")
    assert [one["status"]["name"] for one in pipelines] == ["totals"]
    for stream, side, others in (("orders", "behind", ["sums"]), ("sums", "before", ["orders"])):
        trace = await ask(hub, "record.trace", stream=stream, index=0)
        assert trace[side] == [{"pipeline": "totals", "streams": others}]


async def test_everything_with_a_name_is_found(hub: Hub) -> None:
    for name in ("orders", "old-orders", "orders.dead"):
        await hub.create_stream(name)
    await hub.create_table("order-book")
    await hub.save_cursor("order-reader", "orders", 0)
    hub.sessions.open("ockam", "order-desk:1", lambda: {})
    found = await ask(hub, "console.search", text="order")
    assert [(one["kind"], one["title"]) for one in found] == [
        ("stream", "orders"),
        ("stream", "orders.dead"),
        ("stream", "old-orders"),
        ("table", "order-book"),
        ("cursor", "order-reader"),
        ("session", "ockam order-desk:1"),
    ]
    for number in range(20):
        await hub.create_stream(f"many{number:02}")
    assert len(await ask(hub, "console.search", text="many")) == 8
    with pytest.raises(BadRequest):
        await ask(hub, "console.search", text="")


async def test_only_what_one_may_read_is_found(hub: Hub) -> None:
    for name in ("mine-x", "other-x"):
        await hub.create_stream(name)
        await hub.save_cursor(f"{name}-cursor", name, 0)
    hub.sessions.open("ockam", "peer-x", lambda: {})
    some = Principal("r", (), (Grant(rights=["read"], streams=["mine*"]),))
    found = await ask(hub, "console.search", some, text="x")
    assert [one["title"] for one in found] == ["mine-x", "mine-x-cursor"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (StreamOptions(), "for ever"),
        (StreamOptions(retention_age_s=60.0), "60 s"),
        (StreamOptions(retention_age_s=7200.0), "2 h"),
        (StreamOptions(retention_age_s=7 * 86400.0), "7 days"),
        (StreamOptions(retention_bytes=1 << 20, max_hold_s=600), "1.0 MiB, at most 10 min"),
    ],
)
async def test_retention_is_said_for_people(hub: Hub, options: StreamOptions, words: str) -> None:
    assert retention_text(await hub.create_stream("s", options=options)) == words
