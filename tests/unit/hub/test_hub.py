"""The hub's verbs, over the real log on a disk in memory."""

from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path

import pytest

from headrace.config import Config, Grant, Log
from headrace.errors import (
    BadRequest,
    ConditionFailed,
    DataDirectoryLocked,
    LimitExceeded,
    LogFailed,
    StreamExists,
    UnknownStream,
)
from headrace.hub import Hub
from headrace.hub.health import NOT_FOR_ALL
from headrace.log.batch import Batch
from headrace.log.ops import ABSENT, Append, Appended, Put, SaveCursor, StreamOptions
from headrace.log.report import Finding
from headrace.security import Principal
from headrace.testing import FaultyDisk, MemoryDisk, memory_hub

SMALL = Config(log=Log(segment_bytes=2_000, tail_bytes_max=8_000, disk_reserve_bytes=0, maintenance_interval_s=0.01))
TIMEOUT_S = 60.0


async def test_streams_are_created_listed_grown_and_deleted() -> None:
    async with memory_hub() as hub:
        info = await hub.create_stream("orders", 2, StreamOptions(labels={"team": "shop"}))
        assert (info.name, info.partitions, info.options.labels) == ("orders", 2, {"team": "shop"})
        assert await hub.create_stream("orders") == info
        with pytest.raises(StreamExists):
            await hub.create_stream("orders", exist_ok=False)
        await hub.create_table("state")
        assert [one.name for one in hub.streams()] == ["orders"]
        assert [one.name for one in hub.streams(kind=None)] == ["orders", "state"]
        assert [one.name for one in hub.streams("st*", kind="table")] == ["state"]
        assert (await hub.grow_stream("orders", 3)).partitions == 3
        assert (await hub.grow_stream("orders", 1)).partitions == 3
        assert (await hub.set_options("orders", StreamOptions(ack="durable"))).options == StreamOptions()
        await hub.delete_stream("orders")
        with pytest.raises(UnknownStream):
            hub.stream("orders")


async def test_appends_keep_their_order_and_are_durable_when_they_are_done() -> None:
    disk = MemoryDisk()
    async with memory_hub(disk=disk) as hub:
        await hub.create_stream("orders")
        futures = [hub.append("orders", Batch.one(str(number).encode())) for number in range(100)]
        assert [appended.first for appended in await asyncio.gather(*futures)] == list(range(100))
        left = disk.after_power_cut(random.Random(1))
    async with memory_hub(disk=left) as hub:
        records = await hub.read("orders", 0)
        assert records.column("payload").to_pylist() == [str(number).encode() for number in range(100)]


async def test_what_is_wrong_comes_back_through_the_future() -> None:
    async with memory_hub(Config(log=Log(record_bytes_max=10))) as hub:
        await hub.create_stream("s")
        with pytest.raises(LimitExceeded):
            await hub.append("s", Batch.one(b"x" * 11))
        with pytest.raises(UnknownStream):
            await hub.append("none", Batch.one(b""))
        with pytest.raises(BadRequest):
            await hub.transact([])
        refused = hub.metrics.text().decode()
        assert 'headrace_log_refused_total{code="limit-exceeded"} 1.0' in refused
        assert 'headrace_log_refused_total{code="unknown-stream"} 1.0' in refused


async def test_transactions_are_whole() -> None:
    async with memory_hub() as hub:
        await hub.create_stream("s")
        await hub.create_table("t")
        results = await hub.transact(
            [Append("s", Batch.one(b"x")), Put("t", b"k", b"v", ABSENT), SaveCursor("c", "s", 1)]
        )
        assert results == [Appended(0, 1, False), (True, None), 1]
        with pytest.raises(ConditionFailed):
            await hub.transact([Append("s", Batch.one(b"y")), Put("t", b"k", b"w", ABSENT)])
        assert hub.bounds("s") == (0, 1)


async def test_producers_are_remembered() -> None:
    async with memory_hub() as hub:
        await hub.create_stream("s")
        assert hub.producer("s", "p") is None
        await hub.append("s", Batch.one(b"x"), producer="p", sequence=3)
        assert (await hub.append("s", Batch.one(b"x"), producer="p", sequence=3)).duplicate
        assert hub.producer("s", "p") == 3
        assert hub.producers("s") == {"p": 3}
        before = hub.stored_bytes("s")
        await hub.append("s", Batch.one(b"x" * 1000), producer="q", sequence=9)
        assert hub.producers("s") == {"p": 3, "q": 9}
        assert hub.stored_bytes("s") >= before + 1000
        assert "headrace_log_duplicates_total 1.0" in hub.metrics.text().decode()


