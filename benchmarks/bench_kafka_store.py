"""The store of a log on Kafka: a takeover with an empty disk, the first read from the store, reading from the cache.

    python benchmarks/bench_kafka_store.py [--directory DIR] [--servers HOST:PORT,…] [--megabytes 1000] [--rounds 3]

Three brokers are started on this machine unless some are named: they share its cores with the hub. Records have 100
bytes and come in batches of 1000. The takeover has all of the journal behind the snapshot. Reading from the cache is
measured in turns with the log in files, of the same records.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import time
import uuid
from itertools import cycle, islice
from pathlib import Path

import msgspec
from bench_kafka import BATCH, BATCHES, RECORD_BYTES
from brokers import options, workplace

from headrace.config import Kafka, Log
from headrace.log import ops
from headrace.log.batch import Batch
from headrace.log.clock import SystemClock
from headrace.log.directory import open_directory
from headrace.log.disk import OsDisk
from headrace.log.kafka.cell import open_cell
from headrace.log.kafka.client import connect
from headrace.log.kafka.topics import create_missing
from headrace.log.log import Log as OpenLog

AHEAD = 64
"""Batches that wait at once."""
SEGMENTS_MIN = 10
"""So many segments at least: with few megabytes they are smaller than usual."""
SEALED_S = 120.0
"""So long it is waited until most is sealed."""


def fill(log: OpenLog, megabytes: int) -> None:
    """Append so much, and seal as a hub does; the threads run."""
    log.start(lambda pendings, touched: None)
    last = log.submit([ops.CreateStream("s")])
    waiting = [last]
    for records in islice(cycle(BATCHES), megabytes * 1_000_000 // (RECORD_BYTES * BATCH)):
        waiting.append(log.submit([ops.Append("s", Batch.of(records))]))
        while len(waiting) > AHEAD:
            while not waiting[0].done:
                time.sleep(0.001)
            if waiting[0].error is not None:
                raise waiting[0].error
            del waiting[0]
    while not waiting[-1].done:
        time.sleep(0.001)
    deadline = time.monotonic() + SEALED_S
    while log.state.tail_bytes > 2 * log.settings.segment_bytes and time.monotonic() < deadline:
        time.sleep(0.01)


def read_all(log: OpenLog) -> float:
    """Megabytes of segments a second; each is opened and checked anew."""
    log.opened.close()
    partition = log.partition("s")
    end = partition.sealed_next
    began = time.perf_counter()
    records = sum(batch.num_rows for batch in log.scan("s", 0, end))
    seconds = time.perf_counter() - began
    assert records == end
    return partition.sealed_bytes / 1e6 / seconds


def open_again(directory: Path, settings: Log) -> tuple[OpenLog, float]:
    began = time.perf_counter()
    log = open_cell(OsDisk(directory), SystemClock(), settings, connect(settings.kafka))
    return log, time.perf_counter() - began


def measure_store(directory: Path, servers: str, store: str, megabytes: int, rounds: int) -> None:
    settings = Kafka(servers=servers, prefix=f"bench-{uuid.uuid4().hex[:8]}", store=store)
    create_missing(connect(settings), settings)
    # One piece for all of it: no snapshot is taken, so all of the journal has to be read.
    size = min(Log().segment_bytes, megabytes * 1_000_000 // SEGMENTS_MIN)
    log_settings = Log(kafka=settings, journal_file_bytes=2**40, journal_bytes_max=2**40, segment_bytes=size)
    print(f"-- store {store.partition(':')[0]}")
    first, _ = open_again(directory / "first", log_settings)
    fill(first, megabytes)
    sealed = first.partition("s").sealed_bytes / 1e6
    print(f"{megabytes} MB of records in the journal, {sealed:.0f} MB of segments in the store")
    taken, seconds = open_again(directory / "second", log_settings)
    read = first.journal.position.size / 1e6  # as the first owner wrote it
    print(f"takeover with an empty disk, {read:.0f} MB of journal behind the snapshot: {seconds:.1f} s")
    rate = read_all(taken)
    print(f"first read of history from the store: {rate:.0f} MB/s")
    taken.close()
    files = open_directory(OsDisk(directory / "files"), SystemClock(), msgspec.structs.replace(log_settings))
    fill(files, megabytes)
    again, _ = open_again(directory / "second", log_settings)
    read_all(again)
    rates: dict[str, list[float]] = {"cache": [], "files": []}
    for _ in range(rounds):
        rates["cache"].append(read_all(again))
        rates["files"].append(read_all(files))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(
        f"history from the cache: {medians['cache']:.0f} MB/s, from files {medians['files']:.0f} MB/s: "
        f"{medians['cache'] / medians['files']:.2f}"
    )
    again.close()
    files.close()


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with workplace(arguments) as (directory, servers, _):
        for store in ("kafka", (directory / "far").as_uri()):
            own = directory / store.partition(":")[0]
            measure_store(own, servers, store, arguments.megabytes, arguments.rounds)
            shutil.rmtree(own, ignore_errors=True)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
