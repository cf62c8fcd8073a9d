"""The coordinator through its sockets: what it refuses, and what hurts nobody."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from support.ambrosia_peer import RawBinding, call_verb, coordinator, fork, impulse, info, recovered, settings
from support.until import until

from headrace.config import Ambrosia, Config, ImmortalSection
from headrace.config.address import split_address
from headrace.errors import BadRequest, DiskFull, LimitExceeded
from headrace.log.batch import Batch
from headrace.protocols.ambrosia import codec
from headrace.protocols.ambrosia.codec import AttachTo, Call, Checkpoint, InitialMessage, Signal, Type
from headrace.protocols.ambrosia.coordinator.ports import PortPair
from headrace.protocols.ambrosia.pairing import mark_of
from headrace.protocols.ambrosia.record_reader import Record
from headrace.protocols.ambrosia.server import ImmortalPorts
from headrace.protocols.errors import RemoteProtocolError
from headrace.testing import MemoryDisk, memory_hub

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
    monkeypatch.setattr("headrace.protocols.ambrosia.coordinator.ports.GRACE_S", 0.01)
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
        binding.from_hub, binding._from_writer = await asyncio.wait_for(found, 60)
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


async def test_what_is_under_way_elsewhere_when_the_log_refuses_is_counted_once() -> None:
    config = settings(a=ImmortalSection(), b=ImmortalSection(), c=ImmortalSection())
    async with memory_hub(config) as hub, coordinator(hub) as ports:
        a, b, c = [await RawBinding.to(ports, name) for name in "abc"]
        for binding in (a, b, c):
            await binding.first_start()
        real, slow_disk = hub.transact, asyncio.Event()

        async def later(operations: Any) -> Any:
            await slow_disk.wait()
            return await real(operations)

        def transact(operations: Any) -> Any:
            streams = {getattr(each, "stream", "") for each in operations}
            if "immortal/a/log" in streams:
                return refused(DiskFull("no room"))
            return asyncio.ensure_future(later(operations)) if "immortal/b/log" in streams else real(operations)

        hub.transact = transact  # type: ignore[method-assign]
        queue = ports.coordinator.instances["b"].queue
        c.say(fork(b"under way", b"b"))
        await until(lambda: queue.under_way)
        c.say(fork(b"queued", b"b"))
        await until(lambda: queue.queued_bytes)
        a.say(fork(b"refused"))
        for binding in (a, b, c):
            await binding.closed()
        hub.transact = real  # type: ignore[method-assign]
        slow_disk.set()
        b, c = await RawBinding.to(ports, "b"), await RawBinding.to(ports, "c")
        await recovered(c, 1)
        c.say(*(fork(said, b"b") for said in (b"under way", b"queued", b"new")))
        await b.checkpoint()
        said = [(await b.record()).payload for _ in range(2)]  # record 0 and what was under way
        assert said[1].endswith(b"under way")
        assert await b.signal() == Type.TAKE_BECOMING_PRIMARY_CHECKPOINT
        b.say(Checkpoint(1), b"x")
        assert [call.arguments for call in await b.calls(2)] == [b"queued", b"new"]
        await b.close()
        await c.close()


async def test_a_log_that_refuses_one_after_the_other_makes_all_of_them_recover() -> None:
    config = settings(a=ImmortalSection(), b=ImmortalSection())
    async with memory_hub(config) as hub, coordinator(hub) as ports:
        a, b = await RawBinding.to(ports, "a"), await RawBinding.to(ports, "b")
        await a.first_start()
        await b.first_start()
        real, full = hub.transact, {"immortal/a/log": asyncio.Event(), "immortal/b/log": asyncio.Event()}

        async def refuse(operations: Any) -> Any:
            await full[operations[0].stream].wait()
            raise DiskFull("no room")

        hub.transact = lambda operations: asyncio.ensure_future(refuse(operations))  # type: ignore[method-assign]
        a.say(fork(b"1"), fork(b"2", b"b"))
        await until(lambda: all(ports.coordinator.instances[name].queue.under_way for name in "ab"))
        full["immortal/a/log"].set()
        await a.closed()
        await b.closed()
        full["immortal/b/log"].set()
        hub.transact = real  # type: ignore[method-assign]
        a, b = await RawBinding.to(ports, "a"), await RawBinding.to(ports, "b")
        await recovered(a, 1)
        await recovered(b, 1)
        a.say(fork(b"1"), fork(b"2", b"b"))
        assert [call.arguments for call in await a.calls(1)] == [b"1"]
        assert [call.arguments for call in await b.calls(1)] == [b"2"]
        await a.close()
        await b.close()


def refused(error: Exception) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future


async def test_what_cannot_be_registered_is_not_noted_and_binds_nothing() -> None:
    disk = MemoryDisk()
    async with memory_hub(disk=disk) as hub, coordinator(hub) as ports:
        await call_verb(hub, "immortal.register", name="a")
        taken = ports.addresses["ambrosia.a.send"]
        with pytest.raises(LimitExceeded, match="name"):
            await call_verb(hub, "immortal.register", name="\u00e4" * 100)
        free = await call_verb(hub, "immortal.register", name="b")
        await call_verb(hub, "immortal.forget", name="b")
        with pytest.raises(BadRequest, match="'b' cannot listen"):
            await call_verb(hub, "immortal.register", name="b", options={"receive": free.receive, "send": taken})
        with pytest.raises(BadRequest, match="'x/y' is not host:port"):  # the hub would connect to it later
            await call_verb(hub, "immortal.register", name="b", options={"send": "x/y", "sockets": "connect"})
        assert [each.name for each in await call_verb(hub, "immortal.list")] == ["a"]
        with pytest.raises(BadRequest, match="'a' cannot listen"):
            await call_verb(hub, "immortal.register", name="a", options={"receive": free.receive, "send": free.receive})
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        await binding.close()
    async with memory_hub(disk=disk) as hub, coordinator(hub) as ports:
        assert ports.addresses["ambrosia.a.send"] == taken


async def test_a_name_that_nobody_could_call_is_not_registered() -> None:
    config = Config(ambrosia=Ambrosia(name_bytes_max=8))
    disk = MemoryDisk()
    async with memory_hub(config, disk=disk) as hub, coordinator(hub) as ports:
        with pytest.raises(LimitExceeded, match=r"ambrosia\.name_bytes_max"):
            await call_verb(hub, "immortal.register", name="n" * 9)
        with pytest.raises(BadRequest, match="printable text"):
            await call_verb(hub, "immortal.register", name="a\n")
        await call_verb(hub, "immortal.register", name="n" * 8)
        a = await RawBinding.to(ports, "n" * 8)
        await a.first_start()
        a.say(fork(b"x", b"n" * 8))
        assert [call.arguments for call in await a.calls(1)] == [b"x"]
        await a.close()
    narrower = Config(ambrosia=Ambrosia(name_bytes_max=4, immortals={"n" * 8: ImmortalSection()}))
    async with memory_hub(narrower, disk=disk) as hub, coordinator(hub):  # it is there already: the hub starts
        assert (await info(hub, "n" * 8)).registered


async def test_a_binding_that_is_quicker_than_the_registration_waits_for_it() -> None:
    async with memory_hub() as hub, coordinator(hub) as ports:
        create_stream, gate = hub.create_stream, asyncio.Event()

        async def slowly(name: str, *args: Any, **kwargs: Any) -> Any:
            if name == "immortal/a/log":
                await gate.wait()
            return await create_stream(name, *args, **kwargs)

        hub.create_stream = slowly  # type: ignore[method-assign, assignment]
        registering = asyncio.ensure_future(call_verb(hub, "immortal.register", name="a"))
        await until(lambda: "a" in ports.coordinator.ports)
        binding = await RawBinding.to(ports, "a")
        pair = ports.coordinator.ports["a"]
        await until(lambda: len(pair._receives) == len(pair._sends) == 1)
        assert not (await info(hub, "a")).registered
        gate.set()
        await registering
        await binding.first_start()
        await binding.close()


@pytest.mark.parametrize("option", ["committer", "inbox_method"])
@pytest.mark.parametrize("number", [-(2**31) - 1, 2**31])
async def test_numbers_that_the_protocol_cannot_say_are_refused(option: str, number: int) -> None:
    async with memory_hub() as hub, coordinator(hub):
        with pytest.raises(BadRequest, match=option):
            await call_verb(hub, "immortal.register", name="a", options={option: number})


async def test_ports_that_somebody_else_takes_while_an_immortal_is_registered_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither the new ports nor the old ones can be had. Found by seed 641641 of the world."""
    others: list[asyncio.Server] = []
    async with memory_hub() as hub, coordinator(hub) as ports:
        registered = await call_verb(hub, "immortal.register", name="a")
        close = PortPair.close

        async def close_too_soon(pair: PortPair) -> None:
            await close(pair)
            if not others:
                others.append(await asyncio.start_server(lambda *_: None, *split_address(registered.receive)))

        monkeypatch.setattr(PortPair, "close", close_too_soon)
        changed = {"receive": registered.receive, "send": registered.send, "standby": True}
        with pytest.raises(BadRequest, match="'a' cannot listen"):
            await call_verb(hub, "immortal.register", name="a", options=changed)
        assert "register it again" in (await info(hub, "a")).last_error
        others[0].close()
        await others[0].wait_closed()
        await call_verb(hub, "immortal.register", name="a", options={**changed, "standby": False})  # as it was
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        await binding.close()


