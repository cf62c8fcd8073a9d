"""The log at its limits and in trouble, step by step, without threads."""

from __future__ import annotations

import errno
import resource
from pathlib import Path

import msgspec
import pytest
from unit.log.helpers import again, do, fill, maintain, open_log, payloads

from headrace.config import Log as LogSettings
from headrace.errors import BadRequest, Busy, Closed, Damaged, DiskFull, LimitExceeded, LogFailed
from headrace.log import ops
from headrace.log.batch import Batch
from headrace.log.clock import SystemClock
from headrace.log.directory import open_directory
from headrace.log.disk import OsDisk
from headrace.log.journal import FileJournal
from headrace.log.log import Log
from headrace.log.pending import OPERATION_BYTES, Pending
from headrace.log.state import TABLE
from headrace.testing import FakeClock, FaultyDisk, MemoryDisk

# -- limits --------------------------------------------------------------------------------------------------------

LIMITS = {
    "record_bytes_max": 10,
    "batch_bytes_max": 100,
    "streams_max": 2,
    "partitions_max": 2,
    "producers_max": 1,
    "cursors_max": 1,
    "table_bytes_max": 12,
    "name_bytes_max": 5,
}


@pytest.mark.parametrize(
    ("fits", "exceeds", "limit"),
    [
        (ops.Append("s", Batch.one(b"x" * 10)), ops.Append("s", Batch.one(b"x" * 11)), "log.record_bytes_max"),
        (ops.Put("t", b"x" * 5, b"y" * 5), ops.Put("t", b"x" * 5, b"y" * 6), "log.record_bytes_max"),
        (
            ops.Append("s", Batch.of([b"12345678"] * 5)),
            ops.Append("s", Batch.of([b"12345678"] * 9)),
            "log.batch_bytes_max",
        ),
        (ops.GrowStream("s", 2), ops.GrowStream("s", 3), "log.partitions_max"),
        (ops.CreateStream("s"), ops.CreateStream("s2"), "log.streams_max"),
        (ops.SaveCursor("c", "s", 1), ops.SaveCursor("d", "s", 1), "log.cursors_max"),
        (ops.SaveCursor("ccccc", "s", 1), ops.SaveCursor("cccccc", "s", 1), "log.name_bytes_max"),
        (ops.Append("s", Batch.one(b""), 0, "p", 1), ops.Append("s", Batch.one(b""), 0, "q", 1), "log.producers_max"),
        (ops.Put("t", b"k", b"x" * 8), ops.Put("t", b"l", b"x" * 8), "log.table_bytes_max"),
        (ops.PutMany("t", [b"k"], [b"x" * 9]), ops.PutMany("t", [b"k"], [b"x" * 10]), "log.record_bytes_max"),
        (ops.PutMany("t", [b"k"] * 6, [b"x"] * 6), ops.PutMany("t", [b"m"] * 51, [b"x"] * 51), "log.batch_bytes_max"),
        (ops.PutMany("t", [b"k", b"l"], [b"xxxx"] * 2), ops.PutMany("t", [b"m"], [b"x" * 2]), "log.table_bytes_max"),
    ],
)
def test_every_limit_has_two_sides(fits: ops.Op, exceeds: ops.Op, limit: str) -> None:
    log = open_log(**LIMITS)
    do(log, ops.CreateStream("s"))
    do(log, ops.CreateStream("t", kind="table"))
    do(log, fits)
    before = log.bounds("s"), log.bounds("t")
    with pytest.raises(LimitExceeded) as caught:
        do(log, exceeds)
    assert caught.value.key == limit
    assert (log.bounds("s"), log.bounds("t")) == before


def test_a_full_table_takes_what_makes_it_no_larger() -> None:
    log = open_log(table_bytes_max=20)
    do(log, ops.CreateStream("t", kind="table"))
    do(log, ops.PutMany("t", [b"k", b"l"], [b"x" * 9, b"x" * 9]))
    do(log, ops.Put("t", b"k", b"y" * 9))
    do(log, ops.PutMany("t", [b"k", b"l"], [b"z" * 9, b"z" * 8]))
    do(log, ops.Delete("t", b"k"), ops.Put("t", b"m", b"x" * 10))
    assert dict(log.state.stream("t").table.items()) == {b"l": b"z" * 8, b"m": b"x" * 10}  # type: ignore[union-attr]
    with pytest.raises(LimitExceeded):
        do(log, ops.Put("t", b"l", b"z" * 10))


