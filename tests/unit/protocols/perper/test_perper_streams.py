"""Stream caches: one stream each, and every key-value operation on top of it."""

from __future__ import annotations

import asyncio
import errno
import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.perper_peer import Served, key, new_stream, put_listener, served
from support.until import until, wait_until

from headrace.errors import UnknownStream
from headrace.log.batch import Batch
from headrace.log.ops import DeleteStream, StreamOptions
from headrace.protocols.perper import view_ids
from headrace.protocols.perper.catalogue import _place_of, _view_name
from headrace.protocols.perper.errors import PeerError
from headrace.protocols.perper.ignite.binary import encode_byte_array
from headrace.protocols.perper.stream_view import IndexKeys
from headrace.protocols.perper.streams import RECENT_ENTRY_BYTES, RecentValues, StreamCache
from headrace.testing.disk import FaultyDisk, MemoryDisk


async def opened(pair: Served, name: str = "s") -> Any:
    client = await pair.client()
    await new_stream(client, name)
    await client.request(1002, key(0), key("v0"), cache=name)
    return client


def cache_of(pair: Served, name: str = "s") -> StreamCache:
    entry = pair.fabric.catalogue.find_name(name)
    assert entry is not None
    assert isinstance(entry.cache, StreamCache)
    return entry.cache


async def test_items_that_arrive_together_are_one_batch() -> None:
    async with served() as pair:
        await opened(pair)
        cache = cache_of(pair)
        added = cache.add_new([(key(number), key("x")) for number in range(1, 500)])
        assert added is not None
        assert cache.add_new([(key(5), key("pending"))]) is None
        assert cache.add_new([(key(0), key("there"))]) is None
        assert cache.add_new([(key(1000), key("twice")), (key(1000), key("twice"))]) is None
        await added
        assert cache.size() == 500
        times = (await pair.hub.read("s", 0, limit=1000)).column("time").to_pylist()
        assert len(set(times[1:])) == 1  # one batch, one time
        await cache.put_many([(key(2000), key("a")), (key(2001), key("b"))])
        await cache.put_many([(key(2000), key("c")), (key(2002), key("d"))])
        assert cache.size() == 503


async def test_puts_pipelined_over_the_wire() -> None:
    async with served() as pair:
        client = await opened(pair)
        answers = await asyncio.gather(
            *[client.request(1002, key(number), key(f"v{number}"), cache="s") for number in (1, 2, 3, 2, 4, 0, 5)]
        )
        assert answers == [True, True, True, False, True, False, True]
        assert await client.request(1000, key(2), cache="s") == key("v2")


async def test_any_mix_of_operations_behaves_as_a_map() -> None:
    source = random.Random(5)
    disk = MemoryDisk()
    model: dict[bytes, bytes] = {}
    keys = [key(number) for number in range(-3, 12)] + [key("a"), key("b")]
    async with served(disk=disk) as pair:
        client = await opened(pair)
        model[key(0)] = key("v0")
        for step in range(300):
            name, value = source.choice(keys), key(f"v{step}")
            action = source.randrange(6)
            before = model.get(name)
            if action == 0:
                await client.request(1001, name, value, cache="s")
                model[name] = value
            elif action == 1:
                assert await client.request(1002, name, value, cache="s") is (before is None)
                model.setdefault(name, value)
            elif action == 2:
                assert await client.request(1016, name, cache="s") is (before is not None)
                model.pop(name, None)
            elif action == 3:
                assert await client.request(1005, name, value, cache="s") == (before or b"\x65")
                model[name] = value
            elif action == 4:
                assert await client.request(1009, name, value, cache="s") is (before is not None)
                if before is not None:
                    model[name] = value
            else:
                assert await client.request(1000, name, cache="s") == (before or b"\x65")
        page = await client.request(2000, b"\x65", 1000, -1, False, cache="s")
        assert dict(page.rows) == model
    async with served(disk=disk) as pair:  # and the stream alone gives it back
        client = await pair.client()
        page = await client.request(2000, b"\x65", 1000, -1, False, cache="s")
        assert dict(page.rows) == model
        assert await client.request(1020, b"", cache="s") == len(model)


