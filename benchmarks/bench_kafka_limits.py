"""How long a hub with an empty disk takes to take over a log on Kafka that is as wide as it may be, and its memory.

    python benchmarks/bench_kafka_limits.py [--streams 100000] [--producers 100000] [--servers HOST:PORT,…]

Three brokers are started on this machine unless some are named: they share its cores with the hub. The streams have a
record each; the producers are those of one stream. Each is taken over twice, by a process of its own: when all is in
the journal, and when the last owner has left a snapshot.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from brokers import options, progress, workplace

from headrace.config import Config, Kafka, Log
from headrace.hub import Hub
from headrace.log import ops
from headrace.log.batch import Batch
from headrace.log.clock import SystemClock
from headrace.log.disk import OsDisk
from headrace.log.kafka.cell import open_cell
from headrace.log.kafka.client import connect
from headrace.log.kafka.topics import create_missing

AT_ONCE = 2_000
LIMIT = 1_000_000


def settings(servers: str, prefix: str) -> Log:
    kafka = Kafka(servers=servers, prefix=prefix)
    return Log(backend="kafka", kafka=kafka, streams_max=LIMIT, producers_max=LIMIT, disk_reserve_bytes=0)


def transactions(what: str, count: int) -> Iterator[list[ops.Op]]:
    """One for each of them, those that make streams first."""
    record = Batch.one(b"x" * 100)
    if what == "streams":
        yield from ([ops.CreateStream(f"devices/{number}")] for number in range(count))
        yield from ([ops.Append(f"devices/{number}", record)] for number in range(count))
    else:
        yield [ops.CreateStream("s")]
        yield from ([ops.Append("s", record, producer=f"producer-{number}", sequence=1)] for number in range(count))


async def fill(directory: Path, log: Log, what: str, count: int) -> Hub:
    hub = await Hub.open(directory, Config(log=log))
    waiting: list[asyncio.Future[list[object]]] = []
    for transaction in transactions(what, count):
        waiting.append(hub.transact(transaction))
        if len(waiting) >= AT_ONCE:
            await asyncio.gather(*waiting)
            waiting.clear()
    await asyncio.gather(*waiting)
    return hub


def take_over(servers: str, prefix: str, directory: str, what: str) -> None:
    """In a process of its own, whose memory and CPU are seen."""
    began, before = time.perf_counter(), time.process_time()
    log = open_cell(OsDisk(directory), SystemClock(), settings(servers, prefix))
    seconds, cpu = time.perf_counter() - began, time.process_time() - before
    found = len(log.streams()) if what == "streams" else len(log.producers("s"))
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    print(json.dumps({"seconds": seconds, "cpu": cpu, "MB": resident / 1e6, "found": found}), flush=True)
    log.close()  # leaves a snapshot for the next, if there is much journal behind the last one


async def measure(directory: Path, servers: str, what: str, count: int) -> None:
    prefix = f"bench-{uuid.uuid4().hex[:8]}"
    log = settings(servers, prefix)
    create_missing(connect(log.kafka), log.kafka)
    progress(f"making {count:,} {what}")
    hub = await fill(directory / what, log, what, count)
    for number, state in enumerate(("all in the journal", "after a hub that stopped")):
        if number:
            await hub.close()  # it has lost the cell
        command = [sys.executable, __file__, "--take", servers, prefix, str(directory / f"{what}-{number}"), what]
        ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
        found = json.loads(ran.stdout.splitlines()[-1])
        assert found["found"] >= count, found
        print(
            f"{count:,} {what}, {state}: {found['seconds']:.1f} s, {found['cpu']:.1f} s CPU, {found['MB']:.0f} MB",
            flush=True,
        )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--streams", type=int, default=100_000)
    parser.add_argument("--producers", type=int, default=100_000)
    parser.add_argument("--take", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.take:
        take_over(*arguments.take)
        return
    with workplace(arguments) as (directory, servers, _):
        for what, count in (("streams", arguments.streams), ("producers", arguments.producers)):
            asyncio.run(measure(directory, servers, what, count))


if __name__ == "__main__":
    main()
