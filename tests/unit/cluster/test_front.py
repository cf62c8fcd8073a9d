"""Listeners of a hub that is not the owner: connections are passed on, held while nobody owns the cell, and cut."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from support.until import until

from headrace.cluster.front import Front
from headrace.cluster.http_front import HEAD_BYTES_MAX, HttpFront
from headrace.cluster.route import Owner, Route
from headrace.config.address import split_address
from headrace.serving.tcp import address_of
from headrace.telemetry.metrics import Metrics

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write(b"bye")


def naming(name: str) -> Serve:
    """An HTTP server that says who it is and what it was asked, and keeps the connection unless told not to."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            body = f"{name} {head.split()[1].decode()}".encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            if b"Connection: close" in head:
                break

    return serve


@asynccontextmanager
async def serving(serve: Serve, at: str = "127.0.0.1:0") -> AsyncIterator[str]:
    writers: list[asyncio.StreamWriter] = []

    async def noted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(ConnectionError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(noted, *split_address(at))
    try:
        yield address_of(server)
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


@asynccontextmanager
async def opened(front: Front) -> AsyncIterator[Front]:
    await front.open("127.0.0.1:0")
    try:
        yield front
    finally:
        await front.close()


def owner(epoch: int, name: str, address: str) -> Owner:
    return Owner(f"hub-{epoch}", f"life-{epoch}", epoch, {name: address})


async def connected(front: Front) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*split_address(front.address))


async def test_bytes_go_both_ways_and_so_do_ends() -> None:
    route, metrics = Route("me"), Metrics()
    async with serving(echo) as address, opened(Front("lines", route, 10, metrics.cluster)) as front:
        route.claimed(owner(1, "lines", address))
        reader, writer = await connected(front)
        sent = bytes(range(256)) * 40_000  # more than any buffer on the way
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent
        writer.write_eof()
        assert await reader.read() == b"bye"
        writer.close()
        assert metrics.registry.get_sample_value("headrace_cluster_forwarded_total", {"listener": "lines"}) == 1
        await until(lambda: front.connections == 0)


async def test_who_comes_while_nobody_owns_the_cell_waits() -> None:
    route = Route("me")
    async with serving(echo) as address, opened(Front("lines", route, 30, Metrics().cluster)) as front:
        reader, writer = await connected(front)
        writer.write(b"early")
        await asyncio.sleep(0)
        route.claimed(owner(1, "lines", address))
        assert await reader.readexactly(5) == b"early"
        writer.close()


async def test_an_owner_that_does_not_answer_is_tried_until_there_is_another() -> None:
    route = Route("me")
    async with serving(echo) as gone:
        pass
    async with serving(echo) as address, opened(Front("lines", route, 30, Metrics().cluster)) as front:
        route.claimed(owner(1, "lines", gone))
        reader, writer = await connected(front)
        writer.write(b"x")
        route.claimed(owner(2, "lines", address))
        assert await reader.readexactly(1) == b"x"
        writer.close()


async def test_nobody_waits_longer_than_the_limit() -> None:
    metrics = Metrics()
    async with opened(Front("lines", Route("me"), 0.3, metrics.cluster)) as front:
        reader, writer = await connected(front)
        assert await rest(reader) == b""
        writer.close()
        assert metrics.registry.get_sample_value("headrace_cluster_forward_failures_total", {"listener": "lines"}) == 1


async def test_more_connections_than_allowed_are_refused() -> None:
    route, metrics = Route("me"), Metrics()
    front = Front("lines", route, 10, metrics.cluster)
    front.connections_max = 1
    async with serving(echo) as address, opened(front):
        route.claimed(owner(1, "lines", address))
        reader, writer = await connected(front)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        refused, other = await connected(front)
        assert await rest(refused) == b""
        assert metrics.registry.get_sample_value("headrace_cluster_forward_failures_total", {"listener": "lines"}) == 1
        writer.write(b"y")
        assert await reader.readexactly(1) == b"y"
        writer.close()
        other.close()


async def test_connections_to_an_owner_that_lost_the_cell_are_cut() -> None:
    route = Route("me")
    async with serving(echo) as address, opened(Front("lines", route, 10, Metrics().cluster)) as front:
        route.claimed(owner(1, "lines", address))
        reader, writer = await connected(front)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        front.drop_all_but(route.owner)
        assert front.connections == 1
        front.drop_all_but(owner(2, "lines", address))  # started again at the same place
        assert front.connections == 1
        front.drop_all_but(owner(3, "lines", "127.0.0.1:1"))
        assert await rest(reader) == b""
        writer.close()


