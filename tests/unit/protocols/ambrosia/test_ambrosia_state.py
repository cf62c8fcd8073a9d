"""What becomes of an immortal's state when its code changes: nothing of it is lost without a word."""

from __future__ import annotations

import asyncio
import gc
import heapq
import random
from typing import Any, ClassVar

import msgspec
import pytest
from support.ambrosia_engine import Log, call_of
from support.ambrosia_peer import coordinator, settings
from support.until import until

from headrace.config import ImmortalSection
from headrace.protocols.ambrosia import codec
from headrace.protocols.ambrosia.binding.cell import Timer
from headrace.protocols.ambrosia.binding.engine import OUTSIDE_METHOD, Engine
from headrace.protocols.ambrosia.client import Host, Immortal, StateError, UpgradeRefused, fork, impulse, serve
from headrace.protocols.ambrosia.codec import Type
from headrace.testing import MemoryDisk, memory_hub


class V2(Immortal):
    cents: int = 0


class V1(Immortal):
    total: int = 3

    def upgrade(self) -> Immortal:
        new = V2()
        new.cents = self.total * 100
        return new


class V1Alone(Immortal, saved_as="V1"):
    """The program from before the upgrade: it does not know what came after."""

    total: int = 3


def saved_by(cls: type[Immortal], *signals: Type) -> Log:
    log = Log(Engine(cls, "x"))
    log.start()
    for kind in signals:
        log.signal(kind)
    return log


def test_a_program_from_before_the_upgrade_is_refused() -> None:
    log = saved_by(V1, Type.UPGRADE_TAKE_CHECKPOINT)
    with pytest.raises(StateError, match=r"of x is of class V2, and this program has V1: start a program that has V2"):
        log.recovered(V1Alone)
    state: Any = log.recovered(V1).engine.immortal
    assert (type(state), state.cents) == (V2, 300)


def test_a_program_without_the_class_before_the_upgrade_is_refused() -> None:
    with pytest.raises(StateError, match="is of class V1, and this program has V2"):
        saved_by(V1).recovered(V2)


def test_upgrades_that_go_in_a_circle_are_refused() -> None:
    class Circle(Immortal):
        def upgrade(self) -> Immortal:
            return Circle()

    with pytest.raises(StateError, match="is of class V1"):
        saved_by(V1).recovered(Circle)


def test_a_renamed_class_gives_its_former_name() -> None:
    assert saved_by(V1).recovered(V1Alone).engine.immortal.total == 3  # type: ignore[attr-defined]


def test_a_checkpoint_of_a_later_format_is_refused() -> None:
    log = saved_by(V1)
    fields = msgspec.msgpack.decode(log.blob)
    log.blob = msgspec.msgpack.encode([9, *fields[1:]])
    with pytest.raises(StateError, match="has format 9"):
        log.recovered(V1)


def test_a_checkpoint_of_the_first_format_goes_on_with_its_random_numbers() -> None:
    log = saved_by(V1)
    fields = msgspec.msgpack.decode(log.blob)
    numbers = random.Random("x")
    log.blob = msgspec.msgpack.encode([1, *fields[1:5], numbers.getstate(), []])
    recovered = log.recovered(V1)
    assert recovered.engine.random.random() == numbers.random()
    recovered.signal(Type.TAKE_CHECKPOINT)
    again = recovered.recovered(V1)
    assert again.engine.random.random() == numbers.random()


async def test_a_program_that_is_refused_leaves_the_checkpoint_as_it_is() -> None:
    upgrading = settings(x=ImmortalSection(upgrade_version=1))
    disk = MemoryDisk()
    for section, seen in ((ImmortalSection(), V1), (ImmortalSection(upgrade_version=1), V2)):
        async with (
            memory_hub(settings(x=section), disk=disk) as hub,
            coordinator(hub) as ports,
            serve(V1, **at(ports, "x")) as host,
        ):
            await until(lambda host=host, seen=seen: isinstance(host.immortal, seen))
            registration = ports.coordinator.instances["x"].registration
            assert registration is not None
            wanted = section.upgrade_version or 0
            await until(lambda r=registration, wanted=wanted: r.started and r.version == wanted)
    async with memory_hub(upgrading, disk=disk) as hub, coordinator(hub) as ports:
        before = ports.coordinator.instances["x"].checkpoints()
        with pytest.raises(StateError, match="V2"):
            await asyncio.wait_for(Host(V1Alone, **at(ports, "x")).run(), 60)
        assert ports.coordinator.instances["x"].checkpoints() == before
        async with serve(V1, **at(ports, "x")) as host:
            assert host.immortal.cents == 300  # type: ignore[attr-defined]


