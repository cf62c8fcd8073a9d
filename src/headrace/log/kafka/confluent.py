"""Real brokers, by confluent-kafka (librdkafka). Only this module and `codes.py` import it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError
from functools import partial
from typing import Any, NamedTuple, TypeVar

import confluent_kafka
from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from headrace.config.sections import Kafka as KafkaSettings
from headrace.errors import BadConfig
from headrace.log.kafka.client import (
    UNKNOWN_OFFSET,
    Consumer,
    GroupMember,
    KafkaError,
    KafkaPort,
    Member,
    OnDelivery,
    Producer,
    Received,
    Topic,
    UnknownTopic,
)
from headrace.log.kafka.codes import FORBIDDEN, NO_TOPIC, PASSING, REFUSED, Right, to_error
from headrace.log.kafka.topics import hubs_group

logger = logging.getLogger("headrace.kafka")
logger.addFilter(lambda record: "CONFWARN" not in record.getMessage())  # on settings that are meant as they are
REPEATED_S = 10.0


class OnceInAWhile(logging.Filter):
    """A broker that is away is a line for each attempt to reach it, and many of them come together."""

    def __init__(self) -> None:
        super().__init__()
        self._next_s = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.getMessage().startswith("FAIL "):
            return True
        is_due = time.monotonic() >= self._next_s
        if is_due:
            self._next_s = time.monotonic() + REPEATED_S
        return is_due


logger.addFilter(OnceInAWhile())

Result = TypeVar("Result")

MESSAGE_BYTES_MAX = 1_900_000
"""Of a message or a batch of them: below what the topics take."""
REQUEST_S = 10.0
"""Of one question to a broker; asked again until `log.kafka.timeout_s` is over."""
NEVER_S = 3600.0
"""As long as librdkafka lets a question wait."""
LEADER_S = 1.0
"""Of the first question to the broker that led a partition when it was last asked: it may have gone."""
AGAIN_S = 0.2
ANSWER_S = 0.25
"""So long a producer that has heard nothing for `LEADER_S` waits when it asks who leads now."""
TELL_S = 3.0
"""Brokers that do not answer for so long are worth a line in the log: a new topic has no leader for a moment."""
REFUSED_S = 3.0
"""So long brokers are asked again that do not let this hub in."""
BATCH = 500
UNANSWERED_MAX = 5
"""Messages that librdkafka gets before it has told the outcome of one. An idempotent producer of it has no more of a
partition on their way, and while one waits behind them its thread asks the socket again and again without a pause."""

FIXED_PRODUCER: dict[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "compression.type": "none",  # hubs do it, inside their messages (`packing.py`)
    "enable.gapless.guarantee": True,  # what is sent behind a message that was not stored must not be stored either
    "max.in.flight.requests.per.connection": 5,
    "linger.ms": 0,
    "message.timeout.ms": 0,  # a message that the client gave up would leave a gap; `KafkaJournal` knows when to stop
    "message.max.bytes": MESSAGE_BYTES_MAX,
    "batch.size": MESSAGE_BYTES_MAX,
    "request.timeout.ms": 5000,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,  # also of the question who leads now: the journal waits for the answer
}
FIXED_CONSUMER: dict[str, Any] = {
    "enable.auto.commit": False,  # no offset is ever committed
    "auto.offset.reset": "error",  # a journal that is not there must not pass for an empty one
    "isolation.level": "read_uncommitted",
    "check.crcs": True,
    "fetch.wait.max.ms": 100,
    "fetch.queue.backoff.ms": 5,
    "fetch.message.max.bytes": 4_000_000,
}
WITHOUT_WAITING: dict[str, Any] = {
    "fetch.wait.max.ms": 5,
    "fetch.message.max.bytes": 500_000,  # a broker sends a larger message whole; nobody asked for what stands behind it
    "queued.max.messages.kbytes": 16_384,
}
FIXED = FIXED_PRODUCER.keys() | FIXED_CONSUMER.keys() | {"bootstrap.servers", "group.id"}


class _Outgoing(NamedTuple):
    partition: int
    value: bytes | None
    on_delivery: OnDelivery
    key: bytes | None


def _nobody(offset: int, error: KafkaError | None) -> None:
    """Wants to know what became of a message."""


class _Producer(Producer):
    def __init__(self, config: dict[str, Any], topic: str) -> None:
        self._topic = topic
        self._right = Right("Write", "topic", topic)
        self._producer = confluent_kafka.Producer(config, logger=logger)
        self._unanswered = 0
        self._heard_at = 0.0
        """When there was an outcome last, or the first message of those under way was handed over."""
        self._looked_at = 0.0
        self._held_back: deque[_Outgoing] = deque()
        self._refusal: KafkaError | None = None

    def get_ready(self) -> None:
        with contextlib.suppress(KafkaException):
            self._producer.list_topics(self._topic, timeout=REQUEST_S)

    def send(
        self, partition: int, value: bytes | None, on_delivery: OnDelivery | None = None, key: bytes | None = None
    ) -> None:
        self._held_back.append(_Outgoing(partition, value, on_delivery or _nobody, key))
        self._hand_over()

    def _hand_over(self) -> None:
        """As many as may be on their way. None goes after one that was refused, or was not stored."""
        while self._held_back and self._unanswered < UNANSWERED_MAX and self._refusal is None:
            partition, value, on_delivery, key = self._held_back[0]
            try:
                self._producer.produce(self._topic, value, key, partition, on_delivery=self._outcome_of(on_delivery))
            except BufferError:  # the client holds as much as it may
                return
            except KafkaException as error:
                self._refusal = to_error(error.args[0], self._right)
                return
            self._held_back.popleft()
            if not self._unanswered:
                self._heard_at = time.monotonic()
            self._unanswered += 1

    def _outcome_of(self, on_delivery: OnDelivery) -> Callable[[Code | None, Any], None]:
        def delivered(error: Code | None, message: Any) -> None:
            self._unanswered -= 1
            self._heard_at = time.monotonic()
            if error is not None:
                problem = to_error(error, self._right)
                self._refusal = self._refusal or problem
                on_delivery(UNKNOWN_OFFSET, problem)
            else:
                on_delivery(UNKNOWN_OFFSET if message.offset() is None else max(message.offset(), UNKNOWN_OFFSET), None)

        return delivered

    def poll(self, timeout_s: float) -> None:
        # The client raises here, once, what ends it for good. That is told to each message, and to whoever sends next.
        with contextlib.suppress(KafkaException):
            self._producer.poll(min(timeout_s, AGAIN_S) if self._refusal is None else 0)
        if self._unanswered and self._refusal is None:
            self._look_for_leader()
        self._hand_over()
        while self._held_back and self._refusal is not None:
            self._held_back.popleft().on_delivery(UNKNOWN_OFFSET, self._refusal)

    def _look_for_leader(self) -> None:
        """While a broker is gone librdkafka asks once a second, or less often, who leads now; the journal waits for
        that. Not before something has been late, and a few times a second."""
        now = time.monotonic()
        if now > self._heard_at + LEADER_S and now > self._looked_at + AGAIN_S:
            _learn_leader(self._producer, self._topic, ANSWER_S)
            self._looked_at = time.monotonic()

    def close(self) -> None:
        self._held_back.clear()
        self._producer.purge()
        self.poll(0)


class _Consumer(Consumer):
    def __init__(
        self, config: dict[str, Any], topic: str, partition: int, offset: int, is_there: Callable[[], bool]
    ) -> None:
        """`is_there` says whether the cluster has the topic: a broker that has just come may not know of it yet."""
        self._is_there = is_there
        self._topic = topic
        self._partition = partition
        self._rights = (Right("Read", "topic", topic), Right("Describe", "group", config["group.id"]))
        self._consumer = confluent_kafka.Consumer(config, logger=logger)
        self.seek(offset)

    def seek(self, offset: int) -> None:
        # Not librdkafka's seek, which answers only when the fetch that is under way is over.
        self._consumer.assign([TopicPartition(self._topic, self._partition, offset)])

    def rest(self) -> None:
        self._consumer.unassign()

    def receive(self, timeout_s: float) -> list[Received]:
        received = []
        # `consume` waits for all that it is asked for, or for all of the time: so only the first is waited for.
        first = self._consumer.poll(timeout_s)
        for message in [] if first is None else [first, *self._consumer.consume(BATCH - 1, 0)]:
            error = message.error()
            if error is None:
                received.append(Received(message.offset(), message.key(), message.value()))
            elif error.code() not in PASSING and not (error.code() in NO_TOPIC and self._is_there()):
                raise to_error(error, *self._rights)
        return received

    def close(self) -> None:
        self._consumer.close()


class _Member(Member):
    """Cooperative: a partition stays with its member when others come and go. Not a static one, since those do not say
    when they leave, and the next owner of a cell would have to wait for the session's end."""

    def __init__(self, config: dict[str, Any], topic: str) -> None:
        self._partitions: frozenset[int] = frozenset()
        self._rights = (Right("Read", "group", config["group.id"]), Right("Describe", "topic", topic))
        self._consumer = confluent_kafka.Consumer(config, logger=logger)
        self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def _assigned(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            partition.offset = confluent_kafka.OFFSET_END
        consumer.incremental_assign(partitions)
        consumer.pause(partitions)  # others read them
        self._partitions |= {partition.partition for partition in partitions}

    def _revoked(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        consumer.incremental_unassign(partitions)
        self._lost(consumer, partitions)

    def _lost(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self._partitions -= {partition.partition for partition in partitions}

    def poll(self, timeout_s: float) -> frozenset[int]:
        message = self._consumer.poll(timeout_s)
        error = None if message is None else message.error()
        if error is not None and (error.fatal() or error.code() in FORBIDDEN):
            raise to_error(error, *self._rights)
        return self._partitions

    def close(self) -> None:
        self._consumer.close()


def _ever_more_patient(ask: Callable[[float], Result | None]) -> Callable[[], Result | None]:
    """A question that waits longer each time that it is asked."""
    patience_s = LEADER_S / 2

    def again() -> Result | None:
        nonlocal patience_s
        patience_s = min(2 * patience_s, REQUEST_S)
        return ask(patience_s)

    return again


def _learn_leader(
    client: confluent_kafka.Consumer | confluent_kafka.Producer | AdminClient, topic: str, timeout_s: float = LEADER_S
) -> None:
    """A client asks the broker that it remembers as the leader, even when that is gone, until it hears of another."""
    with contextlib.suppress(KafkaException):
        client.list_topics(topic, timeout=timeout_s)


class ConfluentKafka(KafkaPort):
    """A cluster. Connections are made when they are needed."""

    def __init__(self, settings: KafkaSettings) -> None:
        if taken := sorted(FIXED & settings.client.keys()):
            raise BadConfig(f"log.kafka.client: {', '.join(taken)} cannot be chosen")
        self._timeout_s = settings.timeout_s
        self._base: dict[str, Any] = {
            "client.id": "headrace",
            "socket.keepalive.enable": True,
            "reconnect.backoff.max.ms": 1000,
            **settings.client,
            "bootstrap.servers": settings.servers,
        }
        self._refusal = ""
        """Why a broker did not let this hub in, the last time; empty before it has happened."""
        self._base["error_cb"] = self._noticed
        # A consumer that is in no group asks for the coordinator of one all the same: of one that hubs have rights to.
        self._group = {"group.id": hubs_group(settings)}
        self._asking: confluent_kafka.Consumer | None = None
        self._asking_groups: AdminClient | None = None
        try:
            self._admin = AdminClient(self._base, logger=logger)
        except KafkaException as error:
            raise BadConfig(f"log.kafka: {error.args[0].str()}") from None

    def _noticed(self, error: Code) -> None:
        """Told by the client, of what it tries again by itself. Any thread."""
        if error.code() in REFUSED:
            self._refusal = error.str()

    def producer(self, topic: str) -> Producer:
        return _Producer({**self._base, **FIXED_PRODUCER}, topic)

    def consumer(self, topic: str, partition: int, offset: int, *, waits: bool = True) -> Consumer:
        config = {**self._base, **FIXED_CONSUMER, **self._group, **({} if waits else WITHOUT_WAITING)}
        return _Consumer(config, topic, partition, offset, lambda: self.topic(topic) is not None)

    def join(self, group: str, topic: str, client: str, session_s: float) -> Member:
        config = {
            **self._base,
            "client.id": client,
            "group.id": group,
            "group.protocol": "classic",
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": int(session_s * 1000),
            "heartbeat.interval.ms": max(1, int(session_s * 1000 / 10)),
            "max.poll.interval.ms": max(300_000, int(session_s * 1000)),
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
        }
        return _Member(config, topic)

    def members(self, group: str) -> list[GroupMember]:
        right = Right("Describe", "group", group)
        found = self._asked(f"the members of group {group}", partial(self._described, group), right)
        return [
            GroupMember(
                member.client_id,
                frozenset(each.partition for each in member.assignment.topic_partitions),
            )
            for member in found.members
        ]

    def _described(self, group: str) -> Any:
        """What the group's coordinator says; None when it says nothing. When librdkafka (2.16) gives up such a question
        while it looks for the coordinator, it uses memory that it has freed once one is found, and the process may end.
        So only we give up, and the client with the question: one whose question was lost may not get an answer to any
        later one either."""
        asking = self._asking_groups
        if asking is None:
            asking = self._asking_groups = AdminClient(self._base, logger=logger)
        try:
            return asking.describe_consumer_groups([group], request_timeout=NEVER_S)[group].result(REQUEST_S)
        except TimeoutError:
            self._asking_groups = None
            return None

    def bounds(self, topic: str, partition: int, timeout_s: float | None = None) -> tuple[int, int]:
        def ask(patience_s: float) -> tuple[int, int] | None:
            asking = self._asking
            if asking is None:
                config = {**self._base, **FIXED_CONSUMER, **self._group}
                asking = self._asking = confluent_kafka.Consumer(config, logger=logger)
            found: tuple[int, int] | None = None
            try:
                found = asking.get_watermark_offsets(TopicPartition(topic, partition), patience_s)
            except KafkaException as error:
                if error.args[0].code() not in NO_TOPIC:
                    _learn_leader(asking, topic)
                    raise
                if self.topic(topic) is None:
                    raise
                # It asked a broker that did not know of the topic yet, and would remember that for a while. It is not
                # closed here: another thread may be asking it.
                self._asking = None
            return found

        right = Right("Describe", "topic", topic)
        return self._asked(f"the bounds of {topic}/{partition}", _ever_more_patient(ask), right, timeout_s=timeout_s)

    def _asked(
        self, what: str, ask: Callable[[], Result | None], *rights: Right, timeout_s: float | None = None
    ) -> Result:
        """The answer, asked for again while brokers come and go. `rights` are what they have to allow."""
        timeout_s = self._timeout_s if timeout_s is None else min(timeout_s, self._timeout_s)
        began = time.monotonic()
        self._refusal = ""
        has_told = False
        while True:
            try:
                answer = ask()
                if answer is not None:
                    return answer
                problem = "no answer"
            except KafkaException as error:
                code: Code = error.args[0]
                if code.code() not in PASSING:
                    raise to_error(code, *rights) from error
                problem = code.str()
            self._hear()
            if self._refusal and time.monotonic() > began + min(REFUSED_S, timeout_s):
                raise KafkaError(
                    f"the brokers at {self._base['bootstrap.servers']} refuse this hub ({self._refusal}): check "
                    "user, password and certificates in log.kafka.client"
                )
            if time.monotonic() > began + timeout_s:
                raise KafkaError(
                    f"{what} could not be determined in {timeout_s:g} s (log.kafka.timeout_s) from "
                    f"{self._base['bootstrap.servers']}: {problem}"
                )
            if not has_told and time.monotonic() > began + TELL_S:
                has_told = True
                logger.warning(
                    "%s: no broker of %s answers; retrying for %g s (log.kafka.timeout_s): %s",
                    *(what, self._base["bootstrap.servers"], timeout_s, problem),
                )
            time.sleep(AGAIN_S)

    def _hear(self) -> None:
        """Have the clients say what they noticed."""
        for client in (self._admin, self._asking, self._asking_groups):
            if client is not None:
                client.poll(0)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        where = TopicPartition(topic, partition, before)

        def delete(patience_s: float) -> Any:
            try:
                return self._admin.delete_records([where], request_timeout=patience_s)[where].result()
            except KafkaException:
                _learn_leader(self._admin, topic)
                raise

        right = Right("Delete", "topic", topic)
        self._asked(f"whether {topic}/{partition} was cut", _ever_more_patient(delete), right)

    def topic(self, name: str) -> Topic | None:
        def describe() -> Any:
            return self._admin.describe_topics(TopicCollection([name]), request_timeout=REQUEST_S)[name].result()

        resource = ConfigResource(ConfigResource.Type.TOPIC, name)

        def configs() -> Any:
            return self._admin.describe_configs([resource], request_timeout=REQUEST_S)[resource].result()

        try:
            found = self._asked(f"topic {name}", describe, Right("Describe", "topic", name))
            entries = self._asked(f"the settings of topic {name}", configs, Right("DescribeConfigs", "topic", name))
        except UnknownTopic:  # or no more, between the two questions
            return None
        return Topic(
            name,
            str(found.topic_id),
            len(found.partitions),
            min(len(partition.replicas) for partition in found.partitions),
            {key: entry.value for key, entry in entries.items() if entry.value is not None},
        )

    def create_topic(self, name: str, partitions: int, replication: int, config: Mapping[str, str]) -> None:
        topic = NewTopic(name, num_partitions=partitions, replication_factor=replication, config=dict(config))
        try:
            self._admin.create_topics([topic], request_timeout=REQUEST_S)[name].result()
        except KafkaException as error:
            raise to_error(error.args[0], Right("Create", "topic", name)) from error
        self._wait_until_known(name, partitions)

    def _wait_until_known(self, topic: str, partitions: int) -> None:
        """Not all brokers hear of a new topic at the same moment."""
        deadline = time.monotonic() + REQUEST_S
        for partition in range(partitions):
            while True:
                try:
                    self.bounds(topic, partition)
                    break
                except UnknownTopic:
                    if time.monotonic() > deadline:
                        return  # whoever uses it says so
                    time.sleep(AGAIN_S)

    def brokers(self) -> list[str]:
        found = self._asked("the brokers", lambda: self._admin.list_topics(timeout=REQUEST_S))
        return sorted(f"{broker.host}:{broker.port}" for broker in found.brokers.values())

    def close(self) -> None:
        if self._asking is not None:
            self._asking.close()
            self._asking = None
