"""The Ignite listener: order, pipelining, limits, hostile peers."""

from __future__ import annotations

import asyncio
import errno
import ssl
import struct
import subprocess
from pathlib import Path

import pytest
from support.perper_peer import hang_up, key, new_stream, served
from support.until import until

from headrace.config import Config, Log, Perper, Tls
from headrace.errors import DiskFull
from headrace.log.batch import Batch
from headrace.protocols.perper.errors import PeerError
from headrace.protocols.perper.fabric.client import RpcError
from headrace.protocols.perper.ignite import codec
from headrace.protocols.perper.ignite.binary import encode_byte_array, encode_complex, java_hash
from headrace.protocols.perper.ignite.configuration import Configuration
from headrace.protocols.perper.ignite.server import Connection
from headrace.protocols.perper.ignite.types import BinaryType, Field
from headrace.testing.disk import FaultyDisk, MemoryDisk


def small(**limits: int) -> Config:
    return Config(perper=Perper(**limits))


async def test_pipelined_requests_are_answered_in_order_and_reads_see_writes() -> None:
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "kv")
        order: list[str] = []
        futures = []
        for number in range(300):
            put = client.request(1001, key(number), key(f"v{number}"), cache="kv")
            put.add_done_callback(lambda _, n=number: order.append(f"put {n}"))
            futures.append(put)
        last = client.request(1000, key(299), cache="kv")
        last.add_done_callback(lambda _: order.append("get"))
        size = client.request(1020, b"", cache="kv")
        await asyncio.gather(*futures)
        assert await last == key("v299")
        assert await size == 300
        assert order == [*[f"put {number}" for number in range(300)], "get"]
        records = await pair.hub.read("kv", 0, limit=1000)
        assert records.num_rows == 300


async def test_mixed_pipelines_on_tables_and_streams() -> None:
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "table")
        await new_stream(client, "stream")
        for cache in ("table", "stream"):
            answers = await asyncio.gather(
                client.request(1002, key(1), key("a"), cache=cache),
                client.request(1002, key(1), key("b"), cache=cache),
                client.request(1000, key(1), cache=cache),
                client.request(1016, key(1), cache=cache),
                client.request(1016, key(1), cache=cache),
                client.request(1001, key(1), key("c"), cache=cache),
                client.request(1005, key(1), key("d"), cache=cache),
                client.request(1006, key(2), key("e"), cache=cache),
                client.request(1010, key(1), key("d"), key("f"), cache=cache),
                client.request(1011, key(1), cache=cache),
                client.request(1007, key(1), cache=cache),
                client.request(1003, [key(1), key(2)], cache=cache),
                client.request(1018, [key(7)], cache=cache),
                client.request(1017, key(1), key("x"), cache=cache),
            )
            null = b"\x65"
            assert answers == [
                *(True, False, key("a"), True, False, None, key("c"), null, True, True, key("f"), [], None, False)
            ], cache


async def test_an_open_cache_becomes_what_its_first_put_says() -> None:
    async with served() as pair:
        client = await pair.client()
        for name in ("table", "stream", "both"):
            await new_stream(client, name)
        assert await client.request(1000, key(1), cache="table") == b"\x65"
        assert await client.request(1020, b"", cache="table") == 0
        assert await client.request(1013, cache="table") is None
        assert (await client.request(2000, b"\x65", 10, -1, False, cache="table")).rows == []
        await client.request(1001, key(1), key("x"), cache="table")
        await asyncio.gather(*[client.request(1002, key(n), key("x"), cache="stream") for n in range(3)])
        await client.request(1002, key("text"), key("x"), cache="both")
        kinds = {name: pair.hub.stream(name).kind for name in ("table", "stream", "both")}
        assert kinds == {"table": "table", "stream": "stream", "both": "table"}
        assert (await pair.hub.read("stream", 0)).column("id").to_pylist() == [0, 1, 2]


