"""Waiting for a number to pass another: for records, cursors and streams that are still to come."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from headrace.errors import HeadraceError


class Waiters:
    """Futures that wait for a number to pass another: records for an index, cursors for a position."""

    def __init__(self) -> None:
        self._waiting: dict[Any, list[tuple[int, asyncio.Future[None]]]] = defaultdict(list)

    async def wait(self, key: Any, above: int) -> None:
        """Until `notify(key, value)` comes with a value above."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (above, future)
        self._waiting[key].append(entry)
        try:
            await future
        finally:
            if entry in (waiting := self._waiting.get(key, [])):
                waiting.remove(entry)
                if not waiting:
                    del self._waiting[key]

    def notify(self, key: Any, value: int) -> None:
        for above, future in self._waiting.get(key, ()):
            if value > above and not future.done():
                future.set_result(None)

    def wake(self, concerned: Callable[[Any], bool]) -> None:
        """Have those who wait look again, whatever the number."""
        for future in self._concerned(concerned):
            future.set_result(None)

    def fail(self, error: HeadraceError, concerned: Callable[[Any], bool] = lambda key: True) -> None:
        for future in self._concerned(concerned):
            future.set_exception(error)

    def _concerned(self, concerned: Callable[[Any], bool]) -> list[asyncio.Future[None]]:
        waiting = [future for key, entries in self._waiting.items() if concerned(key) for _, future in entries]
        return [future for future in waiting if not future.done()]
