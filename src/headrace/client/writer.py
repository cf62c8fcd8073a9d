"""Appending: batches go out one after another, acknowledgements come back as they reach the disk."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from typing import Any

import pyarrow as pa

from headrace.client.connection import Connection
from headrace.client.puts import RETRY_PAUSE_S, NotStored, Put
from headrace.client.records import to_batch
from headrace.errors import HeadraceError, Unreachable
from headrace.log.ops import Appended
from headrace.protocols.flight.codec import PutCommand, PutMetadata, encode


class Writer:
    """Appends to one partition with many batches under way. Use it in a `with` block, or call `close`.

    With `producer` and `sequence`, the first batch has that sequence and every next one more: batches that the hub has
    seen before are acknowledged again and stored once. When the connection breaks, what is under way is then sent again
    for up to `retry_s` seconds without progress.
    """

    def __init__(
        self,
        connection: Connection,
        stream: str,
        *,
        partition: int = 0,
        producer: str | None = None,
        sequence: int | None = None,
        retry_s: float = 0.0,
    ) -> None:
        self._connection = connection
        self._command = PutCommand(stream, partition)
        self._producer = producer
        self._sequence_next = sequence
        self._retry_s = retry_s
        self._put: Put | None = None
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
            try:
                future = self.send(batch, self._producer, self._sequence_next)
            except HeadraceError as error:
                if not self._closed:
                    self._failure = error
                raise
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
        give_up = time.monotonic() + (self._retry_s if metadata else 0)
        with self._lock:
            if self._closed:
                raise NotStored("this writer has been closed")
            while True:
                try:
                    put = self._put_for(batch.schema)
                    future = put.send(_with_schema(batch, put.schema), metadata)
                    if future is None and put.refusal is not None:
                        raise put.refusal
                except Unreachable as error:  # nothing was sent
                    if time.monotonic() > give_up:
                        future = concurrent.futures.Future()
                        future.set_exception(error)
                    else:
                        time.sleep(RETRY_PAUSE_S)
                        continue
                if future is not None:
                    self._last = future
                    return future

    def _put_for(self, schema: pa.Schema) -> Put:
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
        self._put = Put(self._connection, self._command, schema, self._retry_s)
        return self._put

    def flush(self) -> None:
        """Wait until everything appended so far is durable; raises the first failure."""
        last = self._last
        failure = None if last is None else last.exception()
        # Whoever waits for a future may wake before what `_note_failure` notes of it.
        if (failure := self._failure or failure) is not None:
            raise failure

    def retire(self) -> None:
        """Take nothing more, without waiting for what is under way: others wait for that."""
        with self._lock:
            self._closed = True
            if self._put is not None:
                self._put.end()

    def close(self) -> None:
        """Flush, and end the put."""
        with self._lock:
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
