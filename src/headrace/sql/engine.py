"""SQL at the hub: queries, each in a process that runs nothing else meanwhile, and their limits.

    engine.begin(…)  takes a place, in any thread; `Busy` when there is none
    query.columns()  starts it and waits for the columns of the result, in a thread that may block
    query.rows()     the rows, as they come; then the place is free again, whatever happened

A process that has done its work waits for the next query. One whose query was cancelled, or met a limit, is killed.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
import pyarrow as pa

from headrace.errors import BadRequest, BadSql, Busy, Cancelled, Closed, HeadraceError, LimitExceeded
from headrace.hub.waiters import Waiters
from headrace.sql import wire
from headrace.sql.process import Process
from headrace.sql.sources import HubScope, Scope, Source

if TYPE_CHECKING:
    from headrace.hub import Hub
    from headrace.security import Principal

logger = logging.getLogger("headrace.sql")

ID_CHARACTERS_MAX = 128
IDLE_LOOK_S = 5.0
IDLE_LOOK_S_MIN = 0.05
Result = TypeVar("Result")
Form = Literal["arrow", "json", "columns"]


class QueryInfo(msgspec.Struct, frozen=True):
    """A query that is under way."""

    id: str
    user: str
    sql: str
    began_us: int
    elapsed_us: int
    scanned_records: int
    scanned_bytes: int


class Engine:
    """All queries of one hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.settings = hub.config.sql
        self.metrics = hub.metrics.sql
        self.loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._queries: dict[str, Query] = {}
        self._idle: list[Process] = []
        self._processes = 0
        self._closed = False
        self._freed = Waiters()
        # Of its own: queries that wait for their processes must not keep the reads of others waiting for a thread.
        self._threads = concurrent.futures.ThreadPoolExecutor(self.settings.queries_max, "sql")
        self._chore = self.loop.create_task(self._let_idle_go(), name="idle SQL processes")

    @classmethod
    def of(cls, hub: Hub) -> Engine:
        """The engine of a hub; it starts nothing before the first query."""
        engine = hub.shared.get(cls)
        if engine is None:
            engine = hub.shared[cls] = cls(hub)
        return engine

    def begin(
        self,
        text: str,
        principal: Principal,
        *,
        parameters: Sequence[Any] = (),
        form: Form = "arrow",
        rows_max: int | None = None,
        bytes_max: int | None = None,
        id: str | None = None,
        scope: Scope | None = None,
        will_wait: bool = False,
    ) -> Query:
        """Take a place for a query. Without a `scope` it sees what `principal` may read."""
        settings = self.settings
        size = len(text.encode())
        if size > settings.text_bytes_max:
            raise self.limit_met("text", "bytes of a statement", size, settings.text_bytes_max, "text_bytes_max")
        if id is not None and not 1 <= len(id) <= ID_CHARACTERS_MAX:
            raise BadRequest(f"'id' has {len(id)} characters, outside 1 to {ID_CHARACTERS_MAX}")
        scope = scope or HubScope(self._hub, principal, self.loop)
        value = wire.ValueLimits(settings.value_fields_max, settings.value_depth_max)
        asked = wire.Ask(text, list(parameters), value, form, rows_max, bytes_max, scope.dialect)
        query = Query(self, asked, principal, scope, id or secrets.token_hex(8))
        with self._lock:
            try:
                self._check_place(query)
            except Busy:
                if not will_wait:
                    self.metrics.queries.labels(outcome="busy").inc()
                raise
            self._queries[query.id] = query
            self.metrics.running.set(len(self._queries))
        self.loop.call_soon_threadsafe(query.watch)
        return query

    async def begin_in_turn(self, text: str, principal: Principal, **named: Any) -> Query:
        """The same, for clients that do not know of places: wait for one, as long as a query may take."""
        deadline = self.loop.time() + self.settings.time_s
        while (left := deadline - self.loop.time()) > 0:
            freed = self._freed.future(None)
            try:
                return self.begin(text, principal, will_wait=True, **named)
            except Busy:
                await asyncio.wait([freed], timeout=left)
            finally:
                freed.cancel()
        return self.begin(text, principal, **named)

    def _check_place(self, query: Query) -> None:
        if self._closed:
            raise Closed("the hub is stopping")
        if query.id in self._queries:
            raise BadRequest(f"a query with the id {query.id!r} is already running")
        per_user = collections.Counter(each.user for each in self._queries.values())
        for count, key in (
            (len(self._queries), "queries_max"),
            (per_user[query.user], "user_queries_max"),
        ):
            most = getattr(self.settings, key)
            if count >= most:
                raise Busy(f"{count} queries are running, and {most} may run at once; the limit is set by 'sql.{key}'")

    async def run(self, query: Query, function: Callable[[Query], Result]) -> Result:
        """Have `function` do something that blocks with a query. A caller that goes takes its query along."""
        work = self._threads.submit(function, query)
        try:
            return await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            query.cancel()
            if work.cancelled():  # before a thread has begun with it: nobody else would give its place back
                query.give_place_back()
            raise

    def limit_met(self, outcome: str, limit: str, value: int, maximum: int, key: str) -> LimitExceeded:
        """The error of a limit, counted."""
        self.metrics.limits.labels(limit=outcome).inc()
        return LimitExceeded(limit, value, maximum, f"sql.{key}")

    def queries(self) -> list[Query]:
        """Those under way, the oldest first."""
        with self._lock:
            return list(self._queries.values())

    def process(self) -> Process:
        """One for a query alone. Blocks while it is started."""
        with self._lock:
            if self._closed:
                raise Closed("the hub is stopping")
            if self._idle:
                return self._idle.pop()
        started = Process(self.settings.memory_bytes, self.settings.threads)
        with self._lock:
            self._processes += 1
            self.metrics.processes.set(self._processes)
        return started

    def ended(self, query: Query, process: Process | None, *, is_fit: bool) -> None:
        """A query is over; its process is fit for another one, or not."""
        with self._lock:
            self._queries.pop(query.id, None)
            self.metrics.running.set(len(self._queries))
            with contextlib.suppress(RuntimeError):  # the loop may be closed
                self.loop.call_soon_threadsafe(self._freed.notify, None)
            if process is not None and is_fit and not self._closed:
                process.idle_since = time.monotonic()
                self._idle.append(process)
                return
        if process is not None:
            self._let_go(process)

    def _let_go(self, process: Process) -> None:
        process.close()
        with self._lock:
            self._processes -= 1
            self.metrics.processes.set(self._processes)

    async def _let_idle_go(self) -> None:
        while True:
            await asyncio.sleep(min(IDLE_LOOK_S, max(self.settings.idle_s, IDLE_LOOK_S_MIN)))
            oldest = time.monotonic() - self.settings.idle_s
            with self._lock:
                tired = [each for each in self._idle if each.idle_since <= oldest]
                self._idle = [each for each in self._idle if each.idle_since > oldest]
            for process in tired:
                await asyncio.to_thread(self._let_go, process)

    async def close(self) -> None:
        """End everything."""
        self._chore.cancel()
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for query in self.queries():
            query.cancel(Closed("the hub is stopping"))
        for process in idle:
            await asyncio.to_thread(self._let_go, process)


