"""`headrace pipeline`: run and watch Spark pipelines."""

from __future__ import annotations

import datetime
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from headrace.cli.output import (
    DEFAULT_HUB,
    EXIT_FAILED,
    HubOption,
    JsonFlag,
    TokenOption,
    call,
    fail,
    notes,
    print_json,
    print_json_line,
    print_table,
)
from headrace.cli.spark_options import Reaching, Running, Sparking, sharing

if TYPE_CHECKING:
    from headrace.spark.pipelines.definition import Pipeline
    from headrace.spark.pipelines.runner import Progress

app = typer.Typer(no_args_is_help=True)


@app.callback()
def pipeline() -> None:
    """Run and watch Spark pipelines."""


@app.command()
@sharing
def run(
    what: Annotated[
        list[str] | None, typer.Argument(help="A Python file, FILE:NAME, or names of created pipelines; all if none.")
    ] = None,
    trigger: Annotated[str | None, typer.Option("--trigger", help="Instead of the pipelines' own.")] = None,
    *,
    how: Running,
) -> None:
    """Run pipelines until they end or are stopped."""
    port = how.port()
    found = [one for text in what or [] for one in _find(text, port)] if what else _created(port, None)
    if not found:
        fail("there is no pipeline to run: name a file, or create one with `headrace pipeline create`")
    _run(found, how, trigger)


def _find(text: str, port: Any) -> list[Pipeline]:
    """Pipelines by FILE, FILE:NAME or the name of a created one."""
    from headrace.spark.pipelines.definition import load_file

    path, _, name = text.partition(":")
    if not path.endswith((".py", ".sql")):
        return _created(port, text)
    found = load_file(path)
    chosen = [one for one in found if name in ("", one.name)]
    if not chosen:
        fail(f"{path} has no pipeline {name!r}; it has {', '.join(one.name for one in found)}")
    return chosen


def _created(port: Any, name: str | None) -> list[Pipeline]:
    from headrace.spark.pipelines.definition import load_file, sql_pipeline, with_trigger

    if name is None:
        known = [one["definition"] for one in port.call("pipeline.list", {})]
    else:
        known = [port.call("pipeline.status", {"name": name})["definition"]]
    found: list[Pipeline] = []
    for one in known:
        if one is None or (name is None and not one.get("enabled", True)):
            continue
        if one.get("file"):
            defined = load_file(one["file"])
            # Of a file with several, each has a definition of its own; a file without that name is run whole.
            meant = [each for each in defined if each.name == one["name"]] or defined
            found.extend(with_trigger(each, one.get("trigger")) for each in meant)
        else:
            options = {key: one[key] for key in ("trigger", "start", "output_mode") if one.get(key)}
            found.append(sql_pipeline(one["name"], one["sql"], one["into"], **options))
    return found


def _run(found: Sequence[Pipeline], how: Running, trigger: str | None = None) -> None:
    from headrace.spark.pipelines.definition import with_trigger
    from headrace.spark.pipelines.runner import Runner
    from headrace.spark.source.cursors import stop_listening

    if not how.quiet and not how.as_json:
        notes().print(f"starting Spark for {', '.join(one.name for one in found)} …", style="dim")
    spark = how.session()
    runner = Runner(spark, how.port(), home=how.home, on_progress=_show(how.quiet, how.as_json))
    ended_well = True  # being told to stop is no failure
    with _stopping(runner):
        for one in found:
            runner.start(with_trigger(one, "available now" if how.once else trigger))
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


