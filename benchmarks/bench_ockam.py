"""Ockam: durable pushes and pulls through a real hub process, beside NATS JetStream where it is installed.

    python benchmarks/bench_ockam.py [--seconds 3] [--size 100]

The hub runs as a process of its own on a real disk; the client is this process, one connection. Pushes are pipelined
with a window, and every confirm (sent after fdatasync) is counted. Pulls ask for 1,000 records at a time, each from
where the last reply ended. Frames to push are encoded beforehand, and replies are counted by their length words, so
that the client takes as little of the machine as it can: what is measured is the hub. Its processor time per record is
printed as well (Linux), since that says the same on a busy machine as on an idle one.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.protocols.ockam import codec
from headrace.protocols.ockam.cbor import CborFraming
from headrace.protocols.ockam.client import Stream, connect
from headrace.protocols.ockam.routing import Framing, LegacyFraming, Message, local
from headrace.serving.runtime import LISTENERS

BACK = (local("bench"),)
WINDOW = 20_000
PULL_LIMIT = 1_000


@contextmanager
def hub(data: Path) -> Iterator[tuple[dict[str, str], int]]:
    """A hub process with only the Ockam listeners: where they are, and its id."""
    cbor = free_address()
    ready = data / "ready.json"
    command = [sys.executable, "-m", "headrace", "up", "--data", str(data / "log"), "--ready-file", str(ready)]
    for name in LISTENERS:
        command += ["--set", f"listen.{name}=off"]
    command += ["--set", "listen.ockam=127.0.0.1:0", "--set", f"ockam.cbor_listen={cbor}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 30
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                raise SystemExit(process.communicate()[1].decode())
            time.sleep(0.02)
        yield {"legacy": json.loads(ready.read_text())["ockam"], "cbor": cbor}, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def processor_seconds(pid: int) -> float:
    """What a process has used so far, in user and system mode; 0 where that cannot be read."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


async def open_stream(address: str, name: str, framing: Framing) -> Stream:
    async with await connect(address, framing="cbor" if framing.name == "cbor" else "legacy") as connection:
        return await connection.create(name)