def test_the_puts_of_one_commit_do_not_exceed_a_table_together() -> None:
    log = open_log(table_bytes_max=20)
    do(log, ops.CreateStream("t", kind="table"))
    with pytest.raises(LimitExceeded):
        do(log, *(ops.Put("t", bytes([key]), b"x" * 9) for key in range(3)))
    pendings = [log.submit([ops.Put("t", bytes([key]), b"x" * 9)]) for key in range(3)]
    log.commit_once()
    assert [pending.error is None for pending in pendings] == [True, True, False]


def test_a_full_queue_says_so() -> None:
    log = open_log(queue_bytes_max=200)
    do(log, ops.CreateStream("s"))
    for _ in range(5):
        log.submit([ops.Append("s", Batch.one(b"x" * 80))])
    with pytest.raises(Busy):
        log.submit([ops.Append("s", Batch.one(b"x" * 80))])
    while log.commit_once():
        pass
    assert log.queue_bytes == 0
    do(log, ops.Append("s", Batch.one(b"x" * 80)))


def test_a_commit_takes_about_as_much_as_it_may() -> None:
    log = open_log(commit_bytes_max=200 + 2 * OPERATION_BYTES)
    do(log, ops.CreateStream("s"))
    for _ in range(10):
        log.submit([ops.Append("s", Batch.one(b"x" * 80))])
    before = log.commits
    while log.commit_once():
        pass
    assert log.commits - before == 4


def test_a_commit_takes_at_least_one_transaction() -> None:
    log = open_log(commit_bytes_max=0)
    do(log, ops.CreateStream("s"))
    do(log, ops.Append("s", Batch.one(b"x")))
    assert log.bounds("s").next == 1


# -- trouble -------------------------------------------------------------------------------------------------------


def faulty(**settings: int) -> tuple[Log, FaultyDisk, MemoryDisk]:
    memory = MemoryDisk()
    disk = FaultyDisk(memory)
    log = open_log(disk, **settings)
    do(log, ops.CreateStream("s"))
    do(log, ops.CreateStream("t", kind="table"))
    fill(log, "s", 3)
    return log, disk, memory


@pytest.mark.files
def test_a_full_disk_refuses_appends_keeps_reading_and_resumes_by_itself() -> None:
    log, disk, _ = faulty()
    outcomes: list[Pending] = []
    log.on_commit = lambda pendings, touched: outcomes.extend(pendings)
    disk.fail_all("write", errno.ENOSPC)
    with pytest.raises(DiskFull):
        do(log, ops.Append("s", Batch.one(b"x"), 0, "p", 1))
    with pytest.raises(DiskFull):
        do(log, ops.Put("t", b"k", b"v"))
    assert log.full
    assert len(payloads(log, "s")) == 3
    assert [pending.error is None for pending in outcomes] == [False, False]
    disk.heal()
    assert do(log, ops.Append("s", Batch.one(b"x"), 0, "p", 1)) == ops.Appended(3, 1, False)
    assert not log.full
    assert do(log, ops.Put("t", b"k", b"v", ops.ABSENT)) == (True, None)


@pytest.mark.files
def test_nothing_is_stored_behind_a_refused_append_of_the_same_line() -> None:
    log, disk, _ = faulty(commit_bytes_max=1)
    line = ops.Line()
    disk.fail_all("write", errno.ENOSPC)
    refused = log.submit([ops.Append("s", Batch.one(b"4"), 0, "p", 4, line)])
    behind = log.submit([ops.Append("s", Batch.one(b"5"), 0, "p", 5, line)])
    other = log.submit([ops.Append("s", Batch.one(b"other"))])
    log.commit_once()
    disk.heal()
    while log.commit_once():
        pass
    assert isinstance(refused.error, DiskFull)
    assert isinstance(behind.error, Busy)
    assert other.error is None
    for sequence in (4, 5):
        assert not do(log, ops.Append("s", Batch.one(b"%d" % sequence), 0, "p", sequence)).duplicate
    assert payloads(log, "s")[3:] == [b"other", b"4", b"5"]


def test_room_is_kept_for_the_log_itself() -> None:
    log = open_log(MemoryDisk(free_bytes=5_000), disk_reserve_bytes=4_000)
    do(log, ops.CreateStream("s"))
    with pytest.raises(DiskFull, match="disk_reserve_bytes"):
        do(log, ops.Append("s", Batch.one(b"x" * 2_000)))
    assert do(log, ops.Append("s", Batch.one(b"x"))).first == 0


