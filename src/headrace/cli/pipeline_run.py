"""Running pipelines from the command line: which are meant, what is shown of them, and how they are stopped."""

from __future__ import annotations

import contextlib
import datetime
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from headrace.cli.output import EXIT_FAILED, fail, notes, print_json_line
from headrace.cli.spark_options import RunOptions
from headrace.spark.pipelines.definition import Pipeline, load_file, sql_pipeline, with_trigger

if TYPE_CHECKING:
    from headrace.spark.pipelines.report import Report
    from headrace.spark.pipelines.runner import Runner


AGAIN_S = 1.0
"""Some programs, such as `timeout`, send the same signal twice at once."""


def find(text: str, port: Any) -> list[Pipeline]:
    """Pipelines by FILE, FILE:NAME or the name of a created one."""
    path, _, name = text.partition(":")
    if not path.endswith((".py", ".sql")):
        return created(port, text)
    defined = load_file(path)
    chosen = [pipeline for pipeline in defined if name in ("", pipeline.name)]
    if not chosen:
        fail(f"{path} has no pipeline {name!r}; it has {', '.join(pipeline.name for pipeline in defined)}")
    return chosen


def created(port: Any, name: str | None) -> list[Pipeline]:
    """The pipeline of this name that is defined at the hub, or all that are enabled."""
    listed = port.call("pipeline.list", {}) if name is None else [port.call("pipeline.status", {"name": name})]
    pipelines: list[Pipeline] = []
    for definition in (status["definition"] for status in listed):
        if definition is None or (name is None and not definition.get("enabled", True)):
            continue
        if definition.get("project"):
            if name is not None:
                fail(f"pipeline {name} is a project: `headrace pipelines run {definition['project']}` runs it here")
            continue  # of all that there are: it needs a process of its own
        if definition.get("file"):
            defined = load_file(definition["file"])
            # Of a file with several, each has a definition of its own; a file without that name is run whole.
            chosen = [pipeline for pipeline in defined if pipeline.name == definition["name"]] or defined
            pipelines.extend(with_trigger(pipeline, definition.get("trigger")) for pipeline in chosen)
        else:
            options = {key: definition[key] for key in ("trigger", "start", "output_mode") if definition.get(key)}
            pipelines.append(sql_pipeline(definition["name"], definition["sql"], definition["into"], **options))
    return pipelines


def run_all(pipelines: Sequence[Pipeline], how: RunOptions, trigger: str | None = None) -> None:
    """Run pipelines until they end or are stopped; what failed is said, and is the exit code."""
    from headrace.spark.engine import choose_engine
    from headrace.spark.pipelines.runner import Runner
    from headrace.spark.source.cursors import stop_listening

    if not how.quiet and not how.as_json:
        notes().print(f"starting Spark for {', '.join(pipeline.name for pipeline in pipelines)} …", style="dim")
    spark = how.session()
    if not how.quiet and not how.as_json:
        notes().print(f"engine: {choose_engine(may_compile=False)}", style="dim")
    runner = Runner(spark, how.port(), home=how.home, on_progress=_printer(how.quiet, how.as_json))
    with stopping(runner):
        for pipeline in pipelines:
            runner.start(with_trigger(pipeline, "available now" if how.once else trigger))
        ended_well = runner.watch()
    stop_listening(spark)
    spark.stop()
    for name, failure in runner.failures.items():
        notes().print(Text.assemble(("error: ", "bold red"), f"pipeline {name}: {failure.headline}"))
        if failure.python:
            notes().print(Text(failure.python, style="dim"))
        if how.jvm_stack:
            notes().print(Text(failure.jvm, style="dim"))
        elif failure.jvm:
            notes().print(Text("(--jvm-stack shows the JVM's stack too)", style="dim"))
    if not ended_well:
        raise typer.Exit(EXIT_FAILED)


@contextlib.contextmanager
def stopping(runner: Runner) -> Iterator[None]:
    """Ctrl-C and SIGTERM stop the queries after the batch that runs; another one, a second later or more, ends at once.

    The runner hears of the first between two questions to Spark. An exception in the middle of one would leave its
    answer unread, for the next question to take for its own.
    """
    before: dict[int, Any] = {}
    asked_s: float | None = None

    def stop(number: int, frame: Any) -> None:
        nonlocal asked_s
        if asked_s is None:
            asked_s = time.monotonic()
            runner.ask_to_stop()
        elif time.monotonic() - asked_s > AGAIN_S:
            raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        before |= {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _printer(quiet: bool, as_json: bool) -> Any:
    """Prints progress: one line per pipeline when something changed."""
    shown: dict[str, tuple[int, str]] = {}

    def show(reports: Sequence[Report]) -> None:
        for report in reports:
            now = (report.batch, report.state)
            if shown.get(report.name) == now:
                continue
            shown[report.name] = now
            if as_json:
                print_json_line(report)
            elif not quiet or report.state in ("failed", "restarting"):
                notes().print(Text(progress_line(report)))

    return show


def progress_line(report: Report) -> str:
    """One pipeline in one line."""
    moment = datetime.datetime.now(datetime.UTC).strftime("%H:%M:%S")
    line = f"{moment}  {report.name}  {report.state}"
    if report.batch < 0:
        return f"{line}  {report.error or 'no batch yet'}"
    line += f"  batch {report.batch}  {report.rows_per_s:,.0f} rows/s"
    line += f"  {report.batch_ms:,.0f} ms  lag {report.lag:,}"
    if report.state_rows:
        line += f"  state {report.state_rows:,} rows, {report.state_bytes / 1e6:,.1f} MB"
    return f"{line}  {report.error}" if report.error else line
