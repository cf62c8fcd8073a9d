"""Hubs and brokers killed again and again under load; then everything is read from an empty disk, and judged.

    PYTHONPATH=tests:tools python tests/faults/takeovers.py --takeovers 100 --broker-kills 50

Producers append batches, each at a hub chosen at random, with a name and a sequence, and try again until they are
acknowledged. The owner is killed, stopped for twice its session and woken, or told to hand over; brokers are killed and
started again. In the end a hub with an empty disk must hold every acknowledged batch once, whole, in order, at indexes
without a gap.
"""

from __future__ import annotations

import argparse
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from kafka_brokers import Brokers, fetch
from support.cluster import SESSION_TIMEOUT_S, HubCluster, get
from support.hub_process import HubProcess
from support.kafka import new_cell
from support.until import wait_until

import headrace
from headrace.errors import HeadraceError

BATCH_RECORDS = 20
RETRY_S = 300.0
STREAM = "load/%d"


class Producer(threading.Thread):
    """Appends batch after batch to its stream; `acknowledged` counts those that were."""

    def __init__(self, number: int, cluster: HubCluster, stop: threading.Event) -> None:
        super().__init__(name=f"producer {number}", daemon=True)
        self.number = number
        self.acknowledged = 0
        self.longest_pause_s = 0.0
        self.error: Exception | None = None
        self._cluster = cluster
        self._stopping = stop
        self._random = random.Random(number)

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._append()
        except Exception as error:
            self.error = error

    def _append(self) -> None:
        payloads = [b"%d %d %d" % (self.number, self.acknowledged, record) for record in range(BATCH_RECORDS)]
        began = time.monotonic()
        while True:
            hub = self._random.choice(self._cluster.hubs)
            try:
                with headrace.connect(hub.addresses["flight"], timeout_s=30) as client:
                    for _ in range(50):  # then another hub
                        stream = STREAM % self.number
                        client.append(stream, payloads, producer="load", sequence=self.acknowledged + 1)
                        self.longest_pause_s = max(self.longest_pause_s, time.monotonic() - began)
                        self.acknowledged += 1
                        if self._stopping.is_set():
                            return
                        began = time.monotonic()
                        payloads = [b"%d %d %d" % (self.number, self.acknowledged, n) for n in range(BATCH_RECORDS)]
                    return
            except HeadraceError:
                if time.monotonic() > began + RETRY_S:
                    raise
                time.sleep(0.05)


class Havoc:
    """What is done to hubs and brokers."""

    def __init__(self, brokers: Brokers, cluster: HubCluster, seed: int) -> None:
        self.brokers = brokers
        self.cluster = cluster
        self.done: Counter[str] = Counter()
        self.takeover_s: list[float] = []
        self._random = random.Random(seed)

    def take_over(self, how: str) -> None:
        """One takeover; the hub that lost the cell is back as a follower afterwards."""
        owner = self.cluster.wait_for_owner()
        process = owner.process
        assert process is not None
        began = time.monotonic()
        if how == "kill":
            owner.kill()
        elif how == "hand over":
            assert owner.stop() == 0, owner.log.read_text()[-2000:]
        else:
            process.send_signal(signal.SIGSTOP)
        new = self._next_owner(owner)
        self.takeover_s.append(time.monotonic() - began)
        self.done[how] += 1
        if how == "pause":
            time.sleep(max(0.0, began + 2 * SESSION_TIMEOUT_S - time.monotonic()))
            process.send_signal(signal.SIGCONT)
            assert process.wait(60) == 4, owner.log.read_text()[-2000:]
            owner.process = None
            assert self.cluster.find_owner() is new
        owner.start()

    def _next_owner(self, owner: HubProcess) -> HubProcess:
        others = [hub for hub in self.cluster.hubs if hub is not owner]

        def found() -> HubProcess | None:
            return next((hub for hub in others if get(hub, "/health?cell=0")[0] == 200), None)

        new: HubProcess = wait_until(found, f"a hub takes over; {owner.folder}", 180)
        return new

    def kill_broker(self) -> None:
        broker = self._random.choice(self.brokers.brokers)
        broker.kill()
        self.done["broker"] += 1
        time.sleep(self._random.uniform(0, 8))
        for attempts_left in reversed(range(10)):
            broker.start()
            try:
                self.brokers.wait_ready()
                return
            except RuntimeError:  # its port is taken for a moment: by the far end of somebody's connection
                broker.kill()
                if not attempts_left:
                    raise
                time.sleep(1)


