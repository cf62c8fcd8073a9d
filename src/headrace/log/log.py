"""The log: transactions in, durable records out. It is `LogPort` on any journal and store.

Three threads may touch it. Any thread submits and reads. The *writer* gathers what was submitted, writes it, syncs
it, applies it and reports it: while it syncs, the next commit gathers; there is no timer. *Maintenance* seals, merges,
trims and takes snapshots. `start` begins the last two (`threads.py`); tests and simulations call `commit_once` and
`maintain_once` themselves.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from headrace.config.sections import Log as LogSettings
from headrace.errors import BadRequest, Busy, Closed, DiskFull, HeadraceError, LimitExceeded, LogFailed
from headrace.log import backup, large, ops, shared_backup, snapshot
from headrace.log.checkpoint import BlobWriter
from headrace.log.clock import Clock
from headrace.log.commit import Commit
from headrace.log.disk import FULL_ERRNOS, FreeSpace, is_final
from headrace.log.frame import frames_bytes
from headrace.log.journal_port import JournalPort
from headrace.log.maintenance import Maintenance
from headrace.log.pending import OPERATION_BYTES, Pending
from headrace.log.pipeline import Pipeline
from headrace.log.port import LogPort, Touched
from headrace.log.queue import CommitQueue
from headrace.log.reading import LogView
from headrace.log.recovery import recover
from headrace.log.report import Finding
from headrace.log.slices import SLICE_KEYS, Removals
from headrace.log.store import Store
from headrace.log.threads import LogThreads

logger = logging.getLogger(__name__)

DEFAULT_SETTINGS = LogSettings()


class Log(LogView, LogPort):
    """A log, open."""

    def __init__(
        self, journal: JournalPort, store: Store, clock: Clock, settings: LogSettings = DEFAULT_SETTINGS
    ) -> None:
        """Recover it: blocks. Raises when its state cannot be told; damage to records only is in `recovered`. It closes
        journal and store in the end."""
        self.settings = settings
        self.clock = clock
        self.journal = journal
        recovered = recover(journal, store)
        store.recovered()
        super().__init__(recovered.state, store, settings.open_segments_max)
        self.recovered = recovered.report
        journal.open()
        self.lock = threading.Lock()
        """Held while the state changes, and by those who need several parts of it to agree."""
        self.failed: LogFailed | None = None
        self.full = False
        """The last commit found no room."""
        self.commits = 0
        self.marked_sequence = 0
        """That of the state when the writer had nothing to do, the last time."""
        self.on_commit: Callable[[list[Pending], Touched], None] | None = None
        """Called by the writer after each commit with the outcomes, failures among them; without any when the log has
        failed while nobody waited."""
        self.on_sealed: Callable[[ops.NewSegment], None] | None = None
        """Called by maintenance for each segment that is in its place, made here or elsewhere."""
        self.on_submit: Callable[[], None] | None = None
        """Wakes the writer."""
        self.on_work: Callable[[], None] | None = None
        """Wakes maintenance."""
        self.queue = CommitQueue(settings)
        self.free_space = FreeSpace(journal.free_bytes)
        self._journal_piece = self.journal.position.first_sequence
        self.maintenance = Maintenance(self)
        self.pipeline = Pipeline(self)
        self.state.is_shared = store.is_shared
        self._next_checkpoint_id = self.state.next_checkpoint_id
        self._backing_up = threading.Lock()
        self._threads: LogThreads | None = None
        self._is_slicing = False

    def start(
        self,
        on_commit: Callable[[list[Pending], Touched], None],
        on_sealed: Callable[[ops.NewSegment], None] | None = None,
    ) -> None:
        self.on_commit = on_commit
        self.on_sealed = on_sealed
        self._threads = LogThreads(self)

    # -- writing ---------------------------------------------------------------------------------------------------

    def submit(self, operations: Sequence[ops.Op], token: Any = None) -> Pending:
        """Hand in a transaction. What is wrong with it by itself is raised here; all else comes with the outcome."""
        if self.failed is not None:
            raise self.failed
        nbytes, keys = self._check(operations)
        pending = Pending(list(operations), nbytes, nbytes + OPERATION_BYTES * (len(operations) + keys), token)
        self.queue.add(pending)
        if self.on_submit is not None:
            self.on_submit()
        return pending

    def submit_own(self, operation: ops.StoreSegment | ops.StoreSnapshot) -> Pending:
        """Hand in a transaction of the log itself: it waits neither for room nor for others."""
        pending = Pending([operation], 0, 0)
        self.queue.add_own(pending)
        if self.on_submit is not None:
            self.on_submit()
        return pending

    def _check(self, operations: Sequence[ops.Op]) -> tuple[int, int]:
        """The bytes, and the keys of operations that have many."""
        if not operations:
            raise BadRequest("a transaction needs at least one operation")
        if len(operations) > 1 and any(isinstance(op, ops.STRUCTURAL) for op in operations):
            raise BadRequest(
                "creating, growing, changing or deleting a stream must be the only operation of its transaction"
            )
        nbytes = keys = 0
        for op in operations:
            if isinstance(op, ops.Append):
                nbytes += op.batch.nbytes
                self._check_record(op.batch.largest, f"a record for stream {op.stream!r}")
            elif isinstance(op, ops.Put):
                nbytes += len(op.key) + len(op.value)
                self._check_record(len(op.key) + len(op.value), f"a key and value for table {op.table!r}")
            elif isinstance(op, ops.PutMany):
                if len(op.keys) != len(op.values):
                    raise BadRequest(f"{len(op.keys)} keys and {len(op.values)} values for table {op.table!r}")
                measured = op.measured or ops.Measured.of(op.keys, op.values)
                nbytes += measured.nbytes
                keys += len(op.keys)
                self._check_record(measured.largest, f"a key and value for table {op.table!r}")
            elif isinstance(op, ops.DeleteMany):
                measured = op.measured or ops.Measured.of(op.keys)
                nbytes += measured.nbytes
                keys += len(op.keys)
                self._check_record(measured.largest, f"a key for table {op.table!r}")
            elif isinstance(op, ops.Rewrite):
                nbytes += op.nbytes
                keys += len(op.keys)
        if nbytes > self.settings.batch_bytes_max:
            raise LimitExceeded("bytes of a batch", nbytes, self.settings.batch_bytes_max, "log.batch_bytes_max")
        return nbytes, keys

    def _check_record(self, size: int, what: str) -> None:
        if size > self.settings.record_bytes_max:
            raise LimitExceeded(f"bytes of {what}", size, self.settings.record_bytes_max, "log.record_bytes_max")

    @property
    def has_work(self) -> bool:
        return bool(self.queue)

    @property
    def queue_bytes(self) -> int:
        return self.queue.nbytes

    @property
    def is_congested(self) -> bool:
        return self.queue.is_congested

    @property
    def closed(self) -> bool:
        return self.queue.is_closed

    def commit_once(self) -> bool:
        """Make what waits durable: one write, one sync. False when nothing may go. Only the writer calls this."""
        self.pipeline.drain()
        gathered = self.queue.gather()
        if gathered:
            self.commit_now(gathered)
        return bool(gathered)

    def commit_now(self, gathered: list[Pending]) -> None:
        """One commit, and nothing else meanwhile but what passes a large one."""
        try:
            self._prepare(gathered)
            touched, error = self._commit(gathered, self.settings.disk_reserve_bytes)
            if not self._is_slicing:
                self.journal.forget_ahead()
            if isinstance(error, DiskFull):
                touched, error = self._relieve(gathered, error)
        except Exception as unexpected:  # no writer, no answers: everybody would wait for ever without a word
            logger.exception("a commit failed unexpectedly; please report this")
            touched, error = set(), self.end(unexpected)
        self.report(gathered, touched, error)

    def _prepare(self, gathered: list[Pending]) -> None:
        """Do what takes long for a large transaction, before its commit."""
        if self._is_slicing or len(gathered) > 1:
            return
        op = gathered[0].operations[0]
        if isinstance(op, ops.DeleteMany) and _is_single(gathered):
            self._prepare_removal(op, gathered[0])
        else:
            self._write_ahead(gathered[0])

    def _prepare_removal(self, op: ops.DeleteMany, pending: Pending) -> None:
        """Find out what it removes."""
        stream = self.state.streams.get(op.table)
        if stream is not None and stream.table is not None and len(op.keys) > SLICE_KEYS:
            removals = Removals(stream.table, op.keys)
            self._do_slices(removals.slices(), pending)
            pending.prepared = removals

    def _write_ahead(self, pending: Pending) -> None:
        needed = self.settings.disk_reserve_bytes + pending.nbytes
        found = large.body_of(pending, self.state)
        if found is None or self.failed is not None or self.free_space.free_bytes(needed) < needed:
            return
        try:
            self._do_slices(self.journal.write_ahead(*found), pending)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                self.end(error)

    def _do_slices(self, slices: Iterator[None], pending: Pending) -> None:
        """Something long for a large transaction: what is small, and touches nothing of it, goes between."""
        touches = pending.touches
        self._is_slicing = True
        try:
            for _ in slices:
                self.queue.is_held_back = self.lacks_room
                beside = self.queue.gather_beside(touches)
                if beside:
                    self.commit_now(beside)
        finally:
            self._is_slicing = self.queue.is_held_back = False

    def checked(self, gathered: list[Pending], *, is_single: bool = False) -> Commit:
        """A commit of all that is right."""
        commit = Commit(self.state, self.settings, self.journal, self.clock.now_us(), is_single)
        for pending in gathered:
            if self.failed is None:
                commit.add(pending)
            else:
                pending.refuse(self.failed)
        return commit

    def _commit(self, gathered: list[Pending], reserve: int) -> tuple[Touched, HeadraceError | None]:
        """Check, write and apply transactions; what they touched, or why nothing has happened."""
        commit = self.checked(gathered, is_single=_is_single(gathered))
        error = self._make_durable(commit, reserve) if commit.frames else self.failed
        if error is not None:
            commit.abandon()
            return set(), error
        touched = self._settle(commit, may_slice=not self._is_slicing)
        if commit.late is not None:
            self._do_slices(commit.late.slices(), gathered[0])
            with self.lock:
                commit.late.table.is_behind = False
                commit.late.table.settle_pending()
        return touched, None

    def settled(self, commit: Commit, gathered: list[Pending]) -> None:
        """A commit that was on its way is durable."""
        self.full = False
        self.commits += bool(commit.frames)
        self.report(gathered, self._settle(commit), None)

    @property
    def lacks_room(self) -> bool:
        """Whether sealing must catch up, since the tails have reached their limit: back-pressure instead of memory."""
        if self.state.tail_bytes <= self.settings.tail_bytes_max or self.failed is not None or self.pipeline.flights:
            return False
        return self.maintenance.error is None or self.store.is_shared  # else let the commit meet the disk itself

    def _settle(self, commit: Commit, *, may_slice: bool = False) -> Touched:
        with self.lock:
            touched = commit.settle(may_slice=may_slice)
        self._notice_work(commit)
        return touched

    def _relieve(self, gathered: list[Pending], full: DiskFull) -> tuple[Touched, HeadraceError | None]:
        """The disk is full: refuse what was gathered, but do what makes room, within the reserve. Otherwise a hub that
        has filled its disk could be helped by nobody but others."""
        relieving = []
        for pending in gathered:
            if all(map(ops.relieves, pending.operations)):
                relieving.append(pending)
            elif pending.error is None:
                pending.refuse(full)
        outcome = self._commit([pending for pending in relieving if pending.error is None], 0)
        self.full = True
        return outcome

    def _notice_work(self, commit: Commit) -> None:
        """Wake maintenance when a tail is large enough to seal, or a journal file has become old."""
        if (
            commit.largest_tail_bytes >= self.settings.segment_bytes
            or self.state.tail_bytes >= self.settings.tail_bytes_max // 2
            or self.journal.position.first_sequence != self._journal_piece
        ):
            self._journal_piece = self.journal.position.first_sequence
            if self.on_work is not None:
                self.on_work()

    def _make_durable(self, commit: Commit, reserve: int) -> HeadraceError | None:
        """Write and sync. Too little room is an answer; anything else that goes wrong here is the log's end."""
        size = frames_bytes(commit.frames)
        try:
            free = self.free_space.free_bytes(reserve + size)
            if free < reserve + size:
                self.full = True
                return DiskFull(
                    f"{free} bytes are free and log.disk_reserve_bytes is {self.settings.disk_reserve_bytes}: nothing "
                    "was stored; make room and appends resume by themselves"
                )
            self.journal.write(commit.frames)
            self.free_space.use(size)
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                self.full = True
                return DiskFull(f"the disk has no room ({error}): nothing was stored; make room and try again")
            return self.end(error)
        self.full = False
        self.commits += 1
        return None

    def fail(self, what: str, error: OSError) -> None:
        """The disk has failed, for somebody else who writes to it. Any thread may call this."""
        if self.failed is None:
            self.report([], set(), self.end(error, what))

    @contextmanager
    def guard(self, what: str) -> Iterator[None]:
        """A disk that fails inside ends the log."""
        try:
            yield
        except OSError as error:
            if is_final(error):
                self.fail(what, error)
            raise

    def end(self, error: Exception, what: str | None = None) -> LogFailed:
        """After a failed sync the kernel may have dropped the pages: only a restart knows what the disk holds."""
        if what is None:
            self.failed = LogFailed(self.journal.explain(error))
        else:
            self.failed = LogFailed(
                f"{what} failed ({error}): the log accepts nothing more; check the disk and start again"
            )
        logger.error("%s", self.failed)
        return self.failed

    def report(self, gathered: list[Pending], touched: Touched, error: HeadraceError | None) -> None:
        self.queue.settled(gathered)
        for pending in gathered:
            if error is not None and pending.error is None:
                pending.refuse(error)
            pending.done = True
        if self.on_commit is not None:
            self.on_commit(gathered, touched)

    def mark(self) -> None:
        """Note in the journal that all before is durable. Only the writer calls this, when it is idle, and `close`."""
        self._note(self.journal.mark)
        self.marked_sequence = self.state.sequence

    def prove(self) -> None:
        """Note the same beside the journal, without an entry in it. Only the writer calls this, now and then."""
        self._note(self.journal.prove)

    def _note(self, note: Callable[[], None]) -> None:
        if self.failed is not None:
            return
        try:
            note()
        except Exception as error:  # nobody waits for the mark, but everybody for a writer that died of it
            if not isinstance(error, OSError) or error.errno not in FULL_ERRNOS:
                # A part of the mark may stand there: nothing may follow it.
                self.report([], set(), self.end(error))

    def maintain_once(self) -> bool:
        """Do one piece of background work. False when there is none."""
        return self.maintenance.step()

    def hasten(self) -> None:
        """It is to close soon, and waits for no other process from now on."""
        self.maintenance.sealing.give_up()

    def close(self) -> None:
        """Make what waits durable, note that all is well, and let go of journal and store."""
        if self.closed:
            return
        self.hasten()
        if self.failed is not None:
            self.store.give_up()  # what maintenance still puts there counts for nobody
        if self._threads is not None:
            self._threads.stop()
        self.queue.is_held_back = False
        while self.failed is None and self.commit_once():
            pass
        if self.store.is_shared and self.failed is None:
            self.maintenance.leave()
            self.commit_once()
        if waiting := self.queue.close():
            self.report(waiting, set(), self.failed or Closed("the log is closed"))
        self.mark()
        self._leave_proof()
        self.maintenance.close()
        self.journal.close()
        self.opened.close()
        self.store.close()

    def _leave_proof(self) -> None:
        """A final snapshot: a journal that loses its end from now on cannot pass for one that was never longer."""
        if self.store.is_shared:
            return
        sequence = self.journal.next_sequence
        names = snapshot.names(self.store)
        is_there = self.state.is_final and bool(names) and snapshot.sequence_of(names[-1]) == sequence
        if self.failed is not None or not sequence or is_there:
            return
        self.state.sequence = sequence
        try:
            bookmark = self.journal.bookmark(self.state.needed_sequence)
            with self.guard("writing the final snapshot"):
                snapshot.save(self.store, sequence, snapshot.encode(self.state, is_final=True, bookmark=bookmark))
        except OSError as error:
            logger.warning(
                "could not write a last snapshot, so the next start cannot detect a lost end of the journal: %s", error
            )

    # -- how it is -------------------------------------------------------------------------------------------------

    def trouble(self) -> dict[str, str]:
        sentences = {}
        if self.failed is not None:
            sentences["log"] = str(self.failed)
        if self.full:
            sentences["disk"] = "the disk is full: appends are refused until there is room"
        if self.maintenance.error is not None:
            sentences["maintenance"] = f"background work fails and is tried again: {self.maintenance.error}"
        if (store := self.store.trouble()) is not None:
            sentences["store"] = store
        if damage := self.damage():
            sentences["damage"] = f"{damage[0].text} ({len(damage)} findings; run headrace doctor)"
        return sentences

    def damage(self) -> list[Finding]:
        return [finding for finding in self.recovered.damage if not finding.stream or self._is_there(finding)]

    def _is_there(self, finding: Finding) -> bool:
        """Not when its stream is deleted, its records are trimmed, or it was accepted."""
        stream = self.state.streams.get(finding.stream)
        if stream is None or finding.partition >= len(stream.partitions):
            return False
        if stream.table is not None and stream.table.damage is None:
            return False
        return finding.last >= stream.partitions[finding.partition].first

    def gauges(self) -> dict[str, float]:
        tables = list(self.state.tables.values())
        return {
            "queue_bytes": self.queue_bytes,
            "tail_bytes": self.state.tail_bytes,
            "segment_bytes": self.maintenance.segment_bytes,
            "free_bytes": self.journal.free_bytes(),
            "streams": len(self.state.streams) - len(tables),
            "tables": len(tables),
            "table_bytes": sum(table.bytes for table in tables),
            "checkpoints": len(self.state.checkpoints),
            "sealed_segments": self.maintenance.sealed_segments,
            "store_orphans": self.maintenance.shared.orphans.found,
            **self.journal.gauges(),
            **self.store.gauges(),
        }

    # -- checkpoints and backups -----------------------------------------------------------------------------------

    def begin_checkpoint(self, stream: str) -> BlobWriter:
        """A blob to write; `RegisterCheckpoint` makes it count."""
        self.state.stream(stream)
        with self.lock:
            id = max(self._next_checkpoint_id, self.state.next_checkpoint_id)
            self._next_checkpoint_id = id + 1
        names = self.state.finished_blobs
        return BlobWriter(self.store, id, lambda: self.guard("writing a checkpoint"), names.__setitem__)

    def back_up(self, target: str | os.PathLike[str]) -> backup.BackupInfo:
        if not self._backing_up.acquire(blocking=False):
            raise Busy("a backup is being made already; wait for it")
        try:
            make = shared_backup.back_up if self.store.is_shared else backup.back_up
            return make(self, target)
        finally:
            self._backing_up.release()


def _is_single(gathered: list[Pending]) -> bool:
    """Whether a commit has one operation."""
    return len(gathered) == 1 and len(gathered[0].operations) == 1
