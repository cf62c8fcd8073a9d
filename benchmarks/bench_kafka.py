"""The log on Kafka against what it stands on, in one run: a plain producer, and the log in files.

    python benchmarks/bench_kafka.py [--directory DIR] [--rounds 5] [--servers HOST:PORT,…]

Three brokers are started on this machine unless some are named: then brokers, hub and load share its cores, and only
ratios mean anything. All are measured in turns, so that what else the machine does concerns them alike: ratios are
those of each round, of which you see the median and the extremes. The plain producer sends the same records one to one
into one partition of a topic that is set as the journal is, with `acks=all`, and with the batching that does best
here; one that is idempotent, and so promises as much as the log does, and one that is not. Whoever is measured next
waits until the one before has nothing left to do: hubs seal what they have taken, and with the store in a topic, as it
is by default, all of it goes through the brokers once more. So each hub has two rates: acknowledged, and until all was
sealed and stored.

It takes about five minutes on an idle machine with two cores, and says how far it is.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import statistics
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import confluent_kafka
from bench_log import append
from brokers import options, progress, workplace

from headrace.cli.up import SWITCH_INTERVAL_S
from headrace.config import Config, Kafka, Log
from headrace.hub import Hub
from headrace.log.batch import Batch
from headrace.log.kafka.client import connect
from headrace.log.kafka.topics import create_missing, plans

if TYPE_CHECKING:
    from kafka_brokers import Brokers

SECONDS_EACH = 3.0
BATCH = 1000
RECORD_BYTES = 100
POOL = 40
_random = random.Random(1)


def _record() -> bytes:
    """100 bytes of JSON: words that all records have, and about 40 bytes that nobody could guess."""
    order = b'{"order":%d,"customer":"%s","cents":%d,"note":"%s' % (
        _random.randrange(10**9),
        _random.randbytes(12).hex().encode(),
        _random.randrange(10**6),
        base64.b64encode(_random.randbytes(30)),
    )
    return order[: RECORD_BYTES - 2] + b'"}'


BATCHES = [[_record() for _ in range(BATCH)] for _ in range(POOL)]
"""As compressible as such records are: lz4 leaves two thirds, zstd two fifths. None comes twice in what is compressed
together."""
FILE_STORE = "kafka, file store"
WARM_UP = 4
"""Rounds that do not count: brokers that have just started spend a third of their time compiling."""
WARM_UP_S = 1.5
"""Of each turn in them."""
SINGLES = 200
BATCHINGS = [
    {"linger.ms": linger, "batch.size": 1_000_000, "batch.num.messages": 100_000, **compression}
    for linger in (5, 50)
    for compression in (
        {"compression.type": "none"},
        {"compression.type": "lz4"},
        {"compression.type": "zstd", "compression.level": 1},  # as hubs do it
    )
]
PLAIN = "plain producer"
"""Idempotent: it stores nothing twice, and in order."""
CARELESS = "plain, not idempotent"
"""One that promises less than the log does."""


def plain_rate(servers: str, topic: str, batching: dict[str, Any], seconds: float) -> float:
    """Records a second, one message each."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": servers,
            "acks": "all",
            "queue.buffering.max.messages": 2_000_000,
            **batching,
        }
    )
    produce, count = producer.produce, 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        for record in BATCHES[count // BATCH % POOL]:
            try:
                produce(topic, record, partition=0)
            except BufferError:
                producer.poll(0.01)
                produce(topic, record, partition=0)
        producer.poll(0)
        count += BATCH
    assert producer.flush(120) == 0
    return count / (time.perf_counter() - began)


def best_batching(servers: str, topic: str, *, is_idempotent: bool) -> dict[str, Any]:
    """All are tried twice, and the second time counts: brokers are slow when they have just started."""
    batchings = [{**batching, "enable.idempotence": is_idempotent} for batching in BATCHINGS]
    for _ in range(2):
        rates = [plain_rate(servers, topic, batching, SECONDS_EACH / 3) for batching in batchings]
    return batchings[rates.index(max(rates))]


class Plain:
    """A producer that waits for each message."""

    def __init__(self, servers: str, topic: str) -> None:
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True, "linger.ms": 0}
        )
        self._topic = topic

    def singles_us(self) -> list[float]:
        times = []
        for _ in range(SINGLES):
            done: list[object] = []
            began = time.perf_counter()
            self._producer.produce(
                self._topic, BATCHES[0][0], partition=0, on_delivery=lambda error, _, done=done: done.append(error)
            )
            while not done:
                self._producer.poll(1.0)
            times.append((time.perf_counter() - began) * 1e6)
        return times


