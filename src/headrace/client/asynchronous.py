"""The async twin: the same client for an event loop. Calls run in threads; nothing blocks the loop.

Each method is the one of the same name of the other client, made awaitable: it has that one's parameters, types and
description, and there is one place to change.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

import pyarrow as pa

from headrace.client.batches import Batches, Fetched, SqlResult
from headrace.client.client import PAGE_ENTRIES, Client, connection_of
from headrace.client.connection import CALL_TIMEOUT_S
from headrace.client.groups import Group
from headrace.client.handles import Cursor, Table
from headrace.client.immortals import ImmortalHandle, Owner
from headrace.client.pipe import Pipe
from headrace.client.reader import Decoded, Reader
from headrace.client.records import Record
from headrace.client.writer import Writer
from headrace.log.ops import Appended

THREADS_MAX = 64

Result = TypeVar("Result")
Made = TypeVar("Made")
Parameters = ParamSpec("Parameters")
Blocking = TypeVar("Blocking")
Data = TypeVar("Data", bound=Batches)
Fetching = TypeVar("Fetching", bound=Fetched)


class _Threads:
    """Where blocking calls run."""

    def __init__(self, threads_max: int = THREADS_MAX) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(threads_max, "headrace-client")

    async def run(
        self, function: Callable[Parameters, Result], *arguments: Parameters.args, **named: Parameters.kwargs
    ) -> Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, functools.partial(function, *arguments, **named))

    def close(self) -> None:
        self._pool.shutdown(wait=False)


class _Twin(Generic[Blocking]):
    """Something of the blocking client, for an event loop."""

    def __init__(self, twin: Blocking, threads: _Threads) -> None:
        self._twin = twin
        self._threads = threads


def _awaitable(
    method: Callable[Concatenate[Blocking, Parameters], Result],
) -> Callable[Concatenate[_Twin[Blocking], Parameters], Coroutine[Any, Any, Result]]:
    """The method, run in a thread."""

    @functools.wraps(method)
    async def run(self: _Twin[Blocking], /, *arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        return await self._threads.run(method, self._twin, *arguments, **named)

    return run


def _awaitable_making(
    make: Callable[[Result, _Threads], Made], method: Callable[Concatenate[Blocking, Parameters], Result]
) -> Callable[Concatenate[_Twin[Blocking], Parameters], Coroutine[Any, Any, Made]]:
    """The method, run in a thread; of what it returns, the twin."""

    @functools.wraps(method)
    async def run(self: _Twin[Blocking], /, *arguments: Parameters.args, **named: Parameters.kwargs) -> Made:
        return make(await self._threads.run(method, self._twin, *arguments, **named), self._threads)

    return run


def _iterated(
    method: Callable[Concatenate[Blocking, Parameters], Iterator[Result]],
) -> Callable[Concatenate[_Twin[Blocking], Parameters], AsyncIterator[Result]]:
    """What the method gives one by one, fetched in a thread a page at a time."""

    @functools.wraps(method)
    async def run(
        self: _Twin[Blocking], /, *arguments: Parameters.args, **named: Parameters.kwargs
    ) -> AsyncIterator[Result]:
        items = method(self._twin, *arguments, **named)
        while part := await self._threads.run(list, itertools.islice(items, PAGE_ENTRIES)):
            for item in part:
                yield item

    return run


class _AsyncBatches(_Twin[Data]):
    """Arrow batches, as they come."""

    to_arrow = _awaitable(Batches.to_arrow)
    to_pandas = _awaitable(Batches.to_pandas)
    to_polars = _awaitable(Batches.to_polars)

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._twin.schema

    async def next_batch(self) -> pa.RecordBatch | None:
        """The next batch, or None at the end."""
        return await self._threads.run(self._twin.next_batch)

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Arrow record batches, as they come."""
        while (batch := await self.next_batch()) is not None:
            yield batch


class AsyncDecoded(_AsyncBatches[Decoded]):
    """Records with the JSON in their payloads as columns."""


class _AsyncFetched(_AsyncBatches[Fetching]):
    """What a call of the hub sends, until it is closed."""

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for batch in self.batches():
            for row in self._twin._each(batch):
                yield row

    async def close(self) -> None:
        """End it."""
        self._twin.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class AsyncSqlResult(_AsyncFetched[SqlResult]):
    """The rows of a query, as they come: `async for row in result`, a dict each."""

    to_list = _awaitable(SqlResult.to_list)


class AsyncReader(_AsyncFetched[Reader]):
    """Records of a read or follow, as they come: `async for record in reader`."""

    def __init__(self, twin: Reader, threads: _Threads) -> None:
        super().__init__(twin, threads)
        # A follower may wait for ever: not in a thread that the client's other calls need. It ends with the reader.
        self._waiting = _Threads(1)

    to_list = _awaitable(Reader.to_list)
    save = _awaitable(Reader.save)

    def decoded(self, schema: pa.Schema | Mapping[str, Any]) -> AsyncDecoded:
        """The JSON in the payloads as columns, by a schema."""
        return AsyncDecoded(self._twin.decoded(schema), self._threads)

    @property
    def position(self) -> int | None:
        """The index after the last record that was handed out."""
        return self._twin.position

    async def next_batch(self, timeout_s: float | None = None) -> pa.RecordBatch | None:
        """The next batch, or None at the end."""
        try:
            return await self._waiting.run(self._twin.next_batch, timeout_s)
        except asyncio.CancelledError:
            self._twin.close()  # the thread that waits is woken and freed
            raise


