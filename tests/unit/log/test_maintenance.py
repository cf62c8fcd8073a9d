"""Background work: sealing, merging, retention, compaction, snapshots, and the removal of what nobody needs."""

from __future__ import annotations

import errno
import logging

import pytest
from unit.log.helpers import again, do, fill, maintain, open_log, payloads

from headrace.log import journal, ops, snapshot
from headrace.log.batch import Batch
from headrace.log.log import Log
from headrace.log.maintenance import mergeable
from headrace.log.segment import Segment, SegmentRef
from headrace.testing import FakeClock, FaultyDisk, MemoryDisk


def make(disk: MemoryDisk | FaultyDisk | None = None, **settings: float) -> tuple[Log, FakeClock]:
    clock = FakeClock()
    log = open_log(disk, clock, **settings)
    do(log, ops.CreateStream("s"))
    return log, clock


def pass_interval(log: Log, clock: FakeClock, seconds: float = 6.0) -> None:
    """Let an interval go by, and the transactions that maintenance submits become durable."""
    clock.advance(seconds)
    for _ in range(50):
        worked = log.maintain_once()
        if not (log.commit_once() or worked):
            return


def test_a_large_tail_is_sealed_and_reads_the_same() -> None:
    log, _ = make()
    fill(log, "s", 30)
    before = payloads(log, "s")
    assert log.partition("s").tail.bytes > 1_000
    maintain(log)
    assert log.partition("s").tail.bytes < 1_000
    assert log.partition("s").sealed_next > 0
    assert payloads(log, "s") == before
    assert log.state.tail_bytes == log.partition("s").tail.bytes


def test_an_old_tail_is_sealed_however_small() -> None:
    log, clock = make(seal_age_s=100.0)
    fill(log, "s", 1)
    maintain(log)
    assert not log.partition("s").segments
    clock.advance(101)
    maintain(log)
    assert len(log.partition("s").segments) == 1


def test_many_small_tails_together_are_sealed() -> None:
    log, _ = make(tail_bytes_max=2_000)
    for number in range(20):
        do(log, ops.CreateStream(f"s{number}"))
        fill(log, f"s{number}", 2)
    assert log.state.tail_bytes > 1_000
    maintain(log)
    assert log.state.tail_bytes <= 1_000


def test_trimmed_records_are_not_sealed() -> None:
    log, _ = make()
    fill(log, "s", 30)
    do(log, ops.Trim("s", 30))
    maintain(log)
    assert log.partition("s").segments == []
    assert log.state.tail_bytes == log.partition("s").tail.bytes
    assert payloads(log, "s") == []


def test_a_stream_deleted_during_sealing_leaves_nothing() -> None:
    class Slow(FaultyDisk):
        def rename(self, old: str, new: str) -> None:
            super().rename(old, new)
            if "segments" in new:
                do(log, ops.DeleteStream("s"))

    memory = MemoryDisk()
    log, _ = make(Slow(memory))
    fill(log, "s", 30)
    maintain(log)
    assert not [path for path in memory.paths() if "segments" in path]
    assert log.state.tail_bytes == 0


@pytest.mark.files
def test_journal_files_go_when_all_in_them_is_sealed_and_in_both_snapshots() -> None:
    log, _ = make()
    assert isinstance(log.store.disk, MemoryDisk)
    for _ in range(10):
        fill(log, "s", 40)
        maintain(log)
    assert journal.first_sequence_of(journal.journal_files(log.store.disk)[0]) > 0
    assert len(snapshot.names(log.store)) == 2
    assert len(journal.journal_files(log.store.disk)) < 8


def test_one_quiet_stream_does_not_keep_the_journal() -> None:
    log, _ = make()
    do(log, ops.CreateStream("quiet"))
    fill(log, "quiet", 1)
    for _ in range(20):
        fill(log, "s", 40)
        maintain(log)
    assert isinstance(log.store.disk, MemoryDisk)
    assert sum(log.store.disk.size(path) for path in journal.journal_files(log.store.disk)) < 14_000
    assert len(log.partition("quiet").segments) == 1


def test_a_busy_stream_does_not_keep_quiet_ones_from_being_sealed() -> None:
    """Under steady load there is always a large tail; the journal must shrink all the same."""
    log, _ = make()
    for number in range(30):
        do(log, ops.CreateStream(f"quiet{number}"))
        fill(log, f"quiet{number}", 1)
    assert isinstance(log.store.disk, MemoryDisk)
    for _ in range(60):
        do(log, ops.Append("s", Batch.of([b"x" * 50] * 40)))
        log.maintain_once()
    assert sum(log.store.disk.size(path) for path in journal.journal_files(log.store.disk)) < 30_000
    assert all(log.partition(f"quiet{number}").segments for number in range(30))


