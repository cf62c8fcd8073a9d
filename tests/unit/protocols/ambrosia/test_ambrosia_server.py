"""The coordinator through its sockets: start-up cases, routing, exactly once, forms of delivery."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.ambrosia_peer import RawBinding, call_verb, coordinator, fork, impulse, info, recovered, settings
from support.until import DEADLINE_S, until

from headrace.config import Ambrosia, Config, ImmortalSection, Log
from headrace.config.address import split_address
from headrace.errors import LogFailed
from headrace.protocols.ambrosia import codec
from headrace.protocols.ambrosia.codec import AttachTo, Call, Checkpoint, Signal, Type
from headrace.protocols.ambrosia.coordinator import record_feed
from headrace.protocols.ambrosia.session import State
from headrace.testing import MemoryDisk, memory_hub
from headrace.units import MIB

VECTORS = Path(__file__).parents[3] / "conformance" / "vectors" / "ambrosia.json"
TRANSCRIPTS: dict[str, Any] = {v["name"]: v for v in json.loads(VECTORS.read_text()) if v["kind"] == "transcript"}
COMMITTER_B8, COMMITTER_B5 = -726246216, -826541899


async def play(binding: RawBinding, steps: list[dict[str, str]]) -> None:
    """Say what the binding said and hear what the coordinator said, byte for byte."""
    for step in steps:
        data = bytes.fromhex(step["hex"])
        if step["direction"] == "LB->IC":
            binding.say(data)
        else:
            assert (await binding.hear(len(data))).hex() == step["hex"], step["note"]


async def test_large_batches_are_read_beside_the_loop_and_keep_their_place() -> None:
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        small = [fork(b"%d" % number, method=number % 3) for number in range(2_000)]
        large = codec.frame_batch(b"".join(map(codec.encode, small * 10)), len(small) * 10, None)
        binding.say(fork(b"first"), large, fork(b"last"), large, fork(b"end"))
        calls = await binding.calls(2 * 20_000 + 3)
        said = [each.arguments for each in small] * 10
        assert [each.arguments for each in calls] == [b"first", *said, b"last", *said, b"end"]
        await binding.close()


# --- transcripts of the published coordinator -----------------------------------------------------------------


async def test_transcript_first_start_then_recovery() -> None:
    section = ImmortalSection(committer=COMMITTER_B8, delivery="counted")
    async with memory_hub(settings(a=section)) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await play(binding, TRANSCRIPTS["first start"]["fields"]["steps"])
        binding.say(bytes.fromhex("0c0000004201410c000000420142"))  # two forks in one write: record 2, a batch
        assert (await binding.record()).sequence == 2
        await binding.close()
        await until(lambda: ports.coordinator.instances["a"].primary is None)
        binding = await RawBinding.to(ports, "a")
        steps = TRANSCRIPTS["recovery"]["fields"]["steps"]
        await play(binding, steps[:4])
        binding.say(*(Call(33, 1, each, b"") for each in (b"abc", b"A", b"B")))  # as its code did before the end
        await play(binding, steps[4:])
        await binding.close()


async def test_transcript_upgrade_what_if_and_time_travel() -> None:
    section = ImmortalSection(committer=COMMITTER_B5)
    disk = MemoryDisk()
    async with memory_hub(settings(a=section), disk=disk) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start(b"V0", b"hi")
        binding.say(bytes.fromhex("10000000" + "4201" + "6f6e65"))
        await binding.record()
        await binding.close()
        for upgrade, transcript in ((False, "time travel"), (True, "what-if upgrade test")):
            debug = await call_verb(hub, "immortal.replay", name="a", upgrade=upgrade)
            debugging = await RawBinding.connect(debug.receive, debug.send)
            await play(debugging, TRANSCRIPTS[transcript]["fields"]["steps"])
            debugging.say(fork(b"goes nowhere"), impulse(b"neither does this"), Checkpoint(2), b"no")
            await debugging.close()
    later = ImmortalSection(committer=COMMITTER_B5, upgrade_version=1)
    async with memory_hub(settings(a=later), disk=disk) as hub, coordinator(hub) as ports:
        assert (await info(hub, "a")).log_next == 2
        binding = await RawBinding.to(ports, "a")
        await play(binding, TRANSCRIPTS["upgrade"]["fields"]["steps"])
        binding.say(fork(b"one", method=33), fork(b"on"))  # the first was said before the upgrade
        assert (await binding.record()).sequence == 2
        assert (await info(hub, "a")).version == 1
        await binding.close()
        back = {"name": "a", "options": {"upgrade_version": 0}}
        with pytest.raises(Exception, match="cannot go back"):
            await call_verb(hub, "immortal.register", **back)


async def test_debugging_sessions_are_listed_and_ended() -> None:
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start(b"V0", b"hi")
        [shown] = [one for one in hub.sessions.list("ambrosia") if one.details["immortal"] == "a"]
        assert (shown.peer.startswith("127.0.0.1:"), shown.reads) == (True, ["immortal/a/log"])
        debug = await call_verb(hub, "immortal.replay", name="a")
        waiting = await call_verb(hub, "immortal.replay", name="a")
        debugging = await RawBinding.connect(debug.receive, debug.send)
        await until(lambda: ports.coordinator.debugging["a"][0].state == "replayed")
        listed = await call_verb(hub, "immortal.debugging")
        assert [(one.receive, one.state, one.first, one.position, one.next) for one in listed] == [
            (debug.receive, "replayed", 0, 1, 1),
            (waiting.receive, "waiting", 0, 0, 1),
        ]
        for one in listed:
            await call_verb(hub, "immortal.end-replay", name="a", receive=one.receive)
        assert await call_verb(hub, "immortal.debugging") == []
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*split_address(waiting.receive))
        with pytest.raises(Exception, match="no debugging session"):
            await call_verb(hub, "immortal.end-replay", name="a", receive=debug.receive)
        assert (await info(hub, "a")).state == "running"
        await debugging.close()
        await binding.close()


async def test_a_debugging_binding_is_told_that_the_replay_has_ended_if_that_was_asked_for() -> None:
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start(b"V0", b"hi")
        debug = await call_verb(hub, "immortal.replay", name="a", tell_end=True)
        debugging = await RawBinding.connect(debug.receive, debug.send)
        assert (await debugging.checkpoint()) == b"V0"
        assert (await debugging.record()).sequence == 0
        assert (await debugging.signal()) == Type.TAKE_CHECKPOINT
        (session,) = ports.coordinator.debugging["a"]
        assert (session.state, session.position) == ("replaying", session.end)  # it may not be through with it
        debugging.say(Checkpoint(2), b"no")
        await until(lambda: session.state == "replayed")
        assert len((await info(hub, "a")).checkpoints) == 1
        await debugging.close()
        await binding.close()


async def test_forgetting_an_immortal_ends_all_its_debugging_sessions() -> None:
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start(b"V0", b"hi")
        sessions = [await call_verb(hub, "immortal.replay", name="a") for _ in range(2)]
        bindings = [await RawBinding.connect(session.receive, session.send) for session in sessions]
        await until(lambda: {session.state for session in ports.coordinator.debugging["a"]} == {"replayed"})
        await call_verb(hub, "immortal.forget", name="a")
        for session in sessions:
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*split_address(session.receive))
        for each in (binding, *bindings):
            await each.close()


async def test_transcript_checkpoint_asked_by_the_binding() -> None:
    section = ImmortalSection(committer=COMMITTER_B8)
    async with memory_hub(settings(a=section)) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        await play(binding, TRANSCRIPTS["checkpoint asked by the binding"]["fields"]["steps"])
        await until(lambda: len(ports.coordinator.instances["a"].checkpoints()) == 2)
        assert (await info(hub, "a")).checkpoints[-1].position == 1
        await binding.close()


async def test_transcript_standby_and_promotion() -> None:
    section = ImmortalSection(committer=COMMITTER_B8, standby=True)
    async with memory_hub(settings(a=section)) as hub, coordinator(hub) as ports:
        primary = await RawBinding.to(ports, "a")
        await play(primary, TRANSCRIPTS["first start"]["fields"]["steps"][:4])
        standby = await RawBinding.to(ports, "a")
        steps = TRANSCRIPTS["standby and promotion"]["fields"]["steps"]
        await play(standby, steps[:2])
        primary.say(Call(33, 1, b"abc", b""))
        await play(standby, steps[2:3])
        await primary.close()
        await play(standby, steps[3:])
        standby.say(impulse(b"now allowed"))
        assert (await standby.calls(1))[0].arguments == b"now allowed"
        await standby.close()


async def test_a_standby_is_promoted_behind_the_checkpoint_that_it_is_being_sent() -> None:
    """In the middle of the blob the signal would be taken for a part of it. Found by seed 615910 of the world."""
    async with memory_hub(settings(a=ImmortalSection(standby=True))) as hub, coordinator(hub) as ports:
        primary = await RawBinding.to(ports, "a")
        await primary.first_start()
        instance = ports.coordinator.instances["a"]
        primary.say(Signal(Type.TAKE_CHECKPOINT))
        assert await primary.signal() == Type.TAKE_CHECKPOINT
        primary.say(Checkpoint(5), b"later")
        await until(lambda: len(instance.checkpoints()) == 2)  # nothing is logged behind this one
        read, gate, begun = hub.read_checkpoint, asyncio.Event(), asyncio.Event()

        async def slowly(id: int) -> AsyncIterator[bytes]:
            begun.set()
            await gate.wait()
            async for piece in read(id):
                yield piece

        hub.read_checkpoint = slowly  # type: ignore[method-assign]
        standby = await RawBinding.to(ports, "a")
        await begun.wait()
        (link,) = instance.standbys
        await primary.close()
        await until(lambda: link.session.state is State.RUNNING)
        gate.set()
        assert await standby.checkpoint() == b"later"
        assert await standby.signal() == Type.BECOMING_PRIMARY
        await standby.close()


async def test_work_that_fails_as_its_link_ends_is_no_internal_error() -> None:
    """Found by seed 615602 of the world."""
    seen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
    async with memory_hub(settings(a=ImmortalSection(standby=True))) as hub, coordinator(hub) as ports:
        primary = await RawBinding.to(ports, "a")
        await primary.first_start()
        standbys = ports.coordinator.instances["a"].standbys

        async def failing(id: int) -> AsyncIterator[bytes]:
            standbys[0].close("the log has failed")
            raise LogFailed("the disk failed")
            yield b""

        hub.read_checkpoint = failing  # type: ignore[method-assign]
        standby = await RawBinding.to(ports, "a")
        await standby.closed()
        await primary.close()
    gc.collect()
    assert seen == []


async def test_a_large_record_is_sent_no_faster_than_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a feed that has fallen behind, and without a copy. A checkpoint that is asked for meanwhile stands for it."""
    size, concat, joined = 12 * MIB, record_feed.concat, list[int]()

    def counting(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        joined.append(len(batches))
        return concat(batches)

    monkeypatch.setattr(record_feed, "concat", counting)
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        for number in range(3):
            binding.say(fork(bytes([number]) * size))
            await until(lambda number=number: hub.bounds("immortal/a/log").next == number + 2)
        assert (await binding.record()).sequence == 1  # from memory
        link = ports.coordinator.instances["a"].primary
        assert link is not None
        await until(lambda: link.feed._behind is not None)
        assert link.feed._transport.get_write_buffer_size() < 2 * MIB

        taking = asyncio.ensure_future(call_verb(hub, "immortal.checkpoint", name="a"))
        await until(lambda: link.feed._behind)
        record = await binding.record()
        assert record.sequence == 2
        assert record.payload.endswith(b"\1" * size)
        assert await binding.signal() == Type.TAKE_CHECKPOINT
        binding.say(Checkpoint(5), b"state")
        assert (await taking).position == 3
        record = await binding.record()
        assert record.sequence == 3
        assert record.payload.endswith(b"\2" * size)
        await binding.close()

        binding = await RawBinding.to(ports, "a")
        _, (replayed,) = await recovered(binding, 1)
        assert replayed == record
        await binding.close()
    assert set(joined) == {1}


async def test_ports_are_given_back_while_links_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """`wait_closed` waits for the links of a port from Python 3.12 on; nobody must wait for that."""

    async def never(server: asyncio.Server) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.Server, "wait_closed", never)
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        async with asyncio.timeout(DEADLINE_S):
            await call_verb(hub, "immortal.register", name="a", options={"standby": True})
            await call_verb(hub, "immortal.forget", name="a")
        await binding.close()


