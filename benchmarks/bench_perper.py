"""Perper fabric, measured in one run on one machine: the figures that count are the ratios.

    python benchmarks/bench_perper.py            # some minutes
    python benchmarks/bench_perper.py --quick    # a smoke run

The hub runs in a process of its own on a real disk. "without syncing" is the same hub with fdatasync switched off:
what the disk costs.
Needs pyignite, perper==0.8.0rc1 and grpcio, as the interop tests do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import multiprocessing
import os
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

PUT, RESPONSE_BYTES = 1001, 14


# ------------------------------------------------------------------------------------------------------------ the hub


async def serve(folder: str, sync: bool) -> None:
    """The hub's process: both listeners, until the parent closes our standard input."""
    from headrace.config import Config
    from headrace.hub import Hub
    from headrace.log.disk import OsDisk
    from headrace.protocols.perper.fabric.server import serve as serve_fabric
    from headrace.protocols.perper.ignite.server import serve as serve_ignite

    if not sync:
        os.fdatasync = lambda descriptor: None
        os.fsync = lambda descriptor: None
    hub = await Hub.open(folder, Config(), disk=OsDisk(folder))
    ignite = await serve_ignite(hub, "127.0.0.1:0")
    fabric = await serve_fabric(hub, "127.0.0.1:0")
    print(json.dumps({"ignite": ignite.address, "fabric": fabric.address}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await fabric.close()
    await ignite.close()
    await hub.close()


@contextlib.contextmanager
def hub(sync: bool = True, event_loop: str = "asyncio") -> Iterator[dict[str, str]]:
    """A hub on a fresh directory."""
    folder = tempfile.mkdtemp(prefix="bench-perper-", dir=os.environ.get("BENCH_DIR", "."))
    command = [sys.executable, __file__, "serve", folder, "--loop", event_loop, *([] if sync else ["--no-sync"])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)
        shutil.rmtree(folder)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


# -------------------------------------------------------------------------------------------------------- thin protocol


def connect_raw(address: str) -> socket.socket:
    from headrace.protocols.perper.ignite import codec

    connection = socket.create_connection(("127.0.0.1", port_of(address)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(codec.encode_handshake(codec.Handshake((1, 7, 0), 2, b"\x04")))
    connection.recv(100)
    return connection


def raw_request(connection: socket.socket, data: bytes) -> None:
    connection.sendall(data)
    connection.recv(100)


def pipelined_puts(address: str, count: int, window: int, kind: str) -> float:
    """Puts per second over one connection, `window` of them under way."""
    from headrace.protocols.perper.ignite import codec
    from headrace.protocols.perper.ignite.binary import encode_byte_array, encode_long, java_hash
    from headrace.protocols.perper.ignite.configuration import Configuration

    connection = connect_raw(address)
    name = f"raw-{kind}-{time.monotonic_ns()}"
    op = PUT
    if kind == "table":
        raw_request(connection, codec.encode_request(codec.Request(1052, 1, (name,))))
    else:
        raw_request(connection, codec.encode_request(codec.Request(1053, 1, (Configuration({0: name, 200: []}),))))
        op = 1002
    cache_id, value = java_hash(name), encode_byte_array(bytes(100))
    frames = [codec.encode_request(codec.Request(op, n, (encode_long(n), value), cache_id)) for n in range(count)]
    answer_bytes = RESPONSE_BYTES + (op == 1002)
    chunks = [b"".join(frames[at : at + 64]) for at in range(0, count, 64)]
    sent = received = 0
    buffer = bytearray(1 << 20)
    began = time.perf_counter()
    for chunk in chunks:
        connection.sendall(chunk)
        sent += 64
        while sent - received // answer_bytes > window:
            received += connection.recv_into(buffer)
    while received < count * answer_bytes:
        received += connection.recv_into(buffer)
    took = time.perf_counter() - began
    connection.close()
    return count / took


def pyignite_puts(address: str, number: int, count: int, gate: Any, results: Any) -> None:
    """One synchronous client; how long its puts took."""
    from pyignite import Client

    client = Client()
    with client.connect("127.0.0.1", port_of(address)):
        cache = client.get_or_create_cache("clients")
        cache.put(number, "warm")
        gate.wait()
        began = time.perf_counter()
        for step in range(count):
            cache.put(number * 1_000_000 + step, "value of a record of ordinary size")
        results.put((began, time.perf_counter()))


def clients_together(address: str, clients: int, count: int) -> float:
    """Puts per second of several synchronous clients together."""
    context = multiprocessing.get_context("spawn")
    gate, results = context.Barrier(clients), context.Queue()
    processes = [
        context.Process(target=pyignite_puts, args=(address, number, count, gate, results)) for number in range(clients)
    ]
    for process in processes:
        process.start()
    times = [results.get() for _ in processes]
    for process in processes:
        process.join()
    return clients * count / (max(end for _, end in times) - min(begin for begin, _ in times))


# ---------------------------------------------------------------------------------------------------------- the fabric


def fill_stream(address: str, name: str, count: int) -> None:
    from headrace.protocols.perper.ignite import codec
    from headrace.protocols.perper.ignite.binary import encode_long, java_hash
    from headrace.protocols.perper.ignite.configuration import Configuration

    connection = connect_raw(address)
    raw_request(connection, codec.encode_request(codec.Request(1053, 1, (Configuration({0: name, 200: []}),))))
    cache_id = java_hash(name)
    frames = [
        codec.encode_request(codec.Request(1002, n, (encode_long(n), b"\x08\x01"), cache_id)) for n in range(count)
    ]
    received = 0
    for at in range(0, count, 5000):
        connection.sendall(b"".join(frames[at : at + 5000]))
        while received < min(at + 5000, count) * (RESPONSE_BYTES + 1):
            received += len(connection.recv(1 << 20))
    connection.close()


def read_keys(target: str, name: str, count: int) -> float:
    """Keys per second that one grpcio client receives, with the published stubs."""
    import grpc
    from perper.protocol.proto import fabric_pb2, fabric_pb2_grpc

    with grpc.insecure_channel(target) as channel:
        stub = fabric_pb2_grpc.FabricStub(channel)
        call = stub.StreamItems(fabric_pb2.StreamItemsRequest(stream=name, startKey=0, stride=1))
        began = time.perf_counter()
        for received, _ in enumerate(call, 1):
            if received == count:
                break
        took = time.perf_counter() - began
        call.cancel()
    return count / took


def keys_client(target: str, count: int, one_core: bool, results: Any) -> None:
    if one_core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    results.put(read_keys(target, "keys", count))


def keys_to_a_client(target: str, count: int, one_core: bool) -> float:
    """Keys per second to a client in a process of its own.

    For every message grpcio's synchronous client passes Python's lock from one of its threads to another and back.
    Where the scheduler leaves both on one core that costs some 20 us a message, where it spreads them 100 us, whoever
    the server is. On one core the client shows what the server gives; "anywhere" shows what the scheduler makes of it.
    """
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=keys_client, args=(target, count, one_core, results))
    process.start()
    rate: float = results.get()
    process.join()
    return rate


def keys_to_a_plain_client(target: str, count: int) -> float:
    """Keys per second to a client that only counts messages: what the hub can give."""
    from headrace.protocols.perper.fabric import codec
    from headrace.protocols.perper.fabric.descriptors import METHODS
    from headrace.protocols.perper.fabric.http2 import GrpcConnection, MessageReceived

    path = "/perper.Fabric/StreamItems"
    request = codec.encode(METHODS[path].request, {"stream": "keys", "startKey": 0, "stride": 1})
    connection = socket.create_connection(("127.0.0.1", port_of(target)))
    grpc = GrpcConnection(client=True)
    stream = grpc.start_call(target, path)
    grpc.send(stream, codec.prefixed(request))
    grpc.end_requests(stream)
    received = 0
    began = time.perf_counter()
    while received < count:
        connection.sendall(grpc.data_to_send())
        received += sum(isinstance(event, MessageReceived) for event in grpc.receive(connection.recv(1 << 20)))
    took = time.perf_counter() - began
    connection.close()
    return count / took


def grpcio_server(kind: str, count: int, pipe: Any) -> None:
    """The other choice: StreamItems served by grpcio, threads or asyncio, with nothing behind it."""
    import grpc
    from perper.protocol.proto import fabric_pb2, fabric_pb2_grpc

    class Threads(fabric_pb2_grpc.FabricServicer):  # type: ignore[misc]
        def StreamItems(self, request: Any, context: Any) -> Iterator[Any]:
            for key in range(count):
                yield fabric_pb2.StreamItemsResponse(key=key)

    class Loop(fabric_pb2_grpc.FabricServicer):  # type: ignore[misc]
        async def StreamItems(self, request: Any, context: Any) -> Any:
            for key in range(count):
                yield fabric_pb2.StreamItemsResponse(key=key)

    async def run_loop() -> None:
        server = grpc.aio.server()
        fabric_pb2_grpc.add_FabricServicer_to_server(Loop(), server)
        pipe.send(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        await asyncio.to_thread(pipe.recv)
        await server.stop(None)

    if kind == "asyncio":
        asyncio.run(run_loop())
        return
    server = grpc.server(futures.ThreadPoolExecutor(4))
    fabric_pb2_grpc.add_FabricServicer_to_server(Threads(), server)
    pipe.send(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    pipe.recv()
    server.stop(None)


def grpcio_keys(kind: str, count: int) -> float:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=grpcio_server, args=(kind, count, theirs))
    process.start()
    try:
        return keys_to_a_client(f"127.0.0.1:{ours.recv()}", count, one_core=True)
    finally:
        ours.send(None)
        process.join()


AGENT = """
import asyncio, sys, time, perper
from perper.extensions import call

async def init():
    for _ in range(20):
        await call("Add", 1, 2)
    times = []
    for number in range(int(sys.argv[1])):
        began = time.perf_counter()
        assert await call("Add", number, 1) == number + 1
        times.append(time.perf_counter() - began)
    print("times", *times, flush=True)

asyncio.run(perper.run("bench", {"Init": init, "Add": lambda a, b: a + b}, use_deploy_init=True))
"""


def call_times_ms(addresses: dict[str, str], count: int) -> list[float]:
    """Round trips of a call with the real agent library, caller and worker in one process."""
    environment = {
        **os.environ,
        "APACHE_IGNITE_ENDPOINT": addresses["ignite"],
        "PERPER_FABRIC_ENDPOINT": f"http://{addresses['fabric']}",
    }
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "agent.py"
        script.write_text(textwrap.dedent(AGENT))
        process = subprocess.Popen(
            [sys.executable, str(script), str(count)], stdout=subprocess.PIPE, text=True, env=environment
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("times"):
                    return sorted(float(word) * 1000 for word in line.split()[1:])
        finally:
            process.kill()
            process.wait()
    raise RuntimeError("the agent ended without its times")


def sync_ms() -> float:
    """What one fdatasync of a small write costs here: the floor under every acknowledgement."""
    with tempfile.NamedTemporaryFile(dir=os.environ.get("BENCH_DIR", ".")) as file:
        times = []
        for _ in range(200):
            began = time.perf_counter()
            os.write(file.fileno(), struct.pack("<512s", b"x"))
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


def line(what: str, value: str, wanted: str = "") -> None:
    print(f"{what:<64} {value:>16}  {wanted}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", nargs="?")
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--no-sync", action="store_true")
    parser.add_argument("--loop", default="asyncio")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.role == "serve":
        from headrace.cli.up import SWITCH_INTERVAL_S

        sys.setswitchinterval(SWITCH_INTERVAL_S)  # as `headrace up` does
        factory = importlib.import_module(options.loop).new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(serve(options.folder, not options.no_sync))
        return
    scale = 0.1 if options.quick else 1.0
    puts, items, calls = int(200_000 * scale) // 64 * 64, int(200_000 * scale), int(400 * scale)
    line("fdatasync of 512 bytes, median", f"{sync_ms():.2f} ms")
    with hub() as addresses:
        for kind in ("table", "stream"):
            rates = [pipelined_puts(addresses["ignite"], puts, 4096, kind) for _ in range(3)]
            line(f"pipelined puts of 100 B, one raw connection, {kind}", f"{max(rates):,.0f}/s", ">= 50,000/s")
    together = {sync: [] for sync in (True, False)}
    for _ in range(2):  # interleaved, so that a busy machine hits both
        for sync in (True, False):
            with hub(sync) as addresses:
                together[sync].append(clients_together(addresses["ignite"], 8, int(2000 * scale)))
    line("8 synchronous pyignite clients together", f"{max(together[True]):,.0f}/s")
    line("  the same without syncing", f"{max(together[False]):,.0f}/s")
    line("  ratio", f"{max(together[True]) / max(together[False]):.0%}", ">= 80 %")
    with hub() as addresses:
        fill_stream(addresses["ignite"], "keys", items)
        ours = statistics.median(keys_to_a_client(addresses["fabric"], items, True) for _ in range(3))
        line("StreamItems keys to one grpcio client, on one core", f"{ours:,.0f}/s", ">= 25,000/s")
        anywhere = [keys_to_a_client(addresses["fabric"], items // 4, False) for _ in range(5)]
        line("  anywhere, least and most of 5", f"{min(anywhere):,.0f}-{max(anywhere):,.0f}/s", "the client's threads")
        plain = keys_to_a_plain_client(addresses["fabric"], items)
        line("  to a client on this project's own codec", f"{plain:,.0f}/s")
        for kind in ("threads", "asyncio"):
            theirs = grpcio_keys(kind, items // 4)
            line(
                f"  a grpcio server ({kind}) with nothing behind it",
                f"{theirs:,.0f}/s",
                f"ours is {ours / theirs:.1f} times",
            )
    event_loops = [name for name in ("asyncio", "uvloop") if importlib.util.find_spec(name)]
    for sync, event_loop in (*((True, name) for name in event_loops), (False, "asyncio")):
        with hub(sync, event_loop) as addresses:
            times = call_times_ms(addresses, calls)
            what = f"Perper call round trip, real agent library, {event_loop}{'' if sync else ', without syncing'}, p50"
            line(what, f"{times[len(times) // 2]:.2f} ms", "< 6 ms" if sync else "")
            line("  p90", f"{times[len(times) * 9 // 10]:.2f} ms")


if __name__ == "__main__":
    main()