async def test_following_gets_what_is_there_and_what_comes() -> None:
    async with memory_hub() as hub:
        await hub.create_stream("s")
        await hub.append("s", Batch.of([b"0", b"1"]))
        seen: list[bytes] = []

        async def follow() -> None:
            async for records in hub.follow("s", 1):
                seen.extend(records.column("payload").to_pylist())
                if len(seen) == 5:
                    return

        task = asyncio.create_task(follow())
        for number in range(2, 6):
            await hub.append("s", Batch.one(str(number).encode()))
        await asyncio.wait_for(task, TIMEOUT_S)
        assert seen == [b"1", b"2", b"3", b"4", b"5"]


async def test_waiting_ends_with_a_record_or_with_the_hub() -> None:
    async with memory_hub() as hub:
        await hub.create_stream("s")
        waiting = asyncio.create_task(hub.wait("s", 0))
        cancelled = asyncio.create_task(hub.wait("s", 0))
        await asyncio.sleep(0)
        cancelled.cancel()
        await hub.append("s", Batch.one(b"x"))
        await asyncio.wait_for(waiting, TIMEOUT_S)
        await hub.wait("s", 0)
        forever = asyncio.create_task(hub.wait("s", 1))
        await asyncio.sleep(0)
    with pytest.raises(LogFailed):
        await forever
    with pytest.raises(LogFailed):
        await hub.wait("s", 1)


async def test_waiting_for_a_stream_and_its_partitions() -> None:
    async with memory_hub() as hub:
        await hub.create_table("orders")
        waits = [asyncio.ensure_future(hub.wait_stream("orders", partitions)) for partitions in (1, 2)]
        await asyncio.sleep(0)
        await hub.create_stream("other")
        await hub.delete_table("orders")
        await hub.create_table("orders")
        assert not any(wait.done() for wait in waits)
        await hub.delete_table("orders")
        await hub.create_stream("orders")
        assert (await asyncio.wait_for(waits[0], TIMEOUT_S)).partitions == 1
        assert not waits[1].done()
        await hub.grow_stream("orders", 2)
        assert (await asyncio.wait_for(waits[1], TIMEOUT_S)).partitions == 2
        assert (await hub.wait_stream("orders", 2)).name == "orders"
        never = asyncio.ensure_future(hub.wait_stream("never"))
        await asyncio.sleep(0)
    with pytest.raises(LogFailed):
        await never
    with pytest.raises(LogFailed):
        await hub.wait_stream("never")


async def test_waiting_ends_when_the_stream_is_deleted() -> None:
    async with memory_hub() as hub:
        await hub.create_stream("s")
        await hub.create_stream("other")
        waiting = [asyncio.create_task(hub.wait("s", 0)), asyncio.create_task(hub.wait_cursor("c", "s", 1))]
        unconcerned = asyncio.create_task(hub.wait("other", 0))
        await asyncio.sleep(0)
        await hub.delete_stream("s")
        for task in waiting:
            with pytest.raises(UnknownStream):
                await asyncio.wait_for(task, TIMEOUT_S)
        assert not unconcerned.done()
        unconcerned.cancel()


async def test_reading_from_segments_and_by_time() -> None:
    async with memory_hub(SMALL) as hub:
        await hub.create_stream("s")
        for number in range(100):
            await hub.append("s", Batch.one(str(number).encode().ljust(100)))
        for _ in range(1_000):
            if hub.segments("s"):
                break
            await asyncio.sleep(0.01)
        assert hub.segments("s")
        assert (await hub.read("s", 0, limit=1)).column("payload").to_pylist() == [b"0".ljust(100)]
        rows = await asyncio.to_thread(
            lambda: [row for batch in hub.scan("s", 10, 20, columns=["index"]) for row in batch.to_pylist()]
        )
        assert rows == [{"index": number} for number in range(10, 20)]
        assert await hub.index_at_time("s", 0) == 0
        assert await hub.index_at_time("s", hub.clock.now_us() + 1) == 100
        assert await hub.trim("s", 50) == 50
        assert (await hub.read("s", 0, limit=1)).column("index").to_pylist() == [50]


