"""What the fabric knows beside the bytes in the caches: executions, listeners, and who waits for which of them to
change.

Both books are folds of their cache's table. They change only when the change is on disk, in the order of the log, and
before the client that made the change gets its answer; so whatever is announced over gRPC can be read over Ignite.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from headrace.errors import HeadraceError, LogFailed, UnknownStream
from headrace.log.ops import ANY, Delete, DeleteCursor, Op, Put, SaveCursor
from headrace.protocols.perper.catalogue import EXECUTIONS, LISTENERS, Catalogue, Entry
from headrace.protocols.perper.errors import BinaryError, PeerError, Status
from headrace.protocols.perper.ignite.binary import NULL, STRING, decode_string
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
from headrace.protocols.perper.tables import Expiries, Expiry, TableCache, succeeded, transact
from headrace.protocols.perper.waiters import NamedWaiters

if TYPE_CHECKING:
    from headrace.hub import Hub

logger = logging.getLogger("headrace.perper")

# The streams that have had a listener since they were last cleaned. A stream in here without a listener is one whose
# last listener has left: it is emptied, if need be after a restart.
LISTENED_TABLE: Final = "perper.listened"

CLEANUP_RETRY_S: Final = 5.0

# What the log takes as the name of a cursor.
CURSOR_NAME_BYTES_MAX = 512

# (execution id, the record before or None, the record now or None)
ExecutionWatcher = Callable[[str, Execution | None, Execution | None], None]


class RecordTable(TableCache):
    """One of the two caches whose values the fabric reads: a value it cannot read is refused before it is stored."""

    def __init__(
        self,
        hub: Hub,
        name: str,
        expiries: Expiries,
        read: Callable[[bytes], Any],
        apply: Callable[[str, Any], None],
    ) -> None:
        """`read` makes a record of a value; `apply` tells the book of the record an id has now, None for none."""
        super().__init__(hub, name, expiries)
        self._read = read
        self._apply = apply

    def load(self) -> None:
        """Tell the book of everything that is there."""
        for key, value in self._hub.items(self.name):
            try:
                self._apply(_identity(key), self._read(value))
            except PeerError as error:
                logger.warning("record in %r cannot be read: %s", self.name, error.message)

    def put(self, key: bytes, value: bytes, expect: Any = ANY, expiry: Expiry | None = None) -> Future[Any]:
        """Read, store, and tell the book before anybody else hears of it."""
        _identity(key)
        record = self._read(value)
        future = self._store(key, value, expect, expiry, record)
        future.add_done_callback(lambda finished: self._applied(finished, key, value, record))
        return future

    def _store(self, key: bytes, value: bytes, expect: Any, expiry: Expiry | None, record: Any) -> Future[Any]:
        return super().put(key, value, expect, expiry)

    def check(self, key: bytes, value: bytes) -> None:
        """Only records the fabric can read, under string keys."""
        _identity(key)
        self._read(value)

    def check_key(self, key: bytes) -> None:
        """Only strings."""
        _identity(key)

    def committed(self, key: bytes, value: bytes | None) -> None:
        """A transaction has changed a record."""
        self._tell(key, value, None if value is None else self._read(value))

    def put_many(self, pairs: list[tuple[bytes, bytes]]) -> Future[Any]:
        """One by one: each is told to the book."""
        for key, value in pairs:
            self.check(key, value)
        return asyncio.gather(*[self.put(key, value) for key, value in pairs])

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

        def removed(finished: Future[Any]) -> None:
            if succeeded(finished):
                self._tell(key, None, None)

        future = super().remove_expired(key)
        future.add_done_callback(removed)
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


def _identity(key: bytes) -> str:
    if key[0] != STRING:
        raise PeerError(Status.FAILED, f"keys of this cache are strings; found a data object of type {key[0]}")
    return decode_string(key, 0, len(key))[0] or ""


class Times(NamedTuple):
    """When an execution was stored and when it finished."""

    started_us: int | None
    finished_us: int | None


class Executions:
    """All executions, by id and by agent, and those who watch them."""

    def __init__(self, now_us: Callable[[], int] = lambda: 0) -> None:
        self._now_us = now_us
        self._all: dict[str, Execution] = {}
        self._times: dict[str, Times] = {}
        self._by_agent: dict[str, dict[str, Execution]] = {}
        self._watchers: dict[str, dict[ExecutionWatcher, None]] = {}  # told in the order they came
        self._finished = NamedWaiters()

    def __len__(self) -> int:
        return len(self._all)

    def get(self, execution: str) -> Execution | None:
        """The record of an execution."""
        return self._all.get(execution)

    def of_agent(self, agent: str) -> dict[str, Execution]:
        """The executions of an agent, finished ones too, in the order they came."""
        return self._by_agent.get(agent, {})

    def times(self, execution: str) -> Times:
        """When it was stored and when it finished, as far as this start of the hub has seen it."""
        return self._times.get(execution, Times(None, None))

    def agents(self) -> dict[str, int]:
        """How many executions each agent has."""
        return {agent: len(records) for agent, records in self._by_agent.items()}

    def apply(self, execution: str, now: Execution | None) -> None:
        """A record was put or removed."""
        self.tell(execution, self.note(execution, now), now)

    def note(self, execution: str, now: Execution | None) -> Execution | None:
        """Write down the record an execution has now. The one it had before, for `tell`."""
        before = self._all.get(execution)
        if before is not None and (now is None or now.agent != before.agent):
            del self._by_agent[before.agent][execution]
            if not self._by_agent[before.agent]:
                del self._by_agent[before.agent]
        if now is None:
            self._all.pop(execution, None)
            self._times.pop(execution, None)
        else:
            self._note_time(execution, before, now)
            self._all[execution] = now
            self._by_agent.setdefault(now.agent, {})[execution] = now
        return before

    def tell(self, execution: str, before: Execution | None, now: Execution | None) -> None:
        """Those who wait for the execution or watch its agent hear of the change."""
        if now is None or now.finished:
            self._finished.tell(execution)
        agents = {record.agent for record in (before, now) if record is not None}
        for agent in agents:
            for watcher in tuple(self._watchers.get(agent, ())):
                try:
                    watcher(execution, before, now)
                except Exception:  # one listener's trouble is not the others'
                    logger.exception("a listener could not be told of execution %r", execution)

    def _note_time(self, execution: str, before: Execution | None, now: Execution) -> None:
        times = Times(self._now_us(), None) if before is None else self.times(execution)
        if now.finished and (before is None or not before.finished):
            times = times._replace(finished_us=self._now_us())
        self._times[execution] = times

    def forget_times(self) -> None:
        """What was read at the start is older than that, nobody knows how much."""
        self._times.clear()

    def watch(self, agent: str, watcher: ExecutionWatcher) -> Callable[[], None]:
        """Hear of every change to the agent's executions; the result ends it."""
        self._watchers.setdefault(agent, {})[watcher] = None

        def stop() -> None:
            watchers = self._watchers.get(agent)
            if watchers is not None:
                watchers.pop(watcher, None)
                if not watchers:
                    del self._watchers[agent]

        return stop

    def finished(self, execution: str) -> Future[None] | None:
        """A future for the end of an execution; None when it has ended or is not there."""
        record = self._all.get(execution)
        if record is None or record.finished:
            return None
        return self._finished.wait(execution)


