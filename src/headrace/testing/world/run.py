"""One seed from beginning to end: who lives in its world, what befalls them, and the verdict."""

from __future__ import annotations

import functools
import gc
import importlib
import logging
import sys
from collections.abc import Callable
from typing import NamedTuple

from headrace.config import Config
from headrace.hub import Hub
from headrace.serving.runtime import preload
from headrace.testing.world.aftermath import damage, indexes_are_new, through_a_backup
from headrace.testing.world.book import Book
from headrace.testing.world.hub import KAFKA_S, TOLD_S, HubProcess
from headrace.testing.world.judge import Judge, judge_caches
from headrace.testing.world.logged import OF_DAMAGE, Logged
from headrace.testing.world.population import population
from headrace.testing.world.scheduler import Stuck
from headrace.testing.world.weather import Weather
from headrace.testing.world.world import World, opened

STORMS_S = (10.0, 20.0, 50.0)
"""How long faults last."""
CALM_S = 900.0
"""So long everything may take to catch up when the faults have stopped."""
STOP_S = 60.0
"""So long a clean stop may take."""


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


def run(
    seed: int,
    *,
    without: frozenset[str] = frozenset(),
    told: Callable[[str], None] | None = None,
    clears_away: bool = True,
) -> Outcome:
    """Everything that a seed says, without some actors or faults; `told` gets each line of the story. The same seed
    gives the same outcome, to the byte. A process that ends after it need not clear away what was in the world."""
    _import_parts()
    logged = Logged()
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # vandals make it talk
    root = logging.getLogger("headrace")
    level, spread = root.level, root.propagate
    root.addHandler(logged)
    root.setLevel(logging.WARNING)
    root.propagate = False
    gc.freeze()  # what was there before need not be looked at when the world is cleared away
    complaints = sys.unraisablehook
    sys.unraisablehook = lambda _: None  # processes that were killed clean nothing up: that is the point
    try:
        with opened(seed, told) as world:
            return _Life(world, logged, without).run()
    finally:
        if clears_away:
            gc.collect()
            gc.unfreeze()
        sys.unraisablehook = complaints
        root.removeHandler(logged)
        root.setLevel(level)
        root.propagate = spread


@functools.cache
def _import_parts() -> None:
    """What is imported throws dice: never inside of a world, where it would be done once and not again."""
    importlib.import_module("multiprocessing.process")
    preload(Config())