async def test_foreign_records_in_a_stream_cache() -> None:
    """Another protocol may append to a stream that agents write: its records have their id, or their index, as key."""
    async with served() as pair:
        client = await pair.client()
        await new_stream(client, "s")
        await client.request(1002, key(100), key("mine"), cache="s")
        await pair.hub.append("s", Batch.of([b"raw", b"with id"], ids=[None, 7]))
        assert await client.request(1000, key(1), cache="s") == encode_byte_array(b"raw")
        assert await client.request(1000, key(7), cache="s") == encode_byte_array(b"with id")
        pending = pair.hub.append("s", Batch.of([b"between"], ids=[8]))
        assert await client.request(1002, key(101), key("after"), cache="s") is True
        await pending
        assert await client.request(1000, key(8), cache="s") == encode_byte_array(b"between")
        assert await client.request(1000, key(101), cache="s") == key("after")
        assert await client.request(1020, b"", cache="s") == 5


async def test_acknowledged_only_when_processed() -> None:
    async with served() as pair:
        client = await pair.client()
        await new_stream(client, "s")
        await client.request(1002, key(0), key("x"), cache="s")
        await pair.hub.set_options("s", pair.hub.stream("s").options.__class__(ack="processed:spark"))
        put = client.request(1002, key(1), key("y"), cache="s")
        await until(lambda: pair.hub.bounds("s").next == 2)
        await asyncio.sleep(0)
        assert not put.done()
        await pair.hub.save_cursor("spark", "s", 2)
        assert await put is True


async def test_the_type_registry_and_names() -> None:
    async with served() as pair:
        client = await pair.client()
        kind = BinaryType(5, "T", None, [Field("f", 3, 1)], False, [], {9: (1,)})
        assert await client.request(3002, 5) is None
        await client.request(3003, kind)
        await client.request(3003, kind)
        assert await client.request(3002, 5) == kind
        assert await client.request(3000, 1, 5) == "T"
        assert await client.request(3001, 1, 5, "Some.Class") is True
        assert await client.request(3001, 1, 5, "Some.Class") is True
        assert await client.request(3000, 1, 5) == "Some.Class"
        with pytest.raises(PeerError, match=r"Some\.Class"):
            await client.request(3001, 1, 5, "Another.Class")
        with pytest.raises(PeerError, match="resolve"):
            await client.request(3000, 1, 99)
        assert await client.request(1101, [1, 2])


async def test_a_type_counts_as_registered_when_it_is_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as pair:
        registry = pair.fabric.registry
        kind = BinaryType(77, "Point", None, [Field("x", 3, 120)], False, [], {5: (120,)})
        more = BinaryType(77, "Point", None, [Field("y", 3, 121)], False, [], {6: (121,)})
        first, second = registry.put(kind), registry.put(kind)
        assert first is not None
        assert not first.done()
        assert second is first
        await first
        assert registry.put(kind) is None

        def full(*_: object) -> asyncio.Future[None]:
            refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            refused.set_exception(DiskFull("no room"))
            return refused

        for new in (more, BinaryType(78, "Line", None, [], False, [], {})):
            with monkeypatch.context() as patch:
                patch.setattr(pair.fabric.hub, "put", full)
                refused = registry.put(new)
                assert refused is not None
                with pytest.raises(DiskFull):
                    await refused
                await asyncio.sleep(0)
            again = registry.put(new)
            assert again is not None
            await again
        assert len(registry) == 2
        assert registry.schema(77, 5) == (120,)


async def test_the_registry_and_the_caches_survive_a_restart() -> None:
    disk = MemoryDisk()
    kind = BinaryType(5, "T", None, [Field("f", 3, 1)], False, [], {9: (1,)})
    async with served(disk=disk) as pair:
        client = await pair.client()
        await client.request(3003, kind)
        await new_stream(client, "s")
        await client.request(1052, "t")
        for number in (3, 1, 2):
            await client.request(1002, key(number), key(f"v{number}"), cache="s")
        await client.request(1016, key(1), cache="s")
        await client.request(1001, key(3), key("again"), cache="s")
        await client.request(1001, key("text"), key("other key"), cache="s")
        await client.request(1001, key("a"), key("b"), cache="t")
        await new_stream(client, "still open")
    async with served(disk=disk) as pair:
        client = await pair.client()
        assert await client.request(3002, 5) == kind
        page = await client.request(2000, b"\x65", 10, -1, False, cache="s")
        assert dict(page.rows) == {key(2): key("v2"), key(3): key("again"), key("text"): key("other key")}
        assert await client.request(1000, key("a"), cache="t") == key("b")
        assert "still open" in await client.request(1050)
        assert await client.request(1002, key(2), key("x"), cache="s") is False
        assert await client.request(1002, key(9), key("x"), cache="s") is True


