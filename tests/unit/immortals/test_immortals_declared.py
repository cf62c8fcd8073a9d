"""What a class of immortals may not do, found before it runs; types that travel; cron."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pydantic
import pytest

from headrace.immortals import DeclarationError, Immortal, immortal, method, query
from headrace.protocols.ambrosia.binding.declaring import interface_of
from headrace.protocols.ambrosia.binding.schedule import Cron, seconds_of
from headrace.testing.immortals import World


class Timed(Immortal):
    @method
    def when(self) -> float:
        return time.time()


class Slept(Immortal):
    @method
    async def wait(self) -> None:
        await asyncio.sleep(1)


class Drawn(Immortal):
    @method
    def draw(self) -> int:
        return random.randint(1, 6)


class Named(Immortal):
    @method
    def name_it(self) -> str:
        return str(uuid.uuid4())


class Dated(Immortal):
    def helper(self) -> str:
        return datetime.now(UTC).isoformat()

    @method
    def date(self) -> str:
        return self.helper()


class Read(Immortal):
    @method
    def read(self) -> str:
        with open("/etc/hostname") as file:
            return file.read()


class Gathered(Immortal):
    @method
    async def both(self) -> None:
        await asyncio.gather(self.sleep(1), self.sleep(2))


def helper() -> float:
    return time.time()


class Hidden(Immortal):
    """A clock behind a helper, in a comprehension, in a lambda, under another name; others by what they touch."""

    @method
    def by_helper(self) -> float:
        return helper()

    @method
    def by_comprehension(self) -> list[float]:
        return [time.monotonic() for _ in range(3)]

    @method
    def by_lambda(self) -> float:
        clock = lambda: time.time()  # noqa: E731
        return clock()

    @method
    def by_import(self) -> float:
        from time import time as now

        return now()

    @method
    def by_alias(self) -> float:
        clock = time
        return clock.time()

    @method
    def by_choice(self) -> int:
        from random import choice

        return choice([1, 2])

    @method
    def by_process(self) -> int:
        return subprocess.run(["true"]).returncode

    @method
    def by_environment(self) -> str:
        return os.environ["HOME"]

    @method
    def by_path(self) -> str:
        return Path("x").read_text()

    @method
    def by_hash(self) -> int:
        return hash("x")


class Fine(Immortal):
    def __init__(self) -> None:
        self._began = time.time()

    @method
    async def ask(self) -> float:
        return await self.effect(lambda: time.time())

    @method
    async def others(self, at: float) -> object:
        def own() -> float:
            return time.time()

        await self.effect(time.time)
        await self.effect(subprocess.run, ["true"])
        await self.effect(helper)
        await self.effect(own)
        return [os.path.join("a", "b"), random.Random(5).random(), time.gmtime(at), Path("a") / "b"]

    @query
    def age(self) -> float:
        return time.time() - self._began

    async def on_primary(self, itself: Any) -> None:
        await asyncio.sleep(1)


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Timed, r"Timed.when \(test_immortals_declared.py:\d+\) uses time.time: .*; use self.now\(\)"),
        (Slept, r"Slept.wait .* uses asyncio.sleep: .*; use await self.sleep"),
        (Drawn, r"Drawn.draw .* uses random.randint: .*; use self.random"),
        (Named, r"Named.name_it .* uses uuid.uuid4: .*; use self.uuid\(\)"),
        (Dated, r"Dated.helper .* uses datetime.now: .*; use self.now\(\)"),
        (Read, r"Read.read .* uses open: .*; use await self.effect"),
        (Gathered, r"Gathered.both .* uses asyncio.gather: .*gather and select of headrace.immortals"),
    ],
)
def test_what_a_replay_would_answer_otherwise_is_found_and_explained(kind: type[Immortal], sentence: str) -> None:
    with pytest.raises(DeclarationError, match=sentence):
        interface_of(kind)


@pytest.mark.parametrize("name", [name for name in vars(Hidden) if name.startswith("by_")])
def test_it_is_found_however_it_is_hidden(name: str) -> None:
    function = vars(Hidden)[name]
    kind = type(Immortal)(f"Only_{name}", (Immortal,), {name: function})
    with pytest.raises(DeclarationError, match=rf"{name} \(test_immortals_declared.py:\d+\) uses "):
        interface_of(kind)


def test_what_is_done_outside_may_use_a_clock_and_so_may_a_query() -> None:
    assert [method.name for method in interface_of(Fine).methods] == ["ask", "others", "age"]


def test_a_type_that_cannot_be_sent_is_named_when_the_program_starts() -> None:
    class Odd:
        pass

    def give(self: Immortal) -> Odd:
        return Odd()

    give.__annotations__ = {"return": Odd}
    kind = type(Immortal)("Gives", (Immortal,), {"give": method(give)})
    with pytest.raises(DeclarationError, match=r"Gives.\w+: a Odd cannot be sent or kept: use a dataclass"):
        interface_of(kind)


def test_a_query_cannot_wait() -> None:
    with pytest.raises(DeclarationError, match="a query answers at once, from the state"):

        class Waiting(Immortal):
            @query
            async def ask(self) -> int:
                return 1


class Item(pydantic.BaseModel):
    name: str
    count: int = 1


@dataclass
class Parcel:
    items: list[Item]


class Depot(Immortal):
    parcels: list[Parcel] = []
    last: Item | None = None

    @method
    def put(self, item: Item) -> Parcel:
        self.last = item
        self.parcels.append(Parcel([item]))
        return self.parcels[-1]

    @query
    def newest(self) -> Item | None:
        return self.last


def test_dataclasses_and_pydantic_models_are_arguments_results_and_state() -> None:
    world = World(checkpoint_every=2)
    depot = world.add(Depot, "depot")
    assert depot.put(item=Item(name="pear")) == Parcel([Item(name="pear", count=1)])
    with pytest.raises(TypeError, match="put.* was called with the wrong arguments"):
        depot.put(item={"count": "many"})
    world.kill("depot")
    assert depot.newest() == Item(name="pear")
    (put, _) = interface_of(Depot).methods
    assert put.parameters["item"]["properties"]["name"]["type"] == "string"


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        ("* * * * *", "2030-01-01 00:00:30", "2030-01-01 00:01"),
        ("0 8 * * 1-5", "2030-01-04 09:00", "2030-01-07 08:00"),  # Friday to Monday
        ("*/15 * * * *", "2030-01-01 00:15", "2030-01-01 00:30"),
        ("30 3 29 2 *", "2030-01-01 00:00", "2032-02-29 03:30"),
        ("0 0 1 * 0", "2030-01-01 00:00", "2030-01-06 00:00"),  # the first, or a Sunday
        ("5,10 12-14/2 * 6,7 7", "2030-01-01 00:00", "2030-06-02 12:05"),
    ],
)
def test_cron(cron: str, after: str, expected: str) -> None:
    found = Cron(cron).next(datetime.fromisoformat(after).replace(tzinfo=UTC))
    assert found == datetime.fromisoformat(expected).replace(tzinfo=UTC)


@pytest.mark.parametrize("cron", ["* * * *", "60 * * * *", "a * * * *", "5-1 * * * *", "*/0 * * * *"])
def test_what_is_no_cron_expression(cron: str) -> None:
    with pytest.raises(ValueError, match="cron expression"):
        Cron(cron)


def test_a_day_that_never_comes() -> None:
    with pytest.raises(ValueError, match="matches no day"):
        Cron("0 0 31 2 *").next(datetime(2030, 1, 1, tzinfo=UTC))


def test_durations() -> None:
    assert [seconds_of(each) for each in (1.5, "2m", "1d")] == [1.5, 120, 86_400]


class Stray(Immortal):
    kept: int = 0
    _own: int = 0

    @property
    def double(self) -> int:
        return 2 * self.kept

    @double.setter
    def double(self, value: int) -> None:
        self.kept = value // 2

    @method
    def fine(self) -> None:
        self.kept, self._own, self.double = 1, 2, 3
        self._other = 4

    @method
    def sloppy(self) -> None:
        self.kept += 1
        self.count = 1


class Careful(Stray):
    """It says itself what is kept."""

    def save_state(self) -> bytes:
        return b""

    def load_state(self, data: bytes) -> None:
        """There is nothing."""


def test_an_attribute_that_a_checkpoint_would_lose_is_found_before_the_program_starts() -> None:
    with pytest.raises(DeclarationError, match=r"Stray.sloppy \(test_immortals_declared.py:\d+\) sets self.count"):
        interface_of(Stray)
    assert interface_of(Careful).kind == "Careful"


@dataclass
class Card:
    number: str


@dataclass
class Cash:
    cents: int


class Paid(Immortal):
    @method
    def pay(self, by: Card | Cash) -> None:
        """By one or the other."""


def test_types_that_json_cannot_tell_apart_are_refused_with_a_remedy() -> None:
    with pytest.raises(DeclarationError, match=r"Paid.pay: Type unions may not .*msgspec.Struct with tag=True"):
        interface_of(Paid)


@immortal(keyed=True)
class Begun(Immortal):
    def first_start(self) -> None:
        """Of which instance?"""


def test_a_keyed_immortal_has_no_first_start() -> None:
    with pytest.raises(DeclarationError, match="Begun is keyed, and first_start is for immortals that are one"):
        interface_of(Begun)