async def test_whoever_waits_for_a_binding_does_not_get_one_that_is_gone_again() -> None:
    """Found by seed 650415 of the world."""
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        instance = ports.coordinator.instances["a"]
        waiting = asyncio.ensure_future(instance.running())
        await asyncio.sleep(0)
        instance._running.set()
        instance._running.clear()
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        assert await waiting is instance.primary
        await binding.close()


async def test_what_a_follower_has_said_meanwhile_is_not_missing(caplog: pytest.LogCaptureFixture) -> None:
    """It came further in the log than a program that still recovers, and has gone. Found by seed 653265."""
    config = settings(a=ImmortalSection(standby=True), b=ImmortalSection())
    async with memory_hub(config) as hub, coordinator(hub) as ports:
        a, b = await RawBinding.to(ports, "a"), await RawBinding.to(ports, "b")
        await a.first_start()
        await b.first_start()
        await a.close()
        instance = ports.coordinator.instances["a"]
        await until(lambda: instance.primary is None)
        a = await RawBinding.to(ports, "a")
        await a.checkpoint()
        assert (await a.record()).sequence == 0
        assert await a.signal() == Type.TAKE_BECOMING_PRIMARY_CHECKPOINT

        b.say(AttachTo(b"a"), fork(b"ask", b"a"))
        follower = await RawBinding.to(ports, "a")
        await follower.checkpoint()
        assert (await follower.record()).sequence == 0
        assert [call.arguments for call in await follower.calls(1)] == [b"ask"]
        follower.say(AttachTo(b"b"), fork(b"answer", b"b"))
        assert [call.arguments for call in await b.calls(1)] == [b"answer"]
        await follower.close()
        await until(lambda: not instance.standbys)

        a.say(Checkpoint(5), b"state")
        assert [call.arguments for call in await a.calls(1)] == [b"ask"]
        assert "were not sent again" not in caplog.text
        await a.close()
        await b.close()


