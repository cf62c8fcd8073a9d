"""FutoIn: adds, polls, pushes and live delivery against a real `headrace up`, beside the npm reference if it is there.

    python benchmarks/bench_futoin.py [--seconds 5] [--reference DIR] [--json]

DIR is a folder with node_modules of futoin-eventstream (tests/interop/futoin makes one). Every figure is of one run on
one machine, client and server together; the ratios are what to look at.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

DATA = {"number": 1, "name": "an event of about ninety bytes of data", "list": [1, 2, 3], "done": True, "of": None}
TARGETS = {
    "add_ws_64": 15_000,
    "add_http_32": 6_000,
    "push_first_ws": 300_000,
    "poll_ws": 300_000,
    "push_ws": 300_000,
}


def request(function: str, params: dict[str, object], rid: str | None, sec: str | None) -> bytes:
    message: dict[str, object] = {"f": function, "p": params}
    if rid is not None:
        message["rid"] = rid
    if sec is not None:
        message["sec"] = sec
    return json.dumps(message, separators=(",", ":")).encode()


def frame(payload: bytes) -> bytes:
    """A masked binary frame; a mask of zeros leaves the payload as it is and keeps the generator cheap."""
    size = len(payload)
    if size < 126:
        head = bytes([0x82, 0x80 | size])
    elif size < 1 << 16:
        head = bytes([0x82, 0x80 | 126]) + size.to_bytes(2, "big")
    else:
        head = bytes([0x82, 0x80 | 127]) + size.to_bytes(8, "big")
    return head + bytes(4) + payload


class WebSocket(asyncio.Protocol):
    """Just enough of a client, to measure the server and not this."""

    def __init__(self, path: str, on_message: Callable[[bytes], None]) -> None:
        self._path = path
        self._on_message = on_message
        self._buffer = bytearray()
        self.open = asyncio.get_running_loop().create_future()
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        key = base64.b64encode(os.urandom(16)).decode()
        transport.write(
            f"GET {self._path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        if not self.open.done():
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            assert buffer.startswith(b"HTTP/1.1 101"), bytes(buffer)
            del buffer[: end + 4]
            self.open.set_result(None)
        at = 0
        while len(buffer) - at >= 2:
            size, head = buffer[at + 1] & 127, 2
            if size == 126:
                size, head = int.from_bytes(buffer[at + 2 : at + 4], "big"), 4
            elif size == 127:
                size, head = int.from_bytes(buffer[at + 2 : at + 10], "big"), 10
            if len(buffer) - at < head + size:
                break
            if buffer[at] & 15 in (1, 2):
                self._on_message(bytes(buffer[at + head : at + head + size]))
            at += head + size
        del buffer[:at]

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True

    def send(self, payload: bytes) -> None:
        self.transport.write(frame(payload))


class Endpoint:
    """Where a server listens, and as whom to call."""

    def __init__(self, host: str, port: int, path: str, sec: str | None, poll: str, pid: int) -> None:
        self.host, self.port, self.path, self.sec, self.poll, self.pid = host, port, path, sec, poll, pid

    def cpu_s(self) -> float:
        """Processor time the server has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @contextlib.asynccontextmanager
    async def websocket(self, on_message: Callable[[bytes], None]) -> AsyncIterator[WebSocket]:
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: WebSocket(self.path, on_message), self.host, self.port)
        await client.open
        try:
            yield client
        finally:
            client.transport.close()

    def add(self, rid: str | None, data: object = DATA) -> bytes:
        return request("futoin.evt.gen:1.1:addEvent", {"type": "BENCH", "data": data}, rid, self.sec)


