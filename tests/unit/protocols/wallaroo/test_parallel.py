"""Draft connectors on one stream at the same time: each has ids and a point of its own, and nobody waits for others."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.until import DEADLINE_S, until
from support.wallaroo_peer import (
    Peer,
    credits_left,
    hold_transactions,
    hub_and_address,
    nobody_connected,
    note_calls,
    records,
)

from headrace.hub import Hub
from headrace.protocols.wallaroo import frames
from headrace.protocols.wallaroo.codec import DRAFT, V3, Dialect
from headrace.protocols.wallaroo.frames import Message
from headrace.protocols.wallaroo.scan import FrameBuffer
from headrace.protocols.wallaroo.server import Connection
from headrace.protocols.wallaroo.worker import Use


@asynccontextmanager
async def draft_peer(address: str, program: bytes) -> AsyncIterator[Peer]:
    """A connector that has stream `s` open, as its stream 1."""
    async with await Peer.connect(address, DRAFT) as peer:
        await peer.hello(program=program)
        await peer.introduce(1, b"s")
        yield peer


async def test_draft_sessions_may_run_in_parallel_on_one_stream() -> None:
    async with (
        hub_and_address() as (hub, address),
        draft_peer(address, b"p0") as first,
        draft_peer(address, b"p1") as second,
    ):
        for number, peer in enumerate((first, second)):
            peer.send(Message(1, 10 + number, b"x"))
            await peer.acked(1, 10 + number)
        assert len(await records(hub, "s")) == 2


async def test_every_id_of_parallel_connectors_is_stored() -> None:
    """What one connector has sent says nothing about the ids of another."""
    async with (
        hub_and_address() as (hub, address),
        draft_peer(address, b"p0") as first,
        draft_peer(address, b"p1") as second,
    ):
        first.send(Message(1, 10, b"ten"))
        await first.acked(1, 10)
        second.send(Message(1, 5, b"five"), Message(1, 10, b"ten too"))
        await second.acked(1, 10)
        assert [row["payload"] for row in await records(hub, "s")] == [b"ten", b"five", b"ten too"]


async def test_connectors_in_parallel_resume_each_from_its_own_point() -> None:
    async with hub_and_address() as (_, address), draft_peer(address, b"p1") as second:
        async with draft_peer(address, b"p0") as first:
            first.send(Message(1, 5, b"x"))
            await first.acked(1, 5)
        second.send(Message(1, 10, b"x"))
        await second.acked(1, 10)
        async with await Peer.connect(address, DRAFT) as again:
            assert (await again.hello(program=b"p0")).points == ((1, 5),)


async def test_one_connector_may_know_a_stream_by_two_ids_one_after_the_other() -> None:
    """The point belongs to the id: under another one the connector begins anew."""
    async with hub_and_address() as (hub, address):
        for stream_id in (1, 2):
            async with await Peer.connect(address, DRAFT) as peer:
                await peer.hello()
                await peer.introduce(stream_id, b"s")
                peer.send(Message(stream_id, 10 * stream_id, b"x"))
                await peer.acked(stream_id, 10 * stream_id)
            await nobody_connected(hub)
        async with await Peer.connect(address, DRAFT) as again:
            assert (await again.hello()).points == ((1, 10), (2, 20))


async def test_hello_looks_only_at_the_streams_of_its_connector(monkeypatch: pytest.MonkeyPatch) -> None:
    """To list all streams once for each of a connector's own would take for ever on a large hub."""
    async with hub_and_address() as (hub, address):
        for stream in ("gone", "kept"):
            await hub.create_stream(stream)
        async with await Peer.connect(address, DRAFT) as peer:
            await peer.hello()
            for number, name in enumerate((b"gone", b"kept"), start=1):
                await peer.introduce(number, name)
                peer.send(Message(number, 7, b"x"))
                await peer.acked(number, 7)
        await nobody_connected(hub)
        await hub.delete_stream("gone")

        def refuse(hub: Hub, *arguments: object, **named: object) -> None:
            raise AssertionError("all streams were listed")

        monkeypatch.setattr(Hub, "streams", refuse)
        async with await Peer.connect(address, DRAFT) as again:
            assert (await again.hello()).points == ((2, 7),)


# -- busy streams -----------------------------------------------------------------------------------------------------


