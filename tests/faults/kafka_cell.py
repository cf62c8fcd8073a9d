"""A cell on real brokers, hubs on it as processes of their own, and a judge of what they said."""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka.admin import AdminClient
from faults.victim import SOURCE, Victim
from support.kafka import SharedBrokers, new_cell

from headrace.config import Log as LogSettings
from headrace.log.clock import SystemClock
from headrace.log.disk import OsDisk
from headrace.log.kafka.cell import open_cell
from headrace.log.log import Log

WORKER = Path(__file__).with_name("kafka_worker.py")
LOAD = 80
"""Acknowledgements that show that a worker is at work."""


class Cell:
    """Topics of their own, the hubs that a test starts on them, and the judge."""

    def __init__(self, brokers: SharedBrokers, folder: Path) -> None:
        self.brokers = brokers
        self.settings, self.kafka = new_cell(brokers.servers, store="local")
        self.topic = f"{self.settings.prefix}.journal"
        self._folder = folder
        self._hubs: list[Victim] = []

    def hub(self, timeout_s: float = 60, servers: str = "") -> Victim:
        """One more hub, with an empty disk."""
        options = (servers or self.brokers.servers, self.settings.prefix, str(timeout_s))
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
        """Read everything with an empty disk and compare with what was acknowledged; how much that was."""
        self.end()
        acknowledged = [line.split()[1:] for hub in self._hubs for line in hub.lines if line.startswith("ack ")]
        self._judge(acknowledged)
        return len(acknowledged)

    def _judge(self, acknowledged: list[list[str]]) -> None:
        log = self.open("judge")
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


def leader(cell: Cell) -> int:
    """The number of the broker that leads the journal."""
    admin = AdminClient({"bootstrap.servers": cell.brokers.servers})
    return int(admin.list_topics(cell.topic, timeout=60).topics[cell.topic].partitions[0].leader)


def controller(cell: Cell) -> int:
    """The number of the broker that is the active controller."""
    return cell.brokers.controller.number


def is_still(hub: Victim) -> bool:
    """No acknowledgement in three seconds: there are hundreds in one otherwise."""
    hub.read()
    before = acks(hub)
    end = time.monotonic() + 3
    while time.monotonic() < end:
        hub.read(0.1)
    return acks(hub) == before
