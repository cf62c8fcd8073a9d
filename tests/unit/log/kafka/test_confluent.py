"""The client of Kafka itself, as far as it needs no brokers (`tests/faults/test_kafka_contract.py` has the rest)."""

from __future__ import annotations

from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException

from headrace.config.sections import Kafka as KafkaSettings
from headrace.log.kafka.confluent import ConfluentKafka, _Producer


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