@pytest.mark.files
def test_what_makes_room_is_done_on_a_full_disk() -> None:
    log = open_log(MemoryDisk(free_bytes=20_000), disk_reserve_bytes=15_000)
    do(log, ops.CreateStream("s"))
    do(log, ops.CreateStream("unwanted"))
    do(log, ops.CreateStream("t", kind=TABLE))
    do(log, ops.Put("t", b"k", b"v"))
    do(log, ops.Put("t", b"l", b"v"))
    do(log, ops.SetProducer("s", "gone", 5))
    with pytest.raises(DiskFull):
        fill(log, "s", 1_000)
    stored = log.bounds("s").next
    log.settings = msgspec.structs.replace(log.settings, disk_reserve_bytes=16_000)
    refused = log.submit([ops.Append("s", Batch.one(b"x"))])
    also_refused = log.submit([ops.Trim("s", 1), ops.Append("s", Batch.one(b"x"))])
    wrong = log.submit([ops.Trim("s", stored + 1)])
    cursor = log.submit([ops.SaveCursor("c", "s", stored)])
    trim = log.submit([ops.Trim("s", stored)])
    deleted = log.submit([ops.Delete("t", b"k"), ops.SetProducer("s", "gone", None)])
    all_deleted = log.submit([ops.DeleteMany("t", [b"l"])])
    set_further = log.submit([ops.SetProducer("s", "gone", 6)])
    log.commit_once()
    assert (deleted.error, all_deleted.error) == (None, None)
    assert isinstance(set_further.error, DiskFull)
    assert log.table_size("t") == 0
    assert log.producer("s", "gone") is None
    assert isinstance(refused.error, DiskFull)
    assert isinstance(also_refused.error, DiskFull)
    assert isinstance(wrong.error, BadRequest)
    assert cursor.result == trim.result == [stored]
    do(log, ops.DeleteStream("unwanted"))
    assert log.full
    with pytest.raises(DiskFull):
        do(log, ops.CreateStream("more"))
    assert log.bounds("s") == again(log).bounds("s") == (stored, stored)


@pytest.mark.files
@pytest.mark.parametrize("call", ["sync", "write"])
def test_a_failed_write_or_sync_is_final(call: str) -> None:
    log, disk, memory = faulty()
    disk.fail_all(call, errno.EIO)
    waiting = log.submit([ops.Append("s", Batch.one(b"x"))])
    with pytest.raises(LogFailed, match="start again"):
        do(log, ops.Append("s", Batch.one(b"x")))
    assert isinstance(waiting.error, LogFailed)
    disk.heal()
    with pytest.raises(LogFailed):
        log.submit([ops.Append("s", Batch.one(b"y"))])
    assert len(payloads(log, "s")) == 3
    log.close()
    assert len(payloads(open_log(memory.after_kill()), "s")) >= 3


