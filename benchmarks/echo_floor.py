"""The least that a call can take in Python: bytes that go the way of a call, and nothing that is done with them.

    caller → "hub", an asyncio loop → a thread that writes and syncs → "hub" → "program", another loop → "hub" → caller

Three processes on loopback sockets, as a hub, a program and the SDK are. It is measured without the thread and the disk
too: what remains is the price of two loops and four hops.

    python benchmarks/echo_floor.py [--calls 2000]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import queue
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

CALL = b"x" * 200


class Program(asyncio.Protocol):
    """Sends back what it is sent."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Hub(asyncio.Protocol):
    """What the caller sends becomes durable, goes to the program, and its answer back."""

    def __init__(self, directory: Path, program: int) -> None:
        self._directory = directory
        self._program = program
        self._loop = asyncio.get_running_loop()
        self._waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        threading.Thread(target=self._write, daemon=True).start()
        self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        answers = Program()
        self.to_program, _ = await self._loop.create_connection(lambda: answers, "127.0.0.1", self._program)
        answers.transport = self.transport
        self.transport.write(CALL)  # ready

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"x"):
            self._waiting.put(data)
        else:
            self.to_program.write(data)

    def _write(self) -> None:
        with (self._directory / "floor").open("wb", buffering=0) as file:
            while True:
                data = self._waiting.get()
                file.write(data)
                os.fdatasync(file.fileno())
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(self.to_program.write, data)


async def _serve(what: str, directory: Path, program: int) -> None:
    server = await asyncio.get_running_loop().create_server(
        (lambda: Hub(directory, program)) if what == "hub" else Program, "127.0.0.1", 0
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def _process(what: str, directory: Path, program: int = 0) -> Any:
    command = [sys.executable, __file__, "--serve", what, "--directory", str(directory), "--program", str(program)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


def floor_ms(directory: Path, count: int) -> tuple[float, float]:
    """The median of one such call in milliseconds, and the same without writing and syncing."""
    with (
        _process("program", directory) as program,
        _process("hub", directory, program) as hub,
        socket.create_connection(("127.0.0.1", hub)) as caller,
    ):
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _received(caller)
        return _median_ms(caller, CALL, count), _median_ms(caller, b"y" + CALL[1:], count)


def _median_ms(caller: socket.socket, data: bytes, count: int) -> float:
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        caller.sendall(data)
        _received(caller)
        taken.append(time.perf_counter() - began)
    return 1000 * statistics.median(taken)


def _received(caller: socket.socket) -> None:
    left = len(CALL)
    while left:
        left -= len(caller.recv(left))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=2_000)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--program", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(_serve(arguments.serve, arguments.directory, arguments.program))
        return
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        durable_ms, echo_ms = floor_ms(Path(folder), arguments.calls)
    load = os.getloadavg()[0]
    print(f"load {load:.1f}; an echo through two loops: {echo_ms:.2f} ms, with a sync {durable_ms:.2f} ms")


if __name__ == "__main__":
    main()