async def test_a_failing_disk_fails_the_puts_and_keeps_the_rest() -> None:
    disk = FaultyDisk(MemoryDisk())
    async with served(disk=disk) as pair:
        client = await opened(pair)
        disk.fail_all("sync", errno.EIO)
        puts = [client.request(1002, key(number), key("x"), cache="s") for number in (1, 2, 3)]
        for answer in await asyncio.gather(*puts, return_exceptions=True):
            assert isinstance(answer, PeerError)
        cache = cache_of(pair)
        assert cache.size() == 1
        assert not cache._pending
        assert await client.request(1000, key(0), cache="s") == key("v0")


async def test_items_of_a_deleted_stream() -> None:
    async with served() as pair:
        client = await opened(pair)
        await pair.hub.delete_stream("s")
        with pytest.raises(PeerError) as refused:
            await client.request(1002, key(1), key("x"), cache="s")
        assert refused.value.status == 1000


@pytest.mark.parametrize("others", [False, True])
async def test_a_put_is_answered_when_its_stream_is_deleted_in_the_same_breath(others: bool) -> None:
    async with served() as pair:
        await opened(pair)
        if others:
            pair.hub.append("s", Batch.of([b"raw"]))
        put = cache_of(pair).put(key(1), key("x"))
        await asyncio.sleep(0)
        deleted = pair.hub.transact([DeleteStream("s")])
        wait_until(lambda: not pair.hub.has_stream("s"))  # both are on disk before this loop hears of either
        with pytest.raises(UnknownStream):
            await asyncio.wait_for(put, 60)
        await deleted


async def test_a_put_that_is_never_processed_is_not_acknowledged() -> None:
    async with served() as pair:
        await opened(pair)
        await pair.hub.set_options("s", StreamOptions(ack="processed:worker"))
        put = cache_of(pair).put(key(1), key("x"))
        await until(lambda: pair.hub.bounds("s").next == 2)
        await pair.hub.delete_stream("s")
        with pytest.raises(UnknownStream):
            await asyncio.wait_for(put, 60)


async def test_others_append_while_somebody_listens() -> None:
    async with served() as pair:
        client, rpc = await opened(pair), await pair.rpc()
        call = rpc.start("/perper.Fabric/StreamItems", {"stream": "s", "startKey": 0, "stride": 0})
        assert (await call.next()).key == 0
        await pair.hub.append("s", Batch.of([b"raw"], ids=[50]))
        assert (await asyncio.wait_for(call.next(), 60)).key == 50
        assert await client.request(1000, key(50), cache="s") == encode_byte_array(b"raw")
        both = [client.request(1002, key(60), key("x"), cache="s"), pair.hub.append("s", Batch.of([b"raw"], ids=[70]))]
        await asyncio.gather(*both)
        assert [(await asyncio.wait_for(call.next(), 60)).key for _ in range(2)] == [60, 70]
        call.cancel()
        await until(lambda: cache_of(pair)._follower is None)


async def test_items_come_from_the_log_when_they_are_not_recent() -> None:
    async with served() as pair:
        client = await opened(pair)
        cache = cache_of(pair)
        cache._recent._values.clear()
        assert await client.request(1000, key(0), cache="s") == key("v0")
        await pair.hub.trim("s", 1)  # behind the cache's back
        assert await client.request(1000, key(0), cache="s") == b"\x65"


async def test_items_that_retention_has_removed_are_gone() -> None:
    async with served() as pair:
        client, rpc = await opened(pair), await pair.rpc()
        cache = cache_of(pair)
        await cache.put_many([(key(number), key("x")) for number in range(1, 10)])
        await cache.put(key("text"), key("x"))
        await pair.hub.trim("s", 5)
        assert await client.request(1011, key(4), cache="s") is False
        assert await client.request(1011, key(5), cache="s") is True
        assert await client.request(1020, b"", cache="s") == 6
        call = rpc.start("/perper.Fabric/StreamItems", {"stream": "s", "startKey": 0, "stride": 0})
        assert (await call.next()).key == 5
        await pair.hub.trim("s", 11)
        await client.request(1002, key(20), key("new"), cache="s")
        assert (len(cache._keys), len(cache._others)) == (1, 0)  # nothing is kept for what is gone