async def test_cursors_and_who_waits_for_them() -> None:
    async with memory_hub() as hub:
        await hub.create_stream("s")
        await hub.append("s", Batch.of([b"x"] * 5))
        waiting = asyncio.create_task(hub.wait_cursor("c", "s", 3))
        await asyncio.sleep(0)
        assert await hub.save_cursor("c", "s", 2) == 2
        assert not waiting.done()
        assert await hub.save_cursor("c", "s", 3) == 3
        await asyncio.wait_for(waiting, TIMEOUT_S)
        await hub.wait_cursor("c", "s", 3)
        assert await hub.save_cursor("c", "s", 1) == 3
        assert await hub.save_cursor("c", "s", 1, rewind=True) == 1
        assert hub.cursor("c", "s") == 1
        [info] = hub.cursors(stream="s")
        assert (info.name, info.lag) == ("c", 4)
        assert await hub.delete_cursor("c", "s")
        assert not await hub.delete_cursor("c", "s")
        assert hub.cursors() == []


async def test_acknowledgement_can_wait_for_a_pipeline() -> None:
    async with memory_hub() as hub:
        await hub.create_stream("s", options=StreamOptions(ack="processed:pipeline"))
        await hub.create_stream("now")
        appended = await hub.append("s", Batch.of([b"a", b"b"]))
        await hub.acknowledged("now", 0)
        waiting = asyncio.create_task(hub.acknowledged("s", appended.first + appended.count))
        await hub.save_cursor("pipeline", "s", 1)
        await asyncio.sleep(0)
        assert not waiting.done()
        await hub.save_cursor("pipeline", "s", 2)
        await asyncio.wait_for(waiting, TIMEOUT_S)


async def test_what_waits_for_a_pipeline_follows_the_option() -> None:
    """Who made the stream wait may let it go, or have it wait for another pipeline."""
    async with memory_hub() as hub:
        await hub.create_stream("s", options=StreamOptions(ack="processed:pipeline"))
        await hub.create_stream("other", options=StreamOptions(ack="processed:pipeline"))
        await hub.append("s", Batch.of([b"a", b"b"]))
        waiting = [asyncio.create_task(hub.acknowledged("s", index)) for index in (1, 2)]
        unconcerned = asyncio.create_task(hub.acknowledged("other", 1))
        await asyncio.sleep(0)
        await hub.set_options("s", StreamOptions(ack="processed:newer"))
        await hub.save_cursor("pipeline", "s", 2)
        await hub.save_cursor("newer", "s", 1)
        await asyncio.wait_for(waiting[0], TIMEOUT_S)
        assert not waiting[1].done(), "the cursor of the old pipeline counts no more"
        await hub.set_options("s", StreamOptions(ack="durable"))
        await asyncio.wait_for(waiting[1], TIMEOUT_S)
        assert not unconcerned.done()
        unconcerned.cancel()


async def test_who_waits_for_a_cursor_is_not_concerned_by_options() -> None:
    async with memory_hub() as hub:
        await hub.create_stream("s", options=StreamOptions(ack="processed:c"))
        await hub.append("s", Batch.of([b"x"] * 3))
        waiting = asyncio.create_task(hub.wait_cursor("c", "s", 3))
        await asyncio.sleep(0)
        await hub.set_options("s", StreamOptions(ack="durable"))
        await hub.save_cursor("c", "s", 2)
        assert not waiting.done()
        await hub.save_cursor("c", "s", 3)
        await asyncio.wait_for(waiting, TIMEOUT_S)


async def test_tables() -> None:
    async with memory_hub() as hub:
        await hub.create_table("t")
        await hub.create_table("t")
        await hub.create_stream("s")
        assert await hub.put("t", b"k", b"v") == (True, None)
        assert await hub.put("t", b"k", b"w", ABSENT) == (False, b"v")
        assert (hub.get("t", b"k"), hub.get("t", b"x"), hub.table_size("t")) == (b"v", None, 1)
        assert list(hub.items("t")) == [(b"k", b"v")]
        assert await hub.delete("t", b"k") == (True, b"v")
        with pytest.raises(BadRequest):
            await hub.create_table("s")
        with pytest.raises(BadRequest):
            await hub.delete_table("s")
        await hub.delete_table("t")
        with pytest.raises(UnknownStream):
            hub.get("t", b"k")