async def add_over_websocket(endpoint: Endpoint, in_flight: int, seconds: float) -> float:
    """Adds a second, on one connection."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    added = 0
    failed: list[bytes] = []
    message = frame(endpoint.add("C1"))
    deadline = loop.time() + seconds

    def answered(reply: bytes) -> None:
        nonlocal added
        if b'"r"' in reply:
            added += 1
        else:
            failed.append(reply)
        if loop.time() < deadline:
            client.transport.write(message)
        elif not done.done():
            done.set_result(None)

    async with endpoint.websocket(answered) as client:
        started = loop.time()
        client.transport.write(message * in_flight)
        await done
        elapsed = loop.time() - started
    if failed:
        print(f"{len(failed)} adds failed: {failed[0].decode()}", file=sys.stderr)
    return added / elapsed


class HttpAdder(asyncio.Protocol):
    """One keep-alive connection that adds as fast as it is answered."""

    def __init__(self, endpoint: Endpoint, deadline: float, counter: list[int]) -> None:
        body = endpoint.add(None)
        head = f"POST {endpoint.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/futoin+json\r\n"
        self._request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        self._deadline = deadline
        self._counter = counter
        self._buffer = b""
        self._loop = asyncio.get_running_loop()
        self.done = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._buffer.endswith(b"}"):
            return
        self._counter[0] += b'"r"' in self._buffer
        self._buffer = b""
        if self._loop.time() < self._deadline:
            self._transport.write(self._request)
        elif not self.done.done():
            self.done.set_result(None)
            self._transport.close()


async def add_over_http(endpoint: Endpoint, connections: int, seconds: float) -> float:
    loop = asyncio.get_running_loop()
    started = loop.time()
    counter = [0]
    adders = []
    for _ in range(connections):
        _, adder = await loop.create_connection(
            lambda: HttpAdder(endpoint, started + seconds, counter), endpoint.host, endpoint.port
        )
        adders.append(adder)
    await asyncio.gather(*(adder.done for adder in adders))
    return counter[0] / (loop.time() - started)


LAST_ID = b'"id":"'


def last_id(message: bytes) -> int:
    at = message.rfind(LAST_ID) + len(LAST_ID)
    return int(message[at : message.index(b'"', at)])


async def poll_over_websocket(endpoint: Endpoint, component: str, events_max: int, seconds: float) -> float:
    """Events a second, reading the stream again from the start whenever the end is reached (LIVE)."""
    loop = asyncio.get_running_loop()
    replies: asyncio.Queue[bytes] = asyncio.Queue()
    served = 0
    async with endpoint.websocket(replies.put_nowait) as client:
        if component != "LIVE":
            client.send(request(f"{endpoint.poll}:registerConsumer", {"component": component}, "C1", endpoint.sec))
            await replies.get()
        at: str | None = None
        started = loop.time()
        while loop.time() - started < seconds:
            params = {"component": component, "last_id": at, "want": None}
            client.send(request(f"{endpoint.poll}:pollEvents", params, "C1", endpoint.sec))
            reply = await replies.get()
            count = reply.count(LAST_ID)
            if count == 0:
                if component != "LIVE":
                    break
                at = None
                continue
            served += count
            at = str(last_id(reply))
            if component != "LIVE" and served >= events_max:
                break
        elapsed = loop.time() - started
    return served / elapsed


async def push_over_websocket(endpoint: Endpoint, component: str, events_max: int) -> float:
    """Events a second pushed from history to a reliable consumer that confirms each group at once."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    served = expected = 0

    def received(message: bytes) -> None:
        nonlocal served, expected
        if not message.startswith(b'{"f"'):
            return
        served += message.count(LAST_ID)
        at = message.rfind(b'"rid":"') + 7
        rid = message[at : message.index(b'"', at)].decode()
        client.send(json.dumps({"r": True, "rid": rid}).encode())
        if served >= events_max and not done.done():
            done.set_result(None)

    async with endpoint.websocket(received) as client:
        client.send(request("futoin.evt.push:1.1:registerConsumer", {"component": component}, "C1", endpoint.sec))
        client.send(
            request("futoin.evt.push:1.1:readyToReceive", {"component": component, "want": None}, "C2", endpoint.sec)
        )
        started = loop.time()
        await done
        return served / (loop.time() - started)


async def live_delay(endpoint: Endpoint, seconds: float, per_second: int = 200) -> tuple[float, float]:
    """From the call of addEvent to the arrival of the event at a LIVE consumer: p50 and p99 in milliseconds."""
    loop = asyncio.get_running_loop()
    delays: list[float] = []
    ready = loop.create_future()
    complete = asyncio.Event()

    def received(message: bytes) -> None:
        if not message.startswith(b'{"f"'):
            if not ready.done():
                ready.set_result(None)
            return
        now = time.perf_counter()
        fields = json.loads(message)
        delays.extend(now - event["data"] for event in fields["p"]["events"])
        consumer.send(json.dumps({"r": True, "rid": fields["rid"]}).encode())
        if len(delays) >= int(seconds * per_second):
            complete.set()

    async with endpoint.websocket(received) as consumer, endpoint.websocket(lambda reply: None) as producer:
        consumer.send(
            request("futoin.evt.push:1.1:readyToReceive", {"component": "LIVE", "want": None}, "C1", endpoint.sec)
        )
        await ready
        for _ in range(int(seconds * per_second)):
            producer.send(endpoint.add("C1", time.perf_counter()))
            await asyncio.sleep(1 / per_second)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(complete.wait(), 5)
    cuts = statistics.quantiles(delays, n=100)
    return cuts[49] * 1000, cuts[98] * 1000