class _stopping:
    """Ctrl-C and SIGTERM stop the queries after the batch that runs, once; a second Ctrl-C ends at once."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._stop)

    def _stop(self, number: int, frame: Any) -> None:
        self._restore()
        raise KeyboardInterrupt

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self._restore()
        if kind is KeyboardInterrupt:
            self._runner.stop()
            return True
        return False

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()


def _show(quiet: bool, as_json: bool) -> Any:
    """Prints progress: one line per pipeline when something changed."""
    shown: dict[str, tuple[int, str]] = {}

    def show(progress: Sequence[Progress]) -> None:
        for one in progress:
            now = (one.batch, one.state)
            if shown.get(one.name) == now:
                continue
            shown[one.name] = now
            if as_json:
                print_json_line({name: getattr(one, name) for name in one.__dataclass_fields__})
            elif not quiet or one.state in ("failed", "restarting"):
                notes().print(Text(progress_line(one)))

    return show


def progress_line(one: Progress) -> str:
    """One pipeline in one line."""
    moment = datetime.datetime.now(datetime.UTC).strftime("%H:%M:%S")
    line = f"{moment}  {one.name}  {one.state}  batch {one.batch}  {one.rows_per_s:,.0f} rows/s"
    line += f"  {one.batch_ms:,.0f} ms  lag {one.lag:,}"
    if one.state_rows:
        line += f"  state {one.state_rows:,} rows, {one.state_bytes / 1e6:,.1f} MB"
    return f"{line}  {one.error}" if one.error else line


@app.command("ls")
def list_pipelines(hub: HubOption = DEFAULT_HUB, token: TokenOption = None, as_json: JsonFlag = False) -> None:
    """Pipelines that are defined at the hub, or that run against it."""
    found = call(hub, token, "pipeline.list")
    if as_json:
        print_json(found)
        return
    rows = [_row(one) for one in found]
    columns = ["name", "state", "#batch", "#rows/s", "#batch ms", "#lag", "#state rows", "error"]
    print_table(columns, rows, empty="no pipelines")


def _row(one: dict[str, Any]) -> list[Any]:
    report = one["report"]
    if report is None:
        return [one["name"], one["state"], None, None, None, None, None, None]
    speed = f"{report['rows_per_s']:,.0f}"
    numbers = [report["batch"], speed, f"{report['batch_ms']:,.0f}", f"{report['lag']:,}", f"{report['state_rows']:,}"]
    return [one["name"], one["state"], *numbers, report["error"]]


@app.command()
def status(name: str, hub: HubOption = DEFAULT_HUB, token: TokenOption = None, as_json: JsonFlag = False) -> None:
    """Everything about one pipeline."""
    found = call(hub, token, "pipeline.status", {"name": name})
    if as_json:
        print_json(found)
        return
    rows = [("state", found["state"])]
    for part in ("definition", "report"):
        rows += [(key, value) for key, value in (found[part] or {}).items() if key not in ("name", "state")]
    print_table(["what", "value"], rows)


@app.command()
def create(
    name: str,
    sql: Annotated[str, typer.Option("--sql", help="The SQL text, or @FILE.")] = "",
    file: Annotated[str, typer.Option("--file", help="A Python file instead.")] = "",
    into: Annotated[str, typer.Option("--into", help="The stream for the results of a SQL text.")] = "",
    trigger: Annotated[str, typer.Option("--trigger", help="How often a batch begins.")] = "",
    start: Annotated[str, typer.Option("--start", help="earliest, latest, an index or a time.")] = "earliest",
    output_mode: Annotated[str, typer.Option("--output-mode", help="append, update or complete.")] = "append",
    hub: HubOption = DEFAULT_HUB,
    token: TokenOption = None,
) -> None:
    """Keep a pipeline at the hub; `headrace pipeline run NAME` runs it."""
    text = Path(sql[1:]).read_text() if sql.startswith("@") else sql
    if text:
        from headrace.spark.pipelines.definition import sql_pipeline

        sql_pipeline(name, text, into)  # refuses what cannot run, here where it can be read
    path = str(Path(file).resolve()) if file else ""
    fields = {"name": name, "sql": text, "file": path, "into": into, "trigger": trigger, "start": start}
    call(hub, token, "pipeline.create", {**fields, "output_mode": output_mode})
    notes().print(f"created {name}; run it with `headrace pipeline run {name}`")


@app.command()
def delete(name: str, hub: HubOption = DEFAULT_HUB, token: TokenOption = None) -> None:
    """Forget a pipeline; if it runs, it stops."""
    call(hub, token, "pipeline.delete", {"name": name})


@app.command()
def start(name: str, hub: HubOption = DEFAULT_HUB, token: TokenOption = None) -> None:
    """Let the hub run a pipeline that is defined there, in a process of its own."""
    found = call(hub, token, "pipeline.start", {"name": name})
    notes().print(f"{name} is {found['state']}; `headrace pipeline ls` shows how it does")


@app.command()
def stop(name: str, hub: HubOption = DEFAULT_HUB, token: TokenOption = None) -> None:
    """Ask a running pipeline to stop after its batch."""
    found = call(hub, token, "pipeline.stop", {"name": name})
    notes().print(f"{name} is {found['state']}" + ("; it was asked to stop" if found["report"] else ""))


@app.command()
@sharing
def reset(
    name: str,
    source: Annotated[list[str] | None, typer.Option("--source", help="Streams that it reads.")] = None,
    start: Annotated[
        str | None, typer.Option("--start", help="Begin there again, storing results once more; else at its cursor.")
    ] = None,
    home: Annotated[Path | None, typer.Option("--home", help="Where checkpoints live.")] = None,
    *,
    hub: Reaching,
) -> None:
    """Forget a pipeline's checkpoint, as after a change of its state's shape.

    It goes on where its stored results end. State such as open windows is lost.
    """
    from headrace.spark.hub.checkpoint_paths import default_home
    from headrace.spark.pipelines.runner import reset as forget

    forget(hub.port(), home or default_home(), name, source or ["*"], start)
    notes().print(f"{name} begins anew" + (f" at {start}" if start else " at its cursor"))


@app.command()
@sharing
def explain(what: str, *, how: Sparking) -> None:
    """What a pipeline reads and writes, and Spark's plan for it."""
    from headrace.spark import dataframes, query

    for one in _find(what, how.port()):
        spark = how.session()
        reads = ", ".join(stream for streams in one.sources.values() for stream in streams)
        target = one.sink.target or one.sink.options.get("streamColumn", "")
        typer.echo(f"{one.name}: {reads} → {one.sink.kind} {target}  (trigger {one.trigger}, {one.output_mode})")
        if one.sql is not None:
            result = query.bind(spark, one.sql, streaming=True)
        else:
            options = one.reading()
            result = one.apply(
                {name: dataframes.read_stream(spark, *of, **options) for name, of in one.sources.items()}
            )
        typer.echo(result._jdf.queryExecution().analyzed().toString())


