"""The embedded log behind its port, with its threads."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator

import pytest
from support.until import DEADLINE_S, wait_until

from headrace.config import Log as LogSettings
from headrace.errors import BadRequest, Closed, LogFailed, UnknownStream
from headrace.log import ops
from headrace.log.batch import Batch
from headrace.log.commit import Pending
from headrace.log.journal import FILE_HEADER, journal_files
from headrace.log.log import Log
from headrace.testing import FakeClock, FaultyDisk, MemoryDisk


class Outcomes:
    """Collects what the writer reports, and waits for it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.done: list[Pending] = []

    def __call__(self, pendings: list[Pending], touched: object) -> None:
        with self.changed:
            self.done += pendings
            self.changed.notify_all()

    def wait_for(self, pending: Pending) -> Pending:
        with self.changed:
            assert self.changed.wait_for(lambda: pending in self.done, DEADLINE_S)
        return pending


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk(MemoryDisk())


@pytest.fixture
def outcomes() -> Outcomes:
    return Outcomes()


@pytest.fixture
def log(disk: FaultyDisk, outcomes: Outcomes) -> Iterator[Log]:
    settings = LogSettings(
        segment_bytes=5_000,
        tail_bytes_max=10_000,
        journal_file_bytes=20_000,
        journal_bytes_max=40_000,
        disk_reserve_bytes=0,
        maintenance_interval_s=0.05,
        compact_bytes_min=1_000,
    )
    made = Log(disk, FakeClock(), settings)
    made.start(outcomes)
    for operation in (ops.CreateStream("s"), ops.CreateStream("t", kind="table")):
        outcomes.wait_for(made.submit([operation]))
    yield made
    made.close()


def test_transactions_become_durable_by_themselves(log: Log, outcomes: Outcomes) -> None:
    pendings = [log.submit([ops.Append("s", Batch.one(b"x"))], token=number) for number in range(100)]
    assert outcomes.wait_for(pendings[-1]).result == [ops.Appended(99, 1, False)]
    assert [pending.token for pending in outcomes.done if pending.token is not None] == list(range(100))
    assert log.queue_bytes == 0


def test_tails_are_sealed_and_memory_stays_bounded(log: Log, outcomes: Outcomes) -> None:
    for _ in range(200):
        last = log.submit([ops.Append("s", Batch.one(b"x" * 500))])
    outcomes.wait_for(last)
    wait_until(lambda: log.state.tail_bytes <= 10_000)
    assert log.segments("s")
    assert log.gauges()["segment_bytes"] > 0
    assert [batch.num_rows for batch in log.scan("s", 0, 200)]


def test_compaction_runs_by_itself(log: Log, outcomes: Outcomes) -> None:
    clock = log.clock
    assert isinstance(clock, FakeClock)
    for number in range(300):
        last = log.submit([ops.Put("t", b"k%d" % (number % 5), b"v" * 50)])
    outcomes.wait_for(last)

    def compacted() -> bool:
        clock.advance(1)
        return log.bounds("t").first > 0 and not log.maintenance.is_compacting

    wait_until(compacted)
    assert log.table_size("t") == 5


def test_the_port_answers(log: Log, outcomes: Outcomes) -> None:
    for operation in (
        ops.Append("s", Batch.of([b"a", b"b"]), 0, "p", 7),
        ops.SaveCursor("c", "s", 1),
        ops.Put("t", b"k", b"v"),
    ):
        last = log.submit([operation])
    outcomes.wait_for(last)
    assert log.has_stream("s")
    assert not log.has_stream("x")
    assert log.stream("s").name == "s"
    assert [info.name for info in log.streams("s*")] == ["s"]
    assert len(log.streams()) == 2
    assert log.bounds("s") == (0, 2)
    assert (log.producer("s", "p"), log.producer("s", "q")) == (7, None)
    assert (log.cursor("c", "s"), log.cursor("d", "s")) == (1, None)
    [cursor] = log.cursors("c*")
    assert (cursor.name, cursor.stream, cursor.index, cursor.lag) == ("c", "s", 1, 1)
    assert log.cursors("x") == []
    assert log.cursors(stream="t") == []
    assert (log.table_get("t", b"k"), log.table_size("t"), dict(log.table_items("t"))) == (b"v", 1, {b"k": b"v"})
    with pytest.raises(BadRequest):
        log.table_get("s", b"k")
    with pytest.raises(UnknownStream):
        log.cursors(stream="x")
    now = log.read_now("s", 0, 0, 10, 100)
    assert now is not None
    assert now.equals(log.read("s", 0, 0, 10, 100))
    at_end = log.read_now("s", 2, 0, 10, 100)
    assert at_end is not None
    assert at_end.num_rows == 0
    assert log.index_at_time("s", 0) == 0
    assert log.trouble() == {}
    assert log.failed is None


