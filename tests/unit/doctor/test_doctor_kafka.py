"""What the doctor says of brokers and topics."""

from __future__ import annotations

import pytest

from headrace.config import Config, Kafka, Log
from headrace.doctor.kafka import check_kafka
from headrace.log.kafka.topics import create_missing
from headrace.testing import FakeKafka

CONFIG = Config(log=Log(backend="kafka", kafka=Kafka(servers="a:1", timeout_s=1)))


@pytest.fixture
def kafka() -> FakeKafka:
    made = FakeKafka()
    create_missing(made, CONFIG.log.kafka)
    return made


def test_all_is_well(kafka: FakeKafka) -> None:
    findings = list(check_kafka(CONFIG, kafka))
    assert [finding.level for finding in findings] == ["ok", "ok"]
    assert "3 brokers: fake-1:9092" in findings[0].text
    assert "in the memory of several" in findings[1].text
    kafka.topics["headrace.journal"].config["flush.messages"] = "1"
    assert "synced to their disks" in list(check_kafka(CONFIG, kafka))[1].text


def test_a_wrong_topic_comes_with_what_mends_it(kafka: FakeKafka) -> None:
    kafka.topics["headrace.journal"].config["retention.ms"] = "1000"
    [_, wrong] = check_kafka(CONFIG, kafka)
    assert (wrong.level, wrong.check) == ("fail", "kafka topics")
    assert "retention.ms is 1000" in wrong.text
    assert wrong.advice.startswith("kafka-configs.sh ")


def test_no_topics_yet() -> None:
    findings = list(check_kafka(CONFIG, FakeKafka()))
    assert [finding.advice for finding in findings if finding.level == "fail"] == ["headrace cluster init"] * 3


def test_too_few_brokers(kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "brokers", lambda: ["a:1"])
    [few, _] = check_kafka(CONFIG, kafka)
    assert few.level == "warn"


def test_no_answer(kafka: FakeKafka) -> None:
    kafka.is_down = True
    [finding] = check_kafka(CONFIG, kafka)
    assert (finding.level, "no broker answers" in finding.text) == ("fail", True)


def test_nobody_is_named() -> None:
    [finding] = check_kafka(Config(log=Log(backend="kafka")))
    assert "log.kafka.servers is empty" in finding.text


def test_a_log_in_files_has_no_brokers() -> None:
    assert list(check_kafka(Config())) == []
