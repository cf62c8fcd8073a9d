"""The asyncio connector against a real server, with connections that are cut and hubs that go away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.until import until
from support.wallaroo_peer import Peer, hub_and_address, records, rewind

from headrace.config import Config
from headrace.errors import BadRequest
from headrace.protocols.wallaroo import client as client_module
from headrace.protocols.wallaroo.client import Connector, ConnectorFailed, ConnectorStream, growing_pause_s
from headrace.protocols.wallaroo.client_session import Item
from headrace.protocols.wallaroo.frames import LocalFault
from headrace.protocols.wallaroo.server import serve
from headrace.protocols.wallaroo.sources import FileSource, GenerateSource
from headrace.testing.disk import MemoryDisk
from headrace.testing.hub import memory_hub

pytestmark = pytest.mark.parametrize("dialect", ["v3", "draft"])


def connector(address: str, dialect: str, **more: object) -> Connector:
    return Connector(address, dialect=dialect, pause_s=lambda attempt: 0.01, **more)  # type: ignore[arg-type]


async def send_file(client: Connector, path: Path, **options: object) -> None:
    with FileSource(path, **options) as source:  # type: ignore[arg-type]
        await client.run(source)


async def send_for_ever(stream: ConnectorStream) -> None:
    while True:
        await stream.send(b"y")
        await stream.flush()


async def test_messages_one_by_one(dialect: str) -> None:
    async with hub_and_address() as (hub, address):
        async with connector(address, dialect, instance="i") as client:
            stream = await client.stream("s")
            assert [await stream.send(b"%d" % n) for n in range(3)] == [1, 2, 3]
            assert await stream.flush() == 3
            await stream.end()
        assert [row["payload"] for row in await records(hub, "i.s")] == [b"0", b"1", b"2"]


async def test_messages_sent_at_the_same_time_get_ids_of_their_own(dialect: str) -> None:
    async with hub_and_address() as (hub, address), connector(address, dialect) as client:
        stream = await client.stream("s")
        await stream.send_many([])
        ids = await asyncio.gather(*(stream.send(b"%d" % number) for number in range(5)))
        await stream.flush()
        assert sorted(ids) == [1, 2, 3, 4, 5]
        stored = {row["id"]: row["payload"] for row in await records(hub, "s")}
        assert stored == {id: b"%d" % number for number, id in enumerate(ids)}


async def test_after_a_message_that_is_too_long_the_next_one_is_stored(dialect: str) -> None:
    """All messages of one call are queued, or none: nothing of the failed call is left behind to get in the way."""
    async with hub_and_address() as (hub, address), connector(address, dialect) as client:
        stream = await client.stream("s")
        with pytest.raises(LocalFault, match="message 2 is a frame"):
            await stream.send_many([Item(1, b"one"), Item(2, bytes(5 * 1024 * 1024))])
        assert await stream.send(b"next") == 1
        await stream.flush()
        assert [row["payload"] for row in await records(hub, "s")] == [b"next"]


async def test_more_than_a_socket_takes_at_once(dialect: str) -> None:
    async with hub_and_address() as (hub, address), connector(address, dialect) as client:
        stream = await client.stream("s")
        await stream.send_many(Item(number, bytes(1_000_000)) for number in range(1, 21))
        assert await stream.flush() == 20
        assert hub.bounds("s").next == 20


async def test_a_busy_stream_leaves_credits_for_another(dialect: str) -> None:
    async with hub_and_address() as (hub, address), connector(address, dialect) as client:
        running = asyncio.create_task(client.run(GenerateSource(stream="busy", count=10_000_000, size=10)))
        try:
            await hub.wait_stream("busy")
            await hub.wait("busy", 5_000)
            async with asyncio.timeout(60):
                stream = await client.stream("calm")
                await stream.send(b"x")
                await stream.flush()
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_a_generator_that_loses_its_connection_again_and_again(dialect: str) -> None:
    async with hub_and_address(window_credits=50) as (hub, address):
        source = GenerateSource(stream="s", count=5_000, size=20)

        async def cut(point: int) -> None:
            if client.connections < 6 and point > client.connections * 500:
                wire = client._wire
                if wire is not None and wire.transport is not None:
                    wire.transport.abort()

        async with connector(address, dialect) as client:
            assert await client.run(source, cut) == 5_000
            assert client.connections >= 4
        stored = await records(hub, "s")
        assert [row["id"] for row in stored] == list(range(1, 5_001))
        assert [row["payload"] for row in stored] == [source.payload(n) for n in range(1, 5_001)]


async def test_pushed_messages_survive_a_cut_connection(dialect: str) -> None:
    async with hub_and_address(window_credits=30) as (hub, address):
        async with connector(address, dialect) as client:
            stream = await client.stream("s")
            for number in range(1, 1_001):
                await stream.send(b"%d" % number)
                if number % 200 == 0:
                    wire = client._wire
                    assert wire is not None or client.connections
                    if wire is not None and wire.transport is not None:
                        wire.transport.abort()
            await stream.flush()
        assert [row["id"] for row in await records(hub, "s")] == list(range(1, 1_001))


async def test_message_id_0_survives_a_cut_connection(dialect: str) -> None:
    """The draft's 0 says "no point": that the hub has it and names none is no contradiction."""
    async with hub_and_address() as (hub, address), connector(address, dialect) as client:
        stream = await client.stream("s")
        await stream.send(b"zero", message_id=0)
        await stream.flush()
        assert client._wire is not None
        assert client._wire.transport is not None
        client._wire.transport.abort()
        await until(lambda: client._wire is None)
        await stream.send(b"one")
        await stream.flush()
        assert [row["payload"] for row in await records(hub, "s")] == [b"zero", b"one"]