def at(ports: Any, name: str) -> dict[str, str]:
    addresses = ports.addresses
    return {"name": name, "receive": addresses[f"ambrosia.{name}.receive"], "send": addresses[f"ambrosia.{name}.send"]}


# --- attributes -----------------------------------------------------------------------------------------------


class Amount(Immortal, saved_as="Counter"):
    amount: int = 7
    note: str = "n"


def test_saved_attributes_that_the_class_does_not_have_are_an_error_that_names_them() -> None:
    class Counter(Immortal, saved_as="Counter"):
        total: int = 0

    with pytest.raises(StateError, match=r"of Counter holds amount, note, which the class does not have.*load_unknown"):
        saved_by(Amount).recovered(Counter)


def test_renamed_attributes_are_taken_over_and_what_is_left_is_an_error() -> None:
    class Renamed(Immortal, saved_as="Counter"):
        total: int = 0

        def load_unknown(self, saved: dict[str, Any]) -> None:
            self.total = saved.pop("amount")

    class Migrated(Renamed, saved_as="Counter"):
        def load_unknown(self, saved: dict[str, Any]) -> None:
            super().load_unknown(saved)
            del saved["note"]

    with pytest.raises(StateError, match="holds note, which"):
        saved_by(Amount).recovered(Renamed)
    assert saved_by(Amount).recovered(Migrated).engine.immortal.total == 7  # type: ignore[attr-defined]


class Shelf(Immortal):
    names: ClassVar[list[str]] = ["a"]
    items: dict[str, int] = {}  # noqa: RUF012
    rows: list[list[int]] = [[]]  # noqa: RUF012
    _cache: dict[str, int] = {}  # noqa: RUF012


def test_first_values_are_each_objects_own() -> None:
    one, other = Shelf(), Shelf()
    one.items["a"] = 1
    one.rows[0].append(1)
    one._cache["a"] = 1
    assert (other.items, other.rows, other._cache, Shelf().items) == ({}, [[]], {}, {})
    assert one.names is other.names
    assert msgspec.msgpack.decode(one.save_state()) == {"items": {"a": 1}, "rows": [[1]]}
    other.load_state(one.save_state())
    assert other.items == {"a": 1}


def test_arguments_that_nobody_takes_are_refused() -> None:
    make: Any = Shelf
    with pytest.raises(TypeError, match=r"Shelf\(\) takes no arguments"):
        make(5)


def test_a_container_of_the_class_that_a_method_fills_is_an_error() -> None:
    class Forgetful(Immortal):
        items = {}  # type: ignore[var-annotated]  # noqa: RUF012
        kinds = ["constant", object()]  # noqa: RUF012

    state = Forgetful()
    assert state.save_state()
    state.items["a"] = 1
    with pytest.raises(StateError, match=r"Forgetful\.items would be lost"):
        state.save_state()


def test_a_name_that_no_immortal_can_have_is_refused_where_it_is_used() -> None:
    class Caller(Immortal):
        errors: list[str] = []  # noqa: RUF012

        @fork
        def send(self, to: str) -> None:
            self.peer(Any, to)  # type: ignore[type-var]

        def on_error(self, method: str, error: Exception) -> None:
            self.errors.append(str(error))

    log = saved_by(Caller)
    for name in ("", "ä" * 65):
        log.log(call_of(Caller, "send", to=name))
    state: Any = log.engine.immortal
    assert len(state.errors) == 2
    assert "a name has 1 to 128 bytes" in state.errors[1]


# --- upgrades while a method waits ----------------------------------------------------------------------------


class Clock2(Immortal):
    ticks: int = 0
    added: int = 0

    @fork
    async def tick(self) -> None:
        await self.sleep(0.01)
        self.ticks += 100
        self.itself.tick()

    @fork
    def add(self) -> None:
        self.added += 100


class Clock(Immortal):
    ticks: int = 0
    added: int = 0

    @fork
    async def tick(self) -> None:
        await self.sleep(5)
        self.ticks += 1
        self.itself.tick()

    @fork
    def add(self) -> None:
        self.added += 1

    def upgrade(self) -> Immortal:
        new = Clock2()
        new.ticks, new.added = self.ticks, self.added
        return new


def slept(number: int) -> codec.Call:
    return codec.Call(OUTSIDE_METHOD, 2, b"[%d, null, null]" % number)


def of(log: Log) -> tuple[type, int, int]:
    state: Any = log.engine.immortal
    return type(state), state.ticks, state.added


