"""Where the results of a query end, whichever mode stored them: against the real log in memory. No Spark here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.spark_batches import Driver, payloads

from headrace.config import Grant
from headrace.errors import Fenced, Forbidden
from headrace.hub import Hub
from headrace.log.batch import Batch
from headrace.security import Principal, acting_as
from headrace.spark.hub.live_results import Begin, LiveResults
from headrace.spark.hub.positions import Forget, Positions, ReadPosition
from headrace.spark.hub.result_ends import producer_name
from headrace.spark.hub.sink_state import BatchChanged, SourcePosition
from headrace.spark.hub.staging_area import StagingArea
from headrace.testing import memory_hub


class Query:
    """A query `q` from `in` with two partitions to `out`, as Spark's driver and tasks speak of it."""

    def __init__(self, hub: Hub, area: StagingArea) -> None:
        self.hub = hub
        self.area = area
        self.live = LiveResults(hub, area.charged)

    async def begin(self, run: str, start: list[int | None], batch: int = 0, to: str = "out") -> list[int | None]:
        sources = [SourcePosition("c", "in", start)]
        return (await self.live.begin(Begin("q", run, batch, to, sources)))[0].next

    async def append(self, run: str, after: int, sequence: int, partition: int = 0, to: str = "out") -> None:
        """The result of one record, by a task of a run."""
        name = producer_name("q", run, "in", partition)
        await self.hub.append(to, Batch.one(b"%d" % sequence), producer=name, sequence=sequence, after=after)

    async def micro_batch(self, run: str, batch: int, first: list[int | None], next_: list[int | None]) -> Any:
        driver = Driver(self.area, run=run)
        part = await driver.stage(batch, [b"micro-batch"])
        return await driver.commit(batch, [part], f"d{next_}", sources=[SourcePosition("c", "in", next_, first)])

    async def position(self) -> list[int | None]:
        return await Positions(self.hub).position(ReadPosition("c", "in"))


@pytest.fixture
async def query(tmp_path: Path) -> AsyncIterator[Query]:
    async with memory_hub() as hub:
        await hub.create_stream("in", partitions=2)
        await hub.create_stream("out")
        yield Query(hub, StagingArea(hub, tmp_path))


async def test_a_query_begins_where_spark_says_and_then_where_its_results_end(query: Query) -> None:
    assert await query.begin("r1", [3, 0]) == [3, 0]
    await query.append("r1", after=3, sequence=8)
    assert await query.begin("r1", [3, 0]) == [8, 0]
    assert await query.begin("r2", [3, 5]) == [8, 5]
    assert query.hub.producers("out") == {producer_name("q", "r2", "in", 0): 8, producer_name("q", "r2", "in", 1): 0}


async def test_the_older_of_two_drivers_is_fenced_at_once(query: Query) -> None:
    await query.begin("old", [0, 0])
    await query.append("old", after=0, sequence=4)
    await query.begin("new", [0, 0])
    with pytest.raises(Fenced):
        await query.append("old", after=4, sequence=6)
    with pytest.raises(Fenced, match="replaced by run new"):
        await query.begin("old", [0, 0])
    await query.append("new", after=4, sequence=6)
    assert await payloads(query.hub) == [b"4", b"6"]


async def test_an_append_that_is_on_its_way_when_another_run_takes_over_counts(query: Query) -> None:
    await query.begin("old", [0, 0])
    name = producer_name("q", "old", "in", 0)
    under_way = query.hub.append("out", Batch.one(b"x"), producer=name, sequence=4, after=0)
    assert await query.begin("new", [0, 0]) == [4, 0]
    await under_way


async def test_a_micro_batch_that_spark_did_not_note_is_where_real_time_begins(query: Query) -> None:
    await query.micro_batch("r1", 0, [0, 0], [20, 7])
    assert await query.begin("r2", [0, 0], batch=0) == [20, 7]


async def test_real_time_is_refused_where_a_stored_micro_batch_does_not_say_what_it_read(query: Query) -> None:
    driver = Driver(query.area, run="r1")
    await driver.commit(4, [await driver.stage(4, [b"a"])])
    with pytest.raises(BatchChanged, match="how far it read stream 'in' partition 0 is not known.*old trigger"):
        await query.begin("r2", [0, 0], batch=4)
    assert await query.begin("r2", [9, 9], batch=5) == [9, 9]  # Spark has noted batch 4


