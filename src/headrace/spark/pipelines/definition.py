"""Pipelines as code: a function from DataFrame to DataFrame, with a source, a sink and a name.

    from headrace.spark import pipeline

    @pipeline(source="orders", sink="orders.big", decode="json", schema="item STRING, price DOUBLE")
    def big_orders(orders):
        return orders.where("value.price > 100").select("value.*")

`headrace pipeline run orders.py` runs every pipeline of a file. A definition is only data: nothing starts a JVM until
it is run.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.spark.errors import PipelineError

TRIGGER_DEFAULT = "100 milliseconds"
RECORDS_PER_BATCH_DEFAULT = 1_000_000

Transform = Callable[..., Any]


@dataclass(frozen=True)
class Sink:
    """Where results go: kind "stream", "parquet", "console", "memory", or "archive"."""

    kind: str
    target: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


def parquet(path: str | Path, **options: str) -> Sink:
    """Results as Parquet files, exactly once."""
    return Sink("parquet", str(path), options)


def console(**options: str) -> Sink:
    """Results on the terminal, for trying things out."""
    return Sink("console", "", options)


@dataclass(frozen=True)
class Pipeline:
    """A pipeline, ready to run. Made by the decorator `pipeline`, by `sql_pipeline` or by a built-in."""

    name: str
    sink: Sink
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    transform: Transform | None = None
    sql: str | None = None
    trigger: str = TRIGGER_DEFAULT
    watermark: tuple[str, str] | None = None
    start: str = "earliest"
    output_mode: str = "append"
    decode: str = "raw"
    schema: str | None = None
    source_options: Mapping[str, Any] = field(default_factory=dict)
    records_per_batch_max: int | None = RECORDS_PER_BATCH_DEFAULT
    description: str = ""

    def result(self, spark: Any, load: Callable[..., Any], **options: Any) -> Any:
        """The DataFrame that it computes from what `load(*streams, **options)` makes of its sources."""
        reading = {"decode": self.decode, "schema": self.schema, "maxRecordsPerBatch": self.records_per_batch_max}
        options = reading | dict(self.source_options) | options
        if self.sql is not None:
            from headrace.spark.query import bind

            return bind(spark, self.sql, load, **options)
        return self.apply({name: load(*streams, **options) for name, streams in self.sources.items()})

    def apply(self, frames: Mapping[str, Any]) -> Any:
        """The result for these input frames."""
        if self.transform is None:
            (frame,) = frames.values()
            return frame
        prepared = {name: self._watermarked(frame) for name, frame in frames.items()}
        return self.transform(*prepared.values()) if len(prepared) == 1 else self.transform(**prepared)

    def _watermarked(self, frame: Any) -> Any:
        if self.watermark is None or not frame.isStreaming:
            return frame
        column, delay = self.watermark
        if "." in column:
            # A watermark stands on a column of its own; a field of a decoded value becomes one.
            name = column.rpartition(".")[2]
            column, frame = name, frame.withColumn(name, frame[column])
        return frame.withWatermark(column, delay)


def pipeline(
    source: str | Sequence[str] | Mapping[str, str | Sequence[str]],
    sink: str | Sink,
    *,
    name: str | None = None,
    trigger: str = TRIGGER_DEFAULT,
    watermark: str | tuple[str, str] | None = None,
    start: str = "earliest",
    output_mode: str = "append",
    decode: str = "raw",
    schema: str | None = None,
    records_per_batch_max: int | None = RECORDS_PER_BATCH_DEFAULT,
    **source_options: Any,
) -> Callable[[Transform], Pipeline]:
    """Make a pipeline of a function.

    `source`: a stream, a pattern, a list (one DataFrame of all of them), or a mapping of argument names to streams
    (the function then takes one DataFrame per name). `sink`: a stream's name, `parquet(path)` or `console()`.
    `trigger`: "1 second", "available now" (run until caught up), "once", or "real time". `watermark`: a delay, of
    `event_time`, or (column, delay).
    """

    def make(transform: Transform) -> Pipeline:
        return Pipeline(
            name=name or transform.__name__.replace("_", "-"),
            sink=Sink("stream", sink) if isinstance(sink, str) else sink,
            sources=_sources(source),
            transform=transform,
            trigger=trigger,
            watermark=("event_time", watermark) if isinstance(watermark, str) else watermark,
            start=start,
            output_mode=output_mode,
            decode=decode,
            schema=schema,
            source_options=source_options,
            records_per_batch_max=records_per_batch_max,
            description=(transform.__doc__ or "").strip().partition("\n")[0],
        )

    return make


def sql_pipeline(
    name: str, text: str, into: str | Sink, *, trigger: str = "", start: str = "earliest", output_mode: str = "append"
) -> Pipeline:
    """A pipeline from a SQL text over `stream('name')`."""
    from headrace.sql.calls import stream_calls

    names = _streams([stream for call in stream_calls(text) for stream in call.names])
    if not names:
        raise PipelineError(f"pipeline {name!r} reads no stream: its SQL has no stream('name')")
    return Pipeline(
        name=name,
        sink=Sink("stream", into) if isinstance(into, str) else into,
        sources={"sql": names},
        sql=text,
        trigger=trigger or TRIGGER_DEFAULT,
        start=start,
        output_mode=output_mode,
    )


def _sources(source: str | Sequence[str] | Mapping[str, str | Sequence[str]]) -> dict[str, tuple[str, ...]]:
    if isinstance(source, Mapping):
        return {name: _streams(streams) for name, streams in source.items()}
    return {"source": _streams(source)}


def _streams(names: str | Sequence[str]) -> tuple[str, ...]:
    """Streams one by one; the source takes several in one text, with commas between them."""
    given = [names] if isinstance(names, str) else names
    return tuple(word.strip() for text in given for word in text.split(",") if word.strip())


def load_file(path: str | Path) -> list[Pipeline]:
    """Every pipeline that a Python file defines, in order."""
    file = Path(path)
    if not file.is_file():
        raise PipelineError(f"there is no file {str(path)!r}")
    if file.suffix == ".sql":
        raise PipelineError(f"{str(path)!r} is SQL: use `headrace pipeline create NAME --sql @{path} --into STREAM`")
    pipelines = [value for value in runpy.run_path(str(file)).values() if isinstance(value, Pipeline)]
    if not pipelines:
        raise PipelineError(f"{str(path)!r} defines no pipeline; decorate a function with headrace.spark.pipeline")
    names = [definition.name for definition in pipelines]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise PipelineError(f"{str(path)!r} defines {', '.join(sorted(twice))} twice")
    return pipelines


def with_trigger(pipeline: Pipeline, trigger: str | None) -> Pipeline:
    """The same pipeline with another trigger, if one is given."""
    return pipeline if not trigger else replace(pipeline, trigger=trigger)
