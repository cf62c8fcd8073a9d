"""What both listeners share: caches, types, and the two caches whose records the fabric reads itself.

A listener's record is a cursor of its stream too, and a stream whose last listener has left is emptied.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from asyncio import Future
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import HeadraceError, LogFailed, UnknownStream
from headrace.log.ops import ANY, Delete, DeleteCursor, Op, Put, SaveCursor
from headrace.protocols.perper.books import Executions, Listeners
from headrace.protocols.perper.catalogue import EXECUTIONS, LISTENERS, Catalogue, Entry
from headrace.protocols.perper.errors import Refused
from headrace.protocols.perper.ignite.binary import STRING, decode_string
from headrace.protocols.perper.metrics import PerperMetrics
from headrace.protocols.perper.records import (
    LISTENER_HOLDS_ALL,
    LISTENER_HOLDS_NOTHING,
    Execution,
    StreamListener,
    read_execution,
    read_listener,
)
from headrace.protocols.perper.registry import TypeRegistry
from headrace.protocols.perper.settings import Perper
from headrace.protocols.perper.stream_view import ViewCache
from headrace.protocols.perper.streams import StreamCache
from headrace.protocols.perper.tables import Expiry, TableCache, succeeded, transact
from headrace.security import is_own_cursor, is_reserved
from headrace.serving.listener import Listener
from headrace.serving.tcp import TcpServer, address_of

if TYPE_CHECKING:
    from headrace.hub import Hub

logger = logging.getLogger("headrace.perper")

# The streams that have had a listener since they were last cleaned. A stream in here without a listener is one whose
# last listener has left: it is emptied, if need be after a restart.
LISTENED_TABLE: Final = "perper.listened"

CLEANUP_RETRY_S: Final = 5.0

# What the log takes as the name of a cursor.
CURSOR_NAME_BYTES_MAX = 512


class RecordTable(TableCache):
    """One of the two caches whose values the fabric reads: a value it cannot read is refused before it is stored."""

    def __init__(
        self,
        fabric: Fabric,
        name: str,
        read: Callable[[bytes], Any],
        apply: Callable[[str, Any], None],
        book: Executions | Listeners,
    ) -> None:
        """`read` makes a record of a value; `apply` tells the `book` of the record an id has now, None for none."""
        super().__init__(fabric.hub, name, fabric.catalogue.expiries)
        self._fabric = fabric
        self._read = read
        self._apply = apply
        self._book = book

    @property
    def ready(self) -> bool:
        """Not while the table is gone: somebody may delete it, and it is made again when it is wanted."""
        return self.exists

    def forget_all(self) -> None:
        """The table was deleted with everything in it: tell the book."""
        super().forget_all()
        for identity in self._book.ids():
            self._apply(identity, None)

    def load(self) -> None:
        """Tell the book of everything that is there."""
        items = self._hub.items(self.name)
        rows = self._hub.set_aside.read(self.name, items, lambda key, value: (_identity(key), self._read(value)))
        for identity, record in rows:
            self._apply(identity, record)

    def put(self, key: bytes, value: bytes, expect: Any = ANY, expiry: Expiry | None = None) -> Future[Any]:
        """Read, store, and tell the book before anybody else hears of it."""
        _identity(key)
        record = self._read(value)
        future = self._store(key, value, expect, expiry, record)
        future.add_done_callback(lambda finished: self._applied(finished, key, value, record))
        return future

    def _store(self, key: bytes, value: bytes, expect: Any, expiry: Expiry | None, record: Any) -> Future[Any]:
        return super().put(key, value, expect, expiry)

    def put_many(self, pairs: Sequence[tuple[bytes, bytes]], expiry: Expiry | None = None) -> Future[Any]:
        """One by one: each is told to the book. None if one of them cannot be read."""
        for key, value in pairs:
            _identity(key)
            self._read(value)
        return asyncio.gather(*[self.put(key, value, ANY, expiry) for key, value in pairs])

    def delete_many(self, keys: list[bytes]) -> Future[Any]:
        """One by one: each is told to the book."""
        return asyncio.gather(*[self.delete(key) for key in keys])

    def clear(self) -> Future[Any]:
        """One by one, as `delete_many`."""
        return self.delete_many(self._hub.keys(self.name))

    def delete(self, key: bytes, expect: Any = ANY) -> Future[Any]:
        """Remove, and tell the book."""
        _identity(key)
        future = self._erase(key, expect)
        future.add_done_callback(lambda finished: self._applied(finished, key, None, None))
        return future

    def _erase(self, key: bytes, expect: Any) -> Future[Any]:
        return super().delete(key, expect)

    def remove_expired(self, key: bytes) -> Future[Any]:
        """Remove, and tell the book."""
        future = super().remove_expired(key)
        future.add_done_callback(lambda finished: self._tell(key, None, None) if succeeded(finished) else None)
        return future

    def _applied(self, finished: Future[Any], key: bytes, value: bytes | None, record: Any) -> None:
        if succeeded(finished) and finished.result().applied:
            self._tell(key, value, record)

    def _tell(self, key: bytes, value: bytes | None, record: Any) -> None:
        """Tell the book of a change, and of what is stored now if that is something else: of changes that became
        durable together the later one may have been heard of first."""
        identity = _identity(key)
        self._apply(identity, record)
        stored = self._hub.get(self.name, key)
        if stored != value:
            self._apply(identity, None if stored is None else self._read(stored))


def read_listened(key: bytes, value: bytes) -> str:
    """A row of the table of streams that have had a listener."""
    return key.decode()


def _identity(key: bytes) -> str:
    if key[0] != STRING:
        raise Refused(f"keys of this cache are strings; found a data object of type {key[0]}")
    return decode_string(key, 0, len(key))[0] or ""


class ListenerTable(RecordTable):
    """`stream-listeners`: a listener's position is a cursor of the stream too, saved in the same transaction."""

    def _store(self, key: bytes, value: bytes, expect: Any, expiry: Expiry | None, record: Any) -> Future[Any]:
        """With the cursor when the stream is there."""
        cursor = self._fabric.cursor_for(_identity(key), record)
        if cursor is None or expiry is not None or self._expiries.has(self.name, key):
            return super()._store(key, value, expect, expiry, record)
        return transact(self._hub, [Put(self.name, key, value, expect), cursor])

    def _erase(self, key: bytes, expect: Any) -> Future[Any]:
        """With the cursor."""
        listener = _identity(key)
        record = self._fabric.listeners.get(listener)
        cursor = None if record is None else self._fabric.stored_cursor(listener, record.stream)
        if cursor is None or self._expiries.has(self.name, key):
            return super()._erase(key, expect)
        return transact(self._hub, [Delete(self.name, key, expect), cursor])


