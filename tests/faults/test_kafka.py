"""Real brokers and real hubs: killed, stopped, two at once. A judge with an empty disk reads everything afterwards."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Producer as AnyProducer
from confluent_kafka.admin import AdminClient
from faults.kafka_cell import LOAD, Cell, acks, controller, is_still, leader, wait_acks, wait_end
from support.kafka import SharedBrokers
from support.until import wait_until

from headrace.errors import StoreUnavailable
from headrace.log.cached_store import CachedStore
from headrace.log.disk import OsDisk
from headrace.log.journal_port import Unrecoverable
from headrace.log.kafka import journal
from headrace.log.kafka.client import KafkaPort
from headrace.log.kafka.messages import Kind, decode
from headrace.log.kafka.topic_store import TopicStore
from headrace.log.kafka.topics import blobs_topic
from headrace.log.log import Log
from headrace.log.store import DirectoryStore

pytestmark = [pytest.mark.long, pytest.mark.kafka, pytest.mark.slow]

LONG = bytes(range(256)) * 12_000
"""A blob of four parts."""


@pytest.fixture
def cell(brokers: SharedBrokers, tmp_path: Path) -> Iterator[Cell]:
    made = Cell(brokers, tmp_path)
    yield made
    made.end()


def test_a_hub_killed_inside_a_commit_of_several_parts(cell: Cell) -> None:
    """Killed while parts of a commit stand in the partition and the last does not."""
    for _ in range(3):
        hub = cell.hub()
        wait_acks(hub, LOAD)
        with contextlib.closing(cell.kafka.consumer(cell.topic, 0, cell.kafka.bounds(cell.topic, 0)[1])) as consumer:
            deadline = time.monotonic() + 60
            while not any(_is_first_part(value) for _, _, value in consumer.receive(1.0)):
                hub.read()
                assert time.monotonic() < deadline, "no large commit"
        hub.kill()
    assert cell.judge() > 3 * LOAD


def _is_first_part(value: bytes | None) -> bool:
    message = decode(value, 0)
    return message is not None and message.kind is Kind.COMMIT and message.parts > 1 and message.part == 0


def test_a_hub_that_was_stopped_and_wakes_up_is_fenced(cell: Cell) -> None:
    old = cell.hub()
    wait_acks(old, LOAD)
    old.stop()
    new = cell.hub()
    wait_acks(new, LOAD)
    before = acks(old)
    old.process.send_signal(signal.SIGCONT)
    last = wait_end(old)
    assert "fenced: hub hub-" in last
    assert acks(old) - before <= 8, "only what Kafka had acknowledged before it was stopped"
    wait_acks(new, LOAD)
    assert cell.judge() >= 3 * LOAD


def test_two_owners_at_once(cell: Cell) -> None:
    """Each new one takes the cell from one that is at work, and knows nothing of it."""
    hubs = [cell.hub()]
    wait_acks(hubs[0], LOAD)
    for _ in range(2):
        hubs.append(cell.hub())
        wait_acks(hubs[-1], LOAD)
        assert "fenced" in wait_end(hubs[-2])
    wait_acks(hubs[-1], LOAD)
    assert cell.judge() >= 4 * LOAD


def test_three_claims_at_once(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "CLAIM_WAIT_S", (0.1, 0.5))
    barrier = threading.Barrier(3)

    def claim(number: int) -> Log:
        barrier.wait(60)
        return cell.open(f"claimant-{number}")

    with ThreadPoolExecutor(3) as pool:
        logs = list(pool.map(claim, range(3)))
    epochs = sorted(int(log.gauges()["epoch"]) for log in logs)
    assert len(set(epochs)) == 3, "none has the epoch of another"
    for log in logs:
        log.close()
    hub = cell.hub()
    wait_acks(hub, LOAD)
    assert cell.judge() >= LOAD


def test_a_broker_is_killed(cell: Cell) -> None:
    """The one that leads the journal, one that follows, and the one that is the controller then."""
    hub = cell.hub()
    for find in (leader, lambda cell: leader(cell) % 3 + 1, controller):
        wait_acks(hub, LOAD)
        broker = cell.brokers.brokers[find(cell) - 1]
        broker.kill()
        wait_acks(hub, LOAD)
        broker.start()
        cell.brokers.wait_ready()
    wait_acks(hub, LOAD)
    assert cell.judge() >= 7 * LOAD


def test_two_brokers_down_and_up_again(cell: Cell, tmp_path: Path) -> None:
    """With one of three nothing is acknowledged, nothing is lost, and it goes on by itself. So it does with blobs."""
    store = CachedStore(
        DirectoryStore(OsDisk(tmp_path / "cache")), TopicStore(cell.kafka, blobs_topic(cell.settings), 0, 4), 10**8
    )
    name = store.put("f/a", LONG)
    hub = cell.hub(timeout_s=300)
    wait_acks(hub, LOAD)
    down = [broker for broker in cell.brokers.brokers if broker.number != leader(cell)]
    for broker in down:
        broker.kill()
    wait_until(lambda: is_still(hub), "nothing is acknowledged any more")
    with pytest.raises(StoreUnavailable):
        store.put("f/b", LONG)
    assert store.trouble() is not None
    assert store.get(name) == LONG, "it is in the cache"
    for broker in down:
        broker.start()
    cell.brokers.wait_ready()
    wait_acks(hub, LOAD, 300)
    other = store.put("f/b", LONG)
    assert store.trouble() is None
    store._drop("f/b")
    assert store.get(other) == LONG
    store.close()
    assert cell.judge() >= 2 * LOAD


def test_all_brokers_down_and_up_again(cell: Cell, tmp_path: Path) -> None:
    """A hub that waits goes on. One that has waited for `log.kafka.timeout_s` ends, and says why."""
    patient = cell.hub(timeout_s=300)
    other = Cell(cell.brokers, tmp_path / "other")
    hasty = other.hub(timeout_s=10)
    try:
        for hub in (patient, hasty):
            wait_acks(hub, LOAD)
        for broker in cell.brokers.brokers:
            broker.kill()
        last = wait_end(hasty)
        assert re.search(r"failed .*no answer in 10 s \(log.kafka.timeout_s\).*check the brokers", last)
        for broker in cell.brokers.brokers:
            broker.start()
        cell.brokers.wait_ready()
        wait_acks(patient, LOAD, 300)
        assert cell.judge() >= 2 * LOAD
        assert other.judge() >= LOAD
    finally:
        other.end()


def test_a_foreign_message_is_passed_over(cell: Cell) -> None:
    hub = cell.hub()
    wait_acks(hub, LOAD)
    stranger = AnyProducer({"bootstrap.servers": cell.brokers.servers})
    for _ in range(5):
        stranger.produce(cell.topic, b"hello?", partition=0)
        assert stranger.flush(60) == 0
        wait_acks(hub, 20)
    assert cell.judge() >= LOAD
    stranger.produce(cell.topic, b"once more: the journal may have been cut behind the others", partition=0)
    assert stranger.flush(60) == 0
    log = cell.open("counting")
    assert log.gauges()["foreign_messages"] >= 1
    log.close()


def recreate(cell: Cell) -> None:
    admin = AdminClient({"bootstrap.servers": cell.brokers.servers})
    before = cell.kafka.topic(cell.topic)
    assert before is not None
    admin.delete_topics([cell.topic])[cell.topic].result(60)
    wait_until(lambda: cell.kafka.topic(cell.topic) is None)
    wait_until(lambda: _made(cell.kafka, cell.topic, before.config), "the topic is there again")


def _made(kafka: KafkaPort, topic: str, config: object) -> bool:
    with contextlib.suppress(OSError):
        kafka.create_topic(topic, 1, 3, {key: value for key, value in config.items() if key in KEPT})  # type: ignore[attr-defined]
        return True
    return False


KEPT = (
    "min.insync.replicas",
    "unclean.leader.election.enable",
    "compression.type",
    "max.message.bytes",
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
)


def test_a_topic_deleted_and_made_again_stops_the_hub(cell: Cell) -> None:
    """While it runs; and one that starts with what it remembers does not begin anew."""
    hub = cell.hub()
    wait_acks(hub, LOAD)
    log = cell.open("remembers")
    bounds = log.bounds("a")
    assert bounds.next > LOAD
    log.close()
    hub = cell.hub(timeout_s=30)
    wait_acks(hub, LOAD)
    recreate(cell)
    assert wait_end(hub).startswith("failed ")
    with pytest.raises(Unrecoverable, match="deleted and created again"):
        cell.open("remembers")


def test_a_record_of_16_mib_and_a_transaction_of_64_mib(cell: Cell) -> None:
    from unit.log.helpers import do, payloads

    from headrace.log import ops
    from headrace.log.batch import Batch

    log = cell.open("large")
    do(log, ops.CreateStream("s"))
    record = bytes(range(256)) * (16 * 1024 * 1024 // 256)
    do(log, ops.Append("s", Batch.one(record)))
    many = [record[: 4 * 1024 * 1024 - 64] for _ in range(15)]
    do(log, ops.Append("s", Batch.of(many)))
    log.close()
    after = cell.open("large-again")
    assert payloads(after, "s") == [record, *many]
    after.close()
