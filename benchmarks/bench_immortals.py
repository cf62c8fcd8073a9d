"""Immortals in Python: calls from outside with their result, keyed instances and timers, beside the disk's own sync.

    python benchmarks/bench_immortals.py [--calls 2000] [--keys 100000] [--timers 1000000] [--directory DIR]
        [--restate DIR]

A hub and a program run in processes of their own; this process calls, from 1 and from 50 threads or tasks, through the
SDK, its async twin and over HTTP. With `--restate DIR` (see restate.py) an object of Restate with the same handler is
called over HTTP by the same code. Keys and timers are measured in this process, on the binding without its sockets. All
figures are of one run on one machine: compare the ratios, not the numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from echo_floor import floor_ms
from restate import restate

import headrace
from headrace.immortals import Immortal, immortal, method, query, run
from headrace.serving.runtime import LISTENERS
from headrace.testing.immortals import World

CLIENTS = 50
WARM_KEYS = 2_000
FLOOR_CALLS = 500
WARM_CALLS = 10
"""Of each client, before it is measured: the SDK opens a plain connection after a few."""


class Counter(Immortal):
    total: int = 0

    @method
    def add(self, amount: int) -> int:
        self.total += amount
        return self.total

    @query
    def read(self) -> int:
        return self.total


@immortal(keyed=True)
class Cart(Immortal):
    count: int = 0

    @method
    def add(self) -> int:
        self.count += 1
        return self.count

    @query
    def read(self) -> int:
        return self.count


class Clock(Immortal):
    rung: int = 0

    @method
    def set_many(self, count: int) -> None:
        for number in range(count):
            self.later(60 + number % 60, self.ring)

    @method
    def ring(self) -> None:
        self.rung += 1


def sync_ms(directory: Path, times: int = 200) -> float:
    """What writing 200 bytes and syncing them takes, at the median."""
    taken = []
    with (directory / "sync").open("wb", buffering=0) as file:
        for _ in range(times):
            began = time.perf_counter()
            file.write(bytes(200))
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began)
    return 1000 * statistics.median(taken)


def calls(address: str, clients: int, count: int, method: str) -> tuple[float, float]:
    """Calls a second of all clients together, and the median of one in milliseconds."""
    taken: list[float] = []

    def work() -> None:
        with headrace.connect(address) as hub:
            counter = getattr(hub.immortal("counter"), method)
            arguments = {} if method == "read" else {"amount": 1}
            for _ in range(WARM_CALLS):
                counter(**arguments)
            ready.wait()
            for _ in range(count // clients):
                began = time.perf_counter()
                counter(**arguments)
                taken.append(time.perf_counter() - began)

    ready = threading.Barrier(clients + 1)
    return rate_of(work, clients, taken, ready)


def async_calls(address: str, clients: int, count: int) -> tuple[float, float]:
    """The same of so many tasks that share one client."""
    taken: list[float] = []

    async def work(counter: Any, times: int) -> None:
        for _ in range(times):
            began = time.perf_counter()
            await counter.add(amount=1)
            taken.append(time.perf_counter() - began)

    async def run_all() -> float:
        async with headrace.connect_async(address) as hub:
            await asyncio.gather(*(work(hub.immortal("counter"), WARM_CALLS) for _ in range(clients)))
            taken.clear()
            began = time.perf_counter()
            await asyncio.gather(*(work(hub.immortal("counter"), count // clients) for _ in range(clients)))
            return time.perf_counter() - began

    took_s = asyncio.run(run_all())
    return len(taken) / took_s, 1000 * statistics.median(taken)


def http_calls(address: str, path: str, clients: int, count: int) -> tuple[float, float]:
    """The same over HTTP, each client with a connection that it keeps."""
    taken: list[float] = []

    def work() -> None:
        connection = http.client.HTTPConnection(address)
        for number in range(WARM_CALLS + count // clients):
            if number == WARM_CALLS:
                ready.wait()
            began = time.perf_counter()
            connection.request("POST", path, b'{"amount":1}', {"content-type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == HTTPStatus.OK, answer.read()
            answer.read()
            if number >= WARM_CALLS:
                taken.append(time.perf_counter() - began)
        connection.close()

    ready = threading.Barrier(clients + 1)
    return rate_of(work, clients, taken, ready)


def rate_of(
    work: Callable[[], None], clients: int, taken: list[float], ready: threading.Barrier
) -> tuple[float, float]:
    """So many threads of it: calls a second together from when all are ready, and the median of one in milliseconds."""
    threads = [threading.Thread(target=work) for _ in range(clients)]
    for thread in threads:
        thread.start()
    ready.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return len(taken) / (time.perf_counter() - began), 1000 * statistics.median(taken)


Rates = dict[int, dict[str, float]]
"""Calls a second by the number of clients and by how they call."""


def measure_restate(modules: Path, directory: Path, count: int, ours: Rates) -> None:
    with restate(modules, directory, "restate_counter.cjs") as (ingress, _):
        for clients in (1, CLIENTS):
            rate, median_ms = http_calls(ingress, "/counter/one/add", clients, count)
            ratios = ", ".join(f"{way} {each / rate:.1f} x" for way, each in ours[clients].items())
            print(
                f"Restate over HTTP from {clients:>2} clients: {rate:,.0f}/s, median {median_ms:.2f} ms; here {ratios}"
            )


def measure_calls(directory: Path, count: int) -> Rates:
    ours: Rates = {}
    ready = directory / "ready.json"
    listeners = [f"--set=listen.{name}={'127.0.0.1:0' if name in ('flight', 'http') else 'off'}" for name in LISTENERS]
    command = ["-m", "headrace", "up", "--data", str(directory / "data"), "--ready-file", str(ready), *listeners]
    with (directory / "log").open("wb") as log:
        hub = subprocess.Popen([sys.executable, *command], stdout=log, stderr=log)
        try:
            while not ready.exists():
                time.sleep(0.05)
            found = json.loads(ready.read_text())
            address = found["flight"]
            program = subprocess.Popen([sys.executable, __file__, "--serve", address], stdout=log, stderr=log)
            try:
                with headrace.connect(address) as client:
                    while not any(each["registered"] for each in client.call("immortal.list")):
                        time.sleep(0.05)
                    client.immortal("counter").add(amount=0)
                path = "/api/immortals/counter/add"
                for clients in (1, CLIENTS):
                    found_rates = {
                        "SDK": calls(address, clients, count, "add"),
                        "async SDK": async_calls(address, clients, count),
                        "HTTP": http_calls(found["http"], path, clients, count),
                        "query": calls(address, clients, count, "read"),
                    }
                    for way, (rate, median_ms) in found_rates.items():
                        print(f"{way:>9} from {clients:>2} clients: {rate:>8,.0f}/s, median {median_ms:.2f} ms")
                    if clients == 1:
                        show_one(directory, found_rates["SDK"][1], found_rates["query"][1])
                    ours[clients] = {way: rate for way, (rate, _) in found_rates.items() if way != "query"}
            finally:
                program.kill()
                program.wait()
        finally:
            hub.kill()
            hub.wait()
    return ours


def show_one(directory: Path, call_ms: float, query_ms: float) -> None:
    """Where the time of one call goes. A query takes the same way there and back, without the log."""
    synced_ms = sync_ms(directory)
    print(
        f"one call takes {call_ms / synced_ms:.1f} x a write and sync of {synced_ms:.2f} ms: its way there and back "
        f"takes {query_ms:.2f} ms, its commit and the sync the other {call_ms - query_ms:.2f} ms"
    )
    durable_ms, echo_ms = floor_ms(directory, FLOOR_CALLS)
    print(
        f"bare bytes on the same way, through two loops, take {echo_ms:.2f} ms, and {durable_ms:.2f} ms "
        f"({durable_ms / synced_ms:.1f} x) with a thread that writes and syncs them: one call takes "
        f"{call_ms / durable_ms:.1f} x that"
    )


def measure_keys(keys: int) -> None:
    """What one more idle instance takes, once as many are in memory as may be; and how long it takes to come back."""
    world = World()
    world.add(Cart, "carts")
    home = world._homes["carts"]
    tracemalloc.start()
    before = 0
    for number in range(WARM_KEYS + keys):
        world.immortal("carts", key=f"customer-{number}").start("add")
        world.run()
        home.log.clear()  # the hub's, not the program's
        world._answers.clear()
        if number == WARM_KEYS:
            before, _ = tracemalloc.get_traced_memory()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert home.engine.keyed is not None
    taken = []
    for number in range(100):
        began = time.perf_counter()
        home.engine.keyed.look(f"customer-{number}")
        taken.append(time.perf_counter() - began)
    took_ms = 1000 * statistics.median(taken)
    print(f"{keys:,} idle instances: {(used - before) / keys:,.0f} bytes each; one comes back in {took_ms:.2f} ms")


def measure_timers(timers: int) -> None:
    world = World()
    clock = world.add(Clock, "clock")
    began = time.perf_counter()
    clock.set_many(count=timers)
    print(f"{timers:,} timers: set in {time.perf_counter() - began:.1f} s", end=", ", flush=True)
    home = world._homes["clock"]
    home.take_checkpoint()
    began = time.perf_counter()
    home.recover()
    print(f"a restart takes {time.perf_counter() - began:.1f} s", end=", ", flush=True)
    began = time.perf_counter()
    state = home.engine.immortal
    fired = 0
    while fired < min(timers, 100_000):
        due = world._next_due()
        assert due is not None
        world._pass_to(due)
        fired = state.rung  # type: ignore[attr-defined]
    print(f"{fired / (time.perf_counter() - began):,.0f} fire a second")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=2_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--timers", type=int, default=1_000_000)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--restate", type=Path, help="directory in which Restate is installed, to measure it too")
    parser.add_argument("--serve", metavar="HUB", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        run(Counter, "counter", arguments.serve, quiet=True)
        return
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        print(f"load {os.getloadavg()[0]:.1f}; write and sync: {sync_ms(Path(folder)):.2f} ms")
        ours = measure_calls(Path(folder), arguments.calls)
        if arguments.restate:
            measure_restate(arguments.restate, Path(folder), arguments.calls, ours)
    if arguments.keys:
        measure_keys(arguments.keys)
    if arguments.timers:
        measure_timers(arguments.timers)


if __name__ == "__main__":
    main()
