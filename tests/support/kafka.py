"""Real Kafka brokers for tests, started once for all tests of a process that want them: it takes half a minute."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_brokers import Brokers, NoJars, fetch
from support.programs import leave_out, needs

from headrace.config.sections import Kafka as KafkaSettings
from headrace.log.kafka.client import KafkaPort, connect
from headrace.log.kafka.topics import create_missing


@pytest.fixture(scope="session")
def broker_cluster() -> Iterator[Brokers]:
    needs("kafka")
    try:
        fetch()
    except NoJars as error:
        leave_out(f"the log on real Kafka brokers: {error}")
    with tempfile.TemporaryDirectory(prefix="headrace-kafka-") as directory:
        cluster = Brokers(Path(directory))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture
def brokers(broker_cluster: Brokers) -> Brokers:
    """Three brokers. Those that the test before has killed are up again."""
    for broker in broker_cluster.brokers:
        if broker.process is None or broker.process.poll() is not None:
            broker.kill()
            broker.start()
    broker_cluster.wait_ready()
    return broker_cluster


def new_cell(servers: str, **settings: object) -> tuple[KafkaSettings, KafkaPort]:
    """Topics of their own, made, and a connection."""
    chosen = KafkaSettings(
        **{"servers": servers, "prefix": f"test-{uuid.uuid4().hex[:12]}", "timeout_s": 60, **settings}
    )
    kafka = connect(chosen)
    create_missing(kafka, chosen)
    return chosen, kafka
