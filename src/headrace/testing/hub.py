"""A whole hub in memory, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.config import Config
from headrace.hub import Hub
from headrace.log.clock import Clock
from headrace.log.disk import Disk
from headrace.testing.disk import MemoryDisk


@asynccontextmanager
async def memory_hub(
    config: Config | None = None, *, disk: Disk | None = None, clock: Clock | None = None
) -> AsyncIterator[Hub]:
    """The embedded log on a disk in memory: the real code path, nothing on the machine's disk, gone afterwards.

    Give the same `MemoryDisk` again to see what a restart finds."""
    hub = await Hub.open("memory", config, disk=disk if disk is not None else MemoryDisk(), clock=clock)
    try:
        yield hub
    finally:
        await hub.close()
