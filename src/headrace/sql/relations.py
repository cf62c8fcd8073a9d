"""Streams and tables as DuckDB sees them in the process: it asks for columns and rows, and no more is read.

DuckDB hands over the columns that it needs and a filter as an Arrow expression, and leaves it to the source to obey. Of
the filter the hub is told the least and greatest index, the least and greatest time, and which partitions can hold
a row that passes; Arrow itself says so (`_can_match`), by what it would use to leave out files. Rows are filtered here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as fs

from headrace.errors import BadSql
from headrace.sql import wire

PLACES_LOOKED_AT_MAX = 256
ORIGIN = (pa.field("stream", pa.string()), pa.field("partition", pa.int32()))
"""Columns that name where a record came from. They are not sent."""
TIME = pa.timestamp("us", tz="UTC")
TIME_MAX_US = 1 << 53
_NOWHERE = fs.LocalFileSystem()
_FORMAT = ds.IpcFileFormat()


class Hub:
    """What the process asks the hub, for any of DuckDB's threads."""

    def __init__(self, connection: wire.Wire) -> None:
        self._wire = connection
        self._lock = threading.Lock()

    def ask(self, message: wire.Message, kind: type[wire.Message]) -> tuple[Any, memoryview]:
        with self._lock:
            self._wire.send(message)
            answer, body = self._wire.receive()
        if isinstance(answer, wire.Failed):
            raise BadSql(answer.text)
        if not isinstance(answer, kind):
            raise wire.Gone(f"it answered with {type(answer).__name__}")
        return answer, body

    def send(self, message: wire.Message, body: Any = b"") -> None:
        """Something of the result; returns when the hub wants more."""
        with self._lock:
            self._wire.send(message, body)
            if isinstance(message, wire.Rows):
                self._wire.receive()


class Source(ds.Dataset):  # type: ignore[misc]
    """A relation. DuckDB takes what is a `Dataset` and uses its `schema` and `scanner`."""

    def __init__(self, hub: Hub, relation: wire.Relation, sent: pa.Schema) -> None:
        self._hub = hub
        self._relation = relation
        self._sent = sent
        self._is_stream = relation.is_stream
        self._schema = pa.schema([*sent, *ORIGIN]) if self._is_stream else sent

    @property
    def schema(self) -> pa.Schema:
        """All columns."""
        return self._schema

    def scanner(self, columns: list[str] | None = None, filter: pc.Expression | None = None, **_: Any) -> Scanner:
        """Read it once."""
        columns = self._schema.names if columns is None else columns
        return Scanner(pa.schema([self._schema.field(name) for name in columns]), self._batches(columns, filter))

    def _batches(self, columns: list[str], filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        text = "" if filter is None else str(filter)
        named = {*columns, *(name for name in self._schema.names if name in text)}
        sent = [name for name in self._sent.names if name in named] or self._sent.names[:1]
        bounds = wire.Bounds() if filter is None else self.bounds(filter, text)
        schema = pa.schema([self._sent.field(name) for name in sent])
        for part, body in self.parts(sent, bounds):
            batch = pa.ipc.read_record_batch(pa.py_buffer(body), schema)
            table = pa.Table.from_batches([self._with_origin(batch, part.place, named)])
            if filter is not None:
                table = table.filter(filter)
            yield from table.select(columns).combine_chunks().to_batches()

    def parts(self, columns: list[str], bounds: wire.Bounds) -> Iterator[tuple[wire.Part, memoryview]]:
        """What the hub sends."""
        opened, _ = self._hub.ask(wire.Scan(self._relation.number, columns, bounds), wire.Opened)
        part = None
        try:
            while True:
                part, body = self._hub.ask(wire.Next(opened.scan), wire.Part)
                if not part.rows:
                    return
                yield part, body
        finally:
            if part is None or part.rows:
                self._hub.ask(wire.Next(opened.scan, close=True), wire.Part)

    def _with_origin(self, batch: pa.RecordBatch, place: int, named: set[str]) -> pa.RecordBatch:
        if self._is_stream:
            for field, value in zip(ORIGIN, self._relation.places[place], strict=False):
                if field.name in named:
                    batch = batch.append_column(field, pa.repeat(pa.scalar(value, field.type), batch.num_rows))
        return batch

    def bounds(self, filter: pc.Expression, text: str) -> wire.Bounds:
        """What can pass a filter at most."""
        places = self._relation.places
        if not self._is_stream or not places:
            return wire.Bounds()
        first, last = min(each[2] for each in places), max(each[3] for each in places) - 1
        index = self._range(filter, "index", first, last, pa.int64()) if "index" in text else (None, None)
        times = self._range(filter, "time", 0, TIME_MAX_US, TIME) if "time" in text else (None, None)
        wanted = None
        if any(field.name in text for field in ORIGIN) and len(places) <= PLACES_LOOKED_AT_MAX:
            wanted = [number for number, place in enumerate(places) if self._can_match(filter, _is_at(place))]
        return wire.Bounds(*index, *times, wanted)

    def _range(
        self, filter: pc.Expression, column: str, low: int, high: int, kind: pa.DataType
    ) -> tuple[int | None, int | None]:
        """The least and greatest value of a column with which a row can pass. None: no bound was found there."""
        field = pc.field(column)

        def can_match_below(value: int) -> bool:
            return self._can_match(filter, field <= pa.scalar(value, kind))

        def can_match_above(value: int) -> bool:
            return self._can_match(filter, field >= pa.scalar(value, kind))

        least = _first_true(can_match_below, low, high)
        greatest = -_first_true(lambda value: can_match_above(-value), -high, -low)
        return (None if least == low else least), (None if greatest == high else greatest)

    def _can_match(self, filter: pc.Expression, known: pc.Expression) -> bool:
        """Whether a row of which `known` is true can pass."""
        piece = _FORMAT.make_fragment("none", filesystem=_NOWHERE, partition_expression=known)
        return any(ds.FileSystemDataset([piece], self._schema, _FORMAT, _NOWHERE).get_fragments(filter=filter))


def _is_at(place: tuple[str, int, int, int]) -> pc.Expression:
    return (pc.field("stream") == place[0]) & (pc.field("partition") == pa.scalar(place[1], pa.int32()))


class Scanner:
    """What DuckDB expects of a scanner."""

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self.projected_schema = schema
        self._batches = batches

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches)


def _first_true(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The least value for which it holds, of a thing that holds from some value on; `high` if for none before it."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
