"""Orphans: blobs that a hub put into a shared store, and that no event ever named, since the hub died before.

They are found by looking at what is in the store, once in the life of an owner, and are garbage from then on. Three
things make that safe:

1. What this hub has put there itself is left alone: its names have its tag.
2. All others put something only after their claim. A commit of this hub that was sent after the look, and counts,
   proves that nobody had claimed the log by then: whatever was seen was put by owners before this one.
3. Nothing of theirs counts any more, but for what this hub has read before its own claim counted. So what its state
   does not name will be named by nobody.

Where the store has an order (a topic), a mark says below which place nothing is left to be found. It is kept in
snapshots, so that the next owner looks only at what came since.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.log import checkpoint, segment, snapshot
from headrace.log.stamp import split
from headrace.log.state import State

if TYPE_CHECKING:
    from headrace.log.log import Log

logger = logging.getLogger(__name__)

AFTER_US = 60_000_000
"""So long after the log was opened: an owner before this one may have something on its way still."""
AT_ONCE_S = 0.1
"""A step looks for so long, about: sealing must not wait."""
FOLDERS = tuple(f"{folder}/" for folder in (segment.DIRECTORY, snapshot.DIRECTORY, checkpoint.DIRECTORY))


def named(state: State) -> set[str]:
    """The bare names of all blobs that count, or are to be removed."""
    names = {ref.path for partition in state.partitions() for ref in partition.segments}
    names.update(ref.name for ref in state.snapshots)
    names.update(state.checkpoint_names.values(), state.garbage)
    return {split(name)[0] for name in names}


class Orphans:
    """One look, in small steps. Used by maintenance."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._due_us = log.clock.now_us() + AFTER_US
        self._looking: Iterator[str | None] | None = None
        self._seen: list[str] = []
        self._sequence: int | None = None
        """Of the next commit, when the look was over."""
        self._is_over = not log.store.is_shared
        self.found = 0

    def step(self, now_us: int) -> bool:
        """Whether there is more to do at once."""
        if self._is_over or now_us < self._due_us:
            return False
        if self._sequence is None:
            return self._look(now_us)
        if self._log.state.sequence > self._sequence:
            self._give_to_garbage()
        return False

    def _look(self, now_us: int) -> bool:
        if self._looking is None:
            self._seen = []
            self._looking = self._log.store.since(self._log.state.store_mark)
        try:
            deadline = time.monotonic() + AT_ONCE_S
            for name in self._looking:
                if name is not None:
                    self._seen.append(name)
                if time.monotonic() > deadline:
                    return True
        except OSError:
            self._looking, self._due_us = None, now_us + AFTER_US
            raise
        self._sequence = self._log.journal.next_sequence
        return False

    def _give_to_garbage(self) -> None:
        log = self._log
        with log.lock:
            known = named(log.state)
            orphans = [name for name in self._seen if self._is_orphan(split(name)[0], known)]
            log.state.garbage += orphans
        self.found, self._is_over = len(orphans), True
        self._seen, self._looking = [], None
        if orphans:
            logger.warning("removing %d blobs from the store that nothing refers to: %s", len(orphans), orphans[:10])

    def _is_orphan(self, name: str, known: set[str]) -> bool:
        return name.startswith(FOLDERS) and name not in known and self._log.store.tag not in name

    def mark(self) -> int:
        """For a snapshot: where the next owner has to begin. It is that of the owner before, until this one is done."""
        state = self._log.state
        if self._is_over and self._log.store.is_shared:
            state.store_mark = self._log.store.mark(named(state))
        return state.store_mark
