"""The server with a real hub (on a disk in memory) and real sockets."""

from __future__ import annotations

import asyncio
import datetime
import os
import socket

import pytest
from support.until import DEADLINE_S, until
from support.wallaroo_peer import (
    Peer,
    credits_left,
    hold_openings,
    hold_transactions,
    hub_and_address,
    note_calls,
    records,
)

from headrace.hub import Hub
from headrace.log.ops import StreamOptions
from headrace.protocols.wallaroo import frames
from headrace.protocols.wallaroo.codec import DRAFT, V3, Dialect
from headrace.protocols.wallaroo.frames import NO_POINT, Flag, Message
from headrace.protocols.wallaroo.scan import FrameBuffer
from headrace.protocols.wallaroo.server import Connection


async def test_v3_from_hello_to_end_of_stream() -> None:
    async with hub_and_address() as (hub, address):
        peer = await Peer.connect(address)
        assert (await peer.hello(instance=b"warehouse")).credits == 1_000
        assert await peer.notify(7, b"orders") == frames.NotifyAck(True, 7, NO_POINT)
        peer.send(
            Message(7, 0, b"first", event_time=1_000_000, key=b"k"),
            Message(7, 10, b""),
            frames.Eos(7),
        )
        await peer.acked(7, 10)
        await peer.close()
        first, second = await records(hub, "warehouse.orders")
        assert (first["id"], first["payload"], first["key"], first["type"]) == (0, b"first", b"k", None)
        assert first["event_time"] == datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)
        assert (second["id"], second["payload"], second["key"], second["event_time"]) == (10, b"", None, None)
        assert hub.producer("warehouse.orders", "wallaroo") == 10


async def test_message_ids_5_5_4_6_store_5_and_6() -> None:
    async with hub_and_address() as (hub, address):
        peer = await Peer.connect(address)
        await peer.hello()
        await peer.notify(1, b"s")
        peer.send(*(Message(1, number, b"%d" % number) for number in (5, 5, 4, 6)))
        await peer.acked(1, 6)
        await peer.close()
        assert [row["id"] for row in await records(hub, "s")] == [5, 6]


async def test_a_new_session_resumes_at_the_durable_point_and_repeats_are_dropped() -> None:
    async with hub_and_address() as (hub, address):
        peer = await Peer.connect(address)
        await peer.hello()
        await peer.notify(1, b"s")
        peer.send(*(Message(1, number, b"x") for number in range(1, 50)))
        await peer.acked(1, 49)
        await peer.close()
        again = await Peer.connect(address)
        await again.hello()
        assert (await again.notify(1, b"s", 3)).point == 49
        again.send(*(Message(1, number, b"x") for number in range(40, 60)))
        await again.acked(1, 59)
        await again.close()
        assert [row["id"] for row in await records(hub, "s")] == list(range(1, 60))


async def test_the_draft_resumes_from_the_points_in_ok() -> None:
    async with hub_and_address() as (hub, address):
        peer = await Peer.connect(address, DRAFT)
        assert (await peer.hello(instance=b"i")).points == ()
        peer.send(frames.Notify(3, b"s", 0), Message(3, 9, b"a"), Message(3, 4, b"b"), Message(3, 8, b"c"))
        await peer.acked(3, 8)
        await peer.close()
        again = await Peer.connect(address, DRAFT)
        assert (await again.hello(instance=b"i")).points == ((3, 8),)
        again.send(frames.Notify(3, b"s", 8), Message(3, 8, b"c"), Message(3, 5, b"d"))
        await again.acked(3, 5)
        await again.close()
        assert [row["payload"] for row in await records(hub, "i.s")] == [b"a", b"b", b"c", b"d"]