def test_a_read_that_needs_the_disk_is_not_done_now(log: Log, outcomes: Outcomes) -> None:
    for _ in range(30):
        last = log.submit([ops.Append("s", Batch.one(b"x" * 500))])
    outcomes.wait_for(last)
    wait_until(lambda: log.segments("s"))
    assert log.read_now("s", 0, 0, 10, 100) is None
    assert log.read("s", 0, 0, 10, 10_000).column("index").to_pylist()[0] == 0


def test_checkpoints_through_the_port(log: Log, outcomes: Outcomes) -> None:
    blob = log.begin_checkpoint("s")
    blob.write(b"data")
    blob.finish()
    outcomes.wait_for(log.submit([ops.RegisterCheckpoint(blob.id, "s", 0, blob.size, {})]))
    assert [info.id for info in log.checkpoints()] == [blob.id]
    assert b"".join(log.read_checkpoint(blob.id)) == b"data"


def test_trouble_is_said_in_words(log: Log, disk: FaultyDisk, outcomes: Outcomes) -> None:
    disk.fail_all("write", errno.ENOSPC)
    outcomes.wait_for(log.submit([ops.Append("s", Batch.one(b"x"))]))
    assert "full" in log.trouble()["disk"]
    log.maintenance.error = "no room"
    assert "no room" in log.trouble()["maintenance"]
    log.maintenance.error = None
    disk.fail_all("sync", errno.EIO)
    pending = outcomes.wait_for(log.submit([ops.Append("s", Batch.one(b"x"))]))
    assert isinstance(pending.error, LogFailed)
    assert "start again" in log.trouble()["log"]


def test_damage_is_trouble() -> None:
    memory = MemoryDisk()
    log = Log(memory, FakeClock(), LogSettings(disk_reserve_bytes=0))
    outcomes = Outcomes()
    log.start(outcomes)
    log.submit([ops.CreateStream("s")])
    log.submit([ops.Append("s", Batch.one(b"needle"))])
    outcomes.wait_for(log.submit([ops.Append("s", Batch.one(b"x"))]))
    log.close()
    path = journal_files(memory)[0]
    data = bytearray(memory.read(path))
    data[data.index(b"needle")] ^= 1
    memory.put(path, bytes(data))
    again = Log(memory, FakeClock(), LogSettings(disk_reserve_bytes=0))
    assert "indexes 0 to 0" in again.trouble()["damage"]
    again.start(outcomes)
    again.close()


def test_an_idle_writer_marks_the_journal(
    log: Log, disk: FaultyDisk, outcomes: Outcomes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.log.threads.IDLE_MARK_S", 0.01)
    outcomes.wait_for(log.submit([ops.Append("s", Batch.one(b"x"))]))
    sequence = log.journal.next_sequence
    wait_until(lambda: log.journal.next_sequence > sequence)
    assert log.journal.size > FILE_HEADER.size
    disk.fail_all("write", errno.ENOSPC)
    log.mark()
    assert log.failed is None
    disk.fail_all("write", errno.EIO)
    log.mark()
    assert log.failed is not None
    log.mark()


def test_when_sealing_cannot_go_on_commits_meet_the_disk_themselves(
    log: Log, disk: FaultyDisk, outcomes: Outcomes
) -> None:
    """The tail limit holds commits back only while sealing makes progress: otherwise everything would hang."""
    disk.fail_all("create", errno.ENOSPC)
    for _ in range(30):
        last = log.submit([ops.Append("s", Batch.one(b"x" * 500))])
    assert outcomes.wait_for(last).error is None
    assert log.state.tail_bytes > 10_000
    disk.heal()
    wait_until(lambda: log.state.tail_bytes <= 10_000)


def test_after_close_nothing_is_taken(log: Log) -> None:
    pending = log.submit([ops.Append("s", Batch.one(b"x"))])
    log.close()
    assert pending.done
    assert pending.error is None
    with pytest.raises(Closed):
        log.submit([ops.Append("s", Batch.one(b"x"))])