async def test_a_busy_stream_can_be_opened_by_another_connector(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hub_and_address() as (hub, address), draft_peer(address, b"busy") as busy:
        disk = hold_transactions(monkeypatch)
        busy.send(Message(1, 1, b"of the busy one"))
        await until(lambda: disk.handed_in)
        async with draft_peer(address, b"other") as other:
            disk.released.set()
            await busy.acked(1, 1)
            other.send(Message(1, 1, b"of the other"))
            await other.acked(1, 1)
        assert [row["payload"] for row in await records(hub, "s")] == [b"of the busy one", b"of the other"]


async def test_hello_is_answered_although_another_connector_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hub_and_address() as (_, address), draft_peer(address, b"busy") as busy:
        async with draft_peer(address, b"other") as other:
            other.send(Message(1, 3, b"x"))
            await other.acked(1, 3)
        disk = hold_transactions(monkeypatch)
        busy.send(Message(1, 1, b"x"))
        await until(lambda: disk.handed_in)
        async with await Peer.connect(address, DRAFT) as again:
            assert (await again.hello(program=b"other")).points == ((1, 3),)
        disk.released.set()
        await busy.acked(1, 1)


async def test_hello_waits_for_what_the_connector_itself_has_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first life ended with a message on the way to the disk: the point is behind it."""
    async with hub_and_address(open_wait_s=DEADLINE_S) as (_, address):
        disk = hold_transactions(monkeypatch)
        async with draft_peer(address, b"p") as first:
            first.send(Message(1, 7, b"x"))
            await until(lambda: disk.handed_in)
        waits = note_calls(monkeypatch, Use, "changed")
        async with await Peer.connect(address, DRAFT) as again:
            greeting = asyncio.create_task(again.hello(program=b"p"))
            await until(lambda: waits)
            disk.released.set()
            assert (await greeting).points == ((1, 7),)


@pytest.mark.parametrize(("breaks", "point"), [(False, 8), (True, 7)], ids=["reads on", "breaks"])
async def test_hello_waits_for_what_an_earlier_connection_has_not_looked_at(
    breaks: bool, point: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connector died, and what it sent last is still in the buffers of its first life; unless that is torn off."""
    async with hub_and_address(open_wait_s=DEADLINE_S) as (hub, address), await Peer.connect(address, DRAFT) as again:
        disk = hold_transactions(monkeypatch)
        async with draft_peer(address, b"p") as first:
            first.send(Message(1, 7, b"x"))
            await until(lambda: disk.handed_in)
            arrivals = note_calls(monkeypatch, Connection, "buffer_updated")
            first.send(Message(1, 8, b"x"))  # not looked at: the disk is busy
            await until(lambda: arrivals)
            looks = note_calls(monkeypatch, Connection, "quiet")
            greeting = asyncio.create_task(again.hello(program=b"p"))
            await until(lambda: looks)
            if breaks:
                reset = struct.pack("ii", 1, 0)
                first.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                first.writer.transport.abort()
                await until(lambda: len(hub.sessions.list("wallaroo")) == 1)
            disk.released.set()
            assert (await greeting).points == ((1, point),)


async def test_hello_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that stands still: the point that is durable is told, and what comes twice is the lesser evil."""
    async with hub_and_address(open_wait_s=0.05) as (hub, address):
        async with draft_peer(address, b"p") as first:
            first.send(Message(1, 6, b"x"))
            await first.acked(1, 6)
            disk = hold_transactions(monkeypatch)
            first.send(Message(1, 7, b"x"))
            await until(lambda: disk.handed_in)
        async with await Peer.connect(address, DRAFT) as again:
            assert (await again.hello(program=b"p")).points == ((1, 6),)
        disk.released.set()
        await hub.wait("s", 1)


# -- taking over ------------------------------------------------------------------------------------------------------


async def test_who_resumes_a_draft_stream_takes_it_over() -> None:
    async with hub_and_address() as (hub, address), await Peer.connect(address, DRAFT) as old:
        await old.hello(instance=b"i")
        old.send(frames.Notify(1, b"s", 0), Message(1, 1, b"a"))
        await old.acked(1, 1)
        async with await Peer.connect(address, DRAFT) as new:
            assert (await new.hello(instance=b"i")).points == ((1, 1),)
            new.send(frames.Notify(1, b"s", 1), Message(1, 2, b"b"))
            assert "resumed by a newer connection" in await old.error()
            await new.acked(1, 2)
        assert [row["payload"] for row in await records(hub, "i.s")] == [b"a", b"b"]


async def test_another_connector_takes_over_nothing() -> None:
    async with hub_and_address() as (_, address), draft_peer(address, b"first") as first:
        first.send(Message(1, 1, b"a"))
        await first.acked(1, 1)
        async with await Peer.connect(address, DRAFT) as second:
            await second.hello(program=b"second")
            second.send(frames.Notify(1, b"s", 1))
            assert await second.receive() == frames.Nack(1, 1, 0)  # the point of the first is not its own
        first.send(Message(1, 2, b"b"))
        await first.acked(1, 2)


@pytest.mark.parametrize(("holder", "comer"), [(V3, DRAFT), (DRAFT, V3)], ids=["v3 first", "draft first"])
async def test_the_dialects_do_not_share_a_stream(holder: Dialect, comer: Dialect) -> None:
    """In v3 a stream has one connection, whatever the others speak."""
    async with hub_and_address(open_wait_s=0.05) as (_, address), await Peer.connect(address, holder) as first:
        await first.hello(program=b"first")
        await first.introduce(1, b"s")
        async with await Peer.connect(address, comer) as second:
            await second.hello(program=b"second")
            if comer is V3:
                assert not (await second.notify(1, b"s")).success
            else:
                second.send(frames.Notify(1, b"s", 0))
                assert "in use by another connection" in await second.error()
        first.send(Message(1, 1, b"x"))
        await first.acked(1, 1)


async def test_one_connection_has_a_stream_by_one_id_only() -> None:
    async with hub_and_address() as (_, address), draft_peer(address, b"p") as peer:
        peer.send(frames.Notify(2, b"s", 0))
        assert "in use" in await peer.error()


# -- ids that change their meaning ------------------------------------------------------------------------------------


async def test_an_id_that_is_given_to_another_stream_takes_no_acknowledgements_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with hub_and_address() as (hub, address), await Peer.connect(address, DRAFT) as peer:
        await peer.hello()
        await peer.introduce(1, b"a")
        disk = hold_transactions(monkeypatch)
        monkeypatch.setattr(FrameBuffer, "is_full", True)  # look at the NOTIFY although the disk is busy
        peer.send(Message(1, 100, b"of a"))
        await credits_left(hub, 999)
        await peer.introduce(1, b"b")
        disk.released.set()
        await hub.wait("a", 0)
        peer.send(Message(1, 7, b"of b"))
        assert await peer.acked(1, 7) == [(1, 7)]
        await credits_left(hub, 1_000)
        assert [row["payload"] for row in await records(hub, "a")] == [b"of a"]
        assert [row["payload"] for row in await records(hub, "b")] == [b"of b"]
