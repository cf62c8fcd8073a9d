"""A disk that takes its time, lets others have their turn at every call, and fails when the seed says so."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from typing import NamedTuple

from headrace.testing.disk import FaultyDisk, MemoryDisk
from headrace.testing.world.scheduler import Scheduler

SECONDS = {"sync": 0.0004, "sync_dir": 0.0003}
"""What a call takes, about; all others next to nothing."""


class Failing(NamedTuple):
    """Which calls fail, and how often."""

    share: float
    kinds: tuple[str, ...] = ("sync",)
    folder: str = ""
    """Only below this one."""

    def is_meant(self, kind: str, path: str) -> bool:
        return kind in self.kinds and path.startswith(self.folder)


class WorldDisk(FaultyDisk):
    """Of one life of a process."""

    def __init__(self, disk: MemoryDisk, scheduler: Scheduler, short_writes: int | None = None, life: int = 0) -> None:
        super().__init__(disk, short_writes)
        self._life = life
        self._scheduler = scheduler
        self.failing: Failing | None = None
        self._strike: tuple[int, Callable[[], None]] | None = None

    def strike(self, calls: int, blow: Callable[[], None]) -> None:
        """End the process so many calls from now, in the middle of one: before it has its effect, or before anybody
        hears of it."""
        self._strike = calls, blow

    def handover(self) -> tuple[str, int] | None:
        """For the process that seals: whose disk it is. None on Kafka, where it would be taken for a real directory."""
        return ("", self._life) if self._life else None

    def spare(self) -> None:
        """No faults any more."""
        self.failing = self.room_bytes = self._strike = None

    @contextlib.contextmanager
    def call(self, kind: str, path: str) -> Iterator[None]:
        scheduler = self._scheduler
        self._wait(kind)
        failing = self.failing
        if failing is not None and failing.is_meant(kind, path) and scheduler.random.random() < failing.share:
            raise OSError(errno.EIO, "injected", path)
        self._count_down()
        with super().call(kind, path):
            yield
        self._count_down()
        self._wait(kind)
        self.calls.clear()

    def _count_down(self) -> None:
        if self._strike is not None:
            calls, blow = self._strike
            self._strike = calls - 1, blow
            if calls <= 0:
                self._strike = None
                blow()
                self._scheduler.park()  # for ever: there is no such process any more

    def _wait(self, kind: str) -> None:
        self._scheduler.pause(SECONDS.get(kind, 0.0) * self._scheduler.random.uniform(0.2, 3.0))
