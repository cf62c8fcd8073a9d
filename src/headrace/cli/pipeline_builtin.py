"""The pipelines that come with Headrace, each a command of `headrace pipeline`."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.options import sharing
from headrace.cli.output import fail, notes, print_json
from headrace.cli.pipeline_run import run_all
from headrace.cli.spark_options import RunOptions

app = typer.Typer()


@app.command()
@sharing(how=RunOptions)
def archive(
    streams: Annotated[list[str], typer.Argument(help="Streams or patterns.")],
    path: Annotated[str, typer.Option("--to", help="Directory for the Parquet files.")],
    *,
    how: RunOptions,
) -> None:
    """Archive streams to Parquet by date, exactly once; the cursor says what may be discarded."""
    from headrace.spark.pipelines.builtin import archive as make

    run_all([make(streams, path)], how)


@app.command()
@sharing(how=RunOptions)
def merge(
    streams: Annotated[list[str], typer.Argument(help="Streams or patterns.")],
    into: Annotated[str, typer.Option("--into", help="The new stream.")],
    *,
    how: RunOptions,
) -> None:
    """Merge partitions and streams into one stream with new indexes."""
    from headrace.spark.pipelines.builtin import merge as make

    run_all([make(streams, into)], how)


@app.command()
@sharing(how=RunOptions)
def route(
    source: str,
    by_type: Annotated[str | None, typer.Option("--by-type", help="Stream by type, such as 'orders.{type}'.")] = None,
    rule: Annotated[list[str] | None, typer.Option("--rule", help="'SQL condition => stream'. Repeatable.")] = None,
    otherwise: Annotated[str | None, typer.Option("--otherwise", help="Stream for the rest.")] = None,
    *,
    how: RunOptions,
) -> None:
    """Send each record to one stream, by its type or by the first condition that holds."""
    from headrace.spark.pipelines.builtin import route as make

    rules = []
    for text in rule or []:
        condition, separator, stream = text.rpartition("=>")
        if not separator:
            fail(f"--rule {text!r} is not 'CONDITION => STREAM'")
        rules.append((condition.strip(), stream.strip()))
    run_all([make(source, by_type=by_type, rules=rules, otherwise=otherwise)], how)


@app.command("dead-letter")
@sharing(how=RunOptions)
def dead_letter(
    source: str,
    schema: Annotated[str, typer.Option("--schema", help="Columns of the JSON, such as 'item STRING, price DOUBLE'.")],
    into: Annotated[str, typer.Option("--into", help="Stream for the good records.")],
    dead: Annotated[str, typer.Option("--dead", help="Stream for the others; SOURCE.dead unless given.")] = "",
    *,
    how: RunOptions,
) -> None:
    """Pass on records whose JSON fits a schema; send the others to SOURCE.dead, with the reason."""
    from headrace.spark.pipelines.builtin import dead_letter as make

    run_all([make(source, schema, into, dead=dead)], how)


@app.command()
@sharing(how=RunOptions)
def redrive(
    dead: Annotated[str, typer.Argument(help="A stream of dead letters.")],
    into: Annotated[
        str | None, typer.Option("--into", help="Send all of them to this stream instead of the one each came from.")
    ] = None,
    *,
    how: RunOptions,
) -> None:
    """Send dead letters again, each once: they leave the stream in the same step. The hub does it; no Spark starts."""
    port = how.port()
    (state,) = port.describe([dead]) or fail(f"there is no stream {dead!r}")
    count, streams = 0, set()
    for partition, (first, after) in enumerate(state.bounds):
        left = after - first
        while left:
            request = {"stream": dead, "before": after, "into": into, "partition": partition}
            done = port.call("dead.redrive", request)
            count, left = count + done["count"], done["left"]
            streams.update(done["streams"])
    if how.as_json:
        print_json({"count": count, "streams": sorted(streams)})
    elif not how.quiet:
        notes().print(f"sent {count} again" + (f", to {', '.join(sorted(streams))}" if streams else ""))


@app.command("window-counts")
@sharing(how=RunOptions)
def window_counts(
    source: str,
    into: Annotated[str, typer.Option("--into", help="Stream for the counts; SOURCE.counts unless given.")] = "",
    window: Annotated[str, typer.Option("--window", help="Length of a window.")] = "1 minute",
    by: Annotated[str, typer.Option("--by", help="What to count by, in SQL.")] = "type",
    delay: Annotated[str, typer.Option("--delay", help="How late a record may arrive.")] = "10 seconds",
    *,
    how: RunOptions,
) -> None:
    """Count records in windows of event time."""
    from headrace.spark.pipelines.builtin import window_counts as make

    run_all([make(source, into, window=window, by=by, delay=delay)], how)
