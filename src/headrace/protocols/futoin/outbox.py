"""Events bound to an application's own SQL transaction: FTN18 3.2.1's `addXferEvent`, for SQLite and PostgreSQL.

    with database:                                       # the application's transaction
        database.execute("INSERT INTO orders …")
        outbox.add_event(database, "orders", "ORDER", {"number": 7})

    relay = outbox.Relay(lambda: sqlite3.connect("shop.db"), outbox.HubSink(hub), name="shop")
    await relay.run()

The event is in the stream if and only if the transaction was committed, and once. How:

    1  add_event          a row with batch NULL, in the application's transaction
    2  relay numbers      rows it can see get a batch number, which it keeps in the database; committed
    3  relay appends      each batch, with (producer, sequence) = (outbox:<name>, batch number)
    4  relay deletes      the rows of the batch

A relay that dies after 3 sends the same batch with the same number again, and the hub stores it once. Numbers are given
to rows that are *visible*, not in the order of their ids, so a transaction that took a lower id and committed later is
in a later batch and is not lost. Events of one transaction keep their order.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from headrace.errors import BadRequest, HeadraceError, UnknownStream
from headrace.log.batch import Batch
from headrace.protocols.futoin.interface import ENVELOPE_BYTES, EVENT_TYPE_PATTERN, MESSAGE_BYTES_DEFAULT

if TYPE_CHECKING:
    from headrace.client import AsyncClient
    from headrace.hub import Hub

logger = logging.getLogger("headrace.futoin.outbox")

TABLE = "headrace_outbox"
DATA_BYTES_MAX = MESSAGE_BYTES_DEFAULT - 2 * ENVELOPE_BYTES
"""The same limit as addEvent's: what is larger could not be shown to every consumer."""
STREAM_NAME_BYTES_MAX = 512
IDLE_MIN_S = 0.02
IDLE_MAX_S = 1.0
RETRY_MAX_S = 30.0

_is_event_type = re.compile(EVENT_TYPE_PATTERN).search
_is_stream_name = re.compile(r"^[^\x00-\x1f\ud800-\udfff]+\Z").search
_is_table_name = re.compile(r"^[A-Za-z_][A-Za-z0-9_.]{0,62}\Z").search


class OutboxError(HeadraceError):
    """The database and the hub contradict each other."""

    code = "outbox"


class Dialect(NamedTuple):
    """Where the two databases differ."""

    mark: str
    row_id: str
    lock: str
    begin: str | None


SQLITE = Dialect("?", "INTEGER PRIMARY KEY AUTOINCREMENT", "", "BEGIN IMMEDIATE")
POSTGRESQL = Dialect("%s", "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY", " FOR UPDATE", None)


def dialect_of(connection: Any) -> Dialect:
    """SQLite for the module sqlite3, otherwise PostgreSQL (psycopg, psycopg2)."""
    modules = {kind.__module__.partition(".")[0] for kind in type(connection).__mro__}
    return SQLITE if "sqlite3" in modules else POSTGRESQL


class Executes(Protocol):
    """A DB-API connection or cursor that can run a statement: both of sqlite3 and of psycopg can."""

    def execute(self, statement: Any, parameters: Any = ..., /) -> Any: ...


def create_tables(connection: Any, table: str = TABLE) -> None:
    """Make the outbox in the application's database, if it is not there."""
    _check_table(table)
    dialect = dialect_of(connection)
    cursor = connection.cursor()
    cursor.execute(
        f"CREATE TABLE IF NOT EXISTS {table} (id {dialect.row_id}, stream TEXT NOT NULL, type VARCHAR(16) NOT NULL, "
        f"data TEXT NOT NULL, time_us BIGINT NOT NULL, batch BIGINT)"
    )
    cursor.execute(f"CREATE INDEX IF NOT EXISTS {table.replace('.', '_')}_batch ON {table} (batch)")
    cursor.execute(
        f"CREATE TABLE IF NOT EXISTS {table}_relay (name VARCHAR(100) PRIMARY KEY, last_batch BIGINT NOT NULL)"
    )
    connection.commit()


