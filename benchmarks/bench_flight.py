"""Arrow Flight: appends, reads and round trips through the SDK, beside the same through the hub's Python API.

    python benchmarks/bench_flight.py [--records 2000000] [--size 100] [--batch 1000] [--json]

The hub runs as a process of its own on a real disk; the client is this process, on the same machine. The in-process
figures come from the same run, one after the other, on the same disk. Look at the ratios: client and hub share the
cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

import headrace
from headrace.hub import Hub
from headrace.log.batch import Batch

ROUND_TRIPS = 500


@contextmanager
def hub_process(data: Path) -> Iterator[str]:
    """A hub with only the Flight listener; gives its address."""
    ready = data / "ready.json"
    command = [sys.executable, "-m", "headrace", "up", "--data", str(data / "log"), "--ready-file", str(ready)]
    command += ["--set", "listen.flight=127.0.0.1:0"]
    for name in ("http", "wallaroo", "ockam", "ignite", "fabric"):
        command += ["--set", f"listen.{name}=off"]
    source = str(Path(headrace.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": source}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)
    try:
        deadline = time.monotonic() + 60
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                raise SystemExit(process.communicate()[1].decode())
            time.sleep(0.02)
        yield json.loads(ready.read_text())["flight"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


async def in_process(data: Path, records: int, size: int, batch: int) -> dict[str, float]:
    """Append and scan through the hub itself."""
    hub = await Hub.open(data)
    payloads = [b"x" * size] * batch
    arrow = pa.RecordBatch.from_pydict({"payload": payloads})
    found: dict[str, float] = {}
    for name, make in (("lists", lambda: Batch.of(payloads)), ("arrow", lambda: Batch.from_arrow(arrow))):
        await hub.create_stream(name)
        under_way: deque[asyncio.Future[Any]] = deque()
        started = time.perf_counter()
        for _ in range(records // batch):
            if hub.congested:
                await hub.drained()
            under_way.append(hub.append(name, make()))
            if len(under_way) > 100:
                await under_way.popleft()
        await asyncio.gather(*under_way)
        found[f"append_{name}"] = records / (time.perf_counter() - started)
    started = time.perf_counter()
    count = await asyncio.to_thread(lambda: sum(each.num_rows for each in hub.scan("arrow", 0, records)))
    found["read"] = records / (time.perf_counter() - started)
    assert count == records
    await hub.close()
    return found


def over_flight(data: Path, records: int, size: int, batch: int) -> dict[str, float]:
    """The same through the SDK, with lists of bytes and with Arrow batches."""
    payloads = [b"x" * size] * batch
    arrow = pa.RecordBatch.from_pydict({"payload": payloads})
    found: dict[str, float] = {}
    with hub_process(data) as address, headrace.connect(address) as client:
        for name, data_to_send in (("lists", payloads), ("arrow", arrow)):
            client.create(name)
            started = time.perf_counter()
            with client.writer(name) as writer:
                for _ in range(records // batch):
                    writer.append(data_to_send)
            found[f"append_{name}"] = records / (time.perf_counter() - started)
        for name, columns in (("read", None), ("read_payload", ["payload"])):
            started = time.perf_counter()
            count = sum(each.num_rows for each in client.read("arrow", columns=columns).batches())
            found[name] = records / (time.perf_counter() - started)
            assert count == records
        client.create("single")
        found["append_one_ms"] = 1000 * statistics.median(timed(lambda: client.append("single", b"x" * size)))
        found["read_ten_ms"] = 1000 * statistics.median(
            timed(lambda: client.read("arrow", records // 2, limit=10).to_arrow())
        )
        found["verb_ms"] = 1000 * statistics.median(timed(lambda: client.bounds("arrow")))
        found["follow_ms"] = 1000 * statistics.median(follow_latencies(client))
    return found


def timed(call: Any) -> list[float]:
    seconds = []
    for _ in range(ROUND_TRIPS):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return seconds


def follow_latencies(client: headrace.Client) -> list[float]:
    """From the call of append to the record in the follower's hands."""
    seconds = []
    with client.follow("single", "latest") as reader, client.writer("single") as writer:
        for _ in range(ROUND_TRIPS):
            started = time.perf_counter()
            writer.append(b"x")
            reader.next_batch()
            seconds.append(time.perf_counter() - started)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--batch", type=int, default=1_000)
    parser.add_argument("--dir", default=None, help="where the data goes; a temporary directory if left out")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    shape = (arguments.records, arguments.size, arguments.batch)
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        inside = asyncio.run(in_process(Path(folder) / "inside", *shape))
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        flight = over_flight(Path(folder), *shape)
    if arguments.json:
        print(json.dumps({"in_process": inside, "flight": flight}))
        return
    print(f"{arguments.records:,} records of {arguments.size} B in batches of {arguments.batch:,}; records/s, ratio")
    for name in ("append_arrow", "append_lists"):
        print(f"  {name.replace('_', ', in process, '):<26} {inside[name]:>12,.0f}   1.00")
        print(f"  {name.replace('_', ' over Flight, '):<26} {flight[name]:>12,.0f}   {flight[name] / inside[name]:.2f}")
    print(f"  read, in process           {inside['read']:>12,.0f}   1.00")
    for name in ("read", "read_payload"):
        label = "read over Flight" + (", payload" if name.endswith("payload") else "")
        print(f"  {label:<26} {flight[name]:>12,.0f}   {flight[name] / inside['read']:.2f}")
    for name in ("append_one_ms", "read_ten_ms", "verb_ms", "follow_ms"):
        print(f"  {name:<26} {flight[name]:>12.2f}   median of {ROUND_TRIPS}")


if __name__ == "__main__":
    main()
