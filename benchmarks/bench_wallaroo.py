"""Durable ingest through the Wallaroo listener, beside Redis Streams and NATS JetStream, as ratios of one run.

    python benchmarks/bench_wallaroo.py [--rounds 5] [--seconds 3] [--data DIR] [--json FILE]

One connection, window 5,000, durable acknowledgements, hub and driver on the same machine. The driver is a blocking
socket that sends frames made beforehand, so that the hub is what is measured: it finds the frames, drops duplicates,
appends, syncs and acknowledges. Rounds are interleaved (hub, Redis, NATS, hub, …) and medians are compared, because
shared machines are noisy. A peer that is not installed is left out, and the table says so.

- Redis: `appendfsync always`, `redis-benchmark -c 50 -P 32`, XADD. Acknowledged = synced, as in the hub.
- NATS: file storage, asynchronous publish with a window of 5,000. Acknowledged = written, not synced.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from headrace.serving.runtime import LISTENERS

WINDOW = 5_000
BLOCK = 50_000
"""Frames made at a time; their ids are counted up in place."""


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(command: list[str], port: int, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server that is up once its port answers."""
    with (directory / "server.log").open("ab") as output:
        started = subprocess.Popen(command, stdout=output, stderr=output, cwd=directory)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                if started.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{command[0]} did not start: {directory / 'server.log'}") from None
                time.sleep(0.02)
        yield started
    finally:
        started.terminate()
        started.wait(30)


