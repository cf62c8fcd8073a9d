"""Topics that are changed, deleted and created again under a hub: with real brokers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from support.cluster import HubCluster, get
from support.kafka import SharedBrokers, new_cell
from support.until import wait_until

from headrace.log.kafka.topics import create_missing, journal_topic

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def change(admin: AdminClient, topic: str, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    for outcome in admin.incremental_alter_configs([resource]).values():
        outcome.result(60)


def test_topics_that_are_changed_under_a_hub(brokers: SharedBrokers, tmp_path: Path) -> None:
    """A setting is named, by all that name such things; an empty topic in the journal's place ends the hub, though
    nobody writes and there is no snapshot yet, and no hub starts over it."""
    settings, kafka = new_cell(brokers.servers)
    admin = AdminClient({"bootstrap.servers": brokers.servers})
    name = journal_topic(settings)
    with HubCluster(tmp_path, brokers.servers, settings.prefix, count=1, only=("http",)) as cluster:
        (hub,) = cluster.hubs
        change(admin, name, "unclean.leader.election.enable", "true")

        def note() -> str:
            return str(json.loads(get(hub, "/health")[1]).get("notes", {}).get("kafka", ""))

        wait_until(lambda: "unclean.leader.election.enable is true and must be false" in note(), "it is noticed", 120)
        assert "headrace_cluster_topic_problems 1.0" in get(hub, "/metrics")[1]
        (problem,) = cluster.status(hub)["problems"]
        assert problem["command"].startswith("kafka-configs.sh --bootstrap-server")
        for outcome in admin.delete_topics([name]).values():
            outcome.result(60)
        wait_until(lambda: kafka.topic(name) is None, "the topic is gone", 60)
        create_missing(kafka, settings)
        assert hub.process is not None
        assert hub.process.wait(180) == 4
        assert "deleted and created again" in hub.log.read_text()  # its own look, or a history of the console
        with pytest.raises((AssertionError, RuntimeError)):
            hub.start()
        assert "hubs do not start over by themselves" in hub.log.read_text()
        hub.process = None
    kafka.close()
