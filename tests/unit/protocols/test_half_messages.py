"""Every listener: who says nothing goes, who sends half a message goes, and who does neither stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
from support import ambrosia_peer
from support.ambrosia_peer import RawBinding
from support.intake import ended as count
from support.intake import later
from support.perper_peer import hang_up
from support.until import until

from headrace.config import Config, Limits
from headrace.config.address import split_address
from headrace.hub import Hub
from headrace.protocols.ambrosia import codec as ambrosia
from headrace.protocols.ambrosia.settings import Ambrosia, ImmortalSection
from headrace.protocols.ockam.server import serve as serve_ockam
from headrace.protocols.perper.fabric import http2
from headrace.protocols.perper.fabric.codec import prefixed
from headrace.protocols.perper.fabric.server import serve as serve_fabric
from headrace.protocols.perper.ignite.codec import NEWEST, THIN_CLIENT, Handshake, encode_handshake
from headrace.protocols.perper.ignite.server import serve as serve_ignite
from headrace.protocols.wallaroo import frames
from headrace.protocols.wallaroo.codec import V3
from headrace.protocols.wallaroo.server import serve as serve_wallaroo
from headrace.serving.listener import Listener
from headrace.testing import memory_hub

SOME_BYTES = 50_000
SERVE = {"wallaroo": serve_wallaroo, "ockam": serve_ockam, "ignite": serve_ignite, "fabric": serve_fabric}


def _call(body: bytes) -> bytes:
    grpc = http2.GrpcConnection(client=True)
    number = grpc.start_call("hub", "/perper.Fabric/ReservedExecutions")
    grpc.send(number, body)
    return grpc.data_to_send()


class Words(NamedTuple):
    """What a peer says first, and what it says half of."""

    first: bytes
    half: bytes


WORDS = {
    "wallaroo": Words(V3.encode(frames.Hello(frames.VERSION, b"", b"test", b"")), b"\0\2\0\0\5" + bytes(SOME_BYTES)),
    "ockam": Words(b"\0\0", b"\xff\xff" + bytes(SOME_BYTES)),
    "ignite": Words(encode_handshake(Handshake(NEWEST, THIN_CLIENT)), b"\0\0\2\0" + bytes(SOME_BYTES)),
    "fabric": Words(_call(b""), _call(prefixed(bytes(SOME_BYTES * 2))[: SOME_BYTES + 5])),
}


@asynccontextmanager
async def serving(name: str, **limits: float) -> AsyncIterator[tuple[Hub, str]]:
    async with memory_hub(Config(limits=Limits(**limits))) as hub:  # type: ignore[arg-type]
        listener: Listener = await SERVE[name](hub.used_by(name), "127.0.0.1:0")
        try:
            yield hub, listener.address
        finally:
            await listener.close()


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*split_address(address))


async def ended(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(65536):
            pass
    except ConnectionError:
        pass


@pytest.mark.parametrize("name", WORDS)
async def test_who_says_nothing_goes(name: str) -> None:
    async with serving(name) as (hub, address):
        silent, silent_writer = await connect(address)
        half, half_writer = await connect(address)
        half_writer.write(WORDS[name].first[:1])
        _, writer = await connect(address)
        writer.write(WORDS[name].first)
        await until(lambda: (len(hub.intake), hub.intake.strangers) == (3, 2))
        later(hub, hub.config.limits.sign_in_s - 1)
        assert len(hub.intake) == 3
        later(hub, 2)
        await ended(silent)
        await ended(half)
        assert count(hub, name, "silent") == 2
        assert len(hub.intake) == 1
        for each in (silent_writer, half_writer, writer):
            await hang_up(each)


@pytest.mark.parametrize("name", WORDS)
async def test_who_sends_half_a_message_goes_and_the_memory_is_free_at_once(name: str) -> None:
    async with serving(name) as (hub, address):
        reader, writer = await connect(address)
        _, other = await connect(address)
        other.write(WORDS[name].first)
        if name != "fabric":
            writer.write(WORDS[name].first)
            await until(lambda: hub.intake.strangers == 0)
        writer.write(WORDS[name].half)
        await until(lambda: hub.intake.held_bytes >= SOME_BYTES and hub.intake.strangers == 0)
        later(hub, hub.config.limits.message_s - 1)
        assert hub.intake.held_bytes >= SOME_BYTES
        later(hub, 3)
        assert hub.intake.held_bytes == 0
        await ended(reader)
        assert count(hub, name, "slow") == 1
        await until(lambda: len(hub.sessions) == 1)  # the other stays
        await hang_up(writer)
        await hang_up(other)


@pytest.mark.parametrize("name", WORDS)
async def test_the_largest_goes_when_it_is_too_much(name: str) -> None:
    async with serving(name, unread_bytes_max=SOME_BYTES * 3 // 2) as (hub, address):
        writers = [(await connect(address))[1] for _ in range(2)]
        for number, writer in enumerate(writers):
            if name != "fabric":
                writer.write(WORDS[name].first)
                await until(lambda: hub.intake.strangers == 1 - number)  # noqa: B023
            writer.write(WORDS[name].half)
            await until(lambda: hub.intake.held_bytes >= SOME_BYTES and count(hub, name, "bytes") == number)  # noqa: B023
        await until(lambda: len(hub.sessions) == 1)
        assert hub.intake.held_bytes <= SOME_BYTES * 3 // 2
        for writer in writers:
            await hang_up(writer)


async def test_ambrosia_half_a_message_and_half_a_pair() -> None:
    config = Config(ambrosia=Ambrosia(immortals={"one": ImmortalSection()}))
    async with memory_hub(config) as hub, ambrosia_peer.coordinator(hub) as ports:
        lone, lone_writer = await connect(ports.addresses["ambrosia.one.receive"])
        await until(lambda: len(hub.intake) == 1)
        later(hub, 61)
        await ended(lone)
        assert count(hub, "ambrosia", "silent") == 1
        await hang_up(lone_writer)
        binding = await RawBinding.to(ports, "one")
        await binding.first_start()
        whole = ambrosia.encode(ambrosia_peer.fork(bytes(SOME_BYTES)))
        binding.say(whole)
        await binding.calls(1)
        binding.say(whole[:-1])
        await until(lambda: hub.intake.held_bytes >= SOME_BYTES)
        later(hub, 32)
        assert hub.intake.held_bytes == 0
        await binding.closed()
        assert count(hub, "ambrosia", "slow") == 1
