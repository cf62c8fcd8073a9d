"""The embedded log: transactions in, durable records out.

Three threads may touch it. Any thread submits and reads. The *writer* gathers what was submitted, writes it, syncs
it, applies it and reports it: while it syncs, the next commit gathers; there is no timer. *Maintenance* seals, merges,
trims and takes snapshots. `threads.py` runs the last two; tests and simulations call `commit_once` and
`maintain_once` themselves.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import (
    BadRequest,
    Busy,
    Closed,
    Damaged,
    DiskFull,
    HeadraceError,
    LimitExceeded,
    LogFailed,
    Trimmed,
    UnknownCheckpoint,
)
from headrace.log import ops
from headrace.log.checkpoint import BlobWriter, read_blob
from headrace.log.clock import Clock
from headrace.log.commit import RELIEVING, STRUCTURAL, Commit, Limits, Pending
from headrace.log.disk import FULL_ERRNOS, Disk, Room
from headrace.log.journal import Journal, frames_bytes
from headrace.log.maintenance import Maintenance
from headrace.log.partition import OpenSegments, Partition
from headrace.log.port import Touched
from headrace.log.recovery import Report, recover
from headrace.log.settings import LogSettings
from headrace.log.state import State, Stream

logger = logging.getLogger(__name__)


class Log:
    """One data directory, open."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        settings: LogSettings | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Recover the directory. Raises when its state cannot be told; damage to records only is in `report`."""
        self.settings = settings or LogSettings()
        self.limits = limits or Limits()
        self.disk = disk
        self.clock = clock
        recovered = recover(disk)
        self.state: State = recovered.state
        self.report: Report = recovered.report
        self.journal = Journal(disk, recovered.next_sequence, self.settings.journal_file_bytes)
        self.opened = OpenSegments(disk, self.settings.open_segments_max)
        self.lock = threading.Lock()
        """Held while the state changes, and by those who need several parts of it to agree."""
        self.failed: LogFailed | None = None
        self.closed = False
        self.full = False
        """The last commit found no room."""
        self.commits = 0
        self.queue_bytes = 0
        self.on_commit: Callable[[list[Pending], Touched], None] | None = None
        """Called by the writer after each commit with the outcomes, failures among them."""
        self.on_sealed: Callable[[ops.NewSegment], None] | None = None
        """Called by maintenance for each segment that is in its place, made here or elsewhere."""
        self.on_submit: Callable[[], None] | None = None
        """Wakes the writer."""
        self.on_work: Callable[[], None] | None = None
        """Wakes maintenance."""
        self._queue: deque[Pending] = deque()
        self._queue_lock = threading.Lock()
        """Submitters and the writer change the queue's size from different threads."""
        self._room = Room(disk)
        self._journal_file = self.journal.first_sequence
        self.maintenance = Maintenance(self)
        self._next_checkpoint_id = self.state.next_checkpoint_id

    # -- writing ---------------------------------------------------------------------------------------------------

    def submit(self, operations: Sequence[ops.Op], token: Any = None) -> Pending:
        """Hand in a transaction. What is wrong with it by itself is raised here; all else comes with the outcome."""
        if self.failed is not None:
            raise self.failed
        nbytes = self._check(operations)
        if self.queue_bytes > 2 * self.settings.queue_bytes_max:
            raise Busy(
                f"{self.queue_bytes} bytes wait for the disk already (log.queue_bytes_max is "
                f"{self.settings.queue_bytes_max}); slow down and try again"
            )
        pending = Pending(list(operations), nbytes, token)
        with self._queue_lock:
            if self.closed:  # looked at here: nobody takes from the queue of a closed log
                raise Closed("the log is closed")
            self.queue_bytes += nbytes
            self._queue.append(pending)
        if self.on_submit is not None:
            self.on_submit()
        return pending

    def _check(self, operations: Sequence[ops.Op]) -> int:
        if not operations:
            raise BadRequest("a transaction needs at least one operation")
        if len(operations) > 1 and any(isinstance(op, STRUCTURAL) for op in operations):
            raise BadRequest("creating, growing, changing or deleting a stream stands alone in a transaction")
        nbytes = 0
        for op in operations:
            if isinstance(op, ops.Append):
                nbytes += op.batch.nbytes
                self._check_record(op.batch.largest, f"a record for stream {op.stream!r}")
            elif isinstance(op, ops.Put):
                nbytes += len(op.key) + len(op.value)
                self._check_record(len(op.key) + len(op.value), f"a key and value for table {op.table!r}")
            elif isinstance(op, ops.PutMany):
                sizes = [len(key) + len(value) for key, value in zip(op.keys, op.values, strict=True)]
                nbytes += sum(sizes)
                self._check_record(max(sizes, default=0), f"a key and value for table {op.table!r}")
        if nbytes > self.limits.batch_bytes_max:
            raise LimitExceeded("bytes of a batch", nbytes, self.limits.batch_bytes_max, "log.batch_bytes_max")
        return nbytes

    def _check_record(self, size: int, what: str) -> None:
        if size > self.limits.record_bytes_max:
            raise LimitExceeded(f"bytes of {what}", size, self.limits.record_bytes_max, "log.record_bytes_max")

    @property
    def has_work(self) -> bool:
        return bool(self._queue)

    def commit_once(self) -> bool:
        """Make what waits durable: one write, one sync. False when nothing waited. Only the writer calls this."""
        gathered = self._gather()
        if not gathered:
            return False
        try:
            touched, error = self._commit(gathered, self.settings.disk_reserve_bytes)
            if isinstance(error, DiskFull):
                touched, error = self._relieve(gathered, error)
        except Exception as unexpected:  # no writer, no answers: everybody would wait for ever without a word
            logger.exception("a commit failed in a way nobody thought of; please report this")
            touched, error = set(), self._fail(unexpected)
        self._report(gathered, touched, error)
        return True

    def _commit(self, gathered: list[Pending], reserve: int) -> tuple[Touched, HeadraceError | None]:
        """Check, write and apply transactions; what they touched, or why nothing has happened."""
        commit = Commit(self.state, self.limits, self.journal, self.clock.now_us())
        for pending in gathered:
            if self.failed is None:
                commit.add(pending)
            else:
                pending.refuse(self.failed)
        error = self._make_durable(commit, reserve) if commit.frames else self.failed
        if error is not None:
            commit.abandon()
            return set(), error
        with self.lock:
            touched = commit.settle()
        self._notice_work(commit)
        return touched, None

    def _relieve(self, gathered: list[Pending], full: DiskFull) -> tuple[Touched, HeadraceError | None]:
        """The disk is full: refuse what was gathered, but do what makes room, within the reserve. Otherwise a hub that
        has filled its disk could be helped by nobody but others."""
        relieving = []
        for pending in gathered:
            if all(isinstance(op, RELIEVING) for op in pending.operations):
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
            or self.journal.first_sequence != self._journal_file
        ):
            self._journal_file = self.journal.first_sequence
            if self.on_work is not None:
                self.on_work()

    def _gather(self) -> list[Pending]:
        """The next transaction at least, and about `commit_bytes_max`. Structural ones keep among themselves."""
        gathered: list[Pending] = []
        names: set[str] = set()
        size = 0
        while self._queue and (not gathered or size < self.settings.commit_bytes_max):
            first = self._queue[0].operations[0]
            if isinstance(first, STRUCTURAL):
                if len(names) != len(gathered) or first.name in names:
                    break
                names.add(first.name)
            elif names:
                break
            pending = self._queue.popleft()
            gathered.append(pending)
            size += pending.nbytes
        return gathered

    def _make_durable(self, commit: Commit, reserve: int) -> HeadraceError | None:
        """Write and sync. Too little room is an answer; anything else that goes wrong here is the log's end."""
        size = frames_bytes(commit.frames)
        try:
            free = self._room.free_bytes(reserve + size)
            if free < reserve + size:
                self.full = True
                return DiskFull(
                    f"{free} bytes are free and log.disk_reserve_bytes is {self.settings.disk_reserve_bytes}: nothing "
                    "was stored; make room and appends resume by themselves"
                )
            self.journal.write(commit.frames)
            self._room.use(size)
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                self.full = True
                return DiskFull(f"the disk has no room ({error}): nothing was stored; make room and try again")
            return self._fail(error)
        self.full = False
        self.commits += 1
        return None

    def _fail(self, error: Exception) -> LogFailed:
        """After a failed sync the kernel may have dropped the pages: only a restart knows what the disk holds."""
        self.failed = LogFailed(
            f"writing and syncing the journal failed ({error}): the log accepts nothing more; check the disk and start "
            "again, what was acknowledged is recovered from disk"
        )
        return self.failed

    def _report(self, gathered: list[Pending], touched: Touched, error: HeadraceError | None) -> None:
        with self._queue_lock:
            self.queue_bytes -= sum(pending.nbytes for pending in gathered)
        for pending in gathered:
            if error is not None and pending.error is None:
                pending.refuse(error)
            pending.done = True
        if self.on_commit is not None:
            self.on_commit(gathered, touched)

    def mark(self) -> None:
        """Note in the journal that all before is durable. Only the writer calls this, when it is idle."""
        if self.failed is not None:
            return
        try:
            self.journal.mark()
        except OSError as error:
            if error.errno not in FULL_ERRNOS:  # a part of the mark may stand there: nothing may follow it
                self._fail(error)

    def maintain_once(self) -> bool:
        """Do one piece of background work. False when there is none."""
        return self.maintenance.step()

    def close(self) -> None:
        """Make what waits durable, note that all is well, and let go of the disk."""
        if self.closed:
            return
        while self.failed is None and self.commit_once():
            pass
        error = self.failed or Closed("the log is closed")
        with self._queue_lock:
            self.closed = True
            waiting = list(self._queue)
            self._queue.clear()
        if waiting:
            self._report(waiting, set(), error)
        if self.failed is None:
            self._close_journal()
        self.maintenance.close()
        self.journal.close()
        self.opened.close()
        self.disk.close()

    def _close_journal(self) -> None:
        with contextlib.suppress(OSError):  # nothing is acknowledged by it; recovery does without
            self.journal.mark()

    # -- reading ---------------------------------------------------------------------------------------------------

    def stream(self, name: str) -> Stream:
        return self.state.stream(name)

    def partition(self, name: str, number: int = 0) -> Partition:
        return self.state.stream(name).partition(number)

    def bounds(self, name: str, partition: int = 0) -> ops.Bounds:
        found = self.partition(name, partition)
        return ops.Bounds(found.first, found.next)

    def read(
        self, name: str, start: int, partition: int = 0, limit: int = 1000, bytes_max: int = 1024 * 1024
    ) -> pa.RecordBatch:
        """Records from `start`, or from the first that is kept: `limit` at most, and at least one if there is any.

        Stops early where a segment ends. Raises `Damaged` when the record at `start` is."""
        if start < 0 or limit < 1:
            raise BadRequest(f"start is {start} and limit is {limit}; they must be at least 0 and 1")
        return self.partition(name, partition).read(self.opened, start, limit, bytes_max)

    def scan(self, name: str, start: int, end: int, partition: int = 0) -> Iterator[pa.RecordBatch]:
        """Exactly the records start ≤ index < end, in large batches. Raises `Trimmed` or `Damaged` instead of a gap."""
        found = self.partition(name, partition)
        at = start
        while at < end:
            if at < found.first:
                raise Trimmed(name, partition, at, found.first)
            records = found.read(self.opened, at, end - at, 8 * 1024 * 1024)
            if not records.num_rows:
                raise BadRequest(f"stream {name!r} partition {partition} ends at {found.next}, below {end}")
            if records.column(0)[0].as_py() != at:
                raise Trimmed(name, partition, at, found.first)
            yield records
            at += records.num_rows

    def index_at_time(self, name: str, time_us: int, partition: int = 0) -> int:
        """The first index whose time is not before `time_us`; the next index when all are earlier."""
        found = self.partition(name, partition)
        low, high = found.first, found.next
        while low < high:
            middle = (low + high) // 2
            record = self._next_readable(found, middle, high)
            if record is not None and _time_of(record) < time_us:
                low = record.column(0)[0].as_py() + 1
            else:
                high = middle
        return low

    def _next_readable(self, found: Partition, index: int, end: int) -> pa.RecordBatch | None:
        """The first record from an index on that is not damaged; None when there is none before `end`."""
        while index < end:
            try:
                record = found.read(self.opened, index, 1, 1)
            except Damaged as damage:
                index = damage.last + 1
            else:
                return record if record.num_rows else None  # none at all: trimmed meanwhile
        return None

    def segments(self, name: str, partition: int = 0) -> list[ops.SegmentInfo]:
        """The sealed files of a partition, for readers on the same machine."""
        return [
            ops.SegmentInfo(ref.first, ref.next, ref.bytes, self.disk.local_path(ref.path))
            for ref in self.partition(name, partition).segments
        ]

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def begin_checkpoint(self, stream: str) -> BlobWriter:
        """A blob to write; `RegisterCheckpoint` makes it count."""
        self.state.stream(stream)
        with self.lock:
            id = max(self._next_checkpoint_id, self.state.next_checkpoint_id)
            self._next_checkpoint_id = id + 1
        return BlobWriter(self.disk, id)

    def checkpoint(self, id: int) -> ops.CheckpointInfo:
        try:
            return self.state.checkpoints[id]
        except KeyError:
            raise UnknownCheckpoint(f"there is no checkpoint {id}; list checkpoints to see the numbers") from None

    def read_checkpoint(self, id: int) -> Iterator[bytes]:
        return read_blob(self.disk, id, self.checkpoint(id).size)


def _time_of(record: pa.RecordBatch) -> int:
    return int(record.column(1).cast(pa.int64())[0].as_py())
