"""`headrace stream`: streams and their options."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from headrace.admin.streams import StreamDescription, StreamSummary
from headrace.cli.completion import literal, streams
from headrace.cli.options import AllFlag, Answer, PartitionOption, YesFlag, sharing
from headrace.cli.output import counted, notes, people, print_json, print_table
from headrace.cli.positions import shown_time
from headrace.cli.rewind import rewind
from headrace.log.ops import StreamOptions
from headrace.units import format_bytes, format_seconds, parse_bytes, parse_seconds

app = typer.Typer(no_args_is_help=True)
OFF = object()
"""An option that is taken back."""

StreamArgument = Annotated[
    str, typer.Argument(metavar="STREAM", autocompletion=streams, help="The name of the stream.")
]


@app.callback()
def stream() -> None:
    """List, create, describe, change, trim and delete streams."""


@app.command("ls")
@sharing(answer=Answer)
def list_streams(
    answer: Answer,
    pattern: Annotated[str, typer.Argument(help="A pattern such as `orders.*`.")] = "*",
    everything: AllFlag = False,
) -> None:
    """List streams with their partitions and records."""
    columns = ["stream", "#partitions", "#records", "options", "created"]
    with answer.connect() as client:
        answer.listing(client.iter_streams(pattern, all=everything), columns, _row, empty="no streams")


def _row(info: StreamSummary) -> list[object]:
    options, created = _shown_options(info.options), shown_time(info.created_us)
    return [info.name, info.partitions, f"{info.records:,}", options, created]


@app.command()
@sharing(answer=Answer)
def create(
    answer: Answer,
    name: StreamArgument,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, help="Number of partitions.")] = 1,
    age: Annotated[str | None, typer.Option("--retain-age", help="Remove records older than this: 12h, 7d.")] = None,
    size: Annotated[str | None, typer.Option("--retain-bytes", help="Sealed bytes kept per partition: 10GiB.")] = None,
    cursors: Annotated[bool, typer.Option("--retain-cursors", help="Remove what all cursors have passed.")] = False,
    hold: Annotated[str | None, typer.Option("--max-hold", help="No cursor keeps records longer than this.")] = None,
    ack: Annotated[str, typer.Option("--ack", help="`durable`, or `processed:CURSOR`.")] = "durable",
    labels: Annotated[list[str] | None, typer.Option("--label", help="NAME=VALUE; may be repeated.")] = None,
    new: Annotated[bool, typer.Option("--new", help="Fail if the stream already exists.")] = False,
) -> None:
    """Create a stream; an existing one is left as it is."""
    options = StreamOptions(
        retention_age_s=None if age is None else parsed("--retain-age", age, parse_seconds),
        retention_bytes=None if size is None else parsed("--retain-bytes", size, parse_bytes),
        retention_cursors=cursors,
        max_hold_s=None if hold is None else parsed("--max-hold", hold, parse_seconds),
        ack=ack,
        labels=_labels(labels or []),
    )
    with answer.connect() as client:
        existed = any(each.name == name for each in client.iter_streams(literal(name)))
        summary = client.create(name, partitions=partitions, options=options, exist_ok=not new)
    has = counted(summary.partitions, "partition")
    if not existed:
        answer.line(summary, f"created stream {name} with {has}")
        return
    answer.line(summary, f"stream {name} exists already, with {has}; it is left as it is")
    if summary.partitions < partitions and not answer.as_json:
        notes().print(Text(f"`headrace stream grow {name} {partitions}` gives it {partitions} partitions"))
    if options not in (StreamOptions(), summary.options) and not answer.as_json:
        kept = _shown_options(summary.options)
        notes().print(Text(f"`headrace stream set {name}` changes its options, which are: {kept}"))


@app.command("set")
@sharing(answer=Answer)
def set_options(
    answer: Answer,
    name: StreamArgument,
    age: Annotated[
        str | None, typer.Option("--retain-age", help="Remove records older than this: 12h, 7d, or off.")
    ] = None,
    size: Annotated[
        str | None, typer.Option("--retain-bytes", help="Sealed bytes kept per partition: 10GiB, or off.")
    ] = None,
    cursors: Annotated[
        bool | None, typer.Option("--retain-cursors/--no-retain-cursors", help="Remove what all cursors have passed.")
    ] = None,
    hold: Annotated[
        str | None, typer.Option("--max-hold", help="No cursor keeps records longer than this, or off.")
    ] = None,
    ack: Annotated[str | None, typer.Option("--ack", help="`durable`, or `processed:CURSOR`.")] = None,
    labels: Annotated[
        list[str] | None, typer.Option("--label", help="NAME=VALUE; NAME= removes one. May be repeated.")
    ] = None,
) -> None:
    """Change options of a stream. What is not named stays as it is."""
    given = {
        "retention_age_s": age if age is None else _changed("--retain-age", age, parse_seconds),
        "retention_bytes": size if size is None else _changed("--retain-bytes", size, parse_bytes),
        "max_hold_s": hold if hold is None else _changed("--max-hold", hold, parse_seconds),
        "retention_cursors": cursors,
        "ack": ack,
    }
    changes = {field: None if value is OFF else value for field, value in given.items() if value is not None}
    if not changes and not labels:
        raise typer.BadParameter("name what to change: --retain-age, --retain-bytes, --max-hold, --ack, --label …")
    with answer.connect() as client:
        before = client.describe(name).options
        merged = {key: value for key, value in {**before.labels, **_labels(labels or [])}.items() if value}
        summary = client.set_options(name, msgspec.structs.replace(before, **changes, labels=merged))
    answer.line(summary, f"stream {name}: {_shown_options(summary.options)}")


def _changed(option: str, text: str, parse: Any) -> Any:
    return OFF if text == "off" else parsed(option, text, parse)


@app.command()
@sharing(answer=Answer)
def describe(answer: Answer, name: StreamArgument) -> None:
    """Show the bounds of each partition, options and cursors."""
    with answer.connect() as client:
        description = client.describe(name)
    if answer.as_json:
        print_json(description)
    else:
        _render(description)


def _render(stream: StreamDescription) -> None:
    console = people()
    console.print(Text.assemble((stream.name, "bold"), f"  {stream.kind}, created {shown_time(stream.created_us)}"))
    console.print(Text(f"options: {_shown_options(stream.options)}"))
    rows = [[bound.partition, bound.first, bound.next, f"{bound.next - bound.first:,}"] for bound in stream.bounds]
    print_table(["#partition", "#first", "#next", "#records"], rows)
    if stream.cursors:
        console.print()
        moves = [[cursor.name, cursor.partition, cursor.index, f"{cursor.lag:,}"] for cursor in stream.cursors]
        print_table(["cursor", "#partition", "#next to read", "#lag"], moves)


@app.command()
@sharing(answer=Answer)
def delete(answer: Answer, name: StreamArgument, yes: YesFlag = False) -> None:
    """Delete a stream with its records and cursors. Its indexes are never used again."""
    with answer.connect() as client:
        stream = client.describe(name)
        what = f"stream {name} with {counted(stream.records, 'record')} and {counted(len(stream.cursors), 'cursor')}"
        answer.confirm(f"delete {what}?", yes)
        client.delete(name)
    answer.line({"deleted": name, "records": stream.records}, f"deleted {what}")


@app.command()
@sharing(answer=Answer)
def trim(
    answer: Answer,
    name: StreamArgument,
    before: Annotated[int, typer.Argument(min=0, help="Remove records below this index.")],
    partition: PartitionOption = 0,
    yes: YesFlag = False,
) -> None:
    """Remove the oldest records of a partition."""
    with answer.connect() as client:
        bounds = client.bounds(name, partition=partition)
        going = max(0, min(before, bounds.next) - bounds.first)
        what = f"{counted(going, 'record')} of stream {name} partition {partition}, below index {before}"
        answer.confirm(f"forget {what}?", yes)
        after = client.trim(name, before, partition=partition)
    answer.line({"first": after.first, "next": after.next, "removed": going}, f"forgot {what}")


@app.command()
@sharing(answer=Answer)
def grow(
    answer: Answer,
    name: StreamArgument,
    partitions: Annotated[int, typer.Argument(min=1, help="The new number of partitions.")],
) -> None:
    """Add partitions to a stream; they cannot be removed."""
    with answer.connect() as client:
        summary = client.grow(name, partitions)
    answer.line(summary, f"stream {name} has {counted(summary.partitions, 'partition')}")


def parsed(option: str, text: str, parse: Any) -> Any:
    """A value of an option, or a usage error that names the option."""
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _labels(pairs: list[str]) -> dict[str, str]:
    labels = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--label")
        labels[name] = value
    return labels


def _shown_options(options: StreamOptions) -> str:
    parts = []
    if options.retention_age_s is not None:
        parts.append(f"keep {format_seconds(options.retention_age_s)}")
    if options.retention_bytes is not None:
        parts.append(f"keep {format_bytes(options.retention_bytes)}")
    if options.retention_cursors:
        parts.append("until all cursors passed")
    if options.max_hold_s is not None:
        parts.append(f"held at most {format_seconds(options.max_hold_s)}")
    if options.ack != "durable":
        parts.append(f"ack {options.ack}")
    parts += [f"{name}={value}" for name, value in options.labels.items()]
    return ", ".join(parts) or "keep all"


app.command("rewind")(rewind)