async def hub_singles_us(hub: Hub, stream: str) -> list[float]:
    one = Batch.one(BATCHES[0][0])
    times = []
    for _ in range(SINGLES):
        began = time.perf_counter()
        await hub.append(stream, one)
        times.append((time.perf_counter() - began) * 1e6)
    return times


async def stored_rate(
    hub: Hub, rates: dict[str, list[float]], counts: dict[str, float], name: str, seconds: float
) -> float:
    """Records a second; `rates` get those until all is stored, too, and `counts` how many it were."""
    began = time.perf_counter()
    rate, count = await append(hub, "s", cycle(BATCHES), seconds)
    stored_at, stored = time.perf_counter(), -1
    while (now := sum(segment.bytes for segment in hub.segments("s"))) != stored or time.perf_counter() < stored_at + 1:
        if now != stored:
            stored_at, stored = time.perf_counter(), now
        await asyncio.sleep(0.1)
    rates.setdefault(f"{name}, until stored", []).append(count / (stored_at - began))
    counts[name] = count
    return rate


class Cpu(NamedTuple):
    """Seconds that processors have worked."""

    here: float
    """Hub and load, or the plain producer: they are threads of this process."""
    sealing: float
    """Processes that hubs have started."""
    brokers: float

    @classmethod
    def now(cls, brokers: Brokers | None) -> Cpu:
        ours = [each.process.pid for each in brokers.brokers if each.process is not None] if brokers else []
        others = [int(pid) for each in Path("/proc/self/task").glob("*/children") for pid in each.read_text().split()]
        return cls(time.process_time(), sum(map(_worked_s, set(others) - set(ours))), sum(map(_worked_s, ours)))

    def per_million(self, before: Cpu, records: float) -> Cpu:
        return Cpu(*((now - then) / records * 1e6 for now, then in zip(self, before, strict=True)))


