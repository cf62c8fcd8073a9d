"""The coordinator through its sockets: start-up cases, routing, exactly once, checkpoints, refusals."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from unit.protocols.ambrosia.ambrosia_binding import (
    RawBinding,
    call_verb,
    coordinator,
    fork,
    impulse,
    info,
    recovered,
    settings,
    until,
)

from headrace.config import Ambrosia, Config, ImmortalSection, Log
from headrace.listener import split_address
from headrace.log.batch import Batch
from headrace.protocols.ambrosia import codec
from headrace.protocols.ambrosia.codec import (
    AttachTo,
    Call,
    Checkpoint,
    InitialMessage,
    RemoteProtocolError,
    Signal,
    Type,
)
from headrace.protocols.ambrosia.server import ImmortalPorts
from headrace.testing import MemoryDisk, memory_hub

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
        binding.say(fork(b"one"), fork(b"on"))  # the first was said before the upgrade
        assert (await binding.record()).sequence == 2
        assert (await info(hub, "a")).version == 1
        await binding.close()
        back = {"name": "a", "options": {"upgrade_version": 0}}
        with pytest.raises(Exception, match="cannot go back"):
            await call_verb(hub, "immortal.register", **back)


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


# --- absent peers ---------------------------------------------------------------------------------------------


async def test_calls_for_an_unknown_name_wait_until_it_starts() -> None:
    disk = MemoryDisk()
    async with memory_hub(settings(a=ImmortalSection()), disk=disk) as hub, coordinator(hub) as ports:
        a = await RawBinding.to(ports, "a")
        await a.first_start()
        a.say(
            AttachTo("späť".encode()),
            *(fork(b"%d" % n, "späť".encode()) for n in range(3)),
            impulse(b"i", "späť".encode()),
        )
        await until(
            lambda: "späť" in ports.coordinator.instances and ports.coordinator.instances["späť"].inbound.pending_bytes
        )
        await asyncio.wait_for(ports.coordinator.instances["späť"].inbound.flushed(), 5)
        found = await info(hub, "späť")
        assert (found.registered, found.pending) == (False, 4)
        await a.close()
    async with memory_hub(settings(a=ImmortalSection()), disk=disk) as hub, coordinator(hub) as ports:
        assert (await info(hub, "späť")).pending == 4
        await call_verb(hub, "immortal.register", name="späť")
        late = await RawBinding.to(ports, "späť")
        await late.first_start()
        assert [call.arguments for call in await late.calls(4)] == [b"0", b"1", b"2", b"i"]
        a = await RawBinding.to(ports, "a")
        await recovered(a, 1)
        a.say(*(fork(b"%d" % n, "späť".encode()) for n in range(5)))  # three again, two new
        assert [call.arguments for call in await late.calls(2)] == [b"3", b"4"]
        await a.close()
        await late.close()


async def test_calls_for_an_absent_immortal_are_replayed_to_it() -> None:
    async with memory_hub(settings(a=ImmortalSection(), b=ImmortalSection())) as hub, coordinator(hub) as ports:
        a, b = await RawBinding.to(ports, "a"), await RawBinding.to(ports, "b")
        await a.first_start()
        await b.first_start()
        await b.close()
        await until(lambda: ports.coordinator.instances["b"].primary is None)
        a.say(fork(b"while away", b"b"))
        await until(lambda: hub.bounds("immortal/b/log").next == 2)
        assert (await info(hub, "b")).undelivered == 2
        b = await RawBinding.to(ports, "b")
        _, found = await recovered(b, 2)
        assert found[1].payload == codec.encode(Call(1, 1, b"while away"))
        await a.close()
        await b.close()


async def test_a_sender_is_held_back_by_a_peer_that_is_away_too_long_and_freed_by_forgetting_it() -> None:
    config = Config(ambrosia=Ambrosia(immortals={"a": ImmortalSection()}, backlog_bytes_max=100_000))
    async with memory_hub(config) as hub, coordinator(hub) as ports:
        a = await RawBinding.to(ports, "a")
        await a.first_start()
        a.say(*(fork(bytes(1000), b"gone") for _ in range(2000)), fork(b"last"))
        await until(lambda: (g := ports.coordinator.instances.get("gone")) and g.backlog_bytes > 100_000)
        link = ports.coordinator.instances["a"].primary
        assert link is not None
        last = asyncio.ensure_future(a.calls(1))
        while not last.done():  # each time another 100 kB may come before the sender is held back again
            if "gone" in ports.coordinator.instances and link.held_back:
                assert ports.coordinator.instances["gone"].backlog_bytes > 100_000
                await call_verb(hub, "immortal.forget", name="gone")
            await asyncio.sleep(0.002)
        assert (await last)[0].arguments == b"last"
        await a.close()


async def test_a_forgotten_peer_does_not_come_back_with_old_calls() -> None:
    async with memory_hub(settings(a=ImmortalSection(), b=ImmortalSection())) as hub, coordinator(hub) as ports:
        a, b = await RawBinding.to(ports, "a"), await RawBinding.to(ports, "b")
        await a.first_start()
        await b.first_start()
        a.say(*(fork(b"%d" % n, b"b") for n in range(4)))
        await b.calls(4)
        await call_verb(hub, "immortal.forget", name="b")
        await b.closed()
        assert [each.name for each in await call_verb(hub, "immortal.list")] == ["a"]
        assert not hub.streams("immortal/b/*")
        await a.close()
        a = await RawBinding.to(ports, "a")
        await recovered(a, 1)
        a.say(*(fork(b"%d" % n, b"b") for n in range(6)))  # four were for the old b
        await call_verb(hub, "immortal.register", name="b")
        b = await RawBinding.to(ports, "b")
        await b.first_start()
        assert [call.arguments for call in await b.calls(2)] == [b"4", b"5"]
        await call_verb(hub, "immortal.forget", name="a")
        await a.closed()
        await call_verb(hub, "immortal.register", name="a")
        a = await RawBinding.to(ports, "a")  # a new life: it counts from one again
        await a.first_start()
        a.say(fork(b"new", b"b"))
        assert [call.arguments for call in await b.calls(1)] == [b"new"]
        await a.close()
        await b.close()


# --- inbox, log and verbs -------------------------------------------------------------------------------------


async def test_what_other_protocols_append_to_the_inbox_comes_as_impulses_once() -> None:
    disk = MemoryDisk()
    config = settings(a=ImmortalSection(inbox_method=9))
    async with memory_hub(config, disk=disk) as hub, coordinator(hub) as ports:
        await hub.append("immortal/a/inbox", Batch.of([b"early", b"too"], types=[None, "7"]))
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        assert await binding.calls(2) == [Call(9, 2, b"early"), Call(7, 2, b"too")]
        await hub.append("immortal/a/inbox", Batch.one(b"live", type="text/plain"))
        assert await binding.calls(1) == [Call(9, 2, b"live")]
        await binding.close()
    async with memory_hub(config, disk=disk) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await recovered(binding, (await info(hub, "a")).sequence)
        await hub.append("immortal/a/inbox", Batch.one(b"after"))
        assert await binding.calls(1) == [Call(9, 2, b"after")]
        await binding.close()


async def test_the_log_is_a_stream_and_can_be_read_in_words() -> None:
    async with memory_hub(settings(a=ImmortalSection(), b=ImmortalSection())) as hub, coordinator(hub) as ports:
        a, b = await RawBinding.to(ports, "a"), await RawBinding.to(ports, "b")
        await a.first_start()
        await b.first_start()
        a.say(
            fork(b'{"n":1}', b"b", 33), impulse(b"\xff\x00", b"b"), Call(7, 0, b"q", b"b", b"a", 5),
            codec.Return(codec.BodyKind.VALUE, b"a", 3, b"42", b"b"),
            codec.Return(codec.BodyKind.EMPTY, b"a", 4, b"", b"b"),
        )  # fmt: skip
        await until(lambda: hub.bounds("immortal/b/log").next == 6)
        batch = await hub.read("immortal/b/log", 0)
        assert batch.column("type").to_pylist() == [
            "initial",
            "fork/33",
            "impulse/2",
            "async/7",
            "return",
            "return-empty",
        ]
        assert batch.column("key").to_pylist() == [b"b"] + [b"a"] * 5
        words = await call_verb(hub, "immortal.log", name="b", limit=5)
        assert [each.kind for each in words] == ["fork", "impulse", "async", "return", "return-empty"]
        assert (words[0].method, words[0].text, words[0].sender) == (33, '{"n":1}', "a")
        assert words[1].base64 == "/wA="
        assert (words[2].caller, words[2].call_number) == ("a", 5)
        assert [each.index for each in await call_verb(hub, "immortal.log", name="b", start=2, limit=2)] == [2, 3]
        with pytest.raises(Exception, match="no immortal 'c'"):
            await call_verb(hub, "immortal.log", name="c")
        await a.close()
        await b.close()


# --- refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x00", "a message of 0 bytes"),
        (bytes.fromhex("0214"), "type 20"),
        (codec.encode(InitialMessage(b"again")), "InitialMessage in state running"),
        (codec.encode(fork(b"", b"\xff\xfe")), "not UTF-8"),
    ],
)
async def test_a_malformed_message_closes_the_link_with_a_reason_and_hurts_nothing(data: bytes, why: str) -> None:
    async with memory_hub(settings(a=ImmortalSection(), b=ImmortalSection())) as hub, coordinator(hub) as ports:
        a, b = await RawBinding.to(ports, "a"), await RawBinding.to(ports, "b")
        await a.first_start()
        await b.first_start()
        a.say(fork(b"good", b"b"), data)
        await a.closed()
        assert (await b.calls(1))[0].arguments == b"good"
        assert why in (await info(hub, "a")).last_error
        assert any(why in (each.reason or "") for each in hub.sessions.list("ambrosia", ended=True))
        assert b"headrace_ambrosia_links_closed_total 1.0" in hub.metrics.text()
        b.say(fork(b"still here"))
        assert (await b.calls(1))[0].arguments == b"still here"
        a = await RawBinding.to(ports, "a")
        await recovered(a, 1)
        await a.close()
        await b.close()


async def test_an_impulse_during_replay_closes_the_link() -> None:
    async with memory_hub(settings(a=ImmortalSection(standby=True))) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        standby = await RawBinding.to(ports, "a")
        await standby.checkpoint()
        standby.say(impulse(b"too early"))
        await standby.closed()
        assert "impulses in state standby" in (await info(hub, "a")).last_error
        await binding.close()


async def test_a_second_binding_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.protocols.ambrosia.ports.GRACE_S", 0.01)
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        first = await RawBinding.to(ports, "a")
        await first.first_start()
        second = await RawBinding.to(ports, "a")
        await second.closed()
        first.say(fork(b"undisturbed"))
        assert (await first.calls(1))[0].arguments == b"undisturbed"
        await first.close()
        await second.close()


async def test_a_binding_that_comes_back_before_its_end_was_noticed_is_let_in() -> None:
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        first = await RawBinding.to(ports, "a")
        await first.first_start()
        second = await RawBinding.to(ports, "a")
        await first.close()
        await recovered(second, 1)
        await second.close()


async def test_half_a_binding_that_went_away_is_not_paired_with_another() -> None:
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        receive, send = (split_address(ports.addresses[f"ambrosia.a.{end}"]) for end in ("receive", "send"))
        waiting = ports.coordinator.ports["a"]
        for address, halves in ((receive, waiting._receives), (send, waiting._sends)):
            _, half = await asyncio.open_connection(*address)
            await until(lambda halves=halves: len(halves) == 1)
            half.close()
            await half.wait_closed()
            await until(lambda halves=halves: not halves)
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        await binding.close()


async def test_what_a_binding_says_before_it_is_linked_is_kept_up_to_a_limit() -> None:
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        binding = RawBinding()
        addresses = ports.addresses
        _, binding.to_hub = await asyncio.open_connection(*split_address(addresses["ambrosia.a.receive"]))
        binding.say(InitialMessage(b"eager"), Checkpoint(1), b"c")
        await until(lambda: any(each._early for each in ports.coordinator.ports["a"]._receives))
        binding.from_hub, binding._from_writer = await asyncio.open_connection(
            *split_address(addresses["ambrosia.a.send"])
        )
        assert await binding.signal() == Type.TAKE_BECOMING_PRIMARY_CHECKPOINT
        assert (await binding.record()).payload == codec.encode(InitialMessage(b"eager"))
        await binding.close()
        _, chatty = await asyncio.open_connection(*split_address(addresses["ambrosia.a.receive"]))
        chatty.write(bytes(100_000))
        await until(lambda: not ports.coordinator.ports["a"]._receives)
        chatty.close()


async def test_end_of_file_in_the_middle_of_a_message_is_no_data() -> None:
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        binding.say(codec.encode(fork(b"x" * 100))[:-1])
        await binding.to_hub.drain()
        await binding.close()
        await until(lambda: ports.coordinator.instances["a"].primary is None)
        assert (await info(hub, "a")).log_next == 1


async def test_the_old_arrangement_connects_out_to_the_binding() -> None:
    """The C client connects to the receive port and then listens on the send port."""
    found: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
        asyncio.get_running_loop().create_future()
    )
    server = await asyncio.start_server(lambda r, w: found.set_result((r, w)), "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await server.wait_closed()
    section = ImmortalSection(sockets="connect", send=address)
    async with memory_hub(settings(c=section)) as hub, coordinator(hub) as ports:
        assert ports.addresses["ambrosia.c.send"] == address
        binding = RawBinding()
        _, binding.to_hub = await asyncio.open_connection(*split_address(ports.addresses["ambrosia.c.receive"]))
        await asyncio.sleep(0.06)  # the hub's first attempt finds nobody
        server = await asyncio.start_server(lambda r, w: found.set_result((r, w)), *split_address(address))
        binding.from_hub, binding._from_writer = await asyncio.wait_for(found, 5)
        await binding.first_start()
        await binding.close()
        server.close()


async def test_too_many_unregistered_names_are_refused() -> None:
    config = Config(ambrosia=Ambrosia(immortals={"a": ImmortalSection()}, destinations_max=2))
    async with memory_hub(config) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        binding.say(AttachTo(b"x"), AttachTo(b"y"), AttachTo(b"z"))
        await binding.closed()
        assert "ambrosia.destinations_max" in (await info(hub, "a")).last_error


async def test_a_hub_without_immortals_serves_none() -> None:
    from headrace.protocols.ambrosia.server import start

    async with memory_hub(Config(ambrosia=Ambrosia(enabled=False))) as hub:
        assert await start(hub) is None


async def test_a_log_that_refuses_makes_bindings_recover_and_loses_nothing() -> None:
    async with memory_hub(settings(a=ImmortalSection(), b=ImmortalSection())) as hub, coordinator(hub) as ports:
        a, b = await RawBinding.to(ports, "a"), await RawBinding.to(ports, "b")
        await a.first_start()
        await b.first_start()
        real, refuse = hub.transact, asyncio.Event()

        def transact(operations: Any) -> Any:
            if refuse.is_set():
                future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                future.set_exception(RemoteProtocolError("no room"))
                return future
            return real(operations)

        hub.transact = transact  # type: ignore[method-assign]
        refuse.set()
        a.say(fork(b"1", b"b"))
        await a.closed()
        await b.closed()
        refuse.clear()
        a, b = await RawBinding.to(ports, "a"), await RawBinding.to(ports, "b")
        await recovered(a, 1)
        await recovered(b, 1)
        a.say(fork(b"1", b"b"))
        call = (await b.calls(1))[0]
        assert call.arguments == b"1"
        await a.close()
        await b.close()


async def test_the_service_names_its_ports_for_the_ready_file() -> None:
    async with memory_hub(settings(a=ImmortalSection(), b=ImmortalSection())) as hub, coordinator(hub) as ports:
        assert isinstance(ports, ImmortalPorts)
        assert list(ports.addresses) == [f"ambrosia.{name}.{end}" for name in "ab" for end in ("receive", "send")]
        assert all(not address.endswith(":0") for address in ports.addresses.values())


async def test_a_whole_life_one_byte_at_a_time() -> None:
    async with memory_hub(settings(a=ImmortalSection(delivery="counted"))) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.signal()
        life = [InitialMessage(b"hi"), Checkpoint(3), b"abc", AttachTo(b"a"), fork(b"x"), impulse(b"y", b"a")]
        await dribble(binding, *life, codec.RpcBatch((fork(b"1"), fork(b"2"))))
        found: list[bytes] = []
        while len(found) < 4:
            found += [call.arguments for call in _calls_of(await binding.record())]
        assert found == [b"x", b"y", b"1", b"2"]
        await dribble(binding, Signal(Type.TAKE_CHECKPOINT))
        assert await binding.signal() == Type.TAKE_CHECKPOINT
        await dribble(binding, Checkpoint(2), b"de", fork(b"z"))
        assert [call.arguments for call in _calls_of(await binding.record())] == [b"z"]
        await until(lambda: len(ports.coordinator.instances["a"].checkpoints()) == 2)
        await binding.close()


async def dribble(binding: RawBinding, *messages: bytes | codec.Message) -> None:
    for byte in b"".join(each if isinstance(each, bytes) else codec.encode(each) for each in messages):
        binding.say(bytes((byte,)))
        await binding.to_hub.drain()
        await asyncio.sleep(0)


def _calls_of(record: codec.Record) -> list[Call]:
    messages = codec.decode_messages(record.payload, addressed=False)
    calls = [each for m in messages for each in (m.calls if isinstance(m, codec.RpcBatch) else (m,))]
    return [call for call in calls if isinstance(call, Call)]


async def test_no_bytes_end_the_hub_or_reach_another_immortal() -> None:
    chance = random.Random(3)
    async with memory_hub(settings(a=ImmortalSection(), b=ImmortalSection())) as hub, coordinator(hub) as ports:
        b = await RawBinding.to(ports, "b")
        await b.first_start()
        a = await RawBinding.to(ports, "a")
        await a.first_start()
        for _ in range(25):
            a.say(bytes([chance.choice([0x00, 0x14, 0x1E, 0xFF])]) + chance.randbytes(200))
            await a.close()
            await until(lambda: ports.coordinator.instances["a"].primary is None)
            a = await RawBinding.to(ports, "a")
            await a.checkpoint()
        b.say(fork(b"unharmed"))
        assert (await b.calls(1))[0].arguments == b"unharmed"
        assert (await info(hub, "a")).registered
        await a.close()
        await b.close()


async def test_what_others_append_to_the_log_is_left_out() -> None:
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        await hub.append("immortal/a/log", Batch.one(b"from somebody"))
        await hub.append("immortal/a/log", Batch.of([b"with", b"an id"], ids=[7, 7]))
        binding.say(fork(b"mine"))
        record = await binding.record()
        assert (record.sequence, record.payload) == (1, codec.encode(Call(1, 1, b"mine")))
        await binding.close()
        binding = await RawBinding.to(ports, "a")
        _, found = await recovered(binding, 2)
        assert [each.sequence for each in found] == [0, 1]
        await binding.close()


async def test_nothing_is_delivered_before_it_is_durable() -> None:
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        real, synced = hub.transact, asyncio.Event()
        submitted = asyncio.Event()

        def transact(operations: Any) -> Any:
            async def later() -> Any:
                submitted.set()
                await synced.wait()
                return await real(operations)

            return asyncio.ensure_future(later())

        hub.transact = transact  # type: ignore[method-assign]
        binding.say(fork(b"wait for the disk"))
        await asyncio.wait_for(submitted.wait(), 5)
        coming = asyncio.ensure_future(binding.calls(1))
        done, _ = await asyncio.wait([coming], timeout=0.05)
        assert not done
        synced.set()
        assert (await coming)[0].arguments == b"wait for the disk"
        await binding.close()
