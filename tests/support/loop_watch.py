"""A hub that notes what takes long on its event loop: `python -m support.loop_watch FILE up …`.

Each callback that takes more than `LONG_S` of the processor adds a line to the file: milliseconds, and what it was. The
processor's time, not the clock's: it does not depend on what else the machine does. What the process does before its
loop has run for a second (start) is left out.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

LONG_S = 0.003
START_S = 1.0


class Long(NamedTuple):
    """Something that took long."""

    cpu_ms: float
    what: str


def read(file: Path, since: int = 0) -> list[Long]:
    """What was noted behind the first `since` bytes."""
    lines = file.read_bytes()[since:].decode().splitlines() if file.exists() else []
    return [Long(float(cpu_ms), what) for cpu_ms, _, what in (line.partition(" ") for line in lines)]


def watch(file: Path) -> None:
    """From now on, in this process."""
    run: Any = asyncio.Handle._run
    notes = file.open("a", buffering=1)
    begins_s = 0.0
    collections: list[str] = []
    collects_from_s = 0.0

    def collected(phase: str, info: dict[str, int]) -> None:
        nonlocal collects_from_s
        if phase == "start":
            collects_from_s = time.thread_time()
            return
        took_ms = (time.thread_time() - collects_from_s) * 1000
        collections.append(f"{took_ms:.1f} ms of it for garbage of generation {info['generation']}")

    def watched(handle: Any) -> None:
        nonlocal begins_s
        callback = handle._callback
        collections.clear()
        began_s = time.thread_time()
        run(handle)
        took_s = time.thread_time() - began_s
        if took_s > LONG_S:
            begins_s = begins_s or time.monotonic() + START_S
            if time.monotonic() > begins_s:
                garbage = f" ({'; '.join(collections)})" if collections else ""
                notes.write(f"{took_s * 1000:.1f} {_name(callback)}{garbage}\n")

    gc.callbacks.append(collected)
    asyncio.Handle._run = watched  # type: ignore[method-assign]


def _name(callback: Any) -> str:
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return str(getattr(owner.get_coro(), "__qualname__", owner.get_coro()))
    protocol = getattr(owner, "_protocol", None)
    name = getattr(callback, "__qualname__", repr(callback))
    return name if protocol is None else f"{name} of {type(protocol).__module__}.{type(protocol).__name__}"


if __name__ == "__main__":
    watch(Path(sys.argv.pop(1)))
    from headrace.cli.main import run

    run()