@pytest.mark.files
def test_an_error_in_a_commit_that_nobody_thought_of_is_told_to_everyone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _, memory = faulty()
    monkeypatch.setattr(FileJournal, "write", lambda *_: 1 // 0)
    waiting = log.submit([ops.Append("s", Batch.one(b"x"))])
    with pytest.raises(LogFailed, match="division"):
        do(log, ops.Append("s", Batch.one(b"x")))
    assert isinstance(waiting.error, LogFailed)
    assert "ZeroDivisionError" in caplog.text
    with pytest.raises(LogFailed):
        log.submit([ops.Append("s", Batch.one(b"y"))])
    log.close()
    assert len(payloads(open_log(memory.after_kill()), "s")) == 3


@pytest.mark.files
def test_what_was_queued_before_the_failure_fails_too() -> None:
    log, disk, _ = faulty()
    first = log.submit([ops.Append("s", Batch.one(b"x"))])
    structural = log.submit([ops.CreateStream("late")])
    disk.fail_all("sync", errno.EIO)
    log.commit_once()
    log.commit_once()
    assert isinstance(first.error, LogFailed)
    assert isinstance(structural.error, LogFailed)
    assert "late" not in log.state.streams


def test_closing_makes_what_waits_durable_and_refuses_the_rest() -> None:
    memory = MemoryDisk()
    log = open_log(memory)
    log.submit([ops.CreateStream("s")])
    log.submit([ops.Append("s", Batch.one(b"x"))])
    log.close()
    log.close()
    with pytest.raises(Closed):
        log.submit([ops.CreateStream("t")])
    assert payloads(open_log(memory), "s") == [b"x"]


@pytest.mark.files
def test_closing_a_failed_log_answers_those_who_wait() -> None:
    log, disk, _ = faulty()
    disk.fail_all("sync", errno.EIO)
    log.submit([ops.Append("s", Batch.one(b"x"))])
    log.commit_once()
    assert log.failed is not None
    log.failed, failed = None, log.failed
    waiting = log.submit([ops.Append("s", Batch.one(b"x"))])
    log.failed = failed
    log.close()
    assert waiting.done
    assert isinstance(waiting.error, LogFailed)


@pytest.mark.files
def test_a_close_that_cannot_mark_the_journal_is_still_a_close() -> None:
    log, disk, memory = faulty()
    disk.fail_all("write", errno.EIO)
    log.close()
    assert log.failed is not None
    assert len(payloads(open_log(memory), "s")) == 3


def test_damage_in_a_segment_is_named_and_the_rest_is_served() -> None:
    memory = MemoryDisk()
    log = open_log(memory)
    do(log, ops.CreateStream("s"))
    fill(log, "s", 100)
    maintain(log)
    first, second, *_ = log.partition("s").segments
    data = bytearray(memory.read(second.path))
    data[data.index(str(second.first).encode().ljust(50, b"."))] ^= 1
    memory.put(second.path, bytes(data))
    log.close()
    log = open_log(memory)
    with pytest.raises(Damaged) as caught:
        log.read("s", second.first)
    assert (caught.value.first, caught.value.last) == (second.first, second.next - 1)
    assert caught.value.where == second.path
    assert log.read("s", first.first).num_rows
    assert log.read("s", second.next).column("index")[0].as_py() == second.next
    assert log.index_at_time("s", 2**60) == 100
    assert log.index_at_time("s", 0) in (0, second.next)


def test_who_hands_in_while_the_log_closes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log()
    do(log, ops.CreateStream("s"))
    monkeypatch.setattr(log, "_check", lambda _: log.close() or (1, 0))
    with pytest.raises(Closed):
        log.submit([ops.Append("s", Batch.one(b"x"))])


def log_on_a_spare(path: Path) -> Log:
    """A log whose journal is being written to a file that was a spare, and is not far from its beginning."""
    settings = LogSettings(
        journal_file_bytes=64 * 1024, journal_bytes_max=128 * 1024, segment_bytes=32 * 1024, disk_reserve_bytes=0
    )
    log = open_directory(OsDisk(path), SystemClock(), settings)
    do(log, ops.CreateStream("s"))
    while True:
        spares = len(log.journal.spares)
        do(log, ops.Append("s", Batch.one(b"x" * 20_000)))
        if len(log.journal.spares) < spares:
            return log
        maintain(log)


def test_a_time_is_found_among_records_that_are_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.log.segment.BATCH_BYTES", 400)
    clock = FakeClock()
    log = open_log(clock=clock, segment_bytes=1_000_000, seal_age_s=1.0)
    do(log, ops.CreateStream("s"))
    times = []
    for number in range(60):
        clock.advance(1)
        times.append(clock.now_us())
        do(log, ops.Append("s", Batch.one(b"payload%02d" % number * 5)))
    clock.advance(10)
    maintain(log)
    [ref] = log.partition("s").segments
    assert isinstance(log.store.disk, MemoryDisk)
    data = bytearray(log.store.disk.read(ref.path))
    for number in (20, 25, 30):  # three neighbouring record batches
        data[data.index(b"payload%02d" % number * 5)] ^= 1
    log.store.disk.put(ref.path, bytes(data))
    found = [log.index_at_time("s", time) for time in times]
    assert found == [*range(21), *[20] * 15, *range(36, 60)]


def test_what_is_acknowledged_at_a_limit_on_file_sizes_is_there_after_a_kill(tmp_path: Path) -> None:
    """A write that the limit cuts short within a block, in a journal file that was a spare."""
    log = log_on_a_spare(tmp_path / "data")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_001, before[1]))
    try:
        with pytest.raises(DiskFull):
            do(log, ops.Append("s", Batch.one(b"y" * 200_000)))
        acknowledged = do(log, ops.Append("s", Batch.one(b"z" * 1000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    log.store.disk.close()  # the lock; nothing else is done, as in a kill
    again = open_directory(OsDisk(tmp_path / "data"), SystemClock())
    assert again.bounds("s").next == acknowledged.first + 1
    again.close()
