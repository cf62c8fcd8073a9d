"""Table caches: times to live, also over a restart; which tables are caches."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.perper_peer import Served, key, put_listener, served
from support.until import until

from headrace.errors import DiskFull
from headrace.log.ops import DeleteStream, Op
from headrace.protocols.perper.catalogue import CATALOGUE_TABLE
from headrace.protocols.perper.errors import PeerError, Status
from headrace.protocols.perper.fabric.client import RpcError
from headrace.protocols.perper.ignite.binary import java_hash
from headrace.protocols.perper.ignite.configuration import Configuration
from headrace.protocols.perper.tables import EXPIRY_TABLE, TableCache
from headrace.testing.disk import MemoryDisk

UNCHANGED, ETERNAL = -2, -1


def ttl(create: int, update: int = UNCHANGED, access: int = UNCHANGED) -> dict[str, object]:
    return {"flags": 4, "expiry": (create, update, access)}


async def test_deadlines_survive_a_restart() -> None:
    disk = MemoryDisk()
    async with served(disk=disk) as pair:
        client = await pair.client()
        await client.request(1052, "t")
        await client.request(1001, key("short"), key(1), cache="t", **ttl(300))
        await client.request(1001, key("long"), key(1), cache="t", **ttl(3_600_000))
        await client.request(1001, key("ever"), key(1), cache="t")
        assert pair.hub.table_size(EXPIRY_TABLE) == 2
    async with served(disk=disk) as pair:
        client = await pair.client()
        await until(lambda: pair.hub.table_size("t") == 2)
        assert await client.request(1003, [key("short"), key("long"), key("ever")], cache="t") == [
            (key("long"), key(1)),
            (key("ever"), key(1)),
        ]
        assert pair.hub.table_size(EXPIRY_TABLE) == 1


@pytest.mark.parametrize("step", ["what it holds", "the rest"])
async def test_a_cache_that_a_full_disk_does_not_let_go_keeps_no_deadline_for_what_comes_later(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A later value would go with the deadline of an earlier one. Found by seed 663356 of the world."""
    disk = MemoryDisk()
    async with served(disk=disk) as pair:
        client, hub = await pair.client(), pair.fabric.hub
        await client.request(1052, "t")
        await client.request(1001, key("k"), key("old"), cache="t", **ttl(1_500))
        transact = hub.transact

        def refusing(operations: list[Op]) -> asyncio.Future[Any]:
            is_meant = isinstance(operations[0], DeleteStream) == (step == "what it holds")
            return full() if is_meant else transact(operations)

        with monkeypatch.context() as patch:
            patch.setattr(hub, "transact", refusing)
            patch.setattr(hub, "delete_stream", lambda name: refusing([DeleteStream(name)]))
            with pytest.raises(PeerError, match="disk-full"):
                await client.request(1056, java_hash("t"))
        await client.request(1052, "t")
        held = await client.request(1000, key("k"), cache="t")
        assert held == (key("old") if step == "what it holds" else b"\x65")
        await client.request(1001, key("k"), key("new"), cache="t")
    async with served(disk=disk) as pair:
        client = await pair.client()
        assert not list(pair.hub.items(EXPIRY_TABLE))
        assert await client.request(1000, key("k"), cache="t") == key("new")


async def test_an_entry_past_its_deadline_is_absent_at_once() -> None:
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "t")
        for name in ("a", "b", "c", "d"):
            await client.request(1001, key(name), key(1), cache="t", **ttl(0))
        assert await client.request(1000, key("a"), cache="t") == b"\x65"
        assert await client.request(1002, key("a"), key(2), cache="t") is True
        assert await client.request(1016, key("b"), cache="t") is False
        assert await client.request(1009, key("c"), key(2), cache="t") is False
        assert await client.request(1005, key("d"), key(2), cache="t") == b"\x65"
        page = await client.request(2000, b"\x65", 10, -1, False, cache="t")
        assert dict(page.rows) == {key("a"): key(2), key("d"): key(2)}


def full(*_: object) -> asyncio.Future[None]:
    refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    refused.set_exception(DiskFull("no room"))
    return refused


