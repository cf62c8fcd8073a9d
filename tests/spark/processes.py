"""Processes for the kill tests: a hub and a driver that can be killed at any point.

The hub is the real one plus one trap: when the file `trap` in its directory says `stage PID`, `commit PID` or
`append PID`, the next of these by Spark kills that process group, once it is durable and before it is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Any

SET_PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


def hub_main(data: str, address: str, ready: str) -> None:
    """A hub until it is killed."""
    import msgspec

    from headrace import admin
    from headrace.config import Config
    from headrace.config import Log as LogSection
    from headrace.hub import Hub
    from headrace.protocols.flight.server import serve
    from headrace.spark.hub import supervisor
    from headrace.spark.hub.staging_area import StagingArea

    _set_traps(StagingArea, Hub, Path(ready).parent / "trap")

    async def main() -> None:
        log = LogSection(data=data, seal_age_s=1.0, maintenance_interval_s=0.2)
        hub = await Hub.open(data, msgspec.structs.replace(Config(), log=log))
        await admin.start(hub)
        await supervisor.start(hub)
        listener = await serve(hub, address)
        half = Path(ready + ".half")
        half.write_text(listener.address)
        half.rename(ready)
        await asyncio.Event().wait()

    asyncio.run(main())


def _set_traps(staging: Any, hub: Any, trap: Path) -> None:
    def spring(name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            kind, process = trap.read_text().split()
            if kind == name:
                trap.unlink()
                os.killpg(int(process), signal.SIGKILL)

    def trapped(name: str) -> Any:
        real = getattr(staging, name)

        async def method(self: Any, request: Any) -> Any:
            result = await real(self, request)
            spring(name)
            return result

        method.__annotations__ = real.__annotations__
        return method

    for name in ("commit", "stage"):
        setattr(staging, name, trapped(name))
    append = hub.append

    def trapped_append(self: Any, *arguments: Any, **options: Any) -> Any:
        future = append(self, *arguments, **options)
        if (options.get("producer") or "").startswith("spark/"):
            future.add_done_callback(lambda done: spring("append"))
        return future

    hub.append = trapped_append


def driver_main(address: str, checkpoint: str, java_options: str, real_time: str = "") -> None:
    """A streaming query from `in` to `out` until it is killed, in micro-batches or in real-time batches of a length."""
    from headrace.spark import read_stream, session

    spark = session("driver", master="local[2]", hub=address, config={"spark.driver.extraJavaOptions": java_options})
    frame = read_stream(spark, "in", cursor="c", max_records_per_batch=500, split_records=100)
    writer = frame.select("payload", "id").writeStream.format("headrace").option("stream", "out")
    if real_time:
        writer = writer.outputMode("update").trigger(realTime=real_time)
    query = writer.option("checkpointLocation", checkpoint).start()
    query.awaitTermination()


if __name__ == "__main__":
    if sys.platform == "linux":  # whatever ends the tests, nothing that they started goes on
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    {"hub": hub_main, "driver": driver_main}[sys.argv[1]](*sys.argv[2:])
