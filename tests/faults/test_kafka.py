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
from faults.victim import SOURCE, Victim
from kafka_brokers import Brokers
from support.kafka import new_cell
from support.until import wait_until

from headrace.config import Log as LogSettings
from headrace.log.clock import SystemClock
from headrace.log.disk import OsDisk
from headrace.log.journal_port import Unrecoverable
from headrace.log.kafka.cell import open_cell
from headrace.log.kafka.client import KafkaPort
from headrace.log.kafka.messages import Kind, decode
from headrace.log.log import Log

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

WORKER = Path(__file__).with_name("kafka_worker.py")
LOAD = 150
"""Acknowledgements that show that a worker is at work."""


class Cell:
    """Topics of their own, the hubs that a test starts on them, and the judge."""

    def __init__(self, brokers: Brokers, folder: Path) -> None:
        self.brokers = brokers
        self.settings, self.kafka = new_cell(brokers.servers, store="local")
        self.topic = f"{self.settings.prefix}.journal"
        self._folder = folder
        self._hubs: list[Victim] = []

    def hub(self, timeout_s: float = 60) -> Victim:
        """One more hub, with an empty disk."""
        options = (self.brokers.servers, self.settings.prefix, str(timeout_s))
        where = self._folder / f"hub-{len(self._hubs)}"
        made = Victim(where, ["env", f"PYTHONPATH={SOURCE}:{SOURCE.parent / 'tests'}"], options=options, worker=WORKER)
        self._hubs.append(made)
        return made

    def end(self) -> None:
        for hub in self._hubs:
            if not hub.process.stdout.closed:  # type: ignore[union-attr]
                hub.kill()

    def open(self, name: str) -> Log:
        return open_cell(
            OsDisk(self._folder / name), SystemClock(), LogSettings(backend="kafka", kafka=self.settings), self.kafka
        )

    def judge(self) -> int:
        """Read everything with an empty disk, twice, and compare with what was acknowledged; how much that was."""
        self.end()
        acknowledged = [line.split()[1:] for hub in self._hubs for line in hub.lines if line.startswith("ack ")]
        first = self._judge_once("judge-1", acknowledged)
        assert self._judge_once("judge-2", acknowledged) == first
        return len(acknowledged)

    def _judge_once(self, name: str, acknowledged: list[list[str]]) -> tuple[list[str], list[str]]:
        log = self.open(name)
        try:
            assert not log.recovered.damage
            streams = {stream: _heads(log, stream) for stream in ("a", "b")}
            transactions = [head.rpartition(":")[0] for head in streams["a"] if head.endswith(":0")]
            assert transactions == streams["b"], "transactions are whole, and in one order"
            assert len(set(streams["a"])) == len(streams["a"]), "nothing is there twice"
            last: dict[str, int] = {}
            for writer, round, start, count, other in acknowledged:
                expected = [f"{writer}:{round}:{number}" for number in range(int(count))]
                assert streams["a"][int(start) : int(start) + int(count)] == expected
                assert streams["b"][int(other)] == f"{writer}:{round}"
                last[writer] = max(int(round), last.get(writer, -1))
            for writer, round_number in last.items():
                row = log.table_get("rounds", writer.encode())
                assert row is not None
                assert int(row) >= round_number
                assert log.cursor(writer, "b") == int(row)
            return streams["a"], streams["b"]
        finally:
            log.close()


def _heads(log: Log, stream: str) -> list[str]:
    """What each record begins with; indexes are dense from 0."""
    bounds = log.bounds(stream)
    assert bounds.first == 0
    return [
        payload[:60].decode().partition(":x")[0]
        for batch in log.scan(stream, 0, bounds.next)
        for payload in batch.column("payload").to_pylist()
    ]


@pytest.fixture
def cell(brokers: Brokers, tmp_path: Path) -> Iterator[Cell]:
    made = Cell(brokers, tmp_path)
    yield made
    made.end()


def acks(hub: Victim) -> int:
    return sum(line.startswith("ack ") for line in hub.lines)


def wait_acks(hub: Victim, count: int, deadline_s: float = 120) -> None:
    """So many more, while the hub lives."""
    wanted = acks(hub) + count
    deadline = time.monotonic() + deadline_s
    while acks(hub) < wanted:
        assert hub.read(0.1), f"ended: {hub.lines[-2:]} {hub.errors()}"
        assert time.monotonic() < deadline, f"{acks(hub)} of {wanted} acknowledgements: {hub.lines[-2:]}"


