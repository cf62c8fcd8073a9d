"""When the disk, the network or the rights are not as they should be."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from pathlib import Path

import pytest
from support.until import DEADLINE_S, until, wait_until
from support.wallaroo_peer import Peer, hold_openings, hold_transactions, hub_and_address, note_calls, records

from headrace.cli.tls import make_self_signed
from headrace.config import Config, Grant, Limits, SecuritySection, Tls, User, Wallaroo
from headrace.config.address import split_address
from headrace.hub import Hub
from headrace.log.ops import Append, DeleteStream, StreamOptions
from headrace.log.pending import Pending
from headrace.log.port import Touched
from headrace.protocols.wallaroo import frames
from headrace.protocols.wallaroo import server as server_module
from headrace.protocols.wallaroo.client import Connector
from headrace.protocols.wallaroo.codec import DRAFT, V3
from headrace.protocols.wallaroo.frames import Flag, Message
from headrace.protocols.wallaroo.scan import CHUNK_BYTES_MAX
from headrace.protocols.wallaroo.server import Connection, serve
from headrace.protocols.wallaroo.sources import GenerateSource
from headrace.protocols.wallaroo.worker import Use, Worker
from headrace.testing.disk import FaultyDisk, MemoryDisk
from headrace.testing.hub import memory_hub


@pytest.mark.parametrize("dialect", ["v3", "draft"])
async def test_a_full_disk_is_told_and_leaves_no_hole(dialect: str) -> None:
    """Room comes and goes while a connector sends: every record once, in order, when it is over."""
    disk = FaultyDisk(MemoryDisk())
    async with memory_hub(Config(wallaroo=Wallaroo(window_credits=100)), disk=disk) as hub:
        listener = await serve(hub, "127.0.0.1:0")
        connector = Connector(listener.address, dialect=dialect, attempts_max=None, pause_s=lambda attempt: 0.02)
        filled = 0
        errors: set[str] = set()

        def fill_up(point: int) -> None:
            nonlocal filled
            if filled < 3 and point > filled * 800:
                filled += 1
                disk.room_bytes = 3_000
                asyncio.get_running_loop().call_later(0.1, make_room)

        def make_room() -> None:
            errors.add(connector.last_error or "")
            disk.heal()

        async with connector:
            assert await connector.run(GenerateSource(stream="s", count=3_000, size=50), fill_up) == 3_000
        await listener.close()
        assert filled == 3
        assert connector.connections > 1
        assert any("no room" in error or "nothing was stored" in error for error in errors)
        assert [row["id"] for row in await records(hub, "s")] == list(range(1, 3_001))


async def test_a_failed_sync_is_told_and_acknowledges_nothing() -> None:
    disk = FaultyDisk(MemoryDisk())
    async with memory_hub(disk=disk) as hub:
        listener = await serve(hub, "127.0.0.1:0")
        peer = await Peer.connect(listener.address)
        await peer.hello()
        await peer.notify(1, b"s")
        assert await peer.receive() == frames.Ack(1)
        disk.fail_all("sync", errno.EIO)
        peer.send(Message(1, 1, b"x"))
        while isinstance(answer := await peer.receive(), frames.Ack):
            assert answer.acks == ()  # more credits: the message was a small one
        assert isinstance(answer, frames.Error)
        assert b"syncing the journal failed" in answer.reason
        await peer.close()
        await listener.close()


async def test_overdrawn_credits_do_not_grow_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that ignores credits altogether, into a stream whose pipeline stands still."""
    monkeypatch.setattr(server_module, "LINGER_S", 0.05, raising=False)
    async with hub_and_address(window_credits=100, in_flight_bytes_max=100_000) as (hub, address):
        await hub.create_stream("s", options=StreamOptions(ack="processed:nobody"))
        peer = await Peer.connect(address)
        await peer.hello()
        await peer.notify(1, b"s")

        async def send_without_end() -> None:
            number = 0
            while True:
                number += 1
                peer.send(Message(1, number, bytes(10_000)))
                await peer.writer.drain()

        async with asyncio.timeout(60):
            with pytest.raises(ConnectionError):
                await send_without_end()
        assert 0 < hub.bounds("s").next <= 200  # the run of messages that overdraws is refused as a whole
        await peer.close()