class AsyncGroup(_Twin[Group]):
    """One member of a consumer group: `async for record in group`."""

    def __init__(self, twin: Group, threads: _Threads) -> None:
        super().__init__(twin, threads)
        self._waiting = _Threads(1)  # as a follower

    save = _awaitable(Group.save)
    close = _awaitable(Group.close)

    @property
    def partitions(self) -> list[int]:
        """Those that are this member's now."""
        return self._twin.partitions

    async def __aiter__(self) -> AsyncIterator[Record]:
        records = iter(self._twin)
        while (record := await self._waiting.run(next, records, None)) is not None:
            yield record

    async def __aenter__(self) -> AsyncGroup:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class AsyncWriter(_Twin[Writer]):
    """Appends to one partition with many batches under way."""

    flush = _awaitable(Writer.flush)
    close = _awaitable(Writer.close)

    async def append(self, data: Any, **columns: Any) -> asyncio.Future[Appended]:
        """One batch on its way; the returned future is done when it is on disk. Waits while too much is under way."""
        return asyncio.wrap_future(await self._threads.run(self._twin.append, data, **columns))

    async def __aenter__(self) -> AsyncWriter:
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._threads.run(self._twin.__exit__, *error)


class AsyncCursor(_Twin[Cursor]):
    """A consumer's position in one partition: the index it reads next."""

    get = _awaitable(Cursor.get)
    save = _awaitable(Cursor.save)
    reset = _awaitable(Cursor.reset)
    delete = _awaitable(Cursor.delete)


class AsyncTable(_Twin[Table]):
    """A durable map from keys to values, both bytes."""

    get = _awaitable(Table.get)
    put = _awaitable(Table.put)
    delete = _awaitable(Table.delete)
    put_many = _awaitable(Table.put_many)
    delete_many = _awaitable(Table.delete_many)
    clear = _awaitable(Table.clear)
    accept_damage = _awaitable(Table.accept_damage)
    drop = _awaitable(Table.drop)

    async def items(self) -> list[tuple[bytes, bytes]]:
        """All entries."""
        return await self._threads.run(lambda: list(self._twin.items()))


class AsyncImmortal(_Twin[ImmortalHandle[Any]]):
    """An immortal, to call and await: `await hub.immortal("shop").order(item="pear", qty=2)`."""

    call = _awaitable(ImmortalHandle.call)
    send = _awaitable(ImmortalHandle.send)
    ask = _awaitable(ImmortalHandle.ask)
    fulfil = _awaitable(ImmortalHandle.fulfil)
    cancel = _awaitable(ImmortalHandle.cancel)

    def __init__(self, twin: ImmortalHandle[Any], threads: _Threads, pipe: Pipe) -> None:
        super().__init__(twin, threads)
        self._pipe = pipe

    def __getattr__(self, method: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        if method.startswith("_"):
            raise AttributeError(method)
        return functools.partial(self._twin.call_through, self._pipe, self._threads.run, method)


class AsyncClient(_Twin[Client]):
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
        client = Client(address, token=token, user=user, password=password, tls=tls, timeout_s=timeout_s)
        super().__init__(client, _Threads())
        connection = connection_of(client)
        self._pipe = Pipe(connection, lambda: self._threads.run(connection.open_line))

    @property
    def address(self) -> str:
        """Where the hub is."""
        return self._twin.address

    call = _awaitable(Client.call)
    entries = _iterated(Client.entries)
    iter_streams = _iterated(Client.iter_streams)
    iter_tables = _iterated(Client.iter_tables)
    iter_cursors = _iterated(Client.iter_cursors)
    create = _awaitable(Client.create)
    streams = _awaitable(Client.streams)
    describe = _awaitable(Client.describe)
    delete = _awaitable(Client.delete)
    trim = _awaitable(Client.trim)
    grow = _awaitable(Client.grow)
    set_options = _awaitable(Client.set_options)
    bounds = _awaitable(Client.bounds)
    index_at_time = _awaitable(Client.index_at_time)
    segments = _awaitable(Client.segments)
    producer_sequence = _awaitable(Client.producer_sequence)
    append = _awaitable(Client.append)
    sql = _awaitable_making(AsyncSqlResult, Client.sql)
    writer = _awaitable_making(AsyncWriter, Client.writer)
    read = _awaitable_making(AsyncReader, Client.read)
    follow = _awaitable_making(AsyncReader, Client.follow)
    group = _awaitable_making(AsyncGroup, Client.group)
    cursors = _awaitable(Client.cursors)
    tables = _awaitable(Client.tables)
    create_table = _awaitable_making(AsyncTable, Client.create_table)

    def cursor(self, name: str, stream: str, *, partition: int = 0) -> AsyncCursor:
        """A cursor."""
        return AsyncCursor(self._twin.cursor(name, stream, partition=partition), self._threads)

    @overload
    def immortal(self, name: str, kind: None = None, *, key: str | None = None) -> Any: ...
    @overload
    def immortal(self, name: str, kind: type[Owner], *, key: str | None = None) -> Owner: ...
    def immortal(self, name: str, kind: Any = None, *, key: str | None = None) -> Any:
        """An immortal, to call and await. With its class, type checkers take it for that."""
        return AsyncImmortal(self._twin.immortal(name, kind, key=key), self._threads, self._pipe)

    def table(self, name: str) -> AsyncTable:
        """A table."""
        return AsyncTable(self._twin.table(name), self._threads)

    async def close(self) -> None:
        """Flush what is under way, and give the connection up."""
        self._pipe.close()
        await self._threads.run(self._twin.close)
        self._threads.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
