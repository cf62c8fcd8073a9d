"""Background work: sealing, snapshots, retention, merging, compaction and removal. One small step at a time.

Nothing here is needed for durability: all of it can be interrupted anywhere and is done again. A disk that fails is
something else: it ends the log. A step may use the disk at length without the log's lock; it takes the lock only to
publish what it did.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.log import ops, retention, segment, snapshot
from headrace.log.clock import has_passed
from headrace.log.compaction import Compaction
from headrace.log.partition import Partition
from headrace.log.sealer import Sealing
from headrace.log.segment import SegmentDamaged, SegmentRef, write_segment
from headrace.log.shared import SharedStore
from headrace.log.state import State, Stream
from headrace.log.tail import TailEntry

if TYPE_CHECKING:
    from headrace.log.log import Log

logger = logging.getLogger(__name__)

LEAVE_BYTES = 16 * 1024 * 1024
"""A log on a shared store that closes leaves a snapshot when it has written so much."""
SEALER_IDLE_S = 60.0
"""The process that seals large segments ends after so long without one."""
SEALED_AT_ONCE = 256
"""Small tails that one step seals to free a journal file."""
FREED_AT_ONCE = 2_000
FREE_PAUSE_S = 0.0005
"""What a table or a tail held is freed so many entries at a time, with so long a pause: freeing a million at once would
hold up all other threads of the process."""
NEVER_US = -(1 << 62)
REST_US = 10_000_000
"""So long at least is between two snapshots that are taken only because nothing happens."""
REST_ENTRIES_MAX = 10_000
"""Those are taken of states with at most so many streams, cursors and producers: a larger one would keep the first
request after the rest waiting."""


class Maintenance:
    """The steps, most urgent first."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._turned_us = NEVER_US
        self._reuses_files = True
        self._rested_us = 0
        self._keeps_garbage = False
        self.shared = SharedStore(log)
        self._compaction = Compaction(log, self._is_sealed)
        self.sealing = Sealing(log.store, log.settings.seal_apart_bytes, SEALER_IDLE_S)
        self.segment_bytes = self._count_segment_bytes()
        """Counted at each look, and not by whoever asks: there may be very many streams."""
        self.sealed_segments = 0
        self.merged_segments = 0
        self._turn = threading.Lock()
        self.error: str | None = None
        """Why the last step failed: disk full, most likely. Tried again at the next interval."""

    @property
    def is_compacting(self) -> bool:
        """Whether the next step waits only for a commit."""
        return self._compaction.is_under_way or self.shared.is_waiting

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """No step is under way, and none begins: files stay, except that the writer adds to the journal."""
        with self._turn:
            yield

    @contextmanager
    def without_reuse(self) -> Iterator[None]:
        """Files that are not needed any more go, and are not written over: somebody copies them by a second name."""
        self._reuses_files = False
        try:
            yield
        finally:
            self._reuses_files = True

    @contextmanager
    def without_removal(self) -> Iterator[None]:
        """Nothing is removed from the store: somebody copies it."""
        self._keeps_garbage = True
        try:
            yield
        finally:
            self._keeps_garbage = False

    def leave(self) -> None:
        """After the last step, and before the last commit: spare the next owner of a shared store some reading."""
        try:
            self.shared.settle(self._tell)
            if self._log.journal.position.size > LEAVE_BYTES:
                self.shared.take_snapshot()
        except (OSError, HeadraceError) as error:
            logger.warning("could not write a last snapshot; the next owner has to read more of the journal: %s", error)

    def _count_segment_bytes(self) -> int:
        return sum([partition.sealed_bytes for partition in self._log.state.partitions() if partition.segments])

    def close(self) -> None:
        """After the last step."""
        self.sealing.close()

    def step(self) -> bool:
        """One piece of work; False when nothing is due, or when nothing could be made to count any more."""
        if self._log.failed is not None and self._log.store.is_shared:
            return False
        try:
            with self._turn, self._log.guard("writing files in the background"):
                worked = self._step()
            self.error = None
        except (OSError, HeadraceError) as error:
            if str(error) != self.error and self._log.failed is None:
                logger.error("background work on the log failed and will be tried again: %s", error)
            self.error = str(error)
            return False
        except Exception as error:  # no thread, no sealing: appends would wait for ever without a word
            if repr(error) != self.error:
                logger.exception("background work on the log failed unexpectedly; please report this")
            self.error = repr(error)
            return False
        return worked

    def _step(self) -> bool:
        now_us = self._log.clock.now_us()
        is_due = has_passed(int(self._log.settings.maintenance_interval_s * 1_000_000), self._turned_us, now_us)
        if is_due:
            self._turned_us = now_us
        # What makes room comes first: on a full disk all the rest may fail.
        self.shared.settle(self._tell)
        looked = self.shared.orphans.step(now_us)
        removed = self._remove_garbage()
        self._free_discarded()
        if is_due:
            self._retain(now_us)
        sealable = self._to_seal()
        for partition in sealable:
            self._seal(partition)
        # Not only when nothing is to be sealed: under steady load there always is, and files would pile up.
        tidied = self._take_snapshot() or self._cut_journal()
        if is_due:
            self.sealing.rest(now_us)
            self._merge_all()
        if is_due or self._compaction.is_under_way:
            self._compaction.step()
        if is_due or sealable or removed:
            self.segment_bytes = self._count_segment_bytes()
        return bool(sealable) or tidied or removed or looked

    # -- sealing ---------------------------------------------------------------------------------------------------

    def _to_seal(self) -> list[Partition]:
        """The tail that takes the most memory, if it is large; and those that keep the oldest journal file, or are old
        themselves. Both in one step, or a busy stream would keep the quiet ones waiting, and with them the journal."""
        settings = self._log.settings
        partitions = [
            partition
            for partition in self._log.state.partitions()
            if partition.tail and not self.shared.is_storing(partition) and not self._drop_trimmed(partition)
        ]
        if not partitions:
            return []
        chosen = []
        largest = max(partitions, key=lambda partition: partition.tail.bytes)
        if largest.tail.bytes >= settings.segment_bytes or self._log.state.tail_bytes >= settings.tail_bytes_max // 2:
            chosen.append(largest)
        needed_from = self._log.journal.sealed_to(settings.journal_bytes_max)
        before_us = self._log.clock.now_us() - int(settings.seal_age_s * 1_000_000)
        old = [
            partition
            for partition in partitions
            if partition not in chosen and _keeps(partition.tail.oldest, needed_from, before_us)
        ]
        old.sort(key=lambda partition: partition.tail.oldest.sequence)
        return chosen + old[:SEALED_AT_ONCE]

    def _drop_trimmed(self, partition: Partition) -> bool:
        """Whether nothing is left of a tail without the entries that are trimmed and only take memory."""
        if partition.tail.oldest.next > partition.first:
            return False
        entries = partition.tail.entries
        count = bisect_right(entries, partition.first, key=lambda entry: entry.next)
        if count:
            with self._log.lock:
                before = partition.tail.bytes
                partition.tail = partition.tail.without(count)
                self._log.state.tail_bytes -= before - partition.tail.bytes
                self._log.state.discarded.append(entries[:count])
        return not partition.tail

    def _seal(self, partition: Partition) -> None:
        """Write the oldest part of a tail, at most one segment's worth, as a segment."""
        entries = self._entries_to_seal(partition)
        kept = [entry for entry in entries if entry.next > partition.first]
        ref: SegmentRef | None = None
        now_us = self._log.clock.now_us()
        if kept:
            ref = self.sealing.seal(partition.stream, partition.stream_id, partition.number, kept, now_us)
            self.sealed_segments += 1
            if self._log.store.is_shared:
                self.shared.add_segment(partition, ref, now_us)
                return
        with self._log.lock:
            if partition.stream_id not in self._log.state.by_id:
                return  # deleted meanwhile; its files go with the stream
            if ref is not None:
                partition.segments = [*partition.segments, ref]
            before = partition.tail.bytes
            partition.tail = partition.tail.without(len(entries))
            self._log.state.tail_bytes -= before - partition.tail.bytes
        if ref is not None:
            self._tell(partition, ref, now_us)

    def _tell(self, partition: Partition, ref: SegmentRef, began_us: int) -> None:
        if self._log.on_sealed is not None:
            now_us = self._log.clock.now_us()
            self._log.on_sealed(ops.NewSegment(partition.stream_id, ref.first, ref.next, ref.bytes, began_us, now_us))

    def _entries_to_seal(self, partition: Partition) -> list[TailEntry]:
        """Whole entries without a gap: a segment holds every index between its first and its last."""
        entries = partition.tail.entries
        chosen: list[TailEntry] = []
        size = 0
        for entry in entries[: len(entries)]:
            if chosen and (chosen[-1].next != entry.base or size + len(entry.body) > self._log.settings.segment_bytes):
                break
            chosen.append(entry)
            size += len(entry.body)
        return chosen

    # -- snapshots and the journal -----------------------------------------------------------------------------------

    def _take_snapshot(self) -> bool:
        """When the journal has begun a new file since the last one; and of a state that rests."""
        log = self._log
        sequences = self._snapshots()
        begun, size = log.journal.position
        is_behind = sequences[-1] < begun if sequences else log.journal.first != begun
        if size == 0 or not (is_behind or self._rests(sequences)):
            return False
        if log.store.is_shared:
            return self.shared.take_snapshot()
        with log.lock:
            bookmark = log.journal.bookmark(log.state.needed_sequence)
            sequence, data = log.state.sequence, snapshot.encode(log.state, bookmark=bookmark)
        if sequence < begun:
            return False  # the new file has no durable frame yet
        snapshot.save(log.store, sequence, data)
        return True

    def _rests(self, sequences: list[int]) -> bool:
        """Whether nothing has changed for a while since the last snapshot, and a new one costs little. With it, damage
        to the journal of a hub that is killed takes no cursor and no producer back."""
        log = self._log
        state, now_us = log.state, log.clock.now_us()
        if log.store.is_shared or log.marked_sequence != state.sequence or state.sequence in sequences:
            return False
        if not has_passed(REST_US, self._rested_us, now_us) or _entries(state) > REST_ENTRIES_MAX:
            return False
        self._rested_us = now_us
        return True

    def _cut_journal(self) -> bool:
        """Behind what is sealed, and is in both snapshots."""
        log = self._log
        needed = self.needed_sequence
        if not needed or log.journal.first == log.journal.position.first_sequence:
            return False
        return log.journal.cut_behind(needed, reuse=self._reuses_files)

    @property
    def needed_sequence(self) -> int:
        """Of the oldest frame that the log would be recovered from."""
        sequences = self._snapshots()
        return min(sequences[0], self._log.state.needed_sequence) if len(sequences) >= snapshot.KEPT else 0

    def _snapshots(self) -> list[int]:
        """Their sequences, the oldest first."""
        if self._log.store.is_shared:
            return [ref.sequence for ref in self._log.state.snapshots]
        return [snapshot.sequence_of(name) for name in snapshot.names(self._log.store)]

    def _remove_garbage(self) -> bool:
        """Files of trimmed, merged or deleted records, and of dropped checkpoints and snapshots."""
        log = self._log
        if log.store.is_shared:
            return not self._keeps_garbage and self.shared.remove_garbage()
        with log.lock:
            garbage, log.state.garbage = log.state.garbage, []
            deleted = sorted(log.state.deleted_ids)
        for name in garbage:
            log.opened.forget(name)
            log.store.delete(name)
        for id in deleted:
            log.store.delete_all(segment.folder(id))
        with log.lock:
            log.state.deleted_ids.difference_update(deleted)
        return bool(garbage or deleted)

    def _free_discarded(self) -> None:
        """Memory of tables that were cleared or deleted, and of tails that were trimmed."""
        discarded = self._log.state.discarded
        while discarded:
            objects = discarded[0]
            while objects:
                if isinstance(objects, dict):
                    for _ in range(min(len(objects), FREED_AT_ONCE)):
                        objects.popitem()
                else:
                    del objects[-FREED_AT_ONCE:]
                time.sleep(FREE_PAUSE_S)
            del discarded[0]

    # -- retention ---------------------------------------------------------------------------------------------------

    def _retain(self, now_us: int) -> None:
        for stream in list(self._log.state.streams.values()):
            if stream.table is None and retention.applies(stream.info.options):
                for partition in stream.partitions:
                    self._retain_partition(stream, partition, now_us)

    def _retain_partition(self, stream: Stream, partition: Partition, now_us: int) -> None:
        verdict = retention.decide(self._log, stream, partition, now_us)
        if verdict.first <= partition.first:
            return
        if verdict.overruled:
            logger.warning(
                "stream %r partition %d: records below %d are removed although cursors %s still need them: max_hold_s",
                stream.info.name,
                partition.number,
                verdict.first,
                ", ".join(verdict.overruled),
            )
        cause = ops.Cause.ASKED if verdict.overruled else ops.Cause.RETENTION
        self._log.submit([ops.Trim(stream.info.name, verdict.first, partition.number, cause)])

    # -- merging ---------------------------------------------------------------------------------------------------

    def _merge_all(self) -> None:
        for partition in self._log.state.partitions():
            if self.shared.is_storing(partition):
                continue
            run = mergeable(partition.segments, self._log.settings.segment_bytes, self._log.settings.merge_segments_min)
            if run:
                self._merge(partition, run)

    def _merge(self, partition: Partition, run: list[SegmentRef]) -> None:
        """Make one segment of several neighbours."""
        batches: list[pa.RecordBatch] = []
        try:
            for ref in run:
                opened = self._log.opened.get(ref)
                batches += [opened.batch(position) for position in range(len(opened.manifest.batches))]
        except SegmentDamaged as damage:
            logger.error("not merged because it is damaged: %s", damage)
            return
        began_us = self._log.clock.now_us()
        store = self._log.store
        merged = write_segment(store, partition.stream, partition.stream_id, partition.number, batches, store.tag)
        self.merged_segments += len(run)
        if store.is_shared:
            self.shared.add_segment(partition, merged, began_us)
            return
        with self._log.lock:
            if partition.stream_id not in self._log.state.by_id:
                return
            remaining = [ref for ref in partition.segments if ref not in run]
            if merged.next > partition.first:
                remaining.append(merged)
            else:
                self._log.state.garbage.append(merged.path)
            partition.segments = sorted(remaining)
            self._log.state.garbage += (ref.path for ref in run)
        self._tell(partition, merged, began_us)

    def _is_sealed(self, partition: Partition) -> bool:
        """Sees to it that there is a segment to compact. False while it is being stored."""
        if not partition.segments and not self.shared.is_storing(partition):
            self._seal(partition)
        return not self.shared.is_storing(partition)


def _entries(state: State) -> int:
    """How much a snapshot has to hold; not counted to the end when it is much."""
    count = len(state.streams)
    if count > REST_ENTRIES_MAX:
        return count
    count += sum(map(len, state.cursors.values()))
    return count + sum(len(partition.producers) for partition in state.partitions())


def _keeps(entry: TailEntry, needed_from: int, before_us: int) -> bool:
    """Whether an unsealed entry keeps a journal file that should go, or is itself too old to be unsealed."""
    return entry.sequence < needed_from or entry.time_us < before_us


def mergeable(segments: list[SegmentRef], segment_bytes: int, count_min: int) -> list[SegmentRef]:
    """The first run of small neighbouring segments worth merging, or nothing."""
    count_min = max(count_min, 2)  # one alone would be written over itself, and then removed
    run: list[SegmentRef] = []
    size = 0
    for ref in segments:
        is_small = ref.bytes < segment_bytes // 4
        if is_small and run and run[-1].next == ref.first and size + ref.bytes <= segment_bytes:
            run.append(ref)
            size += ref.bytes
            continue
        if len(run) >= count_min:
            return run
        run, size = ([ref], ref.bytes) if is_small else ([], 0)
    return run if len(run) >= count_min else []
