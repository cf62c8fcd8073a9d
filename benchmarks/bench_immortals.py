"""Immortals in Python: calls from outside with their result, keyed instances and timers, beside the disk's own sync.

    python benchmarks/bench_immortals.py [--calls 2000] [--keys 100000] [--timers 1000000] [--directory DIR]
        [--restate DIR]

A hub and a program run in processes of their own; this process calls, from 1 and from 50 threads, through the SDK and
over HTTP. With `--restate DIR` (see restate.py) an object of Restate with the same handler is called over HTTP by the
same code. Keys and timers are measured in this process, on the binding without its sockets. All figures are of one run
on one machine: compare the ratios, not the numbers.
"""

from __future__ import annotations

import argparse
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

from restate import restate

import headrace
from headrace.immortals import Immortal, immortal, method, query, run
from headrace.serving.runtime import LISTENERS
from headrace.testing.immortals import World

CLIENTS = 50
WARM_KEYS = 2_000


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
            for _ in range(count // clients):
                began = time.perf_counter()
                counter(**arguments)
                taken.append(time.perf_counter() - began)

    return rate_of(work, clients, taken)


def http_calls(address: str, path: str, clients: int, count: int) -> tuple[float, float]:
    """The same over HTTP, each client with a connection that it keeps."""
    taken: list[float] = []

    def work() -> None:
        connection = http.client.HTTPConnection(address)
        for _ in range(count // clients):
            began = time.perf_counter()
            connection.request("POST", path, b'{"amount":1}', {"content-type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == HTTPStatus.OK, answer.read()
            answer.read()
            taken.append(time.perf_counter() - began)
        connection.close()

    return rate_of(work, clients, taken)


def rate_of(work: Callable[[], None], clients: int, taken: list[float]) -> tuple[float, float]:
    """So many threads of it: calls a second together, and the median of one in milliseconds."""
    threads = [threading.Thread(target=work) for _ in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(taken) / (time.perf_counter() - began), 1000 * statistics.median(taken)


def measure_restate(modules: Path, directory: Path, count: int, ours: dict[int, float]) -> None:
    with restate(modules, directory, "restate_counter.cjs") as (ingress, _):
        http_calls(ingress, "/counter/one/add", 1, 20)
        for clients in (1, CLIENTS):
            rate, median_ms = http_calls(ingress, "/counter/one/add", clients, count)
            shown = f"{rate:>8,.0f}/s, median {median_ms:.2f} ms; {ours[clients] / rate:.1f} x as fast here"
            print(f"Restate over HTTP from {clients:>2} clients: {shown}")


def measure_calls(directory: Path, count: int) -> dict[int, float]:
    """Calls a second over HTTP, by the number of clients."""
    ours: dict[int, float] = {}
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
                for clients in (1, CLIENTS):
                    for name in ("add", "read"):
                        rate, median_ms = calls(address, clients, count, name)
                        print(f"{name:>5} from {clients:>2} clients: {rate:>8,.0f}/s, median {median_ms:.2f} ms")
                    rate, median_ms = http_calls(found["http"], "/api/immortals/counter/add", clients, count)
                    ours[clients] = rate
                    print(f"  add over HTTP from {clients:>2} clients: {rate:>8,.0f}/s, median {median_ms:.2f} ms")
            finally:
                program.kill()
                program.wait()
        finally:
            hub.kill()
            hub.wait()
    return ours


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
