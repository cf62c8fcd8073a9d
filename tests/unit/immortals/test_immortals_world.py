"""Timers, effects, sagas, tokens, cancellation, keyed instances and changes of the code, in a world in memory: each is
killed behind every log write, and comes to the same end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from headrace.immortals import (
    Cancelled,
    EffectError,
    Immortal,
    RemoteError,
    Retry,
    StateError,
    as_completed,
    gather,
    immortal,
    method,
    query,
    select,
)
from headrace.testing.immortals import Diverged, NothingHappens, World, survives


@dataclass
class Receipt:
    number: int
    text: str


class Flaky:
    """A function outside that fails at first."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls = 0

    def __call__(self, number: int) -> Receipt:
        self.calls += 1
        if self.calls <= self.failures:
            raise OSError(f"no network ({self.calls})")
        return Receipt(number, "paid")


def pay(number: int) -> Receipt:
    return Receipt(number, "paid")


class Clock(Immortal):
    ticks: list[str] = []
    said: list[Any] = []

    @method
    async def nap(self, seconds: float) -> float:
        before = self.now()
        await self.sleep(seconds)
        return (self.now() - before).total_seconds()

    @method
    def remind(self, text: str) -> None:
        self.ticks.append(text)

    @method
    def plan(self) -> int:
        self.later("10s", self.remind, "a")
        self.later(timedelta(seconds=5), self.remind, "b")
        self.later(self.now() + timedelta(seconds=7), self.itself.remind, text="c")
        return self.later("8s", self.remind, "never")

    @method
    def call_off(self, number: int) -> bool:
        return self.cancel_later(number)

    @method
    def daily(self) -> None:
        self.every("0 8 * * *", self.remind, "morning")

    @method
    async def race(self) -> list[Any]:
        first = await select(self.sleep(9), self.sleep(3))
        all_of = await gather(self.nap(5), self.nap(2))
        order = [each async for each in as_completed(self._after(3, "x"), self._after(1, "y"))]
        return [first[0], [round(each) for each in all_of], order]

    async def _after(self, seconds: float, text: str) -> str:
        await self.sleep(seconds)
        return text

    @method
    async def in_time(self, seconds: float, limit: float) -> str:
        try:
            return await self.timeout(limit, self._after(seconds, "in time"))
        except TimeoutError as error:
            return str(error)

    @method
    def draw(self) -> list[Any]:
        return [self.random(), self.random.choice("abc"), str(self.uuid()), self.now().isoformat()]

    @method
    async def wait_long(self) -> None:
        try:
            await self.sleep("1d")
        except Cancelled:
            self.ticks.append("cancelled")
            raise

    @query
    def seen(self) -> list[str]:
        return self.ticks

    @query
    def sneaky(self) -> None:
        self.ticks.append("x")


def test_a_sleep_takes_what_it_says_whatever_is_killed() -> None:
    def scenario(world: World) -> Any:
        return round(world.add(Clock, "clock").nap(seconds=5))

    assert survives(scenario) == 5


def test_calls_that_come_later_come_once_and_in_their_order() -> None:
    def scenario(world: World) -> Any:
        clock = world.add(Clock, "clock")
        number = clock.plan()
        assert clock.call_off(number=number) is True
        assert clock.call_off(number=number) is False
        world.skip(4)
        before = list(clock.seen())
        world.skip(20)
        return before, clock.seen()

    assert survives(scenario) == ([], ["b", "c", "a"])


def test_cron_goes_on_for_ever() -> None:
    def scenario(world: World) -> Any:
        clock = world.add(Clock, "clock")
        clock.daily()
        world.skip("3d")
        return clock.seen()

    assert survives(scenario) == ["morning"] * 3


class Planner(Immortal):
    came: list[str] = []

    @method
    def plan(self) -> None:
        tomorrow = (self.now() + timedelta(days=1)).replace(tzinfo=None)
        self.later(tomorrow, self.come)

    @method
    def come(self) -> None:
        self.came.append(self.now().isoformat())

    @query
    def seen(self) -> list[str]:
        return self.came


