"""Operations of the Ignite listener: what they count and refuse as Ignite does, and caches that somebody deletes."""

from __future__ import annotations

import asyncio
import struct

import pytest
from support.perper_peer import key, new_stream, put_execution, put_listener, served

from headrace.config import Config, Perper
from headrace.log.batch import Batch
from headrace.protocols.perper.errors import PeerError
from headrace.protocols.perper.ignite.binary import encode_byte_array
from headrace.testing import MemoryDisk


async def test_values_with_too_many_elements_are_refused_and_the_connection_goes_on() -> None:
    async with served(Config(perper=Perper(elements_max=1_000))) as pair:
        client = await pair.client()
        await client.request(1052, "kv")
        nulls = b"\x17" + struct.pack("<ii", -1, 1_001) + b"\x65" * 1_001
        refused = [
            client.request(1001, key(1), nulls, cache="kv"),
            client.request(1004, [(key(n), key(n)) for n in range(1_001)], cache="kv"),
            client.request(1003, [key(n) for n in range(1_001)], cache="kv"),
            client.request(
                1004, [(key(n), b"\x18" + struct.pack("<ib", 500, 1) + b"\x65" * 500) for n in (1, 2)], cache="kv"
            ),
        ]
        for answer in await asyncio.gather(*refused, return_exceptions=True):
            assert isinstance(answer, PeerError)
            assert "perper.elements_max" in answer.message
        await client.request(1004, [(key(n), key(n)) for n in range(1_000)], cache="kv")
        assert await client.request(1020, b"", cache="kv") == 1_000


ALL, NEAR, PRIMARY, BACKUP, ONHEAP, OFFHEAP = range(6)


@pytest.mark.parametrize(
    ("modes", "seen"),
    [
        ([], True),
        ([ALL], True),
        ([PRIMARY], True),
        ([OFFHEAP], True),
        ([PRIMARY, BACKUP], True),
        ([ONHEAP, OFFHEAP], True),
        ([NEAR, ALL], True),
        ([NEAR], False),
        ([BACKUP], False),
        ([NEAR, BACKUP, OFFHEAP], False),
        ([ONHEAP], False),
        ([PRIMARY, ONHEAP], False),
    ],
)
async def test_peek_modes_of_one_node(modes: list[int], seen: bool) -> None:
    """As Ignite answers on one node without a near cache, backups and an on-heap cache."""
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "kv")
        await client.request(1001, key(1), key("x"), cache="kv")
        assert await client.request(1020, bytes(modes), cache="kv") == (1 if seen else 0)
        assert await client.request(1021, key(1), bytes(modes), cache="kv") == (key("x") if seen else b"\x65")
        with pytest.raises(PeerError, match="peekMode"):
            await client.request(1020, bytes([*modes, 6]), cache="kv")


@pytest.mark.parametrize("size", [0, -1, -(2**31)])
async def test_pages_without_rows_are_refused(size: int) -> None:
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "kv")
        with pytest.raises(PeerError, match="Page size must be above zero") as refused:
            await client.request(2000, b"\x65", size, -1, False, cache="kv")
        assert refused.value.status == 1


async def test_tables_of_the_fabric_that_somebody_deletes_are_made_again() -> None:
    async with served() as pair:
        client = await pair.client()
        await put_execution(client, "old")
        await put_listener(client, "old", "s", 1)
        for table in ("executions", "stream-listeners"):
            await pair.hub.delete_table(table)
            assert await client.request(1020, b"", cache=table) == 0
        assert pair.fabric.executions.get("old") is None
        assert pair.fabric.listeners.get("old") is None
        await put_execution(client, "new")
        await put_listener(client, "new", "s", 1)
        assert pair.fabric.executions.get("new") is not None
        assert pair.fabric.listeners.of_stream("s") == {"new": 1}


@pytest.mark.parametrize("garbage", [b"", b"\x17g", b"\x18\x05\x00\x00\x00\x01g"])
async def test_values_that_are_no_objects_are_refused_and_the_connection_goes_on(garbage: bytes) -> None:
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "table")
        await pair.hub.put("table", key(0), garbage)
        await new_stream(client, "stream")
        await client.request(1002, key(7), key("x"), cache="stream")
        await pair.hub.append("stream", Batch.one(garbage, id=0, type="ignite"))
        for cache in ("table", "stream"):
            with pytest.raises(PeerError, match="not an Ignite object"):
                await client.request(1000, key(0), cache=cache)
        assert await client.request(1000, key(7), cache="stream") == key("x")


async def test_a_hub_starts_without_the_tables_of_the_fabric() -> None:
    disk = MemoryDisk()
    async with served(disk=disk) as pair:
        await put_execution(await pair.client(), "old")
        for table in ("executions", "stream-listeners"):
            await pair.hub.delete_table(table)
    async with served(disk=disk) as pair:
        client = await pair.client()
        assert await client.request(1020, b"", cache="executions") == 0
        await put_execution(client, "new")
        await put_listener(client, "new", "s", 1)
        assert pair.fabric.executions.ids() == pair.fabric.listeners.ids() == ["new"]


async def test_what_another_makes_in_the_place_of_a_deleted_cache_is_not_the_cache() -> None:
    async with served() as pair:
        client = await pair.client()
        for name in ("stream", "table"):
            await client.request(1052, name)
            await client.request(1001, key(1), key("x"), cache=name)
            await pair.hub.delete_table(name)
        await pair.hub.create_stream("stream")
        appended = await pair.hub.append("stream", Batch.one(b"theirs"))
        assert await client.request(1000, key(appended.first), cache="stream") == encode_byte_array(b"theirs")
        await pair.hub.create_table("table")
        with pytest.raises(PeerError) as refused:
            await client.request(1001, key(1), key("x"), cache="table")
        assert refused.value.status == 1000
        with pytest.raises(PeerError, match="which is not a cache"):
            await client.request(1052, "table")
        await pair.hub.delete_stream("stream")
        await pair.hub.delete_table("table")
        for name in ("stream", "table"):
            await client.request(1051, name)
            await client.request(1001, key(2), key("y"), cache=name)
            assert await client.request(1020, b"", cache=name) == 1


async def test_a_deleted_cache_is_not_named() -> None:
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "kv")
        await pair.hub.delete_table("kv")
        assert "kv" not in await client.request(1050)
        await client.request(1051, "kv")  # it is new
        assert "kv" in await client.request(1050)


async def test_a_cache_deleted_behind_our_back() -> None:
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "kv")
        await pair.hub.delete_table("kv")
        with pytest.raises(PeerError) as refused:
            await client.request(1000, key(1), cache="kv")
        assert refused.value.status == 1000
        await client.request(1052, "kv")  # it can be made again
        await client.request(1001, key(1), key("x"), cache="kv")
        assert await client.request(1000, key(1), cache="kv") == key("x")