async def test_an_entry_that_cannot_be_removed_in_time_stays_past_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    async with served(disk=disk) as pair:
        client = await pair.client()
        await client.request(1052, "t")
        for name in ("gone", "again", "anew"):
            await client.request(1001, key(name), key("old"), cache="t", **ttl(1))
        with monkeypatch.context() as patch:
            patch.setattr(pair.fabric.hub, "transact", full)
            await asyncio.sleep(0.2)
            for name in ("gone", "again", "anew"):
                assert await client.request(1000, key(name), cache="t") == b"\x65"
        await client.request(1001, key("again"), key("new"), cache="t")
        await client.request(1001, key("anew"), key("new"), cache="t", **ttl(600_000))
        await until(lambda: pair.hub.table_size("t") == 2)
        await asyncio.sleep(0.1)
    async with served(disk=disk) as pair:
        client = await pair.client()
        await asyncio.sleep(0.1)
        await until(lambda: [name for name, _ in pair.hub.items(EXPIRY_TABLE)] == [b"t\0" + key("anew")])
        for name in ("again", "anew"):
            assert await client.request(1000, key(name), cache="t") == key("new")


async def test_a_new_entry_in_the_place_of_one_past_its_time_has_its_own_deadline() -> None:
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "t")
        for op in (1001, 1002):
            await client.request(1001, key(op), key("old"), cache="t", **ttl(1))
            await asyncio.sleep(0.01)
            await client.request(op, key(op), key("new"), cache="t", **ttl(600_000))
            assert pair.fabric.catalogue.expiries.has("t", key(op))
            assert await client.request(1000, key(op), cache="t") == key("new")


async def test_updates_and_reads_move_the_deadline() -> None:
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "t")
        await client.request(1001, key("kept"), key(1), cache="t", **ttl(100))
        await client.request(1001, key("kept"), key(2), cache="t")  # an ordinary put: for ever
        await client.request(1001, key("updated"), key(1), cache="t", **ttl(100, 3_600_000))
        await client.request(1001, key("updated"), key(2), cache="t", **ttl(100, 3_600_000))
        await client.request(1001, key("same"), key(1), cache="t", **ttl(100))
        await client.request(1001, key("same"), key(2), cache="t", **ttl(100, UNCHANGED))
        await client.request(1001, key("read"), key(1), cache="t", **ttl(100))
        await client.request(1000, key("read"), cache="t", **ttl(100, UNCHANGED, 3_600_000))
        await client.request(1001, key("witness"), key(1), cache="t", **ttl(120))
        await until(lambda: pair.hub.get("t", key("witness")) is None)
        left = {name for name, _ in pair.hub.items("t")}
        assert left == {key("kept"), key("updated"), key("read")}


async def test_conditions_and_deadlines_go_together() -> None:
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "t")
        assert await client.request(1002, key("a"), key(1), cache="t", **ttl(3_600_000)) is True
        assert await client.request(1002, key("a"), key(2), cache="t", **ttl(3_600_000)) is False
        assert await client.request(1010, key("a"), key(9), key(2), cache="t") is False
        assert await client.request(1010, key("a"), key(1), key(2), cache="t") is True
        assert await client.request(1004, [(key("b"), key(1))], cache="t", **ttl(3_600_000)) is None
        assert await client.request(1004, [(key("b"), key(2)), (key("c"), key(1))], cache="t") is None
        assert pair.hub.table_size(EXPIRY_TABLE) == 0
        await client.request(1001, key("d"), key(1), cache="t", **ttl(3_600_000))
        assert await client.request(1017, key("d"), key(1), cache="t") is True
        assert pair.hub.table_size(EXPIRY_TABLE) == 0


async def test_a_cache_that_expires_by_its_configuration_and_its_end() -> None:
    async with served() as pair:
        client = await pair.client()
        await client.request(1053, Configuration({0: "t", 407: (3_600_000, UNCHANGED, UNCHANGED)}))
        await client.request(1001, key("a"), key(1), cache="t")
        puts = [client.request(1001, key(number), key(1), cache="t") for number in range(5)]
        for put in puts:
            await put
        assert pair.hub.table_size(EXPIRY_TABLE) == 6
        await client.request(1056, next(iter(pair.fabric.catalogue.find_name("t").ids)))  # type: ignore[union-attr]
        assert pair.hub.table_size(EXPIRY_TABLE) == 0


async def test_listening_to_a_table_whose_entries_expire() -> None:
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "t")
        cache = pair.fabric.catalogue.find_name("t").cache  # type: ignore[union-attr]
        assert cache.keys.last() is None  # type: ignore[union-attr]
        await client.request(1001, key(7), key(1), cache="t", **ttl(20))
        assert cache.keys.last() == 7  # type: ignore[union-attr]
        await until(lambda: cache.keys.last() is None)  # type: ignore[union-attr]