class Listeners:
    """All stream listeners, by stream."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._all: dict[str, StreamListener] = {}
        self._by_stream: dict[str, dict[str, int]] = {}
        self._attached = NamedWaiters()
        self._changed = changed

    def __len__(self) -> int:
        return len(self._all)

    def get(self, listener: str) -> StreamListener | None:
        """The record of a listener."""
        return self._all.get(listener)

    def of_stream(self, stream: str) -> dict[str, int]:
        """Position by listener."""
        return self._by_stream.get(stream, {})

    def streams(self) -> list[str]:
        """The streams that have listeners."""
        return list(self._by_stream)

    def apply(self, listener: str, now: StreamListener | None) -> None:
        """A record was put or removed."""
        before = self._all.pop(listener, None)
        if before is not None and (now is None or now.stream != before.stream):
            positions = self._by_stream[before.stream]
            del positions[listener]
            if not positions:
                del self._by_stream[before.stream]
            self._changed(before.stream)
        if now is not None:
            self._all[listener] = now
            self._by_stream.setdefault(now.stream, {})[listener] = now.position
            self._attached.tell(now.stream)
            self._changed(now.stream)

    def attached(self, stream: str) -> Future[None] | None:
        """A future for the first listener of a stream; None when there is one."""
        if stream in self._by_stream:
            return None
        return self._attached.wait(stream)


class ListenerTable(RecordTable):
    """`stream-listeners`: a listener's position is a cursor of the stream too, saved in the same transaction."""

    fabric: Fabric

    def _store(self, key: bytes, value: bytes, expect: Any, expiry: Expiry | None, record: Any) -> Future[Any]:
        """With the cursor when the stream is there."""
        cursor = self.fabric.cursor_for(_identity(key), record)
        if cursor is None or expiry is not None or self._expiries.has(self.name, key):
            return super()._store(key, value, expect, expiry, record)
        return transact(self._hub, [Put(self.name, key, value, expect), cursor])

    def _erase(self, key: bytes, expect: Any) -> Future[Any]:
        """With the cursor."""
        listener = _identity(key)
        record = self.fabric.listeners.get(listener)
        cursor = None if record is None else self.fabric.stored_cursor(listener, record.stream)
        if cursor is None or self._expiries.has(self.name, key):
            return super()._erase(key, expect)
        return transact(self._hub, [Delete(self.name, key, expect), cursor])