async def test_a_file_is_sent_once_and_only_what_is_new_afterwards(dialect: str, tmp_path: Path) -> None:
    path = tmp_path / "orders.csv"
    path.write_bytes(b"head\none\r\n\ntwo")
    async with hub_and_address() as (hub, address):
        for _ in range(2):
            async with connector(address, dialect) as client:
                await send_file(client, path, stream="orders", skip=1)
        assert [(r["id"], r["payload"]) for r in await records(hub, "orders")] == [
            (10, b"one"),
            (11, b""),
            (14, b"two"),
        ]
        path.write_bytes(path.read_bytes() + b"\nthree\n")
        async with connector(address, dialect) as client:
            await send_file(client, path, stream="orders", skip=1)
        assert [r["payload"] for r in await records(hub, "orders")][3:] == [b"three"]


async def test_a_file_that_was_cut_is_refused(dialect: str, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"one\ntwo\n")
    async with hub_and_address() as (_, address):
        async with connector(address, dialect) as client:
            await send_file(client, path, stream="s")
        path.write_bytes(b"one\n")
        async with connector(address, dialect) as client:
            with pytest.raises(BadRequest, match="up to byte 8"):
                await send_file(client, path, stream="s")


async def test_framed_files(dialect: str, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"\0\0\0\x03abc\0\0\0\x00\0\0\0\x01d")
    async with hub_and_address() as (hub, address):
        async with connector(address, dialect) as client:
            await send_file(client, path, stream="s", framed=True)
        assert [(r["id"], r["payload"]) for r in await records(hub, "s")] == [(7, b"abc"), (11, b""), (16, b"d")]
        path.write_bytes(path.read_bytes() + b"\0\0\0\x05xy")
        async with connector(address, dialect) as client:
            with pytest.raises(BadRequest, match="middle of a record"):
                await send_file(client, path, stream="s", framed=True)


async def test_a_rewound_stream_is_sent_again_from_the_point(dialect: str) -> None:
    async with hub_and_address(window_credits=20) as (hub, address):
        rewound = False

        async def rewind_once(point: int) -> None:
            nonlocal rewound
            if not rewound and point >= 300:
                rewound = True
                await rewind(hub, "s", 100)

        async with connector(address, dialect) as client:
            assert await client.run(GenerateSource(stream="s", count=600), rewind_once) == 600
        ids = [row["id"] for row in await records(hub, "s")]
        again = ids.index(101, 101)
        assert again >= 300
        assert ids == list(range(1, again + 1)) + list(range(101, 601))


async def test_pushed_messages_cannot_be_rewound_below_what_is_kept(dialect: str) -> None:
    async with hub_and_address() as (hub, address), connector(address, dialect) as client:
        stream = await client.stream("s")
        await stream.send_many([Item(n, b"x") for n in range(1, 11)])
        await stream.flush()
        await rewind(hub, "s", 5)
        with pytest.raises(ConnectorFailed, match="cannot go back to point 5"):
            await send_for_ever(stream)


