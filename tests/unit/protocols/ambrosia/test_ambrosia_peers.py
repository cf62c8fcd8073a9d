"""The coordinator through its sockets: absent and forgotten peers, the inbox, the log in words."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.ambrosia_peer import RawBinding, call_verb, coordinator, fork, impulse, info, recovered, settings
from support.until import until

from headrace.config import Ambrosia, Config, ImmortalSection, Log
from headrace.errors import DiskFull
from headrace.log.batch import Batch
from headrace.protocols.ambrosia import codec
from headrace.protocols.ambrosia.binding.methods import CLOCK_METHOD
from headrace.protocols.ambrosia.client import Immortal, serve
from headrace.protocols.ambrosia.client import impulse as impulse_method
from headrace.protocols.ambrosia.codec import AttachTo, Call, Checkpoint, Signal, Type
from headrace.testing import MemoryDisk, memory_hub

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
            lambda: "späť" in ports.coordinator.instances and ports.coordinator.instances["späť"].queue.pending_bytes
        )
        await asyncio.wait_for(ports.coordinator.instances["späť"].queue.flushed(), 60)
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


async def test_calls_that_waited_for_the_first_start_come_with_the_time() -> None:
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        a = await RawBinding.to(ports, "a")
        await a.first_start()
        a.say(fork(b"early", b"late"))
        await until(lambda: hub.has_stream("immortal/late/pending") and hub.bounds("immortal/late/pending").next == 1)
        await call_verb(hub, "immortal.register", name="late", options={"clock": True})
        late = await RawBinding.to(ports, "late")
        await late.first_start(clock=True)
        said = codec.decode_messages((await late.record()).payload, addressed=False)
        assert [call.method for call in said if isinstance(call, Call)] == [CLOCK_METHOD, 1]
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
            gone = ports.coordinator.instances.get("gone")
            if gone is not None and gone.backlog_bytes > 100_000 and link.held_back:
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


async def test_a_sender_that_takes_a_checkpoint_while_its_peer_is_forgotten_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with memory_hub(settings(a=ImmortalSection(), b=ImmortalSection())) as hub, coordinator(hub) as ports:
        a = await RawBinding.to(ports, "a")
        await a.first_start()
        begun, slow_disk, remove = asyncio.Event(), asyncio.Event(), ports.coordinator.store.forget_immortal

        async def forget_immortal(name: str) -> None:
            begun.set()
            await slow_disk.wait()
            await remove(name)

        monkeypatch.setattr(ports.coordinator.store, "forget_immortal", forget_immortal)
        queue = ports.coordinator.instances["b"].queue
        forgetting = asyncio.ensure_future(call_verb(hub, "immortal.forget", name="b"))
        await begun.wait()
        a.say(fork(b"too late", b"b"), Signal(Type.TAKE_CHECKPOINT))
        assert await a.signal() == Type.TAKE_CHECKPOINT
        a.say(Checkpoint(1), b"x", fork(b"on"))
        await until(lambda: queue.queued_bytes)
        slow_disk.set()
        await forgetting
        assert [call.arguments for call in await a.calls(1)] == [b"on"]
        a.say(fork(b"kept", b"b"))  # for whoever will have that name
        await until(lambda: hub.has_stream("immortal/b/pending") and hub.bounds("immortal/b/pending").next)
        await a.close()


async def test_looking_at_many_immortals_does_not_look_at_each_of_them_for_each_of_them() -> None:
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        binding.say(*(fork(b"1", b"peer-%d" % number) for number in range(50)), fork(b"mine"))
        await until(lambda: hub.bounds("immortal/a/log").next == 2)
        listed, streams = 0, hub.streams

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal listed
            listed += 1
            return streams(*args, **kwargs)

        hub.streams = counted  # type: ignore[method-assign]
        found = await call_verb(hub, "immortal.list")
        assert (len(found), listed) == (51, 0)
        assert [(peer.name, peer.calls, peer.impulses) for peer in found[0].senders] == [("a", 1, 0)]
        assert set(ports.coordinator.instances["a"].queue.counts) == {"from:a"}
        await binding.close()


async def test_looking_at_a_new_peer_does_not_bring_back_calls_for_the_forgotten_one() -> None:
    async with memory_hub(settings(a=ImmortalSection(), b=ImmortalSection())) as hub, coordinator(hub) as ports:
        a, b = await RawBinding.to(ports, "a"), await RawBinding.to(ports, "b")
        await a.first_start()
        await b.first_start()
        a.say(*(fork(b"%d" % n, b"b") for n in range(4)))
        await b.calls(4)
        await call_verb(hub, "immortal.forget", name="b")
        await b.closed()
        await a.close()
        await call_verb(hub, "immortal.register", name="b")
        await call_verb(hub, "immortal.list")
        a, b = await RawBinding.to(ports, "a"), await RawBinding.to(ports, "b")
        await b.first_start()
        await recovered(a, 1)
        a.say(*(fork(b"%d" % n, b"b") for n in range(6)))  # four were for the old b
        assert [call.arguments for call in await b.calls(2)] == [b"4", b"5"]
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


async def test_a_record_of_the_inbox_calls_the_method_that_its_type_names() -> None:
    class Shop(Immortal):
        kept: dict[str, int] = {}  # noqa: RUF012

        @impulse_method
        def put(self, key: str, value: int) -> None:
            self.kept[key] = value

    async with memory_hub(settings(shop=ImmortalSection())) as hub, coordinator(hub) as ports:
        addresses = ports.addresses
        where = {end: addresses[f"ambrosia.shop.{end}"] for end in ("receive", "send")}
        async with serve(Shop, name="shop", **where) as host:
            await hub.append("immortal/shop/inbox", Batch.one(b'{"key": "a", "value": 5}', type="put"))
            await until(lambda: host.immortal.kept == {"a": 5})  # type: ignore[attr-defined]


async def test_an_inbox_without_method_and_type_calls_method_0() -> None:
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        await hub.append("immortal/a/inbox", Batch.of([b"x", b"y"], types=[None, "0"]))
        assert await binding.calls(2) == [Call(0, 2, b"x"), Call(0, 2, b"y")]
        await binding.close()


async def test_the_inbox_goes_on_when_the_log_takes_calls_again() -> None:
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        real = hub.transact

        def transact(operations: Any) -> asyncio.Future[Any]:
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            future.set_exception(DiskFull("no room"))
            return future

        hub.transact = transact  # type: ignore[method-assign]
        await hub.append("immortal/a/inbox", Batch.one(b"during"))
        await binding.closed()
        hub.transact = real  # type: ignore[method-assign]
        binding = await RawBinding.to(ports, "a")
        await recovered(binding, 1)
        await hub.append("immortal/a/inbox", Batch.one(b"after"))
        assert [call.arguments for call in await binding.calls(2)] == [b"during", b"after"]
        await binding.close()


async def test_a_record_of_the_inbox_that_no_message_can_hold_is_left_out_and_hurts_nobody() -> None:
    config = Config(log=Log(record_bytes_max=1000), ambrosia=Ambrosia(immortals={"a": ImmortalSection()}))
    async with memory_hub(config) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        for payload in (bytes(1000), b"next"):
            await hub.append("immortal/a/inbox", Batch.one(payload))
        assert [call.arguments for call in await binding.calls(1)] == [b"next"]
        assert "record 0 is left out" in (await info(hub, "a")).last_error
        assert hub.cursor("ambrosia", "immortal/a/inbox") == 2
        await binding.close()


async def test_what_others_append_to_the_log_is_shown_as_no_message() -> None:
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub):
        await hub.append("immortal/a/log", Batch.one(b"not a message"))
        (shown,) = await call_verb(hub, "immortal.log", name="a")
        assert (shown.kind, shown.text, shown.sequence) == ("not-a-message", "not a message", None)


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
