"""What every log keeps to, whatever journal and store it stands on: all of `LogPort`, with its threads."""

from __future__ import annotations

import errno
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from support.until import wait_until
from unit.log.helpers import Outcomes

from headrace.config import Log as LogSettings
from headrace.config.sections import Kafka as KafkaSettings
from headrace.errors import BadRequest, Busy, Closed, DiskFull, Fenced, LogFailed, UnknownCheckpoint, UnknownStream
from headrace.log import ops
from headrace.log.batch import Batch
from headrace.log.cached_store import CachedStore
from headrace.log.clock import SystemClock
from headrace.log.directory import open_directory
from headrace.log.disk import OsDisk
from headrace.log.kafka.cell import open_cell
from headrace.log.kafka.topics import create_missing
from headrace.log.log import Log
from headrace.log.port import LogPort
from headrace.log.store import DirectoryStore, Store
from headrace.testing import FakeKafka, MemoryDisk, MemoryJournal, MemoryStore

SETTINGS = LogSettings(
    segment_bytes=5_000,
    tail_bytes_max=10_000,
    journal_file_bytes=20_000,
    journal_bytes_max=40_000,
    disk_reserve_bytes=0,
    maintenance_interval_s=0.05,
)


def cached(directory: Path, remote: Store) -> CachedStore:
    """What a hub has in front of a store that others reach too; each has a name and an empty directory."""
    return CachedStore(DirectoryStore(OsDisk(directory)), remote, 10**6, f"-{directory.name}")


Open = Callable[[], LogPort]
"""The same log, as the next process finds it."""


KINDS = ["directory", "directory in memory", "memory", "shared store", "kafka in memory", "kafka without a store"]


