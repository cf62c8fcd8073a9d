"""`headrace cluster init` and `status`, on brokers in memory."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from headrace.cli.cluster import app
from headrace.cli.options import Answer
from headrace.cluster.status import CellStatus, ClusterStatus, TopicProblem
from headrace.config import Kafka
from headrace.log.kafka import client
from headrace.testing import FakeKafka

runner = CliRunner()


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    made = FakeKafka()

    def connect(settings: Kafka) -> FakeKafka:
        assert settings.servers == "a:1"
        return made

    monkeypatch.setattr(client, "connect", connect)
    return made


def test_topics_are_made_once(kafka: FakeKafka) -> None:
    line = ["init", "--log", "kafka://a:1/p", "--flush"]
    first = runner.invoke(app, line)
    assert first.exit_code == 0, first.output
    assert "p.journal: made" in first.output
    assert kafka.topics["p.journal"].config["flush.messages"] == "1"
    assert "p.journal: exists" in runner.invoke(app, line).output


def test_a_wrong_topic_is_refused(kafka: FakeKafka) -> None:
    runner.invoke(app, ["init", "--log", "kafka://a:1"])
    kafka.topics["headrace.journal"].config["min.insync.replicas"] = "1"
    told = runner.invoke(app, ["init", "--log", "kafka://a:1"])
    assert told.exit_code == 1
    assert "min.insync.replicas is 1 and must be 2" in told.output
    assert "kafka-configs.sh" in told.output
    answer = json.loads(runner.invoke(app, ["init", "--log", "kafka://a:1", "--json"]).output)
    assert answer["made"] == []
    assert answer["problems"][0]["command"].startswith("kafka-configs.sh")


def test_status_tells_what_is_wrong_with_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = CellStatus(0, 3, "hub-1", 0, 0.5, 0, 10, {})
    problem = TopicProblem("topic t: retention.ms is 1 and must be -1", "kafka-configs.sh --alter")
    found = ClusterStatus("hub-1", 0, [], [], [cell], [problem])
    monkeypatch.setattr(Answer, "request", lambda *_: found)
    told = runner.invoke(app, ["status"])
    assert "cell 0: owner hub-1, epoch 3" in told.output
    assert "✗ topic t: retention.ms is 1 and must be -1" in told.output
    assert "→ kafka-configs.sh --alter" in told.output