async def test_who_begins_to_listen_misses_no_put_that_is_on_its_way() -> None:
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "t")
        await client.request(1001, key(1), key("x"), cache="t")
        entry = pair.fabric.catalogue.find_name("t")
        assert entry is not None
        cache = entry.cache
        assert isinstance(cache, TableCache)
        under_way = [cache.put(key(2), key("x")), cache.put_many([(key(3), key("x"))]), cache.delete(key(1))]
        told: list[list[int]] = []
        cache.watch(lambda: told.append(cache.keys.above(None, 10)))
        assert cache.keys.above(None, 10) == [1]
        for one in under_way:
            await one
        await until(lambda: cache.keys.above(None, 10) == [2, 3])
        assert [3 in keys for keys in told] == [False, True]


async def test_tables_that_are_no_caches_are_left_alone() -> None:
    async with served() as pair:
        client = await pair.client()
        await pair.hub.create_table("prices")
        await pair.hub.put("prices", b"apple", b"3")
        for op, argument in ((1051, "prices"), (1052, "prices")):
            with pytest.raises(PeerError, match="not a cache") as refused:
                await client.request(op, argument)
            assert refused.value.status == Status.CACHE_EXISTS
        await client.request(1053, Configuration({0: "prices"}))  # open: nobody knows yet what it is
        with pytest.raises(PeerError, match="not a cache"):
            await client.request(1001, key("apple"), key(4), cache="prices")
        assert pair.hub.get("prices", b"apple") == b"3"


@pytest.mark.parametrize("restarted", [False, True])
async def test_tables_that_are_no_caches_do_not_become_ones(restarted: bool) -> None:
    """Neither as a stream of items nor by a restart."""
    disk = MemoryDisk()
    async with served(disk=disk) as pair:
        client = await pair.client()
        await pair.hub.create_table("prices")
        await pair.hub.put("prices", b"apple", b"3")
        await client.request(1053, Configuration({0: "prices"}))
        if not restarted:
            await check_it_is_no_cache(pair)
            return
    async with served(disk=disk) as pair:
        await check_it_is_no_cache(pair)


async def check_it_is_no_cache(pair: Served) -> None:
    client, rpc = await pair.client(), await pair.rpc()
    for op in (1001, 1002):
        with pytest.raises(PeerError, match="not a cache") as refused:
            await client.request(op, key(1), key("x"), cache="prices")
        assert refused.value.status == Status.CACHE_EXISTS
    with pytest.raises(RpcError, match="not a cache"):
        await rpc.start("/perper.Fabric/StreamItems", {"stream": "prices"}).next()
    await put_listener(client, "l", "prices", 0)
    await client.request(1016, key("l"), cache="stream-listeners")
    await client.request(1013, cache="prices")
    await client.request(1056, java_hash("prices"))
    assert list(pair.hub.items("prices")) == [(b"apple", b"3")]
    assert pair.hub.bounds("prices").first == 0


async def test_a_table_left_over_from_a_creation_that_was_cut_short() -> None:
    disk = MemoryDisk()
    async with served(disk=disk) as pair:
        client = await pair.client()
        await client.request(1052, "t")
        await pair.hub.delete(CATALOGUE_TABLE, b"t")  # as if the hub had died before it was written down
        dead = disk.after_kill()
    async with served(disk=dead) as pair:
        client = await pair.client()
        assert "t" not in await client.request(1050)
        await client.request(1051, "t")
        await client.request(1001, key(1), key(2), cache="t")
        assert await client.request(1000, key(1), cache="t") == key(2)


async def test_a_key_whose_newest_value_is_damaged_is_an_error_until_it_is_put_again() -> None:
    disk = MemoryDisk()
    async with served(disk=disk) as pair:
        client = await pair.client()
        await client.request(1052, "t")
        await client.request(1001, key("k"), key("old"), cache="t")
        await client.request(1001, key("k"), key("the newest value"), cache="t")
    for path in disk.paths():
        disk.put(path, disk.read(path).replace(b"the newest value", b"the newest valse"))
    async with served(disk=disk) as pair:
        client = await pair.client()
        for operation, *value in ((1000,), (1002, key("x")), (1005, key("x")), (1007,), (1016,)):
            with pytest.raises(PeerError, match="are damaged on disk"):
                await client.request(operation, key("k"), *value, cache="t")
        await client.request(1001, key("k"), key("new"), cache="t")
        assert await client.request(1000, key("k"), cache="t") == key("new")
