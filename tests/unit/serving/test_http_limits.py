"""What a peer may send to the HTTP port before it is understood: both sides of each limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.intake import ended, later
from support.perper_peer import hang_up
from support.until import until

from headrace.config import Config, Http, Limits, SecuritySection, User
from headrace.config.address import split_address
from headrace.hub.base import HubBase
from headrace.serving.http import serve
from headrace.serving.http_connection import (
    MESSAGES_AHEAD,
    PIECE_BYTES,
    HttpConnection,
    WebSocketConnection,
    recognized,
)

ASKED = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n"
SIGNED = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer secret\r\n\r\n"


class Peer:
    """A socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> Peer:
        self.writer.write(data)
        return self

    async def status(self) -> int:
        """Of the next answer, whose body is read away."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        if b"content-length: " in head:
            await self.reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
        return int(head.split()[1])

    async def ended(self) -> bool:
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True


class Served:
    """A hub with an HTTP listener."""

    def __init__(self, hub: HubBase, address: str) -> None:
        self.hub = hub
        self._address = split_address(address)
        self._peers: list[Peer] = []

    async def peer(self) -> Peer:
        peer = Peer(*await asyncio.open_connection(*self._address))
        self._peers.append(peer)
        return peer

    async def close(self) -> None:
        for peer in self._peers:
            await hang_up(peer.writer)

    def ended(self, reason: str) -> float:
        return ended(self.hub, "http", reason)


@asynccontextmanager
async def serving(
    path: Path, http: Http | None = None, limits: Limits | None = None, application: Any = None, **more: Any
) -> AsyncIterator[Served]:
    """With an application at `/ws`, if there is one."""
    hub = HubBase(Config(http=http or Http(), limits=limits or Limits(), **more), path)
    if application is not None:
        hub.mounts.mount("/ws", application, websocket_bytes_max=100_000)
    listener = await serve(hub, "127.0.0.1:0")
    served = Served(hub, listener.address)
    try:
        yield served
    finally:
        await served.close()
        await listener.close()


async def test_a_request_has_so_many_headers_and_no_more(tmp_path: Path) -> None:
    async with serving(tmp_path, Http(headers_max=5)) as served:
        peer = await served.peer()
        assert await peer.send(ASKED + b"a: b\r\n" * 4 + b"\r\n").status() == 200
        assert await peer.send(ASKED + b"a: b\r\n" * 5 + b"\r\n").status() == 431
        assert await peer.ended()


async def test_a_head_has_so_many_bytes_and_no_more(tmp_path: Path) -> None:
    async with serving(tmp_path, Http(header_bytes_max=1000)) as served:
        peer = await served.peer()
        assert await peer.send(ASKED + b"a: " + b"b" * 900 + b"\r\n\r\n").status() == 200
        assert await peer.send(ASKED + b"a: " + b"b" * 1000 + b"\r\n\r\n").status() == 431
        assert await peer.ended()


async def test_a_header_that_does_not_end_is_refused_before_it_is_there(tmp_path: Path) -> None:
    async with serving(tmp_path, Http(header_bytes_max=1000)) as served:
        peer = await served.peer()
        peer.send(ASKED + b"a: ")
        for _ in range(1200):
            peer.send(b"b" * 1000)
        assert await peer.status() == 431
        assert served.hub.intake.held_bytes < 512 * 1024


async def test_trailers_count_with_the_headers(tmp_path: Path) -> None:
    async with serving(tmp_path, Http(headers_max=6)) as served:
        peer = await served.peer()
        peer.send(b"POST /api/v1/x HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        peer.send(b"0\r\n" + b"a: b\r\n" * 5000 + b"\r\n")
        assert await peer.status() in (415, 431)
        assert await peer.ended()


POST = b"POST /api/v1/x HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n"
JSON = b"content-type: application/json\r\n\r\n"


@pytest.mark.parametrize(
    ("half", "status"), [(b"GET", 408), (ASKED, 408), (POST + JSON + b"half", 408), (POST + b"\r\nhalf", 415)]
)
async def test_half_a_request_is_given_up(tmp_path: Path, half: bytes, status: int) -> None:
    async with serving(tmp_path) as served:
        peer = await served.peer()
        assert await peer.send(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n").status() == 200
        peer.send(half)
        await until(lambda: served.hub.intake.held_bytes)
        if status == 415:  # which is said before the body is there
            assert await peer.status() == 415
        later(served.hub, 29)
        assert len(served.hub.intake) == 1
        later(served.hub, 3)
        if status != 415:
            assert await peer.status() == status
        assert await peer.ended()
        await until(lambda: not len(served.hub.intake))
        assert served.hub.intake.held_bytes == 0
        assert served.ended("slow") == 1


async def test_half_a_request_of_a_stranger_is_given_up(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        peer, silent = await served.peer(), await served.peer()
        peer.send(ASKED)
        await until(lambda: len(served.hub.intake) == 2 and served.hub.intake.held_bytes)
        later(served.hub, 61)
        assert await peer.status() == 408
        assert await silent.ended()
        assert served.ended("silent") == 2


async def test_half_requests_keep_nobody_out(tmp_path: Path) -> None:
    async with serving(tmp_path, Http(connections_max=20)) as served:
        half = [(await served.peer()).send(ASKED) for _ in range(50)]
        await until(lambda: served.ended("strangers") == 40)
        peer = await served.peer()
        assert await peer.send(ASKED + b"\r\n").status() == 200
        assert [await each.status() for each in half[:5]] == [408] * 5
        assert await half[-1].send(b"\r\n").status() == 200


async def test_whoever_has_signed_in_keeps_its_connection(tmp_path: Path) -> None:
    security = SecuritySection(users={"ann": User(tokens=["secret"], roles=["admin"])})
    async with serving(tmp_path, Http(connections_max=20), security=security) as served:
        known = await served.peer()
        assert await known.send(SIGNED).status() == 200
        for _ in range(50):
            peer = await served.peer()
            assert await peer.send(ASKED + b"\r\n").status() == 200  # anybody may ask, and stays a stranger
            assert await peer.send(SIGNED.replace(b"secret", b"guess")).status() == 401
        assert await known.send(SIGNED).status() == 200
        assert served.hub.intake.strangers == 10


async def test_a_long_body_counts_until_it_is_whole(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=Limits(unread_bytes_max=1_000_000)) as served:
        peer = await served.peer()
        head = b"POST /api/v1/x HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        head += b"content-length: %d\r\n\r\n"
        peer.send(head % 900_000 + b" " * 899_999)
        await until(lambda: served.hub.intake.held_bytes == 899_999)
        assert await peer.send(b" ").status() == 404
        assert served.hub.intake.held_bytes == 0
        peer.send(head % 2_000_000 + b" " * 1_999_999)
        assert await peer.status() == 408
        assert served.ended("bytes") == 1


MANY = 2_000
UPGRADE = (
    b"GET /ws HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
SHORT = b"GET /health/live HTTP/1.1\r\n\r\n"


def connections(monkeypatch: pytest.MonkeyPatch, kind: type) -> list[Any]:
    """Those of this kind that come from now on."""
    made: list[Any] = []
    connection_made = kind.connection_made  # type: ignore[attr-defined]
    monkeypatch.setattr(
        kind, "connection_made", lambda self, transport: (made.append(self), connection_made(self, transport))[1]
    )
    return made


async def test_requests_behind_one_that_waits_stay_bytes_and_are_answered_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = connections(monkeypatch, HttpConnection)
    asked, go = 0, asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        nonlocal asked
        asked += 1
        await go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": scope["path"][-4:].encode()})

    async with serving(tmp_path, application=application) as served:
        peer = await served.peer()
        requests = [b"GET /ws/%04d HTTP/1.1\r\nhost: localhost\r\n\r\n" % number for number in range(MANY)]
        peer.send(b"".join(requests) + POST + JSON + b"123456789" + SHORT)
        peer.writer.write_eof()  # it has said all, and still listens
        await until(lambda: asked)
        [connection] = made
        assert 0 < len(connection.pipeline) < 100
        go.set()
        for number in range(MANY):
            await peer.reader.readuntil(b"\r\n\r\n")
            assert await peer.reader.readexactly(4) == b"%04d" % number
        assert await peer.status() == 404  # there is no verb x
        assert await peer.status() == 200
        assert await peer.ended()


async def test_a_body_in_chunks_may_be_behind_another_request(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        peer = await served.peer()
        head = b"POST /api/v1/x HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        chunks = (b"1000\r\n" + bytes(4096) + b"\r\n") * 50 + b"0\r\n\r\n"
        chunked = head + b"transfer-encoding: chunked\r\n\r\n" + chunks
        peer.send(ASKED + b"\r\n" + chunked + ASKED + b"\r\n")
        assert [await peer.status() for _ in range(3)] == [200, 404, 200]


async def test_messages_of_a_websocket_are_read_few_ahead_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = connections(monkeypatch, WebSocketConnection)
    seen: list[bytes] = []
    go = asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        recognized(scope)
        await receive()
        await send({"type": "websocket.accept"})
        while (event := await receive())["type"] == "websocket.receive":
            await go.wait()
            seen.append(event["bytes"])

    async with serving(tmp_path, application=application) as served:
        peer = await served.peer()
        peer.send(UPGRADE)
        assert await peer.status() == 101
        peer.send(b"".join(b"\x82\x84\0\0\0\0%04d" % number for number in range(MANY)))
        [connection] = made
        await until(lambda: connection.queue.qsize())
        assert connection.queue.qsize() < MESSAGES_AHEAD + PIECE_BYTES // 10
        go.set()
        await until(lambda: len(seen) == MANY)
        assert seen == [b"%04d" % number for number in range(MANY)]


async def test_messages_may_come_with_the_request_for_a_websocket(tmp_path: Path) -> None:
    seen: list[bytes] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        recognized(scope)
        await receive()
        await asyncio.sleep(0.01)
        await send({"type": "websocket.accept"})
        while (event := await receive())["type"] == "websocket.receive":
            seen.append(event["bytes"])

    async with serving(tmp_path, application=application) as served:
        peer = await served.peer()
        messages = [b"\x82\x84\0\0\0\0%04d" % number for number in range(MANY)]
        peer.send(UPGRADE + b"".join(messages[:-1]))
        peer.send(messages[-1])
        assert await peer.status() == 101
        await until(lambda: len(seen) == MANY)
        assert seen == [b"%04d" % number for number in range(MANY)]


async def test_half_a_websocket_message_is_counted_and_given_up(tmp_path: Path) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        recognized(scope)
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "bytes": b"heard"})

    async with serving(tmp_path, application=application) as served:
        peer = await served.peer()
        peer.send(UPGRADE)
        assert await peer.status() == 101
        whole = b"\x82\x85\0\0\0\0hello"
        assert await peer.send(whole).reader.readexactly(7) == b"\x82\x05heard"
        fragment = b"\x02\x81\0\0\0\0a" + b"\0\x81\0\0\0\0b" * 99
        peer.send(fragment)
        await until(lambda: served.hub.intake.held_bytes >= 100 * 64)
        later(served.hub, 32)
        assert await peer.ended()
        assert served.ended("slow") == 1
        assert served.hub.intake.held_bytes == 0


async def test_a_peer_that_says_goodbye_does_not_keep_a_stop_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = connections(monkeypatch, WebSocketConnection)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "bytes": bytes(20_000_000) if scope["query_string"] else b""})
        while (await receive())["type"] == "websocket.receive":
            pass

    hub = HubBase(Config(), tmp_path)
    hub.mounts.mount("/ws", application, websocket_bytes_max=100_000)
    listener = await serve(hub, "127.0.0.1:0")
    served = Served(hub, listener.address)
    leaving = await served.peer()
    leaving.send(UPGRADE.replace(b"/ws", b"/ws?much"))  # which it never reads: the hub's goodbye waits behind it
    await until(lambda: made and made[0].transport.get_write_buffer_size())
    leaving.send(b"\x88\x82\0\0\0\0\x03\xe8")
    await until(made[0].transport.is_closing)
    staying = await served.peer()
    assert await staying.send(UPGRADE).status() == 101
    stopping = asyncio.ensure_future(listener.close())
    assert await staying.reader.read() == b"\x82\0\x88\x02\x03\xf4"  # 1012: the service restarts
    leaving.writer.transport.abort()
    await stopping
    await served.close()
