"""Whose a stream is: names that differ never meet, and another stream id is another stream."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.wallaroo_peer import Peer, hub_and_address, nobody_connected, records, rewind

from headrace.config import Config, Wallaroo
from headrace.hub import Hub
from headrace.protocols.wallaroo import claims, frames
from headrace.protocols.wallaroo.codec import DRAFT, V3, Dialect
from headrace.protocols.wallaroo.frames import NO_POINT, Message
from headrace.protocols.wallaroo.naming import APART, name_apart, stream_name
from headrace.protocols.wallaroo.server import serve
from headrace.protocols.wallaroo.worker import Introduced, own_producer
from headrace.testing import MemoryDisk, memory_hub

DIALECTS = pytest.mark.parametrize("dialect", [V3, DRAFT], ids=lambda dialect: dialect.name)


async def send(
    address: str, instance: bytes, stream: bytes, payload: bytes, id: int = 1, dialect: Dialect = V3
) -> None:
    """A connector's whole life: one record with the message id 1, acknowledged."""
    async with await Peer.connect(address, dialect) as peer:
        await peer.hello(instance=instance)
        await peer.introduce(id, stream)
        peer.send(Message(id, 1, payload))
        await peer.acked(id, 1)


async def payloads(hub: Hub, stream: str) -> list[object]:
    return [row["payload"] for row in await records(hub, stream)]


@DIALECTS
async def test_names_that_differ_never_meet(dialect: Dialect) -> None:
    """Both would be `w.orders`; with one position the second would skip its own record."""
    async with hub_and_address() as (hub, address):
        await send(address, b"", b"w.orders", b"a", dialect=dialect)
        await send(address, b"w", b"orders", b"b", dialect=dialect)
        assert await payloads(hub, "w.orders") == [b"a"]
        assert await payloads(hub, "w%.orders") == [b"b"]


async def test_who_came_first_keeps_the_plain_name_and_both_resume_where_they_were() -> None:
    async with hub_and_address() as (hub, address):
        await send(address, b"w", b"orders", b"a")
        await send(address, b"", b"w.orders", b"b")
        for instance, stream in ((b"w", b"orders"), (b"", b"w.orders")):
            async with await Peer.connect(address) as peer:
                await peer.hello(instance=instance)
                assert (await peer.notify(1, stream)).point == 1
        assert await payloads(hub, "w.orders") == [b"a"]
        assert await payloads(hub, "%.w.orders") == [b"b"]


async def test_programs_of_one_instance_share_its_streams() -> None:
    async with hub_and_address() as (_, address):
        await send(address, b"w", b"orders", b"a")
        async with await Peer.connect(address) as peer:
            await peer.hello(program=b"another", instance=b"w")
            assert (await peer.notify(1, b"orders")).point == 1


async def test_a_stream_that_was_deleted_is_nobodys() -> None:
    async with hub_and_address() as (hub, address):
        await send(address, b"", b"w.orders", b"a")
        await nobody_connected(hub)
        await hub.delete_stream("w.orders")
        await send(address, b"w", b"orders", b"b")
        assert await payloads(hub, "w.orders") == [b"b"]


async def test_another_stream_id_is_refused_as_long_as_there_is_a_point() -> None:
    async with hub_and_address() as (hub, address):
        await send(address, b"", b"s", b"a", id=7)
        async with await Peer.connect(address) as peer:
            await peer.hello()
            peer.send(frames.Notify(8, b"s", NO_POINT))
            assert "Bad stream_id 8: stream 's' has the messages of stream_id 7" in await peer.error()
        await nobody_connected(hub)
        await rewind(hub, "s")
        await send(address, b"", b"s", b"b", id=8)
        assert await payloads(hub, "s") == [b"a", b"b"]


async def test_a_stream_id_without_messages_may_change() -> None:
    async with hub_and_address() as (_, address):
        for id in (7, 8):
            async with await Peer.connect(address) as peer:
                await peer.hello()
                assert (await peer.notify(id, b"s")).success
                peer.send(frames.Eos(id))


async def test_draft_ids_are_a_connectors_own() -> None:
    async with hub_and_address() as (hub, address):
        for id in (7, 8):
            await send(address, b"i", b"s", b"%d" % id, id=id, dialect=DRAFT)
        assert await payloads(hub, "i.s") == [b"7", b"8"]


async def test_streams_from_before_there_were_claims_belong_to_who_introduced_them() -> None:
    disk = MemoryDisk()
    async with hub_and_address(disk=disk) as (hub, address):
        await send(address, b"", b"w.orders", b"a")
        await hub.delete_table(claims.TABLE)  # as an earlier version left it
    async with hub_and_address(disk=disk) as (hub, address):
        await send(address, b"w", b"orders", b"b")
        async with await Peer.connect(address) as peer:
            await peer.hello()
            assert (await peer.notify(1, b"w.orders")).point == 1
        assert await payloads(hub, "w.orders") == [b"a"]
        assert await payloads(hub, "w%.orders") == [b"b"]


async def test_a_claim_that_was_lost_meanwhile_is_an_error() -> None:
    async with memory_hub(Config(wallaroo=Wallaroo())) as hub:
        listener = await serve(hub, "127.0.0.1:0")
        taken = claims.Claims(hub, "{instance}.{stream}")
        info = await hub.create_stream("w.orders")

        class Session:
            program, instance, dialect = b"p", b"w", V3

        other = claims.Claim("", "", 1, info.id)
        await hub.put(claims.TABLE, b"w.orders", msgspec.json.encode(other))
        with pytest.raises(frames.PeerFault, match="taken by another instance"):
            await taken.take(Session(), 1, "w.orders", None)  # type: ignore[arg-type]
        await listener.close()


@DIALECTS
async def test_a_table_of_the_hub_is_refused_at_notify(dialect: Dialect) -> None:
    async with hub_and_address() as (hub, address), await Peer.connect(address, dialect) as peer:
        await hub.create_table("prices")
        await peer.hello()
        peer.send(frames.Notify(1, b"prices", 0 if dialect is DRAFT else NO_POINT))
        assert "Stream 'prices' is a table" in await peer.error()


NAME = st.text("ab.%\n", max_size=4).map(str.encode)


PARTS = st.tuples(NAME, NAME, NAME.filter(bool))


@given(PARTS, PARTS)
def test_a_name_apart_is_nobody_elses(one: tuple[bytes, bytes, bytes], other: tuple[bytes, bytes, bytes]) -> None:
    for rule in ("{instance}.{stream}", "{program}/{instance}.{stream}", "{stream}"):
        used = slice(2, 3) if rule == "{stream}" else slice(1, 3) if "program" not in rule else slice(0, 3)
        assert (name_apart(rule, *one) == name_apart(rule, *other)) == (one[used] == other[used])
        assert APART in name_apart(rule, *one)
        assert APART not in stream_name(rule, *other)


def test_draft_points_of_connectors_whose_names_join_alike_are_apart() -> None:
    owners = [Introduced("a:b", "c", 1), Introduced("a", "b:c", 1), Introduced("a", "b", 1)]
    assert len({own_producer(owner) for owner in owners}) == 3
    assert own_producer(owners[2]) == "wallaroo:a:b:1"
