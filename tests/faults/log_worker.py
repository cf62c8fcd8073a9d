"""A process that appends without end and says what was acknowledged: the victim of the fault tests.

    python log_worker.py DIRECTORY [apart]        with segments made by a process of their own

Each line on standard output is "stream index value", or "table key value", printed only after the acknowledgement.
A value is `stream:round:random` so that the test can tell where it came from. On a full disk it says "full" and goes
on; when the log fails it says "failed" and exits with 4.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys

from msgspec import structs

from headrace.config import Config, Log
from headrace.errors import DiskFull, HeadraceError, LogFailed
from headrace.hub import Hub
from headrace.log.batch import Batch
from headrace.log.ops import Append, Put

STREAMS = 5
SMALL = Log(
    segment_bytes=20_000,
    journal_file_bytes=60_000,
    journal_bytes_max=200_000,
    tail_bytes_max=100_000,
    disk_reserve_bytes=0,
    maintenance_interval_s=0.05,
    merge_segments_min=4,
    compact_bytes_min=50_000,
)


def say(line: str) -> None:
    left = memoryview(f"{line}\n".encode())
    while left:  # a stop signal cuts a write to a full pipe short, and an unbuffered stream would lose the rest
        left = left[os.write(1, left) :]


async def append_without_end(hub: Hub, stream: str, generator: random.Random) -> None:
    round = hub.bounds(stream).next
    while True:
        round += 1
        value = f"{stream}:{round}:{generator.random()}" + "x" * generator.randrange(200)
        values = [f"{value}:{number}".encode() for number in range(generator.choice([1, 1, 1, 5, 50]))]
        key = f"{stream}-{round % 10}".encode()
        try:
            appended, _ = await hub.transact([Append(stream, Batch.of(values)), Put("state", key, value.encode())])
        except DiskFull:
            say("full")
            await asyncio.sleep(0.02)
            continue
        say(
            "\n".join(f"{stream} {appended.first + n} {one.decode()}" for n, one in enumerate(values))
            + f"\ntable {key.decode()} {value}"
        )


async def run(directory: str, *, apart: bool) -> None:
    settings = structs.replace(SMALL, seal_apart_bytes=1_000) if apart else SMALL
    hub = await Hub.open(directory, Config(log=settings))
    for number in range(STREAMS):
        await hub.create_stream(f"s{number}")
    await hub.create_table("state")
    say("ready")
    tasks = [asyncio.create_task(append_without_end(hub, f"s{n}", random.Random())) for n in range(STREAMS)]
    try:
        await asyncio.gather(*tasks)
    finally:
        await hub.close()  # threads that still run when Python ends may abort the process


def main() -> None:
    try:
        asyncio.run(run(sys.argv[1], apart="apart" in sys.argv[2:]))
    except LogFailed as error:
        say(f"failed {error}")
        sys.exit(4)
    except HeadraceError as error:
        say(f"refused {error.code} {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