async def test_draft_flags_and_the_point_of_reference() -> None:
    async with hub_and_address() as (hub, address):
        peer = await Peer.connect(address, DRAFT)
        await peer.hello()
        peer.send(frames.Notify(1, b"s", 0))
        steps = [
            (Message(1, 1, b"stable"), 1),
            (Message(1, 2, b"unstable", flags=Flag.UNSTABLE_REFERENCE), 1),
            (Message(1, 3, b"ephemeral", flags=Flag.EPHEMERAL), 1),
            (Message(1, 4, None), 4),
            (Message(1, 5, None, flags=Flag.UNSTABLE_REFERENCE), 4),
            (Message(1, 6, b"timed", event_time=2), 6),
            (Message(1, 7, b"last", flags=Flag.EOS), 7),
        ]
        for message, point in steps:
            peer.send(message)
            assert message.message_id is not None
            await peer.acked(1, message.message_id)
            assert hub.producer("s", "wallaroo:test::1") == point
        peer.send(Message(1, 8, b"too late"))
        assert "the stream is Closed" in await peer.error()
        stored = [row["payload"] for row in await records(hub, "s")]
        assert stored == [b"stable", b"unstable", b"ephemeral", b"timed", b"last"]


async def test_a_draft_claim_that_is_not_ours_is_nacked_to_our_point() -> None:
    async with hub_and_address() as (hub, address):
        peer = await Peer.connect(address, DRAFT)
        await peer.hello()
        peer.send(frames.Notify(1, b"s", 100), Message(1, 101, b"ignored"))
        nack = await peer.receive()
        assert isinstance(nack, frames.Nack)
        assert (nack.stream_id, nack.point) == (1, 0)
        peer.send(frames.Notify(1, b"s", 0), Message(1, 1, b"kept"))
        await peer.acked(1, 1)
        await peer.close()
        assert [row["payload"] for row in await records(hub, "s")] == [b"kept"]


@pytest.mark.parametrize(
    ("claim", "again", "stored"),
    [
        (7, Message(1, 7, b"again"), [b"first"]),
        (7, Message(1, 7, b"again", flags=Flag.EOS), [b"first"]),
        (7, Message(1, 7, b"again", flags=Flag.EPHEMERAL), [b"first", b"again"]),
        (7, Message(1, 7, b"again", flags=Flag.UNSTABLE_REFERENCE), [b"first", b"again"]),
        (0, Message(1, 7, b"again"), [b"first", b"again"]),
    ],
    ids=["the point itself", "and the end", "ephemeral", "no reference", "nothing claimed"],
)
async def test_only_the_very_message_that_a_notify_claims_is_dropped(
    claim: int, again: Message, stored: list[bytes]
) -> None:
    """Ranges of the draft begin inclusively, so the point may come again. Any other message of that id is a new one."""
    async with hub_and_address() as (hub, address):
        async with await Peer.connect(address, DRAFT) as peer:
            await peer.hello()
            await peer.introduce(1, b"s")
            peer.send(Message(1, 7, b"first"))
            await peer.acked(1, 7)
        async with await Peer.connect(address, DRAFT) as peer:
            await peer.hello()
            peer.send(frames.Notify(1, b"s", claim), again)
            await peer.acked(1, 7)
        assert [row["payload"] for row in await records(hub, "s")] == stored


async def test_v3_refuses_a_stream_in_use_and_nudges_when_it_is_free() -> None:
    async with hub_and_address(open_wait_s=0.05) as (_, address):
        first, second = [await Peer.connect(address) for _ in range(2)]
        await first.hello()
        await second.hello()
        await first.notify(1, b"s")
        assert await second.notify(1, b"s", 12) == frames.NotifyAck(False, 1, 12)
        await first.close()
        assert await second.receive() == frames.Ack(1)
        assert (await second.notify(1, b"s", 12)).success
        await second.close()


async def test_notifying_twice_in_one_session_is_refused_in_v3() -> None:
    async with hub_and_address() as (_, address):
        peer = await Peer.connect(address)
        await peer.hello()
        await peer.notify(1, b"s")
        assert not (await peer.notify(1, b"s")).success
        await peer.close()


async def test_the_end_of_an_empty_stream_is_answered_without_a_pair() -> None:
    async with hub_and_address() as (_, address):
        peer = await Peer.connect(address)
        await peer.hello()
        await peer.notify(1, b"s")
        assert await peer.receive() == frames.Ack(1)
        peer.send(frames.Eos(1))
        assert await peer.receive() == frames.Ack(0)
        assert (await peer.notify(1, b"s")).success
        await peer.close()