async def test_a_slow_disk_pauses_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hub_and_address(window_credits=10_000, in_flight_bytes_max=50_000) as (hub, address):
        peer = await Peer.connect(address)
        await peer.hello()
        await peer.notify(1, b"s")
        disk = hold_transactions(monkeypatch)
        data = b"".join(V3.encode(Message(1, number, bytes(1_000))) for number in range(1, 3_001))
        peer.writer.write(data)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await peer.acked(1, 3_000)
        info = hub.sessions.list("wallaroo")[0]
        one_chunk = CHUNK_BYTES_MAX // 1_000
        assert info.details["credits"] > 10_000 - one_chunk - 50, "it went on reading"  # type: ignore[operator]
        disk.released.set()
        await peer.acked(1, 3_000)
        await peer.close()
        assert len(await records(hub, "s")) == 3_000
        assert max(sum(op.batch.nbytes for op in operations) for operations in disk.handed_in) < 2_000_000


async def test_a_peer_that_never_reads_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every frame has an answer, and answers that nobody takes wait in memory."""
    made = note_calls(monkeypatch, Connection, "connection_made")
    async with hub_and_address() as (_, address), await Peer.connect(address) as peer:
        await peer.hello()
        await peer.introduce(1, b"s")
        transport = made[0][1]
        assert isinstance(transport, asyncio.Transport)
        for end in (transport, peer.writer):
            for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):  # so that it does not take long
                end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, buffer, 65_536)
        reading = peer.writer.transport
        assert isinstance(reading, asyncio.Transport)
        reading.pause_reading()
        sent = 0

        async def send_without_end() -> None:
            nonlocal sent
            data = V3.encode(frames.Notify(1, b"s", 0)) * 1_000  # a second one is answered with a refusal
            while True:
                peer.writer.write(data)
                sent += 1_000
                await peer.writer.drain()

        sending = asyncio.create_task(send_without_end())
        too_much = 4 * 1024 * 1024
        await until(lambda: not transport.is_reading() or transport.get_write_buffer_size() > too_much)
        sending.cancel()
        assert not transport.is_reading(), "it went on reading"
        assert transport.get_write_buffer_size() < too_much
        reading.resume_reading()
        refused = 0
        while refused < sent:
            refused += isinstance(await peer.receive(), frames.NotifyAck)
        assert refused == sent


async def test_nothing_is_read_while_the_hub_is_congested(monkeypatch: pytest.MonkeyPatch) -> None:
    made = note_calls(monkeypatch, Connection, "connection_made")
    drained = asyncio.Event()
    monkeypatch.setattr(Hub, "drained", lambda hub: drained.wait())
    async with hub_and_address() as (_, address), await Peer.connect(address) as peer:
        monkeypatch.setattr(Hub, "congested", True)
        await peer.hello()
        transport = made[0][1]
        assert isinstance(transport, asyncio.Transport)
        assert not transport.is_reading()
        peer.send(frames.Notify(1, b"s", frames.NO_POINT))
        monkeypatch.setattr(Hub, "congested", False)
        drained.set()
        assert await peer.receive() == frames.NotifyAck(True, 1, frames.NO_POINT)


async def test_one_session_too_many_of_the_whole_hub_is_told_so() -> None:
    async with memory_hub(Config(limits=Limits(sessions_max=1))) as hub:
        listener = await serve(hub, "127.0.0.1:0")
        async with await Peer.connect(listener.address) as first, await Peer.connect(listener.address) as second:
            await first.hello()
            second.send(frames.Hello(b"0.0.1", b"", b"p", b"i"))
            assert "limits.sessions_max" in await second.error()
        await listener.close()


async def test_tls(tmp_path: Path) -> None:
    key, certificate = make_self_signed(["localhost", "127.0.0.1"])
    (tmp_path / "c.pem").write_bytes(certificate)
    (tmp_path / "k.pem").write_bytes(key)
    config = Config(tls=Tls(certificate=str(tmp_path / "c.pem"), key=str(tmp_path / "k.pem")))
    async with memory_hub(config) as hub:
        listener = await serve(hub, "127.0.0.1:0")
        trusting = ssl.create_default_context(cafile=tmp_path / "c.pem")
        async with Connector(listener.address, tls=trusting) as connector:
            stream = await connector.stream("s")
            await stream.send(b"x")
            await stream.flush()
        encrypted = await asyncio.open_connection(*split_address(listener.address), ssl=trusting)
        async with Peer(*encrypted, V3) as peer:
            await peer.hello()
            peer.send(Message(1, 1, b"of no stream"))
            assert "Bad/unregistered stream_id 1" in await peer.error()
        await listener.close()
        assert len(await records(hub, "s")) == 1


def with_users(**wallaroo: object) -> Config:
    security = SecuritySection(
        users={"ann": User(tokens=["hr_ann"], roles=["orders"])},
        roles={"orders": [Grant(rights=["write"], streams=["orders*"])]},
    )
    return Config(security=security, wallaroo=Wallaroo(**wallaroo))  # type: ignore[arg-type]


async def test_a_token_may_be_the_cookie_and_its_rights_count() -> None:
    async with memory_hub(with_users()) as hub:
        listener = await serve(hub, "127.0.0.1:0")
        nobody = await Peer.connect(listener.address)
        nobody.send(frames.Hello(b"0.0.1", b"", b"p", b""))
        assert await nobody.error() == "Bad cookie"
        ann = await Peer.connect(listener.address)
        await ann.hello(cookie=b"hr_ann")
        assert (await ann.notify(1, b"orders.eu")).success
        ann.send(frames.Notify(2, b"salaries", 0))
        assert "may not write" in await ann.error()
        await listener.close()


async def test_who_is_held_back_is_told_so() -> None:
    """Whether the cookie is right was not even looked at, so it is not called bad: that would be final."""
    async with hub_and_address(security=SecuritySection(login_failures_max=1), cookie="right") as (_, address):
        reasons = []
        for cookie in [b"wrong"] * 11 + [b"right"]:
            async with await Peer.connect(address) as peer:
                peer.send(frames.Hello(b"0.0.1", cookie, b"p", b"i"))
                reasons.append(await peer.error())
        assert reasons[0] == "Bad cookie"
        assert "too many failed logins" in reasons[-1]


async def test_the_configured_cookie_may_write_everywhere_even_with_users() -> None:
    async with memory_hub(with_users(cookie="c")) as hub:
        listener = await serve(hub, "127.0.0.1:0")
        peer = await Peer.connect(listener.address)
        await peer.hello(cookie=b"c")
        assert (await peer.notify(1, b"salaries")).success
        await peer.close()
        await listener.close()


async def test_a_trusted_claim_moves_the_point() -> None:
    async with hub_and_address(draft_trust_notify=True) as (hub, address):
        peer = await Peer.connect(address, DRAFT)
        await peer.hello()
        peer.send(frames.Notify(1, b"s", 100), Message(1, 101, b"kept"))
        await peer.acked(1, 101)
        await peer.close()
        assert hub.producer("s", "wallaroo:test::1") == 101


async def test_draft_ids_may_be_made_to_increase() -> None:
    async with hub_and_address(draft_message_ids="increasing") as (hub, address):
        peer = await Peer.connect(address, DRAFT)
        await peer.hello()
        peer.send(frames.Notify(1, b"s", 0), *(Message(1, number, b"x") for number in (5, 5, 4, 6)))
        await peer.acked(1, 6)
        peer.send(*(Message(1, number, b"x", flags=flags) for number, flags in ((6, 0), (2, 8), (7, 4))))
        await peer.acked(1, 7)
        await peer.close()
        assert [row["id"] for row in await records(hub, "s")] == [5, 6, 2, 7]


async def test_event_times_in_other_units() -> None:
    async with hub_and_address(event_time_unit="ms") as (hub, address):
        peer = await Peer.connect(address)
        await peer.hello()
        await peer.notify(1, b"s")
        peer.send(Message(1, 1, b"x", event_time=1_500))
        await peer.acked(1, 1)
        peer.send(Message(1, 2, b"x", event_time=2**62))
        assert "64 bits of microseconds" in await peer.error()
        found = await records(hub, "s")
        assert [row["event_time"].timestamp() for row in found] == [1.5]  # type: ignore[attr-defined]


@pytest.mark.parametrize("behind", [Message(1, 3, b"behind"), frames.Ok(1)], ids=["a message", "what is wrong too"])
async def test_nothing_behind_a_refused_event_time_is_stored(behind: frames.Frame) -> None:
    """There would be a hole below the point of reference."""
    async with hub_and_address(event_time_unit="ms") as (hub, address):
        async with await Peer.connect(address) as peer:
            await peer.hello()
            await peer.introduce(1, b"s")
            peer.send(
                Message(1, 1, b"good"),
                Message(1, 2, b"bad", event_time=2**62),
                frames.Notify(2, b"t", frames.NO_POINT),
                behind,
            )
            await peer.error()
        async with await Peer.connect(address) as again:
            await again.hello()
            assert (await again.notify(1, b"s")).point == frames.NO_POINT
        assert await records(hub, "s") == []


async def test_too_many_streams_in_one_session() -> None:
    async with hub_and_address(streams_max=2) as (_, address):
        peer = await Peer.connect(address)
        await peer.hello()
        for number in (1, 2):
            await peer.notify(number, b"s%d" % number)
        peer.send(frames.Notify(3, b"s3", 0))
        assert "wallaroo.streams_max" in await peer.error()


async def test_an_error_from_the_peer_ends_the_session_and_frees_its_streams() -> None:
    async with hub_and_address() as (hub, address):
        peer = await Peer.connect(address)
        await peer.hello()
        await peer.notify(1, b"s")
        peer.send(frames.Error(b"I cannot go on"))
        async with asyncio.timeout(60):
            await peer.reader.read()
        await peer.close()
        ended = await until(lambda: hub.sessions.list("wallaroo", ended=True))
        assert ended[0].reason == "peer: I cannot go on"
        other = await Peer.connect(address)
        await other.hello()
        assert (await other.notify(1, b"s")).success
        await other.close()


async def test_metrics_count_what_happens() -> None:
    async with hub_and_address(window_credits=100) as (hub, address):
        peer = await Peer.connect(address)
        await peer.hello()
        await peer.notify(1, b"s")
        peer.send(*(Message(1, number, b"x") for number in (1, 2, 2)))
        await peer.acked(1, 2)
        peer.send(Message(1, 3, b"x"))
        await peer.acked(1, 3)
        text = hub.metrics.text().decode()
        assert 'headrace_records_in_total{protocol="wallaroo"} 3.0' in text
        assert "headrace_wallaroo_duplicates_total 1.0" in text
        assert "headrace_wallaroo_credits 100.0" in text
        await peer.close()


# -- peers that are told to go ----------------------------------------------------------------------------------------


def send_then_read(address: str, data: bytes) -> bytes:
    """A blocking peer that sends all it has before it reads, as most programs do."""
    host, _, port = address.rpartition(":")
    answer = b""
    with socket.create_connection((host, int(port)), DEADLINE_S) as connected, contextlib.suppress(OSError):
        connected.sendall(data)
        while chunk := connected.recv(65_536):
            answer += chunk
    return answer


HELLO = V3.encode(frames.Hello(b"0.0.1", b"", b"p", b"i"))
TOO_LONG = (2**32 - 1).to_bytes(4, "big")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ((1_000_000).to_bytes(4, "big") + b"\xee" * 1_000_000, b"unknown tag 238"),
        (TOO_LONG + bytes(1_000_000), b"above the limit"),
        (TOO_LONG + bytes(8_000_000), b"above the limit"),
    ],
    ids=["a whole frame", "1 MB", "8 MB"],
)
async def test_error_reaches_a_peer_that_is_still_sending(
    data: bytes, reason: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To close with its bytes unread would be a reset, which takes the ERROR away from under its nose."""
    monkeypatch.setattr(server_module, "LINGER_S", DEADLINE_S, raising=False)
    async with hub_and_address() as (_, address):
        for _ in range(3):
            assert reason in await asyncio.to_thread(send_then_read, address, HELLO + data)


