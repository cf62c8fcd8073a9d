"""Many entries of a table cache at once: one change of the log each, with their deadlines, listeners and scans."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.perper_peer import Served, key, put_listener, served
from support.until import until

from headrace.errors import DiskFull
from headrace.hub import Hub, turns
from headrace.log import ops
from headrace.protocols.perper import tables
from headrace.protocols.perper.bulk import Entries, Keys
from headrace.protocols.perper.errors import PeerError
from headrace.protocols.perper.ignite.binary import java_hash
from headrace.protocols.perper.ignite.client import IgniteClient
from headrace.protocols.perper.ignite.codec import Request
from headrace.protocols.perper.ignite.operations import AT_ONCE_MAX, Operations, Pending
from headrace.protocols.perper.ignite.reader import Reader
from headrace.protocols.perper.ignite.shapes import PARTS
from headrace.protocols.perper.tables import EXPIRY_TABLE, TableCache
from headrace.security.admission import Nobody
from headrace.testing.disk import MemoryDisk

PUT_ALL, CLEAR, CLEAR_KEYS, REMOVE_KEYS, REMOVE_ALL, SCAN, PAGE, SIZE = 1004, 1013, 1015, 1018, 1019, 2000, 2001, 1020
GET_ALL, CONTAINS_ALL = 1003, 1012
LONG_LIFE = {"flags": 4, "expiry": (3_600_000, -2, -2)}


class Recorded:
    """The transactions that a hub was asked for."""

    def __init__(self, pair: Served) -> None:
        self.transactions: list[list[ops.Op]] = []
        pair.hub.hooks.submit.append(lambda protocol, operations, token: self.transactions.append(list(operations)))

    def kinds(self) -> list[list[str]]:
        """Of what changed caches, with what was asked for until now forgotten."""
        taken, self.transactions = self.transactions, []
        return [[type(operation).__name__ for operation in operations] for operations in taken]


async def filled(client: IgniteClient, count: int, **more: Any) -> list[bytes]:
    await client.request(1052, "t")
    keys = [key(number) for number in range(count)]
    await client.request(PUT_ALL, [(one, one) for one in keys], cache="t", **more)
    return keys


async def size(client: IgniteClient) -> int:
    return int(await client.request(SIZE, b"", cache="t"))


async def test_bulk_changes_are_one_operation_each() -> None:
    async with served() as pair:
        client = await pair.client()
        recorded = Recorded(pair)
        keys = await filled(client, 1_000)
        assert recorded.kinds()[-1] == ["PutMany"]
        await client.request(REMOVE_KEYS, keys[:300], cache="t")
        await client.request(CLEAR_KEYS, keys[250:400], cache="t")
        await client.request(1014, keys[400], cache="t")
        assert recorded.kinds() == [["DeleteMany"]] * 3
        assert await size(client) == 599
        for op in (CLEAR, REMOVE_ALL):
            await client.request(PUT_ALL, [(one, one) for one in keys], cache="t")
            recorded.kinds()
            await client.request(op, cache="t")
            assert recorded.kinds() == [["ClearTable"]]
            assert await size(client) == 0
            await client.request(op, cache="t")


async def test_what_the_log_asks_of_many_keys_is_known_when_they_were_read() -> None:
    """Large requests are read beside the event loop, which could not spare the time."""
    async with served() as pair:
        client = await pair.client()
        recorded = Recorded(pair)
        keys = await filled(client, 1_000)
        await client.request(REMOVE_KEYS, keys[:300], cache="t")
        put, removed = (operations[0] for operations in recorded.transactions[-2:])
        assert isinstance(put, ops.PutMany)
        assert put.measured is not None
        assert put.measured[:2] == ops.Measured.of(keys, keys)[:2]
        assert put.measured.batch is not None, "the records were made there too"
        assert isinstance(removed, ops.DeleteMany)
        assert removed.measured == ops.Measured.of(keys[:300])


async def test_many_keys_are_looked_up_while_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as pair:
        client = await pair.client()
        keys = await filled(client, AT_ONCE_MAX + 1)
        there = [(one, one) for one in keys]
        assert await client.request(GET_ALL, [*keys, keys[0], key("no")], cache="t") == there
        assert await client.request(CONTAINS_ALL, keys, cache="t") is True
        assert await client.request(CONTAINS_ALL, [*keys, key("no")], cache="t") is False
        with pytest.raises(PeerError, match="may not be null"):
            await client.request(CONTAINS_ALL, [*keys, b"\x65"], cache="t")
        await client.request(1052, "new")
        assert await client.request(GET_ALL, keys, cache="new") == []
        assert await client.request(CONTAINS_ALL, keys, cache="new") is False
        await pair.hub.put("t", keys[3], b"")
        with pytest.raises(PeerError, match="another protocol"):
            await client.request(GET_ALL, keys, cache="t")
        await pair.hub.put("t", keys[3], keys[3])
        monkeypatch.setattr(turns, "TURN_S", 0.0)
        anybody = pair.hub.admission.admit_now("ignite", "127.0.0.1:1", Nobody())
        operations = Operations(pair.fabric, anybody, 1, lambda *_: None)
        for op in (GET_ALL, CONTAINS_ALL):
            executed = operations.execute(Request(op, 1, (Keys(keys),), java_hash("t")))
            assert isinstance(executed, Pending)
            others = 0
            while not executed.future.done():
                await asyncio.sleep(0)
                others += 1
            assert executed.future.result()
            assert others > AT_ONCE_MAX


async def test_listeners_hear_of_very_many_changes_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "NOTED_AT_ONCE", 2)
    async with served() as pair:
        client = await pair.client()
        keys = await filled(client, 10)
        entry = pair.fabric.catalogue.find_name("t")
        assert entry is not None
        assert isinstance(entry.cache, TableCache)
        cache = entry.cache
        assert cache.keys.above(None, 20) == list(range(10))
        removed = cache.delete_many(keys[:9])
        removed.add_done_callback(lambda _: seen.append(len(cache.keys)))
        seen: list[int] = []
        await removed
        await until(lambda: cache.keys.above(None, 10) == [9])
        assert seen == [8]


async def test_deadlines_go_with_their_entries_in_the_same_step() -> None:
    disk = MemoryDisk()
    async with served(disk=disk) as pair:
        client = await pair.client()
        recorded = Recorded(pair)
        keys = await filled(client, 10, **LONG_LIFE)
        assert recorded.kinds()[-1] == ["PutMany", "PutMany"]
        assert pair.hub.table_size(EXPIRY_TABLE) == 10
        await client.request(PUT_ALL, [(keys[0], key(5)), (keys[1], key(5)), (key(77), key(5))], cache="t")  # for ever
        assert recorded.kinds() == [["PutMany", "DeleteMany"]]
        await client.request(REMOVE_KEYS, [*keys[2:5], key(77)], cache="t")
        assert recorded.kinds() == [["DeleteMany", "DeleteMany"]]
        assert pair.hub.table_size(EXPIRY_TABLE) == 5
        await client.request(1052, "other")
        await client.request(1001, keys[9], keys[9], cache="other", **LONG_LIFE)
        recorded.kinds()
        await client.request(CLEAR, cache="t")
        assert recorded.kinds() == [["ClearTable", "DeleteMany"]]
        await client.request(1001, keys[9], key(1), cache="t")
    async with served(disk=disk) as pair:
        assert [name for name, _ in pair.hub.items(EXPIRY_TABLE)] == [b"other\0" + keys[9]]
        assert not pair.fabric.catalogue.expiries.has("t", keys[9])
        assert pair.hub.get("t", keys[9]) == key(1)


async def test_put_all_updates_and_creates_by_the_times_of_the_policy() -> None:
    async with served() as pair:
        client = await pair.client()
        keys = await filled(client, 2)
        policy = {"flags": 4, "expiry": (3_600_000, 7_200_000, -2)}
        await client.request(PUT_ALL, [(keys[0], key(1)), (key(9), key(1)), (key(9), key(2))], cache="t", **policy)
        expiries = pair.fabric.catalogue.expiries
        updated, created = expiries.deadline("t", keys[0]), expiries.deadline("t", key(9))
        assert updated is not None
        assert created is not None
        assert updated - created > 3_000_000
        assert pair.hub.get("t", key(9)) == key(2)
        unchanged = {"flags": 4, "expiry": (-2, -2, -2)}
        await client.request(PUT_ALL, [(keys[0], key(3)), (key(10), key(3))], cache="t", **unchanged)
        assert expiries.deadline("t", keys[0]) == updated
        assert expiries.deadline("t", key(10)) is None


@pytest.mark.parametrize("op", [PUT_ALL, REMOVE_KEYS, CLEAR])
async def test_a_bulk_change_that_is_refused_leaves_the_deadlines(op: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> asyncio.Future[None]:
        refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        refused.set_exception(DiskFull("no room"))
        return refused

    async with served() as pair:
        client = await pair.client()
        keys = await filled(client, 3, **LONG_LIFE)
        expiries = pair.fabric.catalogue.expiries
        before = expiries.deadlines("t")
        arguments = {PUT_ALL: [[(keys[0], key(1)), (key(8), key(1))]], REMOVE_KEYS: [keys], CLEAR: []}[op]
        with monkeypatch.context() as patch:
            patch.setattr(pair.fabric.hub, "transact", full)
            with pytest.raises(PeerError, match="disk-full"):
                await client.request(op, *arguments, cache="t")
            if op == PUT_ALL:
                with pytest.raises(PeerError, match="disk-full"):
                    await client.request(op, *arguments, cache="t", **LONG_LIFE)
        assert expiries.deadlines("t") == before
        assert await size(client) == 3


async def test_nulls_in_put_all_are_refused_and_nothing_is_put() -> None:
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "t")
        for pair_with_null in ((b"\x65", key(1)), (key(1), b"\x65")):
            with pytest.raises(PeerError, match="may not be null"):
                await client.request(PUT_ALL, [(key(5), key(5)), pair_with_null], cache="t")
        await client.request(PUT_ALL, [], cache="t")
        assert await size(client) == 0


async def test_listeners_hear_of_bulk_changes_in_their_order() -> None:
    async with served() as pair:
        client = await pair.client()
        await filled(client, 3)
        entry = pair.fabric.catalogue.find_name("t")
        assert entry is not None
        assert isinstance(entry.cache, TableCache)
        cache = entry.cache
        assert cache.keys.above(None, 10) == [0, 1, 2]
        woken: list[int] = []
        cache.watch(lambda: woken.append(len(woken)))
        changes = [
            cache.put(key(5), key(5), expiry=(3_600_000, -2, -2)),
            cache.clear(),
            cache.put_many([(key(7), key(7)), (key(8), key(8))]),
            cache.delete_many([key(7)]),
            cache.delete(key(5)),
            cache.put(key(5), key(6)),
        ]
        await asyncio.gather(*changes)
        await until(lambda: cache.keys.above(None, 10) == [5, 8])
        assert woken
        await cache.clear()
        await until(lambda: cache.keys.above(None, 10) == [])


async def test_a_scan_reads_values_page_by_page_and_passes_over_what_is_gone() -> None:
    async with served() as pair:
        client = await pair.client()
        keys = await filled(client, 10)
        page = await client.request(SCAN, b"\x65", 3, -1, False, cache="t")
        assert [one for one, _ in page.rows] == keys[:3]
        await client.request(REMOVE_KEYS, keys[4:6], cache="t")
        await client.request(1001, keys[6], key("new"), cache="t")
        rest = await client.request(PAGE, page.cursor)
        assert dict(rest.rows) == {keys[3]: keys[3], keys[6]: key("new"), keys[7]: keys[7]}
        await client.request(CLEAR, cache="t")
        last = await client.request(PAGE, page.cursor)
        assert len(last.rows) <= 1  # one was looked at before the clear, to know that there is more
        assert not last.more


async def test_caches_of_the_fabric_are_told_of_each_removal() -> None:
    async with served() as pair:
        client = await pair.client()
        for name in ("a", "b", "c"):
            await put_listener(client, name, "s", 0)
        assert set(pair.fabric.listeners.of_stream("s")) == {"a", "b", "c"}
        await client.request(REMOVE_KEYS, [key("a")], cache="stream-listeners")
        assert set(pair.fabric.listeners.of_stream("s")) == {"b", "c"}
        await client.request(CLEAR, cache="stream-listeners")
        assert not pair.fabric.listeners.of_stream("s")


async def test_a_cache_is_cleared_while_another_protocol_reads_its_table() -> None:
    async with served() as pair:
        client = await pair.client()
        await filled(client, 5)
        hub: Hub = pair.hub
        following = hub.follow("t", 0)
        assert (await anext(following)).num_rows == 5
        await client.request(CLEAR, cache="t")
        records = await anext(following)
        assert records.column("type").to_pylist() == ["clear"]
        await following.aclose()  # type: ignore[attr-defined]


def test_entries_of_a_large_request_lie_side_by_side() -> None:
    """A pair for each would be an object that the garbage collector looks at."""
    entries = [(key(number), key(f"value {number}")) for number in range(100)]
    read = PARTS["pairs"].read(Reader(PARTS["pairs"].write(entries)))
    assert read == entries
    assert (read[3], read[5:7], len(read), read.has_null) == (entries[3], entries[5:7], 100, False)
    assert not isinstance(read, list)
    assert [*read.all_keys, *read.all_values] == [part for parts in zip(*entries, strict=True) for part in parts]
    assert read != Entries([], [])