@pytest.mark.parametrize("kind", [Type.UPGRADE_TAKE_CHECKPOINT, Type.UPGRADE_SERVICE])
def test_an_upgrade_waits_for_the_method_that_sleeps_in_every_replay_the_same(kind: Type) -> None:
    log = Log(Engine(Clock, "x"))
    log.start()
    log.log(call_of(Clock, "tick"))
    log.log(slept(1))  # a quiet moment before the upgrade must not be taken for the one after it
    log.log(call_of(Clock, "tick"), call_of(Clock, "add"))
    log.signal(kind)
    log.signal(Type.TAKE_CHECKPOINT)
    others = [log.recovered(Clock)]
    log.log(call_of(Clock, "add"))
    log.signal(Type.TAKE_CHECKPOINT)
    others.append(log.recovered(Clock))
    others[0].log(call_of(Clock, "add"))
    sent = [len(each.sent) for each in (log, *others)]
    for each in (log, *others):
        assert of(each) == (Clock, 1, 2)
        each.log(slept(2))
        assert of(each) == (Clock2, 2, 2)
        each.log(call_of(Clock2, "tick"), call_of(Clock2, "add"))
        each.log(slept(3))
        assert of(each) == (Clock2, 102, 102)
    log.signal(Type.TAKE_CHECKPOINT)
    assert of(log.recovered(Clock)) == (Clock2, 102, 102)
    ticks = [each.sent[before:][:2] for each, before in zip((log, *others), sent, strict=True)]
    assert ticks[0] == ticks[1] == ticks[2]


class Ticking(Clock):
    def first_start(self) -> None:
        self.itself.tick()

    def sleep(self, seconds: float) -> Any:
        return super().sleep(0.001)


async def test_an_immortal_that_always_sleeps_is_upgraded_through_the_hub() -> None:
    disk = MemoryDisk()
    for version, ticks in ((0, 3), (1, 103), (1, 203)):
        async with (
            memory_hub(settings(x=ImmortalSection(upgrade_version=version)), disk=disk) as hub,
            coordinator(hub) as ports,
            serve(Ticking, **at(ports, "x")) as host,
        ):
            await until(lambda host=host, ticks=ticks: host.immortal.ticks >= ticks)
            assert isinstance(host.immortal, Clock2) == bool(version)


def test_what_is_to_be_done_outside_survives_an_upgrade() -> None:
    class Courier(Immortal, saved_as="Courier"):
        @fork
        def post(self) -> None:
            self.outside(str.upper, "a")

        def upgrade(self) -> Immortal:
            return V2()

    log = Log(Engine(Courier, "x"))
    log.start()
    log.log(call_of(Courier, "post"))
    log.signal(Type.UPGRADE_TAKE_CHECKPOINT)
    other = log.recovered(Courier)
    assert [effect.args for effect in other.engine.effects.values()] == [("a",)]
    other.log(slept(1))
    assert isinstance(other.engine.immortal, V2)


def test_an_upgrade_that_cannot_be_is_refused_at_once() -> None:
    log = Log(Engine(Clock2, "x"))
    log.start()
    log.log(call_of(Clock2, "tick"))
    with pytest.raises(UpgradeRefused, match="Clock2 has no upgrade"):
        log.signal(Type.UPGRADE_TAKE_CHECKPOINT)
    log = Log(Engine(Clock, "x"))
    log.start()
    log.log(call_of(Clock, "tick"))
    log.signal(Type.UPGRADE_TAKE_CHECKPOINT)
    with pytest.raises(UpgradeRefused, match="before this one still waits"):
        log.signal(Type.UPGRADE_TAKE_CHECKPOINT)


# --- the inbox ------------------------------------------------------------------------------------------------


def test_a_method_that_is_not_there_is_told_with_those_that_are() -> None:
    errors: list[str] = []

    class Store(Immortal):
        @impulse(id=7)
        def put(self, key: str) -> None: ...

        def on_error(self, method: str, error: Exception) -> None:
            errors.append(f"{method}: {error}")

    log = saved_by(Store)
    log.log(codec.Call(0, 2, b"{}"))
    assert errors == ["#0: no method 0: put is 7"]


def test_timers_of_a_saved_state_are_due_in_order_however_many_there_are() -> None:
    engine = Engine(V1, "clock")
    for timers in (5, 3, 9):  # none yet, fewer than there are, and more
        engine.due_all({number: Timer(100 * timers - number, "clock", 1, b"") for number in range(timers)}, None)
    due = [heapq.heappop(engine._deadlines)[0] for _ in range(5 + 3 + 9)]
    assert due == sorted([100 * timers - number for timers in (5, 3, 9) for number in range(timers)])


def test_the_collector_is_paused_only_while_a_state_is_read() -> None:
    seen: list[bool] = []

    class Watching(V1, saved_as="V1"):
        def load_state(self, state: bytes) -> None:
            seen.append(gc.isenabled())
            super().load_state(state)

    saved_by(V1).recovered(Watching)
    assert seen == [False]
    assert gc.isenabled()