def dial(address: str, framing: Framing) -> socket.socket:
    host, port = address.split(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if framing.greeting:
        connection.sendall(framing.greeting)
        connection.recv(1)
    return connection


class Counter:
    """Counts whole frames in what arrives, by hopping from length word to length word."""

    def __init__(self, framing: Framing) -> None:
        self._framing = framing
        self._rest = b""
        self.last = b""

    def feed(self, data: bytes) -> int:
        buffer = self._rest + data if self._rest else data
        position, count, header = 0, 0, self._framing.header_bytes
        start = end = 0
        size = len(buffer)
        while position + header <= size:
            stop = position + header + int.from_bytes(buffer[position : position + header], "big")
            if stop > size:
                break
            start, end, position = position + header, stop, stop
            count += 1
        if count:
            self.last = buffer[start:end]
        self._rest = buffer[position:]
        return count


def bench_push(address: str, name: str, size: int, seconds: float) -> tuple[float, int]:
    """Confirmed pushes a second, and how many there were."""
    framing = LegacyFraming()
    stream = asyncio.run(open_stream(address, name, framing))
    payloads = [codec.encode_request(codec.PushRequest(number, bytes(size))) for number in range(1_000)]
    chunk = b"".join(framing.encode(Message(stream.route, BACK, payload)) for payload in payloads)
    connection, counter = dial(address, framing), Counter(framing)
    sent = confirmed = 0
    begin = time.perf_counter()
    end = begin + seconds
    while True:
        running = time.perf_counter() < end
        while running and sent - confirmed <= WINDOW - 1_000:
            connection.sendall(chunk)
            sent += 1_000
        if not running and confirmed == sent:
            break
        confirmed += counter.feed(connection.recv(1 << 20))
    took = time.perf_counter() - begin
    last = codec.decode_response(framing.decode(counter.last).payload)
    assert last == codec.PushConfirm(999, True, sent - 1), last
    connection.close()
    return sent / took, sent


def bench_pull(address: str, name: str, framing: Framing, seconds: float) -> tuple[float, int, int]:
    """Records pulled a second, how many there were, and in how many replies."""
    stream = asyncio.run(open_stream(address, name, framing))
    connection = dial(address, framing)
    index = records = pulls = 0
    counter = Counter(framing)
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        request = codec.encode_request(codec.PullRequest(1, index, PULL_LIMIT))
        connection.sendall(framing.encode(Message(stream.route, BACK, request)))
        while not counter.feed(connection.recv(1 << 20)):
            pass
        _, reader = codec.open_payload(framing.decode(counter.last).payload)
        reader.uint()
        got = reader.uint()
        index = 0 if got == 0 else index + got
        records += got
        pulls += 1
    took = time.perf_counter() - begin
    connection.close()
    return records / took, records, pulls


def nats_command(data: Path, port: str) -> tuple[list[str], bool] | None:
    """How to start a JetStream server, and whether it syncs every write as we do; None if it is not installed."""
    server = shutil.which("nats-server")
    if server is None or importlib.util.find_spec("nats") is None:
        return None
    version = subprocess.run([server, "--version"], capture_output=True, text=True, check=True).stdout
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    syncs = numbers >= [2, 10]  # before that, `sync_interval: always` does not exist
    config = data / "nats.conf"
    config.write_text(
        f'port: {port}\njetstream {{ store_dir: "{data}/nats"{", sync_interval: always" if syncs else ""} }}\n'
    )
    return [server, "-c", str(config)], syncs


async def bench_nats(port: str, size: int, seconds: float) -> tuple[float, float]:
    """Records a second published (asynchronously, acknowledged) and fetched by 1,000."""
    nats = importlib.import_module("nats")
    client = await nats.connect(f"nats://127.0.0.1:{port}", max_reconnect_attempts=50, reconnect_time_wait=0.1)
    stream = client.jetstream(publish_async_max_pending=WINDOW)
    await stream.add_stream(name="bench", subjects=["bench"])
    count, payload = 0, bytes(size)
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        for _ in range(500):
            await stream.publish_async("bench", payload)
        count += 500
    await stream.publish_async_completed()
    pushed = count / (time.perf_counter() - begin)
    unlimited = nats.js.api.ConsumerConfig(max_ack_pending=10 * count)  # fetched without acknowledging each
    subscription = await stream.pull_subscribe("bench", "bench", config=unlimited)
    got, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds and got < count:
        got += len(await subscription.fetch(PULL_LIMIT, timeout=5))
    pulled = got / (time.perf_counter() - begin)
    await client.close()
    return pushed, pulled


def compare_with_nats(data: Path, size: int, seconds: float, push: float, pull: float) -> None:
    port = free_address().rpartition(":")[2]
    found = nats_command(data, port)
    if found is None:
        print("NATS is not installed here (nats-server and nats-py): no ratio")
        return
    command, syncs = found
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        pushed, pulled = asyncio.run(bench_nats(port, size, seconds))
    finally:
        process.terminate()
        process.wait(10)
    promise = "each synced" if syncs else "not synced: this version cannot"
    print(f"push   NATS, nats-py     {pushed:12,.0f} records/s ({promise}); ours is {push / pushed:.1f} times that")
    print(f"pull   NATS, nats-py     {pulled:12,.0f} records/s; ours is {pull / pulled:.1f} times that")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--data", type=Path, default=None, help="where to put the log; else a temporary directory")
    options = parser.parse_args()
    data = Path(tempfile.mkdtemp(prefix="bench-ockam-", dir=options.data))
    try:
        with hub(data) as (addresses, pid):
            used = processor_seconds(pid)
            push, count = bench_push(addresses["legacy"], "bench", options.size, options.seconds)
            cost_us = (processor_seconds(pid) - used) / count * 1e6
            print(f"push   original framing  {push:12,.0f} records/s durable ({cost_us:.2f} µs of the hub each)")
            for framing in (LegacyFraming(), CborFraming()):
                used = processor_seconds(pid)
                rate, count, pulls = bench_pull(addresses[framing.name], "bench", framing, options.seconds)
                cost_us = (processor_seconds(pid) - used) / count * 1e6
                print(
                    f"pull   {framing.name:8s} framing  {rate:12,.0f} records/s "
                    f"({count / pulls:,.0f} a reply; {cost_us:.2f} µs of the hub each)"
                )
        compare_with_nats(data, options.size, options.seconds, push, rate)
        print(f"machine: {os.cpu_count()} cores")
    finally:
        shutil.rmtree(data, ignore_errors=True)


if __name__ == "__main__":
    main()
