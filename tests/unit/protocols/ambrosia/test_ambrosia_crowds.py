"""Crowds of sockets at the ports of an immortal, which ask for no login: they cost little, and wait for little."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.ambrosia_peer import RawBinding, coordinator, fork, settings
from support.until import until

from headrace.config import ImmortalSection
from headrace.config.address import join_address, split_address
from headrace.protocols.ambrosia.coordinator import ports as ports_module
from headrace.protocols.ambrosia.pairing import MARK_BYTES, mark_of
from headrace.testing import memory_hub

CROWD = 60
Writers = list[asyncio.StreamWriter]


@asynccontextmanager
async def crowd(address: str, count: int = CROWD) -> AsyncIterator[Writers]:
    writers = [(await asyncio.open_connection(*split_address(address)))[1] for _ in range(count)]
    try:
        yield writers
    finally:
        for writer in writers:
            writer.transport.abort()


async def test_sockets_that_wait_are_not_looked_at_for_each_that_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    real = ports_module.mark_in

    def counting(begin: bytes) -> object:
        nonlocal looks
        looks += 1
        return real(begin)

    monkeypatch.setattr(ports_module, "mark_in", counting)
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as opened:
        binding = await RawBinding.to(opened, "a")
        await binding.first_start()
        receive, send = (opened.addresses[f"ambrosia.a.{end}"] for end in ("receive", "send"))
        waiting = opened.coordinator.ports["a"]
        before = looks
        async with crowd(receive) as talkers, crowd(send):
            for writer in talkers:
                writer.write(mark_of(1)[:-1])
            await until(lambda: len(waiting._receives) + len(waiting._sends) >= 2 * CROWD - 4)
            await until(lambda: sum(len(each._early) == MARK_BYTES - 1 for each in waiting._receives) >= CROWD - 4)
            assert looks - before <= 2 * CROWD
            binding.say(fork(b"undisturbed"))
            assert (await binding.calls(1))[0].arguments == b"undisturbed"
        await until(lambda: not waiting._receives and not waiting._sends)
        assert not waiting._marked
        assert not waiting._send_from
        await binding.close()


async def test_all_of_a_crowd_are_refused_and_not_only_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports_module, "GRACE_S", 0.01)
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as opened:
        binding = await RawBinding.to(opened, "a")
        await binding.first_start()
        receive, send = (opened.addresses[f"ambrosia.a.{end}"] for end in ("receive", "send"))
        waiting = opened.coordinator.ports["a"]
        async with crowd(receive, 5), crowd(send, 5):
            await until(lambda: not waiting._receives and not waiting._sends)
        await binding.close()


async def test_what_a_socket_says_before_its_other_half_comes_counts_as_not_understood() -> None:
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as opened:
        async with crowd(opened.addresses["ambrosia.a.receive"], 1) as (early,):
            early.write(bytes(1000))
            await until(lambda: hub.intake.held_bytes == 1000)
        await until(lambda: hub.intake.held_bytes == 0)


async def test_a_crowd_at_the_receive_port_is_none_at_the_bindings_own() -> None:
    """The C client listens on its send port, and the hub connects there."""
    came = 0

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        came += 1
        await reader.read()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    send = join_address(*server.sockets[0].getsockname()[:2])
    section = ImmortalSection(sockets="connect", send=send)
    async with memory_hub(settings(a=section)) as hub, coordinator(hub) as opened:
        waiting = opened.coordinator.ports["a"]
        async with crowd(opened.addresses["ambrosia.a.receive"]):
            await until(lambda: len(waiting._receives) >= CROWD - 2 and waiting._sends)
            await asyncio.sleep(3 * ports_module.RETRY_S)  # the hub may try again in this time, and must not
            assert came <= 2  # one is linked with the first of the crowd, the other waits
    server.close()
    await server.wait_closed()


async def test_whoever_talks_where_bindings_only_listen_goes() -> None:
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as opened:
        async with crowd(opened.addresses["ambrosia.a.send"], 1) as (stranger,):
            waiting = opened.coordinator.ports["a"]
            await until(lambda: waiting._sends)
            stranger.write(bytes(ports_module.EARLY_BYTES_MAX + 1))
            await until(lambda: not waiting._sends)
        binding = await RawBinding.to(opened, "a")
        await binding.first_start()
        binding._from_writer.write(bytes(ports_module.EARLY_BYTES_MAX))
        binding.say(fork(b"still linked"))
        assert (await binding.calls(1))[0].arguments == b"still linked"
        binding._from_writer.write(b"x")
        await binding.closed()
        assert "only listens" in hub.sessions.list("ambrosia", ended=True)[-1].reason