# -- retention -------------------------------------------------------------------------------------------------------


def test_old_records_go_by_age() -> None:
    log, clock = make()
    do(log, ops.SetOptions("s", ops.StreamOptions(retention_age_s=100.0)))
    fill(log, "s", 60)
    maintain(log)
    clock.advance(90)
    fill(log, "s", 60, start=60)
    maintain(log)
    pass_interval(log, clock, 20)
    assert 0 < log.bounds("s").first <= 60
    assert log.bounds("s").next == 120
    pass_interval(log, clock, 1)
    assert isinstance(log.store.disk, MemoryDisk)
    assert all(ref.next > log.bounds("s").first for ref in log.partition("s").segments)


def test_records_go_by_size() -> None:
    log, clock = make(merge_segments_min=1_000)
    do(log, ops.SetOptions("s", ops.StreamOptions(retention_bytes=10_000)))
    fill(log, "s", 200)
    maintain(log)
    pass_interval(log, clock)
    assert 0 < log.bounds("s").first < 200
    assert log.partition("s").sealed_bytes <= 10_000


def test_a_cursor_keeps_what_it_still_needs() -> None:
    log, clock = make(merge_segments_min=1_000)
    do(log, ops.SetOptions("s", ops.StreamOptions(retention_bytes=1)))
    do(log, ops.SaveCursor("slow", "s", 50))
    do(log, ops.SaveCursor("fast", "s", 150))
    fill(log, "s", 200)
    maintain(log)
    pass_interval(log, clock)
    assert 0 < log.bounds("s").first <= 50
    do(log, ops.DeleteCursor("slow", "s"))
    pass_interval(log, clock)
    assert 50 < log.bounds("s").first <= 150


def test_a_cursor_that_comes_while_a_trim_is_on_its_way_keeps_what_it_needs() -> None:
    log, clock = make(merge_segments_min=1_000)
    do(log, ops.SetOptions("s", ops.StreamOptions(retention_bytes=1)))
    do(log, ops.SaveCursor("old", "s", 150))
    fill(log, "s", 200)
    maintain(log)
    new = log.submit([ops.SaveCursor("new", "s", 40)])
    back = log.submit([ops.SaveCursor("old", "s", 60, rewind=True)])
    pass_interval(log, clock)
    assert new.result + back.result == [40, 60]
    assert log.bounds("s").first == 40
    do(log, ops.DeleteCursor("new", "s"))
    pass_interval(log, clock)
    assert 40 < log.bounds("s").first <= 60


def test_records_that_all_cursors_have_passed_go() -> None:
    log, clock = make(merge_segments_min=1_000)
    do(log, ops.SetOptions("s", ops.StreamOptions(retention_cursors=True)))
    fill(log, "s", 200)
    maintain(log)
    pass_interval(log, clock)
    assert log.bounds("s").first == 0  # nobody is registered
    do(log, ops.SaveCursor("a", "s", 180))
    do(log, ops.SaveCursor("b", "s", 120))
    pass_interval(log, clock)
    assert log.bounds("s").first == 120
    assert log.partition("s").segments[0].next > 120  # files go when nobody needs anything of them
    assert payloads(log, "s")[0].startswith(b"120.")


def test_records_that_all_cursors_have_passed_go_before_they_are_sealed() -> None:
    log, clock = make(seal_age_s=600.0, segment_bytes=100_000)
    do(log, ops.SetOptions("s", ops.StreamOptions(retention_cursors=True)))
    fill(log, "s", 10)
    pass_interval(log, clock)
    assert log.bounds("s").first == 0  # nobody is registered
    do(log, ops.SaveCursor("a", "s", 7))
    do(log, ops.SaveCursor("b", "s", 4))
    pass_interval(log, clock)
    assert not log.partition("s").segments
    assert log.bounds("s").first == 4
    do(log, ops.SaveCursor("b", "s", 10))
    pass_interval(log, clock)
    for opened in (log, again(log)):
        assert opened.bounds("s").first == 7
        assert [payload[:2] for payload in payloads(opened, "s")] == [b"7.", b"8.", b"9."]


def test_max_hold_overrules_a_cursor_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    log, clock = make(merge_segments_min=1_000)
    do(log, ops.SetOptions("s", ops.StreamOptions(retention_cursors=True, max_hold_s=100.0)))
    do(log, ops.SaveCursor("dead", "s", 0))
    fill(log, "s", 60)
    maintain(log)
    pass_interval(log, clock, 50)
    assert log.bounds("s").first == 0
    with caplog.at_level(logging.WARNING):
        pass_interval(log, clock, 60)
    assert log.bounds("s").first > 0
    assert "dead" in caplog.text
    assert "max_hold_s" in caplog.text


