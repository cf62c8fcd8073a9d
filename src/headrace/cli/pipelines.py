"""`headrace pipelines`: projects of Spark Declarative Pipelines, whose tables and sinks are streams of a hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import sharing
from headrace.cli.output import EXIT_FAILED, notes
from headrace.cli.spark_options import SparkOptions

app = typer.Typer(no_args_is_help=True)


@app.callback()
def pipelines() -> None:
    """Run Spark Declarative Pipelines projects."""


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(help="The folder to create; its name becomes the project's.")],
    stream: Annotated[str, typer.Option("--stream", help="The stream that it reads.")] = "orders",
) -> None:
    """Create a starter project: a streaming table over a stream, a view of it, and a sink back into a stream."""
    from headrace.spark.pipelines.project import write_project

    write_project(directory, stream)
    notes().print(f"created {directory}; run it with `headrace pipelines run {directory}`")


@app.command()
@sharing(how=SparkOptions)
def run(
    directory: Annotated[Path, typer.Argument(help="The project's folder.")] = Path(),
    every: Annotated[
        str, typer.Option("--every", help="Run it again this long after each run, such as 1m, until it is stopped.")
    ] = "",
    name: Annotated[str, typer.Option("--name", help="What the hub calls it, instead of its own name.")] = "",
    full_refresh_all: Annotated[
        bool, typer.Option("--full-refresh-all", help="Recompute every table; sinks receive everything again.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only errors.")] = False,
    *,
    how: SparkOptions,
) -> None:
    """Run a project with Spark's own `spark-pipelines`, with what it needs to find Java, the engine and the hub."""
    from headrace.spark.engine import choose_engine
    from headrace.spark.pipelines.project import (
        ProjectRunner,
        command_of,
        environment_of,
        find_spec,
        interval_s,
        name_of,
        settings_for,
        write_settings,
    )

    pause_s = interval_s(every)
    spec = find_spec(directory)
    engine, access = choose_engine(), how.access()
    settings = settings_for(spec, engine, access, how.settings())
    arguments = ["run", "--full-refresh-all"] if full_refresh_all else ["run"]
    if how.master:
        arguments += ["--remote", how.master]
    if not quiet:
        notes().print(f"engine: {engine}", style="dim")
    runner = ProjectRunner(
        name or name_of(spec),
        command_of(spec, arguments),
        environment_of(access, write_settings(spec, settings)),
        how.port(),
        lambda line: None if quiet else notes().print(line, style="dim", markup=False, highlight=False),
    )
    if not runner.run(pause_s):
        notes().print(f"error: {runner.report.error}")
        raise typer.Exit(EXIT_FAILED)