@contextlib.contextmanager
def hub() -> Iterator[Endpoint]:
    """A real hub on a real disk."""
    folder = Path(tempfile.mkdtemp(prefix="bench-futoin-"))
    ready = folder / "ready.json"
    command = [
        sys.executable, "-m", "headrace", "up", "--data", str(folder / "data"), "--ready-file", str(ready),
        "--set", "futoin.insecure=true", "--set", "listen.http=127.0.0.1:0", "--set", "listen.flight=off",
        "--set", "listen.wallaroo=off", "--set", "listen.ockam=off", "--set", "listen.ignite=off",
        "--set", "listen.fabric=off",
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=(folder / "log").open("wb"))
    try:
        deadline = time.monotonic() + 30
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((folder / "log").read_text())
            time.sleep(0.05)
        host, _, port = json.loads(ready.read_text())["http"].rpartition(":")
        yield Endpoint(host, int(port), "/futoin/bench", None, "futoin.evt.poll:1.1", process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        shutil.rmtree(folder)


@contextlib.contextmanager
def reference(node_modules: Path) -> Iterator[Endpoint]:
    """The npm reference server on SQLite."""
    folder = Path(tempfile.mkdtemp(prefix="bench-futoin-reference-"))
    script = Path(__file__).parent / "futoin_reference.js"
    environment = {**os.environ, "NODE_PATH": str(node_modules), "SQLITE_FILE": str(folder / "events.db")}
    process = subprocess.Popen(["node", str(script)], stdout=subprocess.PIPE, env=environment, cwd=folder)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        if not line.startswith("listening "):
            raise RuntimeError(f"the reference server did not start: {line!r}")
        # Its push server does not know poll:1.1.
        port = int(line.split()[1])
        yield Endpoint("127.0.0.1", port, "/ftn/", "evtuser:evtpass", "futoin.evt.poll:1.0", process.pid)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


class Figures(dict[str, float]):
    """Says each figure on the error output as soon as it is known."""

    def __setitem__(self, name: str, value: float) -> None:
        print(f"{name}: {value:.1f}", file=sys.stderr, flush=True)
        super().__setitem__(name, value)


async def measure(endpoint: Endpoint, seconds: float, in_flight: int, connections: int) -> dict[str, float]:
    figures: dict[str, float] = Figures()

    async def rate(name: str, measuring: Coroutine[Any, Any, float]) -> float:
        """Events a second, and what one of them costs the server: the second says more on a busy machine."""
        cpu_s, started = endpoint.cpu_s(), time.perf_counter()
        figures[name] = await measuring
        count = figures[name] * (time.perf_counter() - started)
        figures[f"{name}_cpu_us"] = (endpoint.cpu_s() - cpu_s) / count * 1e6
        return count

    total = await rate("add_ws_64", add_over_websocket(endpoint, in_flight, seconds))
    total += await rate("add_http_32", add_over_http(endpoint, connections, seconds))
    # The first to read these events; whoever comes later gets lists that are made already.
    await rate("push_first_ws", push_over_websocket(endpoint, "BENCHFIRST", int(total * 0.9)))
    await rate("poll_ws", poll_over_websocket(endpoint, "LIVE", 0, seconds))
    await rate("poll_reliable_ws", poll_over_websocket(endpoint, "BENCHPOLL", 10**9, seconds))
    await rate("push_ws", push_over_websocket(endpoint, "BENCHPUSH", int(total * 0.9)))
    figures["live_p50_ms"], figures["live_p99_ms"] = await live_delay(endpoint, min(seconds, 3))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--reference", type=Path, help="folder that holds node_modules of futoin-eventstream")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with hub() as endpoint:
        ours = asyncio.run(measure(endpoint, options.seconds, 64, 32))
    theirs: dict[str, float] = {}
    if options.reference is not None:
        with reference(options.reference / "node_modules") as endpoint:
            theirs = asyncio.run(measure(endpoint, options.seconds, 64, 32))
    if options.json:
        print(json.dumps({"headrace": ours, "reference": theirs}))
        return
    print(f"{'figure':<24}{'headrace':>12}{'wanted':>12}{'reference':>12}{'ratio':>8}")
    for name, value in ours.items():
        is_cost = name.endswith(("_ms", "_us"))
        digits = 2 if is_cost else 0
        line = f"{name:<24}{value:>12.{digits}f}{TARGETS.get(name, ''):>12}"
        if name in theirs:
            other = theirs[name]
            line += f"{other:>12.{digits}f}{other / value if is_cost else value / other:>8.1f}"
        print(line)


if __name__ == "__main__":
    main()
