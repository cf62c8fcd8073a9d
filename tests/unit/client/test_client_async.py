"""The async twin against a real hub over a real socket."""

import asyncio
import inspect

import pytest

import headrace
from headrace import errors
from headrace.client import (
    AsyncCursor,
    AsyncReader,
    AsyncTable,
    AsyncWriter,
    Cursor,
    Reader,
    Table,
    Writer,
    asynchronous,
)


@pytest.fixture
async def hub(served):
    async with headrace.connect_async(served.address) as client:
        await client.create("orders", partitions=2)
        yield client


async def test_the_whole_way(hub, served):
    assert hub.address == served.address
    assert (await hub.append("orders", [b"a", "b"])).first == 0
    assert (await hub.append("orders", b"c", producer="p", sequence=1)).first == 2
    assert await hub.producer_sequence("orders", "p") == 1
    reader = await hub.read("orders", partition=0)
    assert [record.payload async for record in reader] == [b"a", b"b", b"c"]
    assert reader.position == 3
    assert reader.schema.names[0] == "index"
    assert (await (await hub.read("orders")).to_arrow()).num_rows == 3
    assert len(await (await hub.read("orders")).to_pandas()) == 3
    assert len(await (await hub.read("orders", limit=2)).to_list()) == 2
    assert await hub.bounds("orders") == (0, 3)
    assert await hub.index_at_time("orders", 0) == 0
    assert (await hub.segments("orders", partition=0)).stream == "orders"


async def test_streams(hub):
    await hub.create("other")
    assert [each.name for each in await hub.streams()] == ["orders", "other"]
    assert (await hub.grow("other", 2)).partitions == 2
    assert (await hub.set_options("other", {"retention_bytes": 9})).options.retention_bytes == 9
    await hub.append("other", [b"a", b"b"])
    assert await hub.trim("other", 1) == (1, 2)
    assert (await hub.describe("other")).records == 1
    await hub.delete("other")
    with pytest.raises(errors.UnknownStream):
        await hub.call("stream.describe", {"stream": "other"})


async def test_follow_and_cancel(hub):
    async with await hub.follow("orders") as reader:
        waiting = asyncio.create_task(reader.next_batch())
        await hub.append("orders", b"live")
        assert (await waiting).num_rows == 1
        with pytest.raises(errors.Busy):
            await reader.next_batch(0.01)
        waiting = asyncio.create_task(reader.next_batch())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_a_reader_with_a_cursor(hub):
    await hub.append("orders", [b"a", b"b"])
    reader = await hub.read("orders", cursor="mill")
    async for _ in reader:
        break
    assert await reader.save() == 1
    assert await hub.cursor("mill", "orders").get() == 1


async def test_a_writer(hub):
    async with await hub.writer("orders", producer="w", sequence=0) as writer:
        futures = [await writer.append([b"x"] * 10) for _ in range(20)]
        await writer.flush()
    results = await asyncio.gather(*futures)
    assert [result.first for result in results] == list(range(0, 200, 10))
    writer = await hub.writer("nowhere")
    with pytest.raises(errors.UnknownStream):  # of the append or of its future, whichever comes after the refusal
        await (await writer.append(b"x"))
    with pytest.raises(errors.UnknownStream):
        await writer.close()


async def test_cursors_and_tables(hub):
    cursor = hub.cursor("mill", "orders")
    await hub.append("orders", [b"a", b"b"])
    assert await cursor.save(2) == 2
    assert (await cursor.reset("earliest", dry_run=True)).read_again == 2
    assert [info.name for info in await hub.cursors()] == ["mill"]
    assert [info.name async for info in hub.iter_cursors()] == ["mill"]
    assert [info.name async for info in hub.iter_streams("ord*")] == ["orders"]
    assert [info.name async for info in hub.iter_tables()] == []
    await cursor.delete()
    assert await hub.cursors() == []
    table = await hub.create_table("prices")
    assert (await table.put("pear", "3")).applied
    assert await hub.table("prices").get("pear") == b"3"
    assert await table.items() == [(b"pear", b"3")]
    assert (await table.delete("pear")).applied
    assert await table.put_many({"fig": "1", "plum": "2"}) == 2
    assert await table.delete_many(["fig"]) == 1
    assert await table.clear() == 1
    assert len(await hub.tables()) == 1
    await table.drop()
    assert await hub.tables() == []


@pytest.mark.parametrize(
    ("sync", "twin"),
    [
        (headrace.Client, headrace.AsyncClient),
        (Reader, AsyncReader),
        (Writer, AsyncWriter),
        (Cursor, AsyncCursor),
        (Table, AsyncTable),
    ],
)
def test_the_twins_have_the_same_methods_and_arguments(sync, twin):
    only_for_handles = {"request", "retire", "send"}
    for name, method in inspect.getmembers(sync, inspect.isfunction):
        if name.startswith("_") or name in only_for_handles:
            continue
        other = getattr(twin, name)
        assert list(inspect.signature(method).parameters) == list(inspect.signature(other).parameters), name


async def test_whoever_stops_waiting_for_a_batch_does_not_stop_the_writer(hub):
    async with await hub.writer("orders") as writer:
        for _ in range(20):
            (await writer.append(b"x")).cancel()
        last = await writer.append(b"last")
        assert (await asyncio.wait_for(last, 60)).first == 20


async def test_however_many_follow_the_client_can_be_used(hub):
    readers = [await hub.follow("orders") for _ in range(asynchronous.THREADS_MAX + 1)]
    following = [asyncio.create_task(reader.next_batch()) for reader in readers]
    await asyncio.sleep(0.1)
    try:
        await asyncio.wait_for(hub.append("orders", b"x"), 60)
        batches = await asyncio.wait_for(asyncio.gather(*following), 60)
        assert {batch.num_rows for batch in batches} == {1}
    finally:
        for reader in readers:
            await reader.close()


async def test_a_reader_that_was_closed_has_nothing_more(hub):
    reader = await hub.follow("orders")
    await reader.close()
    assert await reader.next_batch() is None