def test_recent_values_are_bounded() -> None:
    recent = RecentValues(16 * (100 + RECENT_ENTRY_BYTES))
    for index in range(100):
        recent.put("s", index, bytes(100))
    recent.put("s", 1000, bytes(101 + RECENT_ENTRY_BYTES))  # too large a part of all
    assert sum(recent.get("s", index) is not None for index in range(100)) == 16
    assert recent.get("s", 99) == bytes(100)
    assert recent.get("s", 1000) is None


def test_many_small_recent_values_are_bounded_too() -> None:
    tracemalloc.start()
    try:
        recent = RecentValues(1_000_000)
        for index in range(1000, 101_000):
            recent.put("s", index, index.to_bytes(5, "little"))
        assert tracemalloc.get_traced_memory()[0] < 1_500_000
    finally:
        tracemalloc.stop()


async def test_the_keys_of_another_protocols_stream() -> None:
    async with served() as pair:
        await pair.hub.create_stream("o")
        keys = IndexKeys(pair.hub, "o")
        assert (keys.first(), keys.last(), keys.above(None, 5), keys.run(0, 1, 5)) == (None, None, [], [])
        await pair.hub.append("o", Batch.of([b""] * 10))
        await pair.hub.trim("o", 3)
        assert (keys.first(), keys.last()) == (3, 9)
        assert keys.above(5, 2) == [6, 7]
        assert keys.above(None, 2, 8) == [8, 9]
        assert keys.run(0, 2, 10) == [4, 6, 8]
        assert keys.run(5, -1, 10) == [5, 4, 3]
        assert keys.run(20, 1, 10) == []


async def test_a_view_refuses_every_change() -> None:
    async with served() as pair:
        client = await pair.client()
        await pair.hub.create_stream("o")
        await pair.hub.append("o", Batch.of([b"x"]))
        for op, arguments in (
            (1001, (key(1), key(1))),
            (1004, ([(key(1), key(1))],)),
            (1016, (key(0),)),
            (1018, ([key(0)],)),
            (1013, ()),
            (1019, ()),
        ):
            with pytest.raises(PeerError, match="another protocol"):
                await client.request(op, *arguments, cache="o")
        assert await client.request(1011, key(0), cache="o") is True
        assert await client.request(1011, key(1), cache="o") is False
        assert await client.request(1000, key("text"), cache="o") == b"\x65"
        assert await client.request(1003, [key(0), key(5)], cache="o") == [(key(0), encode_byte_array(b"x"))]
        await client.request(1052, "o")  # get or create finds it
        with pytest.raises(PeerError, match="already started"):
            await client.request(1051, "o")
        await pair.hub.delete_stream("o")
        with pytest.raises(PeerError, match="does not exist"):
            await client.request(1000, key(0), cache="o")


async def test_the_partitions_of_another_protocols_stream() -> None:
    async with served() as pair:
        client, rpc = await pair.client(), await pair.rpc()
        await pair.hub.create_stream("o", partitions=3)
        await pair.hub.append("o", Batch.of([b"zero"]))
        await pair.hub.append("o", Batch.of([b"two", b"more"]), partition=2)
        assert await client.request(1000, key(1), cache="o;partition=2") == encode_byte_array(b"more")
        assert await client.request(1020, b"", cache="o") == 1
        assert await client.request(1020, b"", cache="o;partition=1") == 0
        names = await client.request(1050)
        assert [name for name in names if name.startswith("o")] == ["o", "o;partition=1", "o;partition=2"]
        with pytest.raises(PeerError, match="does not exist"):
            await client.request(1020, b"", cache="o;partition=3")
        call = rpc.start("/perper.Fabric/StreamItems", {"stream": "o;partition=2", "startKey": 0, "stride": 1})
        assert [(await call.next()).key for _ in range(2)] == [0, 1]
        await pair.hub.append("o", Batch.of([b"new"]), partition=2)
        assert (await asyncio.wait_for(call.next(), 60)).key == 2
        await put_listener(client, "l", "o;partition=2", 2)
        assert [(c.name, c.partition, c.index) for c in pair.hub.cursors(stream="o")] == [("l", 2, 2)]
        await client.request(1016, key("l"), cache="stream-listeners")
        await until(lambda: not pair.hub.cursors(stream="o"))


