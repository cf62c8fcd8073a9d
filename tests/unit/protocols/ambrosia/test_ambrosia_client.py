"""The Python binding: declarations, state, calls through a real hub, determinism, upgrade, proxies."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest
from support.ambrosia_engine import Log, call_of
from support.ambrosia_peer import coordinator, settings
from support.until import until

from headrace.config import ImmortalSection
from headrace.protocols.ambrosia import codec
from headrace.protocols.ambrosia.binding.engine import DEADLINE_METHOD, JOURNAL_BYTES_MAX, OUTSIDE_METHOD, Engine
from headrace.protocols.ambrosia.client import (
    DeclarationError,
    Host,
    Immortal,
    ImpulseRefused,
    NotInMethod,
    Proxy,
    RemoteError,
    Result,
    StateError,
    UpgradeRefused,
    call,
    fork,
    gather,
    generate_proxy,
    impulse,
    proxy_of,
    serve,
)
from headrace.protocols.ambrosia.codec import Type, encode_record
from headrace.protocols.ambrosia.coordinator.store import StreamNames
from headrace.protocols.ambrosia.record_reader import Record, RecordReader
from headrace.protocols.ambrosia.server import ImmortalPorts
from headrace.testing import MemoryDisk, memory_hub


class Ledger(Immortal):
    total: int = 0
    seen: list[int]

    def __init__(self) -> None:
        self.seen = []

    @fork
    def add(self, amount: int, times: int = 1) -> None:
        """Add something."""
        self.total += amount * times
        self.seen.append(amount)

    @call
    def read(self) -> int:
        return self.total

    @call
    def nothing(self) -> None:
        return None

    @call
    def fail(self, why: str) -> int:
        raise ValueError(why)

    @call
    def unsayable(self) -> Any:
        return object()


class Desk(Immortal):
    answers: list[Any]
    errors: list[str]
    drawn: list[float]

    def __init__(self) -> None:
        self.answers, self.errors, self.drawn = [], [], []

    @impulse
    async def order(self, count: int) -> None:
        ledger = self.peer(proxy_of(Ledger), "ledger")
        for amount in range(count):
            ledger.add(amount)
        self.answers += await gather(ledger.read(), ledger.nothing())
        for wrong in (ledger.fail("because"), ledger.unsayable()):
            try:
                await wrong
            except RemoteError as error:
                self.errors.append(str(error))
        self.itself.note("done")

    @fork
    def note(self, text: str) -> None:
        self.answers.append(text)
        self.drawn.append(self.random.random())

    @impulse
    async def ask_outside(self, answer: int) -> None:
        self.answers.append(await self.outside(OUTSIDE[0], answer))

    @impulse
    async def rest(self) -> None:
        await self.sleep(0)
        self.answers.append(await self.time() > 1e9)

    @impulse
    def shout(self) -> None:
        self.itself.shout()

    @impulse
    async def wait_for_the_world(self) -> None:
        await asyncio.sleep(0.001)

    def on_error(self, method: str, error: Exception) -> None:
        self.errors.append(f"{method}: {type(error).__name__}")


OUTSIDE: list[Callable[[int], Any]] = [lambda answer: answer]


def at(ports: ImmortalPorts, name: str) -> dict[str, str]:
    addresses = ports.addresses
    return {"name": name, "receive": addresses[f"ambrosia.{name}.receive"], "send": addresses[f"ambrosia.{name}.send"]}


BOTH = settings(ledger=ImmortalSection(), desk=ImmortalSection())


async def test_calls_between_immortals_and_a_recovery_of_both() -> None:
    disk = MemoryDisk()
    expected = [45, None, "done"]
    async with memory_hub(BOTH, disk=disk) as hub, coordinator(hub) as ports:  # noqa: SIM117
        async with serve(Ledger, **at(ports, "ledger")), serve(Desk, **at(ports, "desk")) as desk:
            desk.itself.order(10)
            await until(lambda: len(desk.immortal.answers) == 3)  # type: ignore[attr-defined]
    async with memory_hub(BOTH, disk=disk) as hub, coordinator(hub) as ports:  # noqa: SIM117
        async with serve(Ledger, **at(ports, "ledger")) as ledger, serve(Desk, **at(ports, "desk")) as desk:
            state: Any = desk.immortal
            assert state.answers == expected
            assert state.errors[0] == "ValueError: because"
            assert "TypeError" in state.errors[1]
            books: Any = ledger.immortal
            assert (books.total, books.seen) == (45, list(range(10)))
            desk.itself.order(3)
            await until(lambda: state.answers == [*expected, 48, None, "done"])
            assert len(set(state.drawn)) == 2


async def test_the_host_recovers_by_itself_when_the_hub_comes_back() -> None:
    disk = MemoryDisk()
    section = settings(desk=ImmortalSection(), ledger=ImmortalSection())
    ports_now: list[ImmortalPorts] = []

    def addresses() -> tuple[str, str]:
        found = at(ports_now[-1], "ledger")
        return found["receive"], found["send"]

    host = Host(Ledger, name="ledger", receive="", send="", addresses=addresses)
    running: asyncio.Task[None] | None = None
    for life in range(3):
        async with memory_hub(section, disk=disk) as hub, coordinator(hub) as ports:
            ports_now.append(ports)
            running = running or asyncio.ensure_future(host.run())
            await until(lambda life=life: host.recoveries == life + 1)
            await asyncio.wait_for(host.wait_primary(), 60)
    assert running is not None
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_the_hub_asks_before_the_host_knows_both_sockets_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The hub links the two sockets when it accepts the second one, which may be before the host's own connect is
    done."""
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    connect, received = loop.create_connection, Host.received

    async def connect_late(protocol: Any, *address: Any) -> Any:
        connected = await connect(protocol, *address)
        if host._from_hub is not None:
            await asyncio.wait_for(asked.wait(), 10)
        return connected

    def note(self: Host, data: bytes) -> None:
        received(self, data)
        asked.set()

    monkeypatch.setattr(loop, "create_connection", connect_late)
    monkeypatch.setattr(Host, "received", note)
    async with memory_hub(BOTH) as hub, coordinator(hub) as ports:
        host = Host(Ledger, **at(ports, "ledger"))
        running = asyncio.ensure_future(host.run())
        await asyncio.wait_for(ports.coordinator.find("ledger").running(), 10)
        running.cancel()
        await asyncio.wait((running,))


