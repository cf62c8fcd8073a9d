"""Bulk changes of a large table over the Ignite protocol, and what others feel meanwhile.

    python benchmarks/bench_tables.py [--entries 1000000] [--previous REVISION]

An honest client puts and gets one entry after the other in a cache of its own, first alone, then while another clears a
cache, removes many keys and puts many. Hub, honest client and the other are three processes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import previous

PUT, GET, PUT_ALL, CLEAR, REMOVE_KEYS, SIZE, CREATE = 1001, 1000, 1004, 1013, 1018, 1020, 1052
BULK = 20_000
MANY = 100_000
SETTLE_S = 1.0


async def serve(folder: str) -> None:
    """The hub's process, until standard input closes."""
    from headrace.config import Config
    from headrace.hub import Hub
    from headrace.protocols.perper.ignite.server import serve as serve_ignite

    hub = await Hub.open(folder, Config())
    ignite = await serve_ignite(hub, "127.0.0.1:0")
    print(ignite.address, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await ignite.close()
    await hub.close()


async def connect(address: str) -> Any:
    from headrace.protocols.perper.ignite.client import IgniteClient

    host, _, port = address.rpartition(":")
    return await IgniteClient.connect(host, int(port))


async def honest(address: str) -> None:
    """The honest client's process: when each request began, and how long it took."""
    from headrace.protocols.perper.ignite.binary import encode_long

    client = await connect(address)
    await client.request(CREATE, "honest")
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    taken = []
    print("ready", flush=True)
    while not ended.done():
        for op, arguments in ((PUT, (encode_long(1), encode_long(2))), (GET, (encode_long(1),))):
            began = time.monotonic()
            await client.request(op, *arguments, cache="honest")
            taken.append((began, time.monotonic() - began))
    print(json.dumps(taken), flush=True)
    await client.close()


async def fill(client: Any, cache: str, count: int) -> None:
    from headrace.protocols.perper.ignite.binary import encode_long

    await client.request(CREATE, cache)
    for start in range(0, count, BULK):
        pairs = [(encode_long(number), encode_long(number)) for number in range(start, min(count, start + BULK))]
        await client.request(PUT_ALL, pairs, cache=cache)
    assert await client.request(SIZE, b"", cache=cache) == count


async def disturb(address: str, entries: int) -> dict[str, tuple[float, float]]:
    """What is done, with when it began and ended."""
    from headrace.protocols.perper.ignite.binary import encode_long

    client = await connect(address)
    spans: dict[str, tuple[float, float]] = {}

    async def measure(name: str, work: Callable[[], Any]) -> None:
        await asyncio.sleep(SETTLE_S)
        began = time.monotonic()
        await work()
        spans[name] = (began, time.monotonic())
        await asyncio.sleep(SETTLE_S)

    await measure("nothing", lambda: asyncio.sleep(3))
    keys = [encode_long(number) for number in range(MANY)]
    await client.request(CREATE, "many")
    await measure(f"put {MANY:,} at once", lambda: client.request(PUT_ALL, [(key, key) for key in keys], cache="many"))
    await measure(f"remove {MANY:,} at once", lambda: client.request(REMOVE_KEYS, keys, cache="many"))
    await fill(client, "big", entries)
    await measure(f"clear {entries:,}", lambda: client.request(CLEAR, cache="big"))
    assert await client.request(SIZE, b"", cache="big") == 0
    await client.close()
    return spans


def run(source: Path, entries: int) -> None:
    folder = tempfile.mkdtemp(prefix="bench-tables-", dir=os.environ.get("BENCH_DIR", "."))
    environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{Path(__file__).parent}"}

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, *arguments]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    hub = start("serve", folder)
    try:
        assert hub.stdout is not None
        address = hub.stdout.readline().strip()
        peer = start("honest", address)
        assert peer.stdout is not None
        peer.stdout.readline()
        spans = asyncio.run(disturb(address, entries))
        taken = json.loads(peer.communicate()[0])
    finally:
        hub.communicate()
        shutil.rmtree(folder)
    print(f"{'':28}{'seconds':>9}{'others: p50':>14}{'p99':>10}{'longest':>10}  ms")
    for name, (began, ended) in spans.items():
        # Those that were under way, and what comes after: memory is freed when the client has its answer.
        felt = sorted(took for at, took in taken if at + took >= began and at <= ended + SETTLE_S / 2)
        figures = "".join(f"{1000 * felt[int(share * (len(felt) - 1))]:10.1f}" for share in (0.5, 0.99, 1))
        print(f"{name:28}{ended - began:9.3f}    {figures}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", nargs="?", choices=["serve", "honest"])
    parser.add_argument("argument", nargs="?")
    parser.add_argument("--entries", type=int, default=1_000_000)
    previous.add_option(parser)
    asked = parser.parse_args()
    if asked.mode == "serve":
        asyncio.run(serve(asked.argument))
    elif asked.mode == "honest":
        asyncio.run(honest(asked.argument))
    else:
        with tempfile.TemporaryDirectory() as folder:
            for name, source in previous.builds(asked.previous, Path(folder)).items():
                print(f"== {name}; load {os.getloadavg()[0]:.1f}")
                run(source, asked.entries)


if __name__ == "__main__":
    main()