async def test_limits_have_names() -> None:
    async with served(small(caches_max=4, types_max=1, cursors_max=2, nesting_max=3)) as pair:
        client = await pair.client()
        await client.request(1052, "one")
        await client.request(1052, "two")
        with pytest.raises(PeerError, match=r"perper\.caches_max"):
            await client.request(1052, "three")
        await client.request(3003, BinaryType(1, "A", None, [], False, [], {}))
        with pytest.raises(PeerError, match=r"perper\.types_max"):
            await client.request(3003, BinaryType(2, "B", None, [], False, [], {}))
        await asyncio.gather(*[client.request(1001, key(n), key(n), cache="one") for n in range(5)])
        cursors = [await client.request(2000, b"\x65", 1, -1, False, cache="one") for _ in range(2)]
        with pytest.raises(PeerError, match=r"perper\.cursors_max") as refused:
            await client.request(2000, b"\x65", 1, -1, False, cache="one")
        assert refused.value.status == 1010
        await client.request(0, cursors[0].cursor)
        for number in (cursors[0].cursor, 999):
            with pytest.raises(PeerError) as missing:
                await client.request(2001, number)
            assert missing.value.status == 1011
        deep = key(1)
        for _ in range(5):
            deep = b"\x18\x01\x00\x00\x00\x01" + deep
        with pytest.raises(PeerError, match=r"perper\.nesting_max"):
            await client.request(1001, key(1), deep, cache="one")
        with pytest.raises(PeerError, match="filter"):
            await client.request(2000, key(1) + b"\x01", 1, -1, False, cache="one")
        assert (await client.request(2000, b"\x65", 5, 7, False, cache="one")).rows == []


async def test_large_pages_stop_early() -> None:
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "big")
        blob = encode_byte_array(bytes(3_000_000))
        for number in range(5):
            await client.request(1001, key(number), blob, cache="big")
        page = await client.request(2000, b"\x65", 100, -1, False, cache="big")
        assert len(page.rows) == 3
        assert page.more
        assert len((await client.request(2001, page.cursor)).rows) == 2


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ((1001, b"\x65", b"\x65"), "may not be null"),
        ((1000, b"\x65"), "may not be null"),
        ((1004, [(b"\x65", b"\x65")]), "may not be null"),
    ],
)
async def test_nulls_are_refused(request_: tuple[int, bytes], text: str) -> None:
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "kv")
        with pytest.raises(PeerError, match=text):
            await client.request(*request_, cache="kv")


async def test_records_the_fabric_cannot_read_are_refused() -> None:
    async with served() as pair:
        client = await pair.client()
        for cache in ("executions", "stream-listeners"):
            for value in (
                key("text"),
                encode_complex(922529474, [(5, b"\x65")]),
                encode_complex(-1232432076, [(5, b"\x65")]),
            ):
                with pytest.raises(PeerError) as refused:
                    await client.request(1001, key("id"), value, cache=cache)
                assert refused.value.status == 1
            with pytest.raises(PeerError, match="keys of this cache are strings"):
                await client.request(1001, key(1), key("x"), cache=cache)
            with pytest.raises(PeerError):
                await client.request(1004, [(key("id"), key("text"))], cache=cache)
            with pytest.raises(PeerError, match="cannot be destroyed"):
                await client.request(1056, java_hash(cache))
            assert await client.request(1020, b"", cache=cache) == 0


async def test_names_that_cannot_be() -> None:
    async with served() as pair:
        client = await pair.client()
        for name, text in (("", "needs a name"), ("perper.x", "belong to the fabric"), ("a\nb", "control characters")):
            with pytest.raises(PeerError, match=text):
                await client.request(1052, name)
        with pytest.raises(PeerError, match="needs a name"):
            await client.request(1053, Configuration({1: 2}))
        await client.request(1052, "Aa")
        with pytest.raises(PeerError, match="same id"):
            await client.request(1052, "BB")


