"""The log's verbs, step by step, without threads: append, read, producers, transactions."""

from __future__ import annotations

import gc
import tracemalloc

import pyarrow as pa
import pytest
from unit.log.helpers import again, do, fill, maintain, payloads

from headrace.errors import BadRequest, ConditionFailed, Fenced, UnknownStream
from headrace.log import ops
from headrace.log.batch import Batch
from headrace.log.log import Log
from headrace.testing import FakeClock

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


def test_a_producer_that_is_renamed_keeps_what_was_on_its_way_and_fences_its_old_name(log: Log) -> None:
    do(log, ops.Append("orders", Batch.one(b"a"), 0, "old", 3))
    log.submit([ops.Append("orders", Batch.one(b"b"), 0, "old", 5, after=3)])
    log.submit([ops.RenameProducer("orders", "old", "new")])
    late = log.submit([ops.Append("orders", Batch.one(b"c"), 0, "old", 7, after=5)])
    log.commit_once()
    assert isinstance(late.error, Fenced)
    assert {name: state.sequence for name, state in log.partition("orders").producers.items()} == {"new": 5}
    do(log, ops.RenameProducer("orders", "nobody", "p"))
    log = again(log)
    assert log.producers("orders") == {"new": 5}


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


@pytest.mark.parametrize("producer", ["", "\ud800", "p\udcff", "p" * 1025, "é" * 513])
def test_names_of_producers_that_are_none(log: Log, producer: str) -> None:
    for operation in (
        ops.Append("orders", Batch.one(b"x"), producer=producer, sequence=1),
        ops.SetProducer("orders", producer, 1),
    ):
        with pytest.raises(BadRequest, match="producer"):
            do(log, operation)
    assert do(log, ops.Append("orders", Batch.one(b"x"), producer="é" * 512, sequence=1)).count == 1


def test_a_transaction_happens_wholly_or_not_at_all(log: Log) -> None:
    do(log, ops.Put("state", b"k", b"1"))
    do(log, ops.Append("orders", Batch.one(b"x"), 0, "p", 1))
    do(log, ops.SaveCursor("c", "orders", 1))
    before = (payloads(log, "orders"), dict(log.state.stream("state").table.items()), log.bounds("orders"))  # type: ignore[union-attr]
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
    after = (payloads(log, "orders"), dict(log.state.stream("state").table.items()), log.bounds("orders"))  # type: ignore[union-attr]
    assert before == after
    assert do(log, ops.Append("orders", Batch.one(b"next"), 0, "q", 1)) == ops.Appended(1, 1, False)
    position = log.state.cursor(log.stream("orders").id, "c", 0)
    assert position is not None
    assert position.index == 1
    log = again(log)
    assert payloads(log, "orders") == [b"x", b"next"]


def test_refused_transactions_leave_nothing_in_memory(log: Log) -> None:
    tracemalloc.start()
    for number in range(100):
        with pytest.raises(ConditionFailed):
            do(log, ops.Put("state", b"%d" % number * 10_000, b""), ops.Put("state", b"k", b"", expect=ops.PRESENT))
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1_000_000


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
    with pytest.raises(BadRequest, match="the only operation"):
        log.submit([ops.CreateStream("x"), ops.Append("x", Batch.one(b""))])
    with pytest.raises(BadRequest, match="is a table"):
        do(log, ops.Append("state", Batch.one(b"")))
    with pytest.raises(BadRequest, match="is a stream"):
        do(log, ops.Put("orders", b"", b""))
