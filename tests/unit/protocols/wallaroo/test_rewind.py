"""Sending connectors back, while things go on: what is under way, what is being opened, what fails meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from support.until import until
from support.wallaroo_peer import (
    Peer,
    credits_left,
    hold_openings,
    hold_transactions,
    hub_and_address,
    nobody_connected,
    note_calls,
    records,
    rewind,
)

from headrace.errors import BadRequest, DiskFull
from headrace.log.ops import SetProducer, StreamOptions
from headrace.protocols.wallaroo import frames
from headrace.protocols.wallaroo.codec import DRAFT, V3, Dialect
from headrace.protocols.wallaroo.frames import NO_POINT, Flag, Message
from headrace.protocols.wallaroo.scan import FrameBuffer
from headrace.protocols.wallaroo.server import Connection
from headrace.testing.disk import FaultyDisk, MemoryDisk

BOTH = pytest.mark.parametrize("dialect", [V3, DRAFT], ids=lambda dialect: dialect.name)


async def test_rewind_restarts_a_v3_session_at_the_point() -> None:
    async with hub_and_address() as (hub, address):
        async with await Peer.connect(address) as peer:
            await peer.hello()
            await peer.notify(1, b"s")
            peer.send(*(Message(1, number, b"x") for number in range(1, 6)))
            await peer.acked(1, 5)
            await rewind(hub, "s", 2)
            assert await peer.receive() == frames.Restart()
            await peer.closed_by_hub()
        async with await Peer.connect(address) as again:
            await again.hello()
            assert (await again.notify(1, b"s", 5)).point == 2
            again.send(*(Message(1, number, b"y") for number in range(3, 7)))
            await again.acked(1, 6)
        assert [row["id"] for row in await records(hub, "s")] == [1, 2, 3, 4, 5, 3, 4, 5, 6]


async def test_a_rewind_may_just_close() -> None:
    """Some published clients know no RESTART; a connection that is lost they all survive."""
    async with hub_and_address() as (hub, address):
        async with await Peer.connect(address) as peer:
            await peer.hello()
            await peer.introduce(1, b"s")
            peer.send(Message(1, 1, b"x"), Message(1, 2, b"x"))
            await peer.acked(1, 2)
            await rewind(hub, "s", 1, how="close")
            await peer.closed_by_hub()
        assert hub.producer("s", "wallaroo") == 1


async def test_what_a_rewind_may_not_ask() -> None:
    async with hub_and_address() as (hub, _):
        await hub.create_stream("s")
        with pytest.raises(BadRequest, match="'restart' or 'close'"):
            await rewind(hub, "s", 1, how="gently")
        for point in (-1, NO_POINT):
            with pytest.raises(BadRequest, match="is not from 0"):
                await rewind(hub, "s", point)
        assert hub.producer("s", "wallaroo") is None


async def test_stacked_nacks_need_as_many_notifies() -> None:
    async with hub_and_address() as (hub, address), await Peer.connect(address, DRAFT) as peer:
        await peer.hello()
        peer.send(frames.Notify(1, b"s", 0), Message(1, 1, b"a"), Message(1, 2, b"b"))
        await peer.acked(1, 2)
        await rewind(hub, "s", 1)
        await rewind(hub, "s")
        assert [await peer.receive() for _ in range(2)] == [frames.Nack(0, 1, 1), frames.Nack(0, 1, 0)]
        peer.send(frames.Notify(1, b"s", 1), Message(1, 3, b"ignored"))
        ack = await peer.receive()
        assert isinstance(ack, frames.Ack)
        assert ack.acks == ()
        peer.send(frames.Notify(1, b"s", 0), Message(1, 1, b"again"))
        await peer.acked(1, 1)
        assert [row["payload"] for row in await records(hub, "s")] == [b"a", b"b", b"again"]


async def test_a_rewind_waits_for_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the append would move the point forward again, after the operator was told where it is."""
    async with hub_and_address() as (hub, address), await Peer.connect(address) as peer:
        await peer.hello()
        await peer.introduce(1, b"s")
        disk = hold_transactions(monkeypatch)
        holds = note_calls(monkeypatch, Connection, "hold")
        peer.send(*(Message(1, number, b"x") for number in range(1, 6)))
        await credits_left(hub, 995)
        rewinding = asyncio.create_task(rewind(hub, "s", 2))
        await until(lambda: holds)
        await hub.create_stream("other")  # whatever the rewind handed in first would be durable by now
        assert not rewinding.done()
        disk.released.set()
        await rewinding
        assert hub.bounds("s").next == 5
        assert hub.producer("s", "wallaroo") == 2


# -- rewinds that come to nothing -------------------------------------------------------------------------------------