async def test_checkpoints() -> None:
    async with memory_hub() as hub:
        await hub.create_stream("s")
        writer = await hub.begin_checkpoint("s")
        await writer.write(b"a" * 1_500_000)
        info = await writer.commit(7, {"by": "test"})
        assert (info.position, info.size, info.meta) == (7, 1_500_000, {"by": "test"})
        assert hub.checkpoints("s") == [info]
        assert hub.checkpoints("other") == []
        assert b"".join([chunk async for chunk in hub.read_checkpoint(info.id)]) == b"a" * 1_500_000
        aborted = await hub.begin_checkpoint("s")
        await aborted.abort()
        await hub.delete_checkpoint(info.id)
        assert hub.checkpoints() == []


async def test_producers_are_held_back_when_the_disk_is_slower() -> None:
    config = Config(log=Log(queue_bytes_max=2_000))
    async with memory_hub(config) as hub:
        await hub.create_stream("s")
        futures = [hub.append("s", Batch.one(b"x" * 900)) for _ in range(2)]
        assert hub.congested
        await asyncio.wait_for(hub.drained(), TIMEOUT_S)
        assert not hub.congested
        await asyncio.gather(*futures)


async def test_damage_is_told_to_those_who_may_read_the_stream() -> None:
    async with memory_hub() as hub:
        for stream in ("secret", "orders"):
            await hub.create_stream(stream)
            found = Finding("damaged-records", f"{stream}: indexes 0 to 9", "", stream, 0, 0, 9)
            hub._log.recovered.findings.append(found)
        hub._log.recovered.findings.append(Finding("damaged-snapshot", "snapshot 7"))
        clerk, stranger = (Principal("", (), (Grant(rights=["read"], streams=[name]),)) for name in ("orders", "none"))
        assert hub.health.report(clerk).reasons == {
            "damage": "orders: indexes 0 to 9 (1 findings in what you may read)"
        }
        assert hub.health.report(stranger).reasons == {"damage": NOT_FOR_ALL}
        assert "secret" in hub.health.report().reasons["damage"]


async def test_a_data_directory_and_its_copy_are_their_owners(tmp_path: Path) -> None:
    data, copy = tmp_path / "deep" / "data", tmp_path / "copies" / "one"
    hub = await Hub.open(data)
    await hub.back_up(copy)
    await hub.close()
    assert [place.stat().st_mode & 0o777 for place in (data, copy)] == [0o700, 0o700]


async def test_a_failed_log_is_told_to_everyone() -> None:
    disk = FaultyDisk(MemoryDisk())
    hub = await Hub.open("memory", disk=disk)
    await hub.create_stream("s")
    waiting = asyncio.create_task(hub.wait("s", 0))
    await asyncio.sleep(0)
    disk.fail_all("sync", errno.EIO)
    with pytest.raises(LogFailed):
        await hub.append("s", Batch.one(b"x"))
    with pytest.raises(LogFailed):
        await waiting
    assert isinstance(await asyncio.wait_for(hub.failed(), TIMEOUT_S), LogFailed)
    report = hub.health.report()
    assert not report.ready
    assert "start again" in report.reasons["log"]
    with pytest.raises(LogFailed):
        await hub.append("s", Batch.one(b"x"))
    await hub.close()
    await hub.close()


async def test_metrics_and_health_tell_how_it_is() -> None:
    async with memory_hub() as hub:
        await hub.create_stream("s")
        await hub.create_table("t")
        await hub.append("s", Batch.of([b"x"] * 3))
        await hub.save_cursor("c", "s", 1)
        text = hub.metrics.text().decode()
        for line in (
            "headrace_log_records_total 3.0",
            "headrace_streams 1.0",
            "headrace_tables 1.0",
            "headrace_cursors 1.0",
            "headrace_cursor_lag_records_max 2.0",
        ):
            assert line in text
        assert hub.health.report().ready


async def test_a_directory_is_opened_once_and_comes_back(tmp_path: Path) -> None:
    hub = await Hub.open(tmp_path)
    await hub.create_stream("s")
    await hub.append("s", Batch.one(b"x"))
    with pytest.raises(DataDirectoryLocked):
        await Hub.open(tmp_path)
    await hub.close()
    hub = await Hub.open(tmp_path)
    assert hub.bounds("s") == (0, 1)
    await hub.close()


async def test_a_hub_with_as_many_streams_as_there_may_be_makes_its_own_tables() -> None:
    async with memory_hub(Config(log=Log(streams_max=2))) as hub:
        for name in ("a", "b"):
            await hub.create_stream(name)
        for make in (hub.create_stream, hub.create_table):
            with pytest.raises(LimitExceeded, match=r"log\.streams_max"):
                await make("c")
        await hub.create_table("spark/pipelines")
        assert hub.has_stream("spark/pipelines")
