"""What `threading` has, for strands. Real code uses it unchanged while a world is open (`substitutes.py`).

Before a lock is taken and after an event is set others may have their turn: where real threads could be interrupted
between two steps, the seed interrupts them.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from headrace.testing.world.scheduler import Machine, Scheduler, Strand

INTERRUPTED = 0.1
"""How often a strand loses its turn where it could."""


class Threads:
    """The classes of one world, under their names in `threading`."""

    def __init__(self, scheduler: Scheduler, outside: Machine) -> None:
        self._scheduler = scheduler
        self._outside = outside
        self._numbers = itertools.count(1)

    def machine(self) -> Machine:
        """On which the present strand runs."""
        strand = self._scheduler.current
        return self._outside if strand is None else strand.machine

    def maybe_interrupt(self) -> None:
        scheduler = self._scheduler
        if scheduler.current is not None and scheduler.random.random() < INTERRUPTED:
            scheduler.pause()

    def Thread(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> WorldThread:
        named = name or f"thread-{next(self._numbers)}"
        return WorldThread(
            self._scheduler, self.machine(), named, lambda: target(*args, **(kwargs or {})) if target else None
        )

    def Lock(self) -> WorldLock:
        return WorldLock(self)

    def RLock(self) -> WorldRLock:
        return WorldRLock(self)

    def Event(self) -> WorldEvent:
        return WorldEvent(self)

    def Condition(self, lock: WorldLock | None = None) -> WorldCondition:
        return WorldCondition(self, lock or self.RLock())

    # -- for the classes -------------------------------------------------------------------------------------------

    @property
    def strand(self) -> Strand | None:
        return self._scheduler.current

    def wait_in(self, waiting: deque[Strand], timeout_s: float | None) -> bool:
        """Until woken by somebody who took the strand out of `waiting`, or the time is over."""
        strand = self._scheduler.current
        if strand is not None:
            waiting.append(strand)
        woken = self._scheduler.park(timeout_s)
        if not woken and strand is not None and strand in waiting:
            waiting.remove(strand)
        return woken

    def wake_from(self, waiting: deque[Strand], count: int | None = None) -> None:
        """Those that wait longest, or all; who has died waits for nothing."""
        while waiting and count != 0:
            strand = waiting.popleft()
            if not strand.machine.is_dead:
                self._scheduler.wake(strand)
                count = None if count is None else count - 1


class WorldThread:
    """A strand with the methods of a thread."""

    def __init__(self, scheduler: Scheduler, machine: Machine, name: str, function: Callable[[], object]) -> None:
        self.name = name
        self.daemon = True
        self._scheduler = scheduler
        self._machine = machine
        self._function = function
        self._strand: Strand | None = None

    def start(self) -> None:
        self._strand = self._scheduler.spawn(self._machine, self.name, self._function)

    def is_alive(self) -> bool:
        return self._strand is not None and not self._strand.has_ended

    def join(self, timeout: float | None = None) -> None:
        strand, me = self._strand, self._scheduler.current
        if strand is None or strand.has_ended or me is None:
            return
        strand.on_end.append(lambda: self._scheduler.wake(me))
        self._scheduler.park(timeout)


class WorldLock:
    """Belongs to one strand at a time."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._is_held = False
        self._waiting: deque[Strand] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._threads.maybe_interrupt()
        while self._is_held:
            if not blocking or (
                not self._threads.wait_in(self._waiting, None if timeout < 0 else timeout) and timeout >= 0
            ):
                return False
        self._is_held = True
        return True

    def release(self) -> None:
        self._is_held = False
        self._threads.wake_from(self._waiting, 1)

    def locked(self) -> bool:
        return self._is_held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class WorldRLock(WorldLock):
    """The one that holds it may take it again."""

    def __init__(self, threads: Threads) -> None:
        super().__init__(threads)
        self._owner: Strand | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._depth and self._owner is self._threads.strand:
            self._depth += 1
            return True
        if not super().acquire(blocking, timeout):
            return False
        self._owner, self._depth = self._threads.strand, 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            super().release()

    @contextlib.contextmanager
    def let_go(self) -> Iterator[None]:
        """Altogether, for a while."""
        depth, self._depth = self._depth, 1
        self.release()
        yield
        self.acquire()
        self._depth = depth


class WorldEvent:
    """Happens once, and has happened until it is cleared."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._is_set = False
        self._waiting: deque[Strand] = deque()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._threads.wake_from(self._waiting)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            self._threads.wait_in(self._waiting, timeout)
        return self._is_set


class WorldCondition:
    """Waits without its lock."""

    def __init__(self, threads: Threads, lock: WorldLock) -> None:
        self._threads = threads
        self._lock = lock
        self._waiting: deque[Strand] = deque()
        self.acquire, self.release = lock.acquire, lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        if isinstance(self._lock, WorldRLock):
            with self._lock.let_go():
                return self._threads.wait_in(self._waiting, timeout)
        self._lock.release()
        woken = self._threads.wait_in(self._waiting, timeout)
        self._lock.acquire()
        return woken

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        scheduler = self._threads._scheduler
        end_s = None if timeout is None else scheduler.now_s + timeout
        while not (met := predicate()):
            left_s = None if end_s is None else end_s - scheduler.now_s
            if left_s is not None and left_s <= 0:
                break
            self.wait(left_s)
        return met

    def notify(self, n: int = 1) -> None:
        self._threads.wake_from(self._waiting, n)

    def notify_all(self) -> None:
        self._threads.wake_from(self._waiting)