async def test_what_is_done_outside_is_done_once_and_replayed_from_the_log() -> None:
    disk = MemoryDisk()
    done: list[int] = []
    OUTSIDE[0] = lambda answer: done.append(answer) or answer * 2
    async with memory_hub(BOTH, disk=disk) as hub, coordinator(hub) as ports, serve(Desk, **at(ports, "desk")) as desk:
        desk.itself.ask_outside(21)
        desk.itself.rest()
        await until(lambda: len(desk.immortal.answers) == 2)  # type: ignore[attr-defined]
        assert sorted(desk.immortal.answers) == [True, 42]  # type: ignore[attr-defined]
    async with memory_hub(BOTH, disk=disk) as hub, coordinator(hub) as ports, serve(Desk, **at(ports, "desk")) as desk:
        assert sorted(desk.immortal.answers) == [True, 42]  # type: ignore[attr-defined]
        assert done == [21]


async def test_what_was_not_finished_outside_is_done_again_after_the_crash() -> None:
    disk = MemoryDisk()
    hold = asyncio.Event()

    async def never(answer: int) -> int:
        hold.set()
        await asyncio.sleep(3600)
        return 0

    OUTSIDE[0] = never
    async with memory_hub(BOTH, disk=disk) as hub, coordinator(hub) as ports, serve(Desk, **at(ports, "desk")) as desk:
        desk.itself.ask_outside(5)
        await asyncio.wait_for(hold.wait(), 60)

    async def at_last(answer: int) -> int:
        return answer + 1

    OUTSIDE[0] = at_last
    async with memory_hub(BOTH, disk=disk) as hub, coordinator(hub) as ports, serve(Desk, **at(ports, "desk")) as desk:
        await until(lambda: desk.immortal.answers == [6])  # type: ignore[attr-defined]


async def test_errors_of_a_function_outside_reach_the_method() -> None:
    def broken(answer: int) -> int:
        raise OSError("no such disk")

    OUTSIDE[0] = broken
    async with memory_hub(BOTH) as hub, coordinator(hub) as ports, serve(Desk, **at(ports, "desk")) as desk:
        desk.itself.ask_outside(5)
        await until(lambda: desk.immortal.errors == ["ask_outside: RemoteError"])  # type: ignore[attr-defined]
        OUTSIDE[0] = lambda answer: object()
        desk.itself.ask_outside(5)
        await until(lambda: len(desk.immortal.errors) == 2)  # type: ignore[attr-defined]


