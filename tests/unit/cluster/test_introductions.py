"""The owner learns whose connection another hub passes on, from hubs that it knows and from nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from support.until import until

from headrace.cluster import introductions
from headrace.cluster.front import Front
from headrace.cluster.introductions import (
    BODY_BYTES_MAX,
    LENGTH,
    LISTENER,
    NONCE_BYTES,
    NUMBER,
    Door,
    Introducer,
    Introduction,
    Known,
    new_key,
    sealed,
)
from headrace.cluster.route import Owner, Route
from headrace.cluster.splice import connect
from headrace.config import Limits
from headrace.config.address import split_address
from headrace.hub.intake import Intake
from headrace.hub.peers import Introduced, Peers, address_from
from headrace.serving.tcp import address_of
from headrace.telemetry.metrics import Metrics

KEY = new_key()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(introductions, "ANSWER_S", 60.0)


CLIENT = "192.0.2.7:5000"


@asynccontextmanager
async def opened(**limits: object) -> AsyncIterator[Door]:
    hubs = {"hub-2-life": Known("hub-2", KEY), "of an earlier version": Known("hub-3", b"")}
    door = Door(Peers(), Intake(Limits(**limits), Metrics().intake), hubs.get)
    await door.open("127.0.0.1:0")
    try:
        yield door
    finally:
        await door.close()


def owner_with(door: Door, **addresses: str) -> Owner:
    return Owner("hub-1", "hub-1-life", 1, {LISTENER: door.address, **addresses})


def message(number: int, port: int, client: str, nonce: bytes, key: bytes = KEY, life: str = "hub-2-life") -> bytes:
    body = msgspec.msgpack.encode(Introduction(life, number, port, client))
    return LENGTH.pack(len(body)) + sealed(key, nonce, body) + body


async def visit(door: Door) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*split_address(door.address))
    return await reader.readexactly(NONCE_BYTES), reader, writer


async def ends(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), 60) == b""
    except ConnectionError:
        return True


async def test_a_client_is_known_until_it_has_gone() -> None:
    async with opened() as door:
        introducer = Introducer("hub-2-life", KEY, Peers())
        assert await introducer.introduce(owner_with(door), 4711, CLIENT)
        assert door.peers.client("127.0.0.1:4711") == CLIENT
        assert door.peers.through("127.0.0.1:4711") == "hub-2"
        assert door.peers.client("127.0.0.1:4712") == "127.0.0.1:4712"
        assert door.peers.through("127.0.0.1:4712") is None
        introducer.gone(4711)
        introducer.gone(4712)  # never introduced
        await until(lambda: len(door.peers) == 0)
        introducer.close()


async def test_a_hub_that_goes_takes_its_clients_along() -> None:
    async with opened() as door:
        introducer = Introducer("hub-2-life", KEY, Peers())
        assert await introducer.introduce(owner_with(door), 4711, CLIENT)
        introducer.close()
        await until(lambda: len(door.peers) == 0)
        assert await introducer.introduce(owner_with(door), 4711, CLIENT), "it comes again"
        introducer.close()


async def test_a_client_that_two_hubs_pass_on_keeps_its_address() -> None:
    here = Peers()
    here.introduce("10.0.0.3:99", Introduced(CLIENT, "hub-3"))
    async with opened() as door:
        introducer = Introducer("hub-2-life", KEY, here)
        assert await introducer.introduce(owner_with(door), 4711, "10.0.0.3:99")
        assert door.peers.client("127.0.0.1:4711") == CLIENT
        introducer.close()


async def test_strangers_are_not_believed() -> None:
    async with opened() as door:
        for life, key in (
            ("hub-2-life", new_key()),
            ("nobody", KEY),
            ("of an earlier version", b""),
        ):
            nonce, reader, writer = await visit(door)
            writer.write(message(0, 4711, CLIENT, nonce, key, life))
            assert await ends(reader), life
            writer.close()
        assert len(door.peers) == 0


async def test_what_was_said_once_cannot_be_said_again() -> None:
    async with opened() as door:
        nonce, reader, writer = await visit(door)
        said = message(0, 4711, CLIENT, nonce)
        writer.write(said)
        assert await reader.readexactly(NUMBER.size) == NUMBER.pack(0)
        other_nonce, other_reader, other_writer = await visit(door)
        assert other_nonce != nonce
        other_writer.write(said)  # overheard, on a connection of one's own
        assert await ends(other_reader)
        writer.write(said)  # on the same one
        assert await ends(reader)
        writer.close()
        other_writer.close()
        await until(lambda: len(door.peers) == 0)


@pytest.mark.parametrize(
    "sent",
    [
        LENGTH.pack(BODY_BYTES_MAX + 1),
        LENGTH.pack(3) + b"m" * 32 + b"\xff\xff\xff",
        LENGTH.pack(0) + b"m" * 32,
        b"GET / HTTP/1.1\r\n\r\n" * 10,
    ],
)
async def test_what_is_no_introduction_ends_the_visit(sent: bytes) -> None:
    async with opened() as door:
        _, reader, writer = await visit(door)
        for at in range(len(sent)):  # byte by byte
            writer.write(sent[at : at + 1])
        assert await ends(reader)
        writer.close()


async def test_visitors_who_say_nothing_go_when_there_are_too_many() -> None:
    async with opened(strangers_max=2) as door:
        visits = [await visit(door) for _ in range(3)]
        assert await ends(visits[0][1]), "the oldest"
        visits[2][2].write(message(0, 4711, CLIENT, visits[2][0]))
        assert await visits[2][1].readexactly(NUMBER.size) == NUMBER.pack(0)
        for _, _, writer in visits:
            writer.close()


async def test_no_door_and_a_door_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(introductions, "ANSWER_S", 0.05)
    monkeypatch.setattr(introductions, "AGAIN_S", 0.0)
    introducer = Introducer("hub-2-life", KEY, Peers())
    assert not await introducer.introduce(Owner("old", "old-life", 1, {}), 1, CLIENT)

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    host, port = silent.sockets[0].getsockname()
    owner = Owner("silent", "life", 1, {LISTENER: f"{host}:{port}"})
    assert not await introducer.introduce(owner, 1, CLIENT)
    silent.close()
    assert not await introducer.introduce(owner, 1, CLIENT)  # nobody listens
    assert caplog.text.count("clients are passed on as this hub's own") == 1, "once for an owner"
    monkeypatch.setattr(introductions, "ANSWER_S", 60.0)
    async with opened() as door:
        assert await introducer.introduce(owner_with(door), 1, CLIENT), "the next owner is told"
        stranger = Introducer("nobody", KEY, Peers())
        assert not await stranger.introduce(owner_with(door), 2, CLIENT)
        introducer.close()
        stranger.close()


async def test_a_front_introduces_before_it_connects() -> None:
    async with opened() as door:
        seen: list[str] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.append(door.peers.client(address_from(writer.get_extra_info("peername"))))
            await reader.read()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        route = Route("me")
        introducer = Introducer("hub-2-life", KEY, Peers())
        front = Front("lines", route, 10, Metrics().cluster, introducer=introducer)
        await front.open("127.0.0.1:0")
        address = address_of(server)
        route.claimed(owner_with(door, lines=address))
        _, writer = await asyncio.open_connection(*split_address(front.address))
        await until(lambda: seen)
        assert seen == [address_from(writer.get_extra_info("sockname"))]
        assert len(door.peers) == 1
        writer.close()
        await until(lambda: len(door.peers) == 0)
        server.close()
        await server.wait_closed()
        introducer.close()
        await front.close()


async def test_a_client_that_nobody_could_introduce_is_counted() -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await reader.read()
        writer.close()
        ended.set()

    async with opened() as door:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        metrics, route = Metrics(), Route("me")
        introducer = Introducer("nobody", KEY, Peers())
        front = Front("lines", route, 10, metrics.cluster, introducer=introducer)
        await front.open("127.0.0.1:0")
        route.claimed(owner_with(door, lines=address_of(server)))
        reader, writer = await asyncio.open_connection(*split_address(front.address))
        assert await reader.readexactly(5) == b"hello", "it is passed on nevertheless"
        assert 'headrace_cluster_unintroduced_total{listener="lines"} 1.0' in metrics.text().decode()
        writer.close()
        await ended.wait()
        introducer.close()
        await front.close()
        server.close()
        await server.wait_closed()


async def test_a_client_whose_connection_is_not_made_is_forgotten() -> None:
    async with opened() as door:
        introducer = Introducer("hub-2-life", KEY, Peers())
        with pytest.raises(OSError):
            async with introducer.introducing(owner_with(door), CLIENT) as guest:
                await connect("127.0.0.1", 1, 10, from_port=guest.comes_from)
        await until(lambda: len(door.peers) == 0)
        introducer.close()


async def test_addresses_by_ipv6_are_the_same() -> None:
    assert address_from(("::ffff:192.0.2.7", 5000, 0, 0)) == CLIENT
    assert address_from(("::1", 5000, 0, 0)) == "[::1]:5000"
