"""Processes for the kill tests: a hub and a driver that can be killed at any point.

The hub is the real one plus one trap: when the file `trap` in its directory says `stage PID`, `commit PID`,
`append PID` or `spread PID` (an append to several places), the next of these by Spark kills that process group, a
driver's or the hub's own, once it is durable and before it is answered. `stage PID SIGSTOP` stops it.
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
    from headrace.spark.hub.live_appends import LiveAppends
    from headrace.spark.hub.staging_area import StagingArea

    _set_traps(StagingArea, LiveAppends, Hub, Path(ready).parent / "trap")

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


def _set_traps(staging: Any, spread: Any, hub: Any, trap: Path) -> None:
    def spring(name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            kind, process, *sent = trap.read_text().split()
            if kind == name:
                os.killpg(int(process), signal.Signals[sent[0]] if sent else signal.SIGKILL)
                trap.unlink()

    def set_trap(kind: Any, method: str, name: str) -> None:
        real = getattr(kind, method)

        async def trapped(self: Any, request: Any) -> Any:
            result = await real(self, request)
            if getattr(request, "rows", True):  # otherwise it only asks
                spring(name)
            return result

        trapped.__annotations__ = real.__annotations__
        setattr(kind, method, trapped)

    set_trap(staging, "commit", "commit")
    set_trap(staging, "stage", "stage")
    set_trap(spread, "append", "spread")
    append = hub.append

    def trapped_append(self: Any, *arguments: Any, **options: Any) -> Any:
        future = append(self, *arguments, **options)
        if (options.get("producer") or "").startswith("spark/"):
            future.add_done_callback(lambda done: spring("append"))
        return future

    hub.append = trapped_append


def driver_main(
    address: str, checkpoint: str, java_options: str, real_time: str = "", master: str = "", column: str = ""
) -> None:
    """A streaming query from `in` to `out` until it is killed, in micro-batches or in real-time batches of a length.
    With a `column` that says where each row goes, it might be to several streams."""
    from headrace.spark import read_stream, session

    config = {"spark.driver.extraJavaOptions": java_options}
    if master:
        os.environ["PYSPARK_PYTHON"] = sys.executable  # on all machines
        config |= {"spark.executor.extraJavaOptions": java_options, "spark.executor.memory": "500m"}
        config |= {"spark.driver.memory": "512m", "spark.executor.cores": "1"}
    spark = session("driver", master=master or "local[2]", hub=address, config=config)
    if master:
        _say_where_the_package_is(spark)
    frame = read_stream(spark, "in", cursor="c", max_records_per_batch=500, split_records=100)
    rows = frame.selectExpr("payload", "id", *([f"'out' AS {column}"] if column else []))
    writer = rows.writeStream.format("headrace").option(*(("streamColumn", column) if column else ("stream", "out")))
    if real_time:
        writer = writer.outputMode("update").trigger(realTime=real_time)
    query = writer.option("checkpointLocation", checkpoint).start()
    query.awaitTermination()


def _say_where_the_package_is(spark: Any) -> None:
    """On executors, which run Python functions of users."""

    def package(batches: Any) -> Any:
        import pyarrow as pa

        import headrace

        for batch in batches:
            yield pa.record_batch({"path": [headrace.__file__] * batch.num_rows})

    print(*{row.path for row in spark.range(2).mapInArrow(package, "path STRING").collect()}, flush=True)


if __name__ == "__main__":
    if sys.platform == "linux":  # whatever ends the tests, nothing that they started goes on
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    {"hub": hub_main, "driver": driver_main}[sys.argv[1]](*sys.argv[2:])
