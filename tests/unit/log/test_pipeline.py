"""Commits on their way while others are made: outcomes are those of one commit after the other."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from unit.log.helpers import SMALL, payloads

from headrace.config import Log as LogSettings
from headrace.errors import DiskFull, HeadraceError, LogFailed
from headrace.log import ops, pipeline
from headrace.log.batch import Batch
from headrace.log.kafka.cell import open_cell
from headrace.log.kafka.topics import create_missing
from headrace.log.log import Log
from headrace.log.pending import Pending
from headrace.testing import FakeClock, FakeKafka, Fault, MemoryDisk, MemoryJournal, MemoryStore

SETTINGS = LogSettings(**SMALL)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit sets off whatever waits, and nobody waits for long."""
    monkeypatch.setattr(pipeline, "AHEAD_BYTES_MIN", 0)
    monkeypatch.setattr(pipeline, "AHEAD_BYTES_MAX", 0)
    monkeypatch.setattr(pipeline, "LAND_S", 0.0)


@pytest.fixture
def kafka() -> FakeKafka:
    made = FakeKafka()
    create_missing(made, SETTINGS.kafka)
    return made


@pytest.fixture
def log(kafka: FakeKafka) -> Iterator[Log]:
    made = open_cell(MemoryDisk(), FakeClock(), SETTINGS, kafka)
    for operation in (ops.CreateStream("s", 2), ops.CreateStream("t", kind="table")):
        made.submit([operation])
        made.commit_once()
    yield made
    kafka.release()
    made.close()


def settle(log: Log, kafka: FakeKafka) -> None:
    kafka.release()
    while log.has_work or log.pipeline.flights:
        log.pipeline.step()


def send(log: Log, *operations: ops.Op) -> Pending:
    """On its way, and no further."""
    pending = log.submit(operations)
    log.pipeline.step()
    return pending


def test_the_next_commit_sets_off_before_the_last_is_durable(log: Log, kafka: FakeKafka) -> None:
    kafka.hold()
    pendings = [send(log, ops.Append("s", Batch.one(b"%d" % number))) for number in range(3)]
    log.pipeline.step()
    assert not any(pending.done for pending in pendings)
    assert (log.bounds("s").next, bool(log.pipeline.flights)) == (0, True)
    kafka.release(count=1)
    log.pipeline.step()
    assert [pending.done for pending in pendings] == [True, False, False]
    assert (log.bounds("s").next, payloads(log, "s")) == (1, [b"0"])
    settle(log, kafka)
    assert [pending.result[0].first for pending in pendings] == [0, 1, 2]
    assert (payloads(log, "s"), log.queue_bytes, log.commits) == ([b"0", b"1", b"2"], 0, 5)


def test_no_more_are_on_their_way_than_the_journal_takes(log: Log, kafka: FakeKafka) -> None:
    kafka.hold()
    for number in range(10):
        send(log, ops.Append("s", Batch.one(b"%d" % number)))
    assert len(log.pipeline.flights) == SETTINGS.kafka.commits_max
    settle(log, kafka)
    assert log.bounds("s").next == 10


def test_little_waits_for_what_is_on_its_way(log: Log, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "AHEAD_BYTES_MIN", 1_000)
    monkeypatch.setattr(pipeline, "AHEAD_BYTES_MAX", 10_000)
    kafka.hold()
    for size in (10, 10, 10):
        send(log, ops.Append("s", Batch.one(b"x" * size)))
    assert len(log.pipeline.flights) == 1
    send(log, ops.Append("s", Batch.one(b"x" * 990)))
    assert len(log.pipeline.flights) == 2
    settle(log, kafka)


