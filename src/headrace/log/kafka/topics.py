"""The topics of a cluster of hubs: which there are, how they must be set, and what mends those that are not."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import NamedTuple

from headrace.config.sections import Kafka as KafkaSettings
from headrace.errors import BadConfig
from headrace.log.kafka.client import KafkaPort, Topic, TopicExists

MESSAGE_BYTES_MAX = 2 * 1024 * 1024
FLUSH = {"flush.messages": "1"}
"""Every message is synced to the disks of the brokers before it is acknowledged."""
AT_LEAST = frozenset({"min.insync.replicas", "max.message.bytes"})
"""Settings where more is right, too."""


class Plan(NamedTuple):
    """A topic as it should be."""

    name: str
    partitions: int
    replication: int
    config: Mapping[str, str]


class Problem(NamedTuple):
    """What is wrong with a topic, and the command that mends it."""

    text: str
    command: str


def journal_topic(settings: KafkaSettings) -> str:
    return f"{settings.prefix}.journal"


def blobs_topic(settings: KafkaSettings) -> str:
    return f"{settings.prefix}.blobs"


def cells_topic(settings: KafkaSettings) -> str:
    return f"{settings.prefix}.cells"


def hubs_group(settings: KafkaSettings) -> str:
    """The consumer group of all hubs. It chooses the owner."""
    return f"{settings.prefix}.hubs"


def plans(settings: KafkaSettings) -> list[Plan]:
    """All topics. The journal comes first."""
    safe = {
        "min.insync.replicas": str(max(1, settings.replication - 1)),
        "unclean.leader.election.enable": "false",
        "compression.type": "producer",
        "max.message.bytes": str(MESSAGE_BYTES_MAX),
    }
    kept = {**safe, "cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    compacted = {**safe, "cleanup.policy": "compact"}
    count = settings.replication
    return [
        Plan(journal_topic(settings), settings.cells, count, kept),
        Plan(blobs_topic(settings), settings.cells, count, compacted),
        Plan(cells_topic(settings), 1, count, compacted),
    ]


def create_missing(kafka: KafkaPort, settings: KafkaSettings, *, flush: bool = False) -> list[str]:
    """Make the topics that are not there; their names. With `flush` brokers sync each message of the journal."""
    made = []
    for plan in plans(settings):
        if kafka.topic(plan.name) is None:
            more = FLUSH if flush and plan.name == journal_topic(settings) else {}
            try:
                kafka.create_topic(plan.name, plan.partitions, plan.replication, {**plan.config, **more})
            except TopicExists:  # somebody else was quicker, or the broker that was asked has just come back
                continue
            made.append(plan.name)
    return made


def problems(kafka: KafkaPort, settings: KafkaSettings, plan: Plan) -> list[Problem]:
    """What is wrong with one topic."""
    return problems_of(kafka.topic(plan.name), settings, plan)


def problems_of(topic: Topic | None, settings: KafkaSettings, plan: Plan) -> list[Problem]:
    """What is wrong with a topic as it was found."""
    if topic is None:
        return [Problem(f"there is no topic {plan.name}", "headrace cluster init")]
    found = []
    if topic.partitions != plan.partitions:
        found.append(
            Problem(
                f"topic {plan.name} has {topic.partitions} partitions, and {plan.partitions} is what hubs use: "
                "`headrace cluster init` did not make it",
                "headrace cluster init --set log.kafka.prefix=ANOTHER",
            )
        )
    if topic.replication < plan.replication:
        found.append(
            Problem(
                f"topic {plan.name} is kept by {topic.replication} brokers and not by {plan.replication} "
                "(log.kafka.replication)",
                f"kafka-reassign-partitions.sh --bootstrap-server {settings.servers} --execute "
                "--reassignment-json-file FILE",
            )
        )
    wrong = {key: value for key, value in plan.config.items() if not _fits(topic, key, value)}
    if wrong:
        is_now = ", ".join(f"{key} is {topic.config.get(key, 'not set')} and must be {wrong[key]}" for key in wrong)
        changes = ",".join(f"{key}={value}" for key, value in wrong.items())
        command = ["kafka-configs.sh", "--bootstrap-server", settings.servers, "--alter", "--entity-type", "topics"]
        command += ["--entity-name", plan.name, "--add-config", changes]
        found.append(Problem(f"topic {plan.name}: {is_now}", shlex.join(command)))
    return found


def _fits(topic: Topic, key: str, wanted: str) -> bool:
    value = topic.config.get(key)
    if value is not None and key in AT_LEAST:
        return int(value) >= int(wanted)
    return value == wanted


def require_journal(kafka: KafkaPort, settings: KafkaSettings) -> None:
    """Refuse a journal topic that could lose what was acknowledged."""
    found = problems(kafka, settings, plans(settings)[0])
    if found:
        raise BadConfig("; ".join(f"{problem.text}: {problem.command}" for problem in found))
