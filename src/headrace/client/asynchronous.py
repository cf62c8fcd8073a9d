"""The async twin: the same client for an event loop. Calls run in threads; nothing blocks the loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

import pyarrow as pa

from headrace.client.client import Client, EndAt, StartAt
from headrace.client.connection import CALL_TIMEOUT_S
from headrace.client.handles import Cursor, Expectation, Table
from headrace.client.reader import Reader
from headrace.client.records import Record, records_of
from headrace.client.writer import Writer
from headrace.log.ops import Appended, Bounds, CursorInfo, PutResult, StreamOptions
from headrace.nouns.requests import CursorMove, StreamDescription, StreamSegments, StreamSummary, TableSummary
from headrace.protocols.flight.codec import AtTime

if TYPE_CHECKING:
    import pandas

# Each follower holds one thread while it waits, so there are more threads than calls under way.
THREADS_MAX = 64

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")


class _Threads:
    """Where blocking calls run."""

    def __init__(self) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(THREADS_MAX, "headrace-client")

    async def run(
        self, function: Callable[Parameters, Result], *arguments: Parameters.args, **named: Parameters.kwargs
    ) -> Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, functools.partial(function, *arguments, **named))

    def close(self) -> None:
        self._pool.shutdown(wait=False)


class AsyncReader:
    """Records of a read or follow, as they come: `async for record in reader`."""

    def __init__(self, reader: Reader, threads: _Threads) -> None:
        self._reader = reader
        self._threads = threads

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._reader.schema

    @property
    def position(self) -> int | None:
        """The index after the last record that was handed out."""
        return self._reader.position

    async def next_batch(self, timeout_s: float | None = None) -> pa.RecordBatch | None:
        """The next batch, or None at the end."""
        try:
            return await self._threads.run(self._reader.next_batch, timeout_s)
        except asyncio.CancelledError:
            self._reader.close()  # the thread that waits is woken and freed
            raise

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Arrow record batches, as they come."""
        while (batch := await self.next_batch()) is not None:
            yield batch

    async def __aiter__(self) -> AsyncIterator[Record]:
        async for batch in self.batches():
            for record in records_of(batch):
                if record.index >= 0:
                    self._reader.position = record.index + 1
                yield record

    async def to_arrow(self) -> pa.Table:
        """Everything as one Arrow table."""
        return await self._threads.run(self._reader.to_arrow)

    async def to_pandas(self, **options: Any) -> pandas.DataFrame:
        """Everything as a pandas DataFrame."""
        return await self._threads.run(self._reader.to_pandas, **options)

    async def to_list(self) -> list[Record]:
        """Everything as a list of records."""
        return await self._threads.run(self._reader.to_list)

    async def save(self) -> int | None:
        """Make the position of the reader's cursor durable."""
        return await self._threads.run(self._reader.save)

    async def close(self) -> None:
        """End it."""
        self._reader.close()

    async def __aenter__(self) -> AsyncReader:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class AsyncWriter:
    """Appends to one partition with many batches under way."""

    def __init__(self, writer: Writer, threads: _Threads) -> None:
        self._writer = writer
        self._threads = threads

    async def append(self, data: Any, **columns: Any) -> asyncio.Future[Appended]:
        """One batch on its way; the returned future is done when it is on disk. Waits while too much is under way."""
        return asyncio.wrap_future(await self._threads.run(self._writer.append, data, **columns))

    async def flush(self) -> None:
        """Wait until everything appended so far is durable."""
        await self._threads.run(self._writer.flush)

    async def close(self) -> None:
        """Flush, and end the put."""
        await self._threads.run(self._writer.close)

    async def __aenter__(self) -> AsyncWriter:
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._threads.run(self._writer.__exit__, *error)


class AsyncCursor:
    """A consumer's position in one partition: the index it reads next."""

    def __init__(self, cursor: Cursor, threads: _Threads) -> None:
        self._cursor = cursor
        self._threads = threads

    async def get(self) -> int | None:
        """The position, or None when it was never saved."""
        return await self._threads.run(self._cursor.get)

    async def save(self, index: int) -> int:
        """Move on to `index`. Returns the position now stored."""
        return await self._threads.run(self._cursor.save, index)

    async def reset(self, to: int | Literal["earliest", "latest"] | AtTime, *, dry_run: bool = False) -> CursorMove:
        """Move anywhere; with `dry_run` only say what that would mean."""
        return await self._threads.run(self._cursor.reset, to, dry_run=dry_run)

    async def delete(self) -> None:
        """Forget it."""
        await self._threads.run(self._cursor.delete)


class AsyncTable:
    """A durable map from keys to values, both bytes."""

    def __init__(self, table: Table, threads: _Threads) -> None:
        self._table = table
        self._threads = threads

    async def get(self, key: bytes | str) -> bytes | None:
        """The value of a key, or None."""
        return await self._threads.run(self._table.get, key)

    async def put(self, key: bytes | str, value: bytes | str, *, expect: Expectation = "any") -> PutResult:
        """Set a key, if it is as expected."""
        return await self._threads.run(self._table.put, key, value, expect=expect)

    async def delete(self, key: bytes | str, *, expect: Expectation = "any") -> PutResult:
        """Remove a key, if it is as expected."""
        return await self._threads.run(self._table.delete, key, expect=expect)

    async def items(self) -> list[tuple[bytes, bytes]]:
        """All entries."""
        return await self._threads.run(lambda: list(self._table.items()))

    async def drop(self) -> None:
        """Delete the table."""
        await self._threads.run(self._table.drop)


