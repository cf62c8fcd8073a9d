"""What comes back of a statement: rows of data objects, a page at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.errors import LimitExceeded
from headrace.protocols.perper.ignite.binary import encode_long
from headrace.protocols.perper.ignite.shapes import SqlPage
from headrace.protocols.perper.sql import kinds
from headrace.protocols.perper.sql.kinds import Kind

if TYPE_CHECKING:
    from headrace.sql.engine import Engine, Query

# What is kept of an answer in the hub: a result that fits gives its process free at once.
READ_AHEAD_BYTES: Final = 1024 * 1024
# A page stops here even when the client asked for more rows: it is built in memory.
PAGE_BYTES_MAX: Final = 8 * 1024 * 1024
AT_ONCE_MAX: Final = 256
"""Rows that are written on the event loop."""
_COUNT_STAR: Final = "count_star()"


class Answer:
    """The rows of a query, as they are wanted. `owners` are the caches that they came from."""

    def __init__(self, engine: Engine, query: Query) -> None:
        self.names: list[str] = []
        self.owners: set[str] = set()
        self._engine = engine
        self._query = query
        self._kinds: list[Kind] = []
        self._schema: pa.Schema | None = None
        self._incoming: Iterator[tuple[int, memoryview]] | None = None
        self._kept: deque[pa.RecordBatch] = deque()
        self._is_whole = False
        self._is_reading = False

    async def open(self) -> None:
        """Start it. Returns when its columns are known, and what fits of its rows is here."""
        await self._read(self._start)

    async def page(self, rows: int) -> SqlPage:
        """The next rows, and whether there are more."""
        taken: list[tuple[bytes, ...]] = []
        size = 0
        while len(taken) < rows and size < PAGE_BYTES_MAX:
            if not self._kept and not self._is_whole:
                await self._read(self._more)
            if not self._kept:
                break
            batch = self._kept.popleft()
            part = batch.slice(0, rows - len(taken))
            if part.num_rows < batch.num_rows:
                self._kept.appendleft(batch.slice(part.num_rows))
            if part.num_rows <= AT_ONCE_MAX:
                cells, cells_bytes = self._rows(part)
            else:
                cells, cells_bytes = await asyncio.to_thread(self._rows, part)
            taken += cells
            size += cells_bytes
        if not self._kept and not self._is_whole:
            await self._read(self._more)
        return SqlPage(len(self.names), taken, bool(self._kept))

    async def all(self, bytes_max: int) -> list[tuple[bytes, ...]]:
        """All rows of a change, which the hub holds in memory and the log takes as one batch."""
        found: list[tuple[bytes, ...]] = []
        size = 0
        while True:
            page = await self.page(2**31)
            found += page.rows
            size += sum(len(cell) for row in page.rows for cell in row)
            if size > bytes_max:
                raise LimitExceeded("bytes of the rows of a change", size, bytes_max, "log.batch_bytes_max")
            if not page.more:
                return found

    async def _read(self, work: Callable[[Query], None]) -> None:
        self._is_reading = True
        try:
            await self._engine.run(self._query, work)
        finally:
            self._is_reading = False

    # in a thread that may block

    def _start(self, query: Query) -> None:
        columns, self._schema = query.columns()
        self.names = [_shown(name) for name in columns.names]
        self._kinds = [kinds.by_result(field.type, sql) for field, sql in zip(self._schema, columns.types, strict=True)]
        self._incoming = query.rows()
        self._more(query)

    def _more(self, query: Query) -> None:
        assert self._incoming is not None
        size = 0
        while size < READ_AHEAD_BYTES:
            part = next(self._incoming, None)
            if part is None:
                self._is_whole = True
                return
            batch = pa.ipc.read_record_batch(pa.py_buffer(part[1]), self._schema)
            self._kept.append(batch)
            size += len(part[1])

    def _rows(self, batch: pa.RecordBatch) -> tuple[list[tuple[bytes, ...]], int]:
        """The rows of a batch, and their bytes."""
        columns = [_objects(column, kind) for column, kind in zip(batch.columns, self._kinds, strict=True)]
        size = sum(len(cell) for cells in columns for cell in cells)
        return list(zip(*columns, strict=True)), size

    def close(self) -> Callable[[], None] | None:
        """Nobody wants the rest. What is left to do, in a thread that may block."""
        self._kept.clear()
        if self._is_whole:
            return None
        self._query.cancel()
        return None if self._is_reading else self._query.close  # whoever reads finds it cancelled, and ends it


class Done:
    """What a statement says that has changed something: how many rows."""

    names: Final = ["UPDATED"]

    def __init__(self, count: int = 0) -> None:
        self.owners: set[str] = set()
        self.count = count

    async def page(self, rows: int) -> SqlPage:
        """The one row there is."""
        return SqlPage(1, [(encode_long(self.count),)], False)

    def close(self) -> None:
        """There is nothing to close."""


def _shown(name: str) -> str:
    """A column's name, as Ignite shows it: DuckDB calls a column that has none by its expression."""
    return "COUNT(*)" if name == _COUNT_STAR else name.upper() if "(" in name else name


def _objects(column: pa.Array, kind: Kind) -> list[bytes]:
    return [kinds.write(kind, value) for value in _plain(column, kind)]


def _plain(column: pa.Array, kind: Kind) -> list[Any]:
    """The values of a column as `kinds.write` takes them: times as numbers, what has no type here as text."""
    if kind.code in (33, 36) or kind is kinds.DATE:
        unit = pa.int32() if kind is kinds.DATE else pa.int64()
        column = column.cast(kind.arrow, safe=False) if kind.code == 33 else column
        column = column.cast(unit)
    return column.to_pylist()  # type: ignore[no-any-return]


Result = Answer | Done


async def closed(cursors: list[Result]) -> None:
    """Close several."""
    for cursor in cursors:
        rest = cursor.close()
        if rest is not None:
            await asyncio.to_thread(rest)
