"""Transactions that wait for the writer, and which of them the next commit takes.

First come, first served, with one exception: nobody should wait long behind what is large. A large transaction has a
commit of its own, and then what is small goes first, if it touches no stream or table of those that it overtakes. So
the small ones wait for one large transaction at most, the large ones for one commit of small ones, and the order within
each stream and table stays. What is small also goes on while the large ones wait for room in memory, up to a limit.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from headrace.config.sections import Log as LogSettings
from headrace.errors import Busy, Closed
from headrace.log import ops
from headrace.log.pending import Pending

OPERATIONS_MAX: Final = 2_000
"""One commit takes about this many operations, and one that has more by itself is large: each takes the writer some
ten microseconds, however few bytes it has."""
OVERTAKEN_MAX: Final = 1000
"""No commit looks further."""
HELD_BACK_SHARE: Final = 4
"""This part of `log.tail_bytes_max` is for small transactions when there is no room for large ones."""
BULKY_SHARE: Final = 8
"""What is heavier than this part of `log.commit_bytes_max` shares commits with small ones, and yet does not hold them
back: it counts with the large ones, and waits with them when there is no room."""


class CommitQueue:
    """Any thread adds; only the writer takes."""

    def __init__(self, settings: LogSettings) -> None:
        self._settings = settings
        self._waiting: deque[Pending] = deque()
        self._own: deque[Pending] = deque()
        """The log's own transactions. They make room, and go first."""
        self._lock = threading.Lock()
        """Submitters and the writer change the sizes from different threads."""
        self._small_bytes = 0
        self._large_bytes = 0
        self._large_weight = 0
        self._large_went = False
        """The last commit was a large transaction."""
        self._passed_weight = 0
        """Of what went although there was no room for everybody."""
        self.is_held_back = False
        """The tails have no room for more: large transactions wait."""
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._own)

    @property
    def has_own(self) -> bool:
        """Whether there is something to commit that makes room."""
        return bool(self._own)

    @property
    def nbytes(self) -> int:
        """Of all that is not durable yet."""
        return self._small_bytes + self._large_bytes

    @property
    def is_congested(self) -> bool:
        """More waits than should. One large transaction is no reason to stop reading from everybody, and neither are
        some bulky ones. Those count by weight: many short keys are few bytes and much work."""
        bytes_max = self._settings.queue_bytes_max
        return self._small_bytes > bytes_max // 2 or self._large_weight > bytes_max

    def add(self, pending: Pending) -> None:
        """Raises `Busy` when too much waits already, and `Closed`."""
        waiting = self._large_bytes if self._is_bulky(pending) else self._small_bytes
        if waiting > 2 * self._settings.queue_bytes_max:
            raise Busy(
                f"{waiting} bytes wait for the disk already (log.queue_bytes_max is "
                f"{self._settings.queue_bytes_max}); slow down and try again"
            )
        with self._lock:
            if self.is_closed:  # looked at here: nobody takes from the queue of a closed log
                raise Closed("the log is closed")
            self._count(pending, 1)
            self._waiting.append(pending)

    def add_own(self, pending: Pending) -> None:
        self._own.append(pending)

    def settled(self, gathered: list[Pending]) -> None:
        """They are durable, or refused."""
        with self._lock:
            for pending in gathered:
                self._count(pending, -1)

    def close(self) -> list[Pending]:
        """Take no more. Returns what will never be committed."""
        with self._lock:
            self.is_closed = True
            left = [*self._waiting, *self._own]
            self._waiting.clear()
            self._own.clear()
        return left

    def gather(self) -> list[Pending]:
        """What the next commit takes: one large transaction, or small ones of about `commit_bytes_max`. Structural ones
        keep among themselves. Nothing when all that waits is held back."""
        if self._own:
            return [self._own.popleft() for _ in range(len(self._own))]
        if not self.is_held_back:
            self._passed_weight = 0
            if self._waiting and not self._large_went and self._is_large(self._waiting[0]):
                return self._take_large()
        gathered = self._gather_small()
        if gathered or self.is_held_back or not self._waiting:
            self._large_went = False
            return gathered
        return self._take_large()

    def gather_beside(self, touches: set[str]) -> list[Pending]:
        """Small ones that touch nothing of these, which a large transaction under way changes."""
        if self._own:
            return [self._own.popleft() for _ in range(len(self._own))]
        return self._gather_small(touches) if self._waiting else []

    def _take_large(self) -> list[Pending]:
        self._large_went = True
        return [self._waiting.popleft()]

    def _gather_small(self, beside: set[str] | None = None) -> list[Pending]:
        gathered: list[Pending] = []
        overtaken: list[Pending] = []
        touched: set[str] = set() if beside is None else set(beside)
        created: set[str] = set()
        weight = operations = 0
        while self._waiting and weight < self._weight_left() and len(overtaken) < OVERTAKEN_MAX:
            if operations >= OPERATIONS_MAX:
                break
            first = self._waiting[0].operations[0]
            if isinstance(first, ops.STRUCTURAL):
                if len(created) != len(gathered) or first.name in created:
                    break
            elif created:
                break
            pending = self._waiting.popleft()
            waits = self._is_bulky(pending) if self.is_held_back else self._is_large(pending)
            if waits or (touched and not touched.isdisjoint(pending.touches)):
                overtaken.append(pending)
                touched |= pending.touches
                continue
            if isinstance(first, ops.STRUCTURAL):
                created.add(first.name)
            gathered.append(pending)
            weight += pending.weight
            operations += len(pending.operations)
        self._waiting.extendleft(reversed(overtaken))
        if self.is_held_back:
            self._passed_weight += weight
        return gathered

    def _weight_left(self) -> int:
        """How much the next commit may take."""
        if not self.is_held_back:
            return self._settings.commit_bytes_max
        left = self._settings.tail_bytes_max // HELD_BACK_SHARE - self._passed_weight
        return min(left, self._settings.commit_bytes_max)

    def _is_large(self, pending: Pending) -> bool:
        return pending.weight > self._settings.commit_bytes_max or len(pending.operations) > OPERATIONS_MAX

    def _is_bulky(self, pending: Pending) -> bool:
        return self._is_large(pending) or pending.weight > self._settings.commit_bytes_max // BULKY_SHARE

    def _count(self, pending: Pending, sign: int) -> None:
        if self._is_bulky(pending):
            self._large_bytes += sign * pending.nbytes
            self._large_weight += sign * pending.weight
        else:
            self._small_bytes += sign * pending.nbytes
