"""Connections inside of gRPC: silent ones and half messages go, those that get on stay."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

import pyarrow.flight as flight
import pytest
from support.intake import ended, later
from support.until import until

from headrace.config import Config, Limits
from headrace.config.address import split_address
from headrace.protocols.flight import connections
from headrace.protocols.flight.connections import COPIED, LARGE_BYTES, SMALL_BYTES, Connections, Seen, normal
from headrace.protocols.flight.server import serve
from headrace.protocols.perper.fabric import http2
from headrace.protocols.perper.fabric.codec import prefixed
from headrace.testing import memory_hub


def test_peers_are_named_as_everywhere_else() -> None:
    assert normal("ipv4:127.0.0.1:5000") == "127.0.0.1:5000"
    assert normal("ipv6:%5B::1%5D:5000") == "[::1]:5000"


async def test_what_was_not_understood_is_held() -> None:
    freed: list[int] = []
    async with memory_hub() as hub:
        watched = Connections(hub.intake, 1, freed.append)
        watched.update([Seen(100, "127.0.0.1:5", SMALL_BYTES)], {})
        assert (len(hub.intake), hub.intake.strangers, hub.intake.held_bytes) == (1, 1, 0)
        watched.update([Seen(100, "127.0.0.1:5", SMALL_BYTES + 1)], {})
        assert hub.intake.held_bytes == SMALL_BYTES + 1
        watched.update([Seen(100, "127.0.0.1:5", 9 * SMALL_BYTES)], {"127.0.0.1:5": 9 * SMALL_BYTES})
        assert (hub.intake.strangers, hub.intake.held_bytes) == (0, 0)
        watched.update([Seen(100, "127.0.0.1:5", 11 * SMALL_BYTES)], {"127.0.0.1:6": 0})
        assert (hub.intake.held_bytes, freed) == (2 * SMALL_BYTES, [])
        watched.update([Seen(101, "127.0.0.1:5", 5)], {})  # another connection with the same descriptor
        assert (len(hub.intake), hub.intake.held_bytes, freed) == (1, 0, [2 * SMALL_BYTES])
        watched.stop()
        assert len(hub.intake) == 0


async def test_a_large_message_counts_twice() -> None:
    """gRPC copies a message as a whole once it is there."""
    async with memory_hub() as hub:
        watched = Connections(hub.intake, 1)
        for held, counted in ((LARGE_BYTES, LARGE_BYTES), (LARGE_BYTES + 1, COPIED * (LARGE_BYTES + 1))):
            watched.update([Seen(100, "127.0.0.1:5", held)], {})
            assert hub.intake.held_bytes == counted
        watched.stop()


async def test_what_came_behind_a_call_that_got_on_is_held() -> None:
    """Tens of megabytes may come between a call that got on and the next look."""
    async with memory_hub() as hub:
        watched = Connections(hub.intake, 1)
        watched.update([Seen(100, "127.0.0.1:5", 1000)], {})
        watched.update([Seen(100, "127.0.0.1:5", 1000 + 9 * SMALL_BYTES)], {"127.0.0.1:5": 1000})
        assert (hub.intake.strangers, hub.intake.held_bytes) == (0, 9 * SMALL_BYTES)
        watched.stop()


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux tells how much came")
async def test_what_had_come_when_a_call_got_on_is_asked_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "ASK_S", 0.0)
    async with memory_hub() as hub:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            watched = Connections(hub.intake, port)
            with socket.create_connection(server.getsockname()) as client, server.accept()[0] as accepted:
                peer = f"127.0.0.1:{client.getsockname()[1]}"
                client.sendall(bytes(1000))
                await until(lambda: [each.received for each in connections.look(port)] == [1000])
                watched.understood(f"ipv4:{peer}")  # before the first look nobody knows the connection
                assert watched._understood == {peer: 0}
                watched.update(connections.look(port), {})
                watched.understood(f"ipv4:{peer}")
                assert watched._understood == {peer: 1000}
                assert accepted.recv(1000)
            watched.understood(f"ipv4:{peer}")  # the descriptor is another's, or nobody's
            assert watched._understood == {peer: 1000}
            watched.stop()


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux tells how much came")
async def test_too_much_is_cut_off_without_a_turn_of_the_loop() -> None:
    limits = Limits(unread_bytes_max=6 * SMALL_BYTES)
    async with memory_hub(Config(limits=limits)) as hub:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            watched = Connections(hub.intake, port)
            with socket.create_connection(server.getsockname()) as client, server.accept()[0] as accepted:
                accepted.settimeout(60)
                threading.Thread(target=lambda: _send(client, bytes(7 * SMALL_BYTES)), daemon=True).start()
                seen = await asyncio.to_thread(_read_and_look, accepted, 7 * SMALL_BYTES, watched)
                assert accepted.recv(1) == b"", "it was shut down"
            watched.update(seen, {})
            assert ended(hub, "flight", "bytes") == 1
            watched.stop()


def _send(client: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        client.sendall(data)


def _read_and_look(accepted: socket.socket, size: int, watched: Connections) -> list[Seen]:
    while size:
        size -= len(accepted.recv(size))
    return watched._look({})[0]


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux tells how much came")
async def test_it_looks_closely_while_a_message_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LOOK_CLOSELY_S", 0.0)
    monkeypatch.setattr(connections, "LOOK_S", 0.0)
    looks: list[int] = []
    received = [0]

    def look(port: int) -> list[Seen]:
        looks.append(port)
        return [Seen(100, "127.0.0.1:5", received[0])]

    monkeypatch.setattr(connections, "look", look)
    async with memory_hub() as hub:
        watched = Connections(hub.intake, 1)
        watched.start()
        received[0] = 2 * SMALL_BYTES
        await until(lambda: hub.intake.held_bytes > 0)
        monkeypatch.setattr(connections, "LOOK_S", 3600.0)  # whoever still looks does so closely
        seen = len(looks)
        await until(lambda: len(looks) > seen + 5)
        watched.stop()


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux tells how much came")
async def test_a_connection_that_says_nothing_goes_and_one_that_calls_stays() -> None:
    async with memory_hub() as hub:
        listener = await serve(hub, "127.0.0.1:0")
        client = flight.connect(f"grpc://{listener.address}")
        await asyncio.to_thread(lambda: list(client.list_actions()))
        reader, writer = await asyncio.open_connection(*split_address(listener.address))
        await until(lambda: (len(hub.intake), hub.intake.strangers) == (2, 1))
        later(hub, 61)
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                pass
        assert ended(hub, "flight", "silent") == 1
        await asyncio.to_thread(lambda: list(client.list_actions()))
        assert len(hub.intake) == 1
        writer.close()
        await asyncio.to_thread(client.close)
        await until(lambda: len(hub.intake) == 0)
        await listener.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux tells how much came")
async def test_half_a_message_of_any_size_is_counted_and_cut_off() -> None:
    """gRPC would hold all of it, whatever it has: before the call, and whoever sends it."""
    async with memory_hub(Config(limits=Limits(unread_bytes_max=3 * SMALL_BYTES))) as hub:
        listener = await serve(hub, "127.0.0.1:0")
        reader, writer = await asyncio.open_connection(*split_address(listener.address))
        grpc = http2.GrpcConnection(client=True)
        number = grpc.start_call("hub", "/arrow.flight.protocol.FlightService/DoAction")
        grpc.send(number, prefixed(bytes(64 * SMALL_BYTES))[: 32 * SMALL_BYTES])

        async def talk() -> None:
            while True:
                writer.write(grpc.data_to_send())
                grpc.receive(await reader.readexactly(1) + await reader.read(65536))

        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(talk(), 60)
        await until(lambda: ended(hub, "flight", "bytes") == 1)
        assert hub.intake.held_bytes == 0
        writer.close()
        await listener.close()


async def test_a_crowd_is_cut_off_at_once_and_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    cuts: list[set[int]] = []

    def cut(port: int, *, inodes: set[int]) -> int:
        assert threading.current_thread() is not threading.main_thread()
        cuts.append(set(inodes))
        return len(inodes)

    monkeypatch.setattr(connections, "cut", cut)
    async with memory_hub(Config(limits=Limits(strangers_max=10))) as hub:
        watched = Connections(hub.intake, 1)
        crowd = [Seen(100 + number, f"127.0.0.1:{number}", 0) for number in range(1000)]
        watched.update(crowd, {})
        assert hub.intake.strangers == 10
        await until(lambda: sum(map(len, cuts)) == 990)
        assert len(cuts) == 1
        watched.update(crowd, {})  # gRPC has not closed them yet
        assert (hub.intake.strangers, len(watched._open)) == (10, 10)
        watched.update(crowd[-10:], {})
        assert not watched._ended
        watched.update([*crowd[-10:], Seen(5000, "127.0.0.1:5", 0)], {})
        await until(lambda: len(cuts) == 2)
        assert (cuts[1], hub.intake.strangers) == ({1090}, 10)
        watched.stop()


async def test_nothing_is_watched_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "DESCRIPTORS", "/no/such/place")
    async with memory_hub() as hub:
        watched = Connections(hub.intake, 1)
        watched.start()
        watched.stop()