async def test_streams_of_one_cache_id_are_not_taken_for_each_other() -> None:
    """`Aa` and `BB` have one hash in Java, and a thin client sends nothing else."""
    async with served() as pair:
        client, rpc, hub = await pair.client(), await pair.rpc(), pair.hub
        await hub.create_stream("Aa")
        await hub.append("Aa", Batch.of([b"of Aa"]))
        assert await client.request(1000, key(0), cache="Aa") == encode_byte_array(b"of Aa")
        await hub.create_stream("BB")
        for name in ("Aa", "BB", "BB"):
            with pytest.raises(PeerError, match="2 streams have the cache id"):
                await client.request(1000, key(0), cache=name)
        call = rpc.start("/perper.Fabric/StreamItems", {"stream": "Aa", "startKey": 0, "stride": 1})
        assert (await call.next()).key == 0  # who sends names can
        await hub.delete_stream("BB")
        assert await client.request(1000, key(0), cache="Aa") == encode_byte_array(b"of Aa")


async def test_a_number_that_means_nothing_costs_no_walk_over_all_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as pair:
        client, hub = await pair.client(), pair.hub
        for number in range(5):
            await hub.create_stream(f"s{number}")
        hashed: list[str] = []
        java_hash = view_ids.java_hash
        monkeypatch.setattr(view_ids, "java_hash", lambda name: hashed.append(name) or java_hash(name))

        async def unknown() -> int:
            hashed.clear()
            with pytest.raises(PeerError, match="does not exist"):
                await client.request(1000, key(0), cache=123456)
            return len(hashed)

        assert await unknown() >= 5
        assert await unknown() == 0
        await hub.create_stream("one more", partitions=2)
        assert await unknown() == 2
        await hub.grow_stream("s3", 4)
        assert await unknown() >= 8
        assert await client.request(1020, b"", cache="s3;partition=3") == 0


async def test_partitions_and_streams_that_are_called_alike_never_meet() -> None:
    async with served() as pair:
        client, hub = await pair.client(), pair.hub
        places = {
            "o;partition=2": ("o", 2),
            "o:2": ("o:2", 0),
            "o;partition=2;partition=0": ("o;partition=2", 0),
            "o;partition=2;partition=1": ("o;partition=2", 1),
        }
        for stream, partitions in (("o", 3), ("o:2", 1), ("o;partition=2", 2)):
            await hub.create_stream(stream, partitions=partitions)
        for name, (stream, partition) in places.items():
            await hub.append(stream, Batch.of([name.encode()]), partition=partition)
        for name in places:
            assert await client.request(1000, key(0), cache=name) == encode_byte_array(name.encode())
        assert places.keys() <= set(await client.request(1050))
        with pytest.raises(PeerError, match="does not exist"):
            await client.request(1020, b"", cache="o;partition=0")
        with pytest.raises(PeerError, match="are those of partitions"):
            await client.request(1052, "new;partition=1")


NAME = st.text("o;", max_size=3).flatmap(
    lambda text: st.sampled_from([text, text + ";partition=1", text + ";partition=0"])
)


@given(NAME, st.integers(0, 3), NAME, st.integers(0, 3))
def test_no_two_partitions_have_one_name(stream: str, partition: int, other: str, number: int) -> None:
    name = _view_name(stream, partition)
    assert _place_of(name) == (stream, partition)
    assert (name == _view_name(other, number)) == ((stream, partition) == (other, number))