class Fabric:
    """Everything both listeners share: one for a hub."""

    def __init__(self, hub: Hub) -> None:
        section = hub.config.section(Perper)
        self.hub = hub
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
        executions = self._install(EXECUTIONS, RecordTable, self._read_execution, self._execution_changed)
        listeners = self._install(LISTENERS, ListenerTable, self._read_listener, self._listener_stored)
        assert isinstance(listeners, ListenerTable)
        listeners.fabric = self
        executions.load()
        self.executions.forget_times()
        await self.hub.create_table(LISTENED_TABLE)
        self._listened = {key.decode() for key, _ in self.hub.items(LISTENED_TABLE)}
        listeners.load()
        for stream in self._listened.difference(self.listeners.streams()):
            self._listener_changed(stream)

    def _install(
        self,
        name: str,
        kind: type[RecordTable],
        read: Callable[[bytes], Any],
        apply: Callable[[str, Any], None],
    ) -> RecordTable:
        entry = self.catalogue.find_name(name)
        assert entry is not None
        table = kind(self.hub, name, self.catalogue.expiries, read, apply)
        entry.cache = table
        return table

    def _read_execution(self, value: bytes) -> Execution:
        return read_execution(value, self.registry.schema)

    def _read_listener(self, value: bytes) -> StreamListener:
        return read_listener(value, self.registry.schema)

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
        entry = self.catalogue.find_name(record.stream)
        if entry is None or not entry.ready or record.position == LISTENER_HOLDS_NOTHING:
            return None
        if not listener.isprintable() or not 0 < len(listener.encode()) <= CURSOR_NAME_BYTES_MAX:
            return None  # ids are free text; one that is no name for a cursor does without
        if isinstance(entry.cache, StreamCache):
            bounds = self.hub.bounds(record.stream)
            if record.position == LISTENER_HOLDS_ALL:
                index = bounds.first
            else:
                found = entry.cache.keys.oldest_index_from(record.position)
                index = bounds.next if found is None else found
        elif isinstance(entry.cache, ViewCache):
            view = entry.cache
            bounds = self.hub.bounds(view.stream, view.partition)
            index = min(max(record.position, bounds.first), bounds.next)
            return SaveCursor(listener, view.stream, index, view.partition, True)
        else:
            return None
        return SaveCursor(listener, record.stream, index, 0, True)

    def stored_cursor(self, listener: str, stream: str) -> DeleteCursor | None:
        """What removes the cursor of a listener; None when it has none."""
        entry = self.catalogue.find_name(stream)
        if entry is None or entry.cache is None or entry.cache.kind == "table":
            return None
        partition = entry.cache.partition if isinstance(entry.cache, ViewCache) else 0
        if self.hub.cursor(listener, entry.owner, partition) is None:
            return None
        return DeleteCursor(listener, entry.owner, partition)

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


_fabrics: WeakKeyDictionary[Any, Future[Fabric]] = WeakKeyDictionary()
_users: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


async def acquire(hub: Hub) -> Fabric:
    """The fabric of a hub: loaded once, shared by both listeners. Give it back with `release`."""
    loading = _fabrics.get(hub)
    if loading is None:
        loading = _fabrics[hub] = asyncio.get_running_loop().create_future()
        fabric = Fabric(hub)
        try:
            await fabric.load()
        except BaseException as error:
            del _fabrics[hub]
            loading.set_exception(error)
            loading.exception()
            raise
        loading.set_result(fabric)
    fabric = await asyncio.shield(loading)
    _users[hub] = _users.get(hub, 0) + 1
    return fabric


async def release(hub: Hub) -> None:
    """One listener less; the last one closes the fabric."""
    _users[hub] -= 1
    if _users[hub] == 0:
        loading = _fabrics.pop(hub)
        del _users[hub]
        await loading.result().close()


__all__ = ["NULL", "BinaryError", "Entry", "Fabric", "acquire", "release"]
