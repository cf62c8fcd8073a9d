"""Checkpoints: taken, kept, trimmed after, interrupted on either side; and first starts that are cut short."""

from __future__ import annotations

import asyncio
import random

import pytest
from support.ambrosia_peer import RawBinding, call_verb, coordinator, fork, info, recovered, settings
from support.until import until

from headrace.config import ImmortalSection
from headrace.errors import DiskFull
from headrace.hub import CheckpointWriter, Hub
from headrace.protocols.ambrosia import codec
from headrace.protocols.ambrosia.codec import Call, Checkpoint, InitialMessage, Signal, Type
from headrace.protocols.ambrosia.coordinator.store import Registration
from headrace.testing import MemoryDisk, memory_hub


async def test_checkpoints_by_size_trim_the_log_and_keep_the_last_ones() -> None:
    section = ImmortalSection(checkpoint_log_bytes=50_000, checkpoints_kept=1)
    async with memory_hub(settings(a=section)) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        taken = 0
        for _ in range(3):
            binding.say(*(fork(bytes(1000)) for _ in range(60)))
            while True:
                record = await binding.record()
                if record.sequence == -1:
                    taken += 1
                    binding.say(Checkpoint(2), b"%02d" % taken)
                    break
        await until(lambda: hub.bounds("immortal/a/log").first > 100)
        assert len(ports.coordinator.instances["a"].checkpoints()) == 1
        await binding.close()


async def test_a_reader_of_the_log_keeps_it_from_being_trimmed() -> None:
    section = ImmortalSection(checkpoints_kept=1)
    async with memory_hub(settings(a=section)) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        await hub.save_cursor("spark", "immortal/a/log", 1)
        binding.say(*(fork(b"x") for _ in range(10)))
        await binding.calls(10)
        taking = asyncio.ensure_future(call_verb(hub, "immortal.checkpoint", name="a"))
        assert await binding.signal() == Type.TAKE_CHECKPOINT
        binding.say(Checkpoint(1), b"c")
        assert (await taking).position == 11
        await until(lambda: hub.bounds("immortal/a/log").first == 1)
        await binding.close()


async def test_a_binding_lost_in_the_middle_of_its_checkpoint_recovers_from_the_one_before() -> None:
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start(b"good")
        binding.say(fork(b"1"))
        await binding.record()
        binding.say(Signal(Type.TAKE_CHECKPOINT))
        assert await binding.signal() == Type.TAKE_CHECKPOINT
        binding.say(Checkpoint(1 << 30), bytes(3 << 20))
        await binding.to_hub.drain()
        await binding.close()
        binding = await RawBinding.to(ports, "a")
        blob, found = await recovered(binding, 2)
        assert blob == b"good"
        assert [each.sequence for each in found] == [0, 1]
        await binding.close()


@pytest.mark.parametrize("seed", range(4))
async def test_a_hub_that_dies_while_it_writes_a_checkpoint_recovers_from_the_one_before(seed: int) -> None:
    disk = MemoryDisk()
    config = settings(a=ImmortalSection(), b=ImmortalSection())
    async with memory_hub(config, disk=disk) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start(b"good")
        binding.say(*(fork(b"%d" % n) for n in range(5)))
        await binding.calls(5)
        binding.say(Signal(Type.TAKE_CHECKPOINT))
        assert await binding.signal() == Type.TAKE_CHECKPOINT
        size = 3 << 20
        binding.say(Checkpoint(size), bytes(size - 1))
        await binding.to_hub.drain()
        await until(lambda: any("checkpoints/" in path and disk.size(path) > 1 << 20 for path in disk.paths()))
        left = disk.after_power_cut(random.Random(seed)) if seed else disk.after_kill()
        await binding.close()
    async with memory_hub(config, disk=left) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        blob, found = await recovered(binding, (await info(hub, "a")).sequence)
        assert blob == b"good"
        calls = [m for each in found[1:] for m in codec.decode_messages(each.payload, addressed=False)]
        assert [call.arguments for call in calls if isinstance(call, Call)] == [b"%d" % n for n in range(5)]
        await binding.close()


async def test_a_checkpoint_waits_for_calls_that_an_earlier_link_said_and_that_are_not_durable_yet() -> None:
    async with memory_hub(settings(a=ImmortalSection(), b=ImmortalSection())) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        a, queue = ports.coordinator.instances["a"], ports.coordinator.instances["b"].queue
        queue.hold()
        binding.say(fork(b"1", b"b"))
        await until(lambda: queue.queued_bytes)
        await binding.close()
        await until(lambda: a.primary is None)
        binding = await RawBinding.to(ports, "a")
        await binding.checkpoint()
        await binding.record()
        assert await binding.signal() == Type.TAKE_BECOMING_PRIMARY_CHECKPOINT
        binding.say(fork(b"1", b"b"), Checkpoint(5), b"later")
        await asyncio.sleep(0.1)
        assert len(a.checkpoints()) == 1  # a recovery from the second one would not say the call again
        queue.release(to_log=False)
        await until(lambda: len(a.checkpoints()) == 2)
        assert hub.producer("immortal/b/pending", "from:a") == 1
        await binding.close()


