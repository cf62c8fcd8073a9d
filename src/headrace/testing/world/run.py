"""One seed from beginning to end: who lives in its world, what befalls them, and the verdict."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Callable
from typing import NamedTuple

from headrace.errors import HeadraceError
from headrace.protocols.perper.ignite.binary import encode_string
from headrace.protocols.perper.ignite.client import IgniteClient
from headrace.testing.world.actors import (
    Actor,
    FutoinPoller,
    FutoinProducer,
    Gatekeeper,
    Guest,
    IgniteCounter,
    IgniteWriter,
    ImmortalActor,
    OckamConsumer,
    OckamProducer,
    Operator,
    Producer,
    Vandal,
    WallarooProducer,
)
from headrace.testing.world.book import Book
from headrace.testing.world.hub import HubProcess
from headrace.testing.world.judge import judge, judge_caches
from headrace.testing.world.scheduler import Stuck
from headrace.testing.world.weather import Weather
from headrace.testing.world.world import World, opened

STORM_S = 60.0
CALM_S = 900.0
"""So long everything may take to catch up when the faults have stopped."""


class Outcome(NamedTuple):
    """What came of a seed."""

    seed: int
    trace: str
    wrong: list[str]
    virtual_s: float
    turns: int
    faults: dict[str, int]
    acked: int
    parts: tuple[str, ...]
    """The actors and kinds of fault that took part."""
    story: str


class _Logged(logging.Handler):
    """Errors that the hub did not expect: it logs them with their traceback."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        expected = error is None or isinstance(error, HeadraceError) or "injected" in str(error)
        if not expected:
            self.found.append(f"{record.name}: {record.getMessage()}: {error!r}")


