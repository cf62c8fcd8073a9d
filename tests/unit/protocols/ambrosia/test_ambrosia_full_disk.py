"""The coordinator on a full disk: what is refused is not in effect, and everything goes on when there is room."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.ambrosia_peer import RawBinding, call_verb, coordinator, fork, info, recovered, settings
from support.until import until

from headrace.config import Config, ImmortalSection, Log
from headrace.errors import DiskFull
from headrace.hub import Hub
from headrace.log.batch import Batch
from headrace.log.ops import CreateStream, Delete, Op, Put, SaveCursor, Trim
from headrace.protocols.ambrosia.codec import Checkpoint, InitialMessage, Signal, Type
from headrace.testing import MemoryDisk, memory_hub
from headrace.testing.disk import FaultyDisk

NO_RESERVE = Log(disk_reserve_bytes=0)
STEPS = {
    "record 0": lambda op: isinstance(op, Delete) and op.table == "ambrosia/initial",
    "what waits is moved": lambda op: isinstance(op, SaveCursor) and op.stream == "immortal/a/pending",
    "it is trimmed": lambda op: isinstance(op, Trim) and op.stream == "immortal/a/pending",
    "it has started": lambda op: isinstance(op, Put) and b'"started":true' in op.value,
}
"""Of a first start, in their order."""


@contextmanager
def full_for(hub: Hub, is_meant: Any, times: int) -> Iterator[list[Op]]:
    """The first transactions with such an operation are refused."""
    transact, submit_one = hub.transact, hub._submit_one
    refused: list[Op] = []

    def refuses(operations: Any) -> asyncio.Future[Any] | None:
        meant = [op for op in operations if is_meant(op)]
        if not meant or len(refused) >= times:
            return None
        refused.append(meant[0])
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_exception(DiskFull("no room"))
        return future

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub, "transact", lambda operations: refuses(operations) or transact(operations))
        patch.setattr(hub, "_submit_one", lambda op: refuses([op]) or submit_one(op))
        yield refused


async def test_a_registration_that_was_refused_is_refused_again() -> None:
    memory = MemoryDisk()
    disk = FaultyDisk(memory)
    async with memory_hub(Config(log=NO_RESERVE), disk=disk) as hub, coordinator(hub) as ports:
        await hub.create_stream("immortal/a/pending")
        for stream in ("log", "inbox"):
            await hub.create_stream(f"immortal/a/{stream}")
        disk.room_bytes = 0
        for _ in range(2):
            with pytest.raises(DiskFull):
                await call_verb(hub, "immortal.register", name="a")
        assert ports.addresses == {}
        disk.heal()
        await call_verb(hub, "immortal.register", name="a")
    async with memory_hub(disk=memory) as hub, coordinator(hub) as ports:
        assert (await info(hub, "a")).registered
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        await binding.close()


async def test_options_that_were_refused_are_as_before_on_the_same_ports() -> None:
    disk = FaultyDisk(MemoryDisk())
    async with memory_hub(Config(log=NO_RESERVE), disk=disk) as hub, coordinator(hub) as ports:
        await call_verb(hub, "immortal.register", name="a")
        binding, addresses = await RawBinding.to(ports, "a"), ports.addresses
        await binding.first_start()
        disk.room_bytes = 0
        with pytest.raises(DiskFull):
            await call_verb(hub, "immortal.register", name="a", options={"standby": True})
        await binding.closed()
        assert ports.addresses == addresses
        registration = ports.coordinator.instances["a"].registration
        assert registration is not None
        assert not registration.standby
        disk.heal()
        binding = await RawBinding.to(ports, "a")
        await recovered(binding, 1)
        binding.say(fork(b"goes on"))
        assert (await binding.calls(1))[0].arguments == b"goes on"
        await binding.close()


async def test_a_hub_with_immortals_starts_on_a_full_disk() -> None:
    memory = MemoryDisk()
    config = Config(log=NO_RESERVE)
    async with memory_hub(config, disk=memory) as hub, coordinator(hub) as ports:
        await call_verb(hub, "immortal.register", name="a")
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        await binding.close()
    disk = FaultyDisk(memory)
    async with memory_hub(config, disk=disk) as hub:
        disk.room_bytes = 0
        async with coordinator(hub) as ports:
            binding = await RawBinding.to(ports, "a")
            assert await binding.checkpoint() == b"state-0"
            await binding.close()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("times", [1, 2])
async def test_a_first_start_goes_on_from_each_step_that_the_disk_refused(step: str, times: int) -> None:
    async with memory_hub(settings(b=ImmortalSection())) as hub, coordinator(hub) as ports:
        other = await RawBinding.to(ports, "b")
        await other.first_start()
        other.say(fork(b"waited", b"a"))
        await until(lambda: hub.has_stream("immortal/a/pending") and hub.bounds("immortal/a/pending").next == 1)
        await call_verb(hub, "immortal.register", name="a")
        with full_for(hub, STEPS[step], times) as refused:
            binding = await RawBinding.to(ports, "a")
            assert await binding.signal() == Type.TAKE_BECOMING_PRIMARY_CHECKPOINT
            binding.say(InitialMessage(b"initial"), Checkpoint(1), b"x")
            for number in range(times):
                await binding.closed()
                assert len(refused) == number + 1
                other.say(fork(b"while it waits", b"a"))
                binding = await RawBinding.to(ports, "a")
            assert await binding.checkpoint() == b"x"
            said = b""
            while said.count(b"while it waits") < times:
                record = await binding.record()
                if record.sequence >= 0:
                    said += record.payload
                else:
                    binding.say(Checkpoint(1), b"y")
            assert (said.count(b"initial"), said.count(b"waited"), said.count(b"while it waits")) == (1, 1, times)
        await hub.append("immortal/a/inbox", Batch.of([b"once"]))
        await until(lambda: hub.cursor("ambrosia", "immortal/a/inbox") == 1)
        assert hub.bounds("immortal/a/log").next == 3 + times
        await other.close()
        await binding.close()


async def test_a_start_that_was_interrupted_before_the_disk_was_full_is_done_when_there_is_room() -> None:
    memory = MemoryDisk()
    async with memory_hub(settings(a=ImmortalSection()), disk=memory) as hub, coordinator(hub) as ports:
        with full_for(hub, STEPS["record 0"], 9) as refused:
            binding = await RawBinding.to(ports, "a")
            assert await binding.signal() == Type.TAKE_BECOMING_PRIMARY_CHECKPOINT
            binding.say(InitialMessage(b"initial"), Checkpoint(1), b"x")
            await binding.closed()
            assert refused
    async with memory_hub(settings(a=ImmortalSection()), disk=memory) as hub:
        with full_for(hub, STEPS["record 0"], 2) as refused:
            async with coordinator(hub) as ports:
                assert len(refused) == 2
                assert "no room" in (await info(hub, "a")).last_error
                binding = await RawBinding.to(ports, "a")
                assert await binding.checkpoint() == b"x"
                assert await binding.signal() == Type.TAKE_BECOMING_PRIMARY_CHECKPOINT
                binding.say(Checkpoint(1), b"y")
                assert b"initial" in (await binding.record()).payload
                await binding.close()


async def test_a_name_that_was_first_called_on_a_full_disk_takes_calls_when_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.protocols.ambrosia.coordinator.instance.RETRY_S", 0.01)
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        with full_for(hub, lambda op: isinstance(op, CreateStream), 3) as refused:
            binding.say(fork(b"kept", b"later"))
            await until(lambda: len(refused) == 3)
            await until(lambda: hub.has_stream("immortal/later/pending"))
            await until(lambda: hub.bounds("immortal/later/pending").next == 1)
        await binding.close()


async def test_what_was_registered_while_it_started_has_started_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_hub(settings()) as hub, coordinator(hub) as ports:
        await call_verb(hub, "immortal.register", name="a")
        real, slow_disk, waits = hub._submit_one, asyncio.Event(), asyncio.Event()

        async def later(op: Op) -> Any:
            waits.set()
            await slow_disk.wait()
            return await real(op)

        def submit_one(op: Op) -> Any:
            is_meant = STEPS["it has started"](op) and not waits.is_set()
            return asyncio.ensure_future(later(op)) if is_meant else real(op)

        monkeypatch.setattr(hub, "_submit_one", submit_one)
        binding = await RawBinding.to(ports, "a")
        assert await binding.signal() == Type.TAKE_BECOMING_PRIMARY_CHECKPOINT
        binding.say(InitialMessage(b"initial"), Checkpoint(1), b"x")
        await waits.wait()
        registering = asyncio.ensure_future(call_verb(hub, "immortal.register", name="a", options={"standby": True}))
        await binding.closed()
        slow_disk.set()
        await registering
        binding = await RawBinding.to(ports, "a")
        await recovered(binding, 1)
        await hub.append("immortal/a/inbox", Batch.of([b"once"]))
        await binding.calls(1)
        binding.say(fork(b"next"))
        assert (await binding.calls(1))[0].arguments == b"next"
        registration = ports.coordinator.store.registrations()[0]
        assert (registration.standby, registration.started) == (True, True)
        await binding.close()


async def test_a_full_disk_refuses_to_forget_what_others_called_and_all_goes_on() -> None:
    """That others called it has to be noted, which needs room; nothing has happened when there is none."""
    disk = FaultyDisk(MemoryDisk())
    async with memory_hub(settings(b=ImmortalSection()), disk=disk) as hub, coordinator(hub) as ports:
        await call_verb(hub, "immortal.register", name="a")
        a, b = await RawBinding.to(ports, "a"), await RawBinding.to(ports, "b")
        await a.first_start()
        await b.first_start()
        b.say(fork(b"one", b"a"))
        assert [call.arguments for call in await a.calls(1)] == [b"one"]
        with full_for(hub, lambda op: isinstance(op, Put), 1), pytest.raises(DiskFull):
            await call_verb(hub, "immortal.forget", name="a")
        b.say(fork(b"two", b"a"))
        assert [call.arguments for call in await a.calls(1)] == [b"two"]
        await call_verb(hub, "immortal.forget", name="a")
        await a.closed()
        await b.close()


async def test_a_checkpoint_that_the_disk_has_no_room_for_is_taken_later(caplog: pytest.LogCaptureFixture) -> None:
    """The program is told why its link ends; what it did is logged, and it begins again with that."""
    memory = MemoryDisk()
    disk = FaultyDisk(memory)
    config = settings(a=ImmortalSection())
    async with memory_hub(config, disk=disk) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start(b"first")
        binding.say(fork(b"1"))
        await binding.calls(1)
        binding.say(Signal(Type.TAKE_CHECKPOINT))
        assert await binding.signal() == Type.TAKE_CHECKPOINT
        disk.room_bytes = 0
        binding.say(Checkpoint(3_000_000), bytes(3_000_000))
        await binding.closed()
        assert "the checkpoint is not stored; make room and try again" in caplog.text
        assert "internal error" not in caplog.text
        disk.room_bytes = None
        binding = await RawBinding.to(ports, "a")
        state, records = await recovered(binding, 2)
        assert (state, len(records)) == (b"first", 2)
        await binding.close()