async def test_a_micro_batch_that_begins_below_the_results_of_real_time_is_refused(query: Query) -> None:
    await query.begin("r1", [0, 0])
    await query.append("r1", after=0, sequence=6, partition=1)
    with pytest.raises(BatchChanged, match="begins at index 5 of stream 'in' partition 1, but results up to 6.*reset"):
        await query.micro_batch("r2", 0, [0, 5], [9, 9])
    assert await payloads(query.hub) == [b"6"]
    with pytest.raises(Fenced):  # the micro-batch was refused, but its run is in charge
        await query.append("r1", after=6, sequence=7, partition=1)
    assert (await query.micro_batch("r2", 0, [0, 6], [9, 9])).applied
    assert query.hub.producers("out") == {}
    assert await query.begin("r3", [0, 0]) == [9, 9]


async def test_a_fresh_checkpoint_continues_where_real_time_ended(query: Query) -> None:
    assert await query.position() == [None, None]
    await query.begin("r1", [2, 0])
    await query.append("r1", after=2, sequence=6)
    assert await query.position() == [6, 0]
    await query.hub.save_cursor("c", "in", 9)
    assert await query.position() == [9, 0]


async def test_to_forget_a_cursor_is_to_forget_its_producers(query: Query) -> None:
    positions = Positions(query.hub)
    await query.begin("r1", [0, 0])
    await query.append("r1", after=0, sequence=6)
    assert await positions.streams_behind("c") == {"in"}
    assert await positions.forget(Forget("another")) == 0
    assert await positions.forget(Forget("c", ["elsewhere"])) == 0
    assert await query.position() == [6, 0]
    assert await positions.forget(Forget("c")) == 1
    assert query.hub.producers("out") == {}
    assert await query.position() == [None, None]
    with pytest.raises(Fenced):
        await query.append("r1", after=6, sequence=7)


async def test_results_may_go_elsewhere_and_partitions_be_added(query: Query) -> None:
    await query.begin("r1", [0, 0])
    await query.append("r1", after=0, sequence=6)
    await query.hub.create_stream("elsewhere")
    assert await query.begin("r2", [0, 0, 2], to="elsewhere") == [6, 0, 2]
    assert query.hub.producers("out") == {}
    await query.append("r2", after=6, sequence=8, to="elsewhere")
    assert await query.begin("r2", [0, 0, 2, 0], to="elsewhere") == [8, 0, 2, 0]
    await query.hub.delete_stream("elsewhere")
    assert await query.position() == [8, 0]  # what was folded when a partition was added
    await query.hub.create_stream("elsewhere")
    assert await query.begin("r3", [7, 1, 2, 0], to="elsewhere") == [8, 1, 2, 0]


async def test_without_sources_only_the_run_counts(query: Query) -> None:
    await query.begin("r1", [0, 0])
    await query.append("r1", after=0, sequence=6)
    assert await query.live.begin(Begin("q", "r2", 0, "out")) == []
    assert query.hub.producers("out") == {}
    assert await query.position() == [6, 0]


async def test_rights_are_those_of_a_commit(query: Query) -> None:
    def user(right: str, stream: str) -> Principal:
        return Principal("ann", (), (Grant(rights=[right], streams=[stream]),))

    with acting_as(user("write", "out")), pytest.raises(Forbidden, match="read 'in'"):
        await query.begin("r1", [0, 0])
    with acting_as(user("read", "in")), pytest.raises(Forbidden, match="write 'out'"):
        await query.begin("r1", [0, 0])


async def test_position_and_lag_are_shown_while_a_batch_runs(query: Query) -> None:
    query.live.register()
    assert query.live.progress("c") is None
    for _ in range(10):
        await query.hub.append("in", Batch.one(b"x"))
    await query.begin("r1", [2, 0])
    await query.append("r1", after=2, sequence=6)
    assert query.live.progress("c") == (6, 4)
    assert query.live.progress("another") is None
    text = query.hub.metrics.text().decode()
    assert 'headrace_spark_position{partition="0",query="q",stream="in"} 6.0' in text
    assert 'headrace_spark_lag_records{partition="0",query="q",stream="in"} 4.0' in text
    await query.hub.delete_stream("in")
    assert query.live.progress("c") == (6, 0)
    await query.micro_batch("r2", 0, [6, 0], [9, 9])
    assert "headrace_spark_position{" not in query.hub.metrics.text().decode()
