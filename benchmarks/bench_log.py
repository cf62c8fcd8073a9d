"""The log against the disk it stands on, in one run.

    python benchmarks/bench_log.py [--directory DIR] [--gigabytes 10]

Prints figures and ratios: durable append against the machine's own write + fdatasync, many streams, reading, random
reads, and the restart of a large log. Compare only ratios from one run; nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

from headrace.hub import Hub
from headrace.log.batch import Batch

SECONDS_EACH = 3.0
COMMIT_BYTES = 1024 * 1024
"""What group commit gathers under load, about; the ceiling writes so much before each sync."""


def ceiling(directory: Path) -> float:
    """Bytes per second of write + fdatasync of COMMIT_BYTES, appended to one file: the best that any log could do."""
    data = os.urandom(COMMIT_BYTES)
    descriptor = os.open(directory / "ceiling", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    written = 0
    began = time.perf_counter()
    while (passed := time.perf_counter() - began) < SECONDS_EACH:
        written += os.write(descriptor, data)
        os.fdatasync(descriptor)
    os.close(descriptor)
    (directory / "ceiling").unlink()
    return written / passed


def sync_latency_us(directory: Path) -> float:
    """Median of a 4 KiB write + fdatasync."""
    descriptor = os.open(directory / "latency", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    times = []
    for _ in range(500):
        began = time.perf_counter()
        os.write(descriptor, b"x" * 4096)
        os.fdatasync(descriptor)
        times.append(time.perf_counter() - began)
    os.close(descriptor)
    (directory / "latency").unlink()
    return statistics.median(times) * 1e6


async def append(hub: Hub, stream: str, batches: Iterator[list[bytes]], seconds: float) -> tuple[float, int]:
    """Records per second, appended in batches as fast as the hub takes them; and how many."""
    waiting: set[asyncio.Future[object]] = set()
    count = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        if hub.congested:
            await hub.drained()
        payloads = next(batches)
        future = hub.append(stream, Batch.of(payloads))
        waiting.add(future)  # type: ignore[arg-type]
        future.add_done_callback(waiting.discard)
        count += len(payloads)
        if len(waiting) > 32:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(*waiting)
    return count / (time.perf_counter() - began), count


async def many_streams(hub: Hub, count: int, rounds: int) -> float:
    """Records per second when every stream gets one record each round, all under one sync."""
    names = [f"many/{number}" for number in range(count)]
    await asyncio.gather(*(hub.create_stream(name) for name in names))
    one = Batch.one(b"x" * 100)
    began = time.perf_counter()
    for _ in range(rounds):
        await asyncio.gather(*(hub.append(name, one) for name in names))
    return count * rounds / (time.perf_counter() - began)


async def single_latency_us(hub: Hub) -> float:
    await hub.create_stream("single")
    one = Batch.one(b"x" * 100)
    times = []
    for _ in range(500):
        began = time.perf_counter()
        await hub.append("single", one)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


async def sealed(hub: Hub, stream: str) -> int:
    """Wait until the sealer has caught up; the number of sealed records."""
    last = -1
    while True:
        segments = hub.segments(stream)
        at = segments[-1].next if segments else 0
        if at == last and at:
            return at
        last = at
        await asyncio.sleep(0.5)


def scan_rate(hub: Hub, stream: str, end: int) -> float:
    """Records per second of one core touching every payload byte's array."""
    began = time.perf_counter()
    seen = sum(records.num_rows for records in hub.scan(stream, 0, end))
    return seen / (time.perf_counter() - began)


async def random_reads_ms(hub: Hub, stream: str, end: int) -> tuple[float, float]:
    """p50 and p99 of reading 10 records at a random index."""
    generator = random.Random(5)
    times = []
    for _ in range(2_000):
        start = generator.randrange(end - 10)
        began = time.perf_counter()
        records = await hub.read(stream, start, limit=10)
        times.append(time.perf_counter() - began)
        assert records.num_rows
    times.sort()
    return times[len(times) // 2] * 1e3, times[int(len(times) * 0.99)] * 1e3


RESTART = """
import asyncio, json, sys, time
from headrace.hub import Hub
async def main():
    began = time.perf_counter()
    hub = await Hub.open(sys.argv[1])
    ready = time.perf_counter() - began
    await asyncio.sleep(1)
    resident = int(open("/proc/self/statm").read().split()[1]) * 4096
    await hub.close()
    print(json.dumps({"ready_s": ready, "resident": resident}))
asyncio.run(main())
"""


def restart(directory: Path) -> dict[str, float]:
    """A new process opens the log: seconds to ready, and its memory when idle."""
    done = subprocess.run([sys.executable, "-c", RESTART, str(directory)], check=True, capture_output=True)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def show(what: str, figure: str, ratio: str = "") -> None:
    print(f"{what:<58} {figure:>22}  {ratio}", flush=True)


async def measure(directory: Path, gigabytes: float) -> None:
    hub = await Hub.open(directory / "data")
    small = [os.urandom(100) for _ in range(1_000)]
    large = [os.urandom(1024) for _ in range(1_000)]
    for name, payloads in (("100 B", small), ("1 KiB", large)):
        best = ceiling(directory)
        stream = f"append/{name}"
        await hub.create_stream(stream)
        rate, _ = await append(hub, stream, repeat(payloads), SECONDS_EACH)
        size = len(payloads[0])
        show(f"write + fdatasync of {COMMIT_BYTES >> 20} MiB, the ceiling", f"{best / 1e6:,.0f} MB/s")
        show(
            f"durable append, {name}, batches of 1,000, one stream",
            f"{rate / 1e6:.2f} M records/s",
            f"{rate * size / 1e6:,.0f} MB/s of payload, {100 * rate * size / best:.0f} % of the ceiling",
        )
    show("1,000 streams, one record each a round", f"{await many_streams(hub, 1_000, 50):,.0f} records/s")
    latency, floor = await single_latency_us(hub), sync_latency_us(directory)
    show("one append at a time, p50", f"{latency:,.0f} µs", f"{latency / floor:.1f} × a 4 KiB write + fdatasync")
    await hub.create_stream("large")
    stored = 0
    began = time.perf_counter()
    while stored * 100 < gigabytes * 1e9:
        _, count = await append(hub, "large", repeat(small), 2.0)
        stored += count
    took = time.perf_counter() - began
    show(f"filling {gigabytes:g} GB with sealing in the background", f"{stored / took / 1e6:.2f} M records/s")
    end = await sealed(hub, "large")
    few = min(end, 10_000_000)
    for turn in ("first time, with checksums", "again"):
        show(f"reading sealed segments, 100 B, {turn}", f"{scan_rate(hub, 'large', few) / 1e6:.1f} M records/s")
    middle, worst = await random_reads_ms(hub, "large", few)
    show(f"10 records at a random index of {few / 1e6:.0f} M", f"p50 {middle:.2f} ms", f"p99 {worst:.2f} ms")
    await hub.close()
    answer = restart(directory / "data")
    show(f"restart with {gigabytes:g} GB, to ready", f"{answer['ready_s']:.2f} s")
    show("memory of the idle hub after it", f"{answer['resident'] / 1e6:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", help="where to measure; a temporary folder here by default")
    parser.add_argument("--gigabytes", type=float, default=10.0, help="size of the log that is restarted")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="bench-log-", dir=arguments.directory or "."))
    try:
        asyncio.run(measure(directory, arguments.gigabytes))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
