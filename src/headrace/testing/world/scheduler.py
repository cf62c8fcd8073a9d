"""Time and turns of a simulated world: one strand runs at a time, and the seed decides which.

A *strand* is what a thread is in the real world. It runs until it waits: for time, for a lock, for something that
another strand does. Then the scheduler goes to the strand that is due next; of several that are due at the same moment
the seed chooses one. Time passes only there, so that an hour costs no more than what is done in it.

Rules of this file: nothing here reads a real clock, and no choice is made but by `random`.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import sys
from collections.abc import Callable
from typing import Any

import greenlet

STEP_S = 2e-6
"""The least that a turn takes: without it a strand that never waits would stop the time."""
STEP_S_MAX = 60e-6
TURNS_AT_ONCE = 16


class Stuck(Exception):
    """Everybody waits, and nobody will ever come."""


class Machine:
    """What dies as a whole: the strands of one process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.frozen_until_s = 0.0
        """As by SIGSTOP: until then none of its strands has a turn."""
        self.clock_ahead_s = 0.0
        """How far its clock is ahead of the world's."""
        self.errors: list[BaseException] = []
        """What nobody caught."""
        self.has_learned = True
        """Whether msgspec knows all types of the process: two threads that read one for the first time end it."""

    def __repr__(self) -> str:
        return f"<{self.name}{' (dead)' if self.is_dead else ''}>"


class Strand:
    """One thread of a machine."""

    def __init__(self, scheduler: Scheduler, machine: Machine, name: str, function: Callable[[], object]) -> None:
        self.machine = machine
        self.name = name
        self.turn = 0
        """Grows with each turn: what was meant for an earlier one has come too late."""
        self.is_parked = False
        self.was_woken = False
        self.has_ended = False
        self.on_end: list[Callable[[], None]] = []
        self._scheduler = scheduler
        self._function = function
        self._asyncio: tuple[Any, Any] = (None, (None, None))
        self.greenlet = greenlet.greenlet(self._run, scheduler.greenlet)

    def _run(self) -> None:
        try:
            self._function()
        except greenlet.GreenletExit:
            raise
        except BaseException as error:
            self.machine.errors.append(error)
        self.has_ended = True
        for done in self.on_end:
            done()

    def resume(self) -> None:
        """Run until it waits again. Asyncio and the interpreter keep things per thread; each strand has its own."""
        loop, hooks = self._asyncio
        asyncio._set_running_loop(loop)
        sys.set_asyncgen_hooks(*hooks)
        self.turn += 1
        self.is_parked = False
        try:
            self.greenlet.switch()
        finally:
            hooks = sys.get_asyncgen_hooks()
            self._asyncio = (asyncio._get_running_loop(), (hooks.firstiter, hooks.finalizer))
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(None, None)


class Scheduler:
    """Whose turn it is, and when."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.turns = 0
        self.current: Strand | None = None
        self.greenlet = greenlet.getcurrent()
        self._numbers = itertools.count()
        self._due: list[tuple[float, float, int, Strand | Callable[[], None], int]] = []
        self._kept: list[Strand] = []
        """All there ever were: one that is never resumed must not be collected, or its `finally` would run."""

    def number(self) -> int:
        """One that nobody had before."""
        return next(self._numbers)

    # -- for strands -----------------------------------------------------------------------------------------------

    def spawn(self, machine: Machine, name: str, function: Callable[[], object]) -> Strand:
        """Begin a strand soon."""
        if self.current is not None and self.current.machine is machine and not machine.has_learned:
            machine.errors.append(RuntimeError(f"thread {name} begins before the struct types are learned"))
        strand = Strand(self, machine, name, function)
        self._kept.append(strand)
        self._resume_at(self.now_s + self.step_s(), strand)
        return strand

    def park(self, timeout_s: float | None = None) -> bool:
        """Wait until somebody calls `wake`, or until the time is over; whether it was `wake`."""
        strand = self.current
        if strand is None:
            raise Stuck("something that belongs to no strand wants to wait")
        strand.is_parked, strand.was_woken = True, False
        if timeout_s is not None:
            self._resume_at(self.now_s + max(timeout_s, 0.0) + self.step_s(), strand)
        self.greenlet.switch()
        return strand.was_woken

    def wake(self, strand: Strand) -> None:
        """Let a strand that waits go on."""
        if strand.is_parked and not strand.was_woken:
            strand.was_woken = True
            self._resume_at(self.now_s + self.step_s(), strand)

    def pause(self, seconds: float = 0.0) -> None:
        """Let others have their turn; nothing where there is no strand to wait."""
        if self.current is not None:
            self.park(seconds)

    def step_s(self) -> float:
        """A little while."""
        return self.random.uniform(STEP_S, STEP_S_MAX)

    # -- for the world ---------------------------------------------------------------------------------------------

    def call_at(self, when_s: float, function: Callable[[], None]) -> None:
        """Call something that waits for nothing, in no strand."""
        heapq.heappush(self._due, (max(when_s, self.now_s), self.random.random(), next(self._numbers), function, 0))

    def call_later(self, delay_s: float, function: Callable[[], None]) -> None:
        self.call_at(self.now_s + delay_s, function)

    def run(self, until: Callable[[], bool]) -> None:
        """Until something is true, as seen now and then. Raises `Stuck` when it never will be."""
        while not until():
            for _ in range(TURNS_AT_ONCE):
                if not self._due:
                    if until():
                        return
                    raise Stuck(f"at {self.now_s:.3f} s nothing is left to happen")
                self._turn()

    def _turn(self) -> None:
        when_s, _, _, what, turn = heapq.heappop(self._due)
        if isinstance(what, Strand) and (what.turn != turn or what.machine.is_dead or what.has_ended):
            return
        self.now_s = max(self.now_s, when_s)
        if isinstance(what, Strand) and what.machine.frozen_until_s > self.now_s:
            self._resume_at(what.machine.frozen_until_s + self.step_s(), what)
            return
        self.turns += 1
        if not isinstance(what, Strand):
            what()
            return
        self.current = what
        try:
            what.resume()
        finally:
            self.current = None

    def _resume_at(self, when_s: float, strand: Strand) -> None:
        heapq.heappush(self._due, (when_s, self.random.random(), next(self._numbers), strand, strand.turn))
