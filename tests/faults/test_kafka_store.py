"""The store of a log on Kafka, with real brokers: in a compacted topic and in a folder; cut, taken over, moved."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from confluent_kafka.admin import AdminClient
from kafka_brokers import Brokers
from support.kafka import new_cell
from support.until import wait_until
from unit.log.test_moving import check as check_moved
from unit.log.test_moving import data as data  # a fixture
from unit.log.test_moving import original as original
from unit.log.test_shared import checkpoint, do, expected, fill, numbers, work

from headrace.config import Log as LogSettings
from headrace.errors import Damaged, LogFailed
from headrace.log import ops
from headrace.log.batch import Batch
from headrace.log.cached_store import CachedStore
from headrace.log.clock import SystemClock
from headrace.log.disk import OsDisk
from headrace.log.journal_port import Unrecoverable
from headrace.log.kafka import confluent
from headrace.log.kafka.cell import open_cell
from headrace.log.kafka.client import KafkaPort, connect
from headrace.log.kafka.topic_store import TopicStore
from headrace.log.kafka.topics import blobs_topic, create_missing, journal_topic
from headrace.log.kafka.whole_cell import WholeCell
from headrace.log.log import Log
from headrace.log.moving import into_directory, into_journal
from headrace.log.orphans import named
from headrace.log.shared_doctor import examine
from headrace.log.stamp import split
from headrace.log.store import DirectoryStore
from headrace.log.uri_store import FolderStore
from headrace.testing import FakeClock

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

LONG = bytes(range(256)) * 12_000  # four parts
SMALL = LogSettings(segment_bytes=20_000, journal_file_bytes=50_000, journal_bytes_max=100_000, disk_reserve_bytes=0)


def test_blobs_in_a_topic(brokers: Brokers, tmp_path: Path) -> None:
    settings, kafka = new_cell(brokers.servers)
    stores = [TopicStore(kafka, blobs_topic(settings), 0) for _ in range(2)]
    names: dict[str, bytes] = {}

    def put(store: TopicStore, who: str) -> None:
        for number in range(5):
            names[store.put(f"f/{number}-{who}", LONG + who.encode())] = LONG + who.encode()

    writers = [threading.Thread(target=put, args=(store, who)) for store, who in zip(stores, "ab", strict=True)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    stamps = {name: split(name)[1] for name in names}
    assert all(stamp is not None and stamp.parts == 4 for stamp in stamps.values())
    for name, wanted in names.items():
        assert stores[0].get(name) == wanted
    gone, *_, kept = names
    stores[0].delete(gone)
    assert len(list(stores[1].names())) == 9
    with pytest.raises(FileNotFoundError):
        stores[1].get(split(gone)[0])
    assert stores[1].get(split(kept)[0]) == names[kept]
    cached = CachedStore(DirectoryStore(OsDisk(tmp_path)), stores[1], 10**8)
    assert cached.map(kept).to_pybytes() == names[kept]
    cached.close()
    kafka.close()


def test_a_small_blob_is_read_without_a_wait_for_what_may_come(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that has come to the end of the topic would ask for more, and `seek` would wait for the answer."""
    monkeypatch.setitem(confluent.FIXED_CONSUMER, "fetch.wait.max.ms", 60_000)
    settings, kafka = new_cell(brokers.servers)
    store = TopicStore(kafka, blobs_topic(settings), 0)
    names = [store.put(f"f/{number}", b"%d" % number) for number in range(3)]
    began = time.monotonic()
    assert [store.get(name) for name in names] == [b"0", b"1", b"2"]
    assert time.monotonic() < began + 50
    store.close()
    kafka.close()


def test_what_has_come_is_not_kept_waiting(brokers: Brokers) -> None:
    """A reader gets what is there, however long it would wait for more."""
    settings, kafka = new_cell(brokers.servers)
    topic = blobs_topic(settings)
    TopicStore(kafka, topic, 0).put("f/a", LONG)
    consumer = kafka.consumer(topic, 0, 0)
    received = []
    began = time.monotonic()
    while len(received) < 4:
        received += consumer.receive(100)
    assert time.monotonic() - began < 90
    consumer.close()
    kafka.close()


@pytest.mark.parametrize("store", ["kafka", "file"])
def test_a_takeover_with_an_empty_disk(brokers: Brokers, tmp_path: Path, store: str) -> None:
    settings, kafka = new_cell(brokers.servers, store=store if store == "kafka" else (tmp_path / "far").as_uri())
    log_settings = msgspec.structs.replace(SMALL, kafka=settings)
    first = open_cell(OsDisk(tmp_path / "first"), SystemClock(), log_settings, kafka)
    do(first, ops.CreateStream("s"))
    do(first, ops.CreateStream("t", kind="table"))
    do(first, ops.Put("t", b"k", b"v"))
    count = 0
    while not kafka.bounds(journal_topic(settings), 0)[0]:
        fill(first, "s", 100, count)
        count += 100
        work(first)
        assert count < 20_000, "the journal is not cut"
    number = checkpoint(first, "s", LONG)
    with WholeCell(log_settings, SystemClock(), "doctor") as cell:
        assert examine(cell, tmp_path / "doctor").healthy
    second = open_cell(OsDisk(tmp_path / "second"), SystemClock(), log_settings, new_connection(log_settings))
    assert second.recovered.findings == []
    assert numbers(second, "s") == expected(0, count)
    assert (second.table_get("t", b"k"), b"".join(second.read_checkpoint(number))) == (b"v", LONG)
    with pytest.raises(LogFailed):
        do(first, ops.Append("s", Batch.one(b"zombie")))
    fill(second, "s", 10, count)
    second.close()
    third = open_cell(OsDisk(tmp_path / "third"), SystemClock(), log_settings, new_connection(log_settings))
    assert numbers(third, "s") == expected(0, count + 10)
    third.close()


