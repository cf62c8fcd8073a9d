"""The client of Kafka itself, as far as it needs no brokers (`tests/faults/test_kafka_contract.py` has the rest)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException

from headrace.config.sections import Kafka as KafkaSettings
from headrace.log.kafka import confluent
from headrace.log.kafka.client import UNKNOWN_OFFSET, KafkaError
from headrace.log.kafka.confluent import UNANSWERED_MAX, ConfluentKafka, _Producer


class Ended:
    """A client that has failed for good: it says so to whoever polls."""

    def purge(self) -> None:
        """Nothing is on its way."""

    def poll(self, timeout_s: float) -> None:
        raise KafkaException(Code(Code._GAPLESS_GUARANTEE, "purged in flight", fatal=True))


def test_a_producer_that_has_failed_for_good_is_polled_and_closed_all_the_same() -> None:
    """Its messages are told by themselves; a store whose upload failed must be able to let go of it."""
    kafka = ConfluentKafka(KafkaSettings(servers="127.0.0.1:1"))
    producer = kafka.producer("blobs")
    assert isinstance(producer, _Producer)
    producer._producer = Ended()
    producer.poll(0)
    producer.close()
    kafka.close()


Outcome = Callable[[Code | None, Any], None]


class Landed:
    """What a client says of a message that is stored."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset


class Client:
    """A client that remembers what it got, and tells one outcome with each poll."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.refuses = False
        self.is_full = False
        self.is_silent = False
        self.asked: list[str] = []
        self._outcomes: list[Outcome] = []

    def produce(
        self, topic: str, value: bytes, key: None, partition: int, on_delivery: Callable[[Any, Any], None]
    ) -> None:
        if self.is_full:
            raise BufferError
        if self.refuses:
            raise KafkaException(Code(Code._FATAL, "fenced", fatal=True))
        self.got.append(value)
        self._outcomes.append(on_delivery)

    def poll(self, timeout_s: float) -> None:
        if self._outcomes and not self.is_silent:
            self._outcomes.pop(0)(None, Landed(len(self.got) - len(self._outcomes) - 1))

    def list_topics(self, topic: str, timeout: float) -> None:
        self.asked.append(topic)

    def purge(self) -> None:
        self._outcomes.clear()


class Sending:
    """A producer over such a client, and what it told."""

    def __init__(self) -> None:
        kafka = ConfluentKafka(KafkaSettings(servers="127.0.0.1:1"))
        made = kafka.producer("journal")
        assert isinstance(made, _Producer)
        kafka.close()
        self.client = made._producer = Client()
        self.producer = made
        self.told: list[tuple[int, KafkaError | None]] = []

    def send(self, *values: bytes) -> None:
        for value in values:
            self.producer.send(0, value, lambda offset, error: self.told.append((offset, error)))


VALUES = [b"%d" % number for number in range(UNANSWERED_MAX + 2)]


@pytest.fixture
def sending() -> Sending:
    return Sending()


def test_the_client_gets_no_more_messages_than_it_can_have_on_their_way(sending: Sending) -> None:
    """Its thread would spin while one waits: half a core for nothing, which brokers beside it could have used."""
    sending.send(*VALUES)
    assert sending.client.got == VALUES[:UNANSWERED_MAX]
    sending.producer.poll(0)
    assert sending.client.got == VALUES[: UNANSWERED_MAX + 1]
    assert sending.told == [(0, None)]


def test_messages_that_were_held_back_go_in_their_order(sending: Sending) -> None:
    sending.send(*VALUES)
    for _ in VALUES:
        sending.producer.poll(0)
    assert sending.client.got == VALUES
    assert sending.told == [(offset, None) for offset in range(len(VALUES))]


def test_a_message_that_the_client_refuses_is_told_and_so_is_all_behind_it(sending: Sending) -> None:
    sending.send(*VALUES)
    sending.client.refuses = True
    sending.producer.poll(0)
    sending.client.refuses = False
    sending.send(b"behind")
    sending.producer.poll(0)
    held_back = len(VALUES) - UNANSWERED_MAX
    refused = [error for offset, error in sending.told if offset == UNKNOWN_OFFSET]
    assert [str(error) for error in refused] == ["fenced"] * (held_back + 1)
    assert sending.client.got == VALUES[:UNANSWERED_MAX]


def test_a_client_that_is_full_gets_the_message_later(sending: Sending) -> None:
    sending.client.is_full = True
    sending.send(b"one")
    sending.client.is_full = False
    sending.producer.poll(0)
    assert sending.client.got == [b"one"]


def test_a_producer_that_is_closed_sends_nothing_that_it_held_back(sending: Sending) -> None:
    sending.send(*VALUES)
    sending.producer.close()
    sending.producer.poll(0)
    assert sending.client.got == VALUES[:UNANSWERED_MAX]
    assert not sending.told


def test_a_producer_that_hears_nothing_asks_who_leads_now(sending: Sending, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few times a second, until there is an outcome, and never while nothing is late."""
    clock = [100.0]
    monkeypatch.setattr(confluent.time, "monotonic", lambda: clock[0])
    sending.send(b"1", b"2")
    sending.client.is_silent = True
    asked = []
    for clock[0] in (100.9, 101.1, 101.2, 101.35, 101.5):
        sending.producer.poll(0)
        asked.append(len(sending.client.asked))
    assert asked == [0, 1, 1, 2, 2]
    sending.client.is_silent = False
    for clock[0] in (102.0, 102.4, 200.0):
        sending.producer.poll(0)
    assert len(sending.client.asked) == 2, "nothing is late, or on its way"
