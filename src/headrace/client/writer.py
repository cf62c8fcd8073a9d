"""Appending: batches go out one after another, acknowledgements come back as they reach the disk.

A `Writer` keeps one Flight put open. `append` returns a future at once, so that many batches are under way together; a
second thread reads the acknowledgements and settles the futures in order.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections import deque
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.flight as flight

from headrace.client.connection import Connection, to_headrace_error
from headrace.client.records import to_batch
from headrace.errors import Closed, HeadraceError, Unreachable
from headrace.log.ops import Appended
from headrace.protocols.flight.codec import PutCommand, PutMetadata, decode_ack, encode, error_from_body

UNDER_WAY_BYTES_MAX = 32 << 20
UNDER_WAY_BATCHES_MAX = 10_000


class _UnderWay(NamedTuple):
    future: concurrent.futures.Future[Appended]
    size: int


class _Put:
    """One Flight put and the thread that reads its acknowledgements."""

    def __init__(self, connection: Connection, command: PutCommand, schema: pa.Schema) -> None:
        self.schema = schema
        self.error: HeadraceError | None = None
        self._connection = connection
        self._under_way: deque[_UnderWay] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        with connection.translated():
            descriptor = flight.FlightDescriptor.for_command(encode(command))
            self._writer, self._acks = connection.flight.do_put(descriptor, schema, connection.options())
        self._thread = threading.Thread(target=self._read_acks, name="headrace-acks", daemon=True)
        self._thread.start()

    def send(self, batch: pa.RecordBatch, metadata: bytes) -> concurrent.futures.Future[Appended]:
        """Put one batch on its way; waits while too much is under way."""
        future: concurrent.futures.Future[Appended] = concurrent.futures.Future()
        entry = _UnderWay(future, batch.nbytes)
        with self._writing:
            with self._changed:
                while self.error is None and self._is_full(entry.size):
                    self._changed.wait()
                if self.error is not None:
                    future.set_exception(self.error)
                    return future
                self._under_way.append(entry)
                self._bytes += entry.size
            # A failure to write means that the put has ended: the other thread learns why and settles the future.
            with contextlib.suppress(flight.FlightError, OSError):
                self._writer.write_with_metadata(batch, metadata)
        return future

    def _is_full(self, size: int) -> bool:
        if len(self._under_way) >= UNDER_WAY_BATCHES_MAX:
            return True
        return bool(self._under_way) and self._bytes + size > UNDER_WAY_BYTES_MAX

    def _read_acks(self) -> None:
        failure: HeadraceError | None = None
        try:
            while (message := self._acks.read()) is not None:
                ack = decode_ack(message.to_pybytes())
                if ack.error is not None:
                    failure = error_from_body(ack.error)
                    break
                self._settle(Appended(ack.first, ack.count, ack.duplicate))
        except (pa.ArrowException, OSError, HeadraceError) as error:
            failure = error if isinstance(error, HeadraceError) else to_headrace_error(error, self._connection.address)
        self._end(failure)

    def _settle(self, appended: Appended) -> None:
        with self._changed:
            entry = self._under_way.popleft()
            self._bytes -= entry.size
            self._changed.notify_all()
        entry.future.set_result(appended)

    def _end(self, failure: HeadraceError | None) -> None:
        """No more acknowledgements will come: learn why, and tell those who wait."""
        with self._changed:
            self.error = failure or Closed("the put has ended")
            self._changed.notify_all()
        with self._writing:
            try:
                self._writer.close()
            except (pa.ArrowException, OSError) as error:
                failure = failure or to_headrace_error(error, self._connection.address)
        if failure is None:
            failure = Unreachable("the put ended before the hub acknowledged everything")
        with self._changed:
            self.error = failure
            left = list(self._under_way)
            self._under_way.clear()
        for number, entry in enumerate(left):
            entry.future.set_exception(failure if number == 0 else _not_stored(failure))

    def finish(self) -> None:
        """Send nothing more, and wait until everything sent is settled."""
        with self._writing, contextlib.suppress(pa.ArrowException, OSError):
            self._writer.done_writing()
        self._thread.join()

    @property
    def ended(self) -> bool:
        """Whether the put is over, so that a new one is needed."""
        return self.error is not None


def _not_stored(first: HeadraceError) -> HeadraceError:
    if isinstance(first, Unreachable):
        return first
    return Closed(f"not stored: an earlier batch of the same writer was refused: {first}")


class Writer:
    """Appends to one partition with many batches under way. Use it in a `with` block, or call `close`.

    With `producer` and `sequence`, the first batch has that sequence and every next one more: batches that the hub has
    seen before are acknowledged again and stored once.
    """

    def __init__(
        self,
        connection: Connection,
        stream: str,
        *,
        partition: int = 0,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> None:
        self._connection = connection
        self._command = PutCommand(stream, partition)
        self._producer = producer
        self._sequence_next = sequence
        self._put: _Put | None = None
        self._lock = threading.RLock()
        self._failure: HeadraceError | None = None
        self._last: concurrent.futures.Future[Appended] | None = None
        self._closed = False

    def append(self, data: Any, **columns: Any) -> concurrent.futures.Future[Appended]:
        """One batch: all of it is stored, or none. `data` and `columns` are as in `Client.append`."""
        batch = to_batch(data, **columns)
        with self._lock:
            if self._failure is not None:
                raise self._failure
            future = self.send(batch, self._producer, self._sequence_next)
            if self._sequence_next is not None:
                self._sequence_next += 1
        future.add_done_callback(self._note_failure)
        return future

    def _note_failure(self, future: concurrent.futures.Future[Appended]) -> None:
        error = future.exception()
        if isinstance(error, HeadraceError) and self._failure is None:
            self._failure = error

    def send(
        self, batch: pa.RecordBatch, producer: str | None, sequence: int | None
    ) -> concurrent.futures.Future[Appended]:
        """A batch with its own producer and sequence."""
        metadata = encode(PutMetadata(producer, sequence)) if producer is not None or sequence is not None else b""
        with self._lock:
            if self._closed:
                raise Closed("this writer has been closed")
            put = self._put_for(batch.schema)
            self._last = put.send(_with_schema(batch, put.schema), metadata)
            return self._last

    def _put_for(self, schema: pa.Schema) -> _Put:
        """An open put that has all columns of this schema."""
        put = self._put
        if put is not None and not put.ended and set(schema.names) <= set(put.schema.names):
            return put
        if put is not None:
            put.finish()  # what is under way stays before what comes now
            if self._failure is not None:
                raise self._failure
            known = {field.name: field for field in (*put.schema, *schema)}
            schema = pa.schema(list(known.values()))
        self._put = _Put(self._connection, self._command, schema)
        return self._put

    def flush(self) -> None:
        """Wait until everything appended so far is durable; raises the first failure."""
        last = self._last
        if last is not None:
            concurrent.futures.wait([last])
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Flush, and end the put."""
        self._closed = True
        if self._put is not None:
            self._put.finish()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()
        else:
            with contextlib.suppress(HeadraceError):  # the error of the block is the one to see
                self.close()


def _with_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if batch.schema.names == schema.names:
        return batch
    names = set(batch.schema.names)
    columns = [
        batch.column(field.name) if field.name in names else pa.nulls(batch.num_rows, field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
