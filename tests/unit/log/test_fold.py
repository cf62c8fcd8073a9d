"""Folding: frames become a state, without a file anywhere."""

from __future__ import annotations

import msgspec

from headrace.log import fold, ops
from headrace.log.batch import Batch
from headrace.log.fold import Fold
from headrace.log.frame import AnyEvent, CursorSaved, StreamCreated, StreamTrimmed, encode_event, encode_records
from headrace.log.journal_port import GoodFrame, LostFrames
from headrace.log.partition import Partition
from headrace.log.report import Report
from headrace.log.segment import SegmentRef
from headrace.log.state import State
from headrace.log.tail import Tail

CREATED = StreamCreated(1, "orders", "stream", ops.StreamOptions(), 5, [0, 0])


def events(sequence: int, *entries: AnyEvent) -> GoodFrame:
    return GoodFrame(sequence, b"".join(map(encode_event, entries)), b"", "", 0)


def records(sequence: int, base: int, count: int = 2, partition: int = 0, stream: int = 1) -> GoodFrame:
    body = Batch.of([b"x"] * count).body
    return GoodFrame(
        sequence, encode_records(stream, partition, count, base, 7, b"p", sequence, len(body)), body, "", 0
    )


def folded(*frames: GoodFrame | LostFrames, state: State | None = None, segments: int = 0) -> tuple[State, Report]:
    """`segments` is how many records each partition has sealed."""
    state, report = state or State(), Report()

    def find_segments(partition: Partition) -> None:
        partition.segments = [SegmentRef(0, segments, "", 1)] if segments else []
        partition.next = max(partition.next, partition.sealed_next)

    work = Fold(state, report, find_segments)
    for frame in frames:
        if isinstance(frame, GoodFrame):
            work.add(frame)
        else:
            work.lose(frame)
    last = frames[-1]
    work.finish(last.sequence + 1 if isinstance(last, GoodFrame) else last.next_sequence)
    return state, report


def test_events_and_records_become_a_state() -> None:
    state, report = folded(
        events(0, CREATED),
        records(1, 0),
        records(2, 2),
        events(3, CursorSaved("c", 1, 0, 3, 9), StreamTrimmed(1, 0, 1)),
    )
    partition = state.stream("orders").partitions[0]
    assert (partition.first, partition.next, partition.pending_next) == (1, 4, 4)
    assert [entry.sequence for entry in partition.tail.entries] == [1, 2]
    assert partition.producers["p"].sequence == 2
    assert state.cursor(1, "c", 0).index == 3  # type: ignore[union-attr]
    assert (state.sequence, report.frames, report.journal_records) == (4, 4, 4)
    assert state.tail_bytes == partition.tail.bytes > 0
    assert report.findings == []


def test_records_that_are_sealed_are_not_kept_twice() -> None:
    state, report = folded(events(0, CREATED), records(1, 0), records(2, 2), segments=2)
    assert [entry.base for entry in state.stream("orders").partitions[0].tail.entries] == [2]
    assert report.journal_records == 2


def test_of_frames_before_the_snapshot_only_records_count() -> None:
    state, _ = folded(events(0, CREATED), records(1, 0))
    again, report = folded(events(0, StreamTrimmed(1, 0, 2)), records(1, 0), records(2, 2), state=state)
    partition = again.stream("orders").partitions[0]
    assert (partition.first, partition.next) == (0, 4)
    assert report.findings == []
    _, report = folded(records(1, 0, stream=9), records(2, 4), state=again)
    assert report.journal_records == 2, "a stream that is deleted since has no records"


def test_damaged_records_are_a_hole_with_a_name() -> None:
    damaged = msgspec.structs.replace(records(2, 2), data=None)
    state, report = folded(events(0, CREATED), records(1, 0), damaged, records(3, 4))
    assert [(finding.kind, finding.first, finding.last) for finding in report.damage] == [("damaged-records", 2, 3)]
    assert state.stream("orders").partitions[0].next == 6


def test_indexes_that_lost_frames_may_have_used_are_skipped() -> None:
    lost = LostFrames(2, 4, "a file", 64, 400)
    state, report = folded(events(0, CREATED), records(1, 0), lost, records(4, 10))
    seen, unseen = state.stream("orders").partitions
    assert (seen.next, unseen.next) == (12, 400 // fold.RECORD_BYTES_MIN)
    assert "frames 2 to 3 at byte 64" in report.findings[0].text
    assert report.findings[0].path == "a file"


def test_when_nobody_knows_how_much_is_lost_much_is_skipped() -> None:
    unknown, known = LostFrames(1, 2, "", 0, 0), LostFrames(2, 3, "", 0, 400)
    state, _ = folded(events(0, CREATED), unknown, known)
    assert [partition.next for partition in state.stream("orders").partitions] == [fold.UNKNOWN_LOSS] * 2


def test_a_stream_whose_creation_is_lost_is_found_by_its_records() -> None:
    state, report = folded(LostFrames(0, 1, "", 0, 40), records(1, 0, partition=1, stream=3))
    assert state.stream("recovered/3").info.partitions == 2
    assert [finding.kind for finding in report.findings][:2] == ["lost-frames", "possible-loss"]


def nameless(sequence: int, base: int, stream: int = 1) -> GoodFrame:
    """Two records of no producer, as most frames are."""
    body = Batch.of([b"x"] * 2).body
    return GoodFrame(sequence, encode_records(stream, 0, 2, base, 7, b"", 0, len(body)), body, "", 0)


def test_of_what_a_snapshot_has_folded_in_only_records_count_that_are_not_sealed() -> None:
    state, _ = folded(events(0, CREATED), *(nameless(number, 2 * number - 2) for number in range(1, 6)))
    for partition in state.partitions():
        partition.tail = Tail()
    assert (state.sequence, state.stream("orders").partitions[0].next) == (6, 10)
    old = [nameless(number, 2 * number - 2) for number in range(1, 6)]
    old[3] = msgspec.structs.replace(old[3], data=None)
    gone = nameless(5, 0, stream=99)  # of a stream that has been deleted since
    state, report = folded(events(0, CREATED), *old, gone, nameless(6, 10), state=state, segments=4)
    partition = state.stream("orders").partitions[0]
    assert [(entry.base, entry.count, entry.time_us) for entry in partition.tail.entries] == [
        (4, 2, 7),
        (8, 2, 7),
        (10, 2, 7),
    ]
    assert [entry.sequence for entry in partition.tail.entries] == [3, 5, 6]
    assert (partition.next, report.journal_records) == (12, 6)
    assert [(found.first, found.last) for found in report.findings] == [(6, 7)]
    assert set(state.by_id) == {1}