def test_a_clock_that_is_set_back_does_not_stop_background_work() -> None:
    log, clock = make(merge_segments_min=100)
    do(log, ops.SetOptions("s", ops.StreamOptions(retention_bytes=10_000)))
    pass_interval(log, clock)
    fill(log, "s", 200)
    maintain(log)
    pass_interval(log, clock, -3600.0)
    first = log.partition("s").first
    assert first > 0
    fill(log, "s", 200, 200)
    maintain(log)
    pass_interval(log, clock, 6.0)
    assert log.partition("s").first > first, "and then as often as before"


def test_streams_without_retention_keep_everything() -> None:
    log, clock = make()
    fill(log, "s", 100)
    for _ in range(5):
        pass_interval(log, clock, 10**7)
    assert log.bounds("s").first == 0


def test_a_damaged_segment_goes_with_its_neighbours() -> None:
    log, clock = make(merge_segments_min=1_000, open_segments_max=1)
    do(log, ops.SetOptions("s", ops.StreamOptions(retention_age_s=100.0)))
    fill(log, "s", 100)
    maintain(log)
    assert isinstance(log.store.disk, MemoryDisk)
    log.store.disk.put(log.partition("s").segments[0].path, b"rotten")
    pass_interval(log, clock, 50)
    assert log.bounds("s").first == 0
    pass_interval(log, clock, 100)
    assert log.bounds("s").first > 0


# -- merging ---------------------------------------------------------------------------------------------------------


@pytest.mark.files
def test_small_segments_become_one_and_read_the_same() -> None:
    log, clock = make(seal_age_s=1.0, segment_bytes=20_000, merge_segments_min=4, maintenance_interval_s=1e3)
    for _ in range(9):
        fill(log, "s", 2)
        clock.advance(2)
        maintain(log)
    before = payloads(log, "s")
    count = len(log.partition("s").segments)
    assert count > 4
    pass_interval(log, clock, 1_001)
    assert len(log.partition("s").segments) < count
    assert payloads(log, "s") == before
    assert isinstance(log.store.disk, MemoryDisk)
    pass_interval(log, clock, 1)
    assert len(log.store.disk.list("segments/1/0")) == len(log.partition("s").segments)
    assert payloads(open_log(log.store.disk.after_kill()), "s") == before


def test_a_damaged_segment_is_not_merged_away() -> None:
    log, clock = make(seal_age_s=1.0, segment_bytes=20_000, merge_segments_min=4, maintenance_interval_s=1_000.0)
    for _ in range(9):
        fill(log, "s", 2)
        clock.advance(2)
        maintain(log)
    assert isinstance(log.store.disk, MemoryDisk)
    log.store.disk.put(log.partition("s").segments[1].path, b"rotten")
    before = log.partition("s").segments
    pass_interval(log, clock, 1_001)
    assert log.partition("s").segments == before


def test_each_segment_is_told_when_it_is_sealed_and_when_it_is_merged() -> None:
    log, clock = make(seal_age_s=1.0, segment_bytes=20_000, merge_segments_min=4, maintenance_interval_s=1_000.0)
    told: list[tuple[ops.NewSegment, list[SegmentRef]]] = []
    log.on_sealed = lambda new: told.append((new, log.partition("s").segments))
    for _ in range(8):
        fill(log, "s", 2)
        clock.advance(2)
        maintain(log)
    assert [(new.first, new.next) for new, _ in told] == [(first, first + 2) for first in range(0, 16, 2)]
    pass_interval(log, clock, 1_001)
    assert (told[-1][0].first, told[-1][0].next) == (0, 16)
    for new, there in told:
        assert (new.first, new.next, new.bytes) in [(ref.first, ref.next, ref.bytes) for ref in there]
        assert new.stream_id == log.partition("s").stream_id
        assert new.began_us <= new.ended_us


def test_a_stream_trimmed_or_deleted_during_a_merge() -> None:
    class Slow(FaultyDisk):
        then: ops.Op | None = None

        def rename(self, old: str, new: str) -> None:
            super().rename(old, new)
            if self.then is not None and "segments" in new:
                operation, self.then = self.then, None
                do(log, operation)

    for operation in (ops.Trim("s", 16), ops.DeleteStream("s")):
        memory = MemoryDisk()
        disk = Slow(memory)
        log, clock = make(disk, seal_age_s=1.0, segment_bytes=20_000, merge_segments_min=4, maintenance_interval_s=1e3)
        for _ in range(8):
            fill(log, "s", 2)
            clock.advance(2)
            maintain(log)
        disk.then = operation
        pass_interval(log, clock, 1_001)
        pass_interval(log, clock, 1_001)
        assert not [path for path in memory.paths() if "segments/1" in path]


