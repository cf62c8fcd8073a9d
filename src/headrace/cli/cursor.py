"""`headrace cursor`: where consumers stand, and moving them."""

from __future__ import annotations

import datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from headrace.admin.cursors import CursorMove
from headrace.cli.completion import cursors, streams
from headrace.cli.options import Answer, YesFlag, sharing
from headrace.cli.output import fail, notes, people, print_json, print_table
from headrace.cli.positions import parse_position, shown_time
from headrace.cli.suggestions import nearest
from headrace.client.records import to_microseconds
from headrace.log.ops import CursorInfo

app = typer.Typer(no_args_is_help=True)

CursorArgument = Annotated[
    str, typer.Argument(metavar="CURSOR", autocompletion=cursors, help="The name of the cursor.")
]
StreamArgument = Annotated[str, typer.Argument(metavar="STREAM", autocompletion=streams, help="The stream it reads.")]


@app.callback()
def cursor() -> None:
    """List and reset cursors."""


@app.command("ls")
@sharing(answer=Answer)
def list_cursors(
    answer: Answer,
    pattern: Annotated[str, typer.Argument(help="A pattern such as `billing.*`.")] = "*",
    stream: Annotated[
        str | None, typer.Option("--stream", autocompletion=streams, help="Only cursors of this stream.")
    ] = None,
) -> None:
    """List cursors, the index each reads next, and how far behind it is."""
    columns = ["cursor", "stream", "#partition", "#next to read", "#lag", "moved"]
    with answer.connect() as client:
        answer.listing(client.iter_cursors(pattern, stream=stream), columns, _row, empty="no cursors")


def _row(cursor: CursorInfo) -> list[object]:
    moved = shown_time(cursor.updated_us)
    return [cursor.name, cursor.stream, cursor.partition, cursor.index, f"{cursor.lag:,}", moved]


@app.command()
@sharing(answer=Answer)
def reset(
    answer: Answer,
    name: CursorArgument,
    stream: StreamArgument,
    to: Annotated[str, typer.Option("--to", help="An index, earliest, latest, a time, or an age such as 2h.")],
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Only this partition; all partitions if left out.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would happen.")] = False,
    yes: YesFlag = False,
) -> None:
    """Move a cursor. First shows what would be read again and what would be skipped."""
    position = parse_position(to)
    target: Any = {"time_us": to_microseconds(position)} if isinstance(position, datetime.datetime) else position
    params = {"cursor": name, "stream": stream, "to": target, "partition": partition}
    with answer.connect() as client:
        moves = client.request("cursor.reset", {**params, "dry_run": True}, list[CursorMove])
        if not answer.as_json:
            if all(move.before is None for move in moves):
                _tell_new(name, [each.name for each in client.iter_cursors(stream=stream)])
            _preview(moves)
        if not dry_run:
            answer.confirm(f"move cursor {name} of stream {stream}?", yes)
            moves = client.request("cursor.reset", params, list[CursorMove])
    if answer.as_json:
        print_json(moves)
    elif not dry_run:
        people().print(Text(f"moved cursor {name}"))


def _tell_new(name: str, known: list[str]) -> None:
    """A cursor that does not exist yet is created by moving it; perhaps another was meant."""
    near = nearest(name, known)
    notes().print(Text(f"there is no cursor {name} yet" + (f"; did you mean {near!r}?" if near else "")))


def _preview(moves: list[CursorMove]) -> None:
    def count(number: int) -> str | None:
        return f"{number:,}" if number else None

    rows = [[move.partition, move.before, move.after, count(move.read_again), count(move.skipped)] for move in moves]
    print_table(["#partition", "#from", "#to", "#read again", "#skipped"], rows)


@app.command()
@sharing(answer=Answer)
def delete(
    answer: Answer,
    name: CursorArgument,
    stream: StreamArgument,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Only this partition; all partitions if left out.")
    ] = None,
    yes: YesFlag = False,
) -> None:
    """Delete a cursor, so that it no longer holds back retention."""
    with answer.connect() as client:
        known = [each for each in client.iter_cursors(stream=stream) if partition in (None, each.partition)]
        places = [each.partition for each in known if each.name == name]
        if not places:
            near = nearest(name, [each.name for each in known])
            where = f"stream {stream}" if partition is None else f"stream {stream} partition {partition}"
            hint = f"did you mean {near!r}?" if near else f"`headrace cursor ls --stream {stream}` lists them"
            fail(f"{where} has no cursor {name!r}; {hint}", code="unknown-cursor")
        where = "" if len(places) == 1 else f" in {len(places)} partitions"
        answer.confirm(f"forget cursor {name} of stream {stream}{where}?", yes)
        for place in places:
            client.cursor(name, stream, partition=place).delete()
    answer.line({"deleted": name, "stream": stream, "partitions": places}, f"forgot cursor {name}")
