"""A streaming query while the hub that owns the log is killed, and a broker: nothing lost, doubled or reordered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_brokers import Brokers
from kill_stage import RECORDS_PER_APPEND, Stage
from support.cluster import FailoverHub
from support.until import wait_until

from headrace.spark.hub_client import open_port

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(900)]


@pytest.fixture
def hub(brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FailoverHub]:
    monkeypatch.setattr(FailoverHub, "servers", brokers.servers)
    made = FailoverHub(tmp_path, only=("flight",))
    made.start()
    yield made
    FailoverHub.end()


@pytest.fixture
def stage(hub: FailoverHub, tmp_path: Path, class_archive: None) -> Iterator[Stage]:
    made = Stage(tmp_path)
    made.port.close()
    made.address = hub.addresses["flight"]
    made.port = open_port(made.address, wait_s=120)
    made.port.call("stream.create", {"stream": "in"})
    yield made
    made.end()


def test_exactly_once_through_takeovers_and_a_broker_loss(stage: Stage, hub: FailoverHub, brokers: Brokers) -> None:
    stage.start_driver()
    stage.produce()
    wait_until(lambda: stage.out() > 0, "the first results", 200)
    for _ in range(2):  # the first kills the hub that clients do not talk to, the second the one they do
        before = stage.out()
        stage.produce()
        hub.kill()
        hub.start()
        stage.produce()
        wait_until(lambda before=before: stage.out() > before, "results after a takeover", 200)
        stage.look()
    broker = brokers.brokers[0]
    broker.kill()
    stage.produce()
    broker.start()
    brokers.wait_ready()
    stage.produce()
    total = stage.sequence * RECORDS_PER_APPEND
    wait_until(lambda: stage.out() >= total, "everything to arrive", 200)
    wait_until(lambda: stage.look() == total, "the cursor", 120)
    batches = stage.port.read("out", 0, 0, stage.out())
    assert [int(value) for batch in batches for value in batch["payload"].to_pylist()] == list(range(total))