class Driver:
    """A connector that costs next to nothing."""

    def __init__(self, port: int, stream: str, size: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        name = stream.encode()
        hello = b"\0" + b"".join(struct.pack(">H", len(x)) + x for x in (b"0.0.1", b"", b"bench", b""))
        self.socket.sendall(struct.pack(">I", len(hello)) + hello)
        ok = self.socket.recv(9)
        self.credits = struct.unpack(">IBI", ok)[2]
        self.window = self.credits
        self.socket.sendall(struct.pack(">IBQH", 19 + len(name), 3, 1, len(name)) + name + struct.pack(">Q", 2**64 - 1))
        self.credits -= 1
        self.acked = 0
        self._received = b""
        while not self._received:
            self._received = self.socket.recv(4096)
        assert self._received[4:6] == b"\x04\x01", "the stream was refused"
        self._received = self._received[22:]
        self.last = 0
        self.frame = np.dtype([("head", "V13"), ("id", ">u8"), ("rest", f"V{10 + size}")])
        self.block = np.zeros(BLOCK, self.frame)
        head = struct.pack(">IBQ", 27 + size, 5, 1)
        self.block["head"] = np.void(head)
        self.block["rest"] = np.void(bytes(10) + os.urandom(size))
        self.socket.setblocking(False)

    def _next_block(self) -> memoryview:
        self.block["id"] = np.arange(self.last + 1, self.last + 1 + BLOCK, dtype=np.uint64)
        return memoryview(self.block).cast("B")

    def take_acks(self) -> None:
        try:
            data = self._received + self.socket.recv(1 << 16)
        except BlockingIOError:
            return
        at = 0
        while len(data) - at >= 4:
            length, tag = struct.unpack_from(">IB", data, at) if len(data) - at >= 5 else (1 << 30, 0)
            if len(data) - at - 4 < length:
                break
            if tag != 6:
                raise SystemExit(f"the hub said {data[at : at + 4 + length]!r}")
            credits, pairs = struct.unpack_from(">II", data, at + 5)
            self.credits += credits
            if pairs:
                self.acked = struct.unpack_from(">Q", data, at + 21)[0]
            at += 4 + length
        self._received = data[at:]

    def throughput(self, seconds: float) -> float:
        """Messages acknowledged a second, with the window always full."""
        size = self.frame.itemsize
        began, first = time.perf_counter(), self.acked
        end = began + seconds
        while time.perf_counter() < end:
            block = self._next_block()
            sent, position = 0, 0
            while sent < BLOCK:
                wanted = min(BLOCK - sent, self.credits)
                if wanted > 0:
                    self._send(block[position : position + wanted * size])
                    self.credits -= wanted
                    sent += wanted
                    position += wanted * size
                    self.take_acks()
                else:
                    select.select([self.socket], [], [], 5)
                    self.take_acks()
            self.last += BLOCK
        while self.acked < self.last:
            select.select([self.socket], [], [], 5)
            self.take_acks()
        return (self.acked - first) / (time.perf_counter() - began)

    def _send(self, data: memoryview) -> None:
        while data:
            try:
                data = data[self.socket.send(data) :]
            except BlockingIOError:
                select.select([self.socket], [self.socket], [], 5)
                self.take_acks()

    def latencies(self, rate: float, seconds: float) -> list[float]:
        """Seconds from sending to acknowledgement, at a steady rate, in steps of half a millisecond."""
        size = self.frame.itemsize
        began = time.perf_counter()
        waiting: deque[tuple[int, float]] = deque()
        found: list[float] = []
        block, used = self._next_block(), 0
        total = 0
        while (now := time.perf_counter()) < began + seconds or waiting:
            due = int((min(now, began + seconds) - began) * rate) - total
            count = min(due, self.credits, BLOCK - used)
            if count > 0:
                self._send(block[used * size : (used + count) * size])
                used += count
                total += count
                self.credits -= count
                waiting.append((self.last + used, now))
                if used == BLOCK:
                    self.last += BLOCK
                    block, used = self._next_block(), 0
            select.select([self.socket], [], [], 0.0005)
            self.take_acks()
            while waiting and waiting[0][0] <= self.acked:
                found.append(time.perf_counter() - waiting.popleft()[1])
        self.last += used
        return found


@contextmanager
def hub(directory: Path) -> Iterator[int]:
    port = free_port()
    command = [sys.executable, "-m", "headrace", "up", "--data", str(directory / "data")]
    settings = [f"listen.{name}=off" for name in LISTENERS]
    settings += [f"listen.wallaroo=127.0.0.1:{port}", f"wallaroo.window_credits={WINDOW}", "logging.level=warning"]
    for setting in settings:
        command += ["--set", setting]
    with process(command, port, directory):
        yield port


def bench_hub(directory: Path, size: int, seconds: float) -> dict[str, float]:
    with hub(directory) as port:
        driver = Driver(port, "bench", size)
        driver.throughput(0.5)
        rate = driver.throughput(seconds)
        waits = sorted(driver.latencies(rate / 2, seconds))
        return {"rate": rate, "p50_s": waits[len(waits) // 2], "p99_s": waits[int(len(waits) * 0.99)]}


def bench_redis(directory: Path, size: int, seconds: float) -> float:
    port = free_port()
    server = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", ""]
    server += ["--appendonly", "yes", "--appendfsync", "always"]
    with process(server, port, directory):
        count = int(100_000 * seconds) if size < 500 else int(50_000 * seconds)
        command = ["redis-benchmark", "-p", str(port), "-c", "50", "-P", "32", "-n", str(count), "--csv"]
        command += ["XADD", "bench", "*", "f", "x" * size]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return float(done.stdout.strip().splitlines()[-1].split(",")[1].strip('"'))


def bench_nats(directory: Path, size: int, seconds: float) -> float:
    port = free_port()
    server = ["nats-server", "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(directory)]
    with process(server, port, directory), socket.create_connection(("127.0.0.1", port)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = json.dumps({"name": "b", "subjects": ["b"], "storage": "file"}).encode()
        peer.sendall(b'CONNECT {"verbose":false}\r\nSUB i 1\r\n')
        peer.sendall(b"PUB $JS.API.STREAM.CREATE.b i %d\r\n%s\r\n" % (len(config), config))
        data = b""
        while b"MSG i" not in data or not data.endswith(b"\r\n"):
            data += peer.recv(65536)
        one = b"PUB b i %d\r\n%s\r\n" % (size, os.urandom(size // 2).hex().encode()[:size].ljust(size, b"x"))
        lot = one * 500
        sent = acked = 0
        rest = b""
        began = time.perf_counter()
        while True:
            busy = time.perf_counter() < began + seconds
            if not busy and acked >= sent:
                break
            if busy and sent - acked + 500 <= WINDOW:
                peer.sendall(lot)
                sent += 500
                continue
            data = rest + peer.recv(1 << 18)
            acked += data.count(b"MSG i ")
            rest = data[-5:]
        return acked / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--data", type=Path, help="A directory on the disk to measure.")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    peers = {"redis": bench_redis, "nats": bench_nats}
    here = {name: bench for name, bench in peers.items() if shutil.which(f"{name}-server")}
    if "redis" in here and not shutil.which("redis-benchmark"):
        del here["redis"]
    results: dict[str, dict[str, float]] = {}
    for size in (100, 1024):
        rates: dict[str, list[float]] = {}
        waits: dict[str, list[float]] = {"p50_s": [], "p99_s": []}
        for turn in range(options.rounds):
            for name in ("headrace", *here):
                with tempfile.TemporaryDirectory(dir=options.data) as directory:
                    if name == "headrace":
                        measured = bench_hub(Path(directory), size, options.seconds)
                        rates.setdefault(name, []).append(measured["rate"])
                        for key, values in waits.items():
                            values.append(measured[key])
                    else:
                        rates.setdefault(name, []).append(here[name](Path(directory), size, options.seconds))
                log(f"{size} B, round {turn + 1}: {name} {rates[name][-1]:,.0f}/s")
        medians = {name: statistics.median(found) for name, found in rates.items()}
        results[str(size)] = medians | {key: statistics.median(values) for key, values in waits.items()}
    for size, found in results.items():
        ours = found["headrace"]
        waits = f"p50 {found['p50_s'] * 1e3:.2f} ms, p99 {found['p99_s'] * 1e3:.2f} ms"
        print(f"{size} B: {ours:,.0f} messages/s; acknowledged at half that rate: {waits}")
        for name in peers:
            print(
                f"    {name}: "
                + (f"{found[name]:,.0f}/s, ratio {ours / found[name]:.1f}" if name in found else "not installed")
            )
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