@BOTH
async def test_a_rewind_that_fails_leaves_the_session_going(dialect: Dialect) -> None:
    disk = FaultyDisk(MemoryDisk())
    async with hub_and_address(disk=disk) as (hub, address), await Peer.connect(address, dialect) as peer:
        await peer.hello()
        await peer.introduce(1, b"s")
        peer.send(Message(1, 1, b"x"))
        await peer.acked(1, 1)
        disk.room_bytes = 0
        with pytest.raises(DiskFull):
            await rewind(hub, "s", 0)
        disk.heal()
        peer.send(Message(1, 2, b"y"))
        await peer.acked(1, 2)


@BOTH
async def test_a_rewind_whose_caller_goes_away_leaves_the_session_going(
    dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hub_and_address() as (hub, address), await Peer.connect(address, dialect) as peer:
        await peer.hello()
        await peer.introduce(1, b"s")
        disk = hold_transactions(monkeypatch)
        holds = note_calls(monkeypatch, Connection, "hold")
        peer.send(Message(1, 1, b"x"))
        await until(lambda: disk.handed_in)
        rewinding = asyncio.create_task(rewind(hub, "s", 0))
        await until(lambda: holds)
        rewinding.cancel()
        await asyncio.gather(rewinding, return_exceptions=True)
        assert rewinding.cancelled()
        disk.released.set()
        await peer.acked(1, 1)
        peer.send(Message(1, 2, b"y"))
        await peer.acked(1, 2)


# -- rewinds that meet others -----------------------------------------------------------------------------------------


async def test_a_rewind_waits_for_a_draft_stream_that_is_being_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """A NACK before the stream is open would be lost on the connector, which has not been heard yet."""
    async with hub_and_address() as (hub, address), await Peer.connect(address, DRAFT) as peer:
        await hub.create_stream("s")
        opening = hold_openings(monkeypatch)
        holds = note_calls(monkeypatch, Connection, "hold")
        await peer.hello()
        peer.send(frames.Notify(1, b"s", 0))
        await until(lambda: opening.handed_in)
        rewinding = asyncio.create_task(rewind(hub, "s"))
        await until(lambda: holds)
        opening.released.set()
        assert (await rewinding).connections == 1
        assert [await peer.receive() for _ in range(2)] == [frames.Ack(1), frames.Nack(0, 1, 0)]
        peer.send(frames.Notify(1, b"s", 0), Message(1, 1, b"x"))
        await peer.acked(1, 1)


async def test_a_rewind_overtakes_a_second_notify(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream is the connector's already, and its NOTIFY waits for what is under way, as the rewind does. That
    NOTIFY was sent before the NACK, so it does not answer it."""
    async with hub_and_address() as (hub, address), await Peer.connect(address, DRAFT) as peer:
        await peer.hello()
        await peer.introduce(1, b"s")
        disk = hold_transactions(monkeypatch)
        holds = note_calls(monkeypatch, Connection, "hold")
        monkeypatch.setattr(FrameBuffer, "is_full", True)  # look at the NOTIFY although the disk is busy
        peer.send(Message(1, 1, b"x"))
        await credits_left(hub, 999)
        peer.send(frames.Notify(1, b"s", 0), Message(1, 2, b"ignored"))
        await credits_left(hub, 998)
        rewinding = asyncio.create_task(rewind(hub, "s"))
        await until(lambda: holds)
        disk.released.set()
        assert (await rewinding).connections == 1
        while not isinstance(frame := await peer.receive(), frames.Nack):
            assert isinstance(frame, frames.Ack), frame
        assert (frame.stream_id, frame.point) == (1, 0)
        peer.send(frames.Notify(1, b"s", 0), Message(1, 1, b"again"))
        await peer.acked(1, 1)
        assert [row["payload"] for row in await records(hub, "s")] == [b"x", b"again"]
        await credits_left(hub, 1_000)


async def test_a_rewind_is_not_lost_on_a_connector_that_opens_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go on from the point before, and its first append would take the rewind back."""
    async with hub_and_address() as (hub, address):
        async with await Peer.connect(address) as peer:
            await peer.hello()
            await peer.introduce(1, b"s")
            peer.send(*(Message(1, number, b"x") for number in range(1, 6)))
            await peer.acked(1, 5)
        await nobody_connected(hub)
        disk = hold_transactions(monkeypatch, SetProducer)
        rewinding = asyncio.create_task(rewind(hub, "s", 2))
        await until(lambda: disk.handed_in)
        async with await Peer.connect(address) as again:
            await again.hello()
            opening = asyncio.create_task(again.notify(1, b"s"))
            await until(lambda: hub.sessions.list("wallaroo")[0].details["streams"])
            disk.released.set()
            await rewinding
            assert (await opening).point == 2


@BOTH
async def test_two_rewinds_at_the_same_time_both_end(dialect: Dialect, monkeypatch: pytest.MonkeyPatch) -> None:
    async with hub_and_address() as (hub, address):
        async with await Peer.connect(address, dialect) as peer:
            await peer.hello()
            await peer.introduce(1, b"s")
            peer.send(*(Message(1, number, b"x") for number in range(1, 6)))
            await peer.acked(1, 5)
            disk = hold_transactions(monkeypatch, SetProducer)
            rewinding = [asyncio.create_task(rewind(hub, "s", point)) for point in (3, 2)]
            await until(lambda: len(disk.handed_in) == 2)
            disk.released.set()
            done = await asyncio.gather(*rewinding)
            assert [each.point for each in done] == [3, 2]
            if dialect is V3:
                assert await peer.receive() == frames.Restart()
                await peer.closed_by_hub()
            else:
                assert [await peer.receive() for _ in range(2)] == [frames.Nack(0, 1, 3), frames.Nack(0, 1, 2)]
        async with await Peer.connect(address, dialect) as again:
            ok = await again.hello()
            point = (await again.notify(1, b"s")).point if dialect is V3 else dict(ok.points)[1]
            assert point == 2


# -- whom a rewind concerns -------------------------------------------------------------------------------------------


async def test_a_rewind_of_an_ended_draft_stream_is_told_to_its_connector() -> None:
    async with hub_and_address() as (hub, address), await Peer.connect(address, DRAFT) as peer:
        await peer.hello()
        peer.send(
            frames.Notify(1, b"s", 0),
            frames.Notify(2, b"other", 0),
            Message(2, 1, b"x", flags=Flag.EOS),
            Message(1, 1, b"a"),
            Message(1, 2, b"b", flags=Flag.EOS),
        )
        await peer.acked(1, 2)
        assert (await rewind(hub, "s", 1)).connections == 1
        frame = await peer.receive()
        while isinstance(frame, frames.Ack):  # of the other stream
            frame = await peer.receive()
        assert isinstance(frame, frames.Nack)
        assert (frame.stream_id, frame.point) == (1, 1)
        peer.send(frames.Notify(1, b"s", 1), Message(1, 2, b"again"))
        await peer.acked(1, 2)


async def test_a_stream_whose_end_waits_for_a_pipeline_is_rewound_once() -> None:
    """It has ended and is in use all the same. A second NACK would need a second NOTIFY."""
    async with hub_and_address() as (hub, address), await Peer.connect(address, DRAFT) as peer:
        await hub.create_stream("s", options=StreamOptions(ack="processed:pipeline"))
        await peer.hello()
        await peer.introduce(1, b"s")
        peer.send(Message(1, 1, b"a", flags=Flag.EOS))
        await hub.wait("s", 0)
        assert (await rewind(hub, "s")).connections == 1
        assert await peer.receive() == frames.Nack(0, 1, 0)
        peer.send(frames.Notify(1, b"s", 0), Message(1, 1, b"again"))
        await hub.wait("s", 1)
        await hub.save_cursor("pipeline", "s", 2)
        await peer.acked(1, 1)


async def test_a_rewind_moves_the_points_of_all_connectors_that_ever_had_the_stream() -> None:
    async with hub_and_address() as (hub, address):
        async with await Peer.connect(address) as peer:
            await peer.hello()
            await peer.introduce(1, b"s")
            peer.send(Message(1, 7, b"x"))
            await peer.acked(1, 7)
        await nobody_connected(hub)
        for program, last in ((b"p0", 5), (b"p1", 10)):
            async with await Peer.connect(address, DRAFT) as peer:
                await peer.hello(program=program)
                await peer.introduce(1, b"s")
                peer.send(Message(1, last, b"x"))
                await peer.acked(1, last)
        await hub.transact([SetProducer("s", "someone else", 9)])
        assert (await rewind(hub, "s", 3)).before == 10
        ours = {"wallaroo": 3, "wallaroo:p0::1": 3, "wallaroo:p1::1": 3}
        assert hub.producers("s") == {**ours, "someone else": 9}
        for program in (b"p0", b"p1"):
            async with await Peer.connect(address, DRAFT) as peer:
                assert (await peer.hello(program=program)).points == ((1, 3),)
        assert (await rewind(hub, "s")).before == 3
        assert hub.producers("s") == {"someone else": 9}


async def test_a_connector_at_the_beginning_is_not_sent_forward() -> None:
    """Nobody has sent anything, or all of it was sent back: it would not send what is before the point."""
    async with hub_and_address() as (hub, address):
        await hub.create_stream("s")
        with pytest.raises(BadRequest, match="is at the beginning, which is before 4"):
            await rewind(hub, "s", 4)
        assert (await rewind(hub, "s", None)).before is None
        async with await Peer.connect(address) as peer:
            await peer.hello()
            await peer.introduce(1, b"s")
            peer.send(Message(1, 7, b"x"))
            await peer.acked(1, 7)
            await rewind(hub, "s", None, how="close")
        with pytest.raises(BadRequest, match="is at the beginning, which is before 5"):
            await rewind(hub, "s", 5)
        async with await Peer.connect(address) as peer:
            await peer.hello()
            assert (await peer.notify(1, b"s")).point == NO_POINT