@app.command()
@sharing
def replay(
    what: Annotated[str, typer.Argument(help="FILE:NAME, or the name of a created pipeline.")],
    into: Annotated[str, typer.Option("--into", help="A new stream for the results, or a path ending in .parquet.")],
    archive: Annotated[str | None, typer.Option("--archive", help="Archive with what the log lacks.")] = None,
    start: Annotated[str, typer.Option("--start", help="earliest, an index or a time.")] = "earliest",
    end: Annotated[str, typer.Option("--end", help="latest, an index or a time.")] = "latest",
    *,
    how: Sparking,
) -> None:
    """Run a pipeline again over history, into a new sink; the live one is not touched."""
    from headrace.spark.pipelines.definition import Sink
    from headrace.spark.pipelines.replay import replay as run_again

    port = how.port()
    found = _find(what, port)
    if len(found) != 1:
        fail(f"{what} has {len(found)} pipelines; name one as FILE:NAME")
    spark = how.session()
    sink = Sink("parquet" if into.endswith(".parquet") else "stream", into)
    run_again(spark, port, found[0], sink, archive=archive, start=start, end=end)
    spark.stop()
    notes().print(f"replayed {found[0].name} into {into}")


@app.command()
@sharing
def archive(
    streams: Annotated[list[str], typer.Argument(help="Streams or patterns.")],
    path: Annotated[str, typer.Option("--to", help="Directory for the Parquet files.")],
    *,
    how: Running,
) -> None:
    """Streams to Parquet by date, exactly once; the cursor says what may be discarded."""
    from headrace.spark.pipelines.builtin import archive as make

    _run([make(streams, path)], how)


