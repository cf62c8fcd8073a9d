"""The log's verbs, step by step, without threads."""

from __future__ import annotations

import errno
from typing import Any

import pyarrow as pa
import pytest
from unit.log.helpers import do, fill, maintain, open_log, payloads

from headrace.errors import (
    BadRequest,
    Busy,
    Closed,
    ConditionFailed,
    Damaged,
    DiskFull,
    LimitExceeded,
    LogFailed,
    StreamExists,
    Trimmed,
    UnknownCheckpoint,
    UnknownStream,
)
from headrace.log import ops
from headrace.log.batch import Batch
from headrace.log.commit import Limits, Pending
from headrace.log.log import Log
from headrace.testing import FakeClock, FaultyDisk, MemoryDisk


@pytest.fixture
def log() -> Log:
    made = open_log()
    do(made, ops.CreateStream("orders", 2))
    do(made, ops.CreateStream("state", kind="table"))
    return made


def again(log: Log, **settings: Any) -> Log:
    """The same directory after a clean restart."""
    log.close()
    assert isinstance(log.disk, MemoryDisk)
    return open_log(log.disk, log.clock, log.limits, **settings)


# -- append and read ------------------------------------------------------------------------------------------------


def test_indexes_start_at_zero_and_go_on_in_each_partition(log: Log) -> None:
    assert do(log, ops.Append("orders", Batch.of([b"a", b"b"]))) == ops.Appended(0, 2, False)
    assert do(log, ops.Append("orders", Batch.one(b"c"))) == ops.Appended(2, 1, False)
    assert do(log, ops.Append("orders", Batch.one(b"d"), 1)) == ops.Appended(0, 1, False)
    assert (log.bounds("orders"), log.bounds("orders", 1)) == ((0, 3), (0, 1))
    assert payloads(log, "orders") == [b"a", b"b", b"c"]


def test_one_commit_serves_many_and_keeps_their_order(log: Log) -> None:
    pendings = [log.submit([ops.Append("orders", Batch.one(str(n).encode()))]) for n in range(50)]
    assert log.commits == 2
    log.commit_once()
    assert log.commits == 3
    assert [pending.result[0].first for pending in pendings] == list(range(50))
    assert not log.commit_once()


def test_records_are_seen_only_when_they_are_durable(log: Log) -> None:
    log.submit([ops.Append("orders", Batch.one(b"a"))])
    assert log.bounds("orders") == (0, 0)
    assert log.read("orders", 0).num_rows == 0
    log.commit_once()
    assert log.bounds("orders") == (0, 1)


def test_reads_stop_at_the_limit_at_the_bytes_and_at_the_end(log: Log) -> None:
    for _ in range(3):
        do(log, ops.Append("orders", Batch.of([b"12345"] * 4)))
    assert log.read("orders", 1, limit=2).column("index").to_pylist() == [1, 2]
    assert log.read("orders", 0, limit=100, bytes_max=11).num_rows == 2
    assert log.read("orders", 0, limit=100, bytes_max=1).num_rows == 1
    assert log.read("orders", 10, limit=100).column("index").to_pylist() == [10, 11]
    assert log.read("orders", 12).num_rows == 0
    assert log.read("orders", 2**62).num_rows == 0


def test_time_never_goes_back_in_a_partition(log: Log) -> None:
    clock = log.clock
    assert isinstance(clock, FakeClock)
    fill(log, "orders", 1)
    clock.advance(-100)
    fill(log, "orders", 1)
    clock.advance(1000)
    fill(log, "orders", 1)
    times = log.read("orders", 0).column("time").cast(pa.int64()).to_pylist()
    assert times == sorted(times)
    assert times[2] - times[1] == 900 * 1_000_000


@pytest.mark.parametrize(
    ("start", "limit"),
    [(-1, 1), (0, 0)],
)
def test_reads_that_cannot_be_meant(log: Log, start: int, limit: int) -> None:
    with pytest.raises(BadRequest):
        log.read("orders", start, limit=limit)


def test_names_that_do_not_exist(log: Log) -> None:
    for call in (lambda: log.read("none", 0), lambda: log.bounds("orders", 2), lambda: log.bounds("orders", -1)):
        with pytest.raises(UnknownStream):
            call()
    with pytest.raises(UnknownStream):
        do(log, ops.Append("none", Batch.one(b"")))


