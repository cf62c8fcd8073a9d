"""Writing a DataFrame into streams, exactly once.

Tasks stage their rows at the hub under (query, batch, part, attempt). When all are done, the driver's commit makes
one atomic append of everything staged, together with the batch number, its digest and how far the sources had come. A
commit that is repeated, because the driver died before Spark noted it, is acknowledged again and stores nothing.

The digest says *which* batch this is. Where the query's checkpoint can be read here, it is a digest of the source
offsets that Spark planned for the batch, which also holds when a pipeline is not deterministic; elsewhere it is a
digest of the rows that were staged, in any order.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.errors import HeadraceError
from headrace.spark.errors import BadOption
from headrace.spark.hub.batch_files import one_off_name
from headrace.spark.hub_client import HubPort, shared_port
from headrace.spark.options import SOURCE_COLUMNS, SinkOptions
from headrace.spark.pipelines.archive_storage import local_path
from headrace.spark.sink.rows import ACCEPTED, OutgoingRows, rows_digest
from headrace.spark.source.offsets import read_ranges
from headrace.spark.source.scan import freeze_garbage

CHUNK_BYTES = 4 << 20
ABORT_WAIT_S = 2.0
ROWS_DIGEST_MODULUS = 1 << 64
PART_FIELDS = ("part", "attempt", "size", "crc")


@dataclass
class StagedPart(WriterCommitMessage):  # type: ignore[misc]
    """What one task left at the hub."""

    query: str
    run: str
    part: int
    attempt: int
    size: int
    crc: int
    rows: int
    digest: int


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Refuse a DataFrame that cannot be records, before any task runs."""
    names = schema.fieldNames()
    if "payload" not in names:
        raise BadOption(
            "payload", ", ".join(names), "a column `payload`; headrace.spark.to_records(df) packs all columns as JSON"
        )
    if options.stream_column is not None and options.stream_column not in names:
        raise BadOption("streamColumn", options.stream_column, "one of the columns " + ", ".join(names))
    unknown = [name for name in names if name not in {*SOURCE_COLUMNS, options.stream_column}]
    if unknown:
        raise BadOption(
            "columns",
            ", ".join(unknown),
            f"only {', '.join(ACCEPTED)} (the source's own columns are dropped); select them or use "
            "headrace.spark.to_records(df)",
        )


class _Writer:
    """What the batch writer and the stream writer share. Rebuilt by Spark at will: it keeps no state."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self.options = options
        freeze_garbage()  # planning makes a writer for every batch, in a process of its own

    @property
    def port(self) -> HubPort:
        return shared_port(self.options.access, self.options.wait_s)

    def stage(self, rows: Iterator[pa.RecordBatch], query: str, run: str, batch: int, digest_rows: bool) -> StagedPart:
        """Send a task's rows to the hub, a chunk at a time."""
        freeze_garbage()
        context = TaskContext.get()
        part, attempt = context.partitionId(), context.taskAttemptId()
        where = {"query": query, "run": run, "batch": batch, "part": part, "attempt": attempt}

        def send(offset: int, chunk: bytes) -> None:
            self.port.call("spark.stage", {**where, "offset": offset}, rows=chunk)

        @functools.cache
        def partitions_of(stream: str) -> int:
            states = self.port.describe([stream])
            return len(states[0].bounds) if states else self.options.partitions

        outgoing = OutgoingRows(send, CHUNK_BYTES, partitions_of)
        digest = count = 0
        for rows_in in rows:
            for stream, records in outgoing.by_stream(rows_in, self.options.stream, self.options.stream_column):
                if digest_rows:
                    digest = (digest + rows_digest(stream, records)) % ROWS_DIGEST_MODULUS
                count += records.num_rows
                outgoing.write(stream, records)
        size, crc = outgoing.finish()
        return StagedPart(query, run, part, attempt, size, crc, count, digest)

    def finish(
        self,
        messages: Sequence[StagedPart | None],
        batch: int,
        planned: list[str] | None = None,
        before: list[str] | None = None,
    ) -> None:
        """Make everything staged part of the log, in the order of the tasks. `planned` are the offsets of the sources,
        `before` those of the batch before."""
        staged = sorted((part for part in messages if part is not None), key=lambda part: part.part)
        if not staged:
            return
        digest = "rows:" + rows_identity(staged)
        if planned is not None:
            digest = "offsets:" + hashlib.sha256("\n".join(planned).encode()).hexdigest()[:32]
        request = {
            "query": staged[0].query,
            "run": staged[0].run,
            "batch": batch,
            "digest": digest,
            "parts": [{name: getattr(part, name) for name in PART_FIELDS} for part in staged if part.size],
            "sources": read_ranges(before, planned or [], self.options.access.address),
            "partitions": self.options.partitions,
        }
        self.port.call("spark.commit", request)

    def abort(self, messages: Sequence[StagedPart | None], batchId: int = 0) -> None:
        """Drop what was staged. Best effort: the hub drops leftovers by itself later."""
        part = next((part for part in messages if part is not None), None)
        if part is not None:
            with contextlib.suppress(HeadraceError):
                port = shared_port(self.options.access, ABORT_WAIT_S)
                port.call("spark.abort", {"query": part.query, "run": part.run, "batch": batchId})


class StreamWriter(_Writer, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """`df.writeStream.format("headrace")`."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedPart:
        context = TaskContext.get()
        query = self.options.query or context.getLocalProperty("sql.streaming.queryId")
        run = context.getLocalProperty("spark.jobGroup.id") or ""
        batch = int(context.getLocalProperty("streaming.sql.batchId"))
        # A path without a scheme may be Spark's default file system and not this machine: only looking tells.
        digest_rows = planned_offsets(self.options.checkpoint, batch) is None
        return self.stage(iterator, query, run, batch, digest_rows=digest_rows)

    def commit(self, messages: list[StagedPart | None], batchId: int) -> None:
        before = planned_offsets(self.options.checkpoint, batchId - 1) if batchId else []
        self.finish(messages, batchId, planned_offsets(self.options.checkpoint, batchId), before)


class BatchWriter(_Writer, DataSourceArrowWriter):  # type: ignore[misc]
    """`df.write.format("headrace")`: one atomic append per job."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self.token = options.query or one_off_name()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedPart:
        # A token of our own is never used again, so nothing is ever compared with it.
        return self.stage(iterator, self.token, self.token, 0, digest_rows=self.options.query is not None)

    def commit(self, messages: list[StagedPart | None]) -> None:
        self.finish(messages, 0)


def rows_identity(staged: Sequence[StagedPart]) -> str:
    """The rows of all tasks as a multiset: how they were spread over tasks does not matter."""
    total = sum(part.digest for part in staged) % ROWS_DIGEST_MODULUS
    return f"{sum(part.rows for part in staged)}:{total:016x}"


def planned_offsets(checkpoint: str | None, batch: int) -> list[str] | None:
    """The source offsets that Spark wrote down for a batch before it ran it; one JSON text per source."""
    directory = local_path(checkpoint)
    if directory is None:
        return None
    try:
        lines = (directory / "offsets" / str(batch)).read_text().split("\n")
    except OSError:
        return None
    # Line 1 is the version and line 2 holds times and settings, which may differ between two plans of one batch.
    return lines[2:]