@pytest.fixture(params=KINDS)
def again(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    match request.param:
        case "directory":
            return lambda: open_directory(OsDisk(tmp_path / "data"), SystemClock(), SETTINGS)
        case "directory in memory":
            disk = MemoryDisk()
            return lambda: open_directory(disk, SystemClock(), SETTINGS)
        case "shared store":
            kept, remote = MemoryJournal(SETTINGS.journal_file_bytes), MemoryStore()
            return lambda: Log(kept, cached(tmp_path / uuid.uuid4().hex, remote), SystemClock(), SETTINGS)
        case "kafka in memory":
            kafka = FakeKafka()
            create_missing(kafka, SETTINGS.kafka)
            return lambda: open_cell(OsDisk(tmp_path / uuid.uuid4().hex), SystemClock(), SETTINGS, kafka)
        case "kafka without a store":
            brokers = FakeKafka()
            create_missing(brokers, SETTINGS.kafka)
            cell_disk = MemoryDisk()
            alone = msgspec.structs.replace(SETTINGS, kafka=KafkaSettings(store="local"))
            return lambda: open_cell(cell_disk, SystemClock(), alone, brokers)
        case _:
            journal, store = MemoryJournal(SETTINGS.journal_file_bytes), MemoryStore()
            return lambda: Log(journal, store, SystemClock(), SETTINGS)


@pytest.fixture
def outcomes() -> Outcomes:
    return Outcomes()


@pytest.fixture
def log(again: Open, outcomes: Outcomes) -> Iterator[LogPort]:
    made = again()
    made.start(outcomes)
    for operation in (ops.CreateStream("s"), ops.CreateStream("t", kind="table")):
        outcomes.wait_for(made.submit([operation]))
    yield made
    made.close()


def test_transactions_become_durable_by_themselves(log: LogPort, outcomes: Outcomes) -> None:
    pendings = [log.submit([ops.Append("s", Batch.one(b"x"))], token=number) for number in range(100)]
    assert outcomes.wait_for(pendings[-1]).result == [ops.Appended(99, 1, False)]
    assert [pending.token for pending in outcomes.done if pending.token is not None] == list(range(100))
    assert log.queue_bytes == 0


def refusal(log: LogPort, outcomes: Outcomes, operation: ops.Append) -> BaseException | None:
    return outcomes.wait_for(log.submit([operation])).error


def test_an_append_after_another_sequence_than_the_last_is_fenced(log: LogPort, outcomes: Outcomes) -> None:
    def append(sequence: int, after: int | None, producer: str | None = "p") -> ops.Append:
        return ops.Append("s", Batch.one(b"x"), 0, producer, sequence, after=after)

    pendings = [log.submit([append(*numbers)]) for numbers in ((4, -1), (9, 4))]  # the second builds on one under way
    assert [outcomes.wait_for(pending).result[0].first for pending in pendings] == [0, 1]
    for sequence, after in ((10, -1), (10, 4), (10, 8), (9, 4)):
        assert isinstance(refusal(log, outcomes, append(sequence, after)), Fenced)
    assert isinstance(refusal(log, outcomes, append(9, 9)), BadRequest)
    assert isinstance(refusal(log, outcomes, append(1, 0, None)), BadRequest)
    assert isinstance(refusal(log, outcomes, append(1, 0, "q")), Fenced)
    both = log.submit([append(12, 9), append(13, 9)])
    assert isinstance(outcomes.wait_for(both).error, Fenced)
    assert (log.bounds("s"), log.producer("s", "p")) == ((0, 2), 9)


def test_what_stands_behind_a_fenced_append_in_its_line_is_not_stored(log: LogPort, outcomes: Outcomes) -> None:
    line = ops.Line()
    pairs = [(4, 2), (9, 4), (9, -1)]
    appends = [ops.Append("s", Batch.one(b"x"), 0, "p", sequence, line, after) for sequence, after in pairs]
    pendings = [log.submit([append]) for append in appends]
    assert [type(outcomes.wait_for(pending).error) for pending in pendings] == [Fenced, Busy, Busy]
    assert (log.bounds("s"), log.producer("s", "p")) == ((0, 0), None)


def test_the_port_answers(log: LogPort, outcomes: Outcomes) -> None:
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
    assert log.table_page("t", 0, 9) == [(b"k", b"v")]
    assert log.table_page("t", 2**63, 9) == []
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


def test_a_read_that_needs_the_disk_is_not_done_now(log: LogPort, outcomes: Outcomes) -> None:
    for _ in range(30):
        last = log.submit([ops.Append("s", Batch.one(b"x" * 500))])
    outcomes.wait_for(last)
    wait_until(lambda: log.segments("s"))
    assert log.read_now("s", 0, 0, 10, 100) is None
    assert log.read("s", 0, 0, 10, 10_000).column("index").to_pylist()[0] == 0


def test_checkpoints_through_the_port(log: LogPort, outcomes: Outcomes) -> None:
    blob = log.begin_checkpoint("s")
    blob.write(b"data")
    blob.finish()
    outcomes.wait_for(log.submit([ops.RegisterCheckpoint(blob.id, "s", 0, blob.size, {})]))
    assert [info.id for info in log.checkpoints()] == [blob.id]
    assert b"".join(log.read_checkpoint(blob.id)) == b"data"


def test_after_close_nothing_is_taken(log: LogPort) -> None:
    pending = log.submit([ops.Append("s", Batch.one(b"x"))])
    log.close()
    assert pending.done
    assert pending.error is None
    with pytest.raises(Closed):
        log.submit([ops.Append("s", Batch.one(b"x"))])


def test_all_is_there_after_a_restart(log: LogPort, again: Open, outcomes: Outcomes) -> None:
    blob = log.begin_checkpoint("s")
    blob.write(b"state")
    blob.finish()
    log.submit([ops.RegisterCheckpoint(blob.id, "s", 0, blob.size, {})])
    for number in range(300):
        log.submit(
            [ops.Append("s", Batch.one(b"%03d" % number * 100), 0, "p", number), ops.SaveCursor("c", "s", number)]
        )
        last = log.submit([ops.Put("t", b"k", b"%d" % number)])
    outcomes.wait_for(last)
    wait_until(lambda: log.segments("s"))
    log.close()
    after = again()
    try:
        assert after.recovered.findings == []
        assert after.bounds("s") == (0, 300)
        payloads = [value for batch in after.scan("s", 0, 300) for value in batch.column("payload").to_pylist()]
        assert payloads == [b"%03d" % number * 100 for number in range(300)]
        assert (after.producers("s"), after.cursor("c", "s")) == ({"p": 299}, 299)
        assert after.table_get("t", b"k") == b"299"
        assert b"".join(after.read_checkpoint(blob.id)) == b"state"
        assert after.stored_bytes("s") > 300 * 300
    finally:
        after.close()


def test_the_journal_is_cut_behind_what_is_sealed(log: LogPort, again: Open, outcomes: Outcomes) -> None:
    assert isinstance(log, Log)
    for number in range(400):
        last = log.submit([ops.Append("s", Batch.one(b"x" * 500, id=number))])
        if number % 20 == 0:
            outcomes.wait_for(last)
    outcomes.wait_for(last)
    wait_until(lambda: log.journal.first > 0)
    log.close()
    after = again()
    assert after.recovered.findings == []
    assert sum(batch.num_rows for batch in after.scan("s", 0, 400)) == 400
    after.close()


def test_what_is_dropped_goes_from_the_store(log: LogPort, outcomes: Outcomes) -> None:
    assert isinstance(log, Log)
    blob = log.begin_checkpoint("s")
    blob.finish()
    outcomes.wait_for(log.submit([ops.RegisterCheckpoint(blob.id, "s", 0, blob.size, {})]))
    for _ in range(30):
        last = log.submit([ops.Append("s", Batch.one(b"x" * 500))])
    outcomes.wait_for(last)
    wait_until(lambda: log.segments("s"))
    folder = f"segments/{log.stream('s').id}"
    assert log.store.list(folder)
    outcomes.wait_for(log.submit([ops.DropCheckpoint(blob.id)]))
    outcomes.wait_for(log.submit([ops.DeleteStream("s")]))
    wait_until(lambda: not log.store.list("checkpoints") and not log.store.list(folder))
    with pytest.raises(UnknownCheckpoint):
        log.read_checkpoint(blob.id)


def test_segments_have_a_path_where_others_can_map_them(log: LogPort, outcomes: Outcomes, tmp_path: Path) -> None:
    for _ in range(30):
        last = log.submit([ops.Append("s", Batch.one(b"x" * 500))])
    outcomes.wait_for(last)
    wait_until(lambda: log.segments("s"))
    [first, *_] = log.segments("s")
    assert first.path is None or Path(first.path).stat().st_size == first.bytes


def test_figures_have_names(log: LogPort) -> None:
    gauges = log.gauges()
    assert (gauges["streams"], gauges["tables"], gauges["checkpoints"]) == (1, 1, 0)
    assert gauges["free_bytes"] > 0


def test_a_log_without_files_cannot_be_backed_up(log: LogPort, tmp_path: Path) -> None:
    assert isinstance(log, Log)
    if log.store.home() is None:
        with pytest.raises(BadRequest, match="in memory"):
            log.back_up(tmp_path / "backup")
    else:
        assert log.back_up(tmp_path / "backup").streams == 2
    with log._backing_up, pytest.raises(Busy):
        log.back_up(tmp_path / "another")


def test_a_journal_that_fails_ends_a_log_in_memory_too(outcomes: Outcomes) -> None:
    journal = MemoryJournal()
    log = Log(journal, MemoryStore(), SystemClock(), SETTINGS)
    log.start(outcomes)
    journal.error = OSError(errno.ENOSPC, "full")
    assert isinstance(outcomes.wait_for(log.submit([ops.CreateStream("s")])).error, DiskFull)
    journal.error = OSError(errno.EIO, "broken")
    assert isinstance(outcomes.wait_for(log.submit([ops.CreateStream("s")])).error, LogFailed)
    log.close()
    journal.error = None
    after = Log(journal, MemoryStore(), SystemClock(), SETTINGS)
    assert not after.has_stream("s")
    after.close()
