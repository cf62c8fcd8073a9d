"""What a put and a read remember between two messages. No socket, no hub, no thread: values in, values out.

Rules of a put:

1. Batches are numbered from 0 in the order in which they came, and are appended and acknowledged in that order.
2. The first failure ends the put. It is told at once, as an acknowledgement with an error; what comes after it is
   refused, so what is stored is always a beginning of what was sent.
3. A batch with a producer has a sequence: its own, or, when the descriptor has one, one more than the batch before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import BadRequest, HeadraceError, Trimmed
from headrace.protocols.flight.codec import (
    ORIGIN_FIELDS,
    SEQUENCE_MAX,
    PutAck,
    PutCommand,
    PutMetadata,
    ReadTicket,
    error_body,
    split,
    ticket_schema,
)
from headrace.protocols.state_machine import StateMachine
from headrace.security import check_producer


class PutState(Enum):
    """Where a put stands."""

    OPEN = "open"
    FAILED = "failed"
    ENDED = "ended"


class PutEvent(Enum):
    """What can happen to a put."""

    BATCH = "batch received"
    STORED = "batch durable"
    FAILURE = "batch refused"
    END = "client has sent all"


PUT = StateMachine(
    "flight/put",
    PutState.OPEN,
    {
        PutState.OPEN: {
            PutEvent.BATCH: PutState.OPEN,
            PutEvent.STORED: PutState.OPEN,
            PutEvent.FAILURE: PutState.FAILED,
            PutEvent.END: PutState.ENDED,
        },
        PutState.FAILED: {PutEvent.STORED: PutState.FAILED, PutEvent.FAILURE: PutState.FAILED},
        PutState.ENDED: {PutEvent.STORED: PutState.ENDED, PutEvent.FAILURE: PutState.FAILED},
    },
    of="an upload",
)

MACHINES = (PUT,)


class Numbered(NamedTuple):
    """A received batch: its number in the put, and the producer and sequence it carries."""

    number: int
    producer: str | None
    sequence: int | None
    after: int | None = None


class PutSession:
    """One put. The caller sees to it that only one thread uses it at a time."""

    def __init__(self, command: PutCommand) -> None:
        self.command = command
        self.state = PutState.OPEN
        self.error: HeadraceError | None = None
        self.refused_batch: int | None = None
        self.received_count = 0
        self.stored_count = 0
        self._sequence_next = command.sequence
        self._first: int | None = None
        self._records = 0
        self._all_duplicate = True

    def _move(self, event: PutEvent) -> None:
        self.state = PUT.step(self.state, event)

    def receive(self, metadata: PutMetadata) -> Numbered:
        """A batch has come."""
        self._move(PutEvent.BATCH)
        number = self.received_count
        producer = metadata.producer if metadata.producer is not None else self.command.producer
        sequence = metadata.sequence if metadata.sequence is not None else self._sequence_next
        if producer is None and sequence is not None:
            raise BadRequest(f"batch {number}: 'sequence' is given without 'producer'")
        if producer is not None and sequence is None:
            raise BadRequest(f"batch {number}: 'producer' is given without 'sequence'")
        if metadata.after is not None and producer is None:
            raise BadRequest(f"batch {number}: 'after' is given without 'producer'")
        check_producer(producer)
        if sequence is not None and sequence > SEQUENCE_MAX:
            raise BadRequest(f"batch {number}: 'sequence' is {sequence}, outside 0 to {SEQUENCE_MAX}")
        if self._sequence_next is not None and sequence is not None:
            self._sequence_next = sequence + 1
        self.received_count += 1
        return Numbered(number, producer, sequence, metadata.after)

    def stored(self, number: int, first: int, count: int, duplicate: bool, batches: int = 1) -> PutAck | None:
        """Batches up to this one are durable: the message to send, if this put wants one for each."""
        self._move(PutEvent.STORED)
        self.stored_count += batches
        self._first = first if self._first is None else self._first
        self._records += count
        self._all_duplicate = self._all_duplicate and duplicate
        return PutAck(number, first, count, duplicate) if self.command.acks == "each" else None

    def fail(self, number: int, error: HeadraceError) -> PutAck | None:
        """A batch was refused. Only the first failure is told: the others follow from it."""
        self._move(PutEvent.FAILURE)
        if self.error is not None:
            return None
        self.error = error
        self.refused_batch = number
        return PutAck(number, error=error_body(error))

    def end(self) -> None:
        """The client has sent all it wants to."""
        if self.state is PutState.OPEN:
            self._move(PutEvent.END)

    def last_ack(self) -> PutAck | None:
        """With `acks: "last"`: the one message for all batches, once all are durable."""
        if self.command.acks == "each" or self.error is not None or not self.stored_count:
            return None
        first = -1 if self._first is None else self._first
        return PutAck(self.stored_count - 1, first, self._records, self._all_duplicate)


class Reading(msgspec.Struct, eq=False):
    """One range being read: `position` is the next index to send, `end` (if any) is not sent any more."""

    stream: str
    partition: int
    position: int
    end: int | None
    lenient: bool
    available: int = 0
    """What the log had when it was last looked at: the index after it."""

    @property
    def upto(self) -> int:
        """Where reading stops for now."""
        return self.available if self.end is None else min(self.available, self.end)

    @property
    def finished(self) -> bool:
        """Nothing will ever be left to read."""
        return self.end is not None and self.position >= self.end

    def advance(self, batch: pa.RecordBatch) -> None:
        """Note that this batch has been taken from the log."""
        self.position = batch.column("index")[-1].as_py() + 1
        self.lenient = False

    def trimmed(self, error: Trimmed, *, skip: bool) -> None:
        """Retention was faster than this reader: go on behind the gap, or fail.

        A start by word or time means "what is there", so what went between looking and reading is not missed."""
        if not (skip or self.lenient):
            raise error
        self.position = max(self.position, error.first)


class ReadSession:
    """One `do_get`: which columns and records of the batches that are read go out."""

    def __init__(self, ticket: ReadTicket, readings: list[Reading]) -> None:
        self.ticket = ticket
        self.readings = readings
        self.schema = ticket_schema(ticket)
        self.sent_count = 0
        wanted = set(self.schema.names)
        origin = {field.name for field in ORIGIN_FIELDS}
        needed = (wanted - origin) | {"index"} | ({"type"} if ticket.types is not None else set())
        #: The columns to ask of the log: what is sent, and what is looked at on the way.
        self.scan_columns = sorted(needed)
        self._types = None if ticket.types is None else pa.array(ticket.types, pa.string())

    @property
    def finished(self) -> bool:
        """Nothing more will be sent."""
        return self._remaining == 0 or all(reading.finished for reading in self.readings)

    @property
    def _remaining(self) -> int | None:
        return None if self.ticket.limit is None else self.ticket.limit - self.sent_count

    def shape(self, reading: Reading, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The parts of a batch from the log that go out, none larger than the ticket allows (a record is never cut)."""
        if not batch.num_rows:
            return
        reading.advance(batch)
        if self._types is not None:
            batch = batch.filter(pc.is_in(batch.column("type"), self._types))
        if self._remaining is not None:
            batch = batch.slice(0, self._remaining)
        if not batch.num_rows:
            return
        self.sent_count += batch.num_rows
        yield from split(self._project(reading, batch), self.ticket.batch_bytes)

    def _project(self, reading: Reading, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for name in self.schema.names:
            if name == "stream":
                columns.append(pa.repeat(reading.stream, batch.num_rows))
            elif name == "partition":
                columns.append(pa.repeat(pa.scalar(reading.partition, pa.int32()), batch.num_rows))
            else:
                columns.append(batch.column(name))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def describe_read(session: ReadSession) -> dict[str, object]:
    """As the list of sessions shows it."""
    return {
        "state": "following" if session.ticket.follow else "reading",
        "streams": [f"{reading.stream}/{reading.partition}" for reading in session.readings[:10]],
        "position": [reading.position for reading in session.readings[:10]],
        "sent": session.sent_count,
    }


def describe_put(session: PutSession) -> dict[str, object]:
    """As the list of sessions shows it."""
    return {
        "state": session.state.value,
        "streams": [f"{session.command.stream}/{session.command.partition}"],
        "batches_received": session.received_count,
        "batches_stored": session.stored_count,
        "last_error": None if session.error is None else str(session.error),
    }