class AsyncClient:
    """A connection to a hub for an event loop. Made by `headrace.connect_async`; arguments are those of `Client`."""

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        user: str | None = None,
        password: str | None = None,
        tls: bool | str | Path = False,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        self._client = Client(address, token=token, user=user, password=password, tls=tls, timeout_s=timeout_s)
        self._threads = _Threads()

    @property
    def address(self) -> str:
        """Where the hub is."""
        return self._client.address

    async def call(self, verb: str, params: Any = None) -> Any:
        """Run any verb of the hub."""
        return await self._threads.run(self._client.call, verb, params)

    async def create(
        self,
        stream: str,
        *,
        partitions: int = 1,
        options: StreamOptions | dict[str, Any] | None = None,
        exist_ok: bool = True,
    ) -> StreamSummary:
        """Create a stream."""
        return await self._threads.run(
            self._client.create, stream, partitions=partitions, options=options, exist_ok=exist_ok
        )

    async def streams(self, pattern: str = "*") -> list[StreamSummary]:
        """The streams whose names match a pattern."""
        return await self._threads.run(self._client.streams, pattern)

    async def describe(self, stream: str) -> StreamDescription:
        """Bounds, options and cursors of a stream."""
        return await self._threads.run(self._client.describe, stream)

    async def delete(self, stream: str) -> None:
        """Delete a stream."""
        await self._threads.run(self._client.delete, stream)

    async def trim(self, stream: str, before: int, *, partition: int = 0) -> Bounds:
        """Forget the records below `before`."""
        return await self._threads.run(self._client.trim, stream, before, partition=partition)

    async def grow(self, stream: str, partitions: int) -> StreamSummary:
        """Give a stream more partitions."""
        return await self._threads.run(self._client.grow, stream, partitions)

    async def set_options(self, stream: str, options: StreamOptions | dict[str, Any]) -> StreamSummary:
        """Replace the options of a stream."""
        return await self._threads.run(self._client.set_options, stream, options)

    async def bounds(self, stream: str, *, partition: int = 0) -> Bounds:
        """The durable records of a partition."""
        return await self._threads.run(self._client.bounds, stream, partition=partition)

    async def index_at_time(self, stream: str, time: datetime | int, *, partition: int = 0) -> int:
        """The first index accepted at this time or later."""
        return await self._threads.run(self._client.index_at_time, stream, time, partition=partition)

    async def segments(self, stream: str, *, partition: int | None = None) -> StreamSegments:
        """The sealed Arrow files of a stream."""
        return await self._threads.run(self._client.segments, stream, partition=partition)

    async def producer_sequence(self, stream: str, producer: str, *, partition: int = 0) -> int | None:
        """The last durable sequence of a producer."""
        return await self._threads.run(self._client.producer_sequence, stream, producer, partition=partition)

    async def append(
        self,
        stream: str,
        data: Any,
        *,
        partition: int = 0,
        producer: str | None = None,
        sequence: int | None = None,
        retry_s: float = 30.0,
        **columns: Any,
    ) -> Appended:
        """Append, and go on when it is on disk."""
        return await self._threads.run(
            self._client.append,
            stream,
            data,
            partition=partition,
            producer=producer,
            sequence=sequence,
            retry_s=retry_s,
            **columns,
        )

    async def writer(
        self,
        stream: str,
        *,
        partition: int = 0,
        producer: str | None = None,
        sequence: int | None = None,
        retry_s: float = 30.0,
    ) -> AsyncWriter:
        """Append with many batches under way."""
        writer = self._client.writer(stream, partition=partition, producer=producer, sequence=sequence, retry_s=retry_s)
        return AsyncWriter(writer, self._threads)

    async def read(
        self,
        stream: str | Sequence[str],
        start: StartAt | None = None,
        end: EndAt = None,
        *,
        partition: int | None = 0,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
        types: Sequence[str | None] | None = None,
        cursor: str | None = None,
        on_trimmed: Literal["fail", "skip"] = "fail",
    ) -> AsyncReader:
        """What is there now."""
        reader = await self._threads.run(
            self._client.read,
            stream,
            start,
            end,
            partition=partition,
            limit=limit,
            columns=columns,
            types=types,
            cursor=cursor,
            on_trimmed=on_trimmed,
        )
        return AsyncReader(reader, self._threads)

    async def follow(
        self,
        stream: str | Sequence[str],
        start: StartAt | None = None,
        *,
        partition: int | None = 0,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
        types: Sequence[str | None] | None = None,
        cursor: str | None = None,
        on_trimmed: Literal["fail", "skip"] = "fail",
    ) -> AsyncReader:
        """What is there, and then what comes, without end."""
        reader = await self._threads.run(
            self._client.follow,
            stream,
            start,
            partition=partition,
            limit=limit,
            columns=columns,
            types=types,
            cursor=cursor,
            on_trimmed=on_trimmed,
        )
        return AsyncReader(reader, self._threads)

    async def cursors(self, pattern: str = "*", *, stream: str | None = None) -> list[CursorInfo]:
        """The cursors whose names match a pattern."""
        return await self._threads.run(self._client.cursors, pattern, stream=stream)

    def cursor(self, name: str, stream: str, *, partition: int = 0) -> AsyncCursor:
        """A cursor."""
        return AsyncCursor(self._client.cursor(name, stream, partition=partition), self._threads)

    async def tables(self, pattern: str = "*") -> list[TableSummary]:
        """The tables whose names match a pattern."""
        return await self._threads.run(self._client.tables, pattern)

    async def create_table(self, name: str) -> AsyncTable:
        """Create a table; an existing one is left as it is."""
        return AsyncTable(await self._threads.run(self._client.create_table, name), self._threads)

    def table(self, name: str) -> AsyncTable:
        """A table."""
        return AsyncTable(self._client.table(name), self._threads)

    async def close(self) -> None:
        """Flush what is under way, and give the connection up."""
        await self._threads.run(self._client.close)
        self._threads.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