def test_a_moment_without_a_zone_is_one_of_utc_wherever_the_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for zone in ("UTC", "America/New_York"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        world = World()
        planner = world.add(Planner, "planner")
        planner.plan()
        world.skip("3d")
        found.append(planner.seen())
    monkeypatch.undo()
    time.tzset()
    assert found[0] == found[1]


class Reporter(Immortal):
    born: str = ""
    reports: int = 0

    def first_start(self) -> None:
        self.born = self.now().isoformat()
        self.every("0 8 * * *", self.report)

    @method
    def report(self) -> None:
        self.reports += 1

    @query
    def seen(self) -> tuple[str, int]:
        return self.born, self.reports


def test_the_first_start_knows_the_time_and_may_arrange_what_comes_again() -> None:
    def scenario(world: World) -> Any:
        reporter = world.add(Reporter, "reporter")
        born = world.now.isoformat()
        world.skip("3d")
        return born, reporter.seen()

    born, (seen, reports) = survives(scenario)
    assert (seen, reports) == (born, 3)


def test_what_runs_side_by_side_ends_in_the_same_order() -> None:
    def scenario(world: World) -> Any:
        return world.add(Clock, "clock").race()

    assert survives(scenario) == [1, [5, 2], ["y", "x"]]


def test_a_timeout_cancels_what_takes_longer() -> None:
    def scenario(world: World) -> Any:
        clock = world.add(Clock, "clock")
        return clock.in_time(seconds=1, limit=2), clock.in_time(seconds=2, limit=1)

    assert survives(scenario) == ("in time", "not done within 1 s")


def test_time_and_chance_are_the_same_in_every_replay() -> None:
    def scenario(world: World) -> Any:
        clock = world.add(Clock, "clock")
        return clock.draw(), clock.draw()

    first, second = survives(scenario)
    assert first != second


def test_a_call_is_cancelled_where_it_waits() -> None:
    def scenario(world: World) -> Any:
        clock = world.add(Clock, "clock")
        number = clock.start("wait_long")
        world.run()
        world.cancel("clock", number)
        with pytest.raises(RemoteError, match="Cancelled: cancelled"):
            world.result(number)
        with pytest.raises(RemoteError, match="not under way"):
            world.cancel("clock", number)
        return clock.seen()

    assert survives(scenario) == ["cancelled"]


def test_a_query_that_changes_the_state_is_found() -> None:
    with pytest.raises(AssertionError, match="the query clock.sneaky has changed the state"):
        World().add(Clock, "clock").sneaky()


class Shop(Immortal):
    done: list[str] = []
    token_id: str = ""

    @method
    async def buy(self, number: int) -> Receipt:
        return await self.effect(pay, number, retry=Retry(attempts=3, first_s=1))

    @method
    async def buy_or_undo(self, number: int) -> str:
        async with self.saga() as saga:
            for step in ("reserve", "charge"):
                self.done.append(step)
                saga.undo(self._undo, step)
            saga.undo(self.effect, print, end="")
            await self.effect(pay, number, retry=Retry(attempts=1))
        return "bought"

    async def _undo(self, step: str) -> None:
        await self.sleep(1)
        self.done.append(f"undo {step}")

    @method
    async def approve(self) -> bool:
        token = self.token(bool)
        self.token_id = token.id
        return await token

    @query
    def token_to_fulfil(self) -> str:
        return self.token_id

    @query
    def steps(self) -> list[str]:
        return self.done


def test_an_effect_has_its_declared_type_and_is_logged_once() -> None:
    done: list[int] = []

    def count(number: int) -> Receipt:
        done.append(number)
        return Receipt(number, "paid")

    def scenario(world: World) -> Any:
        world.effects[pay] = count
        shop = world.add(Shop, "shop")
        return shop.buy(number=1), shop.buy(number=2)

    assert scenario(World()) == (Receipt(1, "paid"), Receipt(2, "paid"))
    assert done == [1, 2]
    survives(scenario)


def test_an_effect_is_tried_as_often_as_its_policy_says() -> None:
    for failures, expected in ((0, "paid"), (2, "paid"), (3, "OSError: no network (3)")):
        world, flaky = World(), Flaky(failures)
        world.effects[pay] = flaky
        shop = world.add(Shop, "shop")
        began = world.now
        if failures < 3:
            assert shop.buy(number=1).text == expected
        else:
            with pytest.raises(RemoteError, match="EffectError: OSError: no network"):
                shop.buy(number=1)
        assert flaky.calls == min(3, failures + 1)
        assert round((world.now - began).total_seconds()) == {0: 0, 2: 3, 3: 3}[failures]


def test_attempts_are_counted_across_a_kill() -> None:
    world, flaky = World(), Flaky(9)
    world.effects[pay] = flaky
    shop = world.add(Shop, "shop")
    number = shop.start("buy", 1)
    world.run()
    assert flaky.calls == 1
    world.kill("shop")
    with pytest.raises(RemoteError, match="EffectError"):
        world.result(number)
    assert flaky.calls == 3
    assert issubclass(EffectError, RemoteError)


def test_a_saga_undoes_what_was_done_last_first() -> None:
    def fail(number: int) -> Receipt:
        raise ValueError("declined")

    def scenario(world: World) -> Any:
        world.effects[pay] = fail
        shop = world.add(Shop, "shop")
        with pytest.raises(RemoteError, match="EffectError: ValueError: declined"):
            shop.buy_or_undo(number=1)
        return shop.steps()

    assert survives(scenario) == ["reserve", "charge", "undo charge", "undo reserve"]


def test_a_token_is_fulfilled_by_others() -> None:
    def scenario(world: World) -> Any:
        shop = world.add(Shop, "shop")
        number = shop.start("approve")
        with pytest.raises(NothingHappens, match="a token to fulfil"):
            world.result(number)
        shop.fulfil(shop.token_to_fulfil(), True)
        return world.result(number)

    assert survives(scenario) is True


@immortal(keyed=True)
class Account(Immortal):
    balance: int = 0
    log: list[str] = []

    @method
    async def deposit(self, amount: int) -> int:
        self.log.append(f"begin {amount}")
        await self.sleep(1)
        self.balance += amount
        self.log.append(f"end {amount}")
        return self.balance

    @method
    async def move(self, to: str, amount: int) -> int:
        self.balance -= amount
        self.later(5, self.note, f"moved {amount}")
        return await self.proxy(Account, "accounts", key=to).deposit(amount)

    @method
    def note(self, text: str) -> None:
        self.log.append(f"{self.key} {text}")

    @query
    def seen(self) -> tuple[int, list[str]]:
        return self.balance, self.log


def test_each_key_has_its_own_state_and_order() -> None:
    def scenario(world: World) -> Any:
        world.add(Account, "accounts")
        alice, bob = world.immortal("accounts", key="alice"), world.immortal("accounts", key="bob")
        numbers = [alice.start("deposit", 5), alice.start("deposit", 7), bob.start("deposit", 1)]
        assert [world.result(number) for number in numbers] == [5, 12, 1]
        assert alice.move(to="bob", amount=2) == 3
        world.skip(10)
        return alice.seen(), bob.seen()

    alice, bob = survives(scenario)
    assert alice == (10, ["begin 5", "end 5", "begin 7", "end 7", "alice moved 2"])
    assert bob == (3, ["begin 1", "end 1", "begin 2", "end 2"])


def test_calls_of_one_key_that_came_meanwhile_are_processed_in_their_order() -> None:
    """Also those that need not wait themselves: each lets the next one begin."""

    def scenario(world: World) -> Any:
        world.add(Account, "accounts")
        alice = world.immortal("accounts", key="alice")
        deposit = alice.start("deposit", 5)
        numbers = [alice.start("note", f"{number}") for number in range(3)]
        assert world.result(deposit) == 5
        alice.note("last")
        for number in numbers:
            world.result(number)
        return alice.seen()[1]

    assert survives(scenario) == ["begin 5", "end 5", *(f"alice {note}" for note in (0, 1, 2, "last"))]


@immortal(keyed=True)
class Counting(Immortal):
    total: int = 0

    @method
    async def wait(self) -> None:
        await self.sleep(1)

    @method
    async def add(self) -> int:
        self.total += 1
        return self.total


def test_however_many_calls_of_one_key_came_meanwhile() -> None:
    world = World()
    world.add(Counting, "counting")
    alice = world.immortal("counting", key="alice")
    alice.start("wait")
    numbers = [alice.start("add") for _ in range(1_000)]
    assert world.result(numbers[-1]) == 1_000


def test_very_many_keys_leave_the_memory_and_come_back() -> None:
    world = World(checkpoint_every=900)
    world.add(Account, "accounts")
    for number in range(1_500):
        world.immortal("accounts", key=f"k{number}").start("note", "first")
    world.run()
    world.kill("accounts")
    cells = world._homes["accounts"].engine.keyed
    assert cells is not None
    assert len(cells) == 1_500
    assert len(cells.live) <= 1_000
    assert world.immortal("accounts", key="k3").seen() == (0, ["k3 first"])


class Forgetful(Immortal):
    total: int = 0

    def __init__(self) -> None:
        self._seen = 0

    @method
    async def add(self) -> int:
        self._seen += 1  # not kept: a mistake that only a kill shows
        await self.sleep(1)
        self.total += self._seen
        return self.total


def test_what_depends_on_something_that_is_not_kept_is_found() -> None:
    def scenario(world: World) -> Any:
        forgetful = world.add(Forgetful, "forgetful")
        return [forgetful.add(), forgetful.add(), forgetful.add()]

    assert scenario(World()) == [1, 3, 6]
    with pytest.raises(AssertionError, match="with a kill behind every log write, and checkpoints the end is"):
        survives(scenario)


class Other(Immortal):
    @method
    async def ask(self) -> int:
        return await self.proxy(Counter, "counter").count(changed=CHANGED[0])


class Counter(Immortal):
    total: int = 0

    @method
    def count(self, changed: bool) -> int:
        self.total += 1
        return self.total

    @query
    def seen(self) -> int:
        return self.total


CHANGED = [False]


def test_a_program_that_says_something_else_in_its_recovery_is_found() -> None:
    world = World()
    world.add(Counter, "counter")
    other = world.add(Other, "other")
    try:
        assert other.ask() == 1
        CHANGED[0] = True
        with pytest.raises(Diverged, match=r'message 1 was a call of method .* with {"changed":false}, and is .*true'):
            world.kill("other")
    finally:
        CHANGED[0] = False


def test_an_attribute_that_has_another_name_now() -> None:
    @immortal(renamed={"total": "count_of_calls"}, saved_as="Counter")
    class New(Immortal):
        count_of_calls: int = 0
        fresh: str = "new"

        @query
        def seen(self) -> tuple[int, str]:
            return self.count_of_calls, self.fresh

    @immortal(saved_as="Counter")
    class Careless(Immortal):
        other: int = 0

    world = World()
    counter = world.add(Counter, "counter")
    counter.count(changed=False)
    with pytest.raises(StateError, match=r"holds total, which the class does not have.*renamed="):
        world.replace("counter", Careless)
    world.replace("counter", New)
    assert counter.seen() == (1, "new")