async def test_what_would_not_survive_a_replay_is_refused() -> None:
    async with memory_hub(BOTH) as hub, coordinator(hub) as ports, serve(Desk, **at(ports, "desk")) as desk:
        desk.itself.shout()
        desk.itself.wait_for_the_world()
        await until(lambda: len(desk.immortal.errors) == 2)  # type: ignore[attr-defined]
        state: Any = desk.immortal
        assert state.errors == ["shout: ImpulseRefused", "wait_for_the_world: NotDeterministic"]
        with pytest.raises(NotInMethod, match="from outside send an impulse"):
            desk.itself.note("fork from outside")
        with pytest.raises(TypeError):
            desk.itself.order("wrong", "number", "of arguments")


# --- the engine alone -----------------------------------------------------------------------------------------


def test_a_checkpoint_while_a_method_waits_goes_on_in_the_middle() -> None:
    log = Log(Engine(Desk, "desk"))
    log.start()
    log.log(codec.InitialMessage(b"x"))
    log.log(call_of(Desk, "note", text="before"))
    log.log(call_of(Desk, "order", count=2))
    asked = [each for each in log.sent if isinstance(each, codec.Call) and each.rpc_type == 0]
    assert [each.call_number for each in asked] == [1, 2]
    log.log(codec.Return(codec.BodyKind.VALUE, b"ledger", 1, b"17"))
    log.signal(Type.TAKE_CHECKPOINT)
    other = log.recovered(Desk)
    assert other.sent == []  # what was sent before the checkpoint is not sent again
    assert other.engine.immortal.replaying
    for each in (log, other):
        each.log(codec.Return(codec.BodyKind.EMPTY, b"ledger", 2, b""))
        each.log(codec.Return(codec.BodyKind.EXCEPTION, b"ledger", 3, b'"no"'))
        each.log(codec.Return(codec.BodyKind.EXCEPTION, b"ledger", 4, b"\xff"))
    first: Any = log.engine.immortal
    second: Any = other.engine.immortal
    assert first.answers == second.answers == ["before", 17, None]
    assert first.errors == second.errors
    assert first.drawn == second.drawn
    assert isinstance(other.sent[0], codec.AttachTo)  # once for each link
    assert other.sent[1:] == log.sent[-len(other.sent) + 1 :]


def traced(function: Any) -> Any:
    """What people's own decorators look like: the coroutine function is hidden inside."""

    @functools.wraps(function)
    def traced_call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return traced_call


class Courier(Immortal):
    posted: int = 0

    @fork
    def post(self, letter: str) -> None:
        self.posted += 1
        self.outside(str.upper, letter)  # nobody waits for it

    @fork
    @traced
    async def post_and_wait(self, letter: str) -> None:
        self.posted += 1
        await self.outside(str.upper, letter)


@pytest.mark.parametrize("method", ["post", "post_and_wait"])
def test_a_checkpoint_keeps_what_is_still_to_be_done_outside(method: str) -> None:
    log = Log(Engine(Courier, "courier"))
    log.start()
    for letter in "abc":
        log.log(call_of(Courier, method, letter=letter))
    log.log(codec.Call(OUTSIDE_METHOD, 2, b'[2, "B", null]'))
    log.signal(Type.TAKE_CHECKPOINT)
    other = log.recovered(Courier)
    assert [effect.args for effect in other.engine.effects.values()] == [("a",), ("c",)]
    state: Any = other.engine.immortal
    assert state.posted == 3