# --- delivery -------------------------------------------------------------------------------------------------


async def test_calls_come_once_in_order_and_only_to_their_destination() -> None:
    async with memory_hub(settings(a=ImmortalSection(), b=ImmortalSection())) as hub, coordinator(hub) as ports:
        a, b = await RawBinding.to(ports, "a"), await RawBinding.to(ports, "b")
        await a.first_start()
        await b.first_start()
        a.say(AttachTo(b"b"), *(fork(b"%d" % n, b"b" if n % 3 else b"") for n in range(300)), impulse(b"i", b"b"))
        got_a, got_b = await a.calls(100), await b.calls(201)
        assert [call.arguments for call in got_a] == [b"%d" % n for n in range(300) if n % 3 == 0]
        assert [call.arguments for call in got_b] == [b"%d" % n for n in range(300) if n % 3] + [b"i"]
        senders = {peer.name: (peer.calls, peer.impulses) for peer in (await info(hub, "b")).senders}
        assert senders == {"a": (200, 1)}
        await a.close()
        await b.close()


async def test_ones_own_name_is_oneself() -> None:
    async with memory_hub(settings(me=ImmortalSection())) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "me")
        await binding.first_start()
        binding.say(AttachTo(b"me"), fork(b"by name", b"me"), fork(b"by none"))
        assert [call.arguments for call in await binding.calls(2)] == [b"by name", b"by none"]
        await binding.close()