async def test_error_reaches_a_peer_whose_loop_is_still_sending() -> None:
    async with hub_and_address() as (_, address), await Peer.connect(address) as peer:
        await peer.hello()
        peer.writer.write(TOO_LONG + bytes(8_000_000))
        assert "above the limit" in await peer.error()


async def test_who_does_not_go_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "LINGER_S", 0.05, raising=False)
    async with hub_and_address() as (hub, address), await Peer.connect(address) as peer:
        await peer.hello()
        peer.writer.write(TOO_LONG)

        async def send_without_end() -> None:
            while True:
                peer.writer.write(bytes(65_536))
                await peer.writer.drain()

        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(ConnectionError):
                await send_without_end()
        assert hub.sessions.list("wallaroo") == []


# -- streams that change hands or go away -----------------------------------------------------------------------------


async def test_a_stream_deleted_right_after_an_append_is_told() -> None:
    """Between the commit and the acknowledgement there is a moment in which it may go."""
    async with hub_and_address() as (hub, address), await Peer.connect(address) as peer:
        await peer.hello()
        await peer.introduce(1, b"s")
        resolve = hub._resolve

        def delete_before(outcomes: list[Pending], touched: Touched) -> None:
            if any(isinstance(operation, Append) for one in outcomes for operation in one.operations):
                hub._log.submit([DeleteStream("s")])
                wait_until(lambda: not hub.has_stream("s"))
            resolve(outcomes, touched)

        hub._resolve = delete_before  # type: ignore[method-assign]
        peer.send(Message(1, 1, b"x"))
        assert "'s'" in await peer.error()


