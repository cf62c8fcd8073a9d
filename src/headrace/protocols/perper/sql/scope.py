"""What DuckDB gets to see: tables of caches that the client may read, as they are when they are read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import pyarrow as pa

from headrace.errors import BadSql, Forbidden, Trimmed
from headrace.protocols.perper.errors import PeerError
from headrace.protocols.perper.ignite.binary import encode_byte_array
from headrace.protocols.perper.sql import kinds
from headrace.protocols.perper.sql.table import HIDDEN, Table
from headrace.protocols.perper.streams import ITEM, StreamCache, whole_key
from headrace.protocols.perper.tables import TableCache
from headrace.sql.sources import Place, Source
from headrace.sql.wire import Bounds, Dialect, Wanted

if TYPE_CHECKING:
    from headrace.protocols.perper.catalogue import Entry
    from headrace.protocols.perper.state import Fabric
    from headrace.security import Principal

BATCH_ROWS: Final = 5_000
DIALECT: Final = Dialect(True, tuple(name.lower() for name in HIDDEN))
Uses = Callable[[Literal["read", "write"], str], None]


class CacheScope:
    """The tables that a client may read."""

    dialect = DIALECT

    def __init__(self, fabric: Fabric, principal: Principal, uses: Uses, schema: str) -> None:
        self._fabric = fabric
        self._principal = principal
        self._uses = uses
        self._schema = schema
        self._loop = asyncio.get_running_loop()
        self.owners: set[str] = set()
        """What rights were asked for."""

    def find(self, wanted: Wanted) -> Source:
        return asyncio.run_coroutine_threadsafe(self._find(wanted), self._loop).result()

    async def _find(self, wanted: Wanted) -> Source:
        try:
            table = self._fabric.catalogue.tables.table(tuple(wanted.names), self._schema)
        except PeerError:
            raise BadSql(f'Table "{wanted.names[-1]}" not found') from None
        entry = self._fabric.catalogue.find_name(table.cache)
        if entry is None:
            raise BadSql(f'Table "{wanted.names[-1]}" not found')
        self.owners.add(entry.owner)
        self.check()
        self._uses("read", entry.owner)
        if entry.cache is not None and not entry.cache.ready:
            await self._fabric.catalogue.prepare(entry, stream=True)
        return CacheSource(self._fabric, table, entry)

    def check(self) -> None:
        if self._principal.refusal is not None:
            raise self._principal.refusal
        for owner in self.owners:
            if not self._principal.may("read", owner):
                raise Forbidden(f"user {self._principal.name!r} needs the right 'read' on cache {owner!r}")


class CacheSource:
    """The rows of a table."""

    opened = None
    is_stream = False

    def __init__(self, fabric: Fabric, table: Table, entry: Entry) -> None:
        """Of a stream, the items are those that are there now."""
        self.name = entry.name
        self.places = [Place(entry.name, 0, 0, 0)]
        self._fabric = fabric
        self._table = table
        self._cache = cache = entry.cache
        self._indexes = np.array([], np.int64)
        if isinstance(cache, StreamCache):
            self._indexes = np.sort(np.fromiter(cache.all_indexes(), np.int64))
        has_long_keys = isinstance(cache, StreamCache) and cache.has_long_keys
        self._columns = table.all_columns(kinds.BIGINT if has_long_keys else None)
        self.schema = pa.schema([(column.name, column.kind.arrow) for column in self._columns.values()])

    def scan(self, columns: list[str], bounds: Bounds) -> Iterator[tuple[int, pa.RecordBatch]]:
        entries = self._entries()
        wanted = [self._columns[name] for name in columns]
        while rows := list(islice(entries, BATCH_ROWS)):
            try:
                batch = self._table.batch(wanted, rows, self._fabric.registry.schema)
            except PeerError as error:
                raise BadSql(error.message) from None
            except IndexError:
                raise BadSql(
                    f"a value in cache {self.name!r} is not an Ignite object: another protocol wrote it"
                ) from None
            if batch.num_rows:  # none of these may have been rows of this table
                yield 0, batch

    def _entries(self) -> Iterator[tuple[bytes, bytes]]:
        if isinstance(self._cache, TableCache):
            return self._cache.items()
        return self._items() if isinstance(self._cache, StreamCache) else iter(())

    def _items(self) -> Iterator[tuple[bytes, bytes]]:
        """The items of a stream: of its records those that are one now."""
        if not len(self._indexes):
            return
        at, end = int(self._indexes[0]), int(self._indexes[-1]) + 1
        while at < end:
            try:
                for batch in self._fabric.hub.scan(self.name, at, end):
                    at += batch.num_rows
                    yield from self._current(batch)
            except Trimmed as trimmed:  # since the query began: what is gone is not in the answer
                at = max(trimmed.first, at + 1)

    def _current(self, batch: pa.RecordBatch) -> Iterator[tuple[bytes, bytes]]:
        places = np.nonzero(np.isin(batch.column("index").to_numpy(), self._indexes, assume_unique=True))[0]
        taken = batch.select(["index", "id", "key", "type", "payload"]).take(pa.array(places))
        for index, number, key, kind, payload in zip(*[column.to_pylist() for column in taken.columns], strict=True):
            yield whole_key(index, number, key, kind), payload if kind == ITEM else encode_byte_array(payload)
