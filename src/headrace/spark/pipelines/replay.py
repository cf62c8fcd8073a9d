"""Replay: a pipeline once more over history, from the archive and the log together, into a new sink.

The archive and the log overlap and each may lack what the other has: the log has lost what retention took, the archive
lags behind. The records of the archive are taken below the first index that the log still keeps, and the log's from
there on, so each record is read once; should retention move on meanwhile, the replay fails rather than leave a gap. The
live pipeline, its cursor and its checkpoint are not touched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

from headrace.spark import dataframes
from headrace.spark.errors import DataLoss, PipelineError
from headrace.spark.hub_client import HubPort, StreamState
from headrace.spark.options import Point, parse_point, parse_source
from headrace.spark.pipelines.archive import Archive
from headrace.spark.pipelines.definition import Pipeline, Sink
from headrace.spark.source.data_source import PlainReader
from headrace.spark.source.scan import of_types, shaped

# What says where a live query is, which a replay says itself.
LIVE_OPTIONS = {"start", "end", "cursor", "maxrecordsperbatch", "minrecordsperbatch"}


def history(
    spark: Any,
    port: HubPort,
    stream: str,
    *,
    archive: str | Path | None = None,
    start: str = "earliest",
    end: str = "latest",
    reading: Mapping[str, Any] | None = None,
) -> Any:
    """All records of a stream between two points, each once, as a DataFrame. `reading`: other options of the source."""
    states = port.describe([stream])
    if not states:
        raise PipelineError(f"there is no stream {stream!r}")
    state = states[0]
    begin, stop = parse_point("start", start), parse_point("end", end)
    given = {name: value for name, value in (reading or {}).items() if name.lower() not in LIVE_OPTIONS}
    options = dataframes.option_texts(given | {"hub": port.address, "end": end})
    starts = [_start_in_log(port, state, partition, begin) for partition in range(len(state.bounds))]
    live = dataframes.read(spark, stream, **options, start=json.dumps({stream: starts}))
    kept = None if archive is None else Archive(archive, spark)
    held = {} if kept is None else kept.ranges(stream)
    _check_whole(state, held, begin)
    if kept is None or not held:
        return live
    older = _between(_below_log(kept.frame(stream), state), begin, stop)
    return _decoded(older, live.schema, {**options, "stream": stream}).unionByName(live)


def _start_in_log(port: HubPort, state: StreamState, partition: int, begin: Point) -> int:
    first, after = state.bounds[partition]
    if begin.kind == "time":
        return max(first, port.index_at_time(state.name, partition, begin.value))
    return max(first, begin.value) if begin.kind == "index" else after if begin.kind == "latest" else first


def _check_whole(state: StreamState, held: Mapping[int, tuple[int, int]], begin: Point) -> None:
    """What is asked for must be in the archive up to where the log begins."""
    for partition, (first, _) in enumerate(state.bounds):
        index = begin.value if begin.kind == "index" else 0
        begins, after = held.get(partition, (0, 0))
        if begin.kind in ("earliest", "index") and index < min(begins, first):
            _missing(state.name, partition, index, min(begins, first) - 1)
        if begin.kind != "latest" and max(after, index) < first and (held or begin.kind != "time"):
            _missing(state.name, partition, max(after, index), first - 1)


def _missing(stream: str, partition: int, first: int, last: int) -> None:
    why = "neither the log nor an archive that was given has them; start further on (--start), or name the archive"
    raise DataLoss(stream, partition, first, last, why)


def _below_log(old: Any, state: StreamState) -> Any:
    kept = F.lit(False)
    for partition, (first, _) in enumerate(state.bounds):
        kept = kept | ((F.col("partition") == partition) & (F.col("index") < first))
    return old.where(kept)


def _between(frame: Any, start: Point, end: Point) -> Any:
    columns = {"index": F.col("index"), "time": F.unix_micros("time")}
    if start.kind in columns:
        frame = frame.where(columns[start.kind] >= F.lit(start.value))
    if end.kind in columns:
        frame = frame.where(columns[end.kind] < F.lit(end.value))
    return frame


def _decoded(old: Any, schema: Any, options: Mapping[str, str]) -> Any:
    """Archived records as the source itself would have shown them: decoded by the same code, of the same types."""
    shape = PlainReader(parse_source(options), schema).shape()

    def show(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in of_types(batches, shape):
            yield shaped(batch, None, shape)

    return old.mapInArrow(show, schema)


def replay(
    spark: Any,
    port: HubPort,
    pipeline: Pipeline,
    into: str | Sink,
    *,
    archive: str | Path | None = None,
    start: str = "earliest",
    end: str = "latest",
) -> None:
    """Run a pipeline over history as one bounded job, into a new stream or Parquet directory."""
    sink = Sink("stream", into) if isinstance(into, str) else into
    if sink.target == pipeline.sink.target:
        raise PipelineError(f"{sink.target!r} is what pipeline {pipeline.name!r} writes live; choose another sink")

    def past(*streams: str, **reading: Any) -> Any:
        names = [state.name for state in port.describe(streams)]
        if not names:
            raise PipelineError(f"the pipeline reads {', '.join(streams)}, of which none exists")
        parts = (history(spark, port, name, archive=archive, start=start, end=end, reading=reading) for name in names)
        return reduce(lambda left, right: left.unionByName(right), parts)

    write(pipeline.result(spark, past), sink, port.address)


def write(result: Any, sink: Sink, hub: str) -> None:
    """Write a bounded DataFrame into a sink."""
    if sink.kind == "stream":
        records = result if "streamColumn" in sink.options else dataframes.to_records(result)
        writer = records.write.format("headrace").mode("append").option("hub", hub)
        if sink.target:
            writer = writer.option("stream", sink.target)
        writer.save()
    elif sink.kind == "parquet":
        result.write.mode("errorifexists").parquet(sink.target)
    else:
        raise PipelineError(f"a replay goes into a stream or Parquet, not {sink.kind}")
