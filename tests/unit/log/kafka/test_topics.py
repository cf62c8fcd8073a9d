"""Topics as they should be, and what is said of those that are not."""

from __future__ import annotations

import pytest
from msgspec import structs

from headrace.config import Kafka, Log
from headrace.errors import BadConfig
from headrace.log.clock import SystemClock
from headrace.log.kafka.cell import open_cell
from headrace.log.kafka.client import connect
from headrace.log.kafka.topics import create_missing, plans, problems, require_journal
from headrace.testing import FakeKafka, MemoryDisk

SETTINGS = Kafka(servers="a:1,b:2", prefix="p")


@pytest.fixture
def kafka() -> FakeKafka:
    made = FakeKafka()
    assert create_missing(made, SETTINGS) == ["p.journal", "p.blobs", "p.cells"]
    return made


def test_what_is_made_is_right(kafka: FakeKafka) -> None:
    assert create_missing(kafka, SETTINGS) == []
    for plan in plans(SETTINGS):
        assert problems(kafka, SETTINGS, plan) == []
    require_journal(kafka, SETTINGS)
    journal = kafka.topics["p.journal"]
    assert journal.config == {
        "min.insync.replicas": "2",
        "unclean.leader.election.enable": "false",
        "compression.type": "producer",
        "max.message.bytes": "2097152",
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
    }
    assert (len(journal.partitions), journal.replication) == (1, 3)
    assert kafka.topics["p.blobs"].config["cleanup.policy"] == "compact"


def test_a_topic_that_the_broker_asked_does_not_know_of_yet_is_left_as_it_is(kafka: FakeKafka) -> None:
    """A broker that has just come back, or somebody else who makes them at the same moment."""
    kafka.topic = lambda name: None  # type: ignore[method-assign]
    assert create_missing(kafka, SETTINGS, flush=True) == []
    assert "flush.messages" not in kafka.topics["p.journal"].config


def test_only_a_new_journal_is_flushed() -> None:
    kafka = FakeKafka()
    create_missing(kafka, SETTINGS, flush=True)
    assert [name for name, topic in kafka.topics.items() if "flush.messages" in topic.config] == ["p.journal"]


@pytest.mark.parametrize(
    ("key", "wrong", "right"),
    [
        ("min.insync.replicas", "1", "2"),
        ("unclean.leader.election.enable", "true", "false"),
        ("retention.ms", "604800000", "-1"),
        ("retention.bytes", "1000", "-1"),
        ("cleanup.policy", "compact", "delete"),
        ("max.message.bytes", "1048588", "2097152"),
        ("compression.type", "gzip", "producer"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_mends_it(kafka: FakeKafka, key: str, wrong: str, right: str) -> None:
    kafka.topics["p.journal"].config[key] = wrong
    [problem] = problems(kafka, SETTINGS, plans(SETTINGS)[0])
    assert problem.text == f"topic p.journal: {key} is {wrong} and must be {right}"
    assert problem.command == (
        "kafka-configs.sh --bootstrap-server a:1,b:2 --alter --entity-type topics --entity-name p.journal "
        f"--add-config {key}={right}"
    )
    with pytest.raises(BadConfig, match=f"{key} is {wrong}.*kafka-configs.sh"):
        open_cell(MemoryDisk(), SystemClock(), Log(kafka=SETTINGS), kafka)


def test_more_than_needed_is_right(kafka: FakeKafka) -> None:
    kafka.topics["p.journal"].config |= {"min.insync.replicas": "3", "max.message.bytes": "9000000"}
    require_journal(kafka, SETTINGS)


def test_a_setting_that_is_not_told_is_wrong(kafka: FakeKafka) -> None:
    del kafka.topics["p.journal"].config["retention.ms"]
    with pytest.raises(BadConfig, match="retention.ms is not set"):
        require_journal(kafka, SETTINGS)


def test_too_few_replicas(kafka: FakeKafka) -> None:
    kafka.topics["p.journal"].replication = 1
    with pytest.raises(BadConfig, match="kept by 1 brokers and not by 3.*kafka-reassign-partitions.sh"):
        require_journal(kafka, SETTINGS)
    one = structs.replace(SETTINGS, replication=1)
    require_journal(kafka, one)
    assert plans(one)[0].config["min.insync.replicas"] == "1"


def test_a_topic_with_more_partitions_is_none_of_ours() -> None:
    kafka = FakeKafka()
    kafka.create_topic("p.journal", 4, 3, plans(SETTINGS)[0].config)
    with pytest.raises(BadConfig, match="p.journal has 4 partitions, and 1 is what hubs use.*headrace cluster init"):
        require_journal(kafka, SETTINGS)


def test_no_journal_yet() -> None:
    with pytest.raises(BadConfig, match="there is no topic p.journal: headrace cluster init"):
        require_journal(FakeKafka(), SETTINGS)


def test_without_servers_nobody_is_asked() -> None:
    with pytest.raises(BadConfig, match="log.kafka.servers is empty"):
        connect(Kafka())


def test_without_the_client_the_error_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "headrace.log.kafka.confluent", None)
    with pytest.raises(BadConfig, match=r"pip install 'headrace\[kafka\]'"):
        connect(SETTINGS)


@pytest.mark.parametrize("key", ["acks", "enable.idempotence", "auto.offset.reset", "bootstrap.servers"])
def test_what_durability_rests_on_cannot_be_chosen(key: str) -> None:
    with pytest.raises(BadConfig, match=f"log.kafka.client: {key} cannot be chosen"):
        connect(structs.replace(SETTINGS, client={key: "1"}))


def test_a_property_that_the_client_does_not_know() -> None:
    with pytest.raises(BadConfig, match='No such configuration property: "sasl.pasword"'):
        connect(structs.replace(SETTINGS, client={"sasl.pasword": "x"}))