@pytest.mark.parametrize("what", ["trimmed", "merged"])
def test_records_that_go_elsewhere_while_they_are_looked_for_are_not_called_damaged(what: str) -> None:
    log, clock = make(seal_age_s=1.0, segment_bytes=20_000, merge_segments_min=4, maintenance_interval_s=1e3)
    for _ in range(8):
        fill(log, "s", 2)
        clock.advance(2)
        maintain(log)
    find = log.opened.get

    def look_too_late(ref: SegmentRef) -> Segment:
        log.opened.get = find  # type: ignore[method-assign]
        if what == "trimmed":
            do(log, ops.Trim("s", 5))
        clock.advance(1_001)
        while log.maintain_once() or log.state.garbage:
            pass
        return find(ref)

    log.opened.get = look_too_late  # type: ignore[method-assign]
    assert log.read("s", 1).column("index")[0].as_py() == (5 if what == "trimmed" else 1)
    assert log.opened.get == find


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], 0),
        ([1, 1], 0),
        ([1, 1, 1], 3),
        ([50, 1, 1, 1], 3),
        ([1, 1, 50, 1, 1], 0),
        ([1, 1, 1, 50], 3),
        ([24, 24, 24, 24, 24], 4),
    ],
)
def test_which_segments_are_merged(sizes: list[int], expected: int) -> None:
    refs = [SegmentRef(number, number + 1, "", size) for number, size in enumerate(sizes)]
    assert len(mergeable(refs, 100, 3)) == expected


def test_a_segment_alone_is_never_merged_with_itself() -> None:
    log, clock = make(merge_segments_min=1, segment_bytes=100_000, seal_age_s=1.0)
    fill(log, "s", 5)
    for _ in range(3):
        pass_interval(log, clock)
    assert log.partition("s").segments
    log.opened.close()
    assert len(payloads(log, "s")) == 5


def test_segments_with_a_gap_between_them_are_not_merged() -> None:
    refs = [SegmentRef(number * 2, number * 2 + 1, "", 1) for number in range(9)]
    assert mergeable(refs, 100, 3) == []


# -- compaction ------------------------------------------------------------------------------------------------------


@pytest.mark.files
def test_a_table_takes_no_more_room_than_its_live_values_need() -> None:
    log, clock = make()
    do(log, ops.CreateStream("t", kind="table"))
    do(log, ops.Put("t", b"steady", b"x" * 30))
    for round in range(60):
        for key in range(5):
            do(log, ops.Put("t", bytes([key]), f"{round}".encode() * 10))
        maintain(log)
        pass_interval(log, clock)
    for _ in range(20):
        pass_interval(log, clock)
    partition = log.partition("t")
    assert partition.first > 0
    assert partition.sealed_bytes + partition.tail.bytes < 12_000
    table = dict(log.state.stream("t").table.items())  # type: ignore[union-attr]
    assert table == {b"steady": b"x" * 30} | {bytes([key]): b"59" * 10 for key in range(5)}
    assert isinstance(log.store.disk, MemoryDisk)
    again = open_log(log.store.disk.after_kill())
    assert dict(again.state.stream("t").table.items()) == table  # type: ignore[union-attr]


def test_compaction_of_a_tail_writes_each_value_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.log.compaction.PIECE_BYTES", 100)
    log, clock = make(segment_bytes=50_000, journal_file_bytes=1_000_000)
    do(log, ops.CreateStream("t", kind="table"))
    for _ in range(5):
        for key in range(20):
            do(log, ops.Put("t", bytes([key]), b"value" * 8))
    clock.advance(6)
    for _ in range(400):
        log.maintain_once()
        log.commit_once()
    assert log.bounds("t") == (100, 120)
    assert len(log.state.stream("t").table) == 20  # type: ignore[arg-type]


