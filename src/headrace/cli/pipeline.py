"""`headrace pipeline`: run and watch Spark pipelines."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.options import Answer, HubOptions, sharing
from headrace.cli.output import fail, notes
from headrace.cli.pipeline_builtin import app as builtin_commands
from headrace.cli.pipeline_run import created, find, run_all
from headrace.cli.spark_options import RunOptions, SparkOptions, port_of
from headrace.spark.pipelines.checkpoints import default_home
from headrace.spark.pipelines.definition import Sink, sql_pipeline

app = typer.Typer(no_args_is_help=True)


@app.callback()
def pipeline() -> None:
    """Run and watch Spark pipelines."""


@app.command()
@sharing(how=RunOptions)
def run(
    what: Annotated[
        list[str] | None, typer.Argument(help="A Python file, FILE:NAME, or names of created pipelines; all if none.")
    ] = None,
    trigger: Annotated[
        str | None, typer.Option("--trigger", help="Use this instead of the pipelines' own setting.")
    ] = None,
    *,
    how: RunOptions,
) -> None:
    """Run pipelines until they end or are stopped."""
    port = how.port()
    pipelines = [pipeline for text in what for pipeline in find(text, port)] if what else created(port, None)
    if not pipelines:
        fail("there is no pipeline to run: name a file, or create one with `headrace pipeline create`")
    run_all(pipelines, how, trigger)


@app.command("ls")
@sharing(answer=Answer)
def list_pipelines(answer: Answer) -> None:
    """Pipelines that are defined at the hub, or that run against it."""
    columns = ["name", "state", "#batch", "#rows/s", "#batch ms", "#lag", "#state rows", "error"]
    with answer.connect() as client:
        answer.listing(client.entries("pipeline.list", {}, dict), columns, _row, empty="no pipelines")


def _row(status: dict[str, Any]) -> list[Any]:
    report = status["report"]
    if report is None:
        return [status["name"], status["state"], *[None] * 6]
    numbers = [f"{report[name]:,.0f}" for name in ("rows_per_s", "batch_ms", "lag", "state_rows")]
    return [status["name"], status["state"], report["batch"], *numbers, report["error"]]


@app.command()
@sharing(answer=Answer)
def status(answer: Answer, name: str) -> None:
    """Show everything about one pipeline."""
    pipeline = answer.call("pipeline.status", {"name": name})
    rows = [("state", pipeline["state"])]
    for part in ("definition", "report"):
        rows += [(key, value) for key, value in (pipeline[part] or {}).items() if key not in ("name", "state")]
    answer.table(pipeline, ["what", "value"], rows)


@app.command()
@sharing(hub=HubOptions)
def create(
    hub: HubOptions,
    name: str,
    sql: Annotated[str, typer.Option("--sql", help="The SQL text, or @FILE.")] = "",
    file: Annotated[str, typer.Option("--file", help="A Python file instead.")] = "",
    project: Annotated[str, typer.Option("--project", help="A folder of Declarative Pipelines instead.")] = "",
    into: Annotated[str, typer.Option("--into", help="The stream for the results of a SQL text.")] = "",
    trigger: Annotated[str, typer.Option("--trigger", help="Interval between batches.")] = "",
    start: Annotated[str, typer.Option("--start", help="earliest, latest, an index or a time.")] = "earliest",
    output_mode: Annotated[str, typer.Option("--output-mode", help="append, update or complete.")] = "append",
) -> None:
    """Define a pipeline at the hub; `headrace pipeline run NAME` runs it."""
    text = Path(sql[1:]).read_text() if sql.startswith("@") else sql
    if text:
        sql_pipeline(name, text, into)  # refuses what cannot run, here where it can be read
    path = str(Path(file).resolve()) if file else ""
    folder = str(Path(project).resolve()) if project else ""
    fields = {"name": name, "sql": text, "file": path, "project": folder, "into": into, "trigger": trigger}
    fields["start"] = start
    hub.call("pipeline.create", {**fields, "output_mode": output_mode})
    notes().print(f"created {name}; run it with `headrace pipeline {'start' if project else 'run'} {name}`")


@app.command()
@sharing(hub=HubOptions)
def delete(hub: HubOptions, name: str) -> None:
    """Delete a pipeline, stopping it if it is running."""
    hub.call("pipeline.delete", {"name": name})


@app.command()
@sharing(hub=HubOptions)
def start(hub: HubOptions, name: str) -> None:
    """Have the hub run a pipeline that is defined there, in its own process."""
    status = hub.call("pipeline.start", {"name": name})
    notes().print(f"{name} is {status['state']}; `headrace pipeline ls` shows how it is doing")


@app.command()
@sharing(hub=HubOptions)
def stop(hub: HubOptions, name: str) -> None:
    """Ask a running pipeline to stop after its batch."""
    status = hub.call("pipeline.stop", {"name": name})
    notes().print(f"{name} is {status['state']}" + ("; it was asked to stop" if status["report"] else ""))


@app.command()
@sharing(hub=HubOptions)
def reset(
    name: str,
    source: Annotated[list[str] | None, typer.Option("--source", help="Streams that it reads.")] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--start", help="Start over from there and store the results again; without it, continue at the cursor."
        ),
    ] = None,
    home: Annotated[Path | None, typer.Option("--home", help="Where checkpoints live.")] = None,
    *,
    hub: HubOptions,
) -> None:
    """Delete a pipeline's checkpoint, for example after its state has changed shape.

    It continues where its stored results end. State such as open windows is lost.
    """
    from headrace.spark.pipelines.runner import reset as forget

    forget(port_of(hub), home or default_home(), name, source or ["*"], start)
    notes().print(f"{name} starts over" + (f" at {start}" if start else " at its cursor"))


@app.command()
@sharing(how=SparkOptions)
def explain(what: str, *, how: SparkOptions) -> None:
    """What a pipeline reads and writes, and Spark's plan for it."""
    from headrace.spark.dataframes import read_stream

    for pipeline in find(what, how.port()):
        spark = how.session()
        reads = ", ".join(stream for streams in pipeline.sources.values() for stream in streams)
        target = pipeline.sink.target or pipeline.sink.options.get("streamColumn", "")
        how_often = f"trigger {pipeline.trigger}, {pipeline.output_mode}"
        typer.echo(f"{pipeline.name}: {reads} → {pipeline.sink.kind} {target}  ({how_often})")
        result = pipeline.result(spark, partial(read_stream, spark))
        typer.echo(result._jdf.queryExecution().analyzed().toString())


