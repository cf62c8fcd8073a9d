"""Background work on a shared store: what was put there counts when the journal says so.

A segment or snapshot is put into the store first, then the log's own transaction names it, and only when that is
durable does the tail let go of the records, and others of the blobs that it takes the place of.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import LogFailed
from headrace.log import ops, snapshot
from headrace.log.orphans import Orphans
from headrace.log.partition import Partition
from headrace.log.pending import Pending
from headrace.log.segment import SegmentRef

if TYPE_CHECKING:
    from headrace.log.log import Log

logger = logging.getLogger(__name__)

GARBAGE_AT_ONCE = 256
"""Blobs that one step removes: sealing must not wait for all of them."""

Tell = Callable[[Partition, SegmentRef, int], None]


class _Storing(NamedTuple):
    partition: Partition
    ref: SegmentRef
    began_us: int
    pending: Pending


class SharedStore:
    """What is in the store and not yet in the journal. Used by maintenance."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._segments: dict[tuple[int, int], _Storing] = {}
        """By stream id and partition: one at a time."""
        self._snapshot: tuple[Pending, str] | None = None
        self._removed: list[str] = []
        self.orphans = Orphans(log)

    @property
    def is_waiting(self) -> bool:
        return bool(self._segments or self._snapshot)

    def is_storing(self, partition: Partition) -> bool:
        return (partition.stream_id, partition.number) in self._segments

    def add_segment(self, partition: Partition, ref: SegmentRef, began_us: int) -> None:
        """The store has it: tell the journal."""
        pending = self._log.submit_own(
            ops.StoreSegment(partition.stream_id, partition.number, ref.first, ref.next, ref.bytes, ref.path)
        )
        self._segments[partition.stream_id, partition.number] = _Storing(partition, ref, began_us, pending)

    def take_snapshot(self) -> bool:
        """Of the state as it is. False when one is on its way."""
        log = self._log
        if self._snapshot is not None:
            return False
        self.orphans.mark()
        with log.lock:
            sequence = log.state.sequence
            data = snapshot.encode(log.state, bookmark=log.journal.bookmark(log.state.needed_sequence))
        name = log.store.put(snapshot.shared_name(sequence, log.store.tag), data)
        removed, self._removed = self._removed, []
        self._snapshot = log.submit_own(ops.StoreSnapshot(sequence, name, removed)), name
        return True

    def remove_garbage(self) -> bool:
        """Some of it. What was removed is told with the next snapshot: who follows the journal forgets it then."""
        log = self._log
        with log.lock:
            garbage = log.state.garbage[:GARBAGE_AT_ONCE]
        for name in garbage:
            log.opened.forget(name)
            log.store.delete(name)
            with log.lock:  # one by one: what could not be removed is not forgotten
                log.state.garbage.remove(name)
            self._removed.append(name)
        return bool(garbage)

    def settle(self, tell: Tell) -> None:
        """Look which of them the journal has by now."""
        for key, storing in list(self._segments.items()):
            if storing.pending.done:
                del self._segments[key]
                if storing.pending.error is None:
                    tell(storing.partition, storing.ref, storing.began_us)
                else:
                    self._give_up(storing.pending, storing.ref.path)
        if self._snapshot is not None and self._snapshot[0].done:
            pending, name = self._snapshot
            self._snapshot = None
            if pending.error is not None:
                self._give_up(pending, name)

    def _give_up(self, pending: Pending, name: str) -> None:
        """It was refused, and is nobody's. Where the log has failed nobody knows whether it counts, and it stays."""
        if not isinstance(pending.error, LogFailed):
            self._log.state.garbage.append(name)
