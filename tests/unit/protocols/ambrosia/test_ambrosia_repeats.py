"""Code that says something else in a recovery than it said before is found and named."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.ambrosia_peer import RawBinding, call_verb, coordinator, fork, impulse, info, settings
from support.until import until

from headrace.config import Ambrosia, Config, ImmortalSection
from headrace.protocols.ambrosia.client import Host, Immortal, serve
from headrace.protocols.ambrosia.client import fork as fork_method
from headrace.protocols.ambrosia.client import impulse as impulse_method
from headrace.protocols.ambrosia.codec import Checkpoint
from headrace.protocols.ambrosia.coordinator import repeats
from headrace.protocols.ambrosia.server import ImmortalPorts
from headrace.testing import memory_hub

SAID = [fork(b"%d" % number, b"b") for number in range(10)]


async def say_first(ports: ImmortalPorts) -> None:
    """Two immortals; a has called b and itself, with impulses and others' calls between."""
    a, b = await RawBinding.to(ports, "a"), await RawBinding.to(ports, "b")
    await a.first_start()
    await b.first_start()
    b.say(fork(b"b's own"))
    await b.calls(1)
    a.say(impulse(b"i", b"b"), *SAID[:5], impulse(b"i", b"b"), fork(b"self"), *SAID[5:])
    await b.calls(12)
    await a.calls(1)
    b.say(fork(b"b's own"))
    await b.calls(1)
    await a.close()
    await b.close()
    await until(lambda: all(each.primary is None for each in ports.coordinator.instances.values()))


async def recover(ports: ImmortalPorts, *said: Any) -> RawBinding:
    """Up to the checkpoint that ends the recovery of a."""
    a = await RawBinding.to(ports, "a")
    await a.checkpoint()
    while (await a.record()).sequence >= 0:
        pass
    a.say(*said, Checkpoint(5), b"later")
    return a


async def test_what_is_said_again_as_it_was_is_let_in_in_any_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "LOCATE_COUNT", 3)
    monkeypatch.setattr(repeats, "COMPARE_BYTES", 8)
    async with memory_hub(settings(a=ImmortalSection(), b=ImmortalSection())) as hub, coordinator(hub) as ports:
        await say_first(ports)
        a = await recover(ports, *SAID[:7])
        await until(lambda: len(ports.coordinator.instances["a"].checkpoints()) == 2)
        error = (await info(hub, "a")).last_error
        assert error.startswith("3 of the calls to b were not sent again")
        a.say(*SAID[7:], fork(b"self"), fork(b"new", b"b"))
        await until(lambda: hub.bounds("immortal/b/log").next == 16)
        b = await RawBinding.to(ports, "b")
        await b.checkpoint()
        assert [call.arguments for call in await b.calls(15)][-1] == b"new"
        await a.close()
        await b.close()


@pytest.mark.parametrize("pieces", [1 << 20, 8])
async def test_the_first_difference_is_named_and_the_checkpoint_stays(
    pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "LOCATE_COUNT", 3)
    monkeypatch.setattr(repeats, "COMPARE_BYTES", pieces)
    async with memory_hub(settings(a=ImmortalSection(), b=ImmortalSection())) as hub, coordinator(hub) as ports:
        await say_first(ports)
        before = ports.coordinator.instances["a"].checkpoints()
        a = await recover(ports, *SAID[:6], fork(b"other", b"b"), *SAID[7:])
        await a.closed()
        error = (await info(hub, "a")).last_error
        assert "call 7 of a is fork/1 6 at index 10 of immortal/b/log" in error
        assert "the recovering binding says fork/1 other: its code was changed without an upgrade" in error
        assert ports.coordinator.instances["a"].checkpoints() == before
        a = await recover(ports, *SAID, fork(b"self"))
        await until(lambda: len(ports.coordinator.instances["a"].checkpoints()) == 2)
        await a.close()


async def test_calls_that_the_log_has_no_more_are_not_compared() -> None:
    async with memory_hub(settings(a=ImmortalSection(), b=ImmortalSection())) as hub, coordinator(hub) as ports:
        await say_first(ports)
        await hub.trim("immortal/b/log", 8)
        a = await recover(ports, *[fork(b"trimmed", b"b")] * 4, *SAID[4:])
        await until(lambda: len(ports.coordinator.instances["a"].checkpoints()) == 2)
        await a.close()