def _population(world: World, hub: HubProcess, book: Book) -> list[Actor]:
    """Who lives in this world; each seed leaves some out."""
    chance = world.random
    streams = ["orders", "clicks"][: chance.randint(1, 2)]
    count = chance.choice([40, 150])
    producers: list[type[Producer]] = [WallarooProducer, OckamProducer, FutoinProducer]
    actors: list[Actor] = []
    for kind in producers:
        actors += [kind(n, hub, book, chance.choice(streams), count) for n in range(chance.randint(0, 2))]
    if chance.random() < 0.6:
        actors += [IgniteWriter(number, hub, book, count) for number in range(chance.randint(1, 2))]
    if chance.random() < 0.5:
        actors += [IgniteCounter(number, hub, book, count // 3) for number in range(2)]
    if chance.random() < 0.6:
        actors.append(OckamConsumer(0, hub, book, chance.choice(streams)))
    if chance.random() < 0.6:
        actors.append(FutoinPoller(0, hub, book, chance.choice(streams)))
    if chance.random() < 0.5:
        actors.append(Vandal(0, hub, book))
    if chance.random() < 0.5:
        actors.append(Operator(0, hub, book, streams))
    if chance.random() < 0.4:
        gatekeeper = Gatekeeper(0, hub, book)
        actors += [gatekeeper, Guest(0, hub, book, gatekeeper)]
    if chance.random() < 0.5:
        actors += [ImmortalActor(number, hub, book, name) for number, name in enumerate(("ping", "pong"))]
    return actors


def run(seed: int, *, without: frozenset[str] = frozenset(), told: Callable[[str], None] | None = None) -> Outcome:
    """Everything that a seed says, without some actors or faults; `told` gets each line of the story. The same seed
    gives the same outcome, to the byte."""
    logged = _Logged()
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # vandals make it talk
    root = logging.getLogger("headrace")
    level, spread = root.level, root.propagate
    root.addHandler(logged)
    root.setLevel(logging.WARNING)
    root.propagate = False
    complaints = sys.unraisablehook
    sys.unraisablehook = lambda _: None  # processes that were killed clean nothing up: that is the point
    try:
        with opened(seed, told) as world:
            return _Life(world, logged, without).run()
    finally:
        gc.collect()
        sys.unraisablehook = complaints
        root.removeHandler(logged)
        root.setLevel(level)
        root.propagate = spread


class _Life:
    def __init__(self, world: World, logged: _Logged, without: frozenset[str]) -> None:
        self.world = world
        self.book = Book()
        self.hub = HubProcess(world, on_kafka=world.random.random() < 0.3)
        self.actors = [actor for actor in _population(world, self.hub, self.book) if actor.name not in without]
        self.weather = Weather(self.hub, self.actors)
        self.weather.faults = [fault for fault in self.weather.faults if fault[0] not in without]
        self.wrong: list[str] = []
        self._logged = logged

    def run(self) -> Outcome:
        world = self.world
        names = " ".join(actor.name for actor in self.actors)
        world.tell("world", f"seed {world.seed}: {names}; {', '.join(name for name, _ in self.weather.faults)}")
        self.hub.start()
        for actor in self.actors:
            actor.start()
        world.start("weather", self.weather.blow)
        world.start("supervisor", self.weather.look_after)
        try:
            self._until(lambda: world.now_s > STORM_S or self._done(), STORM_S + 1)
            self.weather.calm()
            if not self._until(lambda: self._done() and self.hub.is_up, CALM_S):
                late = [actor.name for actor in self.actors if not actor.is_done]
                self.wrong.append(f"{CALM_S:.0f} s after the faults had stopped {late or 'the hub'} had not caught up")
            else:
                self._judge()
        except Stuck as error:
            self.wrong.append(str(error))
        self.wrong += [f"logged: {found}" for found in self._logged.found]
        return self._outcome()

    def _done(self) -> bool:
        return all(actor.is_done for actor in self.actors)

    def _until(self, condition: object, most_s: float) -> bool:
        assert callable(condition)
        end_s = self.world.now_s + most_s
        self.world.scheduler.run(lambda: condition() or self.world.now_s > end_s or self._crashed())
        return bool(condition()) and not self.wrong

    def _crashed(self) -> bool:
        machines = [self.hub.machine, *(actor.machine for actor in self.actors)]
        errors = [(machine.name, error) for machine in machines if machine is not None for error in machine.errors]
        if errors and not self.wrong:
            self.wrong += [f"{name}: {type(error).__name__}: {error}" for name, error in errors]
        return bool(self.wrong)

    def _judge(self) -> None:
        verdict: list[str] = []
        ended: list[bool] = []

        async def look() -> None:
            hub = self.hub.hub
            assert hub is not None
            verdict.extend(await judge(hub, self.book))
            ended.append(True)

        async def look_at_caches() -> None:
            client = await IgniteClient.connect("127.0.0.1", self.hub.ports["ignite"])
            held: dict[tuple[str, str], bytes] = {}
            for cache, key, _ in (*self.book.registers, *self.book.counters):
                await client.request(1052, cache)
                held[cache, key] = await client.request(1000, encode_string(key), cache=cache)
            verdict.extend(judge_caches(self.book, held))
            ended.append(True)

        assert self.hub.hub is not None
        self.hub.hub._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(look()))
        if self.book.registers or self.book.counters:
            self.world.start("judge", look_at_caches)
        else:
            ended.append(True)
        self._until(lambda: len(ended) == 2, CALM_S)
        if len(ended) < 2:
            self.wrong.append("the judge could not read everything")
        self.wrong += verdict

    def _outcome(self) -> Outcome:
        world = self.world
        acked = sum(len(written.acked) for written in self.book.written)
        for found in self.wrong:
            world.tell("judge", found)
        world.tell("world", f"{acked} acknowledged, {self.hub.lives} lives")
        story = world.story
        parts = (*(actor.name for actor in self.actors), *(name for name, _ in self.weather.faults))
        counts = self.weather.counts
        return Outcome(
            world.seed, story.trace, self.wrong, world.now_s, world.scheduler.turns, counts, acked, parts, story.end
        )


def shrink(outcome: Outcome, told: Callable[[str], None]) -> tuple[Outcome, frozenset[str]]:
    """The same seed with as few actors and kinds of fault as still fail; what was left out."""
    without: frozenset[str] = frozenset()
    for part in outcome.parts:
        tried = run(outcome.seed, without=without | {part})
        if tried.wrong:
            outcome, without = tried, without | {part}
            told(f"fails without {part}, too")
    return outcome, without