HELLO = frames.Hello(b"0.0.1", b"", b"p", b"i")
BROKEN: list[tuple[str, Dialect, bytes, str]] = [
    ("http", V3, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "begins with a HELLO"),
    ("garbage", V3, bytes(range(200, 230)), "begins with a HELLO"),
    ("length 0", V3, bytes(5), "length 0"),
    ("4 GiB - 1", V3, b"\xff\xff\xff\xff\x00", "above the limit"),
    ("4 GiB - 1", DRAFT, b"\xff\xff\xff\xffH", "above the limit"),
]
for dialect in (V3, DRAFT):
    hello = dialect.encode(HELLO)
    notify = dialect.encode(frames.Notify(1, b"s", 0))
    limit = (4 * 1024 * 1024 + 1).to_bytes(4, "big" if dialect is V3 else "little")
    BROKEN += [
        (
            "version",
            dialect,
            dialect.encode(frames.Hello(b"9.9.9", b"", b"p", b"i")),
            "Unknown protocol version: 9.9.9",
        ),
        ("cookie", dialect, dialect.encode(frames.Hello(b"0.0.1", b"x", b"p", b"i")), "Bad cookie"),
        ("second hello", dialect, hello + hello, "a second HELLO"),
        ("notify first", dialect, notify, "Bad protocol FSM state"),
        ("message first", dialect, dialect.encode(Message(1, 1, b"")), "Bad protocol FSM state"),
        ("ok", dialect, hello + dialect.encode(frames.Ok(1)), "Invalid message: ok"),
        ("ack", dialect, hello + dialect.encode(frames.Ack(1)), "Invalid message: ack"),
        ("unknown tag", dialect, hello + dialect.encode(frames.Error(b""))[:4] + b"\xee\0\0", "unknown tag 238"),
        ("before notify", dialect, hello + dialect.encode(Message(1, 1, b"")), "Bad/unregistered stream_id 1"),
        ("limit + 1", dialect, hello + limit + b"\5", "above the limit of 4194304"),
        ("no name", dialect, hello + dialect.encode(frames.Notify(1, b"", 0)), "needs a name"),
    ]
BROKEN += [
    ("restart", V3, V3.encode(HELLO) + V3.encode(frames.Restart()), "Invalid message: restart"),
    ("notify_ack", V3, V3.encode(HELLO) + V3.encode(frames.NotifyAck(True, 1, 1)), "Invalid message: notify_ack"),
    ("nack", DRAFT, DRAFT.encode(HELLO) + DRAFT.encode(frames.Nack(1, 1, 1)), "Invalid message: nack"),
    ("eos of nothing", V3, V3.encode(HELLO) + V3.encode(frames.Eos(4)), "End of stream for stream_id 4"),
]


@pytest.mark.parametrize(
    ("dialect", "data", "reason"), [case[1:] for case in BROKEN], ids=[f"{c[1].name} {c[0]}" for c in BROKEN]
)
async def test_a_broken_peer_gets_error_and_others_go_on(dialect: Dialect, data: bytes, reason: str) -> None:
    async with hub_and_address() as (hub, address):
        good = await Peer.connect(address)
        await good.hello(instance=b"good")
        await good.notify(1, b"s")
        bad = await Peer.connect(address, dialect)
        bad.writer.write(data)
        assert reason in await bad.error()
        await bad.close()
        good.send(Message(1, 1, b"x"))
        await good.acked(1, 1)
        await good.close()
        assert len(await records(hub, "good.s")) == 1


async def test_after_eos_a_message_is_refused() -> None:
    async with hub_and_address() as (_, address):
        peer = await Peer.connect(address)
        await peer.hello()
        await peer.notify(1, b"s")
        peer.send(frames.Eos(1), Message(1, 1, b"x"))
        assert "Bad/unregistered stream_id 1 with message_id 1" in await peer.error()


