"""When the disk, the network or the rights are not as they should be."""

from __future__ import annotations

import asyncio
import errno
import ssl
from pathlib import Path

import pytest
from unit.protocols.wallaroo.wallaroo_peer import Peer, hold_transactions, hub_and_address, records

from headrace.cli.tls import make_self_signed
from headrace.config import Config, Grant, SecuritySection, Tls, User, Wallaroo
from headrace.log.ops import StreamOptions
from headrace.protocols.wallaroo import frames
from headrace.protocols.wallaroo.client import Connector
from headrace.protocols.wallaroo.codec import DRAFT, V3
from headrace.protocols.wallaroo.frames import Message
from headrace.protocols.wallaroo.scan import CHUNK_BYTES_MAX
from headrace.protocols.wallaroo.server import serve
from headrace.protocols.wallaroo.sources import GenerateSource
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
        answer = await peer.receive()
        assert isinstance(answer, frames.Error)
        assert b"syncing the journal failed" in answer.reason
        await peer.close()
        await listener.close()


async def test_overdrawn_credits_do_not_grow_memory() -> None:
    """A peer that ignores credits altogether, into a stream whose pipeline stands still."""
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

        async with asyncio.timeout(20):
            with pytest.raises(ConnectionError):
                await send_without_end()
        assert 100 <= hub.bounds("s").next <= 200
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


async def test_the_configured_cookie_may_write_everywhere_even_with_users() -> None:
    async with memory_hub(with_users(cookie="c")) as hub:
        listener = await serve(hub, "127.0.0.1:0")
        peer = await Peer.connect(listener.address)
        await peer.hello(cookie=b"c")
        assert (await peer.notify(1, b"salaries")).success
        await peer.close()
        await listener.close()


async def test_who_resumes_a_draft_stream_takes_it_over() -> None:
    async with hub_and_address() as (hub, address):
        old = await Peer.connect(address, DRAFT)
        await old.hello(instance=b"i")
        old.send(frames.Notify(1, b"s", 0), Message(1, 1, b"a"))
        await old.acked(1, 1)
        new = await Peer.connect(address, DRAFT)
        assert (await new.hello(instance=b"i")).points == ((1, 1),)
        new.send(frames.Notify(1, b"s", 1), Message(1, 2, b"b"))
        assert "resumed by a newer connection" in await old.error()
        await new.acked(1, 2)
        await new.close()
        assert [row["payload"] for row in await records(hub, "i.s")] == [b"a", b"b"]


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
        async with asyncio.timeout(10):
            await peer.reader.read()
        await peer.close()
        async with asyncio.timeout(10):
            while not (ended := hub.sessions.list("wallaroo", ended=True)):
                await asyncio.sleep(0.001)
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