@app.command()
@sharing(how=SparkOptions)
def replay(
    what: Annotated[str, typer.Argument(help="FILE:NAME, or the name of a created pipeline.")],
    into: Annotated[str, typer.Option("--into", help="A new stream for the results, or a path ending in .parquet.")],
    archive: Annotated[
        str | None, typer.Option("--archive", help="Archive that holds what the log no longer has.")
    ] = None,
    start: Annotated[str, typer.Option("--start", help="earliest, an index or a time.")] = "earliest",
    end: Annotated[str, typer.Option("--end", help="latest, an index or a time.")] = "latest",
    *,
    how: SparkOptions,
) -> None:
    """Run a pipeline again over history, into a new sink; the live one is not touched."""
    from headrace.spark.pipelines.replay import replay as run_again

    port = how.port()
    pipelines = find(what, port)
    if len(pipelines) != 1:
        fail(f"{what} has {len(pipelines)} pipelines; name one as FILE:NAME")
    spark = how.session()
    sink = Sink("parquet" if into.endswith(".parquet") else "stream", into)
    run_again(spark, port, pipelines[0], sink, archive=archive, start=start, end=end)
    spark.stop()
    notes().print(f"replayed {pipelines[0].name} into {into}")


app.registered_commands += builtin_commands.registered_commands


@app.command()
def warm() -> None:
    """Prepare a Java class archive (about 170 MB in the cache), so that Spark starts twice as fast from then on."""
    from headrace.spark.spark_session import warm as prepare

    notes().print(f"class archive: {prepare()}")
