"""A binding that follows and takes the checkpoints, so that the one that runs never pauses for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.ambrosia_peer import RawBinding, call_verb, coordinator, fork, info, settings
from support.until import until

from headrace.config import ImmortalSection
from headrace.config.address import split_address
from headrace.hub import Hub
from headrace.protocols.ambrosia import codec
from headrace.protocols.ambrosia.codec import Call, Checkpoint, Type
from headrace.protocols.ambrosia.coordinator.instance import Instance
from headrace.protocols.ambrosia.pairing import Mark, mark_in, mark_of
from headrace.protocols.ambrosia.record_reader import Record
from headrace.protocols.ambrosia.server import ImmortalPorts
from headrace.testing import memory_hub

LOG_BYTES = 2_000


@asynccontextmanager
async def serving(**options: int) -> AsyncIterator[tuple[Hub, ImmortalPorts, Instance]]:
    section = ImmortalSection(standby=True, clock=True, checkpoint_log_bytes=LOG_BYTES, **options)
    async with memory_hub(settings(a=section)) as hub, coordinator(hub) as ports:
        yield hub, ports, ports.coordinator.instances["a"]


async def connected(ports: ImmortalPorts, takes_checkpoints: bool = False) -> RawBinding:
    """A binding that says which sockets are its own, and what it is."""
    self = RawBinding()
    addresses = ports.addresses
    self.from_hub, self._from_writer = await asyncio.open_connection(*split_address(addresses["ambrosia.a.send"]))
    _, self.to_hub = await asyncio.open_connection(*split_address(addresses["ambrosia.a.receive"]))
    self.say(mark_of(self._from_writer.get_extra_info("sockname")[1], takes_checkpoints))
    return self


async def started(ports: ImmortalPorts) -> RawBinding:
    primary = await connected(ports)
    assert await primary.signal() == Type.TAKE_BECOMING_PRIMARY_CHECKPOINT
    primary.say(codec.InitialMessage(b"hi"), Checkpoint(1), b"0")
    await primary.calls(1)  # the time
    await primary.record()
    return primary


async def said_to_itself(binding: RawBinding, count: int) -> None:
    """Records of the log until `count` calls have come."""
    found = 0
    while found < count:
        record = await binding.next()
        assert isinstance(record, Record)
        assert record.sequence >= 0, "it was asked for a checkpoint"
        found += sum(isinstance(each, Call) and each.method == 1
                     for each in codec.decode_messages(record.payload, addressed=False))  # fmt: skip


async def replied(checkpointer: RawBinding, state: bytes) -> None:
    """It goes on to its next TakeCheckpoint and takes one."""
    while True:
        record = await checkpointer.next()
        if isinstance(record, Record) and record.sequence == -1:
            checkpointer.say(Checkpoint(len(state)), state)
            return


async def test_it_is_asked_in_place_of_the_one_that_runs_and_is_never_promoted() -> None:
    async with serving() as (hub, ports, instance):
        primary = await started(ports)
        checkpointer = await connected(ports, takes_checkpoints=True)
        assert await checkpointer.checkpoint() == b"0"

        def taken() -> int:
            return 0 if instance.checkpointer is None else instance.checkpointer.counts["checkpoints"]

        for number in range(3):
            primary.say(*(fork(bytes(100)) for _ in range(25)))
            await said_to_itself(primary, 25)
            checkpointer.say(*(fork(bytes(100)) for _ in range(25)))  # it says what the other one says
            await replied(checkpointer, b"taken %d" % number)
            await until(lambda wanted=number + 1: taken() == wanted)  # type: ignore[misc]
        assert (await info(hub, "a")).checkpointer
        sent = [each.meta["sent"] for each in instance.checkpoints()[-2:]]
        assert sent == ['{"a": 50}', '{"a": 75}']
        assert instance.primary is not None
        assert instance.primary.counts["checkpoints"] == 1
        await primary.close()
        await until(lambda: instance.primary is None)
        assert instance.checkpointer is not None
        primary = await connected(ports)
        assert await primary.checkpoint() == b"taken 2"
        assert (await info(hub, "a")).last_error is None
        await primary.close()
        await checkpointer.close()


async def test_a_checkpoint_that_is_wanted_now_has_all_that_was_logged_before() -> None:
    async with serving() as (hub, ports, _):
        primary = await started(ports)
        checkpointer = await connected(ports, takes_checkpoints=True)
        await checkpointer.checkpoint()
        primary.say(fork(b"1"))
        await until(lambda: hub.bounds("immortal/a/log").next >= 3)
        taking = asyncio.ensure_future(call_verb(hub, "immortal.checkpoint", name="a"))
        await said_to_itself(checkpointer, 1)
        checkpointer.say(fork(b"1"))
        assert await checkpointer.signal() == Type.TAKE_CHECKPOINT
        checkpointer.say(Checkpoint(1), b"c")
        assert (await taking).position == hub.bounds("immortal/a/log").next
        taking = asyncio.ensure_future(call_verb(hub, "immortal.checkpoint", name="a"))
        assert await checkpointer.signal() == Type.TAKE_CHECKPOINT
        await checkpointer.close()
        with pytest.raises(Exception, match="lost before the checkpoint was whole"):
            await taking
        await primary.close()


async def test_the_one_that_runs_takes_one_when_the_checkpointer_hangs() -> None:
    async with serving() as (_, ports, instance):
        primary = await started(ports)
        checkpointer = await connected(ports, takes_checkpoints=True)
        await checkpointer.checkpoint()
        primary.say(*(fork(bytes(100)) for _ in range(25)))
        await said_to_itself(primary, 25)
        primary.say(*(fork(bytes(100)) for _ in range(25)))
        await replied(primary, b"mine")
        await until(lambda: instance.checkpoints()[-1].size == 4)
        await replied(checkpointer, b"of something older")  # the log before the newer one may be gone
        await replied(checkpointer, b"newest")
        await until(lambda: instance.checkpoints()[-1].size == 6)
        assert [each.size for each in instance.checkpoints()[-2:]] == [4, 6]
        await primary.close()
        await checkpointer.close()


async def test_there_is_one_and_none_before_there_is_anything_to_follow() -> None:
    async with serving() as (_, ports, instance):
        early = await connected(ports, takes_checkpoints=True)
        await early.closed()
        primary = await started(ports)
        checkpointer = await connected(ports, takes_checkpoints=True)
        await checkpointer.checkpoint()
        second = await connected(ports, takes_checkpoints=True)
        await second.closed()
        assert instance.standbys == []
        checkpointer.say(codec.Call(2, 2, b"an impulse", b""))
        await checkpointer.closed()
        assert "impulses in state following" in str(instance.last_error)
        await primary.close()


async def test_one_that_says_so_too_late_is_let_go() -> None:
    async with serving() as (_, ports, instance):
        primary = await started(ports)
        primary.say(mark_of(1, True))
        await primary.closed()
        assert "a checkpointer said so too late" in str(instance.last_error)


async def test_nobody_follows_while_an_upgrade_is_to_come() -> None:
    """It would follow with the state of before, and be promoted with it."""
    async with serving() as (hub, ports, instance):
        primary = await started(ports)
        options = {"standby": True, "clock": True, "upgrade_version": 1}
        await call_verb(hub, "immortal.register", name="a", options=options)
        await primary.closed()
        primary = await connected(ports)
        await primary.checkpoint()
        await primary.calls(1)
        await primary.record()
        assert await primary.signal() == Type.UPGRADE_TAKE_CHECKPOINT
        for takes_checkpoints in (False, True):
            follower = await connected(ports, takes_checkpoints)
            await follower.closed()
        primary.say(Checkpoint(3), b"new")
        assert await primary.signal() == Type.TAKE_CHECKPOINT
        primary.say(Checkpoint(3), b"new")
        await until(lambda: instance.registration is not None and instance.registration.version == 1)
        standby = await connected(ports)
        assert await standby.checkpoint() == b"new"
        await primary.close()
        assert await standby.signal() == Type.BECOMING_PRIMARY
        await standby.close()


def test_marks() -> None:
    assert mark_in(mark_of(80)) == Mark(80, False)
    assert mark_in(mark_of(65_535, True) + b"more") == Mark(65_535, True)
    assert mark_in(mark_of(80)[:-1]) is None
    assert mark_in(b"x" * 20) is None