def wait_end(hub: Victim) -> str:
    """The last words of a hub that gave up."""
    deadline = time.monotonic() + 180
    while hub.read(0.1):
        assert time.monotonic() < deadline, hub.lines[-2:]
    assert hub.process.wait(60) == 4
    return hub.lines[-1]


def test_a_hub_killed_inside_a_commit_of_several_parts(cell: Cell) -> None:
    """Killed while parts of a commit stand in the partition and the last does not."""
    for _ in range(4):
        hub = cell.hub()
        wait_acks(hub, LOAD)
        with contextlib.closing(cell.kafka.consumer(cell.topic, 0, cell.kafka.bounds(cell.topic, 0)[1])) as consumer:
            deadline = time.monotonic() + 60
            while not any(_is_first_part(value) for _, _, value in consumer.receive(1.0)):
                hub.read()
                assert time.monotonic() < deadline, "no large commit"
        hub.kill()
    assert cell.judge() > 4 * LOAD


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
    assert cell.judge() > 3 * LOAD


def test_two_owners_at_once(cell: Cell) -> None:
    """Each new one takes the cell from one that is at work, and knows nothing of it."""
    hubs = [cell.hub()]
    wait_acks(hubs[0], LOAD)
    for _ in range(3):
        hubs.append(cell.hub())
        wait_acks(hubs[-1], LOAD)
        assert "fenced" in wait_end(hubs[-2])
    wait_acks(hubs[-1], LOAD)
    assert cell.judge() > 5 * LOAD


def test_three_claims_at_once(cell: Cell) -> None:
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


def leader(cell: Cell) -> int:
    """The number of the broker that leads the journal."""
    admin = AdminClient({"bootstrap.servers": cell.brokers.servers})
    return int(admin.list_topics(cell.topic, timeout=30).topics[cell.topic].partitions[0].leader)


def controller(cell: Cell) -> int:
    admin = AdminClient({"bootstrap.servers": cell.brokers.servers})
    return int(admin.describe_cluster(request_timeout=30).result().controller.id)


@pytest.mark.parametrize("which", ["leader", "follower", "controller"])
def test_a_broker_is_killed(cell: Cell, which: str) -> None:
    hub = cell.hub()
    wait_acks(hub, LOAD)
    number = {"leader": leader(cell), "follower": leader(cell) % 3 + 1, "controller": controller(cell)}[which]
    broker = cell.brokers.brokers[number - 1]
    broker.kill()
    wait_acks(hub, LOAD)
    broker.start()
    cell.brokers.wait_ready()
    wait_acks(hub, LOAD)
    assert cell.judge() >= 3 * LOAD


def test_two_brokers_down_and_up_again(cell: Cell) -> None:
    """With one of three nothing is acknowledged, nothing is lost, and it goes on by itself."""
    hub = cell.hub(timeout_s=300)
    wait_acks(hub, LOAD)
    down = [broker for broker in cell.brokers.brokers if broker.number != leader(cell)]
    for broker in down:
        broker.kill()
    wait_until(lambda: _is_still(hub), "nothing is acknowledged any more")
    for broker in down:
        broker.start()
    cell.brokers.wait_ready()
    wait_acks(hub, LOAD, 300)
    assert cell.judge() >= 2 * LOAD


def _is_still(hub: Victim) -> bool:
    """No acknowledgement in three seconds: there are hundreds in one otherwise."""
    hub.read()
    before = acks(hub)
    end = time.monotonic() + 3
    while time.monotonic() < end:
        hub.read(0.1)
    return acks(hub) == before


def test_all_brokers_down_and_up_again(cell: Cell) -> None:
    hub = cell.hub(timeout_s=300)
    wait_acks(hub, LOAD)
    for broker in cell.brokers.brokers:
        broker.kill()
    for broker in cell.brokers.brokers:
        broker.start()
    cell.brokers.wait_ready()
    wait_acks(hub, LOAD, 300)
    assert cell.judge() >= 2 * LOAD


def test_brokers_that_do_not_come_back_end_the_hub(cell: Cell) -> None:
    hub = cell.hub(timeout_s=10)
    wait_acks(hub, LOAD)
    for broker in cell.brokers.brokers:
        broker.kill()
    last = wait_end(hub)
    assert re.search(r"failed .*no answer in 10 s \(log.kafka.timeout_s\).*check the brokers", last)
    for broker in cell.brokers.brokers:
        broker.start()
    cell.brokers.wait_ready()
    assert cell.judge() >= LOAD


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
    with pytest.raises(Unrecoverable, match="deleted and made again"):
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
