"""The store in a compacted topic, beside what every store keeps to."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import StoreUnavailable
from headrace.log.cached_store import CachedStore
from headrace.log.disk import OsDisk
from headrace.log.kafka.client import KafkaError
from headrace.log.kafka.topic_store import AHEAD_MAX, HEADER, PART_BYTES, TopicStore
from headrace.log.stamp import split
from headrace.log.store import BlobDamaged, DirectoryStore
from headrace.testing.kafka import FakeConsumer, FakeKafka, Fault

LONG = bytes(range(256)) * 8_000  # three parts
TOPIC = "headrace.blobs"


@pytest.fixture
def kafka() -> FakeKafka:
    made = FakeKafka()
    made.create_topic(TOPIC, 2, 3, {"cleanup.policy": "compact"})
    return made


@pytest.fixture
def store(kafka: FakeKafka) -> TopicStore:
    return TopicStore(kafka, TOPIC, 1, timeout_s=0.2)


def test_a_blob_is_in_parts_that_fit_a_message(kafka: FakeKafka, store: TopicStore) -> None:
    store.put("f/before", b"x")
    name = store.put("f/a", LONG)
    bare, stamp = split(name)
    assert stamp is not None
    assert (bare, stamp.size, stamp.first, stamp.last, stamp.parts) == ("f/a", len(LONG), 1, 3, 3)
    messages = kafka.partition(TOPIC, 1).messages
    assert [message.key for message in messages[1:]] == [b"1/f/a/0", b"1/f/a/1", b"1/f/a/2"]
    assert max(len(message.value or b"") for message in messages) == PART_BYTES + HEADER.size
    assert store.get(name) == store.get("f/a") == store.map(name).to_pybytes() == LONG
    assert (store.size(name), store.size("f/a")) == (len(LONG), len(LONG))
    assert list(store.names()) == ["f/before", "f/a"]
    assert list(store.names("f")) == ["f/before", "f/a"]
    assert list(store.names("g")) == []
    store.close()
    store.close()


@given(st.integers(0, 3).flatmap(lambda n: st.sampled_from([n * PART_BYTES, n * PART_BYTES + 1, n * PART_BYTES + 9])))
def test_every_size_comes_back(size: int) -> None:
    kafka = FakeKafka()
    kafka.create_topic(TOPIC, 1, 3, {})
    store = TopicStore(kafka, TOPIC, 0)
    data = (b"0123456789" * (size // 10 + 1))[:size]
    name = store.put("f/a", data)
    assert store.get(name) == data
    assert kafka.bounds(TOPIC, 0)[1] == max(1, -(-size // PART_BYTES))


def test_many_parts_are_on_their_way_at_once_and_not_all(kafka: FakeKafka) -> None:
    store = TopicStore(kafka, TOPIC, 1, timeout_s=60)
    kafka.hold()
    data = bytes(PART_BYTES * (AHEAD_MAX + 4))
    names: list[str] = []
    writer = threading.Thread(target=lambda: names.append(store.put("f/a", data)))
    writer.start()
    while len(kafka._producers) == 0 or len(kafka._producers[0]._way) < AHEAD_MAX:
        pass
    assert len(kafka._producers[0]._way) == AHEAD_MAX
    kafka.release()
    writer.join()
    assert store.get(names[0]) == data


def test_what_others_wrote_in_between_is_passed_over(kafka: FakeKafka, store: TopicStore) -> None:
    producer = kafka.producer(TOPIC)
    producer.send(1, b"foreign", key=None)
    producer.send(1, b"foreign", key=b"1/f/a/0")
    producer.send(1, b"foreign", key=b"0/f/a/0")
    producer.send(1, b"foreign", key=b"what")
    other = TopicStore(kafka, TOPIC, 1)
    kafka.hold()
    names: dict[str, str] = {}

    def put(which: TopicStore, name: str) -> None:
        names[name] = which.put(name, LONG + name.encode())

    writers = [threading.Thread(target=put, args=(which, name)) for which, name in ((store, "f/a"), (other, "f/b"))]
    for writer in writers:
        writer.start()
    while sum(len(each._way) for each in kafka._producers) < 6:
        pass
    kafka.release()
    for writer in writers:
        writer.join()
    for name, found_by in names.items():
        assert store.get(found_by) == store.get(name) == LONG + name.encode()
    assert store.list("f") == ["a", "b"]


def test_compaction_keeps_offsets(kafka: FakeKafka, store: TopicStore) -> None:
    dropped, kept, last = (store.put(name, LONG + name.encode()) for name in ("f/a", "f/b", "f/c"))
    store.delete(dropped)
    assert store.list("f") == ["b", "c"]
    kafka.compact(TOPIC)
    assert kafka.partition(TOPIC, 1).messages[0].offset == 3
    for name in (dropped, "f/a"):
        with pytest.raises(FileNotFoundError):
            store.get(name)
    assert store.get(kept) == LONG + b"f/b"
    assert store.get(last) == LONG + b"f/c"
    store.delete(dropped)  # again, by whoever finds that it was dropped
    store.delete("f/a")
    store.delete_all("f")
    kafka.compact(TOPIC)
    assert list(store.names()) == []
    assert len(kafka.partition(TOPIC, 1).messages) == 1


def test_a_blob_that_was_given_up_between_its_parts_is_none(kafka: FakeKafka, store: TopicStore) -> None:
    kafka.faults.extend([Fault.NONE, Fault.REFUSED])
    with pytest.raises(KafkaError, match="refused"):
        store.put("f/a", LONG)
    assert kafka.bounds(TOPIC, 1)[1] == 1
    assert store.list("f") == []
    with pytest.raises(FileNotFoundError):
        store.get("f/a")
    name = store.put("f/a", LONG)
    assert store.get(name) == store.get("f/a") == LONG


@pytest.mark.parametrize("fault", [Fault.TWICE, Fault.UNKNOWN])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_parts_that_were_sent_twice(kafka: FakeKafka, store: TopicStore, fault: Fault, part: int) -> None:
    store.put("f/before", b"x")
    kafka.faults.extend([Fault.NONE] * part + [fault])
    name = store.put("f/a", LONG)
    assert store.get(name) == LONG
    assert store.get("f/a") == LONG


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.SILENCE])
def test_a_broker_that_does_not_answer(kafka: FakeKafka, store: TopicStore, tmp_path: Path, fault: Fault) -> None:
    cached = CachedStore(DirectoryStore(OsDisk(tmp_path)), store, 10**7)
    kafka.faults.append(fault)
    with pytest.raises(StoreUnavailable, match="trying again"):
        cached.put("f/a", LONG)
    assert cached.trouble() is not None
    name = cached.put("f/a", LONG)
    assert cached.trouble() is None
    assert store.get(name) == LONG
    kafka.is_down = True
    cached._drop("f/a")
    with pytest.raises(StoreUnavailable, match="no broker"):
        cached.get(name)
    kafka.is_down = False
    assert cached.get(name) == LONG
    cached.close()


def test_damage_in_a_message_is_found(kafka: FakeKafka, store: TopicStore) -> None:
    name = store.put("f/a", b"0123456789")
    [message] = kafka.partition(TOPIC, 1).messages
    kafka.partition(TOPIC, 1).messages = [message._replace(value=(message.value or b"")[:-1] + b"x")]
    with pytest.raises(BlobDamaged, match="part 0 of f/a at offset 0"):
        store.get(name)


def test_a_topic_that_was_made_again_has_nothing(kafka: FakeKafka, store: TopicStore) -> None:
    store.put("f/a", b"x")
    name = store.put("f/b", b"x")
    kafka.delete_topic(TOPIC)
    with pytest.raises(KafkaError):
        store.get(name)
    kafka.create_topic(TOPIC, 2, 3, {})
    with pytest.raises(FileNotFoundError):
        store.get(name)


def test_a_partition_that_does_not_come_is_an_error(kafka: FakeKafka, store: TopicStore) -> None:
    name = store.put("f/a", b"x")
    kafka.partition(TOPIC, 1).messages.clear()
    with pytest.raises(KafkaError, match="could not be read"):
        store.get(name)


def test_nobody_waits_for_a_log_that_was_given_up(kafka: FakeKafka) -> None:
    """A hub that lost its cell while brokers are away must end, and not wait for what counts for nobody."""
    store = TopicStore(kafka, TOPIC, 0, timeout_s=600)
    kafka.hold()
    with ThreadPoolExecutor(1) as pool:
        putting = pool.submit(store.put, "f/a", b"x")
        store.give_up()
        with pytest.raises(KafkaError, match="given up"):
            putting.result(60)
    store.close()


class CountingKafka(FakeKafka):
    """Counts the consumers that were made, and those that are open."""

    def __init__(self) -> None:
        super().__init__()
        self.made = self.open = 0

    def consumer(self, topic: str, partition: int, offset: int, *, waits: bool = True) -> FakeConsumer:
        assert not waits, "what a store reads is there already"
        self.made += 1
        self.open += 1
        consumer = super().consumer(topic, partition, offset, waits=waits)
        consumer.close = self._closed  # type: ignore[method-assign]
        return consumer

    def _closed(self) -> None:
        self.open -= 1


def test_readers_share_a_consumer_one_after_the_other() -> None:
    kafka = CountingKafka()
    kafka.create_topic(TOPIC, 1, 3, {})
    store = TopicStore(kafka, TOPIC, 0, timeout_s=5)
    names = [store.put(f"f/{number}", LONG + b"%d" % number) for number in range(3)]
    for name, number in [(names[number], number) for number in (2, 0, 1, 0)]:
        assert store.get(name) == LONG + b"%d" % number
    assert (kafka.made, kafka.open) == (1, 1)
    one, other = store.chunks(names[0]), store.chunks(names[1])
    assert next(one) == next(other), "two at the same time, each with its own"
    assert b"".join(other).endswith(b"1")
    one.close()  # type: ignore[attr-defined]
    assert (kafka.made, kafka.open) == (2, 1)
    message = kafka.topics[TOPIC].partitions[0].messages[0]
    assert message.value is not None
    kafka.topics[TOPIC].partitions[0].messages[0] = message._replace(value=message.value[:-1] + b"?")
    with pytest.raises(BlobDamaged):
        store.get(names[0])
    assert kafka.open == 0, "one that met an error is not used again"
    assert store.get(names[2]) == LONG + b"2"
    store.close()
    assert kafka.open == 0
