"""A log without threads, for tests: every step is taken by the test."""

from __future__ import annotations

import threading
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import msgspec
from support.until import DEADLINE_S

from headrace.config import Log as LogSettings
from headrace.log import ops
from headrace.log.batch import Batch
from headrace.log.clock import Clock
from headrace.log.directory import open_directory
from headrace.log.disk import Disk
from headrace.log.kafka.cell import open_cell
from headrace.log.kafka.topics import create_missing
from headrace.log.log import Log
from headrace.log.pending import Pending
from headrace.testing import FakeClock, FakeKafka, MemoryDisk

SMALL = {
    "journal_file_bytes": 2_000,
    "journal_bytes_max": 8_000,
    "segment_bytes": 1_000,
    "tail_bytes_max": 100_000,
    "disk_reserve_bytes": 0,
    "compact_bytes_min": 2_000,
}


class Backend:
    """What `open_log` opens. Tests that say nothing of files run with both (`conftest.py`)."""

    is_kafka = False
    kafkas: ClassVar[WeakKeyDictionary[Disk, FakeKafka]] = WeakKeyDictionary()
    """The brokers that go with a disk."""


def open_log(disk: Disk | None = None, clock: Clock | None = None, **settings: Any) -> Log:
    """A log on a disk in memory, with small files."""
    if disk is None:
        disk = MemoryDisk()
    chosen = LogSettings(**{**SMALL, **settings})
    if not Backend.is_kafka:
        return open_directory(disk, clock or FakeClock(), chosen)
    chosen = msgspec.structs.replace(chosen, kafka=msgspec.structs.replace(chosen.kafka, store="local"))
    kafka = Backend.kafkas.setdefault(disk, FakeKafka())
    create_missing(kafka, chosen.kafka)
    return open_cell(disk, clock or FakeClock(), chosen, kafka)


def do(log: Log, *operations: ops.Op) -> Any:
    """One transaction, made durable. The result of a single operation stands alone."""
    pending = log.submit(operations)
    log.commit_once()
    assert pending.done
    if pending.error is not None:
        raise pending.error
    return pending.result[0] if len(operations) == 1 else pending.result


def fill(log: Log, stream: str, count: int, size: int = 50, start: int = 0) -> None:
    """Single-record appends, each a commit of its own."""
    for number in range(start, start + count):
        do(log, ops.Append(stream, Batch.one(str(number).encode().ljust(size, b"."), id=number)))


def maintain(log: Log) -> None:
    while log.maintain_once():
        pass


def payloads(log: Log, stream: str, partition: int = 0) -> list[bytes]:
    bounds = log.bounds(stream, partition)
    return [
        value
        for records in log.scan(stream, bounds.first, bounds.next, partition)
        for value in records.column("payload").to_pylist()
    ]


def again(log: Log, **settings: Any) -> Log:
    """The same directory after a clean restart."""
    log.close()
    assert isinstance(log.store.disk, MemoryDisk)
    return open_log(log.store.disk, log.clock, **settings)


# -- a log with threads ----------------------------------------------------------------------------------------------


class Outcomes:
    """Collects what the writer reports, and waits for it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.done: list[Pending] = []

    def __call__(self, pendings: list[Pending], touched: object) -> None:
        with self.changed:
            self.done += pendings
            self.changed.notify_all()

    def wait_for(self, pending: Pending) -> Pending:
        with self.changed:
            assert self.changed.wait_for(lambda: pending in self.done, DEADLINE_S)
        return pending