async def test_a_first_start_that_is_cut_short_begins_again() -> None:
    disk = MemoryDisk()
    config = settings(a=ImmortalSection(), b=ImmortalSection())
    async with memory_hub(config, disk=disk) as hub, coordinator(hub) as ports:
        b = await RawBinding.to(ports, "b")
        await b.first_start()
        b.say(fork(b"from b", b"a"))
        a = await RawBinding.to(ports, "a")
        await a.signal()
        a.say(InitialMessage(b"first try"), fork(b"early"), fork(b"to b", b"b"), Checkpoint(100), b"half")
        assert (await b.calls(1))[0].arguments == b"to b"
        await a.close()
        await b.close()
    async with memory_hub(config, disk=disk) as hub, coordinator(hub) as ports:
        a = await RawBinding.to(ports, "a")
        assert await a.signal() == Type.TAKE_BECOMING_PRIMARY_CHECKPOINT
        a.say(InitialMessage(b"second"), fork(b"early"), fork(b"to b", b"b"), Checkpoint(1), b"c")
        assert (await a.record()).payload == codec.encode(InitialMessage(b"second"))
        assert {call.arguments for call in await a.calls(2)} == {b"from b", b"early"}
        assert (await info(hub, "b")).senders[0].calls == 1
        await a.close()


@pytest.mark.parametrize("initial_logged", [False, True])
async def test_a_hub_killed_between_checkpoint_1_and_record_0_still_delivers_it_once(initial_logged: bool) -> None:
    disk = MemoryDisk()
    config = settings(a=ImmortalSection())
    async with memory_hub(config, disk=disk) as hub, coordinator(hub) as ports:
        instance = ports.coordinator.instances["a"]
        stopped = asyncio.Event()

        async def killed() -> None:
            stopped.set()
            await asyncio.sleep(3600)

        if initial_logged:
            instance._move_pending = killed  # type: ignore[method-assign]
        else:
            instance.ensure_started = killed  # type: ignore[method-assign]
        a = await RawBinding.to(ports, "a")
        assert await a.signal() == Type.TAKE_BECOMING_PRIMARY_CHECKPOINT
        a.say(InitialMessage(b"only once"), fork(b"early"), Checkpoint(1), b"c")
        await asyncio.wait_for(stopped.wait(), 60)
        left = disk.after_kill()
        await a.close()
    async with memory_hub(config, disk=left) as hub, coordinator(hub) as ports:
        a = await RawBinding.to(ports, "a")
        blob, found = await recovered(a, 2)
        assert blob == b"c"
        assert found[0].payload == codec.encode(InitialMessage(b"only once"))
        assert found[1].payload == codec.encode(Call(1, 1, b"early"))
        a.say(fork(b"next"))
        assert (await a.record()).sequence == 2
        await a.close()


async def test_a_binding_lost_right_after_checkpoint_1_does_not_stop_the_start() -> None:
    async with memory_hub(settings(a=ImmortalSection(), b=ImmortalSection())) as hub, coordinator(hub) as ports:
        b = await RawBinding.to(ports, "b")
        await b.first_start()
        b.say(fork(b"waits", b"a"))
        instance = ports.coordinator.instances["a"]
        a = await RawBinding.to(ports, "a")
        await a.signal()
        a.say(InitialMessage(b"x"), Checkpoint(1), b"c")
        await until(lambda: instance.newest_checkpoint() is not None)
        link = instance.primary
        assert link is not None
        link.close("lost")
        await a.closed()
        await asyncio.wait_for(instance.queue.flushed(), 60)
        a = await RawBinding.to(ports, "a")
        assert await a.checkpoint() == b"c"
        await until(lambda: instance.registration is not None and instance.registration.started)
        b.say(fork(b"more", b"a"))
        await until(lambda: hub.bounds("immortal/a/log").next == 3)
        await a.close()
        await b.close()


