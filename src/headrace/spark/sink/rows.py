"""Rows on their way to the hub: the record columns, split by destination, as one Arrow IPC stream.

Each record batch of the stream carries its destination as custom metadata: {"stream": name, "partition": number}.
With more than one partition, rows with a key go to the partition that the key's hash says, so that one key stays in
one order; rows without a key go to partition 0.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from headrace.log.columns import PUT_SCHEMA, TIMESTAMP

ACCEPTED = tuple(PUT_SCHEMA.names)
# What counts of a row beside its payload, in the order in which it has always been hashed.
_HASHED = ("key", *(name for name in ACCEPTED if name not in ("payload", "key")))


class OutgoingRows:
    """Collects one task's rows and sends them in chunks. `send(offset, chunk)`; offsets follow each other."""

    def __init__(
        self, send: Callable[[int, bytes], None], chunk_bytes: int, partitions_of: Callable[[str], int]
    ) -> None:
        self._send = send
        self._chunk_bytes = chunk_bytes
        self._partitions_of = partitions_of
        self._waiting = io.BytesIO()
        self._sent = 0
        self._crc = 0
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None

    def by_stream(
        self, batch: pa.RecordBatch, stream: str | None, stream_column: str | None
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The records of a batch by the stream that they go to, each in the order of the rows."""
        if stream_column is None:
            assert stream is not None
            yield stream, to_records(batch)
            return
        names = batch.column(stream_column)
        for name in pc.unique(names).to_pylist():
            if name is None:
                raise ValueError(f"column {stream_column!r} says which stream a row goes to, and it is null in a row")
            yield name, to_records(batch.filter(pc.equal(names, name)))

    def write(self, stream: str, records: pa.RecordBatch) -> None:
        """Add records for one stream, spread over its partitions by key."""
        keyless = records.column("key").null_count == records.num_rows
        partitions = 1 if keyless else self._partitions_of(stream)  # asking costs a call to the hub
        if partitions == 1:
            self._write(stream, 0, records)
            return
        chosen = key_partitions(records.column("key"), partitions)
        for partition in np.unique(chosen):
            self._write(stream, int(partition), records.filter(pa.array(chosen == partition)))

    def _write(self, stream: str, partition: int, records: pa.RecordBatch) -> None:
        if records.num_rows == 0:
            return
        if self._writer is None:
            self._writer = pa.ipc.new_stream(self._waiting, PUT_SCHEMA)  # counts its position itself
        to = {"stream": stream, "partition": str(partition)}
        rows = max(1, records.num_rows * self._chunk_bytes // max(1, records.nbytes))
        for start in range(0, records.num_rows, rows):
            self._writer.write_batch(records.slice(start, rows), custom_metadata=to)
            if self._waiting.tell() >= self._chunk_bytes:
                self._flush()

    def finish(self) -> tuple[int, int]:
        """Send what is left; (bytes sent in all, their CRC-32C). Nothing is sent when there were no rows."""
        if self._writer is not None:
            self._writer.close()
            self._flush()
        return self._sent, self._crc

    def _flush(self) -> None:
        chunk = self._waiting.getvalue()
        self._waiting.seek(0)
        self._waiting.truncate()
        self._send(self._sent, chunk)
        self._sent += len(chunk)
        self._crc = google_crc32c.extend(self._crc, chunk)


def to_records(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The record columns of a batch of rows; those that it lacks are null."""
    names = set(batch.schema.names)
    columns = [
        batch.column(field.name).cast(field.type) if field.name in names else pa.nulls(batch.num_rows, field.type)
        for field in PUT_SCHEMA
    ]
    if columns[0].null_count:
        raise ValueError("column 'payload' is null in a row; a record needs a payload, if only an empty one")
    return pa.RecordBatch.from_arrays(columns, schema=PUT_SCHEMA)


def key_partitions(keys: pa.Array, partitions: int) -> Any:
    """The partition of each key. Only distinct keys are hashed one by one."""
    encoded = pc.dictionary_encode(keys)
    table = [xxhash.xxh3_64_intdigest(key) % partitions for key in encoded.dictionary.to_pylist()]
    by_key = np.array([*table, 0], np.int64)
    places = encoded.indices.fill_null(len(table)).to_numpy(zero_copy_only=False)
    return by_key[places]


def rows_digest(stream: str, records: pa.RecordBatch) -> int:
    """A number for the multiset of these records: the order does not change it, any other change does."""
    seed = xxhash.xxh3_64_intdigest(stream.encode())
    columns = [records.column(name) for name in _HASHED]
    values = [(column.cast(pa.int64()) if column.type == TIMESTAMP else column).to_pylist() for column in columns]
    digest = 0
    for payload, *rest in zip(records.column("payload").to_pylist(), *values, strict=True):
        head = repr(tuple(rest)).encode()
        digest += xxhash.xxh3_64_intdigest(payload, xxhash.xxh3_64_intdigest(head, seed))
    return digest % (1 << 64)