async def test_the_cookie_is_compared_and_never_told() -> None:
    async with hub_and_address(cookie="Dragons-Love-Tacos") as (_, address):
        for wrong in (b"", b"Dragons"):
            peer = await Peer.connect(address)
            peer.send(frames.Hello(b"0.0.1", wrong, b"p", b"i"))
            assert await peer.error() == "Bad cookie"
        peer = await Peer.connect(address)
        assert (await peer.hello(cookie=b"Dragons-Love-Tacos")).credits
        await peer.close()


async def test_one_connection_too_many_is_answered() -> None:
    async with hub_and_address(connections_max=1) as (_, address):
        first = await Peer.connect(address)
        await first.hello()
        for dialect in (V3, DRAFT):
            second = await Peer.connect(address, dialect)
            second.send(HELLO)
            assert "wallaroo.connections_max" in await second.error()
        await first.close()


async def test_connections_within_the_limit_are_served_although_more_are_there() -> None:
    """First come, first served: a herd that comes at once must not keep itself out."""
    async with (
        hub_and_address(connections_max=2) as (_, address),
        await Peer.connect(address) as first,
        await Peer.connect(address) as second,
        await Peer.connect(address) as third,
    ):
        await first.hello()
        await second.hello()
        third.send(HELLO)
        assert "wallaroo.connections_max" in await third.error()


async def test_above_twice_as_many_connections_as_allowed_the_oldest_that_said_nothing_goes() -> None:
    async with (
        hub_and_address(connections_max=1) as (_, address),
        await Peer.connect(address) as first,
        await Peer.connect(address),
        await Peer.connect(address) as third,
    ):
        await first.closed_by_hub()
        await third.hello()


async def test_silence_ends_in_error() -> None:
    async with hub_and_address(handshake_s=0.05) as (_, address):
        peer = await Peer.connect(address)
        assert "No HELLO in time" in await peer.error()


async def test_an_overdraft_beyond_a_window_is_refused() -> None:
    async with hub_and_address(window_credits=20) as (hub, address):
        await hub.create_stream("s", options=StreamOptions(ack="processed:pipeline"))
        peer = await Peer.connect(address)
        await peer.hello()
        await peer.notify(1, b"s")
        peer.send(*(Message(1, number, b"x") for number in range(1, 200)))
        assert "Credit exceeded" in await peer.error()