def _worked_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended meanwhile
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(directory: Path, servers: str, rounds: int, brokers: Brokers | None) -> None:
    prefix = f"bench-{uuid.uuid4().hex[:8]}"
    settings = Kafka(servers=servers, prefix=prefix)
    kafka = connect(settings)
    create_missing(kafka, settings)
    journal = plans(settings)[0]
    kafka.create_topic(f"{prefix}.plain", 1, journal.replication, journal.config)
    (directory / "store").mkdir()
    filed = Kafka(servers=servers, prefix=f"{prefix}-filed", store=f"file://{directory / 'store'}")
    create_missing(kafka, filed)
    flushed = Kafka(servers=servers, prefix=f"{prefix}-flushed")
    create_missing(kafka, flushed, flush=True)
    hubs = {
        "files": await Hub.open(directory / "files", Config()),
        "kafka": await Hub.open(directory / "kafka", Config(log=Log(backend="kafka", kafka=settings))),
        FILE_STORE: await Hub.open(directory / "kafka-files", Config(log=Log(backend="kafka", kafka=filed))),
        "flushed": await Hub.open(directory / "flushed", Config(log=Log(backend="kafka", kafka=flushed))),
    }
    for hub in hubs.values():
        await hub.create_stream("s")
    progress("looking for the best batching of the plain producer")
    best = {name: best_batching(servers, f"{prefix}.plain", is_idempotent=name == PLAIN) for name in (PLAIN, CARELESS)}
    progress(f"the plain producer does best with {best}")
    plain = Plain(servers, f"{prefix}.plain")
    rates: dict[str, list[float]] = {}
    singles: dict[str, list[float]] = {}
    count_of: dict[str, float] = {}

    async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.to_thread(function, *arguments)

    def plainly(batching: dict[str, Any]) -> Callable[[float], Awaitable[float]]:
        return lambda seconds: in_thread(plain_rate, servers, f"{prefix}.plain", batching, seconds)

    def stored(name: str, hub: Hub) -> Callable[[float], Awaitable[float]]:
        return lambda seconds: stored_rate(hub, rates, count_of, name, seconds)

    turns = {name: plainly(batching) for name, batching in best.items()}
    turns |= {name: stored(name, hub) for name, hub in hubs.items()}
    work: dict[str, list[Cpu]] = {}
    for round in range(1 - WARM_UP, rounds + 1):
        for name, turn in turns.items():
            before, began = Cpu.now(brokers), time.perf_counter()
            rate = await turn(WARM_UP_S if round < 1 else SECONDS_EACH)
            rates.setdefault(name, []).append(rate)
            records = count_of.pop(name, rate * (time.perf_counter() - began))
            work.setdefault(name, []).append(Cpu.now(brokers).per_million(before, records))
        progress(f"round {round} of {rounds}: " + ", ".join(f"{name} {rates[name][-1]:,.0f}" for name in turns))
        if round < 1:
            rates.clear()
            work.clear()
            continue
        singles.setdefault(PLAIN, []).extend(await in_thread(plain.singles_us))
        for name, hub in hubs.items():
            singles.setdefault(name, []).extend(await hub_singles_us(hub, "s"))
    for hub in hubs.values():
        await hub.close()
    show(rates, singles)
    show_work(work, with_brokers=brokers is not None)


def show(rates: dict[str, list[float]], singles: dict[str, list[float]]) -> None:
    rate = {name: statistics.median(values) for name, values in rates.items()}
    p50 = {name: statistics.median(values) for name, values in singles.items()}
    for name in rate:
        single = f"; one record p50 {p50[name]:>8,.0f} us" if name in p50 else ""
        print(f"{name:>31}: {rate[name]:>12,.0f} records/s in batches of {BATCH}{single}")
    for name in ("kafka", FILE_STORE, "kafka, until stored", f"{FILE_STORE}, until stored"):
        embedded = "files, until stored" if name.endswith("until stored") else "files"
        print(f"batches of {BATCH} x 100 B, {name}:")
        for other in (PLAIN, CARELESS, embedded):
            print(f"    {ratio(rates, name, other)} x {other}")
    print(f"flush.messages=1: {ratio(rates, 'flushed', 'kafka')} x the records/s without")
    print(f"one record: p50 {p50['kafka'] / p50[PLAIN]:.2f} x that of a bare produce")


def ratio(rates: dict[str, list[float]], of: str, to: str) -> str:
    """Of those in the same round."""
    found = [one / other for one, other in zip(rates[of], rates[to], strict=True)]
    return f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def show_work(work: dict[str, list[Cpu]], *, with_brokers: bool) -> None:
    """What the machine did for them, sealing and storing included: on one that all share this is what bounds them."""
    for name, each in work.items():
        here, sealing, brokers = (statistics.median(values) for values in zip(*each, strict=True))
        of_brokers = f", brokers {brokers:.2f}" if with_brokers else ""
        print(f"{name:>31}: CPU seconds for a million records: here {here:.2f}, sealing {sealing:.2f}{of_brokers}")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with workplace(arguments) as (directory, servers, brokers):
        asyncio.run(measure(directory, servers, arguments.rounds, brokers))


if __name__ == "__main__":
    main()
