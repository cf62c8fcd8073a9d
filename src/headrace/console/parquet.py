"""The rows of a SQL query as a Parquet file, for the console's download."""

from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING, Annotated

import msgspec
import pyarrow as pa

from headrace.admin.requests import Asked
from headrace.security import current
from headrace.sql.engine import Engine, Query

if TYPE_CHECKING:
    from headrace.hub import Hub

ROWS_MAX = 100_000


class ParquetRequest(Asked, frozen=True):
    """A statement, as for `sql.query`; at most `limit` rows are in the file."""

    sql: str
    limit: Annotated[int, msgspec.Meta(ge=1, le=ROWS_MAX)] = ROWS_MAX
    id: str | None = None


class ParquetFile(msgspec.Struct, frozen=True):
    """The file, and whether all rows are in it."""

    parquet: bytes
    rows: int
    truncated: bool


class Downloads:
    """The handler, around one hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def register(self) -> None:
        self._hub.verbs.register(
            "console.parquet", ParquetRequest, self.parquet, right="read", summary="A query as a file", filters=True
        )

    async def parquet(self, asked: ParquetRequest) -> ParquetFile:
        """The limits of a query hold: its time, its memory, and how large its answer may be."""
        engine = Engine.of(self._hub)
        most = engine.settings.answer_bytes_max
        query = engine.begin(asked.sql, current(), rows_max=asked.limit, bytes_max=most, id=asked.id)
        try:
            return await asyncio.to_thread(_file, query)
        except asyncio.CancelledError:  # the caller has gone
            query.cancel()
            raise


def _file(query: Query) -> ParquetFile:
    from pyarrow import parquet  # here: it takes a while to load, and few want it

    _, schema = query.columns()
    target = io.BytesIO()
    rows = 0
    with parquet.ParquetWriter(target, schema) as writer:
        for count, body in query.rows():
            writer.write_batch(pa.ipc.read_record_batch(pa.py_buffer(bytes(body)), schema))
            rows += count
    return ParquetFile(target.getvalue(), rows, not query.is_whole)