def run(folder: Path, brokers: Brokers, takeovers: int, broker_kills: int, seed: int = 1) -> str:
    """All of it; one line for people. Raises an `AssertionError` when something was lost, doubled or torn."""
    chosen, kafka = new_cell(brokers.servers)
    kafka.close()
    stop = threading.Event()
    chance = random.Random(seed)
    with HubCluster(folder, brokers.servers, chosen.prefix, count=3, only=("http", "flight")) as cluster:
        producers = [Producer(number, cluster, stop) for number in range(4)]
        with headrace.connect(cluster.hubs[0].addresses["flight"]) as client:
            for producer in producers:
                client.create(STREAM % producer.number)
        for producer in producers:
            producer.start()
        havoc = Havoc(brokers, cluster, seed)
        breaking = threading.Thread(target=_break_brokers, args=(havoc, broker_kills, stop), daemon=True)
        breaking.start()
        for _ in range(takeovers):
            _progress(producers)
            havoc.take_over(chance.choice(["kill", "kill", "hand over", "hand over", "pause"]))
            print(dict(havoc.done), [producer.acknowledged for producer in producers], flush=True)
        wait_until(lambda: havoc.done["broker"] >= broker_kills or not breaking.is_alive(), "brokers killed", 3600)
        breaking.join()
        _progress(producers)
        stop.set()
        for producer in producers:
            producer.join(RETRY_S)
            assert producer.error is None
            assert not producer.is_alive()
        cluster.kill_all()
        judge = cluster.new_hub("judge")
        cluster.hubs = [judge]
        judge.start()
        cluster.wait_for_owner()
        records = _judge(judge, producers)
    pauses = [round(producer.longest_pause_s, 1) for producer in producers]
    took = sorted(havoc.takeover_s)
    return (
        f"{dict(havoc.done)}: {sum(each.acknowledged for each in producers)} acknowledgements, {records} records, none "
        f"lost, none twice; takeovers {took[0]:.1f} to {took[-1]:.1f} s, median {took[len(took) // 2]:.1f} s; longest "
        f"pauses of producers {pauses} s"
    )


def _progress(producers: list[Producer]) -> None:
    """Each producer gets on."""
    before = [producer.acknowledged for producer in producers]
    wait_until(
        lambda: all(
            producer.error or producer.acknowledged > count + 2
            for producer, count in zip(producers, before, strict=True)
        ),
        "producers get on",
        RETRY_S,
    )
    assert not [producer.error for producer in producers if producer.error]


def _break_brokers(havoc: Havoc, kills: int, stop: threading.Event) -> None:
    for _ in range(kills):
        if stop.wait(2):
            return
        havoc.kill_broker()


def _judge(hub: HubProcess, producers: list[Producer]) -> int:
    total = 0
    with headrace.connect(hub.addresses["flight"], timeout_s=120) as client:
        for producer in producers:
            stream = STREAM % producer.number
            table = client.read(stream).to_arrow()
            expected = [
                b"%d %d %d" % (producer.number, batch, record)
                for batch in range(producer.acknowledged)
                for record in range(BATCH_RECORDS)
            ]
            assert table.column("payload").to_pylist() == expected, f"{stream} differs"
            assert table.column("index").to_pylist() == list(range(len(expected)))
            assert client.producer_sequence(stream, "load") == producer.acknowledged
            total += len(expected)
    return total


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--takeovers", type=int, default=100)
    options.add_argument("--broker-kills", type=int, default=50)
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    fetch()
    with tempfile.TemporaryDirectory(prefix="headrace-takeovers-") as directory:
        brokers = Brokers(Path(directory) / "brokers")
        try:
            brokers.start()
            print(run(Path(directory), brokers, chosen.takeovers, chosen.broker_kills, chosen.seed))
        finally:
            brokers.stop()


if __name__ == "__main__":
    main()
