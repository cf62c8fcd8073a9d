"""The client against a hub over real sockets, and against executors that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.futoin_peer import MASTER_ID, MASTER_KEY
from support.until import until
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

import headrace.serving.http
from headrace.cli.tls import make_self_signed
from headrace.config import Futoin, Tls
from headrace.log.batch import Batch
from headrace.protocols.futoin import client as client_module
from headrace.protocols.futoin import server
from headrace.protocols.futoin.client import Client, Event, MasterSigner, Ordering, Receiver, RemoteError, Signer
from headrace.protocols.futoin.codec import Coding
from headrace.protocols.futoin.errors import PeerError
from headrace.protocols.futoin.interface import SERVICE_RESTART, UNHEARD
from headrace.protocols.futoin.service import cursor_name
from headrace.testing import memory_hub

SEC = "evtuser:evtpass"
MAC_KEY = "TXlMb25nVGVzdFNlY3JldEtleS0wMTIzNDU2Nzg5"


class Served:
    def __init__(self, hub: Any, address: str) -> None:
        self.hub = hub
        self.url = f"ws://{address}/futoin/events"


@pytest.fixture
async def served(config: Any, monkeypatch: Any) -> AsyncIterator[Served]:
    async with memory_hub(config) as hub:
        futoin = await server.start(hub)
        assert futoin is not None
        listener = await headrace.serving.http.serve(hub, "127.0.0.1:0")
        try:
            yield Served(hub, listener.address)
        finally:
            await listener.close()
            await futoin.close()


pytestmark = pytest.mark.parametrize("config", [{"insecure": True}], indirect=True)


@contextlib.asynccontextmanager
async def running(receiver: Receiver) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(receiver.run())
    try:
        await asyncio.wait_for(receiver.ready.wait(), 60)
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("coding", list(Coding))
@pytest.mark.parametrize(
    "credentials",
    [SEC, None, Signer.from_base64("macuser", MAC_KEY), MasterSigner(MASTER_ID, MASTER_KEY, "hub.example", "p")],
    ids=["plain", "none", "mac", "master"],
)
async def test_functions(served: Served, coding: Coding, credentials: Any) -> None:
    async with await Client.connect(served.url, credentials, coding=coding) as client:
        assert await client.ping(5) == 5
        assert [await client.add("A", data) for data in ({"x": 1.5}, None)] == [1, 2]
        await client.register("C")
        first, second = await client.poll("C")
        assert (first.id, first.type, first.data) == (1, "A", {"x": 1.5})
        assert await client.poll("C", second.id) == []
        with pytest.raises(RemoteError) as caught:
            await client.poll("D")
        assert caught.value.name == "NotRegistered"


async def test_over_tls_without_insecure(tmp_path: Path, config: Any) -> None:
    """SecureChannel as FTN18 wants it: TLS on the listener, a user, no exceptions."""
    key, certificate = make_self_signed(["127.0.0.1"])
    for name, content in (("key.pem", key), ("certificate.pem", certificate)):
        (tmp_path / name).write_bytes(content)
    files = Tls(certificate=str(tmp_path / "certificate.pem"), key=str(tmp_path / "key.pem"))
    async with memory_hub(msgspec.structs.replace(config, tls=files, futoin=Futoin())) as hub:
        futoin = await server.start(hub)
        assert futoin is not None
        listener = await headrace.serving.http.serve(hub, "127.0.0.1:0")
        trust = ssl.create_default_context(cafile=files.certificate)
        try:
            async with await Client.connect(f"wss://{listener.address}/futoin/events", SEC, ssl=trust) as client:
                assert await client.add("A", 1) == 1
            async with await Client.connect(f"wss://{listener.address}/futoin/events", ssl=trust) as client:
                with pytest.raises(RemoteError, match="Anonymous not allowed"):
                    await client.add("A", 1)
        finally:
            await listener.close()
            await futoin.close()


async def test_message_over_the_limit_closes_the_connection_and_nothing_else(served: Served) -> None:
    async with connect(served.url) as websocket:
        await websocket.send(b" " * (served.hub.config.futoin.message_bytes_max + 1))
        with pytest.raises(ConnectionClosed) as caught:
            await websocket.recv()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009
    async with await Client.connect(served.url, SEC) as client:
        assert await client.ping(1) == 1


async def test_body_of_100_megabytes_is_refused_at_once(served: Served) -> None:
    address, _, path = served.url.removeprefix("ws://").partition("/")
    reader, writer = await asyncio.open_connection(*address.split(":"))
    writer.write(
        f"POST /{path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 100000000\r\n\r\n".encode() + b"x" * 10_000
    )
    assert (await asyncio.wait_for(reader.readline(), 60)).startswith(b"HTTP/1.1 413 ")
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_many_calls_at_once(served: Served) -> None:
    async with await Client.connect(served.url, SEC) as client:
        assert await asyncio.gather(*(client.add("A", number) for number in range(200))) == list(range(1, 201))


async def test_follow(served: Served) -> None:
    async with await Client.connect(served.url, SEC) as client:
        await client.register("C")
        seen: list[int] = []
        adding = asyncio.create_task(client.add("A", 0))
        async for events in client.follow("C"):
            seen += [event.id for event in events]
            if len(seen) == 3:
                break
            await client.add("A", len(seen))
        await adding
        assert seen == [1, 2, 3]


async def test_wrong_secret(served: Served) -> None:
    async with await Client.connect(served.url, "evtuser:no") as client:
        with pytest.raises(RemoteError, match="SecurityError"):
            await client.ping(1)
    receiver = Receiver(served.url, "evtuser:no", handle=lambda events: asyncio.sleep(0), component="C")
    with pytest.raises(RemoteError, match="SecurityError"):
        await asyncio.wait_for(receiver.run(), 60)


async def test_closed_client(served: Served) -> None:
    client = await Client.connect(served.url, SEC)
    await client.close()
    with pytest.raises(RemoteError, match="CommError"):
        await client.ping(1)


@pytest.mark.parametrize("coding", [Coding.JSON, Coding.MESSAGEPACK])
async def test_reliable_receiver(served: Served, coding: Coding) -> None:
    await served.hub.create_stream("events")
    await served.hub.append("events", Batch.of([b"%d" % number for number in range(2500)], types="A"))
    seen: list[Event] = []

    async def handle(events: list[Event]) -> None:
        seen.extend(events)

    receiver = Receiver(served.url, SEC, handle=handle, component="C", coding=coding)
    async with running(receiver):
        await until(lambda: len(seen) == 2500)
        await until(lambda: served.hub.cursor(cursor_name("evtuser", "C"), "events") == 2500)
    assert [event.id for event in seen] == list(range(1, 2501))


async def test_receiver_that_fails_gets_the_group_again(served: Served) -> None:
    seen: list[int] = []
    failures = [ValueError("first"), ValueError("second")]

    async def handle(events: list[Event]) -> None:
        if failures:
            raise failures.pop()
        seen.extend(event.id for event in events)

    async with running(Receiver(served.url, SEC, handle=handle, component="C")):
        async with await Client.connect(served.url, SEC) as client:
            await client.add("A", 1)
        await until(lambda: seen == [1])


async def test_live_receiver(served: Served) -> None:
    seen: list[int] = []

    async def handle(events: list[Event]) -> None:
        seen.extend(event.id for event in events)

    receiver = Receiver(served.url, SEC, handle=handle, want=["A"])
    async with running(receiver), await Client.connect(served.url, SEC) as client:
        await asyncio.gather(*(client.add(kind, 1) for kind in "ABABA"))
        await until(lambda: len(seen) == 3)
    assert receiver.missed_groups == 0


# -- executors that misbehave ------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def executor(handler: Callable[[ServerConnection], Awaitable[None]]) -> AsyncIterator[str]:
    async with serve(handler, "127.0.0.1", 0) as listening:
        host, port = next(iter(listening.sockets)).getsockname()[:2]
        yield f"ws://{host}:{port}/"


def group(rid: str, seq: Any, ids: list[int]) -> str:
    events = [{"id": str(number), "type": "A", "data": number, "ts": "2026-01-01T00:00:00Z"} for number in ids]
    return json.dumps({"f": "futoin.evt.receiver:1.1:onEvents", "p": {"seq": seq, "events": events}, "rid": rid})


async def accept_calls(websocket: ServerConnection, count: int) -> None:
    for _ in range(count):
        await websocket.send(json.dumps({"r": True, "rid": json.loads(await websocket.recv())["rid"]}))


async def test_groups_out_of_order_are_put_in_order(config: Any) -> None:
    answers: list[Any] = []
    done = asyncio.Event()

    async def handler(websocket: ServerConnection) -> None:
        await accept_calls(websocket, 2)
        for rid, seq, ids in (("S1", 2, [5, 6]), ("S2", 0, [1, 2]), ("S3", 1, [3, 4]), ("S4", 1, [3, 4])):
            await websocket.send(group(rid, seq, ids))
        answers.extend([json.loads(await websocket.recv()) for _ in range(4)])
        done.set()
        await websocket.wait_closed()

    seen: list[int] = []

    async def handle(events: list[Event]) -> None:
        seen.extend(event.id for event in events)

    async with executor(handler) as url, running(Receiver(url, handle=handle, component="C")):
        await asyncio.wait_for(done.wait(), 60)
    assert seen == [1, 2, 3, 4, 5, 6]
    assert sorted(answer["rid"] for answer in answers) == ["S1", "S2", "S3", "S4"]
    assert all(answer["r"] is True for answer in answers)


async def test_receiver_reconnects_and_gives_nothing_twice(config: Any) -> None:
    """The hub lost the last confirmation, as after a crash: it begins again with seq 0 and events already given."""
    groups = [[1, 2], [1, 2, 3]]

    async def handler(websocket: ServerConnection) -> None:
        await accept_calls(websocket, 2)
        await websocket.send(group("S1", 0, groups.pop(0)))
        await websocket.recv()
        if not groups:
            await websocket.wait_closed()

    seen: list[int] = []

    async def handle(events: list[Event]) -> None:
        seen.extend(event.id for event in events)

    async with executor(handler) as url, running(Receiver(url, handle=handle, component="C")):
        await until(lambda: len(seen) >= 3)
    assert seen == [1, 2, 3]


async def test_live_gaps_are_counted(config: Any) -> None:
    done = asyncio.Event()

    async def handler(websocket: ServerConnection) -> None:
        await accept_calls(websocket, 1)
        for rid, seq, ids in (("S1", 0, [1]), ("S2", 3, [7])):
            await websocket.send(group(rid, seq, ids))
            await websocket.recv()
        done.set()
        await websocket.wait_closed()

    receiver = Receiver("", handle=lambda events: asyncio.sleep(0))
    async with executor(handler) as url:
        receiver._url = url
        async with running(receiver):
            await asyncio.wait_for(done.wait(), 60)
    assert receiver.missed_groups == 2


BAD_CALLS = [
    ('{"f":"futoin.evt.receiver:1.1:other","p":{},"rid":"S1"}', "UnknownInterface"),
    ('{"f":"futoin.evt.receiver:1.1:onEvents","p":{"seq":-1,"events":[]},"rid":"S1"}', "InvalidRequest"),
    ('{"f":"futoin.evt.receiver:1.1:onEvents","p":{"seq":0,"events":[{"id":"x"}]},"rid":"S1"}', "InvalidRequest"),
    (group("S1", 1000, [1]), "InvalidRequest"),
    ('{"f":5,"rid":"S1"}', "UnknownInterface"),
]


@pytest.mark.parametrize(("call", "error"), BAD_CALLS)
async def test_bad_calls_are_refused(config: Any, call: str, error: str) -> None:
    answers: list[Any] = []
    done = asyncio.Event()

    async def handler(websocket: ServerConnection) -> None:
        await accept_calls(websocket, 2)
        for ignored in ("{", "[]", '{"r":1,"rid":"C99"}', '{"r":1}'):
            await websocket.send(ignored)
        await websocket.send(call)
        answers.append(json.loads(await websocket.recv()))
        done.set()
        await websocket.wait_closed()

    async with executor(handler) as url, running(Receiver(url, handle=lambda e: asyncio.sleep(0), component="C")):
        await asyncio.wait_for(done.wait(), 60)
    assert (answers[0]["e"], answers[0]["rid"]) == (error, "S1")


async def test_nobody_ready(config: Any) -> None:
    answers: list[Any] = []

    async def handler(websocket: ServerConnection) -> None:
        await websocket.send(group("S1", 0, [1]))
        answers.append(json.loads(await websocket.recv()))

    async with executor(handler) as url, await Client.connect(url) as client:
        await asyncio.wait_for(client.closed.wait(), 60)
    assert answers[0]["e"] == "UnknownInterface"


@pytest.mark.parametrize("reply", [{"r": 1}, {"r": 1, "sec": "AAAA"}, {"r": 1, "sec": 5}])
async def test_unsigned_or_wrongly_signed_reply_is_not_taken(config: Any, reply: dict[str, Any]) -> None:
    async def handler(websocket: ServerConnection) -> None:
        await websocket.send(json.dumps({**reply, "rid": json.loads(await websocket.recv())["rid"]}))
        await websocket.wait_closed()

    async with executor(handler) as url, await Client.connect(url, Signer("u", b"key")) as client:
        with pytest.raises(RemoteError, match="SecurityError"):
            await client.ping(1)


async def test_lost_connection_fails_the_calls(config: Any) -> None:
    async def handler(websocket: ServerConnection) -> None:
        await websocket.recv()

    async with executor(handler) as url, await Client.connect(url) as client:
        with pytest.raises(RemoteError, match="CommError"):
            await client.add("A", 1)


@pytest.mark.parametrize(("reason", "is_safe"), [(UNHEARD, True), ("", False)])
async def test_what_a_stopping_hub_has_not_heard_is_sent_again(config: Any, reason: str, is_safe: bool) -> None:
    """Only when it says so: any other end may have come after the request was carried out."""
    heard: list[str] = []

    async def handler(websocket: ServerConnection) -> None:
        request = json.loads(await websocket.recv())
        heard.append(request["p"]["type"])
        if len(heard) == 1:
            await websocket.close(SERVICE_RESTART, reason)
            return
        await websocket.send(json.dumps({"r": "7", "rid": request["rid"]}))
        await websocket.wait_closed()

    async with executor(handler) as url, await Client.connect(url) as client:
        if is_safe:
            assert await client.add("A", 1) == 7
            assert heard == ["A", "A"]
            assert client.connections == 2
        else:
            with pytest.raises(RemoteError, match="CommError"):
                await client.add("A", 1)


async def test_a_hub_that_does_not_come_back_is_given_up(config: Any) -> None:
    async def handler(websocket: ServerConnection) -> None:
        await websocket.recv()
        stopped.set()
        await websocket.close(SERVICE_RESTART, UNHEARD)

    stopped = asyncio.Event()
    async with executor(handler) as url:
        client = await Client.connect(url, restart_s=0.01)
        adding = asyncio.ensure_future(client.add("A", 1))
        await stopped.wait()
    with pytest.raises(RemoteError, match="CommError"):
        await adding
    await client.close()
    never = Client.connect(url, restart_s=0)
    with pytest.raises(OSError, match="Connect"):
        await never


async def test_receiver_keeps_trying(config: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(client_module, "RECONNECT_MIN_S", 0.001)
    attempts = 0
    enough = asyncio.Event()

    async def handler(websocket: ServerConnection) -> None:
        nonlocal attempts
        attempts += 1
        if attempts >= 3:
            enough.set()
            await accept_calls(websocket, 2)
            await websocket.wait_closed()

    async with executor(handler) as url:
        receiver = Receiver(url, handle=lambda events: asyncio.sleep(0), component="C")
        async with running(receiver):
            await asyncio.wait_for(enough.wait(), 60)
    task = asyncio.create_task(receiver.run())  # nobody listens there any more
    await asyncio.sleep(0.02)
    assert not task.done()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("error", ["DefenseRejected", "InternalError"])
async def test_receiver_waits_for_what_may_pass(config: Any, monkeypatch: Any, error: str) -> None:
    """A hub that is busy or about to stop says so and comes back: the receiver must too."""
    monkeypatch.setattr(client_module, "RECONNECT_MIN_S", 0.001)
    refusals = 2

    async def handler(websocket: ServerConnection) -> None:
        nonlocal refusals
        if refusals:
            refusals -= 1
            await websocket.send(json.dumps({"e": error, "rid": json.loads(await websocket.recv())["rid"]}))
        else:
            await accept_calls(websocket, 2)
        await websocket.wait_closed()

    async with executor(handler) as url:
        receiver = Receiver(url, handle=lambda events: asyncio.sleep(0), component="C")
        async with running(receiver) as task:
            assert not task.done()


async def test_ordering(config: Any) -> None:
    ordering = Ordering()
    waiting = asyncio.create_task(ordering.turn(1))
    assert await ordering.turn(0)
    ordering.done(0)
    assert await waiting
    ordering.done(1)
    ordering.done(0)
    assert ordering.next_seq == 2
    assert not await ordering.turn(0)
    with pytest.raises(PeerError):
        await ordering.turn(2 + client_module.PARKED_MAX + 1)
