"""AMBROSIA: durable self-calls, round trips, recovery and two parties, beside what the disk itself can do.

    python benchmarks/bench_ambrosia.py [--calls 1000000] [--directory DIR] [--restate DIR]

A hub runs in its own process; this process plays a binding that does nothing but send and receive. All figures are of
one run on one machine: compare the ratios, not the numbers. With `--restate DIR`, a directory in which
`npm install @restatedev/restate-server @restatedev/restate-sdk` was run, the same is asked of Restate: a service that
calls itself, every call durable.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from restate import post, restate

from headrace.protocols.ambrosia import codec
from headrace.protocols.ambrosia.codec import Call, Checkpoint, InitialMessage, RpcBatch, encode
from headrace.serving.runtime import LISTENERS

ARGUMENTS = bytes(100)
DELIVERED = encode(Call(33, 1, ARGUMENTS))


class Binding:
    """Two sockets, and a count of the bytes of data records."""

    def __init__(self, ready: dict[str, str], name: str) -> None:
        self.to_hub, self.from_hub = (_connect(ready[f"ambrosia.{name}.{end}"]) for end in ("receive", "send"))
        self._left = b""

    def first_start(self) -> None:
        self.from_hub.recv(26, socket.MSG_WAITALL)
        self.to_hub.sendall(encode(InitialMessage(b"bench")) + encode(Checkpoint(0)))
        assert self.receive(1) >= 1

    def receive(self, wanted_bytes: int) -> int:
        """Until so many payload bytes of data records have come."""
        seen = 0
        buffer = self._left
        while seen < wanted_bytes:
            data = self.from_hub.recv(1 << 20)
            if not data:
                raise EOFError("the hub closed the link")
            buffer += data
            at, end = 0, len(buffer)
            while end - at >= codec.RECORD_HEADER_BYTES:
                _, length, _, sequence = codec.RECORD_HEADER.unpack_from(buffer, at)
                if end - at < length:
                    break
                if sequence >= 0:
                    seen += length - codec.RECORD_HEADER_BYTES
                at += length
            buffer = buffer[at:]
        self._left = buffer
        return seen

    def close(self) -> None:
        self.to_hub.close()
        self.from_hub.close()


def _connect(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    made = socket.create_connection((host, int(port)))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


@contextmanager
def hub(directory: Path) -> Iterator[dict[str, str]]:
    """A hub with two immortals in its own process."""
    ready = directory / "ready.json"
    command = [sys.executable, "-m", "headrace", "up", "--data", str(directory / "data"), "--ready-file", str(ready)]
    command += [f"--set=listen.{name}=off" for name in LISTENERS]
    command += [f"--set=ambrosia.immortals.{name}.checkpoint_log_bytes=1TiB" for name in ("one", "two")]
    with (directory / "hub.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 30
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((directory / "hub.log").read_text())
            time.sleep(0.01)
        yield json.loads(ready.read_text())
    finally:
        process.terminate()
        process.wait()


def fdatasync_p50_us(directory: Path) -> float:
    """What one small durable write costs on this disk, right now."""
    times = []
    descriptor = os.open(directory / "sync", os.O_CREAT | os.O_WRONLY)
    os.write(descriptor, bytes(1 << 20))  # room that is there already, as in the journal
    os.fsync(descriptor)
    for number in range(300):
        os.pwrite(descriptor, bytes(200), number * 200)
        begun = time.perf_counter()
        os.fdatasync(descriptor)
        times.append(time.perf_counter() - begun)
    os.close(descriptor)
    return statistics.median(times) * 1e6


def self_calls_per_s(binding: Binding, calls: int, some: list[Call], message: bytes) -> float:
    """Durable self-calls: `message` holds `some`, is sent as fast as it is taken, and counted when it comes back."""
    times = calls // len(some)
    delivered_bytes = sum(len(encode(Call(each.method, each.rpc_type, each.arguments))) for each in some)
    sender = threading.Thread(target=lambda: [binding.to_hub.sendall(message) for _ in range(times)])
    begun = time.perf_counter()
    sender.start()
    binding.receive(times * delivered_bytes)
    taken = time.perf_counter() - begun
    sender.join()
    return times * len(some) / taken


def round_trips_us(binding: Binding, count: int = 1000) -> list[float]:
    """One call at a time."""
    message = encode(Call(33, 1, ARGUMENTS, b""))
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        binding.to_hub.sendall(message)
        binding.receive(len(DELIVERED))
        times.append((time.perf_counter() - begun) * 1e6)
    return sorted(times)


def replayed_per_s(ready: dict[str, str], calls: int) -> float:
    """A recovery: the checkpoint of the first start, then the whole log."""
    begun = time.perf_counter()
    binding = Binding(ready, "one")
    binding.from_hub.recv(len(codec.encode_checkpoint_record(0, 0)), socket.MSG_WAITALL)
    binding.receive(calls * len(DELIVERED))
    taken = time.perf_counter() - begun
    binding.close()
    return calls / taken


def restate_calls_per_s(modules: Path, directory: Path, calls: int = 5000) -> float:
    """Durable self-calls of Restate: its server with default settings, a service of its Node SDK."""
    with restate(modules, directory, "restate_self.cjs", CALLS=str(calls)) as (ingress, node):
        post(f"http://{ingress}/Self/burst", calls)
        assert node.stdout is not None
        for line in node.stdout:
            if line.startswith(b"calls/s "):
                return float(line.split()[1])
        raise RuntimeError("the Restate service ended")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--directory", type=Path, default=Path.cwd(), help="where the hub keeps its data")
    parser.add_argument("--restate", type=Path, help="directory in which Restate is installed, to measure it too")
    options = parser.parse_args()
    equal = [Call(33, 1, ARGUMENTS, b"")] * 500
    mixed = [Call(33, 1, bytes(80 + n % 41), b"") for n in range(500)]
    with tempfile.TemporaryDirectory(dir=options.directory) as name, hub(Path(name)) as ready:
        sync_us = fdatasync_p50_us(Path(name))
        binding = Binding(ready, "one")
        binding.first_start()
        batched = self_calls_per_s(binding, options.calls, equal, encode(RpcBatch(tuple(equal))))
        uneven = self_calls_per_s(binding, options.calls // 4, mixed, encode(RpcBatch(tuple(mixed))))
        trips = round_trips_us(binding)
        binding.close()
        replayed = replayed_per_s(ready, options.calls)
        theirs = options.restate and restate_calls_per_s(options.restate, Path(name))
    p50, p99 = trips[len(trips) // 2], trips[len(trips) * 99 // 100]
    print(f"fdatasync p50                         {sync_us:12.0f} us")
    print(f"single durable call, p50              {p50:12.0f} us   {p50 / sync_us:6.1f} x fdatasync")
    print(f"single durable call, p99              {p99:12.0f} us")
    print(f"durable self-calls, batched           {batched:12.0f} /s   {batched * sync_us / 1e6:6.0f} per fdatasync")
    print(f"durable self-calls, of mixed sizes    {uneven:12.0f} /s")
    print(f"logged calls replayed                 {replayed:12.0f} /s   {replayed / batched:6.1f} x as fast as logged")
    if theirs:
        print(f"durable self-calls, Restate           {theirs:12.0f} /s   {batched / theirs:6.0f} x as fast here")


if __name__ == "__main__":
    main()
