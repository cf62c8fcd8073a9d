"""What clients read page by page: scans, and the answers to SQL."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Iterator
from typing import Final, NamedTuple

from headrace.hub.turns import Pace, Turns
from headrace.protocols.perper.catalogue import AnyCache
from headrace.protocols.perper.ignite.shapes import Page
from headrace.protocols.perper.sql.results import PAGE_BYTES_MAX, Answer, Done

PAGE_ROWS_MAX: Final = 10_000


class Scan:
    """A scan: the keys as they were when it began. Values are read page by page, and what is gone by then is left out:
    to take them all at once would hold up everybody else."""

    def __init__(self, cache: AnyCache | None, turns: Turns) -> None:
        self.owners: set[str] = set()
        """What rights are asked for with each page."""
        self._cache = cache
        self._turns = turns
        self._keys: Iterator[bytes] = iter(()) if cache is None else iter(cache.all_keys())
        self._ahead: list[tuple[bytes, bytes]] = []

    async def _next(self) -> tuple[bytes, bytes] | None:
        if self._ahead:
            return self._ahead.pop()
        for key in self._keys:
            assert self._cache is not None
            value = self._cache.get(key)
            if isinstance(value, Future):
                value = await value
            if value is not None:
                return key, value
        return None

    async def page(self, rows: int) -> Page:
        """The next rows, and whether there are more."""
        taken: list[tuple[bytes, bytes]] = []
        size = 0
        pace = Pace(self._turns)
        while len(taken) < rows and size < PAGE_BYTES_MAX:
            await pace.keep()
            pair = await self._next()
            if pair is None:
                return Page(taken, False)
            taken.append(pair)
            size += len(pair[0]) + len(pair[1])
        following = await self._next()
        if following is None:
            return Page(taken, False)
        self._ahead.append(following)
        return Page(taken, True)


Cursor = Scan | Answer | Done


class OpenCursor(NamedTuple):
    """A cursor, and how many rows a page of it has."""

    cursor: Cursor
    rows: int
