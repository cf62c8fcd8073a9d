"""Creating, pulling and saved indexes, through real sockets onto the embedded log on a disk in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from support.ockam_peer import hub_and_listener, peer_of, settings
from support.until import until

from headrace.errors import Damaged, DiskFull, LimitExceeded
from headrace.log.batch import Batch
from headrace.log.ops import StreamOptions
from headrace.protocols.ockam import codec
from headrace.protocols.ockam.addresses import AddressBook
from headrace.protocols.ockam.session import Worker
from headrace.protocols.ockam.settings import Ockam
from headrace.protocols.ockam.streams import INDEXES, Streams
from headrace.testing import MemoryDisk, memory_hub

# --- create ---


@pytest.mark.parametrize("service", ["stream", "stream_service"])
async def test_create_is_idempotent_and_answers_from_the_stream(service: str) -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as one, peer_of(listener) as two:
        for peer in (one, two):
            peer.send(service, codec.CreateRequest(codec.CREATE, "orders"))
        messages = [await one.message(), await two.message()]
        assert messages[0] == messages[1]
        assert len(messages[0].returning[0].value) == 21
        assert messages[0].returning[0].value.startswith(b"ST_S_")
        assert [info.name for info in hub.streams()] == ["orders"]


async def test_anonymous_streams_are_new_each_time() -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:
        names = set()
        for _ in range(3):
            init = await peer.ask("stream", codec.CreateRequest(codec.CREATE, None))
            assert isinstance(init, codec.Init)
            assert init.stream_name.startswith("generated_")
            names.add(init.stream_name)
        assert {info.name for info in hub.streams()} == names
        assert len(names) == 3


@pytest.mark.parametrize("protocol", [codec.CREATE_PARTITIONED, codec.CREATE_PARTITIONS])
async def test_partitions_grow_and_never_shrink(protocol: str) -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:

        async def create(count: int) -> list[bytes]:
            peer.send("stream", codec.CreateRequest(protocol, "p", count))
            addresses = []
            for number in range(count):
                message = await peer.message()
                assert codec.decode_response(message.payload) == codec.Init(protocol, "p", number)
                addresses.append(message.returning[0].value)
            return addresses

        three = await create(3)
        assert len(set(three)) == 3
        assert await create(2) == three[:2]
        five = await create(5)
        assert five[:3] == three
        assert hub.stream("p").partitions == 5
        assert await peer.create("p") == three[0]
        assert await peer.push(five[4], b"four") == [codec.PushConfirm(0, True, 0)]
        assert await peer.push(five[0], b"zero") == [codec.PushConfirm(0, True, 0)]
        assert await peer.pull(five[4]) == [(0, b"four")]
        assert await peer.pull(three[0]) == [(0, b"zero")]
        assert await peer.pull(three[1]) == []


@pytest.mark.parametrize(
    ("name", "reason"), [("a\0b", "control characters"), ("ockam.addresses", "is a table"), ("", "Invalid request")]
)
async def test_names_the_hub_cannot_have(name: str, reason: str) -> None:
    async with hub_and_listener() as (_, listener), peer_of(listener) as peer:
        error = await peer.ask("stream", codec.CreateRequest(codec.CREATE, name))
        assert isinstance(error, codec.Error)
        assert reason in error.reason


@pytest.mark.parametrize("name", ["two words", "grün 水", "a#b", "stream", "n" * 300])
async def test_names_that_are_fine(name: str) -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:
        address = await peer.create(name)
        assert await peer.push(address, b"x") == [codec.PushConfirm(0, True, 0)]
        assert hub.bounds(name).next == 1


async def test_a_create_above_the_number_of_addresses_is_refused() -> None:
    async with hub_and_listener(settings(addresses_max=3)) as (_, listener), peer_of(listener) as peer:
        await peer.create("a")
        error = await peer.ask("stream", codec.CreateRequest(codec.CREATE_PARTITIONED, "b", 2))
        assert isinstance(error, codec.Error)
        assert "ockam.addresses_max" in error.reason
        await peer.create("a")


async def test_a_refused_create_leaves_nothing_behind() -> None:
    async with hub_and_listener(settings(addresses_max=3)) as (hub, listener), peer_of(listener) as peer:
        await peer.create("a")
        for name in ("a", "b", None):
            error = await peer.ask("stream", codec.CreateRequest(codec.CREATE_PARTITIONED, name, 4))
            assert isinstance(error, codec.Error)
        assert [(info.name, info.partitions) for info in hub.streams()] == [("a", 1)]


async def test_addresses_of_deleted_streams_make_room_for_new_ones() -> None:
    async with hub_and_listener(settings(addresses_max=3)) as (hub, listener), peer_of(listener) as peer:
        kept = await peer.create("kept")
        for number in range(5):
            address = await peer.create(f"short-lived {number}")
            assert len(await peer.push(address, b"x")) == 1
            await hub.delete_stream(f"short-lived {number}")
        assert await peer.push(kept, b"x") == [codec.PushConfirm(0, True, 0)]


async def test_deleted_streams_are_not_looked_for_at_every_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hub_and_listener(settings(addresses_max=2)) as (hub, listener), peer_of(listener) as peer:
        await peer.create("a")
        looks = []
        items = hub.items
        monkeypatch.setattr(hub, "items", lambda table: (looks.append(table), items(table))[1])
        for _ in range(5):
            assert isinstance(await peer.ask("stream", codec.CreateRequest(codec.CREATE, None)), codec.Error)
        assert looks == ["ockam.addresses"]


async def test_an_address_that_is_being_forgotten_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_hub() as hub:
        book = await AddressBook.open(hub, addresses_max=3)
        for name in ("kept", "again"):
            await hub.create_stream(name)
        await book.register("kept", 1)
        (worker,) = await book.register("again", 1)
        await hub.delete_stream("again")
        deleted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        written: list[bytes] = []
        put = hub.put
        monkeypatch.setattr(hub, "delete", lambda table, key: deleted)
        monkeypatch.setattr(hub, "put", lambda table, key, value: (written.append(key), put(table, key, value))[1])
        making_room = asyncio.ensure_future(book.make_room("new", 1))
        await asyncio.sleep(0)
        await hub.create_stream("again")
        assert await book.register("again", 1) == [worker]
        assert written == [worker.address]
        deleted.set_result(None)
        with pytest.raises(LimitExceeded):
            await making_room


async def test_a_stream_of_another_protocol_is_the_same_stream() -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:
        await hub.create_stream("shared", 2)
        await hub.append("shared", Batch.of([b"a", b"b"], types="t", keys=[b"k", b"k"], ids=[1, 2]))
        address = await peer.create("shared")
        assert await peer.pull(address) == [(0, b"a"), (1, b"b")]
        assert await peer.push(address, b"c") == [codec.PushConfirm(0, True, 2)]
        records = await hub.read("shared", 2)
        assert records.column("payload").to_pylist() == [b"c"]


# --- pull ---


async def test_a_batch_is_cut_to_the_frame() -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:
        address = await peer.create()
        await hub.append("orders", Batch.of([bytes([n]) * 10_000 for n in range(20)]))
        first = await peer.pull(address)
        assert [index for index, _ in first] == list(range(6))
        assert await peer.pull_all(address) == [(n, bytes([n]) * 10_000) for n in range(20)]


@pytest.mark.parametrize(
    ("index", "limit", "expected"),
    [
        (0, 0, []),
        (0, 2, [0, 1]),
        (1, 1 << 63, [1, 2]),
        (0, (1 << 64) - 1, [0, 1, 2]),
        (3, 10, []),
        (1 << 63, 10, []),
        ((1 << 64) - 1, (1 << 64) - 1, []),
    ],
)
async def test_any_index_and_limit(index: int, limit: int, expected: list[int]) -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:
        address = await peer.create()
        await hub.append("orders", Batch.of([b"a", b"b", b"c"]))
        assert [found for found, _ in await peer.pull(address, index, limit)] == expected


async def test_the_configured_limit_counts() -> None:
    async with hub_and_listener(settings(pull_records_max=2)) as (hub, listener), peer_of(listener) as peer:
        address = await peer.create()
        await hub.append("orders", Batch.of([b"x"] * 5))
        assert len(await peer.pull(address, 0, 1000)) == 2


async def test_a_pull_below_the_first_record_starts_there() -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:
        address = await peer.create()
        await hub.append("orders", Batch.of([b"%d" % n for n in range(10)]))
        await hub.trim("orders", 4)
        assert [index for index, _ in await peer.pull(address, 0)] == list(range(4, 10))
        assert hub.metrics.registry.get_sample_value("headrace_ockam_pulls_below_first_total") == 0
        assert [index for index, _ in await peer.pull(address, 2)] == list(range(4, 10))
        assert hub.metrics.registry.get_sample_value("headrace_ockam_pulls_below_first_total") == 1


async def test_a_pull_sees_the_pushes_before_it_on_the_same_connection() -> None:
    async with hub_and_listener() as (_, listener), peer_of(listener) as peer:
        address = await peer.create()
        push = peer.frame(address, codec.encode_request(codec.PushRequest(1, b"x")))
        pull = peer.frame(address, codec.encode_request(codec.PullRequest(2, 0, 10)))
        peer.raw(push + pull)
        assert await peer.response() == codec.PushConfirm(1, True, 0)
        assert await peer.response() == codec.PullResponse(2, [codec.StreamMessage(0, b"x")])


async def test_records_too_large_for_the_frame_are_a_counted_gap() -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer, peer_of(listener, "cbor") as newer:
        address = await peer.create()
        huge = bytes(100_000)
        await hub.append("orders", Batch.of([b"a", huge, b"b", huge, huge]))

        def skipped() -> float | None:
            return hub.metrics.registry.get_sample_value("headrace_records_skipped_total", {"protocol": "ockam"})

        assert await peer.pull(address) == [(0, b"a")]
        assert await peer.pull(address, 1) == [(2, b"b")]
        assert skipped() == 1
        assert await peer.pull(address, 3) == []
        assert skipped() == 3
        await hub.append("orders", Batch.of([huge] * 30))
        assert await peer.pull(address, 3) == []
        await hub.append("orders", Batch.of([b"c"]))
        assert await peer.pull(address, 3) == [(35, b"c")]
        assert await peer.pull(address, 10) == [(35, b"c")]
        assert await newer.pull(address, 1, 1) == [(1, huge)]
        assert [index for index, _ in await newer.pull_all(address)] == list(range(36))


async def test_others_are_served_while_records_that_are_too_large_are_stepped_over() -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:
        address = await peer.create()
        for _ in range(4):
            await hub.append("orders", Batch.of([bytes(4 << 20)]))
        served = 0

        async def serve_others() -> None:
            nonlocal served
            while True:
                await asyncio.sleep(0)
                served += 1

        streams = Streams(hub, await AddressBook.open(hub, 9), Ockam())
        others = asyncio.ensure_future(serve_others())
        found = await streams.read(Worker(address, "orders", 0), 0, 10, 60_000, 60_000)
        others.cancel()
        assert found.oversized == 4
        assert served >= 3


async def test_damaged_records_are_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:
        address = await peer.create()
        await hub.append("orders", Batch.of([b"%d" % n for n in range(6)]))
        read = hub.read

        async def damaged(name: str, start: int, **options: Any) -> Any:
            if start <= 3:
                raise Damaged(name, 0, 1, 3)
            return await read(name, start, **options)

        monkeypatch.setattr(hub, "read", damaged)
        assert await peer.pull(address, 1) == [(4, b"4"), (5, b"5")]
        assert hub.metrics.registry.get_sample_value("headrace_ockam_damaged_skipped_total") == 3


async def test_a_read_that_fails_is_an_empty_list(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:
        address = await peer.create()
        await peer.push(address, b"x")

        async def failing(*args: Any, **options: Any) -> Any:
            raise DiskFull("gone")

        monkeypatch.setattr(hub, "read", failing)
        assert await peer.pull(address) == []
        assert hub.metrics.registry.get_sample_value("headrace_ockam_pulls_failed_total") == 1


# --- saved indexes ---


@pytest.mark.parametrize("service", ["stream_index", "stream_index_service"])
async def test_an_unknown_index_is_recorded_as_zero(service: str) -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:
        await peer.create()
        answer = await peer.ask(service, codec.GetIndex(codec.INDEX, "cl", "orders"))
        assert answer == codec.Index(codec.INDEX, "cl", "orders", 0)
        assert [(cursor.name, cursor.index) for cursor in hub.cursors()] == [("ockam:cl", 0)]


async def test_an_unknown_index_is_none_by_switch() -> None:
    async with hub_and_listener(settings(unknown_index="none")) as (hub, listener), peer_of(listener) as peer:
        await peer.create()
        assert await peer.get_index("cl", "orders") is None
        assert hub.cursors() == []
        assert await peer.get_index("cl", "no such stream") is None


async def test_save_is_monotonic_and_seen_by_the_next_get() -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:
        await peer.create()
        await hub.append("orders", Batch.of([b"x"] * 20))
        for index, expected in [(10, 10), (5, 10), (11, 11)]:
            peer.save_index("cl", "orders", index)
            assert await peer.get_index("cl", "orders") == expected


async def test_indexes_are_kept_per_client_stream_and_partition() -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:
        await hub.create_stream("p", 6)
        await hub.create_stream("q", 1)
        for name, partition in [("p", 0), ("p", 5), ("q", 0)]:
            await hub.append(name, Batch.of([b"x"] * 20), partition=partition)
        peer.save_index("cl", "p", 10, 5)
        peer.save_index("cl", "q", 3)
        assert await peer.get_index("cl", "p", 5) == 10
        assert await peer.get_index("cl", "p", 0) == 0
        assert await peer.get_index("cl", "p") == 0
        assert await peer.get_index("other", "p", 5) == 0
        assert await peer.get_index("cl", "q") == 3
        assert await peer.get_index("cl", "q", 0) == 3


async def test_nobody_can_make_a_client_skip_the_future() -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as attacker, peer_of(listener) as victim:
        address = await victim.create()
        await hub.append("orders", Batch.of([b"x"] * 3))
        attacker.save_index("victim", "orders", (1 << 64) - 1)
        assert await attacker.get_index("victim", "orders") == 3
        await victim.push(address, b"next")
        index = await victim.get_index("victim", "orders")
        assert index == 3
        assert await victim.pull(address, index) == [(3, b"next")]


async def test_unclamped_by_switch() -> None:
    async with hub_and_listener(settings(clamp_saved_index=False)) as (_, listener), peer_of(listener) as peer:
        await peer.create()
        peer.save_index("cl", "orders", (1 << 64) - 1)
        assert await peer.get_index("cl", "orders") == (1 << 63) - 1


async def test_an_index_is_kept_for_a_stream_that_does_not_exist() -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:
        for index in (2, 3, 1):
            peer.save_index("cl", "orders", index)
        peer.save_index("cl", "orders", 7, 99)
        assert await peer.get_index("cl", "orders") == 3
        assert await peer.get_index("cl", "orders", 99) == 7
        assert await peer.get_index("other", "orders") == 0
        assert hub.cursors() == []
        await peer.push(await peer.create(), *[b"x"] * 5)
        assert await peer.get_index("cl", "orders") == 3
        assert hub.cursor("ockam:cl", "orders") == 3
        assert hub.table_size(INDEXES) == 1  # that of partition 99
        peer.save_index("cl", "orders", 2)
        assert await peer.get_index("cl", "orders") == 3


async def test_a_table_has_no_saved_indexes() -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:
        await hub.create_table("prices")
        assert await peer.get_index("cl", "prices") == 0
        peer.save_index("cl", "prices", 5)
        assert await peer.get_index("cl", "prices") == 5  # kept for a stream of that name
        assert hub.cursors() == []


async def test_a_kept_index_counts_when_a_lower_one_is_saved() -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:
        peer.save_index("cl", "orders", 3)
        assert await peer.get_index("cl", "orders") == 3
        await peer.push(await peer.create(), *[b"x"] * 5)
        peer.save_index("cl", "orders", 1)
        assert await peer.get_index("cl", "orders") == 3
        assert hub.table_size(INDEXES) == 0


async def test_a_kept_index_is_lowered_to_the_end_of_the_stream() -> None:
    async with hub_and_listener() as (_, listener), peer_of(listener) as peer:
        peer.save_index("victim", "orders", (1 << 64) - 1)
        assert await peer.get_index("victim", "orders") == (1 << 63) - 1
        await peer.push(await peer.create(), b"x")
        assert await peer.get_index("victim", "orders") == 1


async def test_only_so_many_indexes_are_kept_for_streams_that_do_not_exist() -> None:
    async with hub_and_listener(settings(saved_indexes_max=1)) as (hub, listener), peer_of(listener) as peer:
        for client in ("one", "two"):
            peer.save_index(client, "nowhere", 5)
        assert [await peer.get_index(client, "nowhere") for client in ("one", "two")] == [5, 0]
        text = hub.metrics.text().decode()
        assert 'headrace_ockam_dropped_total{reason="save_without_stream"} 1.0' in text


async def test_client_ids_that_cannot_be_cursors_harm_nobody() -> None:
    async with hub_and_listener() as (_, listener), peer_of(listener) as peer:
        await peer.create()
        peer.save_index("a\0b", "orders", 5)
        assert await peer.get_index("a\0b", "orders") == 0


async def test_a_save_is_kept_though_the_client_leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hub_and_listener() as (hub, listener):
        gate, asked = asyncio.Event(), asyncio.Event()
        read = hub.read

        async def slow(*args: Any, **options: Any) -> Any:
            asked.set()
            await gate.wait()
            return await read(*args, **options)

        monkeypatch.setattr(hub, "read", slow)
        async with peer_of(listener) as peer:
            address = await peer.create()
            await hub.append("orders", Batch.of([b"x"] * 9))
            peer.send(address, codec.PullRequest(1, 0, 9))
            peer.save_index("cl", "orders", 7)
            await asked.wait()
            peer.vanish()
        await until(lambda: len(hub.sessions) == 0)
        gate.set()
        await until(lambda: hub.cursor("ockam:cl", "orders") == 7)


@pytest.mark.slow
async def test_saved_indexes_hold_records_back_from_retention() -> None:
    config = settings()
    log = msgspec.structs.replace(config.log, segment_bytes=2_000, maintenance_interval_s=0.02)
    config = msgspec.structs.replace(config, log=log)
    async with hub_and_listener(config) as (hub, listener), peer_of(listener) as peer:
        small = StreamOptions(retention_bytes=1)
        for name in ("held", "free"):
            await hub.create_stream(name, options=small)
            await peer.create(name)
        assert await peer.get_index("slow consumer", "held") == 0
        for _ in range(40):
            for name in ("held", "free"):
                await hub.append(name, Batch.of([bytes(200)] * 5))
        await until(lambda: hub.bounds("free").first > 0)
        assert hub.bounds("held").first == 0
        peer.save_index("slow consumer", "held", 100)
        await until(lambda: hub.bounds("held").first > 0)
        assert hub.bounds("held").first <= 100


# --- restart, deletion ---


async def test_addresses_records_and_indexes_survive_a_restart() -> None:
    disk = MemoryDisk()
    async with hub_and_listener(disk=disk) as (hub, listener), peer_of(listener) as peer:
        address = await peer.create()
        await peer.push(address, b"a", b"b")
        peer.save_index("cl", "orders", 2)
        assert await peer.get_index("cl", "orders") == 2
    async with hub_and_listener(disk=disk.after_kill()) as (hub, listener), peer_of(listener) as peer:
        assert await peer.pull(address) == [(0, b"a"), (1, b"b")]
        assert await peer.push(address, b"c") == [codec.PushConfirm(0, True, 2)]
        peer.save_index("cl", "orders", 1)
        assert await peer.get_index("cl", "orders") == 2
        assert await peer.create() == address
        await hub.delete_stream("orders")
    async with hub_and_listener(disk=disk.after_kill()) as (hub, listener), peer_of(listener) as peer:
        assert await peer.create("another") != address


async def test_a_deleted_stream_is_silent_until_it_is_created_again() -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:
        address = await peer.create()
        await peer.push(address, b"old", b"older")
        await hub.delete_stream("orders")
        peer.send(address, codec.PushRequest(1, b"lost"))
        peer.send(address, codec.PullRequest(1, 0, 10))
        await peer.still_alive()
        assert await peer.create() == address
        assert await peer.push(address, b"new") == [codec.PushConfirm(0, True, 2)]


async def test_the_address_of_a_stream_whose_name_a_table_has_now_is_silent() -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:
        address = await peer.create()
        await hub.delete_stream("orders")
        await hub.create_table("orders")
        await hub.put("orders", b"key", b"value")
        peer.send(address, codec.PushRequest(1, b"lost"))
        peer.send(address, codec.PullRequest(1, 0, 10))
        await peer.create("other")  # waits its turn behind the pull


async def test_addresses_of_deleted_streams_go_with_the_next_start() -> None:
    disk = MemoryDisk()
    async with hub_and_listener(disk=disk) as (hub, listener), peer_of(listener) as peer:
        await peer.create("kept")
        await peer.create("gone")
        await hub.delete_stream("gone")
        assert hub.table_size("ockam.addresses") == 3
    async with hub_and_listener(disk=disk) as (hub, listener):
        assert hub.table_size("ockam.addresses") == 2