async def test_a_recovering_binding_repeats_itself_and_nothing_is_delivered_twice() -> None:
    async with memory_hub(settings(a=ImmortalSection(), b=ImmortalSection())) as hub, coordinator(hub) as ports:
        a, b = await RawBinding.to(ports, "a"), await RawBinding.to(ports, "b")
        await a.first_start()
        await b.first_start()
        sent = [fork(b"%d" % n, b"b") for n in range(10)]
        a.say(*sent[:6], impulse(b"not repeated", b"b"))
        assert len(await b.calls(7)) == 7
        await a.close()
        a = await RawBinding.to(ports, "a")
        await recovered(a, 1)
        a.say(*sent)  # the first six again, then four new ones
        assert [call.arguments for call in await b.calls(4)] == [b"6", b"7", b"8", b"9"]
        link = ports.coordinator.instances["a"].primary
        assert link is not None
        assert link.counts["duplicates"] == 6
        await a.close()
        await b.close()


async def test_the_count_at_a_checkpoint_is_where_a_recovery_goes_on() -> None:
    disk = MemoryDisk()
    config = settings(a=ImmortalSection(), b=ImmortalSection())
    async with memory_hub(config, disk=disk) as hub, coordinator(hub) as ports:
        a, b = await RawBinding.to(ports, "a"), await RawBinding.to(ports, "b")
        await a.first_start()
        await b.first_start()
        a.say(*(fork(b"%d" % n, b"b") for n in range(5)), Signal(Type.TAKE_CHECKPOINT))
        assert await a.signal() == Type.TAKE_CHECKPOINT
        a.say(Checkpoint(3), b"at5", *(fork(b"%d" % n, b"b") for n in range(5, 8)))
        assert len(await b.calls(8)) == 8
        await until(lambda: len(ports.coordinator.instances["a"].checkpoints()) == 2)
        await a.close()
        await b.close()
    async with memory_hub(config, disk=disk) as hub, coordinator(hub) as ports:
        a, b = await RawBinding.to(ports, "a"), await RawBinding.to(ports, "b")
        blob, _ = await recovered(a, 0)
        assert blob == b"at5"
        await recovered(b, (await info(hub, "b")).sequence)
        a.say(*(fork(b"%d" % n, b"b") for n in range(5, 10)))  # three again, two new
        assert [call.arguments for call in await b.calls(2)] == [b"8", b"9"]
        await a.close()
        await b.close()


