"""What `headrace bench` measures: this machine, with a hub on it, beside the limit of its own disk.

Every figure is from one run on one directory, so the ratios mean something even where the machine is noisy. The ceiling
is what the disk does without us: the same bytes written and synced by a bare loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from headrace.config import Config, Log
from headrace.doctor.machine import sync_times
from headrace.hub import Hub
from headrace.log.batch import Batch

CEILING_WRITE_BYTES = 1024 * 1024
IN_FLIGHT = 64
READ_RECORDS = 100_000


class Figure(msgspec.Struct, frozen=True):
    """One measurement. `of_ceiling` is its share of what the bare disk did in the same run, where that can be said."""

    name: str
    value: float
    unit: str
    of_ceiling: float | None = None


async def measure(folder: Path, seconds: float) -> AsyncIterator[Figure]:
    """All measurements, about `seconds` each, in a directory of its own below `folder` that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix=".headrace-bench-", dir=folder) as directory:
        root = Path(directory)
        ceiling = CEILING_WRITE_BYTES * await asyncio.to_thread(synced_writes_per_s, root, CEILING_WRITE_BYTES, seconds)
        yield Figure("disk: 1 MiB write + fdatasync", ceiling / 1e6, "MB/s")
        syncs = await asyncio.to_thread(synced_writes_per_s, root, 4096, seconds)
        yield Figure("disk: 4 KiB write + fdatasync", syncs, "syncs/s")
        config = Config(log=Log(data=str(root / "data")))
        hub = await Hub.open(root / "data", config)
        try:
            for size, count in ((100, 1000), (1024, 1000)):
                rate = await append_per_s(hub, f"bytes-{size}", size, count, seconds)
                of_ceiling = rate * size / ceiling if ceiling else None
                yield Figure(f"append {size} B, batches of {count}", rate, "records/s", of_ceiling)
            yield Figure("append 100 B, one at a time", await round_trips_per_s(hub, seconds), "records/s")
            yield Figure("append to 1000 streams at once", await many_streams_per_s(hub, 1000, seconds), "records/s")
            yield Figure("read 100 B, every byte touched", await reads_per_s(hub, "bytes-100", seconds), "records/s")
        finally:
            await hub.close()


def synced_writes_per_s(folder: Path, size: int, seconds: float) -> float:
    """What the bare disk does: writes of a size one after the other, each made durable."""
    count, spent_s = 0, 0.0
    with contextlib.closing(sync_times(folder, size)) as times:
        while spent_s < seconds:
            spent_s += next(times)
            count += 1
    return count / spent_s


async def append_per_s(hub: Hub, stream: str, size: int, count: int, seconds: float) -> float:
    """Durable records per second of one producer that keeps some batches under way."""
    await hub.create_stream(stream)
    batch = Batch.of([os.urandom(size) for _ in range(count)])
    waiting: deque[asyncio.Future[Any]] = deque()
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        waiting.append(hub.append(stream, batch))
        done += count
        if len(waiting) >= IN_FLIGHT:
            await waiting.popleft()
    await asyncio.gather(*waiting)
    return done / (time.perf_counter() - began)


async def round_trips_per_s(hub: Hub, seconds: float) -> float:
    """One record, wait for the acknowledgement, the next: what latency allows."""
    await hub.create_stream("round-trips")
    batch = Batch.one(os.urandom(100))

    async def append() -> int:
        await hub.append("round-trips", batch)
        return 1

    return await _per_s(append, seconds)


async def many_streams_per_s(hub: Hub, streams: int, seconds: float) -> float:
    """One record for each of many streams per round: one sync serves all."""
    await asyncio.gather(*(hub.create_stream(f"many-{number}") for number in range(streams)))
    batch = Batch.one(os.urandom(100))

    async def append_to_all() -> int:
        return len(await asyncio.gather(*(hub.append(f"many-{number}", batch) for number in range(streams))))

    return await _per_s(append_to_all, seconds)


async def reads_per_s(hub: Hub, stream: str, seconds: float) -> float:
    """Records of a stream from its beginning, again and again, as Arrow batches; every payload is copied and
    compared, so that each byte is really touched."""
    bounds = hub.bounds(stream)
    end = min(bounds.next, bounds.first + 10 * READ_RECORDS)

    def scan_once() -> int:
        rows = 0
        for records in hub.scan(stream, bounds.first, end, columns=["payload"]):
            payload = records.column(0)
            assert payload.equals(pa.concat_arrays([payload, payload.slice(0, 0)]))  # a copy, compared byte by byte
            rows += records.num_rows
        return rows

    return await _per_s(lambda: asyncio.to_thread(scan_once), seconds)


async def _per_s(step: Callable[[], Awaitable[int]], seconds: float) -> float:
    """What the steps did, one after the other, per second."""
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        done += await step()
    return done / (time.perf_counter() - began)
