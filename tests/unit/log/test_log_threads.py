"""The log with its threads, in trouble and under load."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest
from support.until import wait_until
from unit.log.helpers import Outcomes

from headrace.config import Log as LogSettings
from headrace.errors import LogFailed
from headrace.log import ops
from headrace.log.batch import Batch
from headrace.log.directory import open_directory
from headrace.log.journal import FILE_HEADER, FileJournal, journal_files
from headrace.log.log import Log
from headrace.testing import FakeClock, FaultyDisk, MemoryDisk


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
    made = open_directory(disk, FakeClock(), settings)
    made.start(outcomes)
    for operation in (ops.CreateStream("s"), ops.CreateStream("t", kind="table")):
        outcomes.wait_for(made.submit([operation]))
    yield made
    made.close()


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
    log = open_directory(memory, FakeClock(), LogSettings(disk_reserve_bytes=0))
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
    again = open_directory(memory, FakeClock(), LogSettings(disk_reserve_bytes=0))
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
    assert log.journal.position.size > FILE_HEADER.size
    disk.fail_all("write", errno.ENOSPC)
    log.mark()
    assert log.failed is None


def test_a_mark_that_fails_is_told_to_everybody(
    log: Log, disk: FaultyDisk, outcomes: Outcomes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[int] = []
    outcomes.wait_for(log.submit([ops.Append("s", Batch.one(b"x"))]))
    log.on_commit = lambda pendings, touched: told.append(len(pendings))
    disk.fail_all("sync", errno.EIO)
    log.mark()
    assert log.failed is not None
    assert told == [0]
    assert "writing and syncing the journal failed" in caplog.text
    log.mark()
    assert told == [0]
    with pytest.raises(LogFailed):
        log.submit([ops.Append("s", Batch.one(b"x"))])


def test_a_writer_outlives_whatever_a_mark_meets(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileJournal, "mark", lambda *_: 1 // 0)
    log.mark()
    assert "division" in str(log.failed)


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