class Fabric:
    """Everything both listeners share: one for a hub."""

    def __init__(self, hub: Hub) -> None:
        section = hub.config.section(Perper)
        self.hub = hub
        self.users = 0
        self.registry = TypeRegistry(hub, section.types_max)
        self.catalogue = Catalogue(hub, section.caches_max, section.recent_bytes_max)
        self.executions = Executions(hub.clock.now_us)
        self.listeners = Listeners(self._listener_changed)
        self._cleanup_s: float = section.cleanup_s
        self._listened: set[str] = set()
        self._cleaning: dict[str, asyncio.Task[None]] = {}
        self._dirty: set[str] = set()
        self._background: set[Future[Any]] = set()

    async def load(self) -> None:
        """Read everything that was there before."""
        await self.registry.load()
        await self.catalogue.load()
        schema = self.registry.schema
        executions = RecordTable(
            self, EXECUTIONS, lambda value: read_execution(value, schema), self._execution_changed, self.executions
        )
        listeners = ListenerTable(
            self, LISTENERS, lambda value: read_listener(value, schema), self._listener_stored, self.listeners
        )
        for table in (executions, listeners):
            entry = self.catalogue.find_name(table.name)
            assert entry is not None
            entry.cache = table
        executions.load()
        self.executions.forget_times()
        await self.hub.create_table(LISTENED_TABLE)
        self._listened = set(self.hub.set_aside.read(LISTENED_TABLE, self.hub.items(LISTENED_TABLE), read_listened))
        listeners.load()
        for stream in sorted(self._listened.difference(self.listeners.streams())):
            self._listener_changed(stream)

    def _execution_changed(self, execution: str, now: Execution | None) -> None:
        before = self.executions.note(execution, now)
        # In the next turn: the client that made the change does not wait for its answer while others are told.
        asyncio.get_running_loop().call_soon(self._tell, execution, before, now)

    def _tell(self, execution: str, before: Execution | None, now: Execution | None) -> None:
        self.executions.tell(execution, before, now)
        if now is not None:
            self._becomes_stream(execution)

    def _listener_stored(self, listener: str, now: StreamListener | None) -> None:
        before = self.listeners.get(listener)
        if before is not None and (now is None or now.stream != before.stream):
            cursor = self.stored_cursor(listener, before.stream)
            if cursor is not None:
                self.run(self.hub.transact([cursor]))
        self.listeners.apply(listener, now)
        if now is not None:
            self._becomes_stream(now.stream)
            if now.stream not in self._listened:
                self._listened.add(now.stream)
                self.run(self.hub.put(LISTENED_TABLE, now.stream.encode(), b""))

    def _becomes_stream(self, name: str) -> None:
        """A cache that is still open turns out to be a stream."""
        entry = self.catalogue.find_name(name)
        if entry is not None and entry.cache is None:
            self.run(self._make_stream(entry))

    async def _make_stream(self, entry: Entry) -> None:
        await self.catalogue.prepare(entry, stream=True)
        cursors: list[Op] = []
        for listener, position in self.listeners.of_stream(entry.name).items():
            cursor = self.cursor_for(listener, StreamListener(entry.name, position))
            if cursor is not None and self.stored_cursor(listener, entry.name) is None:
                cursors.append(cursor)
        if cursors:
            await self.hub.transact(cursors)

    # listeners are cursors

    def cursor_for(self, listener: str, record: StreamListener) -> SaveCursor | None:
        """Where a listener stands in its stream: at the first record it still needs. None when it needs none."""
        cache = self._stream_cache(record.stream)
        if cache is None or not cache.ready or record.position == LISTENER_HOLDS_NOTHING:
            return None
        if is_reserved(cache.stream) or is_own_cursor(listener, cache.stream):
            return None  # whoever may write this record need not be an admin
        if not listener.isprintable() or not 0 < len(listener.encode()) <= CURSOR_NAME_BYTES_MAX:
            return None  # ids are free text; one that is not a valid name for a cursor does without
        return SaveCursor(listener, cache.stream, cache.index_from(record.position), cache.partition, True)

    def stored_cursor(self, listener: str, stream: str) -> DeleteCursor | None:
        """What removes the cursor of a listener; None when it has none."""
        cache = self._stream_cache(stream)
        if cache is None or self.hub.cursor(listener, cache.stream, cache.partition) is None:
            return None
        if is_reserved(cache.stream) or is_own_cursor(listener, cache.stream):
            return None  # not the listener's
        return DeleteCursor(listener, cache.stream, cache.partition)

    def _stream_cache(self, name: str) -> StreamCache | ViewCache | None:
        entry = self.catalogue.find_name(name)
        return None if entry is None or isinstance(entry.cache, TableCache) else entry.cache

    # ephemeral streams

    def _listener_changed(self, stream: str) -> None:
        """Positions moved: soon look what no listener needs any more. One look at a time, many moves per look."""
        self._dirty.add(stream)
        if stream not in self._cleaning:
            self._cleaning[stream] = asyncio.ensure_future(self._keep_clean(stream))

    async def _keep_clean(self, stream: str) -> None:
        try:
            while stream in self._dirty:
                if self.listeners.of_stream(stream):
                    await asyncio.sleep(self._cleanup_s)
                self._dirty.discard(stream)
                await self._try_to_clean(stream)
        finally:
            del self._cleaning[stream]  # here and not in a callback: no move may come between the last look and this

    async def _try_to_clean(self, stream: str) -> None:
        try:
            await self._clean_up(stream)
        except (LogFailed, UnknownStream):
            return  # the next start does it, or there is nothing left to do
        except HeadraceError as error:  # the log says no for now: the disk is full, or too much waits for it
            logger.warning("clean-up of stream %r: %s; tried again in %g s", stream, error, CLEANUP_RETRY_S)
            self._dirty.add(stream)
            await asyncio.sleep(CLEANUP_RETRY_S)

    async def _clean_up(self, stream: str) -> None:
        entry = self.catalogue.find_name(stream)
        cache = None if entry is None else entry.cache
        if entry is not None and isinstance(cache, StreamCache) and not cache.ready:
            await self.catalogue.prepare(entry, stream=True)
        positions = self.listeners.of_stream(stream).values()
        removed = 0
        if not positions:
            removed = await self._all_left(stream, cache)
        elif isinstance(cache, StreamCache) and min(positions) != LISTENER_HOLDS_ALL:
            removed = await cache.trim_below(min(positions))
        self.hub.metrics.section(PerperMetrics).cleaned.inc(removed)

    async def _all_left(self, stream: str, cache: object) -> int:
        """Nobody listens any more: the stream is emptied, and that is noted in the same step."""
        self._listened.discard(stream)
        noted = Delete(LISTENED_TABLE, stream.encode())
        if isinstance(cache, StreamCache):
            return await cache.trim_all(noted)
        await self.hub.transact([noted])
        return 0

    def run(self, work: Awaitable[Any]) -> None:
        """Do something in the background, and say so when it fails."""
        future = asyncio.ensure_future(work)
        self._background.add(future)
        future.add_done_callback(self._ran)

    def _ran(self, future: Future[Any]) -> None:
        self._background.discard(future)
        if not future.cancelled() and future.exception() is not None:
            logger.warning("background work failed: %r", future.exception())

    async def close(self) -> None:
        """Stop what runs in the background."""
        self.catalogue.close()
        tasks = [*self._cleaning.values(), *self._background]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def acquire(hub: Hub) -> Fabric:
    """The fabric of a hub: loaded once, shared by both listeners. Give it back with `release`."""
    loading: Future[Fabric] | None = hub.shared.get(Fabric)
    if loading is None:
        loading = hub.shared[Fabric] = asyncio.get_running_loop().create_future()
        fabric = Fabric(hub)
        try:
            await fabric.load()
        except BaseException as error:
            del hub.shared[Fabric]
            loading.set_exception(error)
            loading.exception()
            raise
        loading.set_result(fabric)
    fabric = await asyncio.shield(loading)
    fabric.users += 1
    return fabric


async def release(hub: Hub) -> None:
    """One listener less; the last one closes the fabric."""
    fabric: Fabric = hub.shared[Fabric].result()
    fabric.users -= 1
    if fabric.users == 0:
        del hub.shared[Fabric]
        await fabric.close()


async def listen(
    shared: TcpServer[Any], address: str, connection: Callable[[], Any], tls: ssl.SSLContext | None = None
) -> Listener:
    """Listen with a fabric that was acquired; it is released when the listener closes, or cannot open."""
    try:
        server = await shared.listen(address, connection, tls)
    except BaseException:
        await release(shared.hub)
        raise

    async def close() -> None:
        await shared.stop(server)
        await release(shared.hub)

    return Listener(address_of(server), close)
