"""The hub: the verbs that every protocol is translated into. It owns the log.

Everything here belongs to one event loop. The disk never blocks it: appends are handed to the log's writer thread and
come back as futures, and reads that may touch a segment run in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.config import Config
from headrace.errors import HeadraceError, LogFailed, UnknownStream
from headrace.hub.base import HubBase
from headrace.hub.checkpoints import CheckpointWriter
from headrace.hub.gauges import refresh_gauges, report_damage
from headrace.hub.hooks import Read
from headrace.hub.set_aside import check_place
from headrace.hub.waiters import RecordWaiters, Waiters
from headrace.log import ops
from headrace.log.backend import open_log
from headrace.log.backup import BackupInfo
from headrace.log.batch import Batch
from headrace.log.clock import Clock, SystemClock
from headrace.log.disk import Disk, OsDisk
from headrace.log.pending import Pending
from headrace.log.port import LogPort, Touched
from headrace.log.state import TABLE
from headrace.log.struct_types import learn_struct_types
from headrace.security import Principal
from headrace.security.reserved import own_tables
from headrace.telemetry.tracing import OFF, Tracing

logger = logging.getLogger("headrace.hub")

PROCESSED = "processed:"
READ_BYTES = 1024 * 1024


class Hub(HubBase):
    """One hub, open. Make it with `Hub.open`."""

    def __init__(self, log: LogPort, config: Config, data: str | Path | None, clock: Clock) -> None:
        super().__init__(config, data, now_us=clock.now_us)
        self.clock = clock
        self._log = log
        self.security.users_file.on_disk_failure = log.fail
        self.on_stop = log.hasten
        self._loop = asyncio.get_running_loop()
        self.changes: dict[type, int] = {ops.CreateStream: 0, ops.GrowStream: 0}  # since the start
        self._new_streams = Waiters()
        self.new_records = RecordWaiters()
        self._cursor_moves = Waiters()
        self._room = Waiters()
        self._failed: asyncio.Future[LogFailed] = self._loop.create_future()
        self._closed = asyncio.Event()
        self._watch_log()

    @classmethod
    async def open(
        cls,
        data: str | Path,
        config: Config | None = None,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        tracing: Tracing = OFF,
        log: LogPort | None = None,
    ) -> Hub:
        """Open a data directory and recover it, or take a log that is open. `disk` and `clock` are for tests."""
        config = config or Config()
        clock = clock or SystemClock()
        started = time.monotonic()
        learn_struct_types()
        log = log if log is not None else await cls._opened(data, config, disk, clock)
        hub = cls(log, config, data, clock)
        hub.tracing = tracing
        tracing.subscribe(hub.hooks)
        hub.metrics.log.recovery_seconds.set(time.monotonic() - started)
        report_damage(log.recovered, hub.metrics)
        log.start(hub._committed, hub._sealed)
        return hub

    @staticmethod
    async def _opened(data: str | Path, config: Config, disk: Disk | None, clock: Clock) -> LogPort:
        disk = disk if disk is not None else await asyncio.to_thread(OsDisk, data)
        try:
            return await asyncio.to_thread(open_log, disk, clock, config.log)
        except BaseException:
            disk.close()
            raise

    def used_by(self, protocol: str) -> Hub:
        """The same hub in the hands of a protocol: hooks are told whose request it is. All but the name is shared,
        so nothing on a hub is assigned after it has opened."""
        same = copy.copy(self)
        same.protocol = protocol
        return same

    async def close(self) -> None:
        """Everything submitted before is durable afterwards; everything waiting for records is told."""
        if self._closed.is_set():
            return
        self._closed.set()
        await asyncio.to_thread(self._log.close)
        await asyncio.sleep(0)  # let the outcomes of the last commits arrive
        self._give_up(LogFailed("the hub is closed"))

    async def failed(self) -> LogFailed:
        """Returns when the log has failed: nothing can be stored any more, and a restart is needed."""
        return await asyncio.shield(self._failed)

    @property
    def has_failed(self) -> bool:
        """Whether the log has failed; still to be asked when the hub is closed."""
        return self._failed.done()

    # -- streams ---------------------------------------------------------------------------------------------------

    async def create_stream(
        self, name: str, partitions: int = 1, options: ops.StreamOptions | None = None, exist_ok: bool = True
    ) -> ops.StreamInfo:
        """Create a stream; an existing one is left as it is, or refused without `exist_ok`."""
        if not (exist_ok and self._log.has_stream(name)):
            await self.transact([ops.CreateStream(name, partitions, options or ops.StreamOptions(), exist_ok=exist_ok)])
        return self.stream(name)

    async def grow_stream(self, name: str, partitions: int) -> ops.StreamInfo:
        """Give a stream at least so many partitions."""
        if self.stream(name).partitions < partitions:
            await self.transact([ops.GrowStream(name, partitions)])
        return self.stream(name)

    async def set_options(self, name: str, options: ops.StreamOptions) -> ops.StreamInfo:
        await self.transact([ops.SetOptions(name, options)])
        return self.stream(name)

    async def delete_stream(self, name: str) -> None:
        """Remove a stream with its records, cursors and checkpoints. Its indexes are never used again."""
        await self.transact([ops.DeleteStream(name)])

    async def trim(self, name: str, before: int, partition: int = 0) -> int:
        """Forget the records below an index; returns the first that is kept."""
        result = await self.transact([ops.Trim(name, before, partition)])
        return int(result[0])

    def stream(self, name: str) -> ops.StreamInfo:
        return self._log.stream(name)

    def has_stream(self, name: str) -> bool:
        """Whether there is a stream or table of that name."""
        return self._log.has_stream(name)

    def streams(self, pattern: str = "*", kind: str | None = "stream") -> list[ops.StreamInfo]:
        """Streams whose name fits a shell pattern; tables with `kind="table"`, both with None."""
        return [info for info in self._log.streams(pattern) if kind in (None, info.kind)]

    def streams_after(self, id: int, pattern: str = "*", kind: str | None = "stream") -> Iterator[ops.StreamInfo]:
        """The same of those with a higher id, one by one in the order of their ids."""
        return (info for info in self._log.streams_after(id, pattern) if kind in (None, info.kind))

    async def wait_stream(self, name: str, partitions: int = 1) -> ops.StreamInfo:
        """Returns when there is a stream of that name, no table, with at least so many partitions."""
        while self._partitions(name) < partitions:
            self.check_open()
            await self._new_streams.wait(name, partitions - 1)
        return self.stream(name)

    def _partitions(self, name: str) -> int:
        """Of a stream; none when there is no such stream, or it is a table."""
        info = self._log.stream(name) if self._log.has_stream(name) else None
        return 0 if info is None or info.kind == TABLE else info.partitions

    def bounds(self, name: str, partition: int = 0) -> ops.Bounds:
        return self._log.bounds(name, partition)

    # -- append ----------------------------------------------------------------------------------------------------

    def append(
        self,
        name: str,
        batch: Batch,
        *,
        partition: int = 0,
        producer: str | None = None,
        sequence: int | None = None,
        line: ops.Line | None = None,
        after: int | None = None,
    ) -> asyncio.Future[ops.Appended]:
        """Add records. The future is done when they are on disk. Appends of one caller keep their order. Whoever does
        not wait for one before the next gives them a `line`: none is stored behind one that was refused. `after` is the
        producer's last sequence as the caller knows it: should it be another, the append is `Fenced`."""
        return self._submit((ops.Append(name, batch, partition, producer, sequence, line, after),), True)

    def transact(self, operations: Sequence[ops.Op]) -> asyncio.Future[list[Any]]:
        """Do several things, or none of them, in one durable step. Results come in the order of the operations."""
        return self._submit(operations, False)

    def _submit_one(self, operation: ops.Op) -> asyncio.Future[Any]:
        return self._submit((operation,), True)

    def _submit(self, operations: Sequence[ops.Op], is_single: bool) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        token = (future, is_single, time.perf_counter())
        try:
            self._log.submit(operations, token)
        except HeadraceError as error:
            self.metrics.log.refused.labels(code=error.code).inc()
            future.set_exception(error.to_keep())
        for hook in self.hooks.submit:
            hook(self.protocol, operations, token)
        return future

    def _committed(self, outcomes: list[Pending], touched: Touched) -> None:
        """Called by the writer thread: one hop into the loop for a whole commit."""
        self.new_records.ring(touched)
        with contextlib.suppress(RuntimeError):  # the loop may have been closed under a hub that was not
            self._loop.call_soon_threadsafe(self._resolve, outcomes, touched)

    def _sealed(self, segment: ops.NewSegment) -> None:
        for hook in self.hooks.seal:
            hook(segment)

    def _resolve(self, outcomes: list[Pending], touched: Touched) -> None:
        for pending in outcomes:
            if pending.token is not None:  # not the log's own
                future, is_single, _ = pending.token
                if pending.error is not None and not future.done():
                    future.set_exception(pending.error)
                elif not future.done():  # else nobody waits any more
                    future.set_result(pending.result[0] if is_single else pending.result)
            if pending.error is None:
                for position, operation in enumerate(pending.operations):
                    if not isinstance(operation, ops.Append):
                        self._changed(operation, pending.result[position])
        for hook in self.hooks.commit:
            hook(outcomes)
        for name, number in touched:
            if self._log.has_stream(name):
                self.new_records.notify((name, number), self._log.bounds(name, number).next)
        if not self.congested:
            self._room.notify(None, 1)
        if self._log.failed is not None:
            self._give_up(self._log.failed)

    def _changed(self, operation: ops.Op, result: Any) -> None:
        """Wake those who wait for it."""
        if isinstance(operation, ops.SaveCursor):
            self._cursor_moves.notify((operation.cursor, operation.stream, operation.partition), result)
        elif isinstance(operation, ops.CreateStream | ops.GrowStream):
            self.changes[type(operation)] += 1
            self._new_streams.notify(operation.name, self._partitions(operation.name))
        elif isinstance(operation, ops.SetOptions):  # who waits for a cursor so as to acknowledge may not have to
            self._cursor_moves.wake(lambda key: bool(key[1] == operation.name))
        elif isinstance(operation, ops.DeleteStream):  # nobody waits for a stream that is gone
            gone = UnknownStream(operation.name)
            self.new_records.fail(gone, lambda key: bool(key[0] == operation.name))
            self._cursor_moves.fail(gone, lambda key: bool(key[1] == operation.name))

    def _give_up(self, error: LogFailed) -> None:
        if not self._failed.done() and self._log.failed is not None:
            self._failed.set_result(error)
        for waiters in (self._new_streams, self.new_records, self._cursor_moves, self._room):
            waiters.fail(error)

    @property
    def congested(self) -> bool:
        """More is waiting for the disk than should: stop reading from producers until `drained`."""
        return self._log.is_congested

    async def drained(self) -> None:
        """Returns when the hub is not congested."""
        while self.congested:
            if self._log.failed is not None:
                raise self._log.failed
            await self._room.wait(None, 0)

    # -- acknowledgement and producers -------------------------------------------------------------------------------

    async def acknowledged(self, name: str, next_index: int, partition: int = 0) -> None:
        """Returns when durable records below `next_index` may be acknowledged: now, or when the stream's cursor has
        processed them."""
        while (ack := self.stream(name).options.ack).startswith(PROCESSED):
            cursor = ack.removeprefix(PROCESSED)
            stored = self.cursor(cursor, name, partition)
            if stored is not None and stored >= next_index:
                return
            await self._cursor_moves.wait((cursor, name, partition), next_index - 1)

    def producer(self, name: str, producer: str, partition: int = 0) -> int | None:
        """The last durable sequence of a producer."""
        return self._log.producer(name, producer, partition)

    def producers(self, name: str, partition: int = 0) -> dict[str, int]:
        """All producers of a stream partition, with their last durable sequence."""
        return self._log.producers(name, partition)

    def stored_bytes(self, name: str) -> int:
        """What the records of a stream take: sealed files, and memory for those that are not sealed yet."""
        return self._log.stored_bytes(name)

    # -- read ------------------------------------------------------------------------------------------------------

    async def read(
        self, name: str, start: int, *, partition: int = 0, limit: int = 1000, max_bytes: int = READ_BYTES
    ) -> pa.RecordBatch:
        """Durable records from `start`, or from the first that is kept: at most `limit` and about `max_bytes`, at
        least one if there is any. Raises `Damaged` when the next record to serve is damaged."""
        with Read(self.hooks, self.protocol, "read", name, partition, start) as reading:
            wanted = (name, start, partition, limit, max_bytes)
            quick = self._log.read_now(*wanted)
            records = quick if quick is not None else await asyncio.to_thread(self._log.read, *wanted)
            reading.records = records.num_rows
            return records

    async def wait(self, name: str, index: int, partition: int = 0) -> None:
        """Returns when a record of this index, or a later one, is durable."""
        self.check_open()
        if self._log.bounds(name, partition).next <= index:
            await self.new_records.wait((name, partition), index)

    def check_open(self) -> None:
        """Nothing new will come to a hub that is closed or has failed: nobody may begin to wait for it."""
        if self._closed.is_set() or self._log.failed is not None:
            raise self._log.failed or LogFailed("the hub is closed")

    async def follow(
        self, name: str, start: int, *, partition: int = 0, limit: int = 1000, max_bytes: int = READ_BYTES
    ) -> AsyncIterator[pa.RecordBatch]:
        """Records from `start` on, as they become durable, without end."""
        at = start
        while True:
            await self.wait(name, at, partition)
            records = await self.read(name, at, partition=partition, limit=limit, max_bytes=max_bytes)
            if records.num_rows:
                at = records.column(0)[-1].as_py() + 1
                yield records

    def scan(
        self, name: str, start: int, end: int, *, partition: int = 0, columns: list[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Exactly the records start ≤ index < end in large batches. Blocks on the disk: call it in a thread."""
        with Read(self.hooks, self.protocol, "scan", name, partition, start) as reading:
            for records in self._log.scan(name, start, end, partition):
                reading.records += records.num_rows
                yield records if columns is None else records.select(columns)

    async def index_at_time(self, name: str, time_us: int, partition: int = 0) -> int:
        """The first index whose time is not before `time_us`."""
        return await asyncio.to_thread(self._log.index_at_time, name, time_us, partition)

    def segments(self, name: str, partition: int = 0) -> list[ops.SegmentInfo]:
        """Sealed Arrow files of a partition, for readers on the same machine."""
        return self._log.segments(name, partition)

    # -- cursors ---------------------------------------------------------------------------------------------------

    async def save_cursor(self, cursor: str, stream: str, index: int, partition: int = 0, rewind: bool = False) -> int:
        """Set a consumer's position, the index it reads next. Returns the position that is stored now: without
        `rewind` it never goes back."""
        return int(await self._submit_one(ops.SaveCursor(cursor, stream, index, partition, rewind)))

    def cursor(self, cursor: str, stream: str, partition: int = 0) -> int | None:
        return self._log.cursor(cursor, stream, partition)

    def cursors(self, pattern: str = "*", stream: str | None = None) -> list[ops.CursorInfo]:
        """Cursors whose name fits a shell pattern, of one stream or all."""
        return self._log.cursors(pattern, stream)

    def cursors_after(self, id: int, pattern: str = "*", stream: str | None = None) -> Iterator[ops.CursorInfo]:
        """The same of streams with this id or a higher one, one by one in the order of stream id, name, partition."""
        return self._log.cursors_after(id, pattern, stream)

    async def delete_cursor(self, cursor: str, stream: str, partition: int = 0) -> bool:
        """Forget a consumer; False when there was none."""
        return bool(await self._submit_one(ops.DeleteCursor(cursor, stream, partition)))

    async def wait_cursor(self, cursor: str, stream: str, index: int, partition: int = 0) -> None:
        """Returns when a cursor stands at `index` or behind it."""
        while (stored := self.cursor(cursor, stream, partition)) is None or stored < index:
            await self._cursor_moves.wait((cursor, stream, partition), index - 1)

    # -- tables ----------------------------------------------------------------------------------------------------

    async def create_table(
        self, name: str, options: ops.StreamOptions | None = None, *, is_own: bool = False
    ) -> ops.StreamInfo:
        """Create a table; an existing one is left as it is. The hub's own are made however many there are."""
        if not self._log.has_stream(name):
            is_own = is_own or name in own_tables()
            await self.transact([ops.CreateStream(name, 1, options or ops.StreamOptions(), TABLE, is_own=is_own)])
        check_place(self._log, name)
        self._log.table_size(name)  # refuses a stream of the same name
        return self.stream(name)

    async def delete_table(self, name: str) -> None:
        self._log.table_size(name)  # refuses a stream of the same name
        await self.delete_stream(name)

    def get(self, table: str, key: bytes) -> bytes | None:
        """Raises `Damaged` when a damaged record may hold the newest value."""
        return self._log.table_get(table, key)

    def items(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values as they are now, in the order in which the keys first came. Raises `Damaged` when some are
        hidden by damage."""
        check_place(self._log, table)
        return self._log.table_items(table)

    def keys(self, table: str) -> list[bytes]:
        """The keys as they are now, in the same order. Raises as `items` does."""
        return self._log.table_keys(table)

    def page(self, table: str, offset: int, limit: int) -> list[tuple[bytes, bytes]]:
        """So many items from number `offset` on, in the same order. Raises as `items` does."""
        return self._log.table_page(table, offset, limit)

    def table_size(self, table: str) -> int:
        return self._log.table_size(table)

    def put(
        self, table: str, key: bytes, value: bytes, expect: ops.Expect | bytes = ops.ANY
    ) -> asyncio.Future[ops.PutResult]:
        """Set a key, if what is there is as expected. The future is done when it is on disk."""
        return self._submit_one(ops.Put(table, key, value, expect))

    def put_many(self, table: str, keys: Sequence[bytes], values: Sequence[bytes]) -> asyncio.Future[int]:
        """Set many keys in one step, whatever is there; how many. The future is done when they are on disk."""
        return self._submit_one(ops.PutMany(table, keys, values))

    def delete(self, table: str, key: bytes, expect: ops.Expect | bytes = ops.ANY) -> asyncio.Future[ops.PutResult]:
        return self._submit_one(ops.Delete(table, key, expect))

    def delete_many(self, table: str, keys: Sequence[bytes]) -> asyncio.Future[int]:
        """Remove many keys in one step; how many of them were there."""
        return self._submit_one(ops.DeleteMany(table, keys))

    def clear_table(self, table: str) -> asyncio.Future[int]:
        """Remove all keys in one step, however many there are; how many."""
        return self._submit_one(ops.ClearTable(table))

    def accept_damage(self, table: str) -> asyncio.Future[ops.LostChanges | None]:
        """Serve a damaged table as what can be read of it; what is given up. None when there is no damage."""
        return self._submit_one(ops.AcceptDamage(table))

    # -- checkpoints -----------------------------------------------------------------------------------------------

    async def begin_checkpoint(self, stream: str) -> CheckpointWriter:
        """A blob to write in chunks; it counts from `commit` on."""
        blob = await asyncio.to_thread(self._log.begin_checkpoint, stream)
        return CheckpointWriter(self, stream, blob)

    def checkpoints(self, stream: str | None = None) -> list[ops.CheckpointInfo]:
        """Oldest first."""
        return [info for info in self._log.checkpoints() if stream in (None, info.stream)]

    async def read_checkpoint(self, id: int) -> AsyncIterator[bytes]:
        """The chunks of a blob, checked."""
        chunks = self._log.read_checkpoint(id)
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            yield chunk

    async def delete_checkpoint(self, id: int) -> None:
        await self.transact([ops.DropCheckpoint(id)])

    # -- backup ------------------------------------------------------------------------------------------------------

    async def back_up(self, target: str | os.PathLike[str]) -> BackupInfo:
        """Copy the data directory to a new one while work goes on. All that was acknowledged before is in the copy,
        which has been checked when this returns."""
        return await asyncio.to_thread(self._log.back_up, target)

    # -- looking after itself ----------------------------------------------------------------------------------------

    def _watch_log(self) -> None:
        """Health, and the gauges that are read when they are asked for."""
        for part in ("log", "disk", "maintenance", "damage"):
            redacted = self._damage_seen_by if part == "damage" else None
            self.health.check(part, lambda part=part: self._log.trouble().get(part), redacted)  # type: ignore[misc]
        self.metrics.before_scrape(lambda: refresh_gauges(self._log, self.metrics))

    def _damage_seen_by(self, principal: Principal) -> str | None:
        """The damage in streams that `principal` may read."""
        damage = [one for one in self._log.damage() if one.stream and principal.may("read", one.stream)]
        return f"{damage[0].text} ({len(damage)} findings in what you may read)" if damage else None

    def gauges(self) -> dict[str, float]:
        """Figures of the log: bytes waiting, in memory, in segments and free; streams, tables, checkpoints."""
        return self._log.gauges()