async def test_refused_connectors_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """They ask again and again, perhaps for days."""
    monkeypatch.setattr(server_module, "RETRY_AFTER_REFUSAL_S", 0.01)
    made = note_calls(monkeypatch, Use, "__init__")
    async with (
        hub_and_address(open_wait_s=0.01) as (_, address),
        await Peer.connect(address) as first,
        await Peer.connect(address) as second,
    ):
        await first.hello()
        await second.hello()
        await first.introduce(1, b"s")
        for _ in range(10):
            assert not (await second.notify(1, b"s")).success
            assert await second.receive() == frames.Ack(1)
        [(use,)] = [arguments for arguments in made if isinstance(arguments[0], Use) and arguments[0].holders]
        assert isinstance(use, Use)
        assert not use._changed._waiters


async def test_a_stream_that_is_being_opened_when_its_connector_fails_is_free_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with hub_and_address(open_wait_s=DEADLINE_S) as (_, address):
        opening = hold_openings(monkeypatch)
        async with await Peer.connect(address) as peer:
            await peer.hello()
            peer.send(frames.Notify(1, b"s", frames.NO_POINT))
            await until(lambda: opening.handed_in)
            peer.send(frames.Ok(1))
            assert "Invalid message: ok" in await peer.error()
            opening.released.set()
            async with await Peer.connect(address) as other:
                await other.hello(program=b"other")
                assert (await other.notify(1, b"s")).success


