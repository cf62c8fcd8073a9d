"""Replay: a pipeline once more over history, from the archive and the log together, into a new sink.

The archive and the log overlap and each may lack what the other has: the log has lost what retention took, the archive
lags behind. The records of the archive are taken below the first index that the log still keeps, and the log's from
there on, so each record is read once. The live pipeline, its cursor and its checkpoint are not touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from headrace.spark import frames
from headrace.spark.archive import Archive
from headrace.spark.errors import DataLoss, PipelineError
from headrace.spark.options import Point, parse_point
from headrace.spark.pipelines import Pipeline, Sink
from headrace.spark.port import HubPort, StreamState


def history(
    spark: Any,
    port: HubPort,
    stream: str,
    *,
    archive: Path | None = None,
    start: str = "earliest",
    end: str = "latest",
    reading: Mapping[str, Any] | None = None,
) -> Any:
    """All records of a stream between two points, each once, as a DataFrame."""
    found_streams = port.describe([stream])
    if not found_streams:
        raise PipelineError(f"there is no stream {stream!r}")
    state = found_streams[0]
    options = {name: value for name, value in (reading or {}).items() if name != "maxRecordsPerBatch"}
    decode, schema = str(options.get("decode") or "raw"), options.get("schema")
    live = frames.read(spark, stream, **options, hub=port.address)
    found = [_between(live, parse_point("start", start), parse_point("end", end))]
    old = None if archive is None else Archive(archive).frame(spark, stream)
    if old is not None:
        _check_whole(Archive(archive or ""), state)
        below = _below_log(old, state)
        older = _between(below, parse_point("start", start), parse_point("end", end))
        found.insert(0, frames.decoded(older, decode, schema).select(*live.columns))
    elif parse_point("start", start).kind == "earliest" and any(first for first, _ in state.bounds):
        partition, first = next((p, first) for p, (first, _) in enumerate(state.bounds) if first)
        raise DataLoss(stream, partition, 0, first - 1, "they are not in the log, and no archive was given")
    return reduce(lambda left, right: left.unionByName(right), found)


def _check_whole(archive: Archive, state: StreamState) -> None:
    """The archive must reach up to where the log begins."""
    after = archive.next_indexes(state.name)
    for partition, (first, _) in enumerate(state.bounds):
        if after.get(partition, 0) < first:
            raise DataLoss(
                state.name, partition, after.get(partition, 0), first - 1, "neither the archive nor the log has them"
            )


def _below_log(old: Any, state: StreamState) -> Any:
    from pyspark.sql import functions as F

    kept = F.lit(False)
    for partition, (first, _) in enumerate(state.bounds):
        kept = kept | ((F.col("partition") == partition) & (F.col("index") < first))
    return old.where(kept)


def _between(frame: Any, start: Point, end: Point) -> Any:
    from pyspark.sql import functions as F

    if start.kind in ("index", "time"):
        frame = frame.where(_position(start) >= F.lit(start.value))
    if end.kind in ("index", "time"):
        frame = frame.where(_position(end) < F.lit(end.value))
    return frame


def _position(point: Point) -> Any:
    from pyspark.sql import functions as F

    return F.col("index") if point.kind == "index" else F.unix_micros("time")


def replay(
    spark: Any,
    port: HubPort,
    pipeline: Pipeline,
    into: str | Sink,
    *,
    archive: Path | None = None,
    start: str = "earliest",
    end: str = "latest",
) -> None:
    """Run a pipeline over history as one bounded job, into a new stream or Parquet directory."""
    sink = Sink("stream", into) if isinstance(into, str) else into
    if sink.target == pipeline.sink.target:
        raise PipelineError(f"{sink.target!r} is what pipeline {pipeline.name!r} writes live; choose another sink")
    if pipeline.sql is not None:
        raise PipelineError("a pipeline in SQL is replayed by running its text: headrace sql")
    inputs = {}
    for name, streams in pipeline.sources.items():
        parts = [
            history(spark, port, one.name, archive=archive, start=start, end=end, reading=pipeline.reading())
            for one in port.describe(streams)
        ]
        if not parts:
            raise PipelineError(f"pipeline {pipeline.name!r} reads {', '.join(streams)}, of which none exists")
        inputs[name] = reduce(lambda left, right: left.unionByName(right), parts)
    write(pipeline.apply(inputs), sink, port.address)


def write(result: Any, sink: Sink, hub: str) -> None:
    """Write a bounded DataFrame into a sink."""
    if sink.kind == "stream":
        records = result if "streamColumn" in sink.options else frames.to_records(result)
        writer = records.write.format("headrace").mode("append").option("hub", hub)
        if sink.target:
            writer = writer.option("stream", sink.target)
        writer.save()
    elif sink.kind == "parquet":
        result.write.mode("errorifexists").parquet(sink.target)
    else:
        raise PipelineError(f"a replay goes into a stream or Parquet, not {sink.kind}")