def test_scan_gives_exactly_the_range_over_segments_and_tail(log: Log) -> None:
    fill(log, "orders", 100)
    maintain(log)
    assert log.segments("orders")
    assert log.partition("orders").tail.entries
    found = [index for records in log.scan("orders", 3, 97) for index in records.column("index").to_pylist()]
    assert found == list(range(3, 97))
    with pytest.raises(BadRequest, match="ends at 100"):
        list(log.scan("orders", 0, 101))


def test_the_first_index_at_a_time(log: Log) -> None:
    clock = log.clock
    assert isinstance(clock, FakeClock)
    start = clock.now_us()
    for _ in range(60):
        fill(log, "orders", 1)
        clock.advance(1)
    maintain(log)
    assert log.segments("orders")
    assert log.index_at_time("orders", 0) == 0
    assert log.index_at_time("orders", start + 1) == 1
    assert log.index_at_time("orders", start + 30_000_000) == 30
    assert log.index_at_time("orders", start + 10**12) == 60
    assert log.index_at_time("orders", start, 1) == 0


# -- producers -----------------------------------------------------------------------------------------------------


def test_a_sequence_seen_before_is_acknowledged_and_stored_once(log: Log) -> None:
    first = do(log, ops.Append("orders", Batch.of([b"a", b"b"]), 0, "p", 5))
    assert do(log, ops.Append("orders", Batch.one(b"a"), 0, "p", 5)) == ops.Appended(0, 2, True)
    assert do(log, ops.Append("orders", Batch.one(b"a"), 0, "p", 4)).duplicate
    assert not do(log, ops.Append("orders", Batch.one(b"c"), 0, "p", 6)).duplicate
    assert not do(log, ops.Append("orders", Batch.one(b"d"), 1, "p", 1)).duplicate  # its own partition
    assert not do(log, ops.Append("orders", Batch.one(b"e"), 0, "q", 1)).duplicate
    assert first.first == 0
    assert payloads(log, "orders") == [b"a", b"b", b"c", b"e"]


def test_a_duplicate_in_the_same_commit_is_seen(log: Log) -> None:
    pendings = [log.submit([ops.Append("orders", Batch.one(b"a"), 0, "p", 1)]) for _ in range(3)]
    log.commit_once()
    assert [pending.result[0].duplicate for pending in pendings] == [False, True, True]


def test_producers_survive_a_restart_and_sealing(log: Log) -> None:
    do(log, ops.Append("orders", Batch.one(b"a"), 0, "p", 2**64 - 1))
    do(log, ops.SetProducer("orders", "q", 7))
    fill(log, "orders", 200)
    maintain(log)
    log = again(log)
    assert do(log, ops.Append("orders", Batch.one(b"a"), 0, "p", 2**64 - 1)) == ops.Appended(0, 1, True)
    assert do(log, ops.Append("orders", Batch.one(b"a"), 0, "q", 7)).duplicate


def test_a_producer_can_be_set_back_and_forgotten(log: Log) -> None:
    do(log, ops.Append("orders", Batch.one(b"a"), 0, "p", 9))
    do(log, ops.SetProducer("orders", "p", 3))
    assert not do(log, ops.Append("orders", Batch.one(b"b"), 0, "p", 4)).duplicate
    do(log, ops.SetProducer("orders", "p", None))
    assert not do(log, ops.Append("orders", Batch.one(b"c"), 0, "p", 0)).duplicate
    log.submit([ops.SetProducer("orders", "p", 50)])
    later = log.submit([ops.Append("orders", Batch.one(b"d"), 0, "p", 60)])
    log.commit_once()
    assert not later.result[0].duplicate
    assert log.partition("orders").producers["p"].sequence == 60
    log = again(log)
    assert log.partition("orders").producers["p"].sequence == 60


@pytest.mark.parametrize("sequence", [None, -1, 2**64])
def test_a_producer_needs_a_sequence_that_fits(log: Log, sequence: int | None) -> None:
    with pytest.raises(BadRequest, match="sequence"):
        do(log, ops.Append("orders", Batch.one(b""), 0, "p", sequence))
    if sequence is not None:
        with pytest.raises(BadRequest, match="sequence"):
            do(log, ops.SetProducer("orders", "p", sequence))
    with pytest.raises(BadRequest, match="name"):
        do(log, ops.Append("orders", Batch.one(b""), 0, "", 1))


# -- transactions ----------------------------------------------------------------------------------------------------