async def test_a_bug_of_ours_ends_one_session_and_tells_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stumble(worker: Worker, *arguments: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(Worker, "introduce", stumble)
    async with hub_and_address() as (_, address), await Peer.connect(address) as peer:
        await peer.hello()
        peer.send(frames.Notify(1, b"s", frames.NO_POINT))
        assert await peer.error() == "internal error"


async def test_the_id_that_says_nothing_is_no_id() -> None:
    async with hub_and_address() as (hub, address), await Peer.connect(address) as peer:
        await peer.hello()
        await peer.introduce(1, b"s")
        peer.send(Message(1, frames.NO_POINT, b"x"))
        assert "is reserved" in await peer.error()
        assert await records(hub, "s") == []


async def test_a_message_right_behind_the_end_of_its_draft_stream_is_refused() -> None:
    async with hub_and_address() as (hub, address), await Peer.connect(address, DRAFT) as peer:
        await peer.hello()
        await peer.introduce(1, b"s")
        peer.send(Message(1, 1, b"last", flags=Flag.EOS), Message(1, 2, b"behind"))
        assert "the stream is Closed" in await peer.error()
        await hub.wait("s", 0)
        assert [row["payload"] for row in await records(hub, "s")] == [b"last"]


async def test_an_end_counts_although_its_message_is_a_duplicate() -> None:
    async with (
        hub_and_address(draft_message_ids="increasing") as (hub, address),
        await Peer.connect(address, DRAFT) as peer,
    ):
        await peer.hello()
        await peer.introduce(1, b"s")
        for message in (Message(1, 5, b"x"), Message(1, 3, b"one shot", flags=Flag.EPHEMERAL)):
            peer.send(message)
            assert message.message_id is not None
            await peer.acked(1, message.message_id)
        peer.send(Message(1, 5, b"x", flags=Flag.EOS), Message(1, 6, b"too late"))
        assert "the stream is Closed" in await peer.error()
        assert [row["id"] for row in await records(hub, "s")] == [5, 3]