def test_compaction_of_much_goes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.log.compaction.PIECE_BYTES", 100)
    log, _ = make(merge_segments_min=1_000)
    do(log, ops.CreateStream("t", kind="table"))
    for key in range(40):
        do(log, ops.Put("t", bytes([key]), b"steady" * 6))
    for round in range(120):
        do(log, ops.Put("t", b"busy", str(round).encode() * 40))
    maintain(log)
    assert log.maintenance.is_compacting
    size = log.queue_bytes
    assert 0 < size < 400
    log.maintain_once()
    assert log.queue_bytes == size  # waits for the piece before
    for _ in range(400):
        log.commit_once()
        log.maintain_once()
    assert not log.maintenance.is_compacting
    assert log.partition("t").first > 0
    assert len(log.state.stream("t").table) == 41  # type: ignore[arg-type]


def test_a_piece_of_compaction_is_one_operation_of_few_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each by itself would keep everybody else waiting for thousands of them."""
    monkeypatch.setattr("headrace.log.compaction.PIECE_KEYS", 7)
    log, _ = make(compact_bytes_min=0)
    do(log, ops.CreateStream("t", kind="table"))
    for _ in range(3):
        do(log, ops.PutMany("t", [bytes([key]) for key in range(20)], [b"value"] * 20))
    maintain(log)
    pieces = []
    while log.maintenance.is_compacting:
        assert len(log.queue) == 1
        gathered = log.queue.gather()
        pieces.append(gathered[0].operations)
        log.commit_now(gathered)
        log.maintain_once()
    *rewrites, trim = pieces
    assert [len(op.keys) for (op,) in rewrites if isinstance(op, ops.Rewrite)] == [7, 7, 6]
    assert trim == [ops.Trim("t", 60, cause=ops.Cause.COMPACTION)]
    assert log.bounds("t") == (60, 80)


# -- trouble -------------------------------------------------------------------------------------------------------


def test_a_step_that_fails_is_reported_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    memory = MemoryDisk()
    disk = FaultyDisk(memory)
    log, _ = make(disk)
    fill(log, "s", 30)
    disk.fail_all("create", errno.ENOSPC)
    assert not log.maintain_once()
    assert not log.maintain_once()
    assert log.maintenance.error is not None
    assert caplog.text.count("will be tried again") == 1
    disk.heal()
    maintain(log)
    assert log.maintenance.error is None
    assert log.partition("s").segments


def test_retention_makes_room_on_a_disk_too_full_for_a_segment() -> None:
    memory = MemoryDisk()
    disk = FaultyDisk(memory)
    log, clock = make(disk, merge_segments_min=1_000, journal_file_bytes=1_000_000)
    do(log, ops.SetOptions("s", ops.StreamOptions(retention_bytes=3_000)))
    fill(log, "s", 100)
    maintain(log)
    segments = memory.list("segments/1/0")
    fill(log, "s", 100, start=100)
    disk.fail_all("create", errno.ENOSPC)
    pass_interval(log, clock)
    pass_interval(log, clock)
    assert log.maintenance.error is not None
    assert log.bounds("s").first > 0
    assert len(memory.list("segments/1/0")) < len(segments)


def test_an_error_that_nobody_thought_of_does_not_end_background_work(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without background work the tails would fill up, and appends wait for ever."""
    log, _ = make()
    fill(log, "s", 30)
    with monkeypatch.context() as patch:
        patch.setattr(log.maintenance.sealing, "seal", lambda *_: 1 / 0)
        assert not log.maintain_once()
        assert not log.maintain_once()
    assert "ZeroDivisionError" in str(log.maintenance.error)
    told = [record for record in caplog.records if "please report" in record.getMessage()]
    assert len(told) == 1
    assert told[0].exc_info is not None
    maintain(log)
    assert log.maintenance.error is None
    assert log.partition("s").segments


def test_a_seal_that_is_cut_short_leaves_no_file() -> None:
    memory = MemoryDisk()
    disk = FaultyDisk(memory)
    log, _ = make(disk)
    fill(log, "s", 30)
    disk.room_bytes = 500
    assert not log.maintain_once()
    assert not [path for path in memory.paths() if "segments" in path]


def test_a_batch_larger_than_a_segment_is_sealed_whole() -> None:
    log, _ = make()
    do(log, ops.Append("s", Batch.of([b"x" * 100] * 50)))
    maintain(log)
    [ref] = log.partition("s").segments
    assert (ref.first, ref.next) == (0, 50)


@pytest.mark.files
def test_nothing_is_written_over_while_somebody_copies() -> None:
    log = open_log()
    do(log, ops.CreateStream("s"))
    with log.maintenance.without_reuse():
        for _ in range(8):
            fill(log, "s", 20)
            maintain(log)
        assert journal.first_sequence_of(journal.journal_files(log.store.disk)[0]) > 0, "no file was finished"
        assert not log.journal.spares
    for _ in range(8):
        fill(log, "s", 20)
        maintain(log)
    assert log.journal.spares