HOSTILE = [
    struct.pack("<i", -1),
    struct.pack("<i", 2**31 - 1) + b"x",
    codec.frame(b"short"),
    codec.frame(b""),
]


@pytest.mark.parametrize("data", HOSTILE)
async def test_broken_frames_close_only_their_own_connection(data: bytes) -> None:
    async with served() as pair:
        good, bad = await pair.client(), await pair.client()
        await good.request(1052, "kv")
        bad.send_raw(data)
        await asyncio.wait_for(bad.lost, 60)
        await good.request(1001, key(1), key(2), cache="kv")
        assert await good.request(1000, key(1), cache="kv") == key(2)
        assert pair.hub.sessions.list("ignite", ended=True)[0].reason


async def test_unreadable_bodies_get_an_answer_and_the_connection_goes_on() -> None:
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "kv")
        header = struct.pack("<iB", java_hash("kv"), 0)
        bodies = [
            header + b"\x09" + struct.pack("<i", 2**31 - 1),
            header + key(1) + b"\x17" + struct.pack("<ii", -1, 2**31 - 1),
            header + key(1) + encode_complex(1, [(1, b"\x65")])[:-1],
            header + key(1) + b"\x99",
            header + key(1) + key(2) + b"left over",
        ]
        for number, body in enumerate(bodies, 1000):
            future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            client._waiting[number] = (1001, future)
            client.send_raw(codec.frame(struct.pack("<hq", 1001, number) + body))
            with pytest.raises(PeerError) as refused:
                await asyncio.wait_for(future, 60)
            assert refused.value.status == 1
        assert await client.request(1020, b"", cache="kv") == 0


async def test_handles_are_never_followed() -> None:
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "kv")
        cycle = b"\x18\x01\x00\x00\x00\x01" + b"\x66" + struct.pack("<i", 6)
        await client.request(1001, key(1), cycle, cache="kv")
        assert await client.request(1000, key(1), cache="kv") == cycle


async def test_wrapped_and_bare_objects_are_equal() -> None:
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "kv")
        bare = encode_complex(5, [(1, key("x"))])
        wrapped = b"\x1b" + struct.pack("<i", len(bare)) + bare + bytes(4)
        await client.request(1001, wrapped, wrapped, cache="kv")
        assert await client.request(1000, bare, cache="kv") == bare
        assert await client.request(1010, bare, bare, key(1), cache="kv") is True
        graph = b"\x1b" + struct.pack("<i", len(bare) + 1) + b"\x65" + bare + struct.pack("<i", 1)
        await client.request(1001, graph, graph, cache="kv")
        assert await client.request(1020, b"", cache="kv") == 1
        assert await client.request(1010, bare, bare, key(1), cache="kv") is True


async def test_garbage_instead_of_a_handshake() -> None:
    async with served() as pair:
        for data in (b"GET / HTTP/1.1\r\n\r\n", codec.frame(b"\x07" + bytes(20)), codec.frame(b"")):
            reader, writer = await asyncio.open_connection(*pair.ignite)
            writer.write(data)
            assert await asyncio.wait_for(reader.read(), 60) == b""
            await hang_up(writer)
        reader, writer = await asyncio.open_connection(*pair.ignite)
        writer.write(codec.frame(b"\x01" + struct.pack("<hhh", 9, 9, 9) + b"\x02"))
        assert b"Unsupported version." in await asyncio.wait_for(reader.read(), 60)
        await hang_up(writer)


async def test_a_client_that_does_not_read_is_not_read_from() -> None:
    async with served(small(requests_max=10)) as pair:
        client = await pair.client()
        await client.request(1052, "kv")
        futures = [client.request(1001, key(n), key(n), cache="kv") for n in range(2000)]
        await asyncio.gather(*futures)
        assert await client.request(1020, b"", cache="kv") == 2000