def test_a_transaction_happens_wholly_or_not_at_all(log: Log) -> None:
    do(log, ops.Put("state", b"k", b"1"))
    do(log, ops.Append("orders", Batch.one(b"x"), 0, "p", 1))
    do(log, ops.SaveCursor("c", "orders", 1))
    before = (payloads(log, "orders"), dict(log.stream("state").table.items()), log.bounds("orders"))  # type: ignore[union-attr]
    for failing, index in (
        (ops.Put("state", b"k", b"3", b"2"), 4),
        (ops.Append("orders", Batch.one(b"x"), 0, "p", 1), 4),
        (ops.Put("state", b"k", b"3", ops.ABSENT), 4),
        (ops.Delete("state", b"z", ops.PRESENT), 4),
        (ops.Put("state", b"many", b"", b"of another"), 4),
    ):
        with pytest.raises(ConditionFailed) as caught:
            do(
                log,
                ops.Append("orders", Batch.of([b"y", b"z"])),
                ops.PutMany("state", [b"other", b"many", b"k"], [b"v", b"w", b"1"]),
                ops.SaveCursor("c", "orders", 3),
                ops.SetProducer("orders", "q", 3),
                failing,
            )
        assert caught.value.op_index == index
    after = (payloads(log, "orders"), dict(log.stream("state").table.items()), log.bounds("orders"))  # type: ignore[union-attr]
    assert before == after
    assert do(log, ops.Append("orders", Batch.one(b"next"), 0, "q", 1)) == ops.Appended(1, 1, False)
    position = log.state.cursor(log.stream("orders").info.id, "c", 0)
    assert position is not None
    assert position.index == 1
    log = again(log)
    assert payloads(log, "orders") == [b"x", b"next"]


def test_a_refused_transaction_leaves_its_neighbours_in_the_commit_alone(log: Log) -> None:
    one = log.submit([ops.Append("orders", Batch.one(b"1")), ops.Put("state", b"a", b"1")])
    bad = log.submit([ops.Append("orders", Batch.one(b"2")), ops.Put("state", b"a", b"2", ops.ABSENT)])
    two = log.submit([ops.Append("orders", Batch.one(b"3")), ops.Put("state", b"a", b"3", b"1")])
    log.commit_once()
    assert (one.error, two.error) == (None, None)
    assert isinstance(bad.error, ConditionFailed)
    assert bad.error.previous == b"1"
    assert [pending.result[0].first for pending in (one, two)] == [0, 1]
    assert payloads(again(log), "orders") == [b"1", b"3"]


def test_transactions_that_cannot_be_meant(log: Log) -> None:
    with pytest.raises(BadRequest, match="at least one operation"):
        log.submit([])
    with pytest.raises(BadRequest, match="stands alone"):
        log.submit([ops.CreateStream("x"), ops.Append("x", Batch.one(b""))])
    with pytest.raises(BadRequest, match="is a table"):
        do(log, ops.Append("state", Batch.one(b"")))
    with pytest.raises(BadRequest, match="is a stream"):
        do(log, ops.Put("orders", b"", b""))


# -- tables --------------------------------------------------------------------------------------------------------


def test_puts_say_whether_they_applied_and_what_was_there(log: Log) -> None:
    assert do(log, ops.Put("state", b"k", b"1")) == (True, None)
    assert do(log, ops.Put("state", b"k", b"2", ops.ABSENT)) == (False, b"1")
    assert do(log, ops.Put("state", b"k", b"2", b"0")) == (False, b"1")
    assert do(log, ops.Put("state", b"k", b"2", b"1")) == (True, b"1")
    assert do(log, ops.Put("state", b"n", b"2", ops.PRESENT)) == (False, None)
    assert do(log, ops.Put("state", b"k", b"", ops.PRESENT)) == (True, b"2")
    assert do(log, ops.Delete("state", b"k", b"x")) == (False, b"")
    assert do(log, ops.Delete("state", b"k")) == (True, b"")
    assert do(log, ops.Delete("state", b"k")) == (True, None)
    assert log.stream("state").table.get(b"k") is None  # type: ignore[union-attr]


def test_a_put_sees_the_puts_before_it_in_the_same_commit(log: Log) -> None:
    pendings = [
        log.submit([operation])
        for operation in (
            ops.Put("state", b"k", b"1", ops.ABSENT),
            ops.Put("state", b"k", b"2", ops.ABSENT),
            ops.Put("state", b"k", b"3", b"1"),
            ops.Delete("state", b"k", b"3"),
            ops.Put("state", b"k", b"4", ops.ABSENT),
        )
    ]
    log.commit_once()
    assert [pending.result[0].applied for pending in pendings] == [True, False, True, True, True]
    assert dict(again(log).stream("state").table.items()) == {b"k": b"4"}  # type: ignore[union-attr]


