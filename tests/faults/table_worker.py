"""A process that fills a table, replaces all of it, empties it, and says what was acknowledged: the victim of
`test_table_kill.py`.

    python table_worker.py DIRECTORY

Lines are "filled ROUND", "removed ROUND" and "cleared ROUND", printed only after the acknowledgement.
"""

from __future__ import annotations

import asyncio
import os
import sys

from headrace.config import Config, Log
from headrace.hub import Hub
from headrace.log.ops import ClearTable, PutMany

KEYS = [f"key {number}".encode() for number in range(500)]
SMALL = Log(
    segment_bytes=20_000, journal_file_bytes=60_000, journal_bytes_max=200_000, tail_bytes_max=200_000,
    disk_reserve_bytes=0, maintenance_interval_s=0.02, merge_segments_min=3, compact_bytes_min=20_000,
)  # fmt: skip


async def run(directory: str) -> None:
    hub = await Hub.open(directory, Config(log=SMALL))
    await hub.create_table("state")
    number = max((int(value) for _, value in hub.items("state")), default=hub.bounds("state").next)
    os.write(1, b"ready\n")
    while True:
        number += 1
        values = [str(number).encode()] * len(KEYS)
        await hub.transact([ClearTable("state"), PutMany("state", KEYS, values)])
        os.write(1, b"filled %d\n" % number)
        if number % 3 == 0:
            await hub.delete_many("state", KEYS)
            os.write(1, b"removed %d\n" % number)
        elif number % 3 == 1:
            await hub.clear_table("state")
            os.write(1, b"cleared %d\n" % number)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]))
