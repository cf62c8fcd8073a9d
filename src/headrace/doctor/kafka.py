"""The brokers that keep the log, and how its topics are set."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from headrace.config import Config
from headrace.doctor.finding import Finding, fail, ok, warn
from headrace.errors import BadConfig
from headrace.log.kafka import topics
from headrace.log.kafka.client import KafkaError, KafkaPort, connect

ANSWER_S = 15.0


def check_kafka(config: Config, kafka: KafkaPort | None = None) -> Iterator[Finding]:
    """Nothing when the log is not on Kafka."""
    if config.log.backend != "kafka":
        return
    settings = msgspec.structs.replace(config.log.kafka, timeout_s=min(ANSWER_S, config.log.kafka.timeout_s))
    try:
        kafka = kafka or connect(settings)
    except BadConfig as error:
        yield fail("kafka", str(error), "see [log.kafka] in the settings")
        return
    try:
        brokers = kafka.brokers()
        problems = [problem for plan in topics.plans(settings) for problem in topics.problems(kafka, settings, plan)]
        journal = kafka.topic(topics.journal_topic(settings))
    except KafkaError as error:
        yield fail("kafka", f"brokers do not answer: {error}", "start them, or name others: log.kafka.servers")
        return
    finally:
        kafka.close()
    if len(brokers) < settings.replication:
        yield warn(
            "kafka",
            f"{len(brokers)} of the {settings.replication} brokers that keep each message are there",
            "start the others: with one less commits may wait",
        )
    else:
        yield ok("kafka", f"{len(brokers)} brokers: {', '.join(brokers)}")
    for problem in problems:
        yield fail("kafka topics", problem.text, problem.command)
    if not problems and journal is not None:
        flushed = journal.config.get("flush.messages") == "1"
        how = "synced to their disks by the brokers that acknowledge it" if flushed else "in the memory of several"
        yield ok("kafka topics", f"set as they should be; a message is acknowledged when it is {how}")