def test_a_table_is_also_a_stream_of_its_changes(log: Log) -> None:
    do(log, ops.Put("state", b"k", b"v"))
    do(log, ops.Delete("state", b"k"))
    rows = log.read("state", 0).select(["type", "key", "payload"]).to_pylist()
    assert rows == [
        {"type": "put", "key": b"k", "payload": b"v"},
        {"type": "delete", "key": b"k", "payload": b""},
    ]


def test_many_puts_are_one_batch_of_records(log: Log) -> None:
    do(log, ops.Put("state", b"k", b"old"))
    many = log.submit([ops.PutMany("state", [b"k", b"n", b"k"], [b"1", b"2", b"3"])])
    after = log.submit([ops.Put("state", b"n", b"4", b"2")])
    entries = len(log.partition("state").tail.entries)
    log.commit_once()
    assert (many.result, after.result) == ([3], [(True, b"2")])
    assert len(log.partition("state").tail.entries) == entries + 2
    expected = {b"k": b"3", b"n": b"4"}
    rows = log.read("state", 1).select(["type", "key", "payload"]).to_pylist()
    assert [(row["type"], row["key"], row["payload"]) for row in rows] == [
        ("put", b"k", b"1"),
        ("put", b"n", b"2"),
        ("put", b"k", b"3"),
        ("put", b"n", b"4"),
    ]
    assert dict(log.stream("state").table.items()) == expected  # type: ignore[union-attr]
    assert log.stream("state").table.written_before(4) == [(b"k", b"3")]  # type: ignore[union-attr]
    with pytest.raises(BadRequest, match="at least one"):
        do(log, ops.PutMany("state", [], []))
    with pytest.raises(BadRequest, match="is a stream"):
        do(log, ops.PutMany("orders", [b""], [b""]))
    assert dict(again(log).stream("state").table.items()) == expected  # type: ignore[union-attr]


def test_tables_are_folded_again_from_segments_and_journal(log: Log) -> None:
    for number in range(100):
        do(log, ops.Put("state", bytes([number % 10]), str(number).encode() * 5))
    do(log, ops.Delete("state", bytes([3])))
    maintain(log)
    assert log.segments("state")
    expected = dict(log.stream("state").table.items())  # type: ignore[union-attr]
    size = log.stream("state").table.bytes  # type: ignore[union-attr]
    log = again(log)
    assert dict(log.stream("state").table.items()) == expected  # type: ignore[union-attr]
    assert log.stream("state").table.bytes == size  # type: ignore[union-attr]


# -- cursors -------------------------------------------------------------------------------------------------------


def test_cursors_only_go_forward_unless_rewound(log: Log) -> None:
    assert do(log, ops.SaveCursor("c", "orders", 5)) == 5
    assert do(log, ops.SaveCursor("c", "orders", 3)) == 5
    assert do(log, ops.SaveCursor("c", "orders", 3, rewind=True)) == 3
    assert do(log, ops.SaveCursor("c", "orders", 4, 1)) == 4
    log = again(log)
    assert do(log, ops.SaveCursor("c", "orders", 1)) == 3
    assert do(log, ops.DeleteCursor("c", "orders")) is True
    assert do(log, ops.DeleteCursor("c", "orders")) is False
    assert do(log, ops.SaveCursor("c", "orders", 1)) == 1
    with pytest.raises(BadRequest):
        do(log, ops.SaveCursor("c", "orders", -1))
    with pytest.raises(BadRequest):
        do(log, ops.SaveCursor("", "orders", 1))


# -- streams -------------------------------------------------------------------------------------------------------


def test_creating_again_is_fine_or_refused_as_asked(log: Log) -> None:
    assert do(log, ops.CreateStream("orders", 9)) is False
    assert log.stream("orders").info.partitions == 2
    with pytest.raises(StreamExists):
        do(log, ops.CreateStream("orders", exist_ok=False))
    with pytest.raises(StreamExists):
        do(log, ops.CreateStream("orders", kind="table"))


@pytest.mark.parametrize("name", ["", "a\nb", "\ud800"])
def test_names_that_are_none(log: Log, name: str) -> None:
    with pytest.raises(BadRequest):
        do(log, ops.CreateStream(name))


def test_shapes_that_are_none(log: Log) -> None:
    for operation in (
        ops.CreateStream("x", 0),
        ops.CreateStream("x", kind="heap"),
        ops.CreateStream("x", 2, kind="table"),
        ops.GrowStream("orders", 1),
        ops.GrowStream("state", 2),
        ops.Trim("orders", 1),
        ops.Trim("orders", -1),
    ):
        with pytest.raises(BadRequest):
            do(log, operation)


