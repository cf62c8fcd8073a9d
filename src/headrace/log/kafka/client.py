"""All that Headrace ever asks of Kafka. `confluent.py` asks real brokers; `headrace.testing` has a cluster in memory.

Names are Kafka's. Everything may block; nothing here belongs to an event loop. What goes wrong is a `KafkaError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.errors import BadConfig

if TYPE_CHECKING:
    from headrace.config.sections import Kafka as KafkaSettings

UNKNOWN_OFFSET = -1
"""Stored, but the client does not know where: it had sent the message twice."""


class KafkaError(OSError):
    """Kafka said no, or nothing in time. Whether what was asked has happened is not known."""


class OffsetOutOfRange(KafkaError):
    """Messages were to be read from an offset that the partition does not have, or not any more."""


class UnknownTopic(KafkaError):
    """There is no such topic."""


class TopicExists(KafkaError):
    """There is a topic of this name already."""


class Received(NamedTuple):
    """A message as it was read."""

    offset: int
    key: bytes | None
    value: bytes | None


OnDelivery = Callable[[int, KafkaError | None], None]
"""Told of one message that was sent: its offset, or what went wrong."""


class Producer(Protocol):
    """Sends messages to one topic, each partition's in order, none twice, and acknowledged by all replicas in sync.
    After a message that was not stored none that was sent later is. Used by one thread."""

    def get_ready(self) -> None:
        """Connect, as far as that can be done before there is something to send. What fails is tried again then."""
        ...

    def send(
        self, partition: int, value: bytes | None, on_delivery: OnDelivery | None = None, key: bytes | None = None
    ) -> None:
        """Hand a message over. `on_delivery` is called within a later `poll`."""
        ...

    def poll(self, timeout_s: float) -> None:
        """Wait for outcomes until there is one, and tell them."""
        ...

    def close(self) -> None:
        """What was not sent yet is not sent any more."""
        ...


class Consumer(Protocol):
    """Reads one partition on and on. Used by one thread."""

    def receive(self, timeout_s: float) -> list[Received]:
        """The next messages; none when nothing came in time. Raises `OffsetOutOfRange`, also for the first offset."""
        ...

    def seek(self, offset: int) -> None:
        """Go on with that offset. Cheaper than another consumer: the connections are there."""
        ...

    def rest(self) -> None:
        """Fetch nothing until `seek`."""
        ...

    def close(self) -> None: ...


class Member(Protocol):
    """A member of a consumer group that has the partitions of a topic given to it. Used by one thread."""

    def poll(self, timeout_s: float) -> frozenset[int]:
        """Stay a member: to be called again and again. The partitions that are this member's now."""
        ...

    def close(self) -> None:
        """Leave the group at once: others need not wait for the session's end."""
        ...


class GroupMember(NamedTuple):
    """A member of a group, as the brokers know it."""

    client: str
    """Its `client.id`."""
    partitions: frozenset[int]


class Topic(NamedTuple):
    """A topic as it is."""

    name: str
    id: str
    """New each time a topic is made, though it has the name of one that was deleted."""
    partitions: int
    replication: int
    """Of the partition that has the fewest replicas."""
    config: Mapping[str, str]


class KafkaPort(Protocol):
    """A cluster of brokers."""

    def producer(self, topic: str) -> Producer: ...

    def consumer(self, topic: str, partition: int, offset: int, *, waits: bool = True) -> Consumer:
        """Begins with that offset. Without `waits` it is for what is there already: a broker that has nothing more says
        so soon, and `seek` need not wait for it."""
        ...

    def bounds(self, topic: str, partition: int, timeout_s: float | None = None) -> tuple[int, int]:
        """The first offset that is kept, and the one that the next message gets. Raises `UnknownTopic`. With
        `timeout_s`, somebody has less patience than `log.kafka.timeout_s`."""
        ...

    def join(self, group: str, topic: str, client: str, session_s: float) -> Member:
        """Become a member of a group. Whoever is silent for `session_s` is one no more. No messages are read."""
        ...

    def members(self, group: str) -> list[GroupMember]:
        """Who is in a group now."""
        ...

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Forget all messages below an offset."""
        ...

    def topic(self, name: str) -> Topic | None:
        """None when there is no such topic."""
        ...

    def create_topic(self, name: str, partitions: int, replication: int, config: Mapping[str, str]) -> None:
        """Raises `TopicExists`, also when `topic` did not know of it yet."""
        ...

    def brokers(self) -> list[str]:
        """Addresses of the brokers that are there."""
        ...

    def close(self) -> None: ...


def connect(settings: KafkaSettings) -> KafkaPort:
    """The cluster that the settings name. Nothing is sent yet."""
    if not settings.servers:
        raise BadConfig("log.kafka.servers is empty: name a broker or two, such as kafka-1:9092,kafka-2:9092")
    try:
        from headrace.log.kafka.confluent import ConfluentKafka
    except ImportError as error:
        raise BadConfig(
            f"log.backend is kafka, and its client is not installed ({error}): pip install 'headrace[kafka]'"
        ) from error
    return ConfluentKafka(settings)