async def test_replayed_records_are_the_same_bytes() -> None:
    disk = MemoryDisk()
    config = settings(a=ImmortalSection(delivery="counted"))
    said = []
    async with memory_hub(config, disk=disk) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        for n in range(5):
            binding.say(fork(b"%d" % n), impulse(b"x" * n), fork(b"z" * 3000), impulse(b"")) if n % 2 else binding.say(
                fork(b"alone %d" % n)
            )
            said.append(await binding.record())
        await binding.close()
    async with memory_hub(config, disk=disk) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        _, found = await recovered(binding, 6)
        assert found[1:] == said
        assert [record.sequence for record in found] == list(range(6))
        await binding.close()


@pytest.mark.parametrize(
    ("delivery", "mixed", "plain"),
    [("bare", [0, 0, 0], [0, 0]), ("batch", [0, 0, 0], [5]), ("counted", [13], [5])],
)
async def test_forms_of_delivery(delivery: Any, mixed: list[int], plain: list[int]) -> None:
    """A binding gets types 5 and 13 only if it is registered for them, and never a batch of one."""
    async with memory_hub(settings(a=ImmortalSection(delivery=delivery))) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        for sent, types in (
            ([fork(b"1"), fork(b"2"), impulse(b"3")], mixed),
            ([fork(b"1")] * 2, plain),
            ([fork(b"1")], [0]),
        ):
            binding.say(*sent)
            payload = (await binding.record()).payload
            found, at = [], 0
            while at < len(payload):
                size, at = codec.read_int(payload, at, len(payload))
                found.append(payload[at])
                at += size
            assert found == types
        await binding.close()