def test_many_creates_share_a_commit_and_other_changes_do_not(log: Log) -> None:
    commits = log.commits
    pendings = [log.submit([ops.CreateStream(f"s{number}")]) for number in range(20)]
    again_same = log.submit([ops.CreateStream("s1")])
    append = log.submit([ops.Append("s19", Batch.one(b"x"))])
    delete = log.submit([ops.DeleteStream("s19")])
    while log.commit_once():
        pass
    assert [pending.result for pending in pendings] == [[True]] * 20
    assert again_same.result == [False]
    assert append.result == [ops.Appended(0, 1, False)]
    assert delete.error is None
    assert log.commits - commits == 3
    assert len({stream.info.id for stream in log.state.streams.values()}) == len(log.state.streams)


def test_growing_keeps_what_is_there(log: Log) -> None:
    fill(log, "orders", 2)
    do(log, ops.GrowStream("orders", 4))
    do(log, ops.GrowStream("orders", 4))
    do(log, ops.Append("orders", Batch.one(b"x"), 3))
    log = again(log)
    assert log.stream("orders").info.partitions == 4
    assert [log.bounds("orders", number).next for number in range(4)] == [2, 0, 0, 1]


def test_options_change_and_stay(log: Log) -> None:
    options = ops.StreamOptions(retention_age_s=5.0, ack="processed:x", labels={"a": "b"})
    do(log, ops.SetOptions("orders", options))
    assert again(log).stream("orders").info.options == options


def test_indexes_are_never_used_again_after_delete_and_create(log: Log) -> None:
    fill(log, "orders", 5)
    do(log, ops.Append("orders", Batch.one(b"x"), 1))
    do(log, ops.SaveCursor("c", "orders", 2))
    do(log, ops.DeleteStream("orders"))
    with pytest.raises(UnknownStream):
        log.read("orders", 0)
    log = again(log)
    do(log, ops.CreateStream("orders", 1))
    assert log.bounds("orders") == (5, 5)
    assert log.state.cursors.get(log.stream("orders").info.id) is None
    do(log, ops.GrowStream("orders", 3))
    assert [log.bounds("orders", number).first for number in range(3)] == [5, 1, 0]
    do(log, ops.DeleteStream("orders"))
    do(log, ops.CreateStream("orders", 2))
    log = again(log)
    assert [log.bounds("orders", number).first for number in range(2)] == [5, 1]


def test_deleting_removes_the_files(log: Log) -> None:
    fill(log, "orders", 100)
    maintain(log)
    disk = log.disk
    assert isinstance(disk, MemoryDisk)
    assert [path for path in disk.paths() if path.startswith("segments/1/")]
    do(log, ops.DeleteStream("orders"))
    assert log.state.tail_bytes == 0
    maintain(log)
    assert not [path for path in disk.paths() if path.startswith("segments/1/")]


def test_files_of_a_deleted_stream_go_at_the_next_start(log: Log) -> None:
    fill(log, "orders", 100)
    maintain(log)
    do(log, ops.DeleteStream("orders"))
    log = again(log)
    assert isinstance(log.disk, MemoryDisk)
    assert not [path for path in log.disk.paths() if path.startswith("segments/1/")]


def test_trimming_forgets_and_reading_goes_on_from_the_first_kept(log: Log) -> None:
    fill(log, "orders", 100)
    maintain(log)
    assert do(log, ops.Trim("orders", 40)) == 40
    assert do(log, ops.Trim("orders", 30)) == 40
    assert log.read("orders", 0).column("index").to_pylist()[0] == 40
    with pytest.raises(Trimmed) as caught:
        list(log.scan("orders", 0, 50))
    assert (caught.value.asked, caught.value.first) == (0, 40)
    maintain(log)
    assert isinstance(log.disk, MemoryDisk)
    assert all(ref.next > 40 for ref in log.partition("orders").segments)
    do(log, ops.Trim("orders", 100))
    log = again(log)
    assert log.bounds("orders") == (100, 100)
    assert do(log, ops.Append("orders", Batch.one(b"x"))).first == 100
    log = again(log)
    assert payloads(log, "orders") == [b"x"]


# -- checkpoints -----------------------------------------------------------------------------------------------------


