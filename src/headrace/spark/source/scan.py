"""What a task does: read one range and hand Arrow record batches to the JVM. No row becomes a Python object.

Sealed segments that this machine can open are mapped into memory; everything else, the live tail above all, comes
over Arrow Flight. A file that vanished since planning (sealed anew, or the task runs elsewhere) is read over Flight
instead. Indexes are checked to follow each other without a gap, so a record lost on the way is an error here and not
a wrong sum later.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.json_columns import decode_json
from headrace.errors import Damaged, Trimmed
from headrace.log.columns import SCHEMA
from headrace.log.segment import Segment, SegmentDamaged, SegmentRef
from headrace.spark.errors import DataLoss
from headrace.spark.hub_client import HubPort
from headrace.spark.source.offsets import Range

ROWS_PER_BATCH_MAX = 65_536
ROWS_PER_BATCH_MIN = 8_192
BYTES_PER_BATCH_MAX = 8 << 20
BYTES_PER_BATCH_MIN = 1 << 20

_frozen = False


@dataclass(frozen=True)
class Piece:
    """One task's work: a range and the sealed files that hold some of it."""

    range: Range
    files: tuple[SegmentRef, ...] = ()


@dataclass(frozen=True)
class Shape:
    """What the rows look like: the Arrow schema that Spark expects and how to fill it."""

    schema: pa.Schema
    decode: str = "raw"
    fields: pa.Schema | None = None
    types: tuple[str, ...] | None = None
    fail_on_data_loss: bool = True

    @property
    def stored_columns(self) -> list[str]:
        """The record columns to fetch; the index always, to check that nothing is missing."""
        names = set(self.schema.names) | {"index"}
        if self.decode == "json" and names & {"value", "error"}:
            names.add("payload")
        if self.types is not None:
            names.add("type")
        return [name for name in SCHEMA.names if name in names]


def freeze_garbage() -> None:
    """Spark's worker collects all garbage after each task; what is loaded by now need never be looked at again."""
    global _frozen
    if not _frozen:
        gc.collect()
        gc.freeze()
        _frozen = True


def scan(port: HubPort, piece: Piece, shape: Shape) -> Iterator[pa.RecordBatch]:
    """The rows of one piece in the shape that Spark expects."""
    freeze_garbage()
    for batch in regroup(_wanted(port, piece, shape)):
        yield shaped(batch, piece.range, shape)


def _wanted(port: HubPort, piece: Piece, shape: Shape) -> Iterator[pa.RecordBatch]:
    """The records of the range and of the types asked for, in order, from files where possible."""
    asked = piece.range
    position = asked.start
    for file in piece.files:
        begin, end = max(position, file.first), min(asked.end, file.next)
        if begin >= end:
            continue
        if begin > position:
            yield from _remote(port, Range(asked.stream, asked.partition, position, begin), shape)
        part = Range(asked.stream, asked.partition, begin, end)
        mapped = open_segment(file, part)
        yield from _remote(port, part, shape) if mapped is None else _local(mapped, part, shape)
        position = end
    if position < asked.end:
        yield from _remote(port, Range(asked.stream, asked.partition, position, asked.end), shape)


def _remote(port: HubPort, asked: Range, shape: Shape) -> Iterator[pa.RecordBatch]:
    """From the hub. When it filters by type there is no index to miss here: it says itself what it no longer has."""
    where = (asked.stream, asked.partition, asked.start, asked.end, shape.stored_columns)
    if shape.types is None or not shape.fail_on_data_loss:
        return of_types(_checked(port.read(*where), asked, shape), shape)
    return _named_loss(port.read(*where, shape.types), asked)


def _local(segment: Segment, asked: Range, shape: Shape) -> Iterator[pa.RecordBatch]:
    """From a file; one whose manifest says that it holds none of the types is not looked into."""
    held = segment.manifest.types
    if shape.types is not None and held is not None and set(held).isdisjoint(shape.types):
        return iter(())
    return of_types(_checked(_mapped(segment, asked, shape), asked, shape), shape)


def _named_loss(batches: Iterator[pa.RecordBatch], asked: Range) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except Trimmed as error:
        why = f"the first index kept is {error.first}"
        raise DataLoss(asked.stream, asked.partition, asked.start, min(error.first, asked.end) - 1, why) from error


class _ThisMachine:
    """The disk of the machine that the task runs on; all that a segment needs of it is to be mapped."""

    def map(self, path: str) -> pa.Buffer:
        with pa.memory_map(path) as file:
            return file.read_buffer()


