"""A hub's log on Kafka that is written to without end, and says what was acknowledged: the victim of the fault tests.

    python kafka_worker.py DIRECTORY SERVERS PREFIX [TIMEOUT_S]

A transaction has records for two streams, a row of a table and a move of a cursor. A line "ack WRITER ROUND FIRST COUNT
OTHER" is printed when it is acknowledged. Some are larger than a message of Kafka. When the log fails, the worker says
"failed", and why, and ends with 4.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import uuid

from faults.log_worker import SMALL, say
from msgspec import structs

from headrace.config import Config, Kafka
from headrace.errors import HeadraceError, LogFailed
from headrace.hub import Hub
from headrace.log.batch import Batch
from headrace.log.ops import Append, Put, SaveCursor

WRITERS = 8
SIZES = (10, 100, 100, 100, 1_000, 20_000)
LARGE_BYTES = 2_500_000
"""Three messages of Kafka."""


async def write_without_end(hub: Hub, writer: str) -> None:
    generator = random.Random(writer)
    round = 0
    while True:
        large = round % 40 == 20
        values = [
            f"{writer}:{round}:{number}:{'x' * (LARGE_BYTES if large else generator.choice(SIZES))}".encode()
            for number in range(1 if large else generator.choice([1, 3, 30]))
        ]
        appended, other, *_ = await hub.transact(
            [
                Append("a", Batch.of(values), 0, writer, round),
                Append("b", Batch.one(f"{writer}:{round}".encode())),
                Put("rounds", writer.encode(), str(round).encode()),
                SaveCursor(writer, "b", round),
            ]
        )
        say(f"ack {writer} {round} {appended.first} {appended.count} {other.first}")
        round += 1


async def run(directory: str, servers: str, prefix: str, timeout_s: float) -> None:
    # The judge reads the journal, all of it; `test_kafka_store.py` has the faults of a store that hubs share.
    kafka = Kafka(servers=servers, prefix=prefix, timeout_s=timeout_s, store="local")
    settings = structs.replace(SMALL, backend="kafka", kafka=kafka, segment_bytes=2_000_000, tail_bytes_max=50_000_000)
    hub = await Hub.open(directory, Config(log=settings))
    say("owner")
    for stream in ("a", "b"):
        await hub.create_stream(stream)
    await hub.create_table("rounds")
    say("ready")
    name = uuid.uuid4().hex[:8]
    await asyncio.gather(*(write_without_end(hub, f"{name}-{number}") for number in range(WRITERS)))


def main() -> None:
    directory, servers, prefix, *more = sys.argv[1:]
    try:
        asyncio.run(run(directory, servers, prefix, float(more[0]) if more else 60))
    except LogFailed as error:
        say(f"failed {error}")
        os._exit(4)  # at once: threads that still run when Python ends may abort the process
    except HeadraceError as error:
        say(f"refused {error.code} {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