@pytest.mark.parametrize("cache", ["table", "stream"])
async def test_answers_do_not_pile_up_for_a_client_that_does_not_take_them(
    cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Connection] = []
    register = Connection.connection_made
    monkeypatch.setattr(Connection, "connection_made", lambda self, by: (made.append(self), register(self, by)))
    async with served(small(recent_bytes_max=1)) as pair:
        client = await pair.client()
        if cache == "table":
            await client.request(1052, cache)
        else:
            await new_stream(client, cache)
        value = encode_byte_array(bytes(300_000))
        await client.request(1002, key(1), value, cache=cache)
        client._transport.pause_reading()
        gets = [client.request(1000, key(1), cache=cache) for _ in range(400)]
        most = 0
        for _ in range(50):
            await asyncio.sleep(0.01)
            most = max(most, made[0].transport.get_write_buffer_size() + made[0]._answer_bytes)
        assert most < 40_000_000  # of 120 MB
        client._transport.resume_reading()
        assert await asyncio.wait_for(asyncio.gather(*gets), 60) == [value] * 400
        assert (made[0]._answer_bytes, made[0]._reads_pending) == (0, 0)


async def test_reading_goes_on_when_the_disk_caught_up_after_the_client_did(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Connection] = []
    register = Connection.connection_made
    monkeypatch.setattr(Connection, "connection_made", lambda self, by: (made.append(self), register(self, by)))
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "kv")
        (connection,) = made
        connection.pause_writing()  # the client does not read its answers
        congested, drained = True, asyncio.Event()
        monkeypatch.setattr(type(pair.hub), "congested", property(lambda hub: congested))
        monkeypatch.setattr(pair.fabric.hub, "drained", drained.wait)
        connection.resume_writing()  # it does again, but now the disk is behind
        congested = False
        drained.set()
        assert await asyncio.wait_for(client.request(1020, b"", cache="kv"), 60) == 0


async def test_a_put_that_is_too_large_fails_alone() -> None:
    async with served(Config(log=Log(record_bytes_max=1000))) as pair:
        client = await pair.client()
        await client.request(1052, "kv")
        puts = [
            client.request(1001, key(n), encode_byte_array(bytes(5000 if n == 3 else 5)), cache="kv") for n in range(6)
        ]
        answers = await asyncio.gather(*puts, return_exceptions=True)
        assert [isinstance(answer, PeerError) for answer in answers] == [n == 3 for n in range(6)]
        assert "limit-exceeded" in str(answers[3])
        assert await client.request(1020, b"", cache="kv") == 5


async def test_an_item_that_is_too_large_fails_alone() -> None:
    async with served(Config(log=Log(record_bytes_max=1000))) as pair:
        client = await pair.client()
        await new_stream(client, "s")
        for start in (0, 100):  # the first group makes the stream, the second one finds it
            puts = [
                client.request(1002, key(start + n), encode_byte_array(bytes(5000 if n == 3 else 5)), cache="s")
                for n in range(6)
            ]
            answers = await asyncio.gather(*puts, return_exceptions=True)
            assert [answer is True for answer in answers] == [n != 3 for n in range(6)]
            assert "limit-exceeded" in str(answers[3])
        assert await client.request(1020, b"", cache="s") == 10


async def test_items_that_are_too_much_together_are_stored_in_parts() -> None:
    async with served(Config(log=Log(batch_bytes_max=100_000))) as pair:
        client = await pair.client()
        await new_stream(client, "s")
        puts = [client.request(1002, key(n), encode_byte_array(bytes(40_000)), cache="s") for n in range(6)]
        assert await asyncio.gather(*puts) == [True] * 6
        assert await client.request(1020, b"", cache="s") == 6


async def test_a_failed_log_is_said_in_the_protocols_words() -> None:
    disk = FaultyDisk(MemoryDisk())
    async with served(disk=disk) as pair:
        client = await pair.client()
        await client.request(1052, "kv")
        disk.fail_all("sync", errno.EIO)
        for count in (1, 5):
            puts = [client.request(1001, key(number), key(number), cache="kv") for number in range(count)]
            for answer in await asyncio.gather(*puts, return_exceptions=True):
                assert isinstance(answer, PeerError)
                assert "log-failed" in answer.message
        assert await client.request(1020, b"", cache="kv") == 0


@pytest.mark.needs("openssl")
async def test_tls(tmp_path: Path) -> None:
    certificate, private = tmp_path / "c.pem", tmp_path / "k.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "1",
    ]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, *subject, "-keyout", private, "-out", certificate], check=True, capture_output=True)
    config = Config(tls=Tls(certificate=str(certificate), key=str(private)))
    context = ssl.create_default_context(cafile=str(certificate))
    async with served(config) as pair:
        client = await pair.client(tls=context)
        await client.request(1052, "kv")
        await client.request(1001, key(1), key(2), cache="kv")
        rpc = await pair.rpc(tls=context)
        assert not (await rpc.call("/perper.Fabric/AllExecutions", {"agent": "a"})).executions


