"""Calls from outside as a published binding sees them, who may make them, and what is kept of them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from support.ambrosia_peer import RawBinding, coordinator, settings
from support.until import until

from headrace.config import Grant, ImmortalSection
from headrace.errors import BadRequest, Busy, Forbidden, LimitExceeded, MethodRaised, StillRunning
from headrace.hub import Hub
from headrace.protocols.ambrosia import codec
from headrace.protocols.ambrosia.codec import BodyKind, Call, Checkpoint, InitialMessage, Return, RpcType, Type
from headrace.protocols.ambrosia.coordinator import outside
from headrace.protocols.ambrosia.server import ImmortalPorts
from headrace.security import EVERYTHING, Principal
from headrace.testing import MemoryDisk, memory_hub

A = settings(a=ImmortalSection())


def call(hub: Hub, principal: Principal = EVERYTHING, **request: Any) -> asyncio.Future[Any]:
    asked = {"name": "a", "method": "add", "wait_s": 25.0, **request}
    return asyncio.ensure_future(hub.verbs.call("immortal.call", msgspec.json.encode(asked), principal))


async def heard(binding: RawBinding) -> Call:
    (message,) = codec.decode_messages((await binding.record()).payload, addressed=False)
    assert isinstance(message, Call)
    return message


async def started(ports: ImmortalPorts) -> RawBinding:
    binding = await RawBinding.to(ports, "a")
    await binding.first_start()
    return binding


def answer(binding: RawBinding, asked: Call, value: bytes, kind: BodyKind = BodyKind.VALUE) -> None:
    binding.say(codec.AttachTo(b"@outside"), Return(kind, b"a", asked.call_number, value, asked.caller))


async def test_any_binding_can_be_called_and_answers() -> None:
    async with memory_hub(A) as hub, coordinator(hub) as ports:
        binding = await started(ports)
        waiting = call(hub, arguments={"amount": 5})
        asked = await heard(binding)
        assert (asked.rpc_type, asked.caller, asked.arguments) == (RpcType.ASYNC, b"@outside", b'{"amount":5}')
        answer(binding, asked, b"[1,2]")
        assert bytes((await waiting).value) == b"[1,2]"
        for kind, value, sentence in (
            (BodyKind.EXCEPTION, b'"ValueError: no"', "a.add raised ValueError: no"),
            (BodyKind.EXCEPTION, b"\xff", "a.add raised"),
            (BodyKind.EXCEPTION, b'"\xff"', "a.add raised"),
            (BodyKind.VALUE, b"\xff", "returned 1 bytes that are not JSON"),
            (BodyKind.VALUE, b'"\xff"', "returned 3 bytes that are not JSON"),
            (BodyKind.VALUE, b"[" * 100_000, "returned 100000 bytes that are not JSON"),
        ):
            waiting = call(hub)
            answer(binding, await heard(binding), value, kind)
            with pytest.raises(MethodRaised, match=sentence):
                await waiting
        waiting = call(hub)
        answer(binding, await heard(binding), b"", BodyKind.EMPTY)
        assert bytes((await waiting).value) == b"null"
        assert "@outside" not in ports.coordinator.instances
        await binding.close()


async def test_an_answer_is_kept_for_its_key_over_a_restart_of_the_hub() -> None:
    disk = MemoryDisk()
    async with memory_hub(A, disk=disk) as hub, coordinator(hub) as ports:
        binding = await started(ports)
        first, second = call(hub, idempotency_key="k"), call(hub, idempotency_key="k")
        asked = await heard(binding)
        answer(binding, asked, b"7")
        assert [bytes((await each).value) for each in (first, second)] == [b"7", b"7"]
        unanswered = call(hub, idempotency_key="later", wait_s=0.05)
        later = await heard(binding)
        with pytest.raises(StillRunning, match="is logged and not answered yet"):
            await unanswered
        await until(lambda: (kept := ports.coordinator.outside._stored("a", "k")) is not None and kept.kind is not None)
        await binding.close()
    async with memory_hub(A, disk=disk) as hub, coordinator(hub) as ports:
        assert bytes((await call(hub, idempotency_key="k")).value) == b"7"
        with pytest.raises(BadRequest, match="was used for another call"):
            await call(hub, idempotency_key="k", arguments={"amount": 1})
        waiting = call(hub, idempotency_key="later")
        await until(lambda: ports.coordinator.outside.under_way)
        ports.coordinator.outside.answered("a", _said(later))
        assert bytes((await waiting).value) == b"8"


async def test_a_caller_who_leaves_while_the_call_is_being_logged_can_ask_for_the_answer_later() -> None:
    async with memory_hub(A) as hub, coordinator(hub) as ports:
        binding = await started(ports)
        calls = ports.coordinator.outside
        leaving = call(hub, idempotency_key="k")
        await until(lambda: calls.under_way)
        leaving.cancel()
        await asyncio.wait((leaving,))
        answer(binding, await heard(binding), b"7")
        await until(lambda: (kept := calls._stored("a", "k")) is not None and kept.kind is not None)
        assert bytes((await call(hub, idempotency_key="k", wait_s=1.0)).value) == b"7"
        await binding.close()


async def test_a_call_that_is_not_logged_is_an_error_and_its_key_is_free() -> None:
    async with memory_hub(A) as hub, coordinator(hub) as ports:
        binding = await started(ports)
        queue = ports.coordinator.find("a").queue
        queue.hold()
        waiting = [call(hub, idempotency_key="k"), call(hub, idempotency_key="k")]
        await until(lambda: len(ports.coordinator.outside._waiting.get(("a", _number(ports, "k")), ())) == 2)
        queue.drop(Busy("the disk is full"))
        for each in waiting:
            with pytest.raises(Busy, match="the disk is full"):
                await each
        queue.start_over()
        queue.release(to_log=True)
        again = call(hub, idempotency_key="k", arguments={"amount": 2})
        answer(binding, await heard(binding), b"9")
        assert bytes((await again).value) == b"9"
        await binding.close()


def _number(ports: ImmortalPorts, key: str) -> int:
    kept = ports.coordinator.outside._numbers.get(("a", key))
    return -1 if kept is None else kept.number


def _said(asked: Call) -> Any:
    message = codec.encode(Return(BodyKind.VALUE, b"a", asked.call_number, b"8"))
    return outside.Calls(b"@outside", "return", True, [len(message)], [message])


async def test_answers_that_are_too_much_for_one_transaction_stop_nobody() -> None:
    log = msgspec.structs.replace(A.log, batch_bytes_max=1 << 20)
    async with memory_hub(msgspec.structs.replace(A, log=log)) as hub, coordinator(hub) as ports:
        binding = await started(ports)
        waiting = [call(hub, idempotency_key=f"k{number}") for number in range(4)]
        value = b'"%s"' % (b"x" * (400 << 10))
        asked: list[Call] = []
        while len(asked) < 4:
            asked += await binding.calls(1)
        for each in asked:
            answer(binding, each, value)
        await asyncio.gather(*waiting)
        last = call(hub, idempotency_key="last")
        answer(binding, await heard(binding), b"1")
        assert bytes((await last).value) == b"1"
        kept = ports.coordinator.outside
        await until(lambda: all((row := kept._stored("a", f"k{n}")) and row.value == value for n in range(4)))
        await binding.close()


async def test_answers_are_kept_as_long_as_the_setting_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for kept_s, left in ((3_600, 1), (0, 0)):
        config = msgspec.structs.replace(A, ambrosia=msgspec.structs.replace(A.ambrosia, answers_kept_s=kept_s))
        async with memory_hub(config) as hub, coordinator(hub) as ports:
            binding = await started(ports)
            waiting = call(hub, idempotency_key="k")
            answer(binding, await heard(binding), b"7")
            await waiting
            calls = ports.coordinator.outside
            await until(lambda calls=calls: calls._stored("a", "k").kind is not None)
            now = outside.time.time()
            monkeypatch.setattr(outside.time, "time", lambda now=now: now + 5)
            calls._sweep_old()
            await until(lambda hub=hub, left=left: len(list(hub.items(outside.ANSWERS_TABLE))) == left)
            monkeypatch.undo()
            await binding.close()


async def test_the_oldest_answers_go_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "SWEEP_COUNT", 2)
    config = msgspec.structs.replace(A, ambrosia=msgspec.structs.replace(A.ambrosia, answers_max=3))
    async with memory_hub(config) as hub, coordinator(hub) as ports:
        binding = await started(ports)
        unanswered = call(hub, idempotency_key="first")
        await heard(binding)
        for number in range(8):
            waiting = call(hub, idempotency_key=f"k{number}")
            answer(binding, await heard(binding), b"7")
            await waiting
        calls = ports.coordinator.outside
        await until(lambda: calls.answers <= 5)  # a few more than the limit, so that not every call sweeps
        calls._sweep_old()
        await until(lambda: calls.answers == 3)
        known = [key for _, key, _ in map(outside.read_kept, *zip(*hub.items(outside.ANSWERS_TABLE), strict=True))]
        assert known == ["first", "k6", "k7"]
        assert b"headrace_ambrosia_answers 3.0" in hub.metrics.text()
        unanswered.cancel()
        await binding.close()


async def test_limits_of_calls_from_outside() -> None:
    limits = msgspec.structs.replace(A.ambrosia, outside_calls_max=1, message_bytes_max=200)
    async with memory_hub(msgspec.structs.replace(A, ambrosia=limits)) as hub, coordinator(hub) as ports:
        binding = await started(ports)
        waiting = call(hub)
        asked = await heard(binding)
        with pytest.raises(Busy, match="'ambrosia.outside_calls_max'"):
            await call(hub)
        answer(binding, asked, b"1")
        await waiting
        with pytest.raises(LimitExceeded, match=r"'ambrosia.message_bytes_max'"):
            await call(hub, arguments={"text": "x" * 200})
        with pytest.raises(BadRequest, match="an idempotency key has 1 to 256 bytes"):
            await call(hub, idempotency_key="x" * 257)
        waiting = call(hub, idempotency_key="x" * 256)
        answer(binding, await heard(binding), b"1")
        await waiting
        await binding.close()


async def test_who_may_call_whom() -> None:
    reader = Principal("reader", (), (Grant(rights=["read"], streams=["immortal/a/inbox"]),))
    writer = Principal("writer", (), (Grant(rights=["read", "write"], streams=["immortal/a/*"]),))
    stranger = Principal("stranger", (), (Grant(rights=["read", "write"], streams=["orders"]),))
    interface = {"kind": "A", "methods": [{"name": "ask", "id": 1, "query": True}, {"name": "add", "id": 2}]}
    async with memory_hub(A) as hub, coordinator(hub) as ports:
        binding = await started(ports)
        with pytest.raises(Forbidden):
            await hub.verbs.call("immortal.describe", {"name": "a", "interface": interface}, writer)
        await hub.verbs.call("immortal.describe", {"name": "a", "interface": interface}, EVERYTHING)
        for principal, method, sentence in (
            (reader, "add", "needs the right 'write' on 'immortal/a/inbox'"),
            (stranger, "add", "needs the right 'read'"),
            (stranger, "ask", "needs the right 'read'"),
        ):
            with pytest.raises(Forbidden, match=sentence):
                await call(hub, principal, method=method)
        for verb, more in (("fulfil", {"token": "t"}), ("cancel", {"idempotency_key": "k"})):
            with pytest.raises(Forbidden):
                await hub.verbs.call(f"immortal.{verb}", {"name": "a", **more}, reader)
        document = await hub.verbs.call("immortal.openapi", {}, stranger)
        assert document["paths"] == {}
        for principal, method in ((reader, "ask"), (writer, "add")):
            waiting = call(hub, principal, method=method)
            answer(binding, await heard(binding), b"1")
            assert bytes((await waiting).value) == b"1"
        await binding.close()


async def test_what_nobody_knows_is_said() -> None:
    async with memory_hub(A) as hub, coordinator(hub):
        with pytest.raises(BadRequest, match="there is no immortal 'b'"):
            await call(hub, name="b")
        with pytest.raises(BadRequest, match="has not declared its methods"):
            await hub.verbs.call("immortal.methods", {"name": "a"}, EVERYTHING)
        with pytest.raises(BadRequest, match="no call of 'a' with the idempotency key 'k' is known"):
            await hub.verbs.call("immortal.cancel", {"name": "a", "idempotency_key": "k"}, EVERYTHING)
        assert (await call(hub, wait_s=0)).done is False
        with pytest.raises(BadRequest, match="cannot name an immortal"):
            await hub.verbs.call("immortal.register", {"name": "@outside"}, EVERYTHING)


async def test_a_query_comes_behind_the_first_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not see a program that has not begun."""
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        instance, read, gate = ports.coordinator.instances["a"], hub.read, asyncio.Event()

        async def slowly(stream: str, *arguments: Any, **options: Any) -> Any:
            if stream == "immortal/a/log":
                await gate.wait()
            return await read(stream, *arguments, **options)

        monkeypatch.setattr(hub, "read", slowly)
        binding = await RawBinding.to(ports, "a")
        assert await binding.signal() == Type.TAKE_BECOMING_PRIMARY_CHECKPOINT
        binding.say(InitialMessage(b"hi"), Checkpoint(1), b"s")
        await instance.running()
        asking = asyncio.ensure_future(ports.coordinator.outside.ask(instance, 1, b"", 60))
        for _ in range(10):
            await asyncio.sleep(0)
        gate.set()
        assert [(await binding.record()).sequence for _ in range(2)] == [0, -1]
        asking.cancel()
        await binding.close()
