"""An event loop in a thread of its own, for tests whose own thread blocks or has a loop of another kind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from support.until import DEADLINE_S

Result = TypeVar("Result")


class Background:
    """The loop and its thread, until `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="background", daemon=True)
        self._thread.start()
        self._started: list[Future[Any]] = []

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do it and wait for the result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def call(self, function: Callable[[], Result]) -> Result:
        """Call it where the loop is, and wait for the result."""

        async def inside() -> Result:
            return function()

        return self.run(inside())

    def start(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Begin it; what still goes on when the loop is closed is cancelled."""
        self._started.append(asyncio.run_coroutine_threadsafe(work, self._loop))
        return self._started[-1]

    def close(self) -> None:
        for future in self._started:
            future.cancel()
        self.run(asyncio.sleep(0))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        self._loop.close()