def test_messages_since_the_last_quiet_moment_are_bounded() -> None:
    log = Log(Engine(Desk, "desk"))
    log.start()
    for _ in range(5):
        log.log(call_of(Desk, "note", text="x" * (JOURNAL_BYTES_MAX // 2)))
    assert log.engine.cell.journal_bytes < 2 * JOURNAL_BYTES_MAX


def test_impulses_are_refused_during_a_replay() -> None:
    log = Log(Engine(Desk, "desk"))
    log.start()
    log.signal(Type.TAKE_CHECKPOINT)
    other = log.recovered(Desk)
    with pytest.raises(ImpulseRefused, match="replayed"):
        other.engine.immortal.itself.order(1)
    other.signal(Type.BECOMING_PRIMARY)
    other.engine.immortal.itself.order(1)
    assert not any(isinstance(each, codec.Checkpoint) for each in other.sent)


def test_batches_unknown_methods_and_bad_arguments() -> None:
    log = Log(Engine(Desk, "desk"))
    log.start()
    note = call_of(Desk, "note", text="x")
    wrong = codec.Call(note.method, 1, b'{"text": 5}')
    log.log(codec.RpcBatch((note, wrong, codec.Call(-7, 1, b""), codec.Call(-7, 0, b"", None, b"other", 9)), 4))
    state: Any = log.engine.immortal
    assert state.answers == ["x"]
    assert state.errors == ["note: ValidationError", "#-7: LookupError"]
    answer = log.sent[-1]
    assert isinstance(answer, codec.Return)
    assert (answer.destination, answer.kind, answer.call_number) == (b"other", codec.BodyKind.EXCEPTION, 9)
    assert isinstance(log.sent[-2], codec.AttachTo)
    log.log(codec.Return(codec.BodyKind.VALUE, b"x", 99, b"1"))  # nobody waits for it


@pytest.mark.parametrize("caller", [b"", b"\xff\xfe"])
def test_a_caller_that_cannot_be_answered_does_not_end_the_immortal(caller: bytes) -> None:
    log = Log(Engine(Desk, "desk"))
    log.start()
    sent = len(log.sent)
    log.log(codec.Call(-7, 0, b"", None, caller, 1))
    assert log.sent[sent:] == []  # least of all an AttachTo without a name, for which the hub closes the link
    state: Any = log.engine.immortal
    assert state.errors == ["#-7: ValueError"]


@pytest.mark.parametrize("arguments", [b"", b"junk", b"[1]", b'["1", 2, null]'])
@pytest.mark.parametrize("method", [OUTSIDE_METHOD, DEADLINE_METHOD])
def test_a_result_from_outside_that_is_not_ours_does_not_end_the_immortal(method: int, arguments: bytes) -> None:
    log = Log(Engine(Desk, "desk"))
    log.start()
    log.log(codec.Call(method, 2, arguments))
    state: Any = log.engine.immortal
    assert len(state.errors) == 1
    assert state.errors[0].startswith("outside: ")


def test_an_answer_of_the_wrong_type_is_an_error_where_it_is_awaited() -> None:
    log = Log(Engine(Desk, "desk"))
    log.start()
    log.log(call_of(Desk, "order", count=0))
    log.log(codec.Return(codec.BodyKind.VALUE, b"ledger", 1, b'"text"'))
    assert log.engine.immortal.errors == ["order: RemoteError"]  # type: ignore[attr-defined]


class Old(Immortal):
    total: int = 3

    @fork
    def add(self, amount: int) -> None:
        self.total += amount

    def upgrade(self) -> Immortal:
        new = New()
        new.cents = self.total * 100
        return new


class New(Immortal):
    cents: int = 0
    note: str = "new"

    @fork
    def add(self, amount: int) -> None:
        self.cents += amount * 100


@pytest.mark.parametrize("kind", [Type.UPGRADE_TAKE_CHECKPOINT, Type.UPGRADE_SERVICE])
def test_upgrade_switches_state_and_code(kind: Type) -> None:
    log = Log(Engine(Old, "x"))
    log.start()
    log.log(call_of(Old, "add", amount=1))
    log.signal(kind)
    log.log(call_of(Old, "add", amount=1))
    state: Any = log.engine.immortal
    assert isinstance(state, New)
    assert state.cents == 500
    log.signal(Type.TAKE_CHECKPOINT)
    for factory in (Old, New):  # the program may go on offering the old version, or only the new one
        again: Any = log.recovered(factory).engine.immortal
        assert (type(again), again.cents, again.note) == (New, 500, "new")


def test_an_immortal_without_upgrade_says_so() -> None:
    log = Log(Engine(Ledger, "x"))
    log.start()
    with pytest.raises(UpgradeRefused, match="Ledger has no upgrade"):
        log.signal(Type.UPGRADE_TAKE_CHECKPOINT)


async def test_upgrade_through_the_hub() -> None:
    disk = MemoryDisk()
    async with memory_hub(settings(x=ImmortalSection()), disk=disk) as hub, coordinator(hub) as ports:
        registration = ports.coordinator.instances["x"].registration
        assert registration is not None
        async with serve(Old, **at(ports, "x")):
            await until(lambda: registration.started)
    upgrading = settings(x=ImmortalSection(upgrade_version=1))
    for _ in range(2):
        async with (
            memory_hub(upgrading, disk=disk) as hub,
            coordinator(hub) as ports,
            serve(Old, **at(ports, "x")) as host,
        ):
            await until(lambda host=host: isinstance(host.immortal, New) and host.immortal.cents == 300)
            await until(lambda ports=ports: ports.coordinator.instances["x"].registration.version == 1)


def test_state_that_would_be_lost_is_an_error() -> None:
    class Careless(Immortal):
        kept: int = 1

        def __init__(self) -> None:
            self._cache: dict[str, int] = {}
            self.lost = 5

    with pytest.raises(StateError, match="Careless.lost would be lost"):
        Careless().save_state()


def test_ones_own_state_functions() -> None:
    class Own(Immortal):
        def __init__(self) -> None:
            self.anything = {1, 2}

        def save_state(self) -> bytes:
            return repr(sorted(self.anything)).encode()

        def load_state(self, data: bytes) -> None:
            self.anything = {len(data)}

    log = Log(Engine(Own, "own"))
    log.start()
    assert log.recovered(Own).engine.immortal.anything == {6}  # type: ignore[attr-defined]


def test_declarations_that_cannot_work() -> None:
    with pytest.raises(DeclarationError, match="same number 7"):

        class Twice(Immortal):
            @fork(id=7)
            def one(self) -> None: ...

            @call(id=7)
            def two(self) -> None: ...

    with pytest.raises(DeclarationError, match="must have names"):

        class Stars(Immortal):
            @impulse(id=8)
            def many(self, *amounts: int) -> None: ...


def test_a_generated_proxy_is_the_same_as_a_made_one() -> None:
    source = generate_proxy(Ledger)
    space: dict[str, Any] = {}
    exec(compile(source, "generated", "exec"), space)
    generated = space["LedgerProxy"]
    assert issubclass(generated, Proxy)
    assert "def add(self, amount: int, times: int = 1) -> None:" in source
    assert "def read(self) -> Result[int]:" in source
    assert '"""Add something."""' in source

    class Caller(Immortal):
        proxy: int = 0

        def first_start(self) -> None:
            for kind in (generated, proxy_of(Ledger)):
                peer = self.peer(kind, "ledger")
                peer.add(5, times=2)
                assert isinstance(peer.read(), Result)

    log = Log(Engine(Caller, "caller"))
    log.start()
    log.log(codec.InitialMessage(b""))
    calls = [each for each in log.sent if isinstance(each, codec.Call)]
    assert [(each.method, each.arguments) for each in calls[:2]] == [
        (each.method, each.arguments) for each in calls[2:]
    ]


def test_a_record_of_the_hub_is_a_record() -> None:
    (record,) = RecordReader().feed(encode_record(1, 0, b""))
    assert record == Record(1, 0, b"")


# --- sleeping ---------------------------------------------------------------------------------------------------


class Sleeper(Immortal):
    woke: int = 0

    @impulse
    async def rest(self, seconds: float) -> None:
        await self.sleep(seconds)
        self.woke += 1


async def test_a_sleep_ends_at_its_deadline_whatever_dies() -> None:
    disk, times = MemoryDisk(), [1_000.0]
    section = settings(x=ImmortalSection())
    for life, now in enumerate((1_000.0, 1_600.0, 900.0, 4_600.0)):
        times[0] = now
        async with memory_hub(section, disk=disk) as hub, coordinator(hub) as ports:
            host = Host(Sleeper, **at(ports, "x"), clock=lambda: times[0])
            running = asyncio.ensure_future(host.run())
            await asyncio.wait_for(host.wait_primary(), 60)
            if life == 0:
                host.itself.rest(3_600)
                await until(lambda hub=hub: hub.bounds(StreamNames("x").log).next >= 3)  # first_start, rest, deadline
            if life < 3:
                (effect,) = (await until(lambda host=host: host.engine.effects)).values()
                assert effect.deadline == 4_600.0
                left_s = {1_000.0: 3_600, 1_600.0: 3_000, 900.0: 3_600}[now]  # no longer, though the clock was set back
                assert host._left_s(1, effect) == left_s
            else:
                await until(lambda host=host: host.immortal.woke == 1)  # at once: an hour would be too late
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_a_sleep_logs_its_deadline_once() -> None:
    async with memory_hub(settings(x=ImmortalSection())) as hub, coordinator(hub) as ports:
        async with serve(Sleeper, **at(ports, "x")) as host:
            host.itself.rest(0.01)
            await until(lambda: host.immortal.woke == 1)  # type: ignore[attr-defined]
        rows = (await hub.read(StreamNames("x").log, 0, limit=100)).to_pylist()
        assert sum(row["type"] == f"impulse/{DEADLINE_METHOD}" for row in rows) == 1
