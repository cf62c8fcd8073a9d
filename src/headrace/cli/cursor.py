"""`headrace cursor`: where consumers stand, and moving them."""

from __future__ import annotations

import datetime
from typing import Annotated, Any

import typer
from rich.text import Text

import headrace
from headrace.admin.cursors import CursorMove
from headrace.cli.output import DEFAULT_HUB, HubOption, JsonFlag, TokenOption, people, print_json, print_table
from headrace.cli.positions import parse_place, shown_time
from headrace.cli.stream import YesFlag, confirm
from headrace.client.records import to_microseconds

app = typer.Typer(no_args_is_help=True)

CursorArgument = Annotated[str, typer.Argument(metavar="CURSOR", help="The name of the cursor.")]
StreamArgument = Annotated[str, typer.Argument(metavar="STREAM", help="The stream it reads.")]


@app.callback()
def cursor() -> None:
    """List and reset cursors."""


@app.command("ls")
def list_cursors(
    pattern: Annotated[str, typer.Argument(help="A pattern such as `billing.*`.")] = "*",
    stream: Annotated[str | None, typer.Option("--stream", help="Only cursors of this stream.")] = None,
    hub: HubOption = DEFAULT_HUB,
    token: TokenOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Cursors, the index each reads next, and how far it is behind."""
    with headrace.connect(hub, token=token) as client:
        found = client.cursors(pattern, stream=stream)
    if as_json:
        print_json(found)
        return
    rows = [
        [each.name, each.stream, each.partition, each.index, f"{each.lag:,}", shown_time(each.updated_us)]
        for each in found
    ]
    print_table(["cursor", "stream", "#partition", "#next to read", "#lag", "moved"], rows, empty="no cursors")


@app.command()
def reset(
    name: CursorArgument,
    stream: StreamArgument,
    to: Annotated[str, typer.Option("--to", help="An index, earliest, latest, a time, or an age such as 2h.")],
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="One partition; without it all.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what it would do.")] = False,
    yes: YesFlag = False,
    hub: HubOption = DEFAULT_HUB,
    token: TokenOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Move a cursor; first it is shown what would be read again and what would be skipped."""
    place = parse_place(to)
    target: Any = {"time_us": to_microseconds(place)} if isinstance(place, datetime.datetime) else place
    params = {"cursor": name, "stream": stream, "to": target, "partition": partition}
    with headrace.connect(hub, token=token) as client:
        moves = client.request("cursor.reset", {**params, "dry_run": True}, list[CursorMove])
        if not as_json:
            _preview(moves)
        if not dry_run:
            confirm(f"move cursor {name} of stream {stream}?", yes, as_json)
            moves = client.request("cursor.reset", params, list[CursorMove])
    if as_json:
        print_json(moves)
    elif not dry_run:
        people().print(Text(f"moved cursor {name}"))


def _preview(moves: list[CursorMove]) -> None:
    rows = [
        [
            move.partition,
            move.before,
            move.after,
            f"{move.read_again:,}" if move.read_again else None,
            f"{move.skipped:,}" if move.skipped else None,
        ]
        for move in moves
    ]
    print_table(["#partition", "#from", "#to", "#read again", "#skipped"], rows)


@app.command()
def delete(
    name: CursorArgument,
    stream: StreamArgument,
    partition: Annotated[int, typer.Option("--partition", min=0, help="The partition.")] = 0,
    yes: YesFlag = False,
    hub: HubOption = DEFAULT_HUB,
    token: TokenOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Forget a cursor: it holds nothing back any more."""
    with headrace.connect(hub, token=token) as client:
        confirm(f"forget cursor {name} of stream {stream} partition {partition}?", yes, as_json)
        client.cursor(name, stream, partition=partition).delete()
    if as_json:
        print_json({"deleted": name, "stream": stream, "partition": partition})
    else:
        people().print(Text(f"forgot cursor {name}"))
