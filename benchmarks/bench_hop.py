"""What the way through a hub that does not own the log costs, against the way straight to the owner.

    python benchmarks/bench_hop.py [--rounds 5] [--calls 300] [--records 500000]

Three processes: a hub, a listener that passes connections on as a follower does (`headrace.cluster.front`), and the
client. Both ways take turns, so that what else goes on meets both alike. All three share the cores of one machine: look
at the ratios. Over a network the hop takes a round trip between the hubs besides.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyignite

import headrace
from headrace.cluster.front import Front
from headrace.cluster.route import Owner, Route
from headrace.telemetry.metrics import Metrics

NAMES = ("flight", "ignite")
RECORD_BYTES = 100


async def pass_on(addresses: dict[str, str]) -> None:
    """The process in between; it says where it listens, and ends with its standard input."""
    route = Route("between")
    route.claimed(Owner("hub", "life", 1, addresses))
    fronts = {name: Front(name, route, 10, Metrics().cluster) for name in NAMES}
    for front in fronts.values():
        await front.open("127.0.0.1:0")
    print(json.dumps({name: front.address for name, front in fronts.items()}), flush=True)
    await asyncio.to_thread(sys.stdin.read)


@contextmanager
def both_ways(folder: Path) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Addresses straight to a hub, and through another process."""
    ready = folder / "ready.json"
    listen = [
        part
        for name in ("flight", "ignite", "http", "wallaroo", "ockam", "fabric")
        for part in ("--set", f"listen.{name}={'127.0.0.1:0' if name in NAMES else 'off'}")
    ]
    command = [sys.executable, "-m", "headrace", "up", "--data", str(folder / "data"), "--ready-file", str(ready)]
    hub = subprocess.Popen([*command, *listen], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    between = None
    try:
        while not ready.exists():
            if hub.poll() is not None:
                raise SystemExit("the hub has ended")
            time.sleep(0.05)
        straight = json.loads(ready.read_text())
        between = subprocess.Popen(
            [sys.executable, __file__, "--between", json.dumps(straight)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert between.stdout is not None
        yield straight, json.loads(between.stdout.readline())
    finally:
        for process in (between, hub):
            if process is not None:
                process.terminate()
                process.wait(60)


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def compare(name: str, rounds: int, straight: Callable[[], float], through: Callable[[], float], unit: str) -> None:
    pairs = [(straight(), through()) for _ in range(rounds)]
    first, second = (statistics.median(each) for each in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    print(f"{name:<44} straight {first:10.2f} {unit}   through {second:10.2f} {unit}   ratio {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--between", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.between:
        asyncio.run(pass_on(json.loads(options.between)))
        return
    with tempfile.TemporaryDirectory(prefix="bench-hop-") as folder, both_ways(Path(folder)) as (straight, through):
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        with headrace.connect(straight["flight"]) as near, headrace.connect(through["flight"]) as far:
            near.create("s")
            for start in range(0, options.records, 50_000):
                payloads = [b"%0*d" % (RECORD_BYTES, start + number) for number in range(50_000)]
                near.append("s", pa.record_batch({"payload": pa.array(payloads, pa.binary())}))

            def call(client: headrace.Client) -> float:
                times = [timed(lambda: client.bounds("s")) for _ in range(options.calls)]
                return statistics.median(times) * 1000

            def append(client: headrace.Client) -> float:
                times = [timed(lambda: client.append("s", [b"x" * RECORD_BYTES])) for _ in range(options.calls)]
                return statistics.median(times) * 1000

            def read(client: headrace.Client) -> float:
                return timed(lambda: client.read("s", end=options.records).to_arrow())

            compare("Flight: a verb, p50", options.rounds, lambda: call(near), lambda: call(far), "ms")
            compare("Flight: one record appended, p50", options.rounds, lambda: append(near), lambda: append(far), "ms")
            compare(
                f"Flight: {options.records} records read", options.rounds, lambda: read(near), lambda: read(far), "s"
            )
        caches = []
        for address in (straight["ignite"], through["ignite"]):
            client = pyignite.Client()
            host, _, port = address.rpartition(":")
            client.connect(host, int(port)).__enter__()
            caches.append(client.get_or_create_cache("hop"))

        def get(cache: pyignite.cache.Cache) -> float:
            return statistics.median([timed(lambda: cache.get("a")) for _ in range(options.calls)]) * 1000

        def put(cache: pyignite.cache.Cache) -> float:
            return statistics.median([timed(lambda: cache.put("a", 1)) for _ in range(options.calls)]) * 1000

        compare("Ignite: a get, p50", options.rounds, lambda: get(caches[0]), lambda: get(caches[1]), "ms")
        compare("Ignite: a put, p50", options.rounds, lambda: put(caches[0]), lambda: put(caches[1]), "ms")


if __name__ == "__main__":
    main()
