"""A hub in memory behind a real Flight socket, for tests of programs that use the SDK."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from headrace.config import Config
from headrace.hub import Hub
from headrace.log.clock import Clock
from headrace.log.disk import Disk
from headrace.testing.disk import MemoryDisk

Result = TypeVar("Result")

START_TIMEOUT_S = 30.0


class ServedHub:
    """A running hub: `address` is for `headrace.connect`, `hub` is the hub itself, used through `run`."""

    def __init__(self) -> None:
        self.address = ""
        self.hub: Hub = None  # type: ignore[assignment]  # set before anyone sees it
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="served-hub", daemon=True)
        self._listener: Any = None
        self._sql: Any = None

    def run(self, work: Coroutine[Any, Any, Result], timeout_s: float = START_TIMEOUT_S) -> Result:
        """Run a coroutine of the hub in its loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def start(self, config: Config | None, disk: Disk | None, clock: Clock | None, address: str) -> None:
        """Open and serve."""
        self._thread.start()
        self.run(self._open(config, disk if disk is not None else MemoryDisk(), clock, address))

    async def _open(self, config: Config | None, disk: Disk, clock: Clock | None, address: str) -> None:
        from headrace import admin
        from headrace.protocols.flight.server import serve
        from headrace.sql.verbs import start as start_sql

        self.hub = await Hub.open("memory", config, disk=disk, clock=clock)
        await admin.start(self.hub)
        self._sql = await start_sql(self.hub)
        self._listener = await serve(self.hub, address)
        self.address = self._listener.address

    async def _close(self) -> None:
        for part in (self._listener, self._sql):
            if part is not None:
                await part.close()
        if self.hub is not None:
            await self.hub.close()

    def stop(self) -> None:
        """Stop serving and close the hub; further calls do nothing."""
        if self._loop.is_closed():
            return
        try:
            self.run(self._close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


@contextmanager
def served_hub(
    config: Config | None = None, *, disk: Disk | None = None, clock: Clock | None = None, address: str = "127.0.0.1:0"
) -> Iterator[ServedHub]:
    """The real hub and the real Flight endpoint in a thread of this process; nothing on the machine's disk.

    with headrace.testing.served_hub() as served, headrace.connect(served.address) as hub:
        hub.create("orders")
    """
    served = ServedHub()
    try:
        served.start(config, disk, clock, address)
        yield served
    finally:
        served.stop()