class _Life:
    def __init__(self, world: World, logged: Logged, without: frozenset[str]) -> None:
        self.world = world
        self.book = Book(world.tell)
        self.hub = HubProcess(world, on_kafka=world.random.random() < 0.3)
        self.actors = [actor for actor in population(world, self.hub, self.book) if actor.name not in without]
        self.storm_s = world.random.choice(STORMS_S)
        self.weather = Weather(self.hub, self.actors)
        self.weather.faults = [fault for fault in self.weather.faults if fault[0] not in without]
        if "fate" in without:
            self.hub.strikes.clear()
        self.wrong: list[str] = []
        self.without = without
        self._logged = logged

    @property
    def parts(self) -> tuple[str, ...]:
        faults = (name for name, _ in self.weather.faults)
        return (*(actor.name for actor in self.actors), *faults, "fate", "backup", "damage")

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
            self._until(lambda: world.now_s > self.storm_s or self._done(), self.storm_s + 1)
            self.weather.calm()
            heard_s = world.now_s + (TOLD_S if self.hub.kafka is None else TOLD_S + KAFKA_S)
            is_well = self._until(lambda: world.now_s > heard_s and self._done() and self.hub.is_well, CALM_S)
            if not is_well and not self.wrong:
                late = [actor.name for actor in self.actors if not actor.is_done]
                self.wrong.append(f"{CALM_S:.0f} s after the faults had stopped {late or 'the hub'} had not caught up")
            if not self.wrong:
                self._judge()
            if not self.wrong:
                self._aftermath()
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
        if not self.wrong:
            self.wrong += [f"{name}: {type(error).__name__}: {error}" for name, error in errors]
            self.wrong += self.hub.wrong
        return bool(self.wrong)

    def _judge(self, *, is_damaged: bool = False) -> None:
        verdict: list[str] = []
        ended: list[bool] = []

        port, served = self.hub.ports["ignite"], self.hub.hub
        assert served is not None

        async def look(hub: Hub) -> None:
            verdict.extend(await Judge(hub, self.book, is_damaged=is_damaged).verdict())
            ended.append(True)

        async def look_at_caches() -> None:
            verdict.extend(await judge_caches(self.book, port, served, is_damaged=is_damaged))
            ended.append(True)

        self.hub.ask(look)
        self.world.start("judge", look_at_caches)
        if not self._until(lambda: len(ended) == 2, CALM_S):
            self.wrong.append("the judge could not read everything")
        self.wrong += verdict

    # -- when all is quiet -----------------------------------------------------------------------------------------

    def _aftermath(self) -> None:
        """The hub ends, and starts again; its disk may have been damaged meanwhile."""
        world, chance, hub = self.world, self.world.random, self.hub
        self.weather.is_over = True
        for actor in self.actors:
            actor.kill()
        ends_cleanly = chance.random() < 0.7
        if ends_cleanly:
            hub.stop()
            if not self._until(lambda: bool(hub.exit), STOP_S) or hub.exit != "stopped":
                self.wrong.append(f"told to stop, the hub has not within {STOP_S:.0f} s: {hub.exit or 'it runs'}")
                return
        (hub.kill if chance.random() < 0.5 else hub.cut_power)()
        harm = "nothing"
        if ends_cleanly and hub.kafka is None and chance.random() < 0.25 and "backup" not in self.without:
            world.tell("world", "backed up and restored")
            hub.disk = through_a_backup(hub.disk, world.folder, hub.loaded.config.log)
        if ends_cleanly and hub.kafka is None and chance.random() < 0.8 and "damage" not in self.without:
            harm = damage(hub.disk, chance)
            self._logged.expected += OF_DAMAGE
        world.tell("world", f"{'stopped' if ends_cleanly else 'killed'}; {harm}")
        hub.start()
        self._until(lambda: hub.is_up or bool(hub.exit), CALM_S)
        if hub.is_up:
            self._judge(is_damaged=harm != "nothing")
            if not self.wrong:
                self._append()
        elif harm == "nothing":
            self.wrong.append(f"the hub does not start again: {hub.exit or 'it takes too long'}")

    def _append(self) -> None:
        verdict: list[list[str]] = []

        async def append(hub: Hub) -> None:
            verdict.append(await indexes_are_new(hub, self.book))

        self.hub.ask(append)
        if not self._until(lambda: bool(verdict), CALM_S):
            self.wrong.append("nothing can be appended any more")
        self.wrong += [found for each in verdict for found in each]

    def _outcome(self) -> Outcome:
        world = self.world
        acked = sum(len(written.acked) for written in self.book.written)
        for found in self.wrong:
            world.tell("judge", found)
        world.tell("world", f"{acked} acknowledged, {self.hub.lives} lives")
        story = world.story
        counts, turns = self.weather.counts, world.scheduler.turns
        return Outcome(world.seed, story.trace, self.wrong, world.now_s, turns, counts, acked, self.parts, story.end)


def parts_of(seed: int) -> tuple[str, ...]:
    """The actors and kinds of fault of a seed, without running it."""
    _import_parts()
    with opened(seed) as world:
        return _Life(world, Logged(), frozenset()).parts


def shrink(outcome: Outcome, told: Callable[[str], None]) -> tuple[Outcome, frozenset[str]]:
    """The same seed with as few actors and kinds of fault as still fail; what was left out."""
    without: frozenset[str] = frozenset()
    size = len(outcome.parts) // 2
    while size:  # many at once first: most have nothing to do with it
        left = [part for part in outcome.parts if part not in without]
        for chunk in (frozenset(left[first : first + size]) for first in range(0, len(left), size)):
            tried = run(outcome.seed, without=without | chunk)
            if tried.wrong:
                outcome, without = tried, without | chunk
                told(f"fails without {', '.join(sorted(chunk))}, too")
        size //= 2
    return outcome, without