class Query:
    """One query under way."""

    def __init__(self, engine: Engine, asked: wire.Ask, principal: Principal, scope: Scope, id: str) -> None:
        self.id = id
        self.user = principal.name
        self.scanned_records = 0
        self.scanned_bytes = 0
        self.result_rows = 0
        self.result_bytes = 0
        self.is_whole = True
        """Whether the rows were all there are."""
        self._has_ended = False
        """Whether the process has said so, and waits for another query."""
        self._refusal: HeadraceError | None = None
        self._engine = engine
        self._asked = asked
        self._principal = principal
        self._scope = scope
        self._process: Process | None = None
        self._error: HeadraceError | None = None
        self._state = threading.Lock()
        self._is_over = False
        self._began = time.time(), time.perf_counter()
        self._sources: list[Source] = []
        self._scans: dict[int, Iterator[tuple[int, pa.RecordBatch]]] = {}
        self._scan_numbers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._unwatch: Any = None

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self._began[1]

    def info(self) -> QueryInfo:
        return QueryInfo(
            self.id,
            self.user,
            self._asked.text,
            int(self._began[0] * 1e6),
            int(self.elapsed_s * 1e6),
            self.scanned_records,
            self.scanned_bytes,
        )

    def watch(self) -> None:
        """In the loop: end it when its time is over, or its user may no longer read what it reads."""
        with self._state:
            if self._is_over:
                return
            self._timer = self._engine.loop.call_later(self._engine.settings.time_s, self._late)
            self._unwatch = self._principal.watch(self._rights_changed)

    def _late(self) -> None:
        seconds = self._engine.settings.time_s
        late = self._engine.limit_met("time", "seconds of a query", round(self.elapsed_s) + 1, round(seconds), "time_s")
        self.cancel(late)

    def _rights_changed(self) -> None:
        try:
            self._scope.check()
        except HeadraceError as error:
            self.cancel(error)

    def cancel(self, error: HeadraceError | None = None) -> None:
        """End it, in any thread; whoever waits for it gets the error."""
        with self._state:
            if not self._is_over and self._error is None:
                self._error = error or Cancelled("the query was cancelled")
                if self._process is not None:
                    self._process.kill()

    def give_place_back(self) -> None:
        """It is over before it began."""
        self._end(False, Cancelled.code)

    # -- in a thread that may block ------------------------------------------------------------------------------------

    def columns(self) -> tuple[wire.Columns, pa.Schema]:
        """Start it. The columns of its result."""
        with self._ending():
            process = self._engine.process()
            with self._state:
                self._process = process
                if self._error is not None:
                    raise self._error
            process.wire.send(self._asked)
            message, body = self._next_of_result()
            if not isinstance(message, wire.Columns):
                raise wire.Gone(f"it began with {type(message).__name__}")
            schema = pa.ipc.read_schema(pa.py_buffer(body))
        return message, schema

    def rows(self) -> Iterator[tuple[int, memoryview]]:
        """How many, and what they are in the form asked for."""
        assert self._process is not None
        with self._ending(at_the_end=True):
            while True:
                message, body = self._next_of_result()
                if isinstance(message, wire.Finished):
                    self._has_ended = True
                    self.is_whole = message.is_whole
                    for limit in message.limits_met:
                        self._engine.metrics.limits.labels(limit=limit).inc()
                    return
                if not isinstance(message, wire.Rows):
                    raise wire.Gone(f"it sent {type(message).__name__}")
                self._count(message.rows, len(body))
                yield message.rows, body
                self._process.wire.send(wire.More())

    def _count(self, rows: int, size: int) -> None:
        self.result_rows += rows
        self.result_bytes += size
        for outcome, what, value, key in (
            ("rows", "rows of a result", self.result_rows, "rows_max"),
            ("bytes", "bytes of a result", self.result_bytes, "result_bytes_max"),
        ):
            most = getattr(self._engine.settings, key)
            if value > most:
                raise self._engine.limit_met(outcome, what, value, most, key)

    def close(self) -> None:
        """Give the place free, if it is not yet."""
        self.cancel()
        self._end(False, "abandoned")

    @contextlib.contextmanager
    def _ending(self, at_the_end: bool = False) -> Iterator[None]:
        """However it ends, the place is free afterwards."""
        try:
            yield
        except GeneratorExit:
            self._end(False, "abandoned")
            raise
        except (wire.Gone, pa.ArrowException) as gone:
            error = self._error or self._died(gone)
            self._end(False, error.code)
            raise error from None
        except HeadraceError as error:
            self._end(self._has_ended, error.code)
            raise
        except BaseException:
            self._end(False, "error")
            raise
        if at_the_end:
            self._end(self._has_ended, "done")

    def _died(self, gone: Exception) -> HeadraceError:
        logger.warning("the process of a query has ended unexpectedly (%s)", gone)
        return BadSql(
            "the process that ran the query has died: it needed more memory than 'sql.memory_bytes', or is nested too "
            "deeply"
        )

    def _end(self, is_fit: bool, outcome: str) -> None:
        with self._state:
            if self._is_over:
                return
            self._is_over = True
            timer, unwatch = self._timer, self._unwatch
        with contextlib.suppress(RuntimeError):  # the loop may be closed
            if timer is not None:
                self._engine.loop.call_soon_threadsafe(timer.cancel)
            if unwatch is not None:
                self._engine.loop.call_soon_threadsafe(unwatch)
        for scan in list(self._scans.values()):
            with contextlib.suppress(ValueError):  # another thread is in it, and will find its process gone
                scan.close()  # type: ignore[attr-defined]
        metrics = self._engine.metrics
        metrics.queries.labels(outcome=outcome).inc()
        metrics.seconds.observe(self.elapsed_s)
        metrics.scanned_bytes.inc(self.scanned_bytes)
        metrics.result_bytes.inc(self.result_bytes)
        self._engine.ended(self, self._process, is_fit=is_fit and self._error is None)

    def _next_of_result(self) -> tuple[Any, memoryview]:
        """What the process says of the result, having been told what it asked for meanwhile."""
        assert self._process is not None
        peer = self._process.wire
        while True:
            message, body = peer.receive()
            self._scope.check()
            if isinstance(message, wire.Failed):
                raise self._failure(message)
            if isinstance(message, (wire.Columns, wire.Rows, wire.Finished)):
                return message, body
            try:
                self._answer(message, peer)
            except HeadraceError as error:
                self._refusal = error
                peer.send(wire.Failed("hub", str(error)))

    def _answer(self, message: wire.Message, peer: wire.Wire) -> None:
        if isinstance(message, wire.Resolve):
            self._resolve(message, peer)
        elif isinstance(message, wire.Scan):
            self._open(message, peer)
        elif isinstance(message, wire.Next):
            self._more(message, peer)
        else:
            raise wire.Gone(f"it sent {type(message).__name__}")

    def _failure(self, failed: wire.Failed) -> HeadraceError:
        self._has_ended = True
        if self._refusal is not None:
            return self._refusal
        if failed.kind == "memory":
            most = self._engine.settings.memory_bytes
            return self._engine.limit_met("memory", "memory of a query", most + 1, most, "memory_bytes")
        return BadSql(failed.text)

    def _resolve(self, message: wire.Resolve, peer: wire.Wire) -> None:
        relations: list[wire.Relation | None] = []
        schemas = []
        for wanted in message.wanted:
            source = self._scope.find(wanted)
            if source is None:
                relations.append(None)
                continue
            schema = source.schema.serialize().to_pybytes()
            schemas.append(schema)
            places = [tuple(place) for place in source.places]
            relations.append(
                wire.Relation(
                    len(self._sources),
                    source.name,
                    len(schema),
                    places,  # type: ignore[arg-type]
                    source.opened,
                    source.is_stream,
                )
            )
            self._sources.append(source)
        peer.send(wire.Relations(relations), b"".join(schemas))

    def _open(self, message: wire.Scan, peer: wire.Wire) -> None:
        source = self._sources[message.relation]
        self._scan_numbers += 1
        self._scans[self._scan_numbers] = source.scan(message.columns, message.bounds)
        peer.send(wire.Opened(self._scan_numbers))

    def _more(self, message: wire.Next, peer: wire.Wire) -> None:
        found = None if message.close else next(self._scans[message.scan], None)
        if found is None:
            self._scans.pop(message.scan, None)
            peer.send(wire.Part(0))
            return
        place, batch = found
        body = batch.serialize()
        self.scanned_records += batch.num_rows
        self.scanned_bytes += body.size
        peer.send(wire.Part(batch.num_rows, place), body)
