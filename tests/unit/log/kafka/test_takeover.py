"""A hub takes a cell with an empty disk: it finds everything by the journal and the store."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.log.helpers import SMALL
from unit.log.test_shared import checkpoint, do, expected, fill, numbers, work

from headrace.config import Log as LogSettings
from headrace.config.sections import Kafka as KafkaSettings
from headrace.errors import LogFailed
from headrace.log import ops
from headrace.log.batch import Batch
from headrace.log.disk import OsDisk
from headrace.log.journal_port import Unrecoverable
from headrace.log.kafka import packing
from headrace.log.kafka.cell import open_cell
from headrace.log.kafka.client import Received
from headrace.log.kafka.topics import create_missing
from headrace.log.kafka.whole_cell import WholeCell
from headrace.log.log import Log
from headrace.log.moving import into_directory, into_journal
from headrace.log.shared_doctor import examine
from headrace.testing import FakeClock, MemoryDisk
from headrace.testing.kafka import FakeConsumer, FakeKafka

SETTINGS = LogSettings(**SMALL, kafka=KafkaSettings(timeout_s=1))


class Cluster:
    """Brokers in memory, and hubs that come one after the other, each with an empty disk."""

    def __init__(self, root: Path | None = None, store: str = "kafka") -> None:
        self.kafka = FakeKafka()
        self.clock = FakeClock()
        self.settings = msgspec.structs.replace(SETTINGS, kafka=KafkaSettings(timeout_s=1, store=store))
        self._root = root
        self._numbers = itertools.count()
        create_missing(self.kafka, self.settings.kafka)

    def open(self) -> Log:
        disk = MemoryDisk() if self._root is None else OsDisk(self._root / f"hub{next(self._numbers)}")
        return open_cell(disk, self.clock, self.settings, self.kafka)

    @property
    def cut(self) -> int:
        return self.kafka.bounds("headrace.journal", 0)[0]


@pytest.fixture(autouse=True)
def nearly_all_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "WORTH_BYTES", 60)


@pytest.fixture(params=["kafka", "file"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Cluster:
    return Cluster(tmp_path, "kafka" if request.param == "kafka" else (tmp_path / "far").as_uri())


def filled(cluster: Cluster) -> Log:
    log = cluster.open()
    do(log, ops.CreateStream("s"))
    do(log, ops.CreateStream("t", kind="table"))
    for start in range(0, 200, 20):
        fill(log, "s", 20, start)
        do(log, ops.Put("t", b"k", b"%d" % start))
        work(log)
    return log


def check(log: Log, end: int = 200) -> None:
    assert log.recovered.findings == []
    assert numbers(log, "s") == expected(0, end)
    assert (log.table_get("t", b"k"), log.producers("s")) == (b"180", {"p": end - 1})


def test_the_next_owner_finds_everything(cluster: Cluster) -> None:
    log = filled(cluster)
    number = checkpoint(log, "s", b"state" * 500_000)
    assert cluster.cut > 0, "the journal was cut behind the store"
    killed = cluster.open()
    check(killed)
    assert b"".join(killed.read_checkpoint(number)) == b"state" * 500_000
    fill(killed, "s", 50, 200)
    work(killed)
    with pytest.raises(LogFailed, match="fenced"):
        do(log, ops.Append("s", Batch.one(b"zombie")))
    work(log)
    killed.close()
    cluster.kafka.compact("headrace.blobs")
    after = cluster.open()
    check(after, 250)
    after.close()


def test_a_zombie_that_works_on_harms_nobody(cluster: Cluster) -> None:
    zombie = filled(cluster)
    fill(zombie, "s", 5, 200)
    owner = cluster.open()
    for _ in range(3):
        cluster.clock.advance(700)
        zombie.maintain_once()
    zombie.commit_once()
    assert zombie.failed is not None
    zombie.maintain_once()
    cluster.kafka.compact("headrace.blobs")
    check(owner, 205)
    fill(owner, "s", 100, 205)
    work(owner)
    cluster.kafka.compact("headrace.blobs")
    check(cluster.open(), 305)


def test_the_journal_is_cut_during_a_takeover(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner cuts while another reads from the old beginning: it begins again, with a newer snapshot."""
    owner = filled(cluster)
    first = cluster.cut
    receive = FakeConsumer.receive
    reads = itertools.count()

    def slow(consumer: Any, timeout_s: float) -> list[Received]:
        if consumer._topic == "headrace.journal" and next(reads) == 2:
            fill(owner, "s", 100, 200)
            work(owner)
            assert cluster.cut > first
        found = receive(consumer, timeout_s)
        if consumer._topic == "headrace.journal" and found:
            found = found[:5]
            consumer._offset = found[-1].offset + 1
        return found

    monkeypatch.setattr(FakeConsumer, "receive", slow)
    after = cluster.open()
    assert next(reads) > 3
    check(after, 300)


