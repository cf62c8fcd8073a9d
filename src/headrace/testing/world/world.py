"""A world: machines, their network and disks, and a seed from which everything follows."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from headrace.testing.world.loop import WorldLoop
from headrace.testing.world.network import Network
from headrace.testing.world.scheduler import Machine, Scheduler
from headrace.testing.world.story import Story
from headrace.testing.world.substitutes import substituted
from headrace.testing.world.threads import Threads


class Violated(AssertionError):
    """The hub broke a promise."""


class World:
    """Open one with `with opened(seed) as world`."""

    def __init__(self, seed: int, folder: Path, told: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.folder = folder
        """For what real code keeps in real files: users, staged rows. It is no part of what is simulated."""
        self.scheduler = Scheduler(seed)
        self.random = self.scheduler.random
        self.network = Network(self.scheduler)
        self.outside = Machine("world")
        self.threads = Threads(self.scheduler, self.outside)
        self.story = Story(told)
        self._restoring = ExitStack()

    @property
    def now_s(self) -> float:
        return self.scheduler.now_s

    def tell(self, who: str, what: str) -> None:
        self.story.tell(self.now_s, who, what)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Something of real code, for as long as the world is open."""
        self._restoring.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def close(self) -> None:
        self._restoring.close()

    def machine(self, name: str) -> tuple[Machine, WorldLoop]:
        """A new process with an event loop."""
        machine = Machine(name)
        return machine, WorldLoop(self.scheduler, machine, self.network, self.threads)

    def start(self, name: str, main: Callable[[], Any]) -> Machine:
        """A process that runs a coroutine function."""
        machine, loop = self.machine(name)
        loop.start(main)
        return machine

    def kill(self, machine: Machine, *, silently: bool = False) -> None:
        """`kill -9`; silently when the power went."""
        machine.is_dead = True
        self.network.machine_died(machine, silently=silently)


@contextmanager
def opened(seed: int, told: Callable[[str], None] | None = None) -> Iterator[World]:
    """A world for as long as the block lasts. One at a time in a process."""
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="headrace-world-") as folder:
        world = World(seed, Path(folder), told)
        with substituted(world.scheduler, world.network, world.threads):
            try:
                yield world
            finally:
                world.close()