async def test_the_comparison_can_be_left_out() -> None:
    config = Config(
        ambrosia=Ambrosia(compare_repeats=False, immortals={"a": ImmortalSection(), "b": ImmortalSection()})
    )
    async with memory_hub(config) as hub, coordinator(hub) as ports:
        await say_first(ports)
        a = await recover(ports, *[fork(b"other", b"b")] * 10)
        await until(lambda: len(ports.coordinator.instances["a"].checkpoints()) == 2)
        await a.close()


class Teller(Immortal, saved_as="Teller"):
    total: int = 0

    @impulse_method
    def take(self, amount: int) -> None:
        self.itself.book(amount)

    @fork_method
    def book(self, amount: int) -> None:
        self.total += amount


class ChangedTeller(Teller, saved_as="Teller"):
    @impulse_method
    def take(self, amount: int) -> None:
        self.itself.book(amount * 2)


async def test_changed_python_code_is_refused_until_the_old_one_runs_again() -> None:
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        where = {end: ports.addresses[f"ambrosia.a.{end}"] for end in ("receive", "send")}
        async with serve(Teller, name="a", **where) as host:
            host.itself.take(5)
            await until(lambda: host.immortal.total == 5)  # type: ignore[attr-defined]
        changed = asyncio.ensure_future(Host(ChangedTeller, name="a", **where).run())
        await until(lambda: ports.coordinator.instances["a"].last_error is not None)
        changed.cancel()
        await asyncio.gather(changed, return_exceptions=True)
        error = (await info(hub, "a")).last_error
        assert '{"amount":5} at index 2 of immortal/a/log' in error
        assert '{"amount":10}: its code was changed without an upgrade' in error
        async with serve(Teller, name="a", **where) as host:
            assert host.immortal.total == 5  # type: ignore[attr-defined]


def posted(method: str, number: int, value: int) -> Any:
    """A call by name, as the Node binding writes it."""
    text = '{"senderInstanceName":"a","methodName":"%s","methodVersion":1,"callID":%d,"arg:payload":%d}'
    return fork((text % (method, number, value)).encode(), method=repeats.NODE_POST_METHOD)


@pytest.mark.parametrize(
    ("again", "is_let_in"),
    [
        (posted("_echo", 1, 170), True),
        (posted("_echo", 2, 99), False),
        (posted("pay", 1, 170), False),
        (fork(b"{}", method=repeats.NODE_POST_METHOD), False),
        (fork(b"not JSON", method=repeats.NODE_POST_METHOD), False),
    ],
)
async def test_what_node_echoes_may_be_another_time(again: Any, is_let_in: bool) -> None:
    """`_echo` is its way to have the time logged: it says another one in each recovery, and uses the logged one."""
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        a = await RawBinding.to(ports, "a")
        await a.first_start()
        a.say(posted("_echo", 1, 99), fork(b"x"))
        await a.calls(2)
        await a.close()
        await until(lambda: ports.coordinator.instances["a"].primary is None)
        a = await recover(ports, again, fork(b"x"))
        if is_let_in:
            await until(lambda: len(ports.coordinator.instances["a"].checkpoints()) == 2)
        else:
            await a.closed()
            assert "call 1 of a is" in (await info(hub, "a")).last_error
        await a.close()


async def test_programs_that_follow_the_same_log_may_each_be_the_first_to_say_something() -> None:
    """What the one has said first, the other says again: with gaps, which are no difference."""
    sections = {"a": ImmortalSection(standby=True), "b": ImmortalSection()}
    async with memory_hub(settings(**sections)) as hub, coordinator(hub) as ports:
        a, b = await RawBinding.to(ports, "a"), await RawBinding.to(ports, "b")
        await a.first_start()
        await b.first_start()
        standby = await RawBinding.to(ports, "a")
        await standby.checkpoint()
        await standby.record()
        for number, message in enumerate(SAID):
            first, second = (a, standby) if number % 3 else (standby, a)
            first.say(message)
            assert [call.arguments for call in await b.calls(1)] == [b"%d" % number]
            second.say(message)
        link = ports.coordinator.instances["a"].primary
        assert link is not None
        await until(lambda: link.counts["duplicates"] == 4)
        taking = asyncio.ensure_future(call_verb(hub, "immortal.checkpoint", name="a"))
        await a.signal()
        a.say(Checkpoint(5), b"later")
        await taking
        assert (await info(hub, "a")).last_error is None
        for binding in (a, standby, b):
            await binding.close()