async def test_a_hub_starts_although_somebody_else_has_the_ports_of_an_immortal() -> None:
    disk = MemoryDisk()
    async with memory_hub(disk=disk) as hub, coordinator(hub) as ports:
        await call_verb(hub, "immortal.register", name="a")
        taken = ports.addresses["ambrosia.a.send"]
    other = await asyncio.start_server(lambda reader, writer: None, *split_address(taken))
    async with other, memory_hub(disk=disk) as hub, coordinator(hub) as ports:
        assert "cannot listen" in (await info(hub, "a")).last_error
        await call_verb(hub, "immortal.register", name="a")
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        await binding.close()


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


def _calls_of(record: Record) -> list[Call]:
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
        await asyncio.wait_for(submitted.wait(), 60)
        coming = asyncio.ensure_future(binding.calls(1))
        done, _ = await asyncio.wait([coming], timeout=0.05)
        assert not done
        synced.set()
        assert (await coming)[0].arguments == b"wait for the disk"
        await binding.close()


async def test_the_sockets_of_two_programs_that_come_at_once_are_not_mixed_up() -> None:
    section = ImmortalSection(standby=True, clock=True)
    async with memory_hub(settings(a=section)) as hub, coordinator(hub) as ports:
        receive, send = (split_address(ports.addresses[f"ambrosia.a.{side}"]) for side in ("receive", "send"))
        first, second = RawBinding(), RawBinding()
        _, first.to_hub = await asyncio.open_connection(*receive)
        _, second.to_hub = await asyncio.open_connection(*receive)
        second.from_hub, second._from_writer = await asyncio.open_connection(*send)
        first.from_hub, first._from_writer = await asyncio.open_connection(*send)
        first.say(mark_of(first._from_writer.get_extra_info("sockname")[1]))
        await first.first_start(clock=True)
        second.say(mark_of(second._from_writer.get_extra_info("sockname")[1]))
        await second.checkpoint()
        assert (await info(hub, "a")).standbys == 1
        assert set(ports.coordinator.instances) == {"a"}  # the marks were for the hub
        await first.close()
        await second.close()


async def test_a_program_that_does_not_say_which_sockets_are_its_own_is_linked_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.protocols.ambrosia.coordinator.ports.MARK_S", 0.05)
    async with memory_hub(settings(a=ImmortalSection(standby=True, clock=True))) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start(clock=True)
        binding.say(mark_of(1))  # too late, and nobody's
        binding.say(fork(b"fine"))
        assert (await binding.calls(2))[1].arguments == b"fine"  # the first one is the clock
        assert set(ports.coordinator.instances) == {"a"}
        await binding.close()