def open_segment(file: SegmentRef, asked: Range) -> Segment | None:
    """A segment mapped into memory; None where this machine cannot open it, or finds something else there.

    Another machine, or a container, may have a hub of its own whose files bear the same names.
    """
    try:
        segment = Segment(_ThisMachine(), file)  # type: ignore[arg-type]
        size = os.path.getsize(file.path)
    except (SegmentDamaged, OSError):
        return None
    same = (segment.manifest.stream, segment.manifest.partition, size) == (asked.stream, asked.partition, file.bytes)
    return segment if same else None


def _mapped(segment: Segment, asked: Range, shape: Shape) -> Iterator[pa.RecordBatch]:
    """The records of a range from a file. Each batch is checked against its checksum before it is used."""
    position = asked.start
    while position < asked.end:
        try:
            batch = segment.read(position, asked.end - position)
        except SegmentDamaged as error:
            raise Damaged(asked.stream, asked.partition, error.first, error.last, error.path) from error
        yield batch.select(shape.stored_columns)
        position += batch.num_rows


def _checked(batches: Iterable[pa.RecordBatch], asked: Range, shape: Shape) -> Iterator[pa.RecordBatch]:
    """Every index of the range, once and in order; a gap is a loss."""
    expected = asked.start
    for batch in batches:
        if batch.num_rows == 0:
            continue
        index = batch.column("index").to_numpy()
        if index[0] != expected or int(index[-1]) - int(index[0]) != len(index) - 1:
            _lost(asked, expected, _first_gap_end(index, expected) - 1, shape)
        expected = int(index[-1]) + 1
        yield batch
    if expected < asked.end:
        _lost(asked, expected, asked.end - 1, shape)


def _first_gap_end(index: np.ndarray, expected: int) -> int:
    if index[0] != expected:
        return int(index[0])
    jumps = np.flatnonzero(np.diff(index) != 1)
    return int(index[jumps[0] + 1]) if len(jumps) else int(index[-1]) + 1


def _lost(asked: Range, first: int, last: int, shape: Shape) -> None:
    if shape.fail_on_data_loss:
        raise DataLoss(asked.stream, asked.partition, first, last, "the hub did not return them")


def of_types(batches: Iterable[pa.RecordBatch], shape: Shape) -> Iterator[pa.RecordBatch]:
    """Only the records of the types asked for, if any were."""
    if shape.types is None:
        yield from batches
        return
    types = pa.array(shape.types, pa.string())
    for batch in batches:
        kept = batch.filter(pc.is_in(batch.column("type"), value_set=types))
        if kept.num_rows:
            yield kept


def regroup(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of a size that crosses to the JVM well: tiny ones joined, huge ones cut."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        large = batch.num_rows >= ROWS_PER_BATCH_MIN or batch.nbytes >= BYTES_PER_BATCH_MIN
        if not large:
            waiting.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
        if waiting and (large or rows >= ROWS_PER_BATCH_MIN or size >= BYTES_PER_BATCH_MIN):
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
        if large:
            yield from _cut(batch)
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    bytes_per_row = max(1, batch.nbytes // max(1, batch.num_rows))
    rows = max(1, min(ROWS_PER_BATCH_MAX, BYTES_PER_BATCH_MAX // bytes_per_row))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def shaped(batch: pa.RecordBatch, asked: Range | None, shape: Shape) -> pa.RecordBatch:
    """The batch with exactly the columns of `shape.schema`. Without `asked` it says itself where its records stand."""
    extra: dict[str, pa.Array] = {}
    if shape.decode == "json" and shape.fields is not None and {"value", "error"} & set(shape.schema.names):
        extra["value"], extra["error"] = decode_json(batch.column("payload"), shape.fields)
    columns = []
    for field in shape.schema:
        if field.name in extra:
            column = extra[field.name]
        elif asked is not None and field.name == "stream":
            column = _same_text(asked.stream, batch.num_rows)
        elif asked is not None and field.name == "partition":
            column = _same_number(asked.partition, batch.num_rows)
        else:
            column = batch.column(field.name)
        columns.append(column if column.type == field.type else _as_type(column, field))
    return pa.RecordBatch.from_arrays(columns, schema=shape.schema)


def _as_type(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        if field.name != "payload":
            raise
        raise ValueError(
            "a payload is not UTF-8 text, which decode=string asks for; read it raw, or send such rows to a dead "
            f"letter stream ({error})"
        ) from error


@lru_cache(maxsize=64)
def _same_text_full(text: str) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), ROWS_PER_BATCH_MAX)


def _same_text(text: str, count: int) -> pa.Array:
    if count > ROWS_PER_BATCH_MAX:
        return pa.repeat(pa.scalar(text, pa.string()), count)
    return _same_text_full(text).slice(0, count)


def _same_number(value: int, count: int) -> pa.Array:
    return pa.array(np.full(count, value, np.int32))