def add_event(database: Executes, stream: str, type: str, data: Any, *, table: str = TABLE) -> None:
    """Write an event within the transaction that `database` (a connection or a cursor) is in."""
    _check_table(table)
    _check_stream(stream)
    if _is_event_type(type) is None:
        raise BadRequest(f"{type!r} is not an event type: use 1 to 16 of A-Z and _")
    text = msgspec.json.encode(data)
    if len(text) > DATA_BYTES_MAX:
        raise BadRequest(f"event data has {len(text)} bytes as JSON; at most {DATA_BYTES_MAX} are taken")
    marks = ", ".join([dialect_of(database).mark] * 4)
    values = (stream, type, text.decode(), time.time_ns() // 1000)
    database.execute(f"INSERT INTO {table} (stream, type, data, time_us) VALUES ({marks})", values)


def _check_table(table: str) -> None:
    if _is_table_name(table) is None:
        raise BadRequest(f"{table!r} is not a valid name for a table")


def _check_stream(stream: str) -> None:
    """The hub's own rule: what it would refuse later would hold up everything behind it."""
    if _is_stream_name(stream) is None or len(stream.encode("utf-8", "surrogatepass")) > STREAM_NAME_BYTES_MAX:
        raise BadRequest(f"{stream[:100]!r} is not a valid name for a stream")


class Events(NamedTuple):
    """The events of one batch."""

    payloads: list[bytes]
    types: list[str]
    times_us: list[int]


class Sink(Protocol):
    """Where a relay appends: a hub in this process, or one far away."""

    async def append(self, stream: str, events: Events, producer: str, sequence: int) -> None:
        """Returns when the batch is durable, now or since an earlier time."""

    async def last_sequence(self, stream: str, producer: str) -> int | None:
        """The last sequence of `producer` in `stream`; None when there is none."""


class HubSink:
    """A hub in this process. Streams are created as they are named."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def append(self, stream: str, events: Events, producer: str, sequence: int) -> None:
        await self._hub.create_stream(stream, exist_ok=True)
        batch = Batch.of(events.payloads, types=events.types, event_times=events.times_us)
        await self._hub.append(stream, batch, producer=producer, sequence=sequence)

    async def last_sequence(self, stream: str, producer: str) -> int | None:
        try:
            return self._hub.producer(stream, producer)
        except UnknownStream:
            return None


class ClientSink:
    """A hub anywhere, through the SDK: `ClientSink(headrace.connect_async("hub:7070"))`."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def append(self, stream: str, events: Events, producer: str, sequence: int) -> None:
        await self._client.create(stream, exist_ok=True)
        payloads, types, times_us = events
        await self._client.append(
            stream, payloads, type=types, event_time=times_us, producer=producer, sequence=sequence
        )

    async def last_sequence(self, stream: str, producer: str) -> int | None:
        try:
            return await self._client.producer_sequence(stream, producer)
        except UnknownStream:
            return None


class Row(NamedTuple):
    """A row with a number, as the relay reads it."""

    batch: int
    id: int
    stream: str
    type: str
    data: str
    time_us: int


class Store:
    """The relay's side of the database. Blocking: it lives in the relay's own thread."""

    def __init__(self, connection: Any, name: str, table: str, rows_max: int) -> None:
        _check_table(table)
        self._connection = connection
        self._dialect = dialect_of(connection)
        self._name = name
        self._table = table
        self._rows_max = rows_max

    def _run(self, statement: str, *parameters: Any) -> Any:
        cursor = self._connection.cursor()
        cursor.execute(statement.replace("?", self._dialect.mark), parameters)
        return cursor

    def number(self, checked: set[str]) -> set[str]:
        """Give batch numbers to rows of checked streams that have none; returns the other streams. One relay at a time:
        the row with the last number is locked."""
        try:
            if self._dialect.begin is not None and not self._connection.in_transaction:
                self._run(self._dialect.begin)
            stored, last = self._locked_last_batch()
            rows = self._run(
                f"SELECT id, stream FROM {self._table} WHERE batch IS NULL ORDER BY id LIMIT {self._rows_max}"
            ).fetchall()
            by_stream: dict[str, list[int]] = {}
            for row_id, stream in rows:
                by_stream.setdefault(stream, []).append(row_id)
            for ids in (ids for stream, ids in by_stream.items() if stream in checked):
                last += 1
                marks = ", ".join("?" * len(ids))
                self._run(f"UPDATE {self._table} SET batch = ? WHERE id IN ({marks})", last, *ids)
            if last > stored:
                self._run(f"UPDATE {self._table}_relay SET last_batch = ? WHERE name = ?", last, self._name)
            self._connection.commit()
        except BaseException:
            self._connection.rollback()
            raise
        return by_stream.keys() - checked

    def last_batch(self) -> int:
        """The last number that was given, by whomever: the hub has none above it."""
        last = self._run(f"SELECT last_batch FROM {self._table}_relay WHERE name = ?", self._name).fetchone()
        waiting = self._run(f"SELECT MAX(batch) FROM {self._table}").fetchone()[0]
        self._connection.commit()
        return max(last[0] if last else 0, waiting or 0)

    def _locked_last_batch(self) -> tuple[int, int]:
        """As the relay wrote it down, and as it is."""
        self._run(
            f"INSERT INTO {self._table}_relay (name, last_batch) VALUES (?, 0) ON CONFLICT (name) DO NOTHING",
            self._name,
        )
        statement = f"SELECT last_batch FROM {self._table}_relay WHERE name = ?{self._dialect.lock}"
        last: int = self._run(statement, self._name).fetchone()[0]
        # Rows that a relay of another name has numbered are sent by this one: their numbers are taken.
        waiting: int | None = self._run(f"SELECT MAX(batch) FROM {self._table}").fetchone()[0]
        return last, max(last, waiting or 0)

    def numbered(self) -> list[list[Row]]:
        """The batches that wait, lowest number first."""
        rows = self._rows(f"batch IS NOT NULL ORDER BY batch, id LIMIT {2 * self._rows_max}")
        batches = [list(batch) for _, batch in itertools.groupby(rows, key=lambda row: row.batch)]
        if len(rows) == 2 * self._rows_max and len(batches) > 1:
            batches.pop()  # it may go on beyond what was read
        elif len(rows) == 2 * self._rows_max:
            batches = [self._rows("batch = ? ORDER BY id", rows[0].batch)]  # more rows were taken at a time then
        return batches

    def _rows(self, condition: str, *parameters: Any) -> list[Row]:
        rows = self._run(
            f"SELECT {', '.join(Row._fields)} FROM {self._table} WHERE {condition}", *parameters
        ).fetchall()
        self._connection.commit()
        return [Row(*values) for values in rows]

    def forget(self, batch: int) -> None:
        """The hub has this batch."""
        self._run(f"DELETE FROM {self._table} WHERE batch = ?", batch)
        self._connection.commit()

    def close(self) -> None:
        self._connection.close()


class Relay:
    """Moves rows from one database's outbox to a hub, each exactly once. Run one for each `name`."""

    def __init__(
        self, connect: Callable[[], Any], sink: Sink, *, name: str, table: str = TABLE, batch_rows_max: int = 1000
    ) -> None:
        """`connect` opens a DB-API connection; it is called in the relay's own thread."""
        self._connect: Callable[[], Store] = lambda: Store(connect(), name, table, batch_rows_max)
        self._sink = sink
        self._name = name
        self._producer = f"outbox:{name}"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"outbox-{name}")
        self._store: Store | None = None
        self._opened_at = 0
        """The last number when the database was opened."""
        self._checked: set[str] = set()
        """Streams in which the hub knows no later number than that."""
        self.moved = 0
        """Events moved since the start."""

    async def run(self) -> None:
        """Relay until cancelled. What fails is tried again, with a growing pause."""
        pause_s = IDLE_MIN_S
        try:
            while True:
                try:
                    moved, longest_s = await self.run_once(), IDLE_MAX_S
                except OutboxError:
                    raise
                except Exception as error:
                    logger.warning("outbox %s: %s; tried again in %.1f s", self._name, error, pause_s)
                    await self._drop_store()
                    moved, longest_s = 0, RETRY_MAX_S
                pause_s = IDLE_MIN_S if moved else min(pause_s * 2, longest_s)
                if not moved:
                    await asyncio.sleep(pause_s)
        finally:
            await self.close()

    async def run_once(self) -> int:
        """Move what is there now; how many events that was."""
        store = await self._in_thread(self._open)
        while unchecked := await self._in_thread(store.number, self._checked):
            for stream in sorted(unchecked):
                await self._check(stream)
        batches: Sequence[list[Row]] = await self._in_thread(store.numbered)
        moved = 0
        for rows in batches:
            await self._append(rows)
            await self._in_thread(store.forget, rows[0].batch)
            moved += len(rows)
        self.moved += moved
        return moved

    async def _append(self, rows: list[Row]) -> None:
        stream, number = rows[0].stream, rows[0].batch
        if stream not in self._checked:
            await self._check(stream)
        events = Events([row.data.encode() for row in rows], [row.type for row in rows], [row.time_us for row in rows])
        await self._sink.append(stream, events, self._producer, number)

    async def _check(self, stream: str) -> None:
        """A database put back to an older state would use numbers again, and the hub would take new events for ones
        that it has. So before the first number is given: the hub knows none that the database does not."""
        last = await self._sink.last_sequence(stream, self._producer)
        if last is not None and last > self._opened_at:
            raise OutboxError(
                f"outbox {self._name!r}: the hub has batch {last} of stream {stream!r} and the database is at "
                f"{self._opened_at}; was it restored from a backup? Give the relay a new name to continue"
            )
        self._checked.add(stream)

    async def close(self) -> None:
        """Close the database and the thread."""
        await self._drop_store()
        self._thread.shutdown(wait=False)

    async def _drop_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with contextlib.suppress(Exception):
                await self._in_thread(store.close)

    def _open(self) -> Store:
        if self._store is None:
            store = self._connect()
            self._opened_at = store.last_batch()
            self._checked.clear()
            self._store = store
        return self._store

    async def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
