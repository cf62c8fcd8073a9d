"""`headrace spark`: what a Spark that Headrace does not start needs to know."""

from __future__ import annotations

import shlex

import typer

from headrace.cli.output import fail

app = typer.Typer(no_args_is_help=True)


@app.callback()
def spark() -> None:
    """Which engine Spark uses, its jar, and the settings of sessions."""


@app.command()
def jar() -> None:
    """Print the path of the Java engine's jar, for `spark-submit --jars` or a cluster's image."""
    from headrace.spark.engine import choose_engine

    engine = choose_engine()
    if engine.jar is None:
        fail(f"there is no Java engine: {engine.why}")
    typer.echo(engine.jar)


@app.command()
def conf() -> None:
    """Print the settings of Spark that bring the Java engine, as options of `spark-submit` or `spark-pipelines`."""
    from headrace.spark.engine import choose_engine, engine_settings

    settings = engine_settings(choose_engine(), {}) | {"spark.sql.python.filterPushdown.enabled": "true"}
    for name, value in settings.items():
        typer.echo(f"--conf {shlex.quote(f'{name}={value}')}")