def test_a_topic_that_was_made_again_is_no_beginning(cluster: Cluster) -> None:
    filled(cluster).close()
    cluster.kafka.delete_topic("headrace.journal")
    create_missing(cluster.kafka, cluster.settings.kafka)
    with pytest.raises(Unrecoverable, match="created again"):
        cluster.open()


def test_a_journal_that_somebody_else_cut_is_refused(cluster: Cluster) -> None:
    filled(cluster).close()
    low, high = cluster.kafka.bounds("headrace.journal", 0)
    cluster.kafka.delete_records("headrace.journal", 0, high)
    with pytest.raises(Unrecoverable, match="not where a hub cut it"):
        cluster.open()
    assert low < high


def test_a_journal_that_begins_with_a_claim_is_refused(cluster: Cluster) -> None:
    log = filled(cluster)
    _, high = cluster.kafka.bounds("headrace.journal", 0)
    log.close()
    cluster.open().close()
    cluster.kafka.delete_records("headrace.journal", 0, high + 1)
    with pytest.raises(Unrecoverable):
        cluster.open()


def test_a_journal_that_brokers_have_deleted_early() -> None:
    """Wherever they stopped: what a snapshot has seen is there, records that only the journal had are named as lost,
    and without a snapshot for what was deleted no hub opens the log."""
    refused = named = whole = 0
    for cut in itertools.count():
        cluster = Cluster()
        log = filled(cluster)
        fill(log, "s", 30, 200)
        low, high = cluster.kafka.bounds("headrace.journal", 0)
        if low + cut > high:
            break
        cluster.kafka.delete_records("headrace.journal", 0, low + cut)
        try:
            after = cluster.open()
        except Unrecoverable:
            refused += 1
            continue
        assert not refused, "less was deleted before, and it was refused"
        lost = {index for found in after.recovered.damage for index in range(found.first, found.last + 1)}
        whole, named = whole + (not lost), named + bool(lost)
        assert after.bounds("s") == (0, 230), "no index is used twice"
        assert (after.table_get("t", b"k"), after.producers("s")) == (b"180", {"p": 229})
        assert len(after.trouble()) == bool(lost)
        for index, payload in enumerate(expected(0, 230)):
            if index not in lost:
                assert after.read("s", index, limit=1).column("payload").to_pylist() == [payload]
        fill(after, "s", 20, 230)
    assert min(refused, named, whole) > 0


def test_a_cell_is_moved_checked_and_moved_back(cluster: Cluster, tmp_path: Path) -> None:
    filled(cluster).close()
    with WholeCell(cluster.settings, cluster.clock, "migrated", cluster.kafka) as cell:
        assert examine(cell, tmp_path / "doctor").healthy
        back = into_directory(cell, tmp_path / "home", tmp_path / "data")
        assert back.compared == 210
    other = Cluster(tmp_path / "other", (tmp_path / "far2").as_uri())
    with WholeCell(other.settings, other.clock, "migrated", other.kafka) as cell:
        assert into_journal(tmp_path / "data", cell, tmp_path / "home2").compared == 210
    check(other.open())


@settings(max_examples=25)
@given(st.integers(0, 2**32))
def test_whatever_happens_nothing_is_lost(seed: int) -> None:
    """Random work, zombies at work beside the owner, compaction at any moment, and each hub begins with nothing."""
    rng = random.Random(seed)
    cluster = Cluster()
    owner = cluster.open()
    do(owner, ops.CreateStream("s"))
    zombies: list[Log] = []
    count = 0
    for _ in range(rng.randrange(10, 60)):
        cluster.clock.advance(rng.choice([0, 1, 300]))
        match rng.randrange(6):
            case 0 | 1 | 2:
                more = rng.randrange(1, 30)
                fill(owner, "s", more, count)
                count += more
            case 3:
                for _ in range(rng.randrange(6)):
                    rng.choice([owner.maintain_once, owner.commit_once])()
            case 4:
                zombies.append(owner)
                owner = cluster.open()
            case 5:
                cluster.kafka.compact("headrace.blobs")
                for zombie in zombies:
                    rng.choice([zombie.maintain_once, zombie.commit_once])()
    for each in (owner, cluster.open()):
        assert numbers(each, "s") == expected(0, count)
        assert each.recovered.findings == []
