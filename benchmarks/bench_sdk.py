"""What the SDK adds to the hub and the disk: one append, one verb, following, lists of bytes, and a query.

    python benchmarks/bench_sdk.py [--rounds 500] [--records 200000] [--directory DIR]

A hub in a process of its own, on the same disk as the bare write and sync that it is compared with. Milliseconds are
medians of single steps, one after the other. Redis (`appendfsync always`) and NATS JetStream (`sync_interval: always`)
are measured in the same run where their servers and Python clients are installed; otherwise a line says what is
missing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

import headrace

PAYLOAD = b'{"fruit": "pear", "count": 3, "note": "' + b"x" * 60 + b'"}'


def median_ms(step: Callable[[], object], rounds: int, warm: int | None = None) -> float:
    """The median of `rounds` steps, after `warm` others."""
    for _ in range(max(10, rounds // 20) if warm is None else warm):
        step()
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        step()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1000


def bare_sync_ms(folder: Path, rounds: int) -> float:
    with open(folder / "bare", "wb", buffering=0) as file:

        def step() -> None:
            file.write(PAYLOAD)
            os.fdatasync(file.fileno())

        return median_ms(step, rounds)


@contextlib.contextmanager
def hub_at(folder: Path) -> Iterator[str]:
    """The Flight address of a hub of its own."""
    ready = folder / "ready.json"
    listeners = [f"--set=listen.{name}=off" for name in ("wallaroo", "ockam", "ignite", "fabric")]
    options = ["--data", str(folder / "data"), "--ready-file", str(ready), "--set=listen.http=127.0.0.1:0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", "up", *options, "--set=listen.flight=127.0.0.1:0", *listeners],
        stderr=subprocess.DEVNULL,
    )
    try:
        while not ready.exists():
            if process.poll() is not None:
                raise SystemExit("the hub did not start")
            time.sleep(0.05)
        yield json.loads(ready.read_text())["flight"]
    finally:
        process.terminate()
        process.wait()


def follow_ms(address: str, hub: headrace.Client, rounds: int) -> float:
    """From the acknowledgement of an append to the record at a follower; below 0 it was there first."""
    taken = []
    with headrace.connect(address) as other, other.follow("followed", "latest") as reader:
        records = iter(reader)
        for _ in range(rounds):
            hub.append("followed", PAYLOAD)
            acknowledged = time.perf_counter()
            next(records)
            taken.append(time.perf_counter() - acknowledged)
    return statistics.median(taken) * 1000


def bytes_share(hub: headrace.Client, records: int) -> float:
    """The rate of a list of bytes as a part of that of the same as Arrow."""
    payloads = [PAYLOAD] * records
    table = pa.table({"payload": pa.array(payloads, pa.binary())})

    def seconds(data: object) -> float:
        began = time.perf_counter()
        hub.append("bulk", data)
        return time.perf_counter() - began

    seconds(table)
    return min(seconds(table) for _ in range(3)) / min(seconds(payloads) for _ in range(3))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def served(command: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


def redis_ms(folder: Path, rounds: int) -> float:
    import redis

    port = free_port()
    options = [
        "--port",
        str(port),
        "--dir",
        str(folder),
        "--appendonly",
        "yes",
        "--appendfsync",
        "always",
        "--save",
        "",
    ]
    with served(["redis-server", *options], port):
        client = redis.Redis(port=port)
        return median_ms(lambda: client.xadd("orders", {"payload": PAYLOAD}), rounds)


def nats_ms(folder: Path, rounds: int) -> float:
    import nats

    port = free_port()
    settings = folder / "nats.conf"
    settings.write_text(f'port: {port}\njetstream {{ store_dir: "{folder}/nats", sync_interval: always }}\n')

    async def run() -> float:
        client = await nats.connect(f"nats://127.0.0.1:{port}")
        stream = client.jetstream()
        await stream.add_stream(name="orders", subjects=["orders"])
        taken = []
        for _ in range(rounds):
            began = time.perf_counter()
            await stream.publish("orders", PAYLOAD)
            taken.append(time.perf_counter() - began)
        await client.close()
        return statistics.median(taken) * 1000

    with served(["nats-server", "-c", str(settings)], port):
        return asyncio.run(run())


def others(folder: Path, rounds: int, bare_ms: float) -> None:
    for name, server, package, measure in (
        ("Redis XADD", "redis-server", "redis", redis_ms),
        ("NATS publish", "nats-server", "nats", nats_ms),
    ):
        missing = [server] if shutil.which(server) is None else []
        missing += [f"the package {package}"] if importlib.util.find_spec(package) is None else []
        if missing:
            print(f"{name:24} not measured: {' and '.join(missing)} not installed")
            continue
        taken = measure(folder, rounds)
        print(f"{name:24} {taken:8.3f} ms   {taken / bare_ms:5.1f} × a bare write and sync")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--directory", type=Path, default=None)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.directory) as name:
        folder = Path(name)
        bare = bare_sync_ms(folder, asked.rounds)
        print(f"{'bare write and sync':24} {bare:8.3f} ms")
        with hub_at(folder) as address, headrace.connect(address) as hub:
            for stream in ("orders", "followed", "bulk"):
                hub.create(stream)
            append = median_ms(lambda: hub.append("orders", PAYLOAD), asked.rounds)
            print(f"{'append':24} {append:8.3f} ms   {append / bare:5.1f} × a bare write and sync (goal: 3)")
            print(f"{'verb stream.bounds':24} {median_ms(lambda: hub.bounds('orders'), asked.rounds):8.3f} ms")
            print(f"{'follow after ack':24} {follow_ms(address, hub, asked.rounds):8.3f} ms")
            print(f"{'list of bytes':24} {bytes_share(hub, asked.records):8.2f} of Arrow's rate (goal: 0.6)")
            count = "SELECT value.fruit, count(*) FROM bulk GROUP BY 1"
            print(f"{'sql SELECT 1':24} {median_ms(lambda: hub.sql('SELECT 1').to_list(), 10):8.1f} ms")
            records = hub.bounds("bulk").next
            taken = median_ms(lambda: hub.sql(count).to_list(), 3)
            print(f"{'sql over JSON':24} {taken:8.1f} ms   {records:,} records")
        others(folder, asked.rounds, bare)


if __name__ == "__main__":
    main()