def write_checkpoint(log: Log, data: bytes, position: int = 3) -> ops.CheckpointInfo:
    blob = log.begin_checkpoint("orders")
    for start in range(0, len(data), 700_000):
        blob.write(data[start : start + 700_000])
    blob.finish()
    info = do(log, ops.RegisterCheckpoint(blob.id, "orders", position, blob.size, {"kind": "test"}))
    assert isinstance(info, ops.CheckpointInfo)
    return info


def test_checkpoints_come_back_in_chunks(log: Log) -> None:
    data = bytes(range(256)) * 10_000
    info = write_checkpoint(log, data)
    log = again(log)
    assert log.checkpoint(info.id) == info
    chunks = list(log.read_checkpoint(info.id))
    assert b"".join(chunks) == data
    assert max(map(len, chunks)) <= 1024 * 1024
    assert list(log.read_checkpoint(write_checkpoint(log, b"").id)) == []


def test_a_checkpoint_that_was_not_registered_is_removed_at_the_next_start(log: Log) -> None:
    blob = log.begin_checkpoint("orders")
    blob.write(b"x")
    blob.finish()
    half = log.begin_checkpoint("orders")
    half.write(b"y" * 2_000_000)
    assert half.id != blob.id
    log = again(log)
    assert isinstance(log.disk, MemoryDisk)
    assert not [path for path in log.disk.paths() if path.startswith("checkpoints/")]


def test_checkpoints_can_be_aborted_and_dropped(log: Log) -> None:
    blob = log.begin_checkpoint("orders")
    blob.write(b"x")
    blob.abort()
    finished = log.begin_checkpoint("orders")
    finished.finish()
    finished.abort()
    info = write_checkpoint(log, b"z")
    do(log, ops.DropCheckpoint(info.id))
    with pytest.raises(UnknownCheckpoint):
        log.checkpoint(info.id)
    with pytest.raises(UnknownCheckpoint):
        do(log, ops.DropCheckpoint(info.id))
    maintain(log)
    assert isinstance(log.disk, MemoryDisk)
    assert not [path for path in log.disk.paths() if path.startswith("checkpoints/")]
    assert write_checkpoint(again(log), b"").id > info.id


def test_checkpoints_go_with_their_stream(log: Log) -> None:
    info = write_checkpoint(log, b"x")
    do(log, ops.DeleteStream("orders"))
    assert info.id not in log.state.checkpoints
    maintain(log)
    assert isinstance(log.disk, MemoryDisk)
    assert not [path for path in log.disk.paths() if path.startswith("checkpoints/")]


# -- limits --------------------------------------------------------------------------------------------------------

LIMITS = Limits(
    record_bytes_max=10,
    batch_bytes_max=100,
    streams_max=2,
    partitions_max=2,
    producers_max=1,
    cursors_max=1,
    table_bytes_max=12,
    name_bytes_max=5,
)


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
    log = open_log(limits=LIMITS)
    do(log, ops.CreateStream("s"))
    do(log, ops.CreateStream("t", kind="table"))
    do(log, fits)
    before = log.bounds("s"), log.bounds("t")
    with pytest.raises(LimitExceeded) as caught:
        do(log, exceeds)
    assert caught.value.key == limit
    assert (log.bounds("s"), log.bounds("t")) == before


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
    log = open_log(commit_bytes_max=200)
    do(log, ops.CreateStream("s"))
    for _ in range(10):
        log.submit([ops.Append("s", Batch.one(b"x" * 80))])
    before = log.commits
    while log.commit_once():
        pass
    assert log.commits - before == 4


# -- trouble -------------------------------------------------------------------------------------------------------


def faulty() -> tuple[Log, FaultyDisk, MemoryDisk]:
    memory = MemoryDisk()
    disk = FaultyDisk(memory)
    log = open_log(disk)
    do(log, ops.CreateStream("s"))
    do(log, ops.CreateStream("t", kind="table"))
    fill(log, "s", 3)
    return log, disk, memory


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


def test_room_is_kept_for_the_log_itself() -> None:
    log = open_log(MemoryDisk(free_bytes=5_000), disk_reserve_bytes=4_000)
    do(log, ops.CreateStream("s"))
    with pytest.raises(DiskFull, match="disk_reserve_bytes"):
        do(log, ops.Append("s", Batch.one(b"x" * 2_000)))
    assert do(log, ops.Append("s", Batch.one(b"x"))).first == 0


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


def test_a_close_that_cannot_mark_the_journal_is_still_a_close() -> None:
    log, disk, memory = faulty()
    disk.fail_all("write", errno.EIO)
    log.close()
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
