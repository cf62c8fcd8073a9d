"""A Kafka cluster in memory, with the faults that a real one has.

kafka = FakeKafka()
kafka.create_topic("headrace.journal", 1, 3, {})
log = open_cell(MemoryDisk(), clock, settings, kafka)

Messages are stored when they are sent, unless somebody `hold`s them: then they are on their way until `release`. What
befalls the next ones is in `faults`.
"""

from __future__ import annotations

import random
import threading
import uuid
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from enum import Enum, auto

from headrace.log.kafka.client import (
    UNKNOWN_OFFSET,
    Consumer,
    GroupMember,
    KafkaError,
    KafkaPort,
    Member,
    OffsetOutOfRange,
    OnDelivery,
    Producer,
    Received,
    Topic,
    TopicExists,
    UnknownTopic,
)

BATCH = 500


class Fault(Enum):
    """What becomes of one message."""

    NONE = auto()
    TWICE = auto()
    """Stored twice: the answer to the first was late."""
    UNKNOWN = auto()
    """Stored, and the client does not know where: it sent it again, and the broker recognised it."""
    SILENCE = auto()
    """Stored, and no answer ever comes."""
    ERROR = auto()
    """Stored, and the answer is an error: the leader changed at that moment. Nothing follows it."""
    REFUSED = auto()
    """Not stored: the broker's disk is full. Nothing follows it."""


class _Partition:
    def __init__(self) -> None:
        self.first = 0
        self.next = 0
        self.messages: list[Received] = []

    def add(self, key: bytes | None, value: bytes | None) -> int:
        offset, self.next = self.next, self.next + 1
        self.messages.append(Received(offset, key, value))
        return offset

    def position(self, offset: int) -> int:
        """Of the first message from an offset on."""
        return bisect_left(self.messages, offset, key=lambda message: message.offset)


class _Topic:
    def __init__(self, partitions: int, replication: int, config: Mapping[str, str]) -> None:
        self.id = str(uuid.uuid4())
        self.replication = replication
        self.config = dict(config)
        self.partitions = [_Partition() for _ in range(partitions)]


class _Sent:
    """A message on its way."""

    def __init__(self, partition: int, key: bytes | None, value: bytes | None, on_delivery: OnDelivery | None) -> None:
        self.partition = partition
        self.key = key
        self.value = value
        self.on_delivery = on_delivery


class FakeProducer(Producer):
    """Answers are told in `poll`, in order."""

    def __init__(self, kafka: FakeKafka, topic: str) -> None:
        self.topic = topic
        self._kafka = kafka
        self._way: deque[_Sent] = deque()
        self._answers: deque[tuple[OnDelivery, int, KafkaError | None]] = deque()
        self._broken: KafkaError | None = None

    def get_ready(self) -> None:
        """It always is."""

    def send(
        self, partition: int, value: bytes | None, on_delivery: OnDelivery | None = None, key: bytes | None = None
    ) -> None:
        with self._kafka.changed:
            self._way.append(_Sent(partition, key, value, on_delivery))
            if not self._kafka.is_held:
                self.deliver()

    def deliver(self) -> None:
        """What is on its way arrives, all of it."""
        while self.deliver_one():
            pass

    def deliver_one(self) -> bool:
        """The next message that is on its way arrives; whether there was one."""
        if not self._way:
            return False
        sent = self._way.popleft()
        faults = self._kafka.faults
        fault = faults.popleft() if faults else Fault.NONE
        if self._broken is None:
            self._store(sent, fault)
        else:
            self._answer(sent, UNKNOWN_OFFSET, self._broken)
        return True

    def _store(self, sent: _Sent, fault: Fault) -> None:
        offset = UNKNOWN_OFFSET
        try:
            partition = self._kafka.partition(self.topic, sent.partition)
        except UnknownTopic as error:
            self._broken = error
        else:
            if fault is not Fault.REFUSED:
                for _ in range(2 if fault is Fault.TWICE else 1):
                    offset = partition.add(sent.key, sent.value)
            if fault in (Fault.ERROR, Fault.REFUSED):
                self._broken = KafkaError(f"injected: {fault.name.lower()}")
        if fault is Fault.UNKNOWN or self._broken is not None:
            offset = UNKNOWN_OFFSET
        if fault is not Fault.SILENCE:
            self._answer(sent, offset, self._broken)

    def _answer(self, sent: _Sent, offset: int, error: KafkaError | None) -> None:
        if sent.on_delivery is not None:
            self._answers.append((sent.on_delivery, offset, error))
        self._kafka.changed.notify_all()

    def poll(self, timeout_s: float) -> None:
        with self._kafka.changed:
            self._kafka.changed.wait_for(lambda: bool(self._answers), timeout_s)
            answers, self._answers = list(self._answers), deque()
        for on_delivery, offset, error in answers:
            on_delivery(offset, error)

    def close(self) -> None:
        with self._kafka.changed:
            self._way.clear()


