"""The client against the real listener, and against hubs that misbehave."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from support.ockam_peer import hub_and_listener, with_anonymous
from support.until import DEADLINE_S, until

from headrace.config import Grant
from headrace.log.batch import Batch
from headrace.log.ops import StreamOptions
from headrace.protocols.ockam import codec
from headrace.protocols.ockam.client import (
    Connection,
    ConnectionLost,
    Consumer,
    Hole,
    NoAnswer,
    OckamError,
    Publisher,
    Refused,
    connect,
)
from headrace.protocols.ockam.client import find_holes as holes_of
from headrace.protocols.ockam.codec import StreamMessage
from headrace.protocols.ockam.connection import TIMEOUT_S, PushGroup, init_stream
from headrace.protocols.ockam.routing import RECORD_BYTES_MAX, LegacyFraming, Message, local
from headrace.protocols.ockam.server import OckamListener, serve

Answer = Callable[[Message], list[bytes]]


async def test_whoever_does_not_wait_for_a_push_is_not_warned_when_it_is_refused() -> None:
    """A publisher that loses its connection does not. Found by seed 641699 of the world."""
    seen: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: seen.append(context))
    group = PushGroup(1, 1, loop.create_future())
    group.confirm(codec.PushConfirm(1, False, 0))
    assert isinstance(group.future.exception(), Refused)
    group = PushGroup(1, 1, loop.create_future())
    group.confirm(codec.PushConfirm(1, False, 0))
    del group
    gc.collect()
    assert seen == []


@asynccontextmanager
async def connected(listener: OckamListener, framing: str = "legacy") -> AsyncIterator[Connection]:
    if framing == "cbor":
        assert listener.cbor_address is not None
        connection = await connect(listener.cbor_address, framing="cbor")
    else:
        connection = await connect(listener.address)
    async with connection:
        yield connection


@asynccontextmanager
async def scripted(answer: Answer) -> AsyncIterator[str]:
    """A hub that answers each message with whatever payloads or raw frames the test says."""

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(2), "big")
                message = LegacyFraming().decode(await reader.readexactly(size))
                for raw in answer(message):
                    writer.write(raw)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve_one, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"


def reply(message: Message, response: codec.Response, own: str = "ST_S_x") -> bytes:
    return LegacyFraming().encode(Message(message.returning, (local(own),), codec.encode_response(response)))


# --- one connection ---


@pytest.mark.parametrize("framing", ["legacy", "cbor"])
async def test_create_push_pull_index(framing: str) -> None:
    async with hub_and_listener() as (_, listener), connected(listener, framing) as connection:
        stream = await connection.create("orders")
        assert (stream.name, stream.partition) == ("orders", 0)
        assert await connection.push(stream, b"a") == 0
        groups = [connection.push_all(stream, [b"%d" % n] * 3) for n in range(5)]
        assert [await group for group in groups] == [[3 * n + 1, 3 * n + 2, 3 * n + 3] for n in range(5)]
        assert await connection.push_all(stream, []) == []
        assert (await connection.pull(stream, 0, 2)) == [StreamMessage(0, b"a"), StreamMessage(1, b"0")]
        assert await connection.get_index("me", stream) == 0
        connection.save_index("me", stream, 4)
        assert await connection.get_index("me", stream) == 4
        await connection.drain()


async def test_partitions_come_in_order() -> None:
    async with hub_and_listener() as (_, listener), connected(listener) as connection:
        streams = await connection.create_partitioned("p", 4)
        assert [stream.partition for stream in streams] == [0, 1, 2, 3]
        assert len({stream.route for stream in streams}) == 4
        anonymous = await connection.create()
        assert anonymous.name.startswith("generated_")


async def test_refusals_are_told() -> None:
    async with hub_and_listener() as (_, listener), connected(listener) as connection:
        with pytest.raises(Refused, match="Invalid request"):
            await connection.create("")
        stream = await connection.create("orders")
        refused = connection.push_all(stream, [b"fine", bytes(RECORD_BYTES_MAX + 1)])
        with pytest.raises(Refused, match="1 of 2 records"):
            await refused


async def test_silence_is_told() -> None:
    async with hub_and_listener() as (hub, listener), connected(listener) as connection:
        stream = await connection.create("orders")
        await hub.delete_stream("orders")
        connection.timeout_s = 0.01
        with pytest.raises(NoAnswer):
            await connection.pull(stream, 0, 1)


async def test_a_lost_connection_is_told_to_everyone_waiting() -> None:
    async with scripted(lambda message: []) as address:
        connection = await connect(address)
        stream = init_stream(((local("ST_S_x"),), codec.Init(codec.CREATE, "s")))
        pull = asyncio.ensure_future(connection.pull(stream, 0, 1))
        push = connection.push_all(stream, [b"a", b"b"])
        await asyncio.sleep(0)
        await connection.close()
        for waiting in (pull, push):
            with pytest.raises(ConnectionLost):
                await waiting
        for attempt in (connection.create("x"), connection.push(stream, b"x"), connection.drain()):
            with pytest.raises(ConnectionLost):
                await attempt
        with pytest.raises(ConnectionLost):
            connection.save_index("c", stream, 1)


async def test_closing_does_not_wait_for_a_hub_that_does_not_read() -> None:
    stop = asyncio.Event()

    async def never_read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await stop.wait()
        writer.close()

    async with await asyncio.start_server(never_read, "127.0.0.1", 0, limit=1) as server:
        host, port = server.sockets[0].getsockname()
        connection = await connect(f"{host}:{port}", timeout_s=0.1)
        stream = init_stream(((local("ST_S_x"),), codec.Init(codec.CREATE, "s")))
        push = connection.push_all(stream, [bytes(60_000)] * 400)
        async with asyncio.timeout(DEADLINE_S):
            await connection.close()
            with pytest.raises(ConnectionLost):
                await push
        stop.set()


async def test_nobody_listens() -> None:
    async with scripted(lambda message: []) as address:
        pass
    with pytest.raises(ConnectionLost, match="cannot connect"):
        await connect(address)


@pytest.mark.parametrize(
    "raw", [b"\x00\x01\x07", LegacyFraming().encode(Message((local("c1"),), (), b"nonsense"))], ids=["frame", "payload"]
)
async def test_nonsense_from_the_hub_ends_the_connection(raw: bytes) -> None:
    async with scripted(lambda message: [raw]) as address, await connect(address) as connection:
        with pytest.raises(ConnectionLost, match="cannot be decoded"):
            await connection.create("s")


async def test_wrong_version_byte() -> None:
    async with scripted(lambda message: []) as address:
        host, port = address.split(":")

        async def greet_wrong(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"\x07")
            await reader.read()
            writer.close()

        async with await asyncio.start_server(greet_wrong, host, 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with await connect(f"{host}:{port}", framing="cbor") as connection:
                with pytest.raises(ConnectionLost, match="version byte is 7"):
                    await connection.create("s")


async def test_replies_of_the_wrong_kind() -> None:
    confirm = codec.PushConfirm(1, True, 0)
    async with scripted(lambda message: [reply(message, confirm)]) as address, await connect(address) as connection:
        stream = init_stream(((local("ST_S_x"),), codec.Init(codec.CREATE, "s")))
        for attempt in (connection.create("s"), connection.pull(stream, 0, 1), connection.get_index("c", stream)):
            with pytest.raises(OckamError, match="answered by"):
                await attempt


async def test_stray_messages_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    heartbeat, empty = bytes.fromhex("000401000000"), b"\x00\x00"

    def answer(message: Message) -> list[bytes]:
        request = codec.decode_request(message.payload)
        stray = LegacyFraming().encode(Message((local("nobody"),), (), b""))
        if isinstance(request, codec.PushRequest):
            twice = reply(message, codec.PushConfirm(request.request_id, True, 5))
            return [heartbeat, empty, stray, twice, twice]
        return [reply(message, codec.Init(codec.CREATE, "s")), heartbeat]

    async with scripted(answer) as address, await connect(address) as connection:
        stream = await connection.create("s")
        with caplog.at_level(logging.WARNING):
            assert await connection.push(stream, b"x") == 5
            assert await connection.push(stream, b"y") == 5
        assert "is not waiting for one" in caplog.text


async def test_an_error_in_reply_to_a_push_ends_the_connection() -> None:
    """It has no request id, so nobody can say which push it means."""
    error = codec.Error("why")
    async with scripted(lambda message: [reply(message, error)]) as address, await connect(address) as connection:
        stream = init_stream(((local("ST_S_x"),), codec.Init(codec.CREATE, "s")))
        with pytest.raises(ConnectionLost):
            await connection.push(stream, b"x")


# --- holes ---


@pytest.mark.parametrize(
    ("indexes", "expected", "holes"),
    [
        ([0, 1, 2], 0, []),
        ([5, 6], 0, []),
        ([5, 6], 3, [Hole(3, 4)]),
        ([3, 7, 8, 10], 3, [Hole(4, 6), Hole(9, 9)]),
        ([], 3, []),
    ],
)
def test_find_holes(indexes: list[int], expected: int, holes: list[Hole]) -> None:
    assert holes_of([StreamMessage(index, b"") for index in indexes], expected) == holes


# --- publish and consume ---


async def test_consume_resumes_where_the_last_body_ended() -> None:
    async with hub_and_listener() as (hub, listener):
        async with Publisher(listener.address, "orders") as publisher:
            assert await publisher.publish_all([b"%d" % n for n in range(10)]) == list(range(10))

        async def consume(stop_after: int | None) -> list[int]:
            seen: list[int] = []
            async with Consumer(listener.address, "orders", client_id="c", limit=3, until_empty=True) as consumer:
                async for delivery in consumer:
                    seen += [message.index for message in delivery.messages]
                    if stop_after is not None and len(seen) >= stop_after:
                        raise RuntimeError("the body fails")
            return seen

        with pytest.raises(RuntimeError):
            await consume(6)
        async with connected(listener) as connection:
            stream = await connection.create("orders")
            assert await connection.get_index("c", stream) == 3
        assert await consume(None) == [3, 4, 5, 6, 7, 8, 9]
        await until(lambda: hub.cursor("ockam:c", "orders") == 10)  # saving is not confirmed in this protocol
        assert await consume(None) == []


async def test_saving_before_leaving_a_loop() -> None:
    async with hub_and_listener() as (_, listener):
        async with Publisher(listener.address, "orders") as publisher:
            await publisher.publish_all([b"x"] * 5)
        async with Consumer(listener.address, "orders", client_id="c", limit=2) as consumer:
            async for delivery in consumer:
                await consumer.save(delivery)
                break
            assert consumer.next_index == 2
        async with Consumer(listener.address, "orders", client_id="c", until_empty=True) as consumer:
            assert [[m.index for m in delivery.messages] async for delivery in consumer] == [[2, 3, 4]]


async def test_without_a_client_id_nothing_is_saved() -> None:
    async with hub_and_listener() as (hub, listener):
        async with Publisher(listener.address, "orders", partition=2) as publisher:
            await publisher.publish_all([b"a", b"b", b"c"])
        async with Consumer(listener.address, "orders", partition=2, start=1, until_empty=True) as consumer:
            assert [[m.data for m in delivery.messages] async for delivery in consumer] == [[b"b", b"c"]]
        assert hub.cursors() == []


async def test_holes_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    async with hub_and_listener() as (hub, listener):
        async with connected(listener) as connection:
            stream = await connection.create("orders")
            await hub.append("orders", Batch.of([b"0", b"1", bytes(100_000), b"3"]))
            connection.save_index("c", stream, 1)
            assert await connection.get_index("c", stream) == 1
        await hub.append("orders", Batch.of([b"4"]))
        async with Consumer(listener.address, "orders", client_id="c", until_empty=True) as consumer:
            deliveries = [delivery async for delivery in consumer]
        assert [hole for delivery in deliveries for hole in delivery.holes] == [Hole(2, 2)]
        assert [m.index for delivery in deliveries for m in delivery.messages] == [1, 3, 4]
        assert "indexes 2 to 2 were not delivered" in caplog.text


async def test_waiting_for_records_that_come_later() -> None:
    async with (
        hub_and_listener() as (_, listener),
        Publisher(listener.address, "orders") as publisher,
        Consumer(listener.address, "orders", client_id="c", idle_s=0.01) as consumer,
    ):
        published = asyncio.ensure_future(publisher.publish(b"late"))
        async with asyncio.timeout(DEADLINE_S):
            async for delivery in consumer:
                assert [m.data for m in delivery.messages] == [b"late"]
                break
        assert await published == 0


class Gate:
    """A way to the listener that can be cut; the listener behind it may be replaced."""

    def __init__(self, address: str, timeout_s: float = TIMEOUT_S) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self.connections: list[Connection] = []
        self.refuse = 0

    async def dial(self) -> Connection:
        if self.refuse:
            self.refuse -= 1
            raise ConnectionLost("refused by the test")
        self.connections.append(await connect(self.address, timeout_s=self.timeout_s))
        return self.connections[-1]

    def cut(self) -> None:
        for connection in self.connections:
            if connection._transport is not None:
                connection._transport.abort()


async def test_a_publisher_sends_again_in_order_what_was_not_confirmed() -> None:
    async with hub_and_listener() as (hub, listener):
        gate = Gate(listener.address)
        async with Publisher(gate.dial, "orders") as publisher:
            first = publisher.publish_all([b"a", b"b"])
            assert await first == [0, 1]
            gate.cut()
            gate.refuse = 2
            later = [publisher.publish_all([b"%d" % n]) for n in range(20)]
            async with asyncio.timeout(DEADLINE_S):
                indexes = [(await future)[0] for future in later]
            assert indexes == sorted(indexes)
        records = (await hub.read("orders", 0)).column("payload").to_pylist()
        assert [records[index] for index in indexes] == [b"%d" % n for n in range(20)]
        assert len(gate.connections) == 2


async def test_a_refused_publish_does_not_stop_the_others() -> None:
    async with hub_and_listener() as (_, listener), Publisher(listener.address, "orders") as publisher:
        refused, fine = publisher.publish(bytes(RECORD_BYTES_MAX + 1)), publisher.publish(b"fine")
        with pytest.raises(Refused):
            await refused
        assert await fine == 0


async def test_a_publish_that_no_frame_can_carry_is_refused_like_any_other() -> None:
    async with hub_and_listener() as (hub, listener), Publisher(listener.address, "orders") as publisher:
        async with asyncio.timeout(DEADLINE_S):
            together = publisher.publish_all([b"lost with it", bytes(70_000)])
            fine = publisher.publish(b"fine")
            with pytest.raises(Refused, match="above 65000"):
                await together
            assert await fine == 0
        assert hub.bounds("orders").next == 1


async def test_a_publisher_that_is_refused_when_it_comes_back_says_so_and_tries_again() -> None:
    async with hub_and_listener() as (hub, listener):
        gate = Gate(listener.address)
        async with Publisher(gate.dial, "orders") as publisher, asyncio.timeout(DEADLINE_S):
            assert await publisher.publish(b"a") == 0
            await hub.delete_stream("orders")
            await hub.create_table("orders")
            gate.cut()
            for refused in (publisher.publish(b"b"), publisher.publish(b"c")):
                with pytest.raises(Refused, match="is a table"):
                    await refused
            await hub.delete_table("orders")
            assert await publisher.publish(b"d") >= 1


async def test_a_stream_deleted_under_a_publisher_is_created_again() -> None:
    """The hub answers pushes to it with silence."""
    async with hub_and_listener() as (hub, listener):
        gate = Gate(listener.address)
        async with Publisher(gate.dial, "orders") as publisher, asyncio.timeout(DEADLINE_S):
            assert await publisher.publish(b"a") == 0
            await hub.delete_stream("orders")
            gate.connections[-1].timeout_s, gate.timeout_s = 0.01, 2
            lost, later = publisher.publish_all([b"b"]), publisher.publish_all([b"c"])
            assert [await lost, await later] == [[1], [2]]


async def test_confirms_that_take_long_are_waited_for() -> None:
    """The stream is there, though it may not be read: nothing is sent again."""
    config = with_anonymous("pusher")
    grants = {"pusher": [Grant(rights=["write"])]}
    config = msgspec.structs.replace(config, security=msgspec.structs.replace(config.security, roles=grants))
    async with hub_and_listener(config) as (hub, listener):
        await hub.create_stream("orders", options=StreamOptions(ack="processed:billing"))
        gate = Gate(listener.address, timeout_s=0.05)
        async with Publisher(gate.dial, "orders") as publisher, asyncio.timeout(DEADLINE_S):
            published = asyncio.ensure_future(publisher.publish(b"a"))
            await until(lambda: len(gate.connections) >= 4)
            assert hub.bounds("orders").next == 1
            await hub.save_cursor("billing", "orders", 1)
            assert await published == 0


async def test_leaving_a_publisher_cancels_what_is_unconfirmed() -> None:
    async with hub_and_listener() as (_, listener):
        gate = Gate(listener.address)
        async with Publisher(gate.dial, "orders") as publisher:
            gate.refuse = 1_000
            gate.cut()
            abandoned = publisher.publish_all([b"x"])
        with pytest.raises(asyncio.CancelledError):
            await abandoned


async def test_a_consumer_goes_on_after_a_restart_of_the_listener() -> None:
    async with hub_and_listener() as (hub, listener):
        gate = Gate(listener.address)
        await hub.create_stream("orders")
        await hub.append("orders", Batch.of([b"%d" % n for n in range(6)]))
        seen: list[int] = []
        second: OckamListener | None = None
        async with Consumer(gate.dial, "orders", client_id="c", limit=2, until_empty=True) as consumer:
            async for delivery in consumer:
                seen += [message.index for message in delivery.messages]
                if second is None:
                    await listener.close()
                    second = await serve(hub, "127.0.0.1:0")
                    gate.address = second.address
                    gate.refuse = 1
        assert seen == [0, 1, 2, 3, 4, 5]
        await until(lambda: hub.cursor("ockam:c", "orders") == 6)
        assert second is not None
        await second.close()


async def test_a_refusal_while_opening_is_not_tried_again() -> None:
    async with hub_and_listener() as (_, listener):
        with pytest.raises(Refused):
            async with Publisher(listener.address, ""):
                pass