async def test_another_form_of_delivery_does_not_change_what_is_logged_already() -> None:
    disk = MemoryDisk()
    async with memory_hub(settings(a=ImmortalSection()), disk=disk) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        binding.say(fork(b"1"), fork(b"2"))
        bare = await binding.record()
        await binding.close()
    async with memory_hub(settings(a=ImmortalSection(delivery="batch")), disk=disk) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        _, found = await recovered(binding, 2)
        assert found[1] == bare
        binding.say(*[fork(b"1"), fork(b"2")] * 2)
        assert (await binding.record()).payload[1] == Type.RPC_BATCH
        await binding.close()


async def test_records_above_8_mib_are_cut_and_read_back_whole() -> None:
    disk = MemoryDisk()
    config = Config(ambrosia=Ambrosia(immortals={"a": ImmortalSection()}), log=Log(segment_bytes=1 << 20))
    async with memory_hub(config, disk=disk) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        blocks = [bytes([n]) * 500_000 for n in range(40)] + [b"big" * 3_000_000]
        binding.say(*map(fork, blocks))
        calls = await binding.calls(len(blocks))
        assert [call.arguments for call in calls] == blocks
        sequence = (await info(hub, "a")).sequence
        await binding.close()
    async with memory_hub(config, disk=disk) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        _, found = await recovered(binding, sequence)
        again = [m for r in found[1:] for m in codec.decode_messages(r.payload, addressed=False)]
        assert [call.arguments for call in again if isinstance(call, Call)] == blocks
        assert max(len(r.payload) + 24 for r in found if b"big" not in r.payload) <= codec.RECORD_BYTES_MAX
        await binding.close()


async def test_calls_that_take_more_than_one_transaction_of_the_log_are_taken_in_several() -> None:
    """A small call takes several times its own size in the log; refusing them would close the links of everybody."""
    config = Config(
        log=Log(batch_bytes_max=100_000), ambrosia=Ambrosia(immortals={name: ImmortalSection() for name in "ab"})
    )
    count = 20_000
    async with memory_hub(config) as hub, coordinator(hub) as ports:
        a, b = await RawBinding.to(ports, "a"), await RawBinding.to(ports, "b")
        await a.first_start()
        await b.first_start()
        a.say(codec.frame(Type.RPC_BATCH, codec.zigzag_int(count) + codec.encode(fork(b"", b"b")) * count))
        assert len(await b.calls(count)) == count
        assert hub.producer("immortal/b/log", "from:a") == count
        await a.close()
        await b.close()


async def test_a_batch_above_8_mib_comes_in_records_below_it() -> None:
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        inner = b"".join(codec.encode(fork(b"%d" % number * (1 << 20))) for number in range(9))
        binding.say(codec.frame(Type.RPC_BATCH, codec.zigzag_int(9) + inner))
        sizes = [len((await binding.record()).payload) for _ in range(2)]
        assert max(sizes) <= 8 << 20
        assert sum(sizes) > 9 << 20
        await binding.close()


async def test_whoever_comes_while_the_hub_stops_is_not_linked() -> None:
    """Ports close one after the other."""
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        await ports.coordinator.close()
        instance = ports.coordinator.instances["a"]
        assert ports.coordinator._link(instance, asyncio.Transport(), asyncio.Transport(), False) is None
