"""What brokers and librdkafka answer that is no message: which of it passes, and which error it is here."""

from __future__ import annotations

import shlex
from typing import NamedTuple

from confluent_kafka import KafkaError as Code

from headrace.log.kafka.client import KafkaError, OffsetOutOfRange, TopicExists, UnknownTopic

OUT_OF_RANGE = (Code.OFFSET_OUT_OF_RANGE, Code._AUTO_OFFSET_RESET)
NO_TOPIC = (Code.UNKNOWN_TOPIC_OR_PART, Code._UNKNOWN_TOPIC, Code._UNKNOWN_PARTITION)
PASSING = (
    Code._TRANSPORT,
    Code._ALL_BROKERS_DOWN,
    Code._TIMED_OUT,
    Code._RESOLVE,
    Code._WAIT_COORD,
    Code._NOENT,
    Code._DESTROY,
    getattr(Code, "_DESTROY_BROKER", Code._DESTROY),  # earlier versions of the client have no name for it
    Code._RETRY,
    Code._WAIT_CACHE,
    Code.REQUEST_TIMED_OUT,
    Code.LEADER_NOT_AVAILABLE,
    Code.NOT_LEADER_FOR_PARTITION,
    Code.REPLICA_NOT_AVAILABLE,
    Code.BROKER_NOT_AVAILABLE,
    Code.NOT_CONTROLLER,
    Code.NETWORK_EXCEPTION,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.NOT_COORDINATOR,
    Code.FENCED_LEADER_EPOCH,
    Code.UNKNOWN_LEADER_EPOCH,
    Code.KAFKA_STORAGE_ERROR,
    Code.OFFSET_NOT_AVAILABLE,
)
"""What a cluster answers while a broker goes or comes."""

REFUSED = (
    Code._AUTHENTICATION,
    Code._SSL,
    Code.SASL_AUTHENTICATION_FAILED,
    Code.ILLEGAL_SASL_STATE,
    Code.UNSUPPORTED_SASL_MECHANISM,
)
"""What a client is told that may not come in, or cannot: a wrong password, a certificate of somebody else."""


FORBIDDEN = {Code.TOPIC_AUTHORIZATION_FAILED: "topic", Code.GROUP_AUTHORIZATION_FAILED: "group"}
"""What a client is told that was let in and may not do this, and what it may not do this to."""


class Right(NamedTuple):
    """What brokers with access lists have to allow, in their words."""

    operation: str
    kind: str
    """`topic` or `group`."""
    name: str

    @property
    def command(self) -> str:
        """That gives it."""
        options = ["--operation", self.operation, f"--{self.kind}", self.name]
        return shlex.join(["kafka-acls.sh", "--add", "--allow-principal", "User:NAME", *options])


def to_error(code: Code, *rights: Right) -> KafkaError:
    """`rights` are those that were needed."""
    if code.code() in OUT_OF_RANGE:
        return OffsetOutOfRange(code.str())
    if code.code() in NO_TOPIC:
        return UnknownTopic(code.str())
    if code.code() == Code.TOPIC_ALREADY_EXISTS:
        return TopicExists(code.str())
    for right in rights:
        if right.kind == FORBIDDEN.get(code.code()):
            return KafkaError(
                f"the brokers do not allow this hub {right.operation} on {right.kind} {right.name} ({code.str()}): "
                f"{right.command}"
            )
    return KafkaError(code.str())