@pytest.mark.parametrize("upgrade_version", [None, 1])
async def test_a_hub_killed_between_the_upgraded_checkpoint_and_its_note_does_not_upgrade_twice(
    upgrade_version: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = MemoryDisk()
    async with memory_hub(settings(a=ImmortalSection()), disk=disk) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        await binding.close()
    config = settings(a=ImmortalSection(upgrade_version=1))
    async with memory_hub(config, disk=disk) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.checkpoint()
        await binding.record()
        assert await binding.signal() == Type.UPGRADE_TAKE_CHECKPOINT
        killed = asyncio.Event()

        async def save(registration: Registration) -> None:
            await killed.wait()

        monkeypatch.setattr(ports.coordinator.store, "save", save)
        binding.say(Checkpoint(8), b"upgraded")
        await until(lambda: len(ports.coordinator.instances["a"].checkpoints()) == 2)
        await binding.close()
    config = settings(a=ImmortalSection(upgrade_version=upgrade_version))
    async with memory_hub(config, disk=disk) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        blob, _ = await recovered(binding, 0)  # asks for TakeBecomingPrimaryCheckpoint
        assert blob == b"upgraded"
        assert (await info(hub, "a")).version == (await info(hub, "a")).upgrade_version == 1
        await binding.close()


async def test_a_large_checkpoint_is_streamed_both_ways() -> None:
    state = bytes(range(256)) * (48 << 10)  # 12 MiB
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start(state)
        await binding.close()
        binding = await RawBinding.to(ports, "a")
        blob, _ = await recovered(binding, 1)
        assert blob == state
        await binding.close()


async def test_an_unrequested_checkpoint_is_read_away() -> None:
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        binding.say(Checkpoint(5), codec.encode(fork(b""))[:5], fork(b"on"))
        assert (await binding.calls(1))[0].arguments == b"on"
        assert len(ports.coordinator.instances["a"].checkpoints()) == 1
        await binding.close()


async def test_an_unrequested_checkpoint_behind_a_requested_one_is_no_part_of_it() -> None:
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        binding.say(Signal(Type.TAKE_CHECKPOINT))
        assert await binding.signal() == Type.TAKE_CHECKPOINT
        binding.say(Checkpoint(5), b"asked", Checkpoint(9), b"not asked", fork(b"after"))
        assert [call.arguments for call in await binding.calls(1)] == [b"after"]
        await binding.close()
        binding = await RawBinding.to(ports, "a")
        assert await binding.checkpoint() == b"asked"
        await binding.close()


async def test_a_first_checkpoint_that_the_disk_refuses_closes_the_link() -> None:
    """It comes before the InitialMessage, which is not read while the blob waits for the disk."""
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        begin = hub.begin_checkpoint

        async def refuse(stream: str) -> CheckpointWriter:
            raise DiskFull("no room")

        hub.begin_checkpoint = refuse  # type: ignore[method-assign]
        binding = await RawBinding.to(ports, "a")
        assert await binding.signal() == Type.TAKE_BECOMING_PRIMARY_CHECKPOINT
        binding.say(Checkpoint(16 << 20), bytes(16 << 20), InitialMessage(b"hi"))
        await binding.closed()
        assert "no room" in (await info(hub, "a")).last_error
        hub.begin_checkpoint = begin  # type: ignore[method-assign]
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        await binding.close()


async def test_the_c_clients_checkpoint_form_and_initial_message_are_taken() -> None:
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.signal()
        binding.say(bytes.fromhex("12090e00004001050403"), Checkpoint(9, fixed=True), b"dummyckpt")
        assert (await binding.record()).payload.hex() == "12090e00004001050403"
        await binding.close()
        binding = await RawBinding.to(ports, "a")
        assert await binding.checkpoint() == b"dummyckpt"
        await binding.close()


@pytest.mark.parametrize("noted", [{}, {"sequence": "?"}], ids=["absent", "nonsense"])
@pytest.mark.parametrize("before_stop", [0, 3], ids=["nothing since", "calls since"])
async def test_a_checkpoint_that_does_not_say_its_sequence_is_recovered_from(
    noted: dict[str, str], before_stop: int
) -> None:
    """Checkpoints of early versions: what comes behind them says where it stands."""
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        binding.say(fork(b"before"))
        await binding.calls(1)
        await _old_checkpoint(hub, b"old", noted)
        for number in range(before_stop):
            binding.say(fork(b"%d" % number))
            await binding.calls(1)
        await binding.close()
        await until(lambda: ports.coordinator.instances["a"].primary is None)
        binding = await RawBinding.to(ports, "a")
        blob, found = await recovered(binding, before_stop)
        assert blob == b"old"
        assert [each.sequence for each in found] == list(range(2, 2 + before_stop))
        binding.say(*(fork(b"%d" % number) for number in range(before_stop)))  # as recovering bindings do
        binding.say(fork(b"after"))
        assert (await binding.record()).sequence == 2 + before_stop
        await binding.close()
        binding = await RawBinding.to(ports, "a")  # the checkpoint made meanwhile is as good as any
        blob, found = await recovered(binding, 1)
        assert (blob, found[0].sequence) == (b"later", 2 + before_stop)
        await binding.close()


async def _old_checkpoint(hub: Hub, blob: bytes, noted: dict[str, str]) -> None:
    writer = await hub.begin_checkpoint("immortal/a/log")
    await writer.write(blob)
    meta = {"sent": '{"a": 1}', "version": "0", **noted}
    await writer.commit(hub.bounds("immortal/a/log").next, meta)