async def test_clients_that_never_say_hello_are_sent_away() -> None:
    async with served(Config(perper=Perper(login_s=1))) as pair:
        client = await pair.client()
        reader, writer = await asyncio.open_connection(*pair.ignite)
        assert await asyncio.wait_for(reader.read(), 60) == b""
        await hang_up(writer)
        await client.request(1052, "kv")  # who has said hello may be silent for as long as it likes


async def test_requests_in_the_same_packet_as_the_handshake() -> None:
    async with served() as pair:
        reader, writer = await asyncio.open_connection(*pair.ignite)
        hello = codec.encode_handshake(codec.Handshake((1, 7, 0), 2, b"\x04"))
        names = codec.encode_request(codec.Request(1050, 1, ()))
        writer.write(hello + names + names[:3])
        await reader.readexactly(4 + 24)
        writer.write(names[3:])
        for _ in range(2):
            length = struct.unpack("<i", await reader.readexactly(4))[0]
            assert b"executions" in await asyncio.wait_for(reader.readexactly(length), 60)
        await hang_up(writer)


@pytest.mark.parametrize("size", [20_000, 200_000])
async def test_a_large_request_in_the_same_packet_as_the_handshake(size: int) -> None:
    """Its size is nothing that a handshake may not have."""
    async with served() as pair:
        reader, writer = await asyncio.open_connection(*pair.ignite)
        hello = codec.encode_handshake(codec.Handshake((1, 7, 0), 2, b"\x04"))
        unknown = codec.frame(struct.pack("<hq", 30_000, 7) + bytes(size))
        writer.write(hello + unknown)
        await reader.readexactly(4 + 24)
        length = struct.unpack("<i", await reader.readexactly(4))[0]
        answer = await asyncio.wait_for(reader.readexactly(length), 60)
        assert struct.unpack_from("<q", answer) == (7,)
        await hang_up(writer)


async def test_any_name_will_do_where_nobody_has_one() -> None:
    async with served() as pair:
        client = await pair.client(user="ignite", password="ignite")
        await client.request(1052, "kv")


async def test_a_stream_with_damaged_records_serves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.errors import Damaged

    disk = MemoryDisk()
    async with served(disk=disk) as pair:
        client = await pair.client()
        await new_stream(client, "s")
        for number in range(6):
            await client.request(1002, key(number), key(f"v{number}"), cache="s")
    async with served(disk=disk) as pair:
        scan = pair.hub.scan

        def damaged(name: str, start: int, end: int, **more: object) -> object:
            if start < 4:
                yield from scan(name, start, 2, **more)  # type: ignore[arg-type]
                raise Damaged(name, 0, 2, 3)
            yield from scan(name, start, end, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(pair.fabric.hub, "scan", damaged)
        client = await pair.client()
        page = await client.request(2000, b"\x65", 10, -1, False, cache="s")
        assert dict(page.rows) == {key(number): key(f"v{number}") for number in (0, 1, 4, 5)}
        for op in (1000, 1011):  # one that is damaged is not absent
            with pytest.raises(PeerError, match="are damaged"):
                await client.request(op, key(2), cache="s")
        assert await client.request(1002, key(2), key("again"), cache="s")
        assert await client.request(1000, key(2), cache="s") == key("again")
        await pair.hub.trim("s", 4)
        assert await client.request(1000, key(3), cache="s") == b"e"


async def test_a_client_that_has_lost_its_server_says_so() -> None:
    """Also for what is asked after that: it waited for ever."""
    async with served() as pair:
        client, rpc = await pair.client(), await pair.rpc()
        client._transport.abort()
        rpc._transport.abort()
        await client.lost
        await rpc.lost
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(client.request(1050), 60)
        with pytest.raises(RpcError):
            await asyncio.wait_for(rpc.call("/perper.Fabric/ExecutionFinished", {"execution": "x"}), 60)