def new_connection(settings: LogSettings) -> KafkaPort:
    return connect(settings.kafka)


def test_a_log_moves_in_and_out(brokers: Brokers, data: Path, tmp_path: Path) -> None:
    settings, kafka = new_cell(brokers.servers)
    log_settings = msgspec.structs.replace(SMALL, kafka=settings)
    with WholeCell(log_settings, SystemClock(), "migrated", kafka) as cell:
        moved = into_journal(data, cell, tmp_path / "hub")
        assert moved.compared == moved.copied.records
    log = open_cell(OsDisk(tmp_path / "hub"), FakeClock(), log_settings, new_connection(log_settings))
    check_moved(log)
    log.close()
    with WholeCell(log_settings, SystemClock(), "migrated") as cell:
        assert into_directory(cell, tmp_path / "hub", tmp_path / "back").compared == moved.compared


def test_a_journal_topic_that_was_made_again_is_refused(brokers: Brokers, tmp_path: Path) -> None:
    settings, kafka = new_cell(brokers.servers)
    log_settings = msgspec.structs.replace(SMALL, kafka=settings)
    log = open_cell(OsDisk(tmp_path / "first"), SystemClock(), log_settings, kafka)
    do(log, ops.CreateStream("s"))
    count = 0
    while not log.state.snapshots:
        fill(log, "s", 100, count)
        count += 100
        work(log)
    log.close()
    name = journal_topic(settings)
    admin = AdminClient({"bootstrap.servers": brokers.servers})
    for outcome in admin.delete_topics([name]).values():
        outcome.result()
    kafka = new_connection(log_settings)
    wait_until(lambda: kafka.topic(name) is None)
    create_missing(kafka, settings)
    wait_until(lambda: kafka.topic(name) is not None)
    with pytest.raises(Unrecoverable, match="created again"):
        open_cell(OsDisk(tmp_path / "second"), SystemClock(), log_settings, kafka)
    kafka.close()


def filled_with_segments(log: Log, stream: str = "s") -> int:
    """How many records it has: some in segments, some in the journal, with two snapshots."""
    do(log, ops.CreateStream(stream))
    count = 0
    while len(log.state.snapshots) < 2 or len(log.partition(stream).segments) < 3:
        fill(log, stream, 100, count)
        count += 100
        work(log)
        assert count < 20_000, "nothing is sealed"
    return count


def test_a_store_that_hangs_keeps_nobody_waiting(
    brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appends are acknowledged meanwhile, and another hub takes over. What arrives in the store too late counts for
    nobody."""
    settings, kafka = new_cell(brokers.servers, store=(tmp_path / "far").as_uri())
    log_settings = msgspec.structs.replace(SMALL, kafka=settings)
    slow = open_cell(OsDisk(tmp_path / "slow"), SystemClock(), log_settings, kafka)
    count = filled_with_segments(slow)
    hangs, goes_on = threading.Event(), threading.Event()
    copy_in = FolderStore.copy_in

    def hang(store: FolderStore, name: str, chunks: Iterable[bytes]) -> str:
        if slow.store.tag in name:
            hangs.set()
            assert goes_on.wait(120)
        return copy_in(store, name, chunks)

    monkeypatch.setattr(FolderStore, "copy_in", hang)
    fill(slow, "s", 500, count)
    sealing = threading.Thread(target=slow.maintain_once)
    sealing.start()
    assert hangs.wait(60)
    fill(slow, "s", 100, count + 500)
    owner = open_cell(OsDisk(tmp_path / "owner"), SystemClock(), log_settings, new_connection(log_settings))
    before = set(owner.store.names())
    goes_on.set()
    sealing.join()
    with pytest.raises(LogFailed):
        do(slow, ops.Append("s", Batch.one(b"zombie")))
    late = set(owner.store.names()) - before
    assert late, "it has come, too late"
    assert late.isdisjoint(named(owner.state))
    fill(owner, "s", 10, count + 600)
    assert numbers(owner, "s") == expected(0, count + 610)
    owner.close()


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_store_that_is_damaged(brokers: Brokers, tmp_path: Path) -> None:
    """A snapshot: the other one serves. A segment: its records are refused by name, all others are served."""
    far = tmp_path / "far"
    settings, kafka = new_cell(brokers.servers, store=far.as_uri())
    log_settings = msgspec.structs.replace(SMALL, kafka=settings)
    first = open_cell(OsDisk(tmp_path / "first"), SystemClock(), log_settings, kafka)
    count = filled_with_segments(first)
    broken = first.partition("s").segments[1]
    for name in (first.state.snapshots[-1].name, broken.path):
        damage(far / "0" / split(name)[0])
    second = open_cell(OsDisk(tmp_path / "second"), SystemClock(), log_settings, new_connection(log_settings))
    with pytest.raises(Damaged) as caught:
        second.read("s", broken.first, 0, 10, 1 << 20)
    assert (caught.value.first, caught.value.last) == (broken.first, broken.next - 1)
    for start, end in ((0, broken.first), (broken.next, count)):
        payloads = [value for batch in second.scan("s", start, end) for value in batch.column("payload").to_pylist()]
        assert payloads == expected(start, end)
    fill(second, "s", 10, count)
    with WholeCell(log_settings, SystemClock(), "doctor") as cell:
        found = {finding.kind for finding in examine(cell, tmp_path / "doctor").findings}
    assert found >= {"damaged-snapshot", "damaged-records"}
    second.close()