class FakeConsumer(Consumer):
    def __init__(self, kafka: FakeKafka, topic: str, partition: int, offset: int) -> None:
        self._kafka = kafka
        self._topic = topic
        self._partition = partition
        self._offset = offset

    def receive(self, timeout_s: float) -> list[Received]:
        with self._kafka.changed:
            self._kafka.changed.wait_for(self._has_some, timeout_s)
            partition = self._kafka.partition(self._topic, self._partition)
            at = partition.position(self._offset)
            received = partition.messages[at : at + BATCH]
        if received:
            self._offset = received[-1].offset + 1
        return received

    def _has_some(self) -> bool:
        partition = self._kafka.partition(self._topic, self._partition)
        if not partition.first <= self._offset <= partition.next:
            raise OffsetOutOfRange(f"{self._offset} is outside {partition.first} to {partition.next}")
        return partition.position(self._offset) < len(partition.messages)

    def seek(self, offset: int) -> None:
        self._offset = offset

    def rest(self) -> None:
        """It fetches only when it is asked."""

    def close(self) -> None:
        """Nothing to let go of."""


class FakeMember(Member):
    """A member of a group: all partitions belong to the one that joined first and has not left."""

    def __init__(self, kafka: FakeKafka, group: str, topic: str, client: str) -> None:
        self.client = client
        self._kafka = kafka
        self._topic = topic
        self._members = kafka.groups.setdefault(group, [])
        with kafka.changed:
            self._members.append(self)

    @property
    def partitions(self) -> frozenset[int]:
        is_first = self in self._members and self._members[0] is self
        return frozenset(range(len(self._kafka.topics[self._topic].partitions))) if is_first else frozenset()

    def poll(self, timeout_s: float) -> frozenset[int]:
        with self._kafka.changed:
            if not self.partitions:
                self._kafka.changed.wait_for(lambda: bool(self.partitions), timeout_s)
            else:
                self._kafka.changed.wait(timeout_s)
            return self.partitions

    def close(self) -> None:
        """Leave, or be thrown out."""
        with self._kafka.changed:
            if self in self._members:
                self._members.remove(self)
            self._kafka.changed.notify_all()


class FakeKafka(KafkaPort):
    """A cluster. All who are given the same one see the same topics."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.topics: dict[str, _Topic] = {}
        self.faults: deque[Fault] = deque()
        """What becomes of the next messages, one each; those behind them are stored as they should be."""
        self.is_held = False
        self.is_down = False
        self.groups: dict[str, list[FakeMember]] = {}
        self._producers: list[FakeProducer] = []

    # -- faults ----------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """From now on messages stay on their way."""
        self.is_held = True

    def release(self, order: random.Random | None = None, count: int | None = None) -> None:
        """Let messages arrive: so many, or all, and then those that are sent later at once. With `order`, those of
        several producers mix; each producer's stay in their order."""
        with self.changed:
            sending = [producer for producer in self._producers if producer._way]
            while sending and count != 0:
                producer = order.choice(sending) if order else sending[0]
                producer.deliver_one()
                count = None if count is None else count - 1
                sending = [producer for producer in self._producers if producer._way]
            if count is None:
                self.is_held = False

    def delete_topic(self, name: str) -> None:
        with self.changed:
            del self.topics[name]
            self.changed.notify_all()

    def compact(self, topic: str) -> None:
        """As brokers do in the background, when nobody writes: of each key the last message stays, and none that says
        that the key was removed; but the last message of all stays in any case."""
        with self.changed:
            for partition in self.topics[topic].partitions:
                last = {message.key: message.offset for message in partition.messages}
                partition.messages = [
                    message
                    for message in partition.messages
                    if message.offset == partition.next - 1
                    or (message.value is not None and last[message.key] == message.offset)
                ]

    # -- the port --------------------------------------------------------------------------------------------------

    def partition(self, topic: str, partition: int) -> _Partition:
        if self.is_down:
            raise KafkaError("no broker answers")
        if topic not in self.topics or partition >= len(self.topics[topic].partitions):
            raise UnknownTopic(f"there is no {topic}/{partition}")
        return self.topics[topic].partitions[partition]

    def producer(self, topic: str) -> FakeProducer:
        made = FakeProducer(self, topic)
        with self.changed:
            self._producers.append(made)
        return made

    def consumer(self, topic: str, partition: int, offset: int, *, waits: bool = True) -> FakeConsumer:
        return FakeConsumer(self, topic, partition, offset)

    def join(self, group: str, topic: str, client: str, session_s: float) -> FakeMember:
        return FakeMember(self, group, topic, client)

    def members(self, group: str) -> list[GroupMember]:
        with self.changed:
            return [GroupMember(member.client, member.partitions) for member in self.groups.get(group, [])]

    def bounds(self, topic: str, partition: int, timeout_s: float | None = None) -> tuple[int, int]:
        with self.changed:
            found = self.partition(topic, partition)
            return found.first, found.next

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        with self.changed:
            found = self.partition(topic, partition)
            if before > found.next:
                raise OffsetOutOfRange(f"{before} is above {found.next}")
            found.messages = found.messages[found.position(before) :]
            found.first = max(found.first, before)

    def topic(self, name: str) -> Topic | None:
        with self.changed:
            if self.is_down:
                raise KafkaError("no broker answers")
            found = self.topics.get(name)
            if found is None:
                return None
            return Topic(name, found.id, len(found.partitions), found.replication, found.config)

    def create_topic(self, name: str, partitions: int, replication: int, config: Mapping[str, str]) -> None:
        with self.changed:
            if name in self.topics:
                raise TopicExists(f"topic {name} exists already")
            self.topics[name] = _Topic(partitions, replication, config)

    def brokers(self) -> list[str]:
        return ["fake-1:9092", "fake-2:9092", "fake-3:9092"]

    def close(self) -> None:
        """It stays as it is, for the next who uses it."""