async def test_processed_acks_wait_for_the_cursor() -> None:
    async with hub_and_address() as (hub, address):
        await hub.create_stream("s", options=StreamOptions(ack="processed:pipeline"))
        peer = await Peer.connect(address)
        await peer.hello()
        await peer.notify(1, b"s")
        assert await peer.receive() == frames.Ack(1)
        for number in (1, 2, 3):
            peer.send(Message(1, number, b"x"))
            await hub.wait("s", number - 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(peer.reader.read(1), 0.1)
        await hub.save_cursor("pipeline", "s", 2)
        await peer.acked(1, 2)
        await hub.save_cursor("pipeline", "s", 3)
        assert await peer.receive() == frames.Ack(1, ((1, 3),))
        await peer.close()


async def test_a_stream_made_durable_again_acknowledges_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hub_and_address() as (hub, address), await Peer.connect(address) as peer:
        await hub.create_stream("s", options=StreamOptions(ack="processed:nobody"))
        await peer.hello()
        await peer.introduce(1, b"s")
        waits = note_calls(monkeypatch, Hub, "acknowledged")
        peer.send(Message(1, 1, b"x"))
        await until(lambda: waits)
        await hub.set_options("s", StreamOptions(ack="durable"))
        await peer.acked(1, 1)
        peer.send(Message(1, 2, b"x"))
        await peer.acked(1, 2)


async def test_a_second_notify_does_not_forget_what_waits_for_the_pipeline() -> None:
    """Else what comes behind it would be acknowledged first, and an acknowledgement covers everything before it."""
    async with hub_and_address() as (hub, address), await Peer.connect(address, DRAFT) as peer:
        await hub.create_stream("s", options=StreamOptions(ack="processed:pipeline"))
        await peer.hello()
        await peer.introduce(1, b"s")
        peer.send(Message(1, 1, b"x"))
        await hub.wait("s", 0)
        peer.send(
            frames.Notify(1, b"s", 0),
            Message(1, 2, None),  # a boundary: no record, so no index that the pipeline could pass
            frames.Notify(2, b"durable", 0),
            Message(2, 1, b"x"),
        )
        assert await peer.acked(2, 1) == [(2, 1)]
        await hub.save_cursor("pipeline", "s", 1)
        await peer.acked(1, 2)


@pytest.mark.parametrize("ack", ["durable", "processed:pipeline"])
async def test_an_end_is_acknowledged_after_what_was_under_way_before_it(
    ack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lone end has nothing to make durable, and must still wait its turn behind the records before it."""
    async with hub_and_address() as (hub, address):
        await hub.create_stream("s", options=StreamOptions(ack=ack))
        peer = await Peer.connect(address, DRAFT)
        await peer.hello()
        peer.send(frames.Notify(1, b"s", 0))
        assert await peer.receive() == frames.Ack(1)
        disk = hold_transactions(monkeypatch)
        monkeypatch.setattr(FrameBuffer, "is_full", True)  # look at the end although the disk is busy
        peer.send(Message(1, 1, b"x"))
        await credits_left(hub, 999)
        peer.send(Message(1, 2, None, flags=Flag.EOS | Flag.UNSTABLE_REFERENCE))
        await credits_left(hub, 998)
        disk.released.set()
        await hub.wait("s", 0)
        await hub.save_cursor("pipeline", "s", 1)
        await peer.acked(1, 2)
        await peer.close()


async def test_what_comes_while_the_disk_works_is_gathered_into_one_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with hub_and_address() as (hub, address):
        peer = await Peer.connect(address)
        await peer.hello()
        await peer.notify(1, b"s")
        disk = hold_transactions(monkeypatch)
        monkeypatch.setattr(FrameBuffer, "is_full", True)
        for number in range(1, 5):
            peer.send(Message(1, number, b"x"))
            await credits_left(hub, 1_000 - number)
        assert [len(operations) for operations in disk.handed_in] == [1]
        disk.released.set()
        await peer.acked(1, 4)
        assert [len(operations) for operations in disk.handed_in] == [1, 3]
        assert [row["id"] for row in await records(hub, "s")] == [1, 2, 3, 4]
        await peer.close()


@pytest.mark.parametrize("dialect", [V3, DRAFT])
async def test_a_peer_that_ends_its_side_gets_its_last_acknowledgements(
    dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came before the end of the connection is stored, also what was still unread while the disk worked."""
    async with hub_and_address() as (hub, address):
        peer = await Peer.connect(address, dialect)
        await peer.hello()
        peer.send(frames.Notify(1, b"s", 0 if dialect is DRAFT else NO_POINT))
        while not isinstance(await peer.receive(), frames.Ack):
            pass
        disk = hold_transactions(monkeypatch)
        peer.send(Message(1, 1, b"first"))
        await credits_left(hub, 999)
        peer.send(Message(1, 2, b"second"))
        peer.writer.write_eof()
        await credits_left(hub, 998)
        disk.released.set()
        await peer.acked(1, 2)
        with pytest.raises(ConnectionError):
            await peer.receive()
        assert [row["payload"] for row in await records(hub, "s")] == [b"first", b"second"]
        await peer.close()


async def test_a_stream_introduced_right_before_the_end_of_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """To open it takes longer than to store what came before: the connection stays for it."""
    async with hub_and_address() as (hub, address), await Peer.connect(address, DRAFT) as peer:
        await peer.hello()
        await peer.introduce(1, b"a")
        disk = hold_transactions(monkeypatch)
        opening = hold_openings(monkeypatch)
        peer.send(Message(1, 1, b"first"))
        await credits_left(hub, 999)
        peer.send(frames.Notify(2, b"b", 0), Message(2, 1, b"second"))
        peer.writer.write_eof()
        await credits_left(hub, 998)
        disk.released.set()
        await peer.acked(1, 1)
        opening.released.set()
        await peer.acked(2, 1)
        await peer.closed_by_hub()
        assert [row["payload"] for row in await records(hub, "b")] == [b"second"]


async def test_a_peer_that_ends_its_side_waits_for_the_pipeline_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hub_and_address() as (hub, address), await Peer.connect(address) as peer:
        await hub.create_stream("s", options=StreamOptions(ack="processed:pipeline"))
        await peer.hello()
        await peer.introduce(1, b"s")
        disk = hold_transactions(monkeypatch)
        ends = note_calls(monkeypatch, Connection, "eof_received")
        peer.send(Message(1, 1, b"x"))
        peer.writer.write_eof()
        await until(lambda: ends)
        disk.released.set()
        await hub.wait("s", 0)
        await hub.save_cursor("pipeline", "s", 1)
        await peer.acked(1, 1)
        await peer.closed_by_hub()


async def test_who_only_waits_for_a_pipeline_leaves_the_stream_to_the_next() -> None:
    """It can say no more, and the pipeline may take its time: a v3 stream has one connection, and may need it now."""
    async with (
        hub_and_address(open_wait_s=DEADLINE_S) as (hub, address),
        await Peer.connect(address) as first,
        await Peer.connect(address) as second,
    ):
        await hub.create_stream("s", options=StreamOptions(ack="processed:pipeline"))
        await first.hello()
        await first.introduce(1, b"s")
        first.send(Message(1, 1, b"x"))
        first.writer.write_eof()
        await second.hello()
        assert await second.notify(1, b"s") == frames.NotifyAck(True, 1, 1)
        second.send(Message(1, 2, b"y"))
        await hub.wait("s", 1)
        await hub.save_cursor("pipeline", "s", 1)
        await first.acked(1, 1)
        await first.closed_by_hub()
        await hub.save_cursor("pipeline", "s", 2)
        await second.acked(1, 2)


def test_an_end_of_stream_right_before_the_end_of_the_connection_on_uvloop() -> None:
    """Nothing is owed to the disk, so the connection closes at once: the answer must have been written by then."""
    uvloop = pytest.importorskip("uvloop")

    async def talk() -> None:
        async with hub_and_address() as (_, address), await Peer.connect(address) as peer:
            await peer.hello()
            await peer.introduce(1, b"s")
            peer.send(Message(1, 1, b"x"))
            await peer.acked(1, 1)
            with socket.socket(fileno=os.dup(peer.writer.get_extra_info("socket").fileno())) as own:
                own.sendall(V3.encode(frames.Eos(1)))  # both are there before the hub looks
                own.shutdown(socket.SHUT_WR)
            assert await peer.receive() == frames.Ack(0, ((1, 1),))

    uvloop.run(talk())


async def test_every_credit_comes_back() -> None:
    async with hub_and_address(window_credits=50) as (_, address):
        peer = await Peer.connect(address)
        credits = (await peer.hello()).credits
        await peer.notify(1, b"s")
        sent, last = 1, 0
        credits -= 1
        while last < 2_000 or credits < 50:
            while credits > 0 and last < 2_000:
                last += 1
                peer.send(Message(1, last, b"x" * (last % 7)))
                credits -= 1
                sent += 1
            frame = await peer.receive()
            assert isinstance(frame, frames.Ack)
            credits += frame.credits
            assert all(point <= last for _, point in frame.acks)
        assert credits == 50
        await peer.close()


async def test_duplicates_give_their_credits_back() -> None:
    async with hub_and_address(window_credits=10) as (_, address):
        peer = await Peer.connect(address)
        await peer.hello()
        await peer.notify(1, b"s")
        assert await peer.receive() == frames.Ack(1)
        for _ in range(5):
            peer.send(*(Message(1, 1, b"x") for _ in range(10)))
            returned = 0
            while returned < 10:
                frame = await peer.receive()
                assert isinstance(frame, frames.Ack)
                returned += frame.credits
            assert returned == 10
        await peer.close()
