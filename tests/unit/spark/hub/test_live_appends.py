"""Results in real time that go to several streams and partitions: all of a step or nothing, once. No Spark here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.spark_batches import payloads

from headrace.config import Grant
from headrace.errors import BadRequest, Fenced, Forbidden
from headrace.hub import Hub
from headrace.log.columns import PUT_SCHEMA
from headrace.security import Principal, acting_as
from headrace.spark.hub.live_appends import PARSED_INLINE_BYTES, AppendRows, LiveAppends
from headrace.spark.hub.live_results import Begin, LiveResults
from headrace.spark.hub.result_ends import producer_name
from headrace.spark.hub.sink_state import SINKS, SourcePosition
from headrace.spark.hub.staging_area import StagingArea
from headrace.spark.sink.rows import to_records
from headrace.testing import memory_hub

Place = tuple[str, int]


def encoded(places: dict[Place, list[bytes]], **metadata: str) -> bytes:
    """Rows as both engines send them."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, PUT_SCHEMA) as writer:
        for (stream, partition), values in places.items():
            batch = to_records(pa.record_batch({"payload": pa.array(values, pa.binary())}))
            to = metadata or {"stream": stream, "partition": str(partition)}
            writer.write_batch(batch, custom_metadata=to)
    return sink.getvalue().to_pybytes()


class Query:
    """A query `q` from `in` to several places, as its driver and tasks speak of it."""

    def __init__(self, hub: Hub, directory: Path) -> None:
        self.hub = hub
        area = StagingArea(hub, directory)
        self.live = LiveResults(hub, area.charged)
        self.appends = LiveAppends(hub, area.owned_state)

    async def begin(self, run: str, start: list[int | None], to: str | None = None) -> list[int | None]:
        sources = [SourcePosition("c", "in", start)]
        return (await self.live.begin(Begin("q", run, 0, to, sources)))[0].next

    async def append(self, run: str, after: int | None, sequence: int | None, rows: bytes, **more: Any) -> int | None:
        request = {"source": "in", "sequence": sequence, "after": after} | more
        return (await self.appends.append(AppendRows("q", run, rows, **request))).sequence


@pytest.fixture
async def query(tmp_path: Path) -> AsyncIterator[Query]:
    async with memory_hub() as hub:
        await hub.create_stream("in")
        await hub.create_stream("out", partitions=2)
        yield Query(hub, tmp_path)


def everything(hub: Hub) -> Iterator[tuple[str, int, bytes]]:
    for info in hub.streams("*"):
        for partition in range(info.partitions if info.kind == "stream" else 0):
            bounds = hub.bounds(info.name, partition)
            for batch in hub.scan(info.name, bounds.first, bounds.next, partition=partition):
                yield from ((info.name, partition, value) for value in batch["payload"].to_pylist())


async def test_several_places_in_one_step(query: Query) -> None:
    assert await query.begin("r1", [3]) == [3]
    rows = encoded({("out", 0): [b"a"], ("out", 1): [b"b", b"c"], ("new", 2): [b"d"]})
    assert await query.append("r1", 3, 8, rows, partitions=3) == 8
    stored = [("new", 2, b"d"), ("out", 0, b"a"), ("out", 1, b"b"), ("out", 1, b"c")]
    assert sorted(everything(query.hub)) == stored
    with pytest.raises(Fenced, match="is at sequence 8, not at 3.*Nothing was stored"):
        await query.append("r1", 3, 9, rows)  # sent twice, or by a second task
    assert await query.append("r1", None, None, b"") == 8  # which is how a task learns of it
    assert sorted(everything(query.hub)) == stored
    assert await query.begin("r2", [3]) == [8]
    assert query.hub.producers(SINKS) == {producer_name("q", "r2", "in", 0): 8}


async def test_one_place_that_is_refused_keeps_all_rows_out(query: Query) -> None:
    ann = Principal("ann", (), (Grant(rights=["read", "write"], streams=["in", "out"]),))
    with acting_as(ann):
        await query.begin("r1", [0])
        with pytest.raises(BadRequest, match="has no partition 2"):
            await query.append("r1", 0, 1, encoded({("out", 0): [b"a"], ("out", 2): [b"b"]}))
        with pytest.raises(Forbidden, match="write 'secret'"):
            await query.append("r1", 0, 1, encoded({("out", 0): [b"a"], ("secret", 0): [b"b"]}))
    assert list(everything(query.hub)) == []
    assert not query.hub.has_stream("secret")
    bob = Principal("bob", (), (Grant(rights=["write"], streams=["out"]),))
    with acting_as(bob), pytest.raises(Forbidden, match="belongs to 'ann'"):
        await query.append("r1", None, None, b"")
    assert await query.append("r1", None, None, b"") == 0


async def test_a_run_that_was_replaced_stores_nothing(query: Query) -> None:
    await query.begin("old", [0])
    await query.begin("new", [0])
    for more in ({}, {"source": None}):  # at least once, too
        with pytest.raises(Fenced, match="run old was replaced by run new"):
            await query.append("old", 0, 1, encoded({("out", 0): [b"a"]}), **more)
    assert list(everything(query.hub)) == []


async def test_results_that_may_come_again_have_no_end(query: Query) -> None:
    assert await query.live.begin(Begin("q", "r1", 0)) == []
    for _ in range(2):
        assert await query.append("r1", None, None, encoded({("out", 1): [b"a"]}), source=None) is None
    assert list(everything(query.hub)) == [("out", 1, b"a")] * 2
    with pytest.raises(BadRequest, match="need both 'sequence' and 'after'"):
        await query.append("r1", None, 4, encoded({("out", 1): [b"a"]}))


async def test_a_query_may_change_between_one_place_and_several(query: Query) -> None:
    await query.begin("r1", [0])
    await query.append("r1", 0, 5, encoded({("out", 1): [b"a"]}))
    await query.hub.create_stream("one")
    assert await query.begin("r1", [0], to="one") == [5]
    assert query.hub.producers(SINKS) == {}
    with pytest.raises(Fenced):
        await query.append("r1", 5, 6, encoded({("out", 1): [b"late"]}))
    assert await query.begin("r2", [0]) == [5]
    assert await payloads(query.hub, "one") == []


@pytest.mark.parametrize("size", [10, PARSED_INLINE_BYTES + 1])
@pytest.mark.parametrize(
    "rows",
    [
        lambda whole: b"x" * len(whole),
        lambda whole: whole[: len(whole) // 2],
        lambda whole: encoded({("out", 0): [b"a"]}, stream="out"),
        lambda whole: encoded({("out", 0): [b"a"]}, stream="out", partition="x"),
        lambda whole: encoded({("out", 0): [b"a"]}, stream="out", partition="-1"),
    ],
    ids=["noise", "half", "no partition", "no number", "below zero"],
)
async def test_rows_that_are_none_are_refused(query: Query, rows: Any, size: int) -> None:
    await query.begin("r1", [0])
    with pytest.raises(BadRequest):
        await query.append("r1", 0, 1, rows(encoded({("out", 0): [b"a" * size]})))
    assert await query.append("r1", None, None, b"") == 0
    assert list(everything(query.hub)) == []


async def test_the_end_outlives_a_restart_of_the_hub(tmp_path: Path) -> None:
    for after in (0, 4):
        hub = await Hub.open(tmp_path / "data")
        query = Query(hub, tmp_path / "staging")
        assert await query.begin("r1", [0]) == [after]
        await query.append("r1", after, after + 4, encoded({("a", 0): [b"x"], ("b", 0): [b"y"]}))
        await hub.close()
