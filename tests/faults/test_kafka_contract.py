"""What every journal keeps to, and what is asked of Kafka, with real brokers."""

from __future__ import annotations

from itertools import count

import pytest
from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from support.kafka import SharedBrokers, new_cell
from unit.log.test_journal_contract import (
    PIECE_BYTES,
    Open,
    test_a_journal_that_begins_behind_the_snapshot_is_no_journal,  # noqa: F401
    test_a_journal_that_is_missing_is_not_taken_for_a_new_one,  # noqa: F401
    test_a_mark_is_a_frame_without_anything,  # noqa: F401
    test_a_new_journal_holds_nothing,  # noqa: F401
    test_pieces_are_begun_and_cut,  # noqa: F401
    test_sequences_go_on_after_a_restart,  # noqa: F401
    test_what_is_written_is_read_again_in_order,  # noqa: F401
    test_what_the_snapshot_has_seen_and_is_not_there_is_lost,  # noqa: F401
)

from headrace.config import Kafka
from headrace.log.kafka.client import (
    Consumer,
    KafkaError,
    KafkaPort,
    OffsetOutOfRange,
    Received,
    TopicExists,
    UnknownTopic,
    connect,
)
from headrace.log.kafka.confluent import ConfluentKafka
from headrace.log.kafka.journal import KafkaJournal
from headrace.log.kafka.messages import Claim

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture
def again(brokers: SharedBrokers) -> Open:
    settings, kafka = new_cell(brokers.servers)
    names = map(str, count())
    return lambda: KafkaJournal(
        kafka, f"{settings.prefix}.journal", 0, Claim(next(names)), piece_bytes_max=PIECE_BYTES, timeout_s=60
    )


@pytest.fixture
def cell(brokers: SharedBrokers) -> tuple[str, KafkaPort]:
    settings, kafka = new_cell(brokers.servers)
    return f"{settings.prefix}.journal", kafka


def test_messages_go_out_and_come_back(cell: tuple[str, KafkaPort]) -> None:
    topic, kafka = cell
    told: list[tuple[int, KafkaError | None]] = []
    producer = kafka.producer(topic)
    for value in (b"a", None, b"c"):
        producer.send(0, value, lambda offset, error: told.append((offset, error)), b"key")
    producer.send(0, b"nobody waits")
    while len(told) < 3:
        producer.poll(1.0)
    assert told == [(0, None), (1, None), (2, None)]
    consumer = kafka.consumer(topic, 0, 1)
    found: list[Received] = []
    while len(found) < 2:
        found += receive_some(consumer)
    assert found[:2] == [Received(1, b"key", None), Received(2, b"key", b"c")]
    consumer.close()
    producer.close()


def receive_some(consumer: Consumer) -> list[Received]:
    while not (found := consumer.receive(1.0)):
        pass
    return found


def test_what_is_cut_is_gone(cell: tuple[str, KafkaPort]) -> None:
    topic, kafka = cell
    producer = kafka.producer(topic)
    landed: list[int] = []
    for _ in range(5):
        producer.send(0, b"x", lambda offset, _: landed.append(offset))
    while len(landed) < 5:
        producer.poll(1.0)
    kafka.delete_records(topic, 0, 3)
    assert kafka.bounds(topic, 0) == (3, 5)
    for offset in (0, 9):
        consumer = kafka.consumer(topic, 0, offset)
        with pytest.raises(OffsetOutOfRange):
            receive_some(consumer)
        consumer.close()


def test_topics_as_they_are(cell: tuple[str, KafkaPort]) -> None:
    topic, kafka = cell
    found = kafka.topic(topic)
    assert found is not None
    assert (found.partitions, found.replication, found.config["retention.ms"]) == (1, 3, "-1")
    assert found.id
    assert kafka.topic(f"{topic}-not") is None
    with pytest.raises(UnknownTopic):
        kafka.bounds(f"{topic}-not", 0)
    with pytest.raises(TopicExists, match="already exists"):
        kafka.create_topic(topic, 1, 3, {})
    assert len(kafka.brokers()) == 3
    kafka.close()
    kafka.close()


class Stale:
    """A client that asked a broker which had just come, and knew of no topic yet."""

    def get_watermark_offsets(self, *_: object) -> None:
        raise KafkaException(Code(Code._UNKNOWN_PARTITION))

    def poll(self, timeout_s: float) -> None:
        """It has nothing to say."""


def test_a_topic_that_one_broker_does_not_know_is_asked_for_again(cell: tuple[str, KafkaPort]) -> None:
    topic, kafka = cell
    assert isinstance(kafka, ConfluentKafka)
    kafka._asking = Stale()
    assert kafka.bounds(topic, 0) == (0, 0)
    kafka._asking = Stale()
    with pytest.raises(UnknownTopic):
        kafka.bounds(f"{topic}-not", 0)
    kafka._asking = None
    kafka.close()


def test_the_broker_that_leads_now_is_asked(cell: tuple[str, KafkaPort], brokers: SharedBrokers) -> None:
    topic, kafka = cell
    kafka.delete_records(topic, 0, 0)
    assert kafka.bounds(topic, 0) == (0, 0)
    metadata = AdminClient({"bootstrap.servers": brokers.servers}).list_topics(topic, timeout=60)
    leader = brokers.brokers[metadata.topics[topic].partitions[0].leader - 1]
    leader.kill()
    try:
        assert kafka.bounds(topic, 0) == (0, 0)
        kafka.delete_records(topic, 0, 0)
    finally:
        leader.start()
        brokers.wait_ready()
    kafka.close()


def test_nobody_answers() -> None:
    kafka = connect(Kafka(servers="127.0.0.1:1", timeout_s=0.5))
    with pytest.raises(KafkaError, match=r"could not be determined in 0.5 s \(log.kafka.timeout_s\) from 127.0.0.1:1"):
        kafka.bounds("t", 0)
