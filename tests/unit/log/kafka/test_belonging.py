"""Logs that must not be taken for one another: other prefixes, another store, topics that were created again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from unit.log.kafka.test_takeover import SETTINGS
from unit.log.test_shared import do, expected, fill, numbers, work

from headrace.config.sections import Kafka as KafkaSettings
from headrace.errors import BadConfig, StoreUnavailable
from headrace.log import ops
from headrace.log.disk import OsDisk
from headrace.log.journal_port import Unrecoverable
from headrace.log.kafka.cell import open_cell
from headrace.log.kafka.topics import create_missing
from headrace.log.kafka.whole_cell import WholeCell
from headrace.log.log import Log
from headrace.log.orphans import AFTER_US
from headrace.log.shared_doctor import examine
from headrace.log.uri_store import FolderStore
from headrace.testing import FakeClock
from headrace.testing.kafka import FakeKafka


class Places:
    def __init__(self, root: Path) -> None:
        self.kafka = FakeKafka()
        self.clock = FakeClock()
        self.root = root
        self.count = 0

    def open(self, prefix: str, store: str) -> Log:
        self.count += 1
        settings = msgspec.structs.replace(SETTINGS, kafka=KafkaSettings(prefix=prefix, timeout_s=1, store=store))
        create_missing(self.kafka, settings.kafka)
        return open_cell(OsDisk(self.root / f"hub{self.count}"), self.clock, settings, self.kafka)


def test_a_store_that_another_log_uses_is_refused(tmp_path: Path) -> None:
    """Before it is: what the one had just stored would be what nothing refers to, for the other."""
    places = Places(tmp_path)
    far = (tmp_path / "far").as_uri()
    one = places.open("one", far)
    with pytest.raises(BadConfig, match="belongs to another log than two.journal: that of the topic one.journal"):
        places.open("two", far)
    do(one, ops.CreateStream("s"))
    for start in range(0, 200, 20):
        fill(one, "s", 20, start)
        work(one)
    again = places.open("one", far)
    assert again.recovered.findings == []
    assert numbers(again, "s") == expected(0, 200)


def test_logs_on_the_same_brokers_never_meet(tmp_path: Path) -> None:
    """Each under its prefix: streams of one name, stores in topics, and the look for what nothing refers to."""
    places = Places(tmp_path)
    logs = {prefix: places.open(prefix, "kafka") for prefix in ("p", "p.q", "p.journal")}
    for log in logs.values():
        do(log, ops.CreateStream("s"))
    for start in range(0, 200, 20):
        for log in logs.values():
            fill(log, "s", 20, start)
            work(log)
        places.clock.advance(AFTER_US // 1_000_000)
    assert len(places.kafka.topics) == 9
    for prefix, log in logs.items():
        assert log.gauges()["epoch"] == 1
        again = places.open(prefix, "kafka")
        assert again.recovered.findings == []
        assert numbers(again, "s") == expected(0, 200)


def test_a_store_is_not_begun_again_with_a_new_topic(tmp_path: Path) -> None:
    """Though nothing had been stored there yet."""
    places = Places(tmp_path)
    far = (tmp_path / "far").as_uri()
    places.open("one", far).close()
    for name in list(places.kafka.topics):
        places.kafka.delete_topic(name)
    with pytest.raises(Unrecoverable, match="created again"):
        places.open("one", far)


def test_two_that_mark_a_store_at_the_same_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither has seen the other's mark: one of them sees it afterwards, and takes its own back."""
    places = Places(tmp_path)
    far = (tmp_path / "far").as_uri()
    put = FolderStore.put

    def put_second(store: FolderStore, name: str, data: bytes) -> str:
        monkeypatch.setattr(FolderStore, "put", put)
        put(store, "journal/of-another", b"other.journal")
        return put(store, name, data)

    monkeypatch.setattr(FolderStore, "put", put_second)
    with pytest.raises(BadConfig, match=r"other\.journal"):
        places.open("one", far)
    assert list((tmp_path / "far/0/journal").iterdir()) == [tmp_path / "far/0/journal/of-another"]


def test_ids_with_a_slash_are_names_without(tmp_path: Path) -> None:
    """As brokers have them."""
    places = Places(tmp_path)
    far = (tmp_path / "far").as_uri()
    create_missing(places.kafka, KafkaSettings(prefix="one"))
    places.kafka.topics["one.journal"].id = "2bT3r8CuQzC8XClOLk/+gA"
    places.open("one", far).close()
    places.open("one", far).close()
    assert [each.name for each in (tmp_path / "far/0/journal").iterdir()] == ["2bT3r8CuQzC8XClOLk_-gA"]


def test_a_store_that_cannot_be_reached_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = Places(tmp_path)
    monkeypatch.setattr("headrace.log.kafka.belonging.RETRY_S", 0.01)
    answers = [OSError("away"), OSError("away")]
    listed = FolderStore.list

    def list_later(store: FolderStore, folder: str, *, tidy: bool = False) -> list[str]:
        if answers:
            raise answers.pop()
        return listed(store, folder, tidy=tidy)

    monkeypatch.setattr(FolderStore, "list", list_later)
    places.open("one", (tmp_path / "far").as_uri()).close()
    answers += [OSError("away")] * 1000
    with pytest.raises(StoreUnavailable, match="away"):
        places.open("one", (tmp_path / "far").as_uri())


def test_the_doctor_marks_nothing(tmp_path: Path) -> None:
    far = tmp_path / "far"
    settings = msgspec.structs.replace(SETTINGS, kafka=KafkaSettings(timeout_s=1, store=far.as_uri()))
    kafka = FakeKafka()
    create_missing(kafka, settings.kafka)
    with WholeCell(settings, FakeClock(), "doctor", kafka) as cell:
        examine(cell, tmp_path / "doctor")
    assert not (far / "0/journal").exists()