async def test_no_connector_is_rewound_to_what_it_has_not_sent(dialect: str) -> None:
    """It would skip what lies between, and be told that all of it is stored. Found by seed 500324 of the world."""
    async with hub_and_address() as (hub, address), connector(address, dialect) as client:
        stream = await client.stream("s")
        await stream.send_many([Item(n, b"x") for n in range(1, 11)])
        await stream.flush()
        with pytest.raises(BadRequest, match="is at message id 10, which is before 11"):
            await rewind(hub, "s", 11)
        await stream.send_many([Item(n, b"x") for n in range(11, 21)])
        await stream.flush()
        assert [row["id"] for row in await records(hub, "s")] == list(range(1, 21))
        assert (await rewind(hub, "s", 20)).before == 20


async def test_send_says_that_the_connector_has_given_up(dialect: str) -> None:
    """Also where nothing has to be waited for: what is queued now would go nowhere."""
    async with hub_and_address() as (hub, address), connector(address, dialect) as client:
        stream = await client.stream("s")
        await stream.send_many([Item(n, b"x") for n in range(1, 11)])
        await stream.flush()
        await rewind(hub, "s", 5)
        await until(lambda: client._failure)
        with pytest.raises(ConnectorFailed, match="cannot go back to point 5"):
            await stream.send(b"into the void")
        with pytest.raises(ConnectorFailed, match="cannot go back to point 5"):
            await stream.send_many([Item(11, b"into the void")])


async def test_a_frame_above_the_limit_of_the_hub_is_final(dialect: str) -> None:
    """The hub's own words reach a connector that is still sending; to connect again cannot help."""
    async with hub_and_address(frame_bytes_max=300_000) as (_, address), connector(address, dialect) as client:
        stream = await client.stream("s")
        await stream.send_many(Item(number, bytes(3_000_000)) for number in range(1, 6))
        with pytest.raises(ConnectorFailed, match="above the limit"):
            await stream.flush()
        assert client.connections == 1


async def test_a_wrong_cookie_is_final(dialect: str) -> None:
    async with hub_and_address(cookie="right") as (_, address), connector(address, dialect, cookie="wrong") as client:
        with pytest.raises(ConnectorFailed, match="Bad cookie"):
            await client.stream("s")
        assert client.connections == 1


async def test_nobody_there(dialect: str) -> None:
    async with connector("127.0.0.1:1", dialect, attempts_max=3) as client:
        with pytest.raises(ConnectorFailed, match="gave up after 3 attempts"):
            await client.stream("s")


async def test_a_hub_that_is_restarted(dialect: str) -> None:
    """The same disk under a second hub on the same port: the connector goes on, exactly where the disk is."""
    disk = MemoryDisk()
    source = GenerateSource(stream="s", count=3_000, size=10)
    reached = asyncio.Event()
    async with memory_hub(disk=disk) as first:
        listener = await serve(first, "127.0.0.1:0")
        address = listener.address
        client = connector(address, dialect, attempts_max=None)

        def progress(point: int) -> None:
            if point >= 500:
                reached.set()

        async with client:
            running = asyncio.create_task(client.run(source, progress))
            await asyncio.wait_for(reached.wait(), 60)
            await listener.close()
            await first.close()
            async with memory_hub(Config(), disk=disk.after_kill()) as second:
                listener = await serve(second, address)
                assert await asyncio.wait_for(running, 60) == 3_000
                await listener.close()
                assert [row["id"] for row in await records(second, "s")] == list(range(1, 3_001))


async def test_a_refused_stream_is_opened_once_it_is_free(dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "PAUSE_S_MAX", 0.05)
    async with hub_and_address(open_wait_s=0.02) as (_, address):
        holder = await Peer.connect(address)
        await holder.hello(program=b"other")
        await holder.notify(1, b"s")
        async with connector(address, dialect, attempts_max=None) as client:
            opening = asyncio.create_task(client.stream("s"))
            done, _ = await asyncio.wait([opening], timeout=0.2)
            assert not done or dialect == "draft"
            await holder.close()
            stream = await asyncio.wait_for(opening, 60)
            await stream.send(b"x")
            await stream.flush()


def test_pauses_grow_to_a_limit(dialect: str) -> None:
    assert 0.05 <= growing_pause_s(1) <= 0.1
    assert 2.5 <= growing_pause_s(50) <= 5.0