async def test_a_port_that_was_given_up_is_free_and_those_who_waited_are_served() -> None:
    route = Route("me")
    async with opened(Front("lines", route, 30, Metrics().cluster)) as front:
        reader, writer = await connected(front)
        writer.write(b"waits")
        await until(lambda: front._tasks)
        await front.stop_accepting()
        async with serving(echo, front.address) as address:
            route.claimed(owner(1, "lines", address))
            assert await reader.readexactly(5) == b"waits"
            writer.close()


async def test_who_comes_in_the_moment_in_which_the_port_is_given_up_is_served() -> None:
    """Accepted in one turn of the loop, in the next one the port is given up, and only then there is a transport."""
    route, loop = Route("me"), asyncio.get_running_loop()
    async with serving(echo) as address, opened(Front("lines", route, 30, Metrics().cluster)) as front:
        route.claimed(owner(1, "lines", address))
        given_up: list[asyncio.Task[None]] = []
        with socket.create_connection(split_address(front.address)) as client:  # in the kernel: the loop stands
            loop.call_soon(lambda: given_up.append(loop.create_task(front.stop_accepting())))
            await until(lambda: given_up and given_up[0].done())
            reader, writer = await asyncio.open_connection(sock=client)
            writer.write(b"late")
            async with asyncio.timeout(60):
                assert await reader.readexactly(4) == b"late"
            writer.close()


async def rest(reader: asyncio.StreamReader) -> bytes:
    """What comes until the end, be it a reset."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def asked(front: Front, *paths: str, more: str = "") -> bytes:
    reader, writer = await connected(front)
    for path in paths:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: here\r\nConnection: keep-alive\r\n{more}\r\n".encode())
    writer.write_eof()
    answer = await rest(reader)
    writer.close()
    return answer


async def test_http_is_answered_here_or_by_the_owner() -> None:
    route = Route("me")
    async with (
        serving(naming("own")) as own,
        serving(naming("owner")) as far,
        opened(HttpFront(route, 10, Metrics().cluster, own)) as front,
    ):
        route.claimed(owner(1, "http", far))
        assert (await asked(front, "/health?cell=0")).endswith(b"own /health?cell=0")
        assert (await asked(front, "/metrics")).endswith(b"own /metrics")
        assert (await asked(front, "/healthy")).endswith(b"owner /healthy")
        both = await asked(front, "/console", "/api/v1/stream.list")
        assert both.count(b"HTTP/1.1 200") == 2
        assert b"owner /console" in both
        assert b"owner /api/v1/stream.list" in both
        # Only the first request is this hub's own: the connection ends behind it.
        assert (await asked(front, "/health", "/api/v1/x")).count(b"HTTP/1.1 200") == 1


async def test_http_may_be_redirected() -> None:
    route = Route("me")
    async with (
        serving(naming("own")) as own,
        serving(naming("owner")) as far,
        opened(HttpFront(route, 10, Metrics().cluster, own, redirects=True)) as front,
    ):
        assert (await asked(front, "/console?a=1")).startswith(b"HTTP/1.1 503 ")
        route.claimed(owner(1, "http", far))
        answer = await asked(front, "/console?a=1")
        assert answer.startswith(b"HTTP/1.1 307 ")
        assert f"Location: http://{far}/console?a=1\r\n".encode() in answer
        assert (await asked(front, "/health")).endswith(b"own /health")
        upgraded = await asked(front, "/futoin/x", more="Upgrade: websocket\r\n")
        assert upgraded.endswith(b"owner /futoin/x")


async def test_http_without_an_end_of_its_head_is_refused() -> None:
    async with opened(HttpFront(Route("me"), 10, Metrics().cluster, "127.0.0.1:1")) as front:
        reader, writer = await connected(front)
        writer.write(b"GET / HTTP/1.1\r\n" + b"x" * 2 * HEAD_BYTES_MAX)
        assert await rest(reader) == b""
        writer.close()
        assert await asked(front, "/health") == b""  # this hub's own server is gone


async def test_late_news_changes_nothing() -> None:
    route = Route("me")
    route.claimed(owner(2, "lines", "b:1"))
    route.claimed(owner(1, "lines", "a:1"))
    assert route.owner == owner(2, "lines", "b:1")
    route.left(1)
    assert route.owner is not None
    route.left(2)
    assert route.owner is None
    route.claimed(owner(2, "lines", "b:1"))
    assert route.owner is None
    route.claimed(owner(3, "lines", "c:1"))
    assert route.owner is not None
