"""The format "headrace" of Spark: `spark.readStream.format("headrace").option("stream", "orders").load()`.

Where things run (Spark decides): planning runs in one Python process on the driver, per query; `read` runs in worker
processes, with a pickled copy of the reader, so readers keep nothing between calls but what can be found again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType, _parse_datatype_json_string

from headrace.errors import UnknownStream
from headrace.log.columns import COLUMNS
from headrace.log.segment import SegmentRef
from headrace.spark.errors import DataLoss
from headrace.spark.hub_client import Access, HubPort, StreamState, shared_port
from headrace.spark.options import Point, SinkOptions, SourceOptions, parse_sink, parse_source
from headrace.spark.sink.writers import BatchWriter, StreamWriter
from headrace.spark.source import offsets
from headrace.spark.source.offsets import Offset, Position, Range
from headrace.spark.source.pushdown import PushedFilters
from headrace.spark.source.scan import Piece, Shape, freeze_garbage, scan

TASKS_PER_CORE = 2
# A small range is most likely the live tail: asking for files would cost more than reading it over Flight.
MAPPED_RECORDS_MIN = 1_000
LATE_LOOKS_MAX = 10
LATE_LOOK_S = 0.5
_COLUMN_TYPES = {column.name: column.sql for column in COLUMNS} | {
    "stream": "STRING NOT NULL",
    "partition": "INT NOT NULL",
    "error": "STRING",
}


class HeadraceDataSource(DataSource):  # type: ignore[misc]
    """Streams of a Headrace hub as DataFrames, read and written."""

    access_default: Access | None = None
    format_name = "headrace"

    @classmethod
    def name(cls) -> str:
        return cls.format_name

    def _given(self) -> Mapping[str, str]:
        given: Any = self.options.copy()  # its keys know no case, unlike a dict's
        default = self.access_default
        if default is not None and given.setdefault("hub", default.address) == default.address:
            for name, value in (("token", default.token), ("ca", default.ca)):  # for this hub and no other
                if value is not None:
                    given.setdefault(name, value)
        return given  # type: ignore[no-any-return]

    def schema(self) -> str:
        options = parse_source(self._given())
        types = dict(_COLUMN_TYPES)
        if options.decode == "string":
            types["payload"] = "STRING NOT NULL"
        if options.value_schema:
            types["value"] = f"STRUCT<{_struct_fields(options.value_schema)}>"
        return ", ".join(f"`{name}` {types[name]}" for name in options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        given = self._given()
        # Spark refuses a reader that takes filters in a session that was not set up for it; `equip` sets it up.
        is_pushed = self.access_default is not None or "pushdown" in given
        options = parse_source(given)
        return (PushdownReader if options.pushdown and is_pushed else PlainReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(parse_source(self._given()), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(self._sink_options(overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return StreamWriter(self._sink_options(overwrite), schema)

    def _sink_options(self, overwrite: bool) -> SinkOptions:
        if overwrite:
            raise ValueError('a stream only grows: use mode "append"')
        return parse_sink(self._given())


def bound_source(access: Access, name: str = HeadraceDataSource.format_name) -> type[HeadraceDataSource]:
    """The data source with a default hub. A class made here is pickled whole, so workers get the address with it."""
    return type("HeadraceDataSource", (HeadraceDataSource,), {"access_default": access, "format_name": name})


def _struct_fields(ddl: str) -> str:
    """`a INT, b STRING` (or JSON of a schema) as the inside of STRUCT<...>."""
    text = ddl.strip()
    if text.startswith("{"):
        return str(_parse_datatype_json_string(text).simpleString()).removeprefix("struct<").removesuffix(">")
    if text.upper().startswith("STRUCT<"):
        return text[len("STRUCT<") : -1]
    return text


class _Source:
    """What batch and streaming readers share: they plan against the hub and read pieces the same way."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.spark_schema = schema
        freeze_garbage()

    @property
    def port(self) -> HubPort:
        return shared_port(self.options.access, self.options.wait_s)

    def states(self) -> list[StreamState]:
        """The streams asked for, with partitions that were not asked for shown as empty."""
        states = self.port.describe(self.options.streams)
        only = self.options.partitions
        if only is None:
            return states
        return [
            StreamState(state.name, state.id, tuple(b if p in only else (0, 0) for p, b in enumerate(state.bounds)))
            for state in states
        ]

    def point(self, point: Point, state: StreamState) -> list[int]:
        """A start or an end as one index per partition."""
        if point.kind == "earliest":
            return [first for first, _ in state.bounds]
        if point.kind == "latest":
            return [after for _, after in state.bounds]
        if point.kind == "index":
            return [point.value if after else 0 for _, after in state.bounds]
        if point.kind == "time":
            return [
                self.port.index_at_time(state.name, partition, point.value) if after else 0
                for partition, (_, after) in enumerate(state.bounds)
            ]
        if point.kind == "positions":
            given = point.positions.get(state.name, ())
            return [given[p] if p < len(given) and after else first for p, (first, after) in enumerate(state.bounds)]
        stored = self.port.position(self.options.cursor or "", state.name)
        return [first if at is None else at for (first, _), at in zip(state.bounds, stored, strict=True)]

    def pieces(self, ranges: Sequence[Range]) -> list[InputPartition]:
        """Ranges cut so that all cores work, each with the files that hold it."""
        tasks = self.options.tasks_max or TASKS_PER_CORE * (os.cpu_count() or 1)
        files: dict[str, dict[int, list[SegmentRef]]] = {}
        planned = []
        for piece in offsets.split(ranges, tasks, self.options.split_records_min):
            if self.options.memory_map and piece.count >= MAPPED_RECORDS_MIN and piece.stream not in files:
                files[piece.stream] = self.port.segments(piece.stream)
            known = files.get(piece.stream, {}).get(piece.partition, ())
            held = [file for file in known if file.first < piece.end and file.next > piece.start]
            planned.append(InputPartition(Piece(piece, tuple(held))))
        return planned

    def shape(self) -> Shape:
        fields = None
        if self.options.decode == "json" and "value" in self.spark_schema.fieldNames():
            fields = pa.schema(to_arrow_schema(self.spark_schema["value"].dataType, timezone="UTC"))
        elif self.options.decode == "json" and self.options.value_schema:
            fields = pa.schema([])
        return Shape(
            schema=to_arrow_schema(self.spark_schema, timezone="UTC"),
            decode=self.options.decode,
            fields=fields,
            types=self.options.types,
            fail_on_data_loss=self.options.fail_on_data_loss,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:
            return iter(())
        return scan(self.port, partition.value, self.shape())

    def complain(self, losses: Iterable[DataLoss]) -> None:
        """A loss is an error, unless the user said that it is not; then it is still said."""
        for loss in losses:
            if self.options.fail_on_data_loss:
                raise loss
            print(f"headrace: {loss}", flush=True)


class PlainReader(_Source, DataSourceReader):  # type: ignore[misc]
    """A bounded read: `spark.read.format("headrace")`."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self.filters = PushedFilters()

    def partitions(self) -> list[InputPartition]:
        states = self.states()
        missing = {name for name in self.options.streams if not _is_pattern(name)} - {state.name for state in states}
        if missing:
            raise UnknownStream(min(missing))
        ranges = [asked for state in states for asked in self._ranges(state)]
        kept, losses = offsets.clip(ranges, states)
        self.complain(losses)
        return self.pieces(kept)

    def _ranges(self, state: StreamState) -> Iterator[Range]:
        if not self.filters.wants("stream", state.name):
            return
        starts, ends = self.point(self.options.start, state), self.point(self.options.end, state)
        for partition, (_, after) in enumerate(state.bounds):
            if not self.filters.wants("partition", partition):
                continue
            low, high = self.filters.indexes()
            time_low_us, time_high_us = self.filters.times_us()
            if time_low_us is not None:
                low = max(low, self.port.index_at_time(state.name, partition, time_low_us))
            if time_high_us is not None:
                high = min(high, self.port.index_at_time(state.name, partition, time_high_us))
            start, end = max(starts[partition], low), min(ends[partition], after, high)
            if end > start:
                yield Range(state.name, partition, start, end)


class PushdownReader(PlainReader):
    """The same, narrowed by the filters of the query."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        for condition in filters:
            if not self.filters.take(condition):
                yield condition

    def shape(self) -> Shape:
        plain = super().shape()
        return replace(plain, types=self.filters.types(plain.types))


def _is_pattern(name: str) -> bool:
    return any(mark in name for mark in "*?[")


class StreamReader(_Source, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """An unbounded read: `spark.readStream.format("headrace")`."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._initial: Offset | None = None
        self._frozen: list[StreamState] | None = None
        self._seen: list[StreamState] | None = None

    def initialOffset(self) -> Offset:
        # Spark asks twice and expects the same answer; "latest" would differ.
        if self._initial is None:
            positions = {
                state.name: offsets.beginning(state, self.point(self.options.start, state)) for state in self.states()
            }
            self._initial = self._offset(positions)
        return self._initial

    def getDefaultReadLimit(self) -> Any:
        if self.options.records_per_batch_max is not None:
            return ReadMaxRows(self.options.records_per_batch_max)
        if self.options.records_per_batch_min is not None:
            return ReadMinRows(self.options.records_per_batch_min)
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: Any) -> Offset:
        states, missing = self._look(start)
        records_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        positions, losses = offsets.advance(offsets.back(start, missing), states, records_max)
        self.complain([*missing, *losses])
        end = self._offset(positions)
        waits = isinstance(limit, ReadMinRows) and self._frozen is None
        if waits and sum(batch.count for batch in offsets.ranges_between(start, end)) < limit.min_rows:
            return start
        return end

    def _look(self, start: Offset) -> tuple[list[StreamState], list[DataLoss]]:
        """The streams, and what was read and the hub does not have. If it only answered late, it has it in a moment."""
        self._seen = self.states() if self._frozen is None else self._frozen
        missing = offsets.beyond(start, self._seen, self.options.partitions)
        for _ in range(LATE_LOOKS_MAX):
            if not missing:
                break
            time.sleep(LATE_LOOK_S)
            self._seen = self.states()
            self._frozen = None if self._frozen is None else self._seen
            missing = offsets.beyond(start, self._seen, self.options.partitions)
        return self._seen, missing

    def reportLatestOffset(self) -> Offset:
        # Spark asks right after `latestOffset`; what that saw is new enough to show the lag.
        states, self._seen = self._seen or self.states(), None
        return self._offset(
            {state.name: offsets.beginning(state, [after for _, after in state.bounds]) for state in states}
        )

    def prepareForTriggerAvailableNow(self) -> None:
        self._frozen = self.states()

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        kept, losses = offsets.clip(offsets.ranges_between(start, end), self.port.describe(self.options.streams))
        self.complain(losses)
        return self.pieces(kept)

    def commit(self, end: Offset) -> None:
        # Late by one batch and never called for the last one: cursors.py is what moves cursors promptly.
        if self.options.move_cursor:
            for (_, cursor), positions in offsets.cursor_positions([end]).items():
                self.port.move_cursor(cursor, positions)

    def stop(self) -> None:
        self.port.close()

    def _offset(self, positions: Mapping[str, Position]) -> Offset:
        return offsets.make(positions, self.options.cursor, self.options.access.address, self.options.partitions)