@app.command()
@sharing
def merge(
    streams: Annotated[list[str], typer.Argument(help="Streams or patterns.")],
    into: Annotated[str, typer.Option("--into", help="The new stream.")],
    *,
    how: Running,
) -> None:
    """Partitions and streams into one stream with new indexes."""
    from headrace.spark.pipelines.builtin import merge as make

    _run([make(streams, into)], how)


@app.command()
@sharing
def route(
    source: str,
    by_type: Annotated[str | None, typer.Option("--by-type", help="Stream by type, such as 'orders.{type}'.")] = None,
    rule: Annotated[list[str] | None, typer.Option("--rule", help="'SQL condition => stream'. Repeatable.")] = None,
    otherwise: Annotated[str | None, typer.Option("--otherwise", help="Stream for the rest.")] = None,
    *,
    how: Running,
) -> None:
    """Each record to one stream, by its type or by the first condition that holds."""
    from headrace.spark.pipelines.builtin import route as make

    rules = []
    for one in rule or []:
        condition, separator, stream = one.rpartition("=>")
        if not separator:
            fail(f"--rule {one!r} is not 'CONDITION => STREAM'")
        rules.append((condition.strip(), stream.strip()))
    found = make(source, by_type=by_type, rules=rules, otherwise=otherwise)
    _run([found], how)


@app.command("dead-letter")
@sharing
def dead_letter(
    source: str,
    schema: Annotated[str, typer.Option("--schema", help="Columns of the JSON, such as 'item STRING, price DOUBLE'.")],
    into: Annotated[str, typer.Option("--into", help="Stream for the good records.")],
    dead: Annotated[str, typer.Option("--dead", help="Stream for the others; SOURCE.dead unless given.")] = "",
    *,
    how: Running,
) -> None:
    """Records that are JSON of a schema go on; the others to SOURCE.dead, with the reason."""
    from headrace.spark.pipelines.builtin import dead_letter as make

    found = make(source, schema, into, dead=dead)
    _run([found], how)


@app.command()
@sharing
def redrive(
    dead: Annotated[str, typer.Argument(help="A stream of dead letters.")],
    into: Annotated[str | None, typer.Option("--into", help="Instead of the stream where each stood.")] = None,
    *,
    how: Running,
) -> None:
    """Send dead letters again; those sent before are not sent twice."""
    from headrace.spark.pipelines.builtin import redrive as make

    _run([make(dead, into=into)], how)


@app.command("window-counts")
@sharing
def window_counts(
    source: str,
    into: Annotated[str, typer.Option("--into", help="Stream for the counts; SOURCE.counts unless given.")] = "",
    window: Annotated[str, typer.Option("--window", help="Length of a window.")] = "1 minute",
    by: Annotated[str, typer.Option("--by", help="What to count by, in SQL.")] = "type",
    delay: Annotated[str, typer.Option("--delay", help="How late a record may come.")] = "10 seconds",
    *,
    how: Running,
) -> None:
    """Counts in windows of event time."""
    from headrace.spark.pipelines.builtin import window_counts as make

    found = make(source, into, window=window, by=by, delay=delay)
    _run([found], how)


@app.command()
def warm() -> None:
    """Prepare Java's class archive (about 170 MB in the cache), so that Spark starts in half the time from now on."""
    from headrace.spark.spark_session import warm as prepare

    notes().print(f"class archive: {prepare()}")
