"""The way of one stream's records from a connection to the disk: one transaction under way, the rest gathers.

Several appends at once would be wrong: when one is refused (a full disk) a later one may fit, and the stream would have
a hole below its point of reference. So a lane submits the next transaction when the last has become durable, with all
batches that came meanwhile: all of them, or none. It would not be quicker either: pieces become smaller, and two under
way were a quarter slower at 100 B.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.log.batch import Batch
from headrace.log.ops import Append, Op, SetProducer
from headrace.protocols.wallaroo.requests import Store, Ticket
from headrace.protocols.wallaroo.scan import Rows

UNITS: dict[str, tuple[int, int]] = {"ns": (1, 1000), "us": (1, 1), "ms": (1000, 1), "s": (1_000_000, 1)}
"""Event time units: by what to multiply and divide for microseconds."""


class Waiting(NamedTuple):
    """One `Store` as operations on the hub."""

    ticket: Ticket
    operations: list[Op]
    records: int
    nbytes: int
    received_s: float


class Lane:
    """One stream of one connection."""

    __slots__ = ("busy", "name", "producer", "unacknowledged", "waiting")

    def __init__(self, name: str, producer: str) -> None:
        self.name = name
        self.producer = producer
        """Whose sequence is the stream's point of reference."""
        self.busy = False
        self.waiting: list[Waiting] = []
        self.unacknowledged: deque[tuple[int | None, list[Waiting]]] = deque()
        """Durable, and waiting for a cursor to pass an index; `None` waits only for those before it."""

    def add(self, store: Store, unit: str, now_s: float) -> int:
        """Encode rows now, while the disk works. Returns the bytes that wait."""
        operations: list[Op] = []
        nbytes = records = 0
        if store.rows is not None:
            batch = batch_of(store.rows, unit)
            nbytes, records = batch.nbytes, batch.count
            if store.increasing:
                operations.append(Append(self.name, batch, 0, self.producer, store.position))
            else:
                operations.append(Append(self.name, batch))
        if store.position is not None and not (store.increasing and operations):
            operations.append(SetProducer(self.name, self.producer, store.position))
        self.waiting.append(Waiting(store.ticket, operations, records, nbytes, now_s))
        return nbytes

    def take(self) -> tuple[list[Waiting], list[Op]]:
        """Everything that waits, as one transaction."""
        taken, self.waiting = self.waiting, []
        return taken, [operation for waiting in taken for operation in waiting.operations]


def batch_of(rows: Rows, unit: str) -> Batch:
    """Rows as the log's columns; no object per record."""
    ids = rows.message_ids.view(np.int64)
    times = rows.times(*UNITS[unit])
    keys = rows.keys()
    if times is None and keys is None and (matrix := rows.even_payloads()) is not None:
        return Batch.even(matrix, ids)
    columns = {"payload": rows.payloads(), "id": pa.array(ids)}
    if times is not None:
        columns["event_time"] = times
    if keys is not None:
        columns["key"] = keys
    return Batch.from_arrow(pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)))
