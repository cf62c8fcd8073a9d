"""The embedded log behind the port: `Log`, its threads, and answers in the port's words."""

from __future__ import annotations

import fnmatch
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import BadRequest, Busy, LogFailed
from headrace.log import backup, ops
from headrace.log.checkpoint import BlobWriter
from headrace.log.clock import Clock
from headrace.log.commit import Limits, Pending
from headrace.log.disk import Disk
from headrace.log.log import Log
from headrace.log.port import LogPort, Touched
from headrace.log.settings import LogSettings
from headrace.log.table import Table
from headrace.log.threads import LogThreads


class EmbeddedLog(LogPort):
    """A data directory, open and running."""

    def __init__(self, disk: Disk, clock: Clock, settings: LogSettings, limits: Limits) -> None:
        """Recovers the directory: blocks."""
        backup.remove_leftovers(disk)
        self.log = Log(disk, clock, settings, limits)
        self._threads = LogThreads(self.log)
        self._backing_up = threading.Lock()

    # -- life ------------------------------------------------------------------------------------------------------

    @property
    def failed(self) -> LogFailed | None:
        return self.log.failed

    @property
    def queue_bytes(self) -> int:
        return self.log.queue_bytes

    def start(
        self,
        on_commit: Callable[[list[Pending], Touched], None],
        on_sealed: Callable[[ops.NewSegment], None] | None = None,
    ) -> None:
        self.log.on_commit = on_commit
        self.log.on_sealed = on_sealed
        self._threads.start()

    def close(self) -> None:
        self._threads.stop()

    def trouble(self) -> dict[str, str]:
        log = self.log
        found = {}
        if log.failed is not None:
            found["log"] = str(log.failed)
        if log.full:
            found["disk"] = "the disk is full: appends are refused until there is room"
        if log.maintenance.error is not None:
            found["maintenance"] = f"background work fails and is tried again: {log.maintenance.error}"
        if log.report.damage:
            found["damage"] = f"{log.report.damage[0].text} ({len(log.report.damage)} findings; run headrace doctor)"
        return found

    def gauges(self) -> dict[str, float]:
        state = self.log.state
        tables = [stream.table for stream in list(state.streams.values()) if stream.table is not None]
        sealed = sum(partition.sealed_bytes for partition in state.partitions())
        return {
            "queue_bytes": self.log.queue_bytes,
            "tail_bytes": state.tail_bytes,
            "segment_bytes": sealed,
            "free_bytes": self.log.disk.free_bytes(),
            "streams": len(state.streams) - len(tables),
            "tables": len(tables),
            "table_bytes": sum(table.bytes for table in tables),
            "checkpoints": len(state.checkpoints),
            "sealed_segments": self.log.maintenance.sealed_segments,
        }

    # -- change ----------------------------------------------------------------------------------------------------

    def submit(self, operations: Sequence[ops.Op], token: Any = None) -> Pending:
        return self.log.submit(operations, token)

    def begin_checkpoint(self, stream: str) -> BlobWriter:
        return self.log.begin_checkpoint(stream)

    def back_up(self, target: str | os.PathLike[str]) -> backup.BackupInfo:
        if not self._backing_up.acquire(blocking=False):
            raise Busy("a backup is being made already; wait for it")
        try:
            return backup.back_up(self.log, target)
        finally:
            self._backing_up.release()

    # -- look ------------------------------------------------------------------------------------------------------

    def has_stream(self, name: str) -> bool:
        return name in self.log.state.streams

    def stream(self, name: str) -> ops.StreamInfo:
        return self.log.stream(name).info

    def streams(self, pattern: str = "*") -> list[ops.StreamInfo]:
        return [stream.info for stream in self.log.state.matching(pattern)]

    def bounds(self, name: str, partition: int = 0) -> ops.Bounds:
        return self.log.bounds(name, partition)

    def stored_bytes(self, name: str) -> int:
        return sum(one.sealed_bytes + one.tail.bytes for one in self.log.stream(name).partitions)

    def producer(self, name: str, producer: str, partition: int = 0) -> int | None:
        state = self.log.partition(name, partition).producers.get(producer)
        return None if state is None else state.sequence

    def producers(self, name: str, partition: int = 0) -> dict[str, int]:
        return {one: state.sequence for one, state in list(self.log.partition(name, partition).producers.items())}

    def cursor(self, cursor: str, stream: str, partition: int = 0) -> int | None:
        found = self.log.state.cursor(self.log.stream(stream).info.id, cursor, partition)
        return None if found is None else found.index

    def cursors(self, pattern: str = "*", stream: str | None = None) -> list[ops.CursorInfo]:
        streams = self.log.state.matching("*") if stream is None else [self.log.stream(stream)]
        found = []
        for one in streams:
            for (name, number), position in list(self.log.state.cursors.get(one.info.id, {}).items()):
                if fnmatch.fnmatchcase(name, pattern):
                    partition = one.partitions[number]
                    lag = max(0, partition.next - max(position.index, partition.first))
                    found.append(ops.CursorInfo(name, one.info.name, number, position.index, position.updated_us, lag))
        return found

    def checkpoints(self) -> list[ops.CheckpointInfo]:
        return sorted(self.log.state.checkpoints.values(), key=lambda info: info.id)

    def _table(self, name: str) -> Table:
        table = self.log.stream(name).table
        if table is None:
            raise BadRequest(f"{name!r} is a stream, not a table")
        return table

    def table_get(self, name: str, key: bytes) -> bytes | None:
        return self._table(name).get(key)

    def table_items(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        return self._table(name).items()

    def table_size(self, name: str) -> int:
        return len(self._table(name))

    # -- read ------------------------------------------------------------------------------------------------------

    def read_now(self, name: str, start: int, partition: int, limit: int, bytes_max: int) -> pa.RecordBatch | None:
        found = self.log.partition(name, partition)
        entries = found.tail.entries
        in_memory = start >= found.next or (bool(entries) and start >= entries[0].base)
        return self.log.read(name, start, partition, limit, bytes_max) if in_memory else None

    def read(self, name: str, start: int, partition: int, limit: int, bytes_max: int) -> pa.RecordBatch:
        return self.log.read(name, start, partition, limit, bytes_max)

    def scan(self, name: str, start: int, end: int, partition: int = 0) -> Iterator[pa.RecordBatch]:
        return self.log.scan(name, start, end, partition)

    def index_at_time(self, name: str, time_us: int, partition: int = 0) -> int:
        return self.log.index_at_time(name, time_us, partition)

    def segments(self, name: str, partition: int = 0) -> list[ops.SegmentInfo]:
        return self.log.segments(name, partition)

    def read_checkpoint(self, id: int) -> Iterator[bytes]:
        return self.log.read_checkpoint(id)
