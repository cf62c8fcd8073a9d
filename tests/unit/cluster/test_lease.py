"""Strict reads: who cannot be sure that it owns the log answers nobody."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from support.until import wait_until

from headrace.cluster.lease import READS, Leased
from headrace.config.sections import Kafka as KafkaSettings
from headrace.config.sections import Log as LogSettings
from headrace.errors import Closed, NotHere
from headrace.log import ops
from headrace.log.batch import Batch
from headrace.log.clock import SystemClock
from headrace.log.disk import OsDisk
from headrace.log.kafka.cell import open_cell
from headrace.log.kafka.journal import KafkaJournal
from headrace.log.kafka.messages import Claim
from headrace.log.kafka.topics import create_missing, journal_topic
from headrace.log.kafka.turn import Turn
from headrace.log.log import Log
from headrace.log.struct_types import learn_struct_types
from headrace.testing.kafka import FakeKafka


@pytest.fixture
def kafka() -> FakeKafka:
    learn_struct_types()
    made = FakeKafka()
    create_missing(made, KafkaSettings())
    return made


def opened(kafka: FakeKafka, folder: Path, turn: Turn | None = None, **settings: object) -> Log:
    chosen = LogSettings(backend="kafka", kafka=KafkaSettings(store="local", **settings), disk_reserve_bytes=0)
    folder.mkdir()
    claim = Claim(folder.name, 1)
    return open_cell(OsDisk(folder), SystemClock(), chosen, kafka, claim=claim, turn=turn)


def test_reads_end_with_the_lease_and_writes_do_not(kafka: FakeKafka, tmp_path: Path) -> None:
    log = opened(kafka, tmp_path / "a")
    assert isinstance(log.journal, KafkaJournal)
    leased = Leased(log, log.journal, 1000)
    log.submit([ops.CreateStream("s")])
    log.commit_once()
    assert leased.has_stream("s")
    log.journal.renewed_at -= 1001
    for name in ("has_stream", "read", "read_now", "bounds", "table_get", "cursors", "streams"):
        assert name in READS
        with pytest.raises(NotHere, match=r"lease_s"):
            getattr(leased, name)
    leased.submit([ops.Append("s", Batch.of([b"x"]))])
    log.commit_once()  # it counts, which renews the lease
    assert leased.bounds("s") == (0, 1)
    assert leased.failed is None
    leased.close()


def test_an_idle_owner_renews_its_lease(kafka: FakeKafka, tmp_path: Path) -> None:
    log = opened(kafka, tmp_path / "a", strict_reads=True, lease_s=0.1)
    assert isinstance(log.journal, KafkaJournal)
    log.start(lambda outcomes, touched: None)
    first = log.journal.renewed_at
    assert first > 0
    wait_until(lambda: log.journal.renewed_at > first + 0.1)
    log.close()


def test_without_strict_reads_an_idle_owner_is_silent(kafka: FakeKafka, tmp_path: Path) -> None:
    log = opened(kafka, tmp_path / "a")
    assert log.journal.idle_mark_s is None
    log.mark()
    assert kafka.bounds(journal_topic(KafkaSettings()), 0) == (0, 1)  # the claim
    log.close()


def test_a_follower_has_all_when_its_turn_comes(kafka: FakeKafka, tmp_path: Path) -> None:
    owner = opened(kafka, tmp_path / "a")
    turn = Turn()
    found: list[Log] = []
    following = threading.Thread(target=lambda: found.append(opened(kafka, tmp_path / "b", turn)))
    following.start()
    owner.submit([ops.CreateStream("s")])
    owner.commit_once()
    for number in range(50):
        owner.submit([ops.Append("s", Batch.of([b"%d" % number]))])
        owner.commit_once()
    end = kafka.bounds(journal_topic(KafkaSettings()), 0)[1]
    wait_until(lambda: turn.offset == end)
    assert (turn.epoch, turn.has_left, turn.lag_bytes(end)) == (1, False, 0)
    assert turn.owner == Claim("a", 1)
    assert turn.lag_bytes(end + 10) >= 10
    assert not found
    turn.give()
    following.join(60)
    (log,) = found
    assert log.bounds("s") == (0, 50)
    owner.submit([ops.Append("s", Batch.of([b"late"]))])
    owner.commit_once()
    assert owner.failed is not None, "another hub has taken the cell"
    log.submit([ops.Append("s", Batch.of([b"next"]))])
    log.commit_once()
    assert log.bounds("s") == (0, 51)
    log.close()
    owner.close()


def test_a_follower_sees_that_the_owner_has_left_and_may_be_stopped(kafka: FakeKafka, tmp_path: Path) -> None:
    owner = opened(kafka, tmp_path / "a")
    turn = Turn()
    ended: list[Exception] = []

    def follow() -> None:
        try:
            opened(kafka, tmp_path / "b", turn)
        except Closed as error:
            ended.append(error)

    following = threading.Thread(target=follow)
    following.start()
    wait_until(lambda: turn.epoch == 1)
    assert not turn.has_left
    owner.close()
    wait_until(lambda: turn.has_left)
    turn.give()
    turn.take_back()
    turn.stop()
    turn.give()
    assert not turn.is_mine
    following.join(60)
    assert len(ended) == 1
