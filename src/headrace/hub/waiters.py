"""Waiting for a number to pass another: for records, cursors and streams that are still to come.

What either has happened or has not needs no number: `future(key)` is done with `notify(key)`.
"""

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
        await self.future(key, above)

    def future(self, key: Any, above: int = 0) -> asyncio.Future[None]:
        """The same, for those who must be on the list at once. One that is cancelled is forgotten."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[key].append((above, future))
        future.add_done_callback(lambda _: self._forget(key, (above, future)))
        return future

    def _forget(self, key: Any, entry: tuple[int, asyncio.Future[None]]) -> None:
        self._waiting[key].remove(entry)
        if not self._waiting[key]:
            del self._waiting[key]

    def notify(self, key: Any, value: int = 1) -> None:
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
