"""The least that a log on Kafka can take in Python on this machine: what it cannot do without, and nothing else.

    records → a batch → bodies of a journal's message, packed → an idempotent producer, five messages on their way
                      └ the same bytes once more, as segments: packed to a second topic, or written to a file and synced

    one record: an asyncio loop → a thread that produces and waits for the answer → the loop

No frame, index, tail or segment is made, nothing is checked, and nobody is told of the outcome. It is measured in turns
with the plain producer of `bench_kafka.py` at its best batching, until all is stored: a hub that keeps up with its
store cannot have a better ratio.

    python benchmarks/kafka_floor.py [--directory DIR] [--rounds 5] [--servers HOST:PORT,…]
"""

from __future__ import annotations

import asyncio
import os
import queue
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from bench_kafka import (
    BATCH,
    BATCHES,
    PLAIN,
    SECONDS_EACH,
    SINGLES,
    WARM_UP,
    WARM_UP_S,
    Cpu,
    Plain,
    best_batching,
    plain_rate,
    ratio,
    show_work,
)
from brokers import options, progress, workplace

from headrace.cli.up import SWITCH_INTERVAL_S
from headrace.config import Kafka
from headrace.log.batch import Batch
from headrace.log.kafka.client import Producer, connect
from headrace.log.kafka.messages import BODY_BYTES_MAX
from headrace.log.kafka.packing import pack
from headrace.log.kafka.topics import create_missing, plans

if TYPE_CHECKING:
    from kafka_brokers import Brokers

SEGMENT_BYTES = 32 * 1024 * 1024
AHEAD_MAX = 4
"""Bodies that wait for a thread."""
Bodies = queue.Queue[list[bytes] | None]


def send_all(producer: Producer, bodies: Bodies) -> None:
    waiting = [0]

    def delivered(offset: int, error: object) -> None:
        assert error is None
        waiting[0] -= 1

    while (body := bodies.get()) is not None:
        packed = pack(b"".join(body), "zstd")
        assert packed is not None
        waiting[0] += 1
        producer.send(0, packed, delivered, uuid.uuid4().bytes)  # a compacted topic takes nothing without a key
        producer.poll(0)
    while waiting[0]:
        producer.poll(0.1)


def write_all(directory: Path, bodies: Bodies) -> None:
    path, size = directory / "segment", 0
    while (body := bodies.get()) is not None:
        with path.open("ab") as file:
            size += file.write(b"".join(body))
            if size >= SEGMENT_BYTES:
                os.fsync(file.fileno())
                path.rename(directory / uuid.uuid4().hex)
                size = 0


def floor_rate(consumers: list[Callable[[Bodies], None]], seconds: float) -> float:
    """Records a second that all of these have dealt with."""
    queues: list[Bodies] = [queue.Queue(AHEAD_MAX) for _ in consumers]
    threads = [
        threading.Thread(target=consume, args=[bodies]) for consume, bodies in zip(consumers, queues, strict=True)
    ]
    for thread in threads:
        thread.start()
    count, body, size = 0, list[bytes](), 0
    began = time.perf_counter()
    for records in _until(began + seconds):
        body.append(Batch.of(records).body)
        count += BATCH
        size += len(body[-1])
        if size + len(body[-1]) > BODY_BYTES_MAX:
            for bodies in queues:
                bodies.put(body)
            body, size = [], 0
    for bodies, thread in zip(queues, threads, strict=True):
        bodies.put(None)
        thread.join()
    return count / (time.perf_counter() - began)


def _until(end: float) -> Iterator[list[bytes]]:
    for records in cycle(BATCHES):
        if time.perf_counter() > end:
            return
        yield records


def singles_us(producer: Producer) -> list[float]:
    """One record after the other, by way of an event loop and a thread."""
    wanted: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def produce() -> None:
        while (tell := wanted.get()) is not None:
            done: list[object] = []
            producer.send(0, BATCHES[0][0], lambda offset, error, done=done: done.append(error))
            while not done:
                producer.poll(1.0)
            tell()

    async def ask() -> list[float]:
        loop = asyncio.get_running_loop()
        times = []
        for _ in range(SINGLES):
            began = time.perf_counter()
            future = loop.create_future()
            wanted.put(lambda future=future: loop.call_soon_threadsafe(future.set_result, None))
            await future
            times.append((time.perf_counter() - began) * 1e6)
        return times

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        return asyncio.run(ask())
    finally:
        wanted.put(None)
        thread.join()


def measure(directory: Path, servers: str, rounds: int, brokers: Brokers | None) -> None:
    settings = Kafka(servers=servers, prefix=f"floor-{uuid.uuid4().hex[:8]}")
    kafka = connect(settings)
    create_missing(kafka, settings)
    journal, *others = plans(settings)
    blobs = next(plan for plan in others if plan.name.endswith("blobs"))
    kafka.create_topic(f"{settings.prefix}.plain", 1, journal.replication, journal.config)
    producer, store = kafka.producer(journal.name), kafka.producer(blobs.name)
    plain = Plain(servers, f"{settings.prefix}.plain")
    progress("looking for the best batching of the plain producer")
    best = best_batching(servers, f"{settings.prefix}.plain", is_idempotent=True)
    journals = partial(send_all, producer)
    turns: dict[str, Callable[[float], float]] = {
        PLAIN: lambda seconds: plain_rate(servers, f"{settings.prefix}.plain", best, seconds),
        "journal": partial(floor_rate, [journals]),
        "journal and topic": partial(floor_rate, [journals, partial(send_all, store)]),
        "journal and files": partial(floor_rate, [journals, partial(write_all, directory)]),
    }
    rates: dict[str, list[float]] = {name: [] for name in turns}
    singles: list[float] = []
    work: dict[str, list[Cpu]] = {name: [] for name in turns}
    for round in range(1 - WARM_UP, rounds + 1):
        for name, turn in turns.items():
            before, began = Cpu.now(brokers), time.perf_counter()
            rate = turn(WARM_UP_S if round < 1 else SECONDS_EACH)
            records = rate * (time.perf_counter() - began)
            if round > 0:
                rates[name].append(rate)
                work[name].append(Cpu.now(brokers).per_million(before, records))
        if round > 0:
            bare, through = plain.singles_us(), singles_us(producer)
            singles.append(statistics.median(through) / statistics.median(bare))
        progress(f"round {round} of {rounds}")
    for name, each in rates.items():
        print(f"{name:>18}: {statistics.median(each):>11,.0f} records/s, {ratio(rates, name, PLAIN)} x {PLAIN}")
    show_work(work, with_brokers=brokers is not None)
    print(
        f"one record through a loop and a thread: p50 {statistics.median(singles):.2f} "
        f"({min(singles):.2f} to {max(singles):.2f}) x that of a bare produce"
    )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with workplace(arguments) as (directory, servers, brokers):
        measure(directory, servers, arguments.rounds, brokers)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