def test_commits_grow_with_what_is_on_its_way(log: Log, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """As much must wait as all that have set off hold, up to a bound."""
    monkeypatch.setattr(pipeline, "AHEAD_BYTES_MAX", 10_000)
    kafka.hold()
    sizes = []
    for _ in range(25):
        send(log, ops.Append("s", Batch.one(b"x" * 1_000)))
        sizes = [len(flight.gathered) for flight in log.pipeline.flights]
    assert sizes == [1, 1, 2, 4, 8]
    settle(log, kafka)


def test_a_duplicate_is_acknowledged_when_the_first_is_durable(log: Log, kafka: FakeKafka) -> None:
    kafka.hold()
    first = send(log, ops.Append("s", Batch.one(b"x"), 0, "p", 1))
    again = send(log, ops.Append("s", Batch.one(b"x"), 0, "p", 1))
    log.pipeline.step()
    assert not again.done
    settle(log, kafka)
    assert (first.result, again.result) == ([ops.Appended(0, 1, False)], [ops.Appended(0, 1, True)])


def test_what_changes_streams_waits_for_all_before_it(log: Log, kafka: FakeKafka) -> None:
    kafka.hold()
    append = send(log, ops.Append("s", Batch.one(b"x")))
    delete = log.submit([ops.DeleteStream("s")])
    again = log.submit([ops.CreateStream("s")])
    settle(log, kafka)
    assert (append.error, delete.error, again.error) == (None, None, None)
    assert log.bounds("s") == (1, 1), "the stream that is gone had one record"


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.REFUSED])
def test_when_one_fails_all_behind_it_fail(log: Log, kafka: FakeKafka, fault: Fault) -> None:
    kafka.hold()
    pendings = [send(log, ops.Append("s", Batch.one(b"%d" % number))) for number in range(4)]
    kafka.faults += [Fault.NONE, fault]
    settle(log, kafka)
    assert pendings[0].error is None
    assert all(isinstance(pending.error, LogFailed) for pending in pendings[1:])
    assert (log.bounds("s").next, log.queue_bytes) == (1, 0)
    with pytest.raises(LogFailed, match="injected"):
        log.submit([ops.Append("s", Batch.one(b"x"))])


def test_a_journal_that_takes_nothing_more_fails_at_once(log: Log, kafka: FakeKafka) -> None:
    kafka.faults.append(Fault.REFUSED)
    assert isinstance(_done(log, kafka).error, LogFailed)


