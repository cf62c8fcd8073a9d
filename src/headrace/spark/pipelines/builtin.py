"""Pipelines that come with Headrace, each one command: archive, merge, route, dead letters, window counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import functions as F

from headrace.spark.errors import PipelineError
from headrace.spark.hub.dead_letters import LETTER_TYPE, SUFFIX
from headrace.spark.pipelines.definition import Pipeline, Sink
from headrace.spark.sink.rows import ACCEPTED

ROUTE_COLUMN = "route_to"


def archive(streams: Sequence[str], path: str, *, name: str = "") -> Pipeline:
    """A stream, or several, to Parquet files by date; see archive.py for what that promises."""
    return Pipeline(
        name=name or "archive/" + _joined(streams),
        sink=Sink("archive", path),
        sources={"source": tuple(streams)},
        trigger="10 seconds",
        description=f"Archive of {', '.join(streams)}",
    )


def merge(streams: Sequence[str], into: str, *, name: str = "") -> Pipeline:
    """All partitions of some streams into one stream with new indexes.

    Records of one source partition keep their order. Between partitions there is no order to keep; within a batch
    they follow each other by stream and partition.
    """
    if into in streams:
        raise PipelineError(f"cannot merge {into!r} into itself")

    def transform(source: Any) -> Any:
        return source.select(*ACCEPTED)

    return Pipeline(
        name=name or f"merge/{into}",
        sink=Sink("stream", into, {"partitions": "1"}),
        sources={"source": tuple(streams)},
        transform=transform,
        description=f"{', '.join(streams)} merged into {into}",
    )


def route(
    source: str,
    *,
    by_type: str | None = None,
    rules: Sequence[tuple[str, str]] = (),
    otherwise: str | None = None,
    name: str = "",
) -> Pipeline:
    """Each record to one stream: by its type ("orders.{type}"), or by the first SQL condition that holds.

    Conditions see the record's columns, and the payload as text under `text`. A record that fits nothing goes to
    `otherwise`, or nowhere.
    """
    if (by_type is None) == (not rules):
        raise PipelineError("route by type or by rules")
    if by_type is not None and "{type}" not in by_type:
        raise PipelineError(f"{by_type!r} names one stream only; put {{type}} where the type goes")

    def transform(records: Any) -> Any:
        seen = records.withColumn("text", F.col("payload").cast("string"))
        if by_type is not None:
            before, _, after = by_type.partition("{type}")
            to = F.when(F.col("type").isNotNull(), F.concat(F.lit(before), F.col("type"), F.lit(after)))
        else:
            to = F.lit(None).cast("string")
            for condition, stream in reversed(rules):
                to = F.when(F.expr(condition), F.lit(stream)).otherwise(to)
        chosen = F.coalesce(to, F.lit(otherwise)) if otherwise else to
        return (
            seen.withColumn(ROUTE_COLUMN, chosen).where(f"{ROUTE_COLUMN} IS NOT NULL").select(*ACCEPTED, ROUTE_COLUMN)
        )

    return Pipeline(
        name=name or f"route/{source}",
        sink=Sink("stream", "", {"streamColumn": ROUTE_COLUMN}),
        sources={"source": (source,)},
        transform=transform,
        description=f"{source} routed",
    )


def dead_letter(source: str, schema: str, into: str, *, dead: str = "", name: str = "") -> Pipeline:
    """Records that are JSON of this schema go on to `into` unchanged; the others to `<source>.dead` with a reason.

    A dead letter is a JSON object with the reason, where the record stood, and all of its columns (bytes in base64),
    so that the hub can send exactly the same record again (verb `dead.redrive`).
    """
    graveyard = dead or source + SUFFIX

    def transform(records: Any) -> Any:
        kept = ["stream", "partition", "index", "time", *(name for name in ACCEPTED if name != "payload"), "payload"]
        letter = F.to_json(F.struct(F.col("error").alias("reason"), *kept)).cast("binary")
        bad = F.col("error").isNotNull()
        of_dead = {"payload": letter, "type": F.lit(LETTER_TYPE)}
        return records.select(
            *(
                F.when(bad, of_dead[name]).otherwise(F.col(name)).alias(name) if name in of_dead else name
                for name in ACCEPTED
            ),
            F.when(bad, F.lit(graveyard)).otherwise(F.lit(into)).alias(ROUTE_COLUMN),
        )

    return Pipeline(
        name=name or f"dead-letter/{source}",
        sink=Sink("stream", "", {"streamColumn": ROUTE_COLUMN}),
        sources={"source": (source,)},
        transform=transform,
        decode="json",
        schema=schema,
        description=f"{source}: good records into {into}, bad ones into {graveyard}",
    )


def window_counts(
    source: str,
    into: str = "",
    *,
    window: str = "1 minute",
    by: str = "type",
    delay: str = "10 seconds",
    name: str = "",
) -> Pipeline:
    """The worked example: how many records of each type (or of any expression) in each window of event time.

    A record without an event time counts by the time at which the hub accepted it. A window's counts are written
    once, when the watermark says that nothing more belongs to it.
    """

    def transform(records: Any) -> Any:
        timed = records.select(F.coalesce("event_time", "time").alias("at"), F.expr(by).alias("what"))
        counted = timed.withWatermark("at", delay).groupBy(F.window("at", window), "what").count()
        return counted.select(
            F.col("window.start").alias("start"),
            F.col("window.end").alias("end"),
            F.col("what").alias("key"),
            "count",
            F.col("window.end").alias("event_time"),
        )

    return Pipeline(
        name=name or f"window-counts/{source}",
        sink=Sink("stream", into or f"{source}.counts"),
        sources={"source": (source,)},
        transform=transform,
        source_options={"columns": "time,event_time,type" if by == "type" else None},
        description=f"Counts of {source} by {by} in windows of {window}",
    )


def _joined(streams: Sequence[str]) -> str:
    return "+".join(streams).replace("*", "all").replace("+", "-and-")
