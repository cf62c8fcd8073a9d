"""Waiting for a number to pass another: for records, cursors and streams that are still to come.

What either has happened or has not needs no number: `future(key)` is done with `notify(key)`. Threads that wait for
records have a bell, which rings in whatever thread has stored them.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headrace.errors import HeadraceError
from headrace.log.bell import Bell as Bell


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


class RecordWaiters(Waiters):
    """Those who wait for records of a stream partition: tasks of the loop, and threads.

    A thread is woken by the log's writer itself. By way of the loop it would hear of a record several steps of the loop
    later, each of them behind whatever else wants to run.
    """

    def __init__(self) -> None:
        super().__init__()
        self._bells: dict[Any, tuple[Bell, ...]] = {}
        self._changing = threading.Lock()

    @contextlib.contextmanager
    def listening(self, keys: Iterable[Any], bell: Bell) -> Iterator[None]:
        """Ring for these keys meanwhile, also when what is waited for will never come. For any thread."""
        places = set(keys)
        with self._changing:
            for key in places:
                self._bells[key] = (*self._bells.get(key, ()), bell)
        try:
            yield
        finally:
            with self._changing:
                for key in places:
                    self._bells[key] = tuple(each for each in self._bells[key] if each is not bell)
                    if not self._bells[key]:
                        del self._bells[key]

    def ring(self, keys: Iterable[Any]) -> None:
        """There is more of these. From any thread."""
        for key in keys:
            for bell in self._bells.get(key, ()):
                bell.ring()

    def fail(self, error: HeadraceError, concerned: Callable[[Any], bool] = lambda key: True) -> None:
        super().fail(error, concerned)
        self.ring([key for key in list(self._bells) if concerned(key)])
