"""WebSocket: messages good and bad, many at once, limits, and peers that leave or do not read."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from headrace.config import Config, Limits
from headrace.log.batch import Batch
from headrace.protocols.futoin import codec, connection
from headrace.protocols.futoin.codec import Coding
from headrace.protocols.futoin.server import Application
from headrace.testing import memory_hub

ADD = "futoin.evt.gen:1.1:addEvent"
PING = "futoin.evt.gen:1.1:ping"
SEC = "evtuser:evtpass"


async def test_accepted_with_the_first_subprotocol(asgi: Any) -> None:
    async with asgi.websocket() as peer:
        assert peer.accepted == {"type": "websocket.accept", "subprotocol": None}
    peer = asgi.websocket()
    peer._scope["subprotocols"] = ["a", "b"]
    async with peer:
        assert peer.accepted["subprotocol"] == "a"


@pytest.mark.parametrize("path", ["/", "/a/futoin.ping/1.0/ping"])
async def test_refused_where_there_is_no_stream(asgi: Any, path: str) -> None:
    async with asgi.websocket(path) as peer:
        assert peer.accepted is None
        assert peer.closed == 1008


async def test_refused_when_there_are_too_many_sessions() -> None:
    async with memory_hub(Config(limits=Limits(sessions_max=1))) as hub:
        hub.sessions.open("other", "peer", dict)
        refused: list[Any] = []

        async def receive() -> Any:
            return {"type": "websocket.connect"}

        async def send(message: Any) -> None:
            refused.append(message)

        scope = {"type": "websocket", "path": "/events", "scheme": "ws", "client": None, "headers": []}
        await Application(hub)(scope, receive, send)
        assert refused == [{"type": "websocket.close", "code": 1008}]


async def test_calls_and_replies(asgi: Any) -> None:
    async with asgi.websocket() as peer:
        assert await peer.call(PING, echo=3) == {"r": {"echo": 3}}
        assert await peer.call(ADD, type="A", data=1) == {"r": "1"}
        assert await peer.call("futoin.evt.poll:1.0:registerConsumer", component="C") == {"r": True}
        events = (await peer.call("futoin.evt.push:1.0:pollEvents", component="C"))["r"]
        assert [event["id"] for event in events] == ["1"]


async def test_text_frames(asgi: Any) -> None:
    async with asgi.websocket() as peer:
        peer.send(json.dumps({"f": PING, "p": {"echo": 1}, "sec": SEC, "rid": "C1"}))
        assert await peer.next() == {"r": {"echo": 1}, "rid": "C1"}


async def test_codings_may_be_mixed(asgi: Any) -> None:
    async with asgi.websocket() as peer:
        for coding in (Coding.MESSAGEPACK, Coding.JSON, Coding.CBOR, Coding.MESSAGEPACK):
            peer.send(codec.request(ADD, {"type": "A", "data": coding.value}, "C1", SEC, coding))
            reply = await peer.next_bytes()
            assert codec.coding_of(reply) is coding
            assert codec.decode_object(reply, coding)["rid"] == "C1"


@pytest.mark.parametrize("coding", list(Coding))
@pytest.mark.parametrize("rid", ["X1", "1", "", 'odd"rid', "s9", 7, 0, -1, 2**63 - 1, 1.5])
async def test_odd_rids_are_echoed(asgi: Any, rid: Any, coding: Coding) -> None:
    async with asgi.websocket() as peer:
        peer.send(codec.request(PING, {"echo": 1}, rid, SEC, coding))
        reply = codec.decode_object(await peer.next_bytes(), coding)
        assert reply == {"r": {"echo": 1}, "rid": rid}
        assert type(reply["rid"]) is type(rid)


@pytest.mark.parametrize("rid", [7, "X1"])
async def test_errors_have_the_rid_of_the_request(asgi: Any, rid: Any) -> None:
    async with asgi.websocket() as peer:
        peer.send({"f": "no.such:1.0:thing", "p": {}, "sec": SEC, "rid": rid})
        assert (await peer.next())["rid"] == rid


@pytest.mark.parametrize("rid", [True, [1], {"a": 1}, 2**70, -(2**70)])
async def test_rids_that_nobody_can_write_again_are_refused(asgi: Any, rid: Any) -> None:
    async with asgi.websocket() as peer:
        peer.send(json.dumps({"f": PING, "p": {"echo": 1}, "sec": SEC, "rid": rid}))
        reply = await peer.next()
        assert reply["e"] == "InvalidRequest"
        assert "rid" not in reply


@pytest.mark.parametrize("rid", ["S9", "S", "S1"])
async def test_requests_with_a_rid_of_ours_are_not_executed(asgi: Any, rid: str) -> None:
    """FTN3: S is for calls of the side that accepted the connection; the reference drops them unanswered."""
    async with asgi.websocket() as peer:
        peer.send({"f": ADD, "p": {"type": "A", "data": 1}, "sec": SEC, "rid": rid})
        peer.send({"f": "no.such:1.0:thing", "p": {}, "sec": SEC, "rid": rid})
        assert await peer.call(ADD, type="B", data=2) == {"r": "1"}


async def test_without_rid(asgi: Any) -> None:
    async with asgi.websocket() as peer:
        peer.send({"f": PING, "p": {"echo": 1}, "sec": SEC})
        assert await peer.next() == {"r": {"echo": 1}}


BAD_MESSAGES = [
    b"",
    b"null",
    b"[]",
    b"5",
    b"{bad",
    b"MPCK\xc1",
    b"CBOR",
    b"\xff",
    b'{"rid":5}',
    b'{"f":1,"p":2}',
    b"[" * 60_000,
]


@pytest.mark.parametrize("message", BAD_MESSAGES, ids=lambda message: repr(message[:10]))
async def test_bad_messages_are_answered_and_the_connection_stays(asgi: Any, message: bytes) -> None:
    async with asgi.websocket() as peer:
        peer.send(message)
        assert (await peer.next())["e"] == "InvalidRequest"
        assert await peer.call(PING, echo=3) == {"r": {"echo": 3}}


@pytest.mark.parametrize("answer", [{"r": True, "rid": "S1"}, {"e": "X", "rid": "S77"}, {"r": 1}, {"r": 1, "rid": 5}])
async def test_answers_to_nothing_are_dropped(asgi: Any, answer: Any) -> None:
    async with asgi.websocket() as peer:
        peer.send(answer)
        assert await peer.call(PING, echo=3) == {"r": {"echo": 3}}


async def test_message_over_the_limit_closes_with_1009(asgi: Any) -> None:
    limit = asgi.hub.config.futoin.message_bytes_max
    async with asgi.websocket() as peer:
        message = json.dumps({"f": PING, "p": {"echo": 1}, "sec": SEC}).encode()
        peer.send(message + b" " * (limit - len(message)))
        assert await peer.next() == {"r": {"echo": 1}}
        peer.send(message + b" " * (limit + 1 - len(message)))
        await asyncio.wait_for(peer.task, 60)
        assert peer.closed == 1009


async def test_many_adds_in_flight_keep_their_order(asgi: Any) -> None:
    async with asgi.websocket() as peer:
        for number in range(500):
            peer.send({"f": ADD, "p": {"type": "A", "data": number}, "sec": SEC, "rid": f"C{number}"})
        replies = [await peer.next() for _ in range(500)]
    assert replies == [{"r": str(number + 1), "rid": f"C{number}"} for number in range(500)]
    records = await asgi.hub.read("events", 0)
    assert records.column("payload").to_pylist() == [str(number).encode() for number in range(500)]


async def test_add_errors(asgi: Any) -> None:
    async with asgi.websocket() as peer:
        assert (await peer.call(ADD, type="A", data="x" * 64_000))["e"] == "InvalidRequest"
        assert (await peer.call(ADD, "reader:r", type="A", data=1))["e"] == "Unauthorized"
        assert (await peer.call(ADD, None, type="A", data=1))["e"] == "SecurityError"
        assert (await peer.call("futoin.evt.push:1.1:readyToReceive", component="C"))["e"] == "NotRegistered"


async def test_add_that_the_log_refuses(asgi: Any, monkeypatch: Any) -> None:
    async with asgi.websocket() as peer:
        await peer.call(ADD, type="A", data=1)
        monkeypatch.setattr(asgi.hub, "append", lambda *a, **k: (_ for _ in ()).throw(RuntimeError("bug")))
        assert (await peer.call(ADD, type="A", data=1))["e"] == "InternalError"
        assert await peer.call(PING, echo=3) == {"r": {"echo": 3}}


async def test_adding_waits_while_the_hub_is_congested(asgi: Any, monkeypatch: Any) -> None:
    async with asgi.websocket() as peer:
        await peer.call(ADD, type="A", data=0)
        drained = asyncio.Event()
        monkeypatch.setattr(type(asgi.hub), "congested", property(lambda hub: not drained.is_set()))
        monkeypatch.setattr(asgi.hub, "drained", drained.wait)
        adding = asyncio.create_task(peer.call(ADD, type="A", data=1))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not adding.done()
        drained.set()
        assert await adding == {"r": "2"}


@pytest.mark.parametrize("config", [{"calls_max": 4}], indirect=True)
async def test_calls_under_way_are_limited(asgi: Any, monkeypatch: Any) -> None:
    """A peer that asks without end is read no further than the limit."""
    await asgi.add(0)
    append = asgi.hub.append
    held: list[Any] = []
    go = asyncio.Event()

    def slow(*arguments: Any, **more: Any) -> Any:
        async def later() -> Any:
            await go.wait()
            return await append(*arguments, **more)

        held.append(1)
        return asyncio.ensure_future(later())

    monkeypatch.setattr(asgi.hub, "append", slow)
    async with asgi.websocket() as peer:
        for number in range(20):
            peer.send({"f": ADD, "p": {"type": "A", "data": number}, "sec": SEC, "rid": f"C{number}"})
        for _ in range(50):
            await asyncio.sleep(0)
        assert peer._to_app.qsize() >= 15
        go.set()
        assert [(await peer.next())["r"] for _ in range(20)] == [str(number + 2) for number in range(20)]


async def test_peer_that_does_not_read_is_not_read_either(asgi: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(connection, "OUTGOING_MAX", 8)
    async with asgi.websocket() as peer:
        peer.taking.clear()
        for number in range(100):
            peer.send({"f": PING, "p": {"echo": number}, "sec": SEC})
        for _ in range(100):
            await asyncio.sleep(0)
        assert peer._to_app.qsize() >= 80
        peer.taking.set()
        assert [(await peer.next())["r"]["echo"] for _ in range(100)] == list(range(100))


class TestMemoryOfAPeerThatTakesNothing:
    """Lists of events are as large as 8 MiB; the peer may ask for any number of them."""

    LIST_BYTES = 100 * 1000

    async def fill(self, asgi: Any) -> None:
        await asgi.hub.create_stream("events")
        await asgi.hub.append("events", Batch.of([b'"' + b"x" * 998 + b'"'] * 100, types="A"))

    async def waiting_bytes(self, asgi: Any) -> int:
        (served,) = asgi.app._connections
        await asyncio.sleep(0.2)
        return sum(map(len, served._outgoing))

    async def test_polls(self, asgi: Any, monkeypatch: Any) -> None:
        monkeypatch.setattr(connection, "OUTGOING_BYTES_MAX", 4 * self.LIST_BYTES)
        await self.fill(asgi)
        async with asgi.websocket() as peer:
            peer.taking.clear()
            for number in range(100):
                params = {"component": "LIVE"}
                peer.send({"f": "futoin.evt.poll:1.1:pollEvents", "p": params, "sec": SEC, "rid": f"C{number}"})
            assert await self.waiting_bytes(asgi) < 12 * self.LIST_BYTES
            peer.taking.set()
            assert {(await peer.next())["rid"] for _ in range(100)} == {f"C{number}" for number in range(100)}

    async def test_groups_of_many_components(self, asgi: Any, monkeypatch: Any) -> None:
        monkeypatch.setattr(connection, "OUTGOING_BYTES_MAX", 4 * self.LIST_BYTES)
        async with asgi.websocket() as peer:
            for number in range(50):
                await peer.ready(f"C{number}")
            peer.taking.clear()
            await self.fill(asgi)
            assert await self.waiting_bytes(asgi) < 12 * self.LIST_BYTES
            peer.taking.set()
            for _ in range(50):
                rid, _, events = await peer.group()
                peer.confirm(rid)
                assert len(events) == 100

    async def test_long_errors(self, asgi: Any, monkeypatch: Any) -> None:
        monkeypatch.setattr(connection, "OUTGOING_BYTES_MAX", 100_000)
        async with asgi.websocket() as peer:
            peer.taking.clear()
            for _ in range(20):
                peer.send({"f": "x" * 50_000 + ":1.0:y", "p": {}})
            assert await self.waiting_bytes(asgi) < 200_000
            peer.taking.set()
            for _ in range(20):
                assert (await peer.next())["e"] == "UnknownInterface"


async def test_peer_that_leaves_with_calls_under_way(asgi: Any) -> None:
    peer = asgi.websocket()
    async with peer:
        peer.taking.clear()
        for number in range(10):
            peer.send({"f": ADD, "p": {"type": "A", "data": number}, "sec": SEC})
    assert asgi.hub.sessions.list("futoin") == []
    await asgi.add(1)


async def test_peer_that_breaks_while_it_is_written_to(asgi: Any) -> None:
    async with asgi.websocket() as peer:
        (served,) = asgi.app._connections

        async def broken(message: Any) -> None:
            raise OSError("gone")

        served._send = broken
        for _ in range(2):  # the first finds out, the second comes when the writer has ended
            peer.send({"f": PING, "p": {"echo": 1}, "sec": SEC})
    assert asgi.hub.sessions.list("futoin") == []


async def test_peer_that_breaks_while_it_is_waited_for(asgi: Any, monkeypatch: Any) -> None:
    """It asked without reading until it was read no further, and left: nothing may wait for it for ever."""
    monkeypatch.setattr(connection, "OUTGOING_MAX", 8)
    async with asgi.websocket() as peer:
        (served,) = asgi.app._connections
        gone = asyncio.Event()

        async def breaks(message: Any) -> None:
            await gone.wait()
            raise OSError("gone")

        served._send = breaks
        for _ in range(20):
            peer.send({"f": PING, "p": {"echo": 1}, "sec": SEC})
        while peer._to_app.qsize() > 12:
            await asyncio.sleep(0)
        gone.set()
    assert asgi.hub.sessions.list("futoin") == []


async def test_session_is_shown(asgi: Any) -> None:
    async with asgi.websocket() as peer:
        await peer.ready("LIVE")
        await peer.ready("C")
        (info,) = asgi.hub.sessions.list("futoin")
        assert info.peer == "192.0.2.1:5"
        assert info.details["stream"] == "events"
        assert info.details["user"] == "evtuser"
        assert [receiver["component"] for receiver in info.details["receivers"]] == ["C", "LIVE"]
    (ended,) = asgi.hub.sessions.list("futoin", ended=True)
    assert ended.closed_us is not None


async def test_close_ends_connections(asgi: Any) -> None:
    async with asgi.websocket() as peer:
        await peer.ready("C")
        asgi.app.close()
        assert asgi.hub.sessions.list("futoin") == []


async def test_two_reasons_to_end_are_one_goodbye(asgi: Any) -> None:
    """Uvicorn takes a second close for a mistake of ours, and says so with a traceback."""
    async with asgi.websocket() as peer:
        (served,) = asgi.app._connections
        sent, send = [], served._send

        async def noted(message: Any) -> None:
            sent.append(message)
            await send(message)

        served._send = noted
        served._push_ended()
        served.finish()
        await asyncio.wait_for(asyncio.gather(*served._tasks - {served._writer}), 60)
        assert [message["code"] for message in sent if message["type"] == "websocket.close"] == [1011]
        assert peer.closed == 1011
