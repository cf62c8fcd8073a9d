"""Commits on their way: the next one is made before the last is durable, where the journal can have several.

Only the writer uses it. Commits land in their order, and only then is anything applied or reported. A commit sees what
those before it change, durable or not (`Commit.set_off`). When one does not become durable, none behind it counts.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from headrace.log import ops
from headrace.log.commit import Commit
from headrace.log.frame import frames_bytes
from headrace.log.pending import Pending

if TYPE_CHECKING:
    from headrace.log.log import Log

logger = logging.getLogger(__name__)

AHEAD_BYTES_MIN = 64 * 1024
AHEAD_BYTES_MAX = 1024 * 1024
"""While commits are on their way, the next sets off when as much waits as they hold, within these bounds. So commits
grow under load until two share what clients send ahead: each costs brokers about the same, whatever is in it."""
FRAMES_BYTES = 1024 * 1024
"""More than what frames take beside their records."""
LAND_S = 0.002
"""So long the writer looks at nothing but the commit that is on its way."""
ALONE = (*ops.STRUCTURAL, ops.ClearTable, ops.AcceptDamage)
"""Operations that find all before them settled."""


class Flight(NamedTuple):
    commit: Commit
    gathered: list[Pending]
    nbytes: int


class Pipeline:
    """The commits of a log that are not durable yet, oldest first."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.flights: deque[Flight] = deque()

    def step(self) -> bool:
        """Send what waits on its way, or wait a moment for what is. False when nothing may go and nothing is."""
        if self._may_begin():
            return self._begin()
        if self.flights:
            self._land()
            return True
        return False

    def drain(self) -> None:
        """Wait for all."""
        while self.flights:
            self._land()

    def _may_begin(self) -> bool:
        """Whether a commit should set off now. With others on their way it is worth it only when much waits: little
        gathers meanwhile, which is cheaper for all."""
        log = self._log
        if not self.flights:
            return log.has_work
        if len(self.flights) >= log.journal.commits_max:
            return False
        flying = sum(flight.nbytes for flight in self.flights)
        is_much = log.queue_bytes - flying >= min(max(flying, AHEAD_BYTES_MIN), AHEAD_BYTES_MAX)
        has_room = log.state.tail_bytes <= log.settings.tail_bytes_max
        return log.queue.has_own or (is_much and has_room and log.has_work)

    def _begin(self) -> bool:
        log = self._log
        gathered = log.queue.gather()
        if not gathered:
            return False
        nbytes = sum(pending.nbytes for pending in gathered)
        wanted = log.settings.disk_reserve_bytes + nbytes + FRAMES_BYTES
        is_alone = any(isinstance(op, ALONE) for pending in gathered for op in pending.operations)
        if is_alone or log.failed is not None or log.free_space.free_bytes(wanted) < wanted:
            self.drain()
            log.commit_now(gathered)
            return True
        commit = log.checked(gathered)
        self.flights.append(Flight(commit, gathered, nbytes))
        commit.set_off()
        if commit.frames:
            try:
                log.journal.begin(commit.frames)
                log.free_space.use(frames_bytes(commit.frames))
            except Exception as error:
                self._crash(error)
        return True

    def _land(self) -> None:
        """When the oldest is durable, apply and report it."""
        log = self._log
        commit, gathered, _ = self.flights[0]
        try:
            if commit.frames and not log.journal.land(LAND_S):
                return
        except Exception as error:
            self._crash(error)
            return
        self.flights.popleft()
        log.settled(commit, gathered)

    def _crash(self, error: Exception) -> None:
        """Nothing that is on its way counts for sure."""
        if not isinstance(error, OSError):
            logger.error("a commit failed unexpectedly; please report this", exc_info=error)
        failed = self._log.end(error)
        while self.flights:
            commit, gathered, _ = self.flights.popleft()
            commit.abandon()
            self._log.report(gathered, set(), failed)
