"""The port between the hub and a log: all that the hub ever asks of one.

`Log` (`log.py`) implements it on a journal and a store. Where those live, on a disk or elsewhere, is for another pair
of ports to say: a backend implements `JournalPort` and `Store`, and nothing above this port can tell.

Contract. `submit` may be called from any thread and never blocks; outcomes arrive through `on_commit`, in order, from
any one thread, after they are durable. Reads see durable records only. Positions are *next to read*: a cursor at 5 has
read 0 to 4. Methods marked *blocks* may wait for the disk or the network: call them in a thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from headrace.errors import LogFailed
from headrace.log.backup import BackupInfo
from headrace.log.ops import Bounds, CheckpointInfo, CursorInfo, NewSegment, Op, SegmentInfo, StreamInfo
from headrace.log.pending import Pending
from headrace.log.report import Finding, Report

Touched = set[tuple[str, int]]
"""Streams and partitions that have new records."""


class Blob(Protocol):
    """A checkpoint's bytes on their way. All methods block."""

    @property
    def id(self) -> int: ...

    @property
    def size(self) -> int: ...

    def write(self, chunk: bytes) -> None: ...

    def finish(self) -> None:
        """Make the bytes durable; `RegisterCheckpoint` makes them count."""
        ...

    def abort(self) -> None: ...


class LogPort(Protocol):
    """A log."""

    # -- life ------------------------------------------------------------------------------------------------------

    recovered: Report
    """What was found when it was opened."""
    failed: LogFailed | None
    """Set once and for all when something could not be made durable."""

    @property
    def queue_bytes(self) -> int:
        """Submitted and not yet durable."""
        ...

    @property
    def is_congested(self) -> bool:
        """Whether more is submitted than should be: producers are to wait."""
        ...

    def start(
        self, on_commit: Callable[[list[Pending], Touched], None], on_sealed: Callable[[NewSegment], None] | None = None
    ) -> None:
        """Begin to work. `on_sealed` is told of each segment when it is in its place."""
        ...

    def hasten(self) -> None:
        """It is to close soon, and waits for no other process from now on."""
        ...

    def close(self) -> None:
        """Blocks. Everything submitted is durable or refused afterwards."""
        ...

    def fail(self, what: str, error: OSError) -> None:
        """End it: the disk has failed for somebody else who writes to it."""
        ...

    def trouble(self) -> dict[str, str]:
        """What is wrong, by part, in sentences for people; empty when all is well."""
        ...

    def damage(self) -> list[Finding]:
        """The damage that was found when it was opened and is still there: neither trimmed nor accepted since."""
        ...

    def gauges(self) -> dict[str, float]:
        """Figures for metrics, by name."""
        ...

    # -- change ----------------------------------------------------------------------------------------------------

    def submit(self, operations: Sequence[Op], token: Any = None) -> Pending:
        """Hand in a transaction; `token` comes back with the outcome. Raises what is wrong with it by itself."""
        ...

    def begin_checkpoint(self, stream: str) -> Blob:
        """Blocks."""
        ...

    def back_up(self, target: str | os.PathLike[str]) -> BackupInfo:
        """Copy everything to a new directory while work goes on, and check the copy. Blocks."""
        ...

    # -- look ------------------------------------------------------------------------------------------------------

    def has_stream(self, name: str) -> bool: ...

    def stream(self, name: str) -> StreamInfo: ...

    def streams(self, pattern: str = "*") -> list[StreamInfo]:
        """Streams and tables whose name fits a shell pattern."""
        ...

    def streams_after(self, id: int, pattern: str = "*") -> Iterator[StreamInfo]:
        """Those with a higher id, in the order of their ids; costs what is taken of them."""
        ...

    def bounds(self, name: str, partition: int = 0) -> Bounds: ...

    def stored_bytes(self, name: str) -> int:
        """What a stream's records take, on disk and in memory before that."""
        ...

    def producer(self, name: str, producer: str, partition: int = 0) -> int | None: ...

    def producers(self, name: str, partition: int = 0) -> dict[str, int]:
        """The last sequence of each producer."""
        ...

    def cursor(self, cursor: str, stream: str, partition: int = 0) -> int | None: ...

    def cursors(self, pattern: str = "*", stream: str | None = None) -> list[CursorInfo]: ...

    def cursors_after(self, id: int, pattern: str = "*", stream: str | None = None) -> Iterator[CursorInfo]:
        """Those of streams with this id or a higher one, ordered by that, their names and partitions; costs what is
        taken of them."""
        ...

    def checkpoints(self) -> list[CheckpointInfo]: ...

    def table_get(self, name: str, key: bytes) -> bytes | None: ...

    def table_items(self, name: str) -> Iterator[tuple[bytes, bytes]]: ...

    def table_keys(self, name: str) -> list[bytes]: ...

    def table_page(self, name: str, offset: int, limit: int) -> list[tuple[bytes, bytes]]:
        """So many items from number `offset` on; costs what it returns, and not what the table holds."""
        ...

    def table_size(self, name: str) -> int: ...

    # -- read ------------------------------------------------------------------------------------------------------

    def read_now(self, name: str, start: int, partition: int, limit: int, bytes_max: int) -> pa.RecordBatch | None:
        """As `read`, when that needs no disk; otherwise None."""
        ...

    def read(self, name: str, start: int, partition: int, limit: int, bytes_max: int) -> pa.RecordBatch:
        """Blocks. Records from `start` or the first kept; at least one if there is any."""
        ...

    def scan(self, name: str, start: int, end: int, partition: int = 0) -> Iterator[pa.RecordBatch]:
        """Blocks. Exactly start ≤ index < end, or an error."""
        ...

    def index_at_time(self, name: str, time_us: int, partition: int = 0) -> int:
        """Blocks."""
        ...

    def segments(self, name: str, partition: int = 0) -> list[SegmentInfo]:
        """Files that a reader on the same machine may map; none if there are no such files."""
        ...

    def read_checkpoint(self, id: int) -> Iterator[bytes]:
        """Each step blocks."""
        ...
