"""Ephemeral streams are cleaned up whatever comes in between: the hub's death, a full disk, a stream that goes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.perper_peer import Served, key, new_stream, put_listener, served
from support.until import until

from headrace.config import Config, Perper
from headrace.errors import DiskFull
from headrace.protocols.perper import state
from headrace.protocols.perper.ignite.binary import java_hash
from headrace.protocols.perper.records import StreamListener, write_listener
from headrace.protocols.perper.streams import StreamCache
from headrace.testing import MemoryDisk

QUICK = Config(perper=Perper(cleanup_s=0.01))


async def fill(client: Any, name: str, count: int = 10) -> None:
    await new_stream(client, name)
    await asyncio.gather(*[client.request(1002, key(number), key("x"), cache=name) for number in range(count)])


async def leave(client: Any, listener: str) -> None:
    assert await client.request(1016, key(listener), cache="stream-listeners") is True


def left(pair: Served, name: str) -> tuple[int, int]:
    bounds = pair.hub.bounds(name)
    return bounds.first, bounds.next


def listened(pair: Served) -> list[bytes]:
    return [name for name, _ in pair.hub.items(state.LISTENED_TABLE)]


async def test_a_listener_that_comes_and_leaves_in_the_same_breath() -> None:
    async with served(QUICK) as pair:
        client = await pair.client()
        await fill(client, "s")
        record = write_listener(StreamListener("s", 0))
        for changes in (
            [(1001, key("l"), record), (1016, key("l"))],
            [(1001, key("l"), record), (1001, key("l"), write_listener(StreamListener("s", 2**63 - 1)))],
        ):
            await asyncio.gather(*[client.request(*change, cache="stream-listeners") for change in changes])
            stored = pair.hub.get("stream-listeners", key("l"))
            known = pair.fabric.listeners.get("l")
            assert (None if known is None else write_listener(known)) == stored
        await leave(client, "l")
        await until(lambda: left(pair, "s") == (10, 10) and not pair.hub.cursors(stream="s"))


async def test_the_hub_dies_after_the_last_listener_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    async with served(QUICK, disk=disk) as pair:
        client = await pair.client()
        for name in ("left", "listened", "never"):
            await fill(client, name)
        await put_listener(client, "leaver", "left", -(2**63))
        await put_listener(client, "stayer", "listened", -(2**63))
        await until(lambda: listened(pair) == [b"left", b"listened"])

        async def too_late(fabric: state.Fabric, stream: str) -> None:
            """The hub is dead before it comes to that."""

        monkeypatch.setattr(state.Fabric, "_clean_up", too_late)
        await leave(client, "leaver")
        assert left(pair, "left") == (0, 10)
        killed = disk.after_kill()
    monkeypatch.undo()
    async with served(QUICK, disk=killed) as pair:
        await until(lambda: left(pair, "left") == (10, 10))
        assert listened(pair) == [b"listened"]
        assert left(pair, "listened") == left(pair, "never") == (0, 10)
        client = await pair.client()
        assert await client.request(1020, b"", cache="left") == 0
        await client.request(1002, key(10), key("y"), cache="left")
        again = killed.after_kill()
    async with served(QUICK, disk=again) as pair:  # what came after the clean-up is not taken for what was to go
        client = await pair.client()
        assert await client.request(1000, key(10), cache="left") == key("y")


async def test_a_listener_leaves_with_its_cursor_in_one_step() -> None:
    async with served(QUICK) as pair:
        client = await pair.client()
        await fill(client, "s")
        await put_listener(client, "l", "s", 5)
        assert [cursor.name for cursor in pair.hub.cursors(stream="s")] == ["l"]
        record = await client.request(1000, key("l"), cache="stream-listeners")
        assert await client.request(1017, key("l"), key("other"), cache="stream-listeners") is False
        assert pair.hub.cursor("l", "s") == 5
        assert await client.request(1017, key("l"), record, cache="stream-listeners") is True
        assert pair.hub.cursor("l", "s") is None


async def test_a_listener_put_under_a_condition_is_a_cursor_in_the_same_step() -> None:
    async with served(QUICK) as pair:
        client = await pair.client()
        await fill(client, "s")
        first, second = (write_listener(StreamListener("s", position)) for position in (5, 7))
        assert await client.request(1008, key("l"), first, cache="stream-listeners") == b"\x65"
        assert pair.hub.cursor("l", "s") == 5
        assert await client.request(1008, key("l"), second, cache="stream-listeners") == first
        assert await client.request(1010, key("l"), second, second, cache="stream-listeners") is False
        assert pair.hub.cursor("l", "s") == 5
        assert await client.request(1010, key("l"), first, second, cache="stream-listeners") is True
        assert pair.hub.cursor("l", "s") == 7


async def test_listeners_that_come_before_the_first_item_are_cursors_too() -> None:
    async with served(QUICK) as pair:
        client = await pair.client()
        await new_stream(client, "s")
        await put_listener(client, "s-persist", "s", -(2**63))
        await put_listener(client, "s-trigger", "s", 2**63 - 1)
        await until(lambda: pair.hub.has_stream("s") and pair.hub.cursors(stream="s"))
        assert [(cursor.name, cursor.index) for cursor in pair.hub.cursors(stream="s")] == [("s-persist", 0)]


async def test_a_full_disk_only_delays_the_clean_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trim = StreamCache.trim_all
    refusals = [DiskFull("no room")]

    async def full(cache: StreamCache, *also: Any) -> int:
        if refusals:
            raise refusals.pop()
        return await trim(cache, *also)

    monkeypatch.setattr(StreamCache, "trim_all", full)
    monkeypatch.setattr(state, "CLEANUP_RETRY_S", 0.01)
    async with served(QUICK) as pair:
        client = await pair.client()
        await fill(client, "s")
        await put_listener(client, "l", "s", -(2**63))
        await leave(client, "l")
        await until(lambda: left(pair, "s") == (10, 10))
    assert "clean-up of stream 's': no room" in caplog.text


async def test_streams_that_are_gone_leave_no_mark() -> None:
    async with served(QUICK) as pair:
        client = await pair.client()
        await fill(client, "s")
        for stream in ("s", "never-there"):
            await put_listener(client, f"{stream}-l", stream, -(2**63))
        await until(lambda: len(listened(pair)) == 2)
        await client.request(1056, java_hash("s"))
        for stream in ("s", "never-there"):
            await leave(client, f"{stream}-l")
        await until(lambda: listened(pair) == [])


async def test_no_move_is_overlooked_while_a_look_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    async def look(fabric: state.Fabric, stream: str) -> None:
        looks.append(stream)
        if len(looks) == 1:  # comes when this look is over, and before anybody else has heard that it is
            asyncio.get_running_loop().call_soon(fabric._listener_changed, stream)

    monkeypatch.setattr(state.Fabric, "_clean_up", look)
    async with served(QUICK) as pair:
        pair.fabric._listener_changed("s")
        await until(lambda: not pair.fabric._cleaning)
        assert looks == ["s", "s"]
        assert not pair.fabric._dirty