def test_an_error_that_nobody_thought_of_is_told_to_everyone(
    log: Log, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(frames: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(log.journal, "begin", broken)
    assert isinstance(_done(log, kafka).error, LogFailed)
    assert "please report this" in caplog.text


def _done(log: Log, kafka: FakeKafka) -> Pending:
    pending = send(log, ops.Append("s", Batch.one(b"x")))
    settle(log, kafka)
    return pending


def test_a_full_disk_refuses_and_resumes(log: Log, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka.hold()
    before = send(log, ops.Append("s", Batch.one(b"before")))
    monkeypatch.setattr(log.free_space, "free_bytes", lambda wanted: 10)
    log.submit([ops.Append("s", Batch.one(b"full"))])
    kafka.release()
    log.pipeline.step()
    assert before.done
    assert isinstance(_done(log, kafka).error, DiskFull)
    monkeypatch.undo()
    assert _done(log, kafka).error is None
    assert payloads(log, "s") == [b"before", b"x"]


def test_a_close_waits_for_what_is_on_its_way(kafka: FakeKafka, log: Log) -> None:
    kafka.hold()
    pending = send(log, ops.Append("s", Batch.one(b"x")))
    kafka.release()
    log.close()
    assert (pending.done, pending.error) == (True, None)


# -- the same as one after the other -----------------------------------------------------------------------------------


def transactions(generator: random.Random) -> Iterator[list[ops.Op]]:
    keys = [b"k%d" % number for number in range(4)]

    def one() -> ops.Op:
        partition, key = generator.randrange(2), generator.choice(keys)
        expect = generator.choice([ops.ANY, ops.ABSENT, ops.PRESENT, b"1"])
        match generator.randrange(10):
            case 0 | 1:
                return ops.Append("s", Batch.one(b"%d" % generator.randrange(100)), partition)
            case 2 | 3:
                name = generator.choice("pq")
                return ops.Append("s", Batch.one(b"x"), partition, name, generator.randrange(20))
            case 4 | 5:
                return ops.Put("t", key, b"%d" % generator.randrange(3), expect=expect)
            case 6:
                many = generator.sample(keys, 2)
                changes = [ops.PutMany("t", many, [b"1", b"22"]), ops.DeleteMany("t", many), ops.ClearTable("t")]
                return generator.choice([*changes[:2] * 3, changes[2], ops.Delete("t", key, expect=expect)])
            case 7:
                move = ops.SaveCursor(generator.choice("cd"), "s", generator.randrange(30), partition)
                return generator.choice([move, ops.DeleteCursor(generator.choice("cd"), "s", partition)])
            case _:
                sequence = generator.choice([None, generator.randrange(20)])
                name = generator.choice("pq")
                rename = ops.RenameProducer("s", name, "q" if name == "p" else "p", partition)
                return generator.choice([rename, ops.SetProducer("s", name, sequence, partition)])

    while True:
        if generator.random() < 0.03:
            name = generator.choice(["u", "v"])
            yield [generator.choice([ops.CreateStream(name), ops.DeleteStream(name)])]
        else:
            yield [one() for _ in range(generator.choice([1, 1, 1, 3]))]


def is_alone(transaction: list[ops.Op]) -> bool:
    return any(isinstance(op, pipeline.ALONE) for op in transaction)


def outcome(pending: Pending) -> Any:
    error: HeadraceError | None = pending.error
    return pending.result if error is None else (type(error), str(error))


def state_of(log: Log) -> Any:
    partitions = [
        (payloads(log, "s", number), log.bounds("s", number), log.producers("s", number)) for number in (0, 1)
    ]
    cursors = sorted((cursor.name, cursor.partition, cursor.index) for cursor in log.cursors())
    return partitions, cursors, dict(log.table_items("t")), sorted(info.name for info in log.streams())


def is_clean(log: Log) -> bool:
    """Nothing is pending when nothing is under way."""
    state = log.state
    tables = [stream.table for stream in state.streams.values() if stream.table is not None]
    return (
        not state.pending_cursors
        and not state.flying_cursors
        and all(not table._pending and not table._flying and table.pending_bytes == table.bytes for table in tables)
        and all(not each.pending_producers and not each.flying_producers for each in state.partitions())
        and all(each.pending_next == each.next for each in state.partitions())
    )


@pytest.mark.parametrize("seed", range(40))
def test_outcomes_are_those_of_one_after_the_other(log: Log, kafka: FakeKafka, seed: int) -> None:
    generator = random.Random(seed)
    plain = Log(MemoryJournal(), MemoryStore(), FakeClock(), SETTINGS)
    for operation in (ops.CreateStream("s", 2), ops.CreateStream("t", kind="table")):
        plain.submit([operation])
        plain.commit_once()
    expected, found = [], []
    flying_max = 0
    for _, transaction in zip(range(150), transactions(generator), strict=False):
        expected.append(plain.submit(transaction))
        plain.commit_once()
        found.append(log.submit(transaction))
        if is_alone(transaction):
            settle(log, kafka)
        elif generator.random() < 0.1:
            kafka.hold()
        for _ in range(generator.randrange(4)):
            log.pipeline.step()
        flying_max = max(flying_max, len(log.pipeline.flights))
        kafka.release(count=generator.randrange(3))
        done = [pending.done for pending in found]
        assert done == sorted(done, reverse=True), "in order"
    settle(log, kafka)
    assert [outcome(pending) for pending in found] == [outcome(pending) for pending in expected]
    assert state_of(log) == state_of(plain)
    assert is_clean(log)
    assert flying_max > 1
    again = open_cell(MemoryDisk(), FakeClock(), SETTINGS, kafka)
    assert state_of(again) == state_of(plain)
    again.close()
    plain.close()
