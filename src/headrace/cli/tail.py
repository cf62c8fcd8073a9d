"""`headrace tail`: follow a stream live."""

from __future__ import annotations

from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.text import Text

import headrace
from headrace.cli.output import DEFAULT_HUB, HubOption, JsonFlag, TokenOption, notes, people, print_json_line
from headrace.cli.positions import json_record, parse_place, shown_bytes, shown_time
from headrace.cli.read import SHOWN, RawFlag, TypesOption, print_raw

app = typer.Typer()


@app.command()
def tail(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="What to follow.")],
    start: Annotated[
        str | None, typer.Option("--start", "-s", help="An index, earliest, latest, a time, or an age such as 5m.")
    ] = None,
    last: Annotated[int, typer.Option("--last", min=0, help="Show the last so many first.")] = 10,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Stop after this many.")] = None,
    partition: Annotated[int, typer.Option("--partition", min=0, help="The partition.")] = 0,
    every: Annotated[bool, typer.Option("--all-partitions", help="Follow all partitions.")] = False,
    types: TypesOption = None,
    raw: RawFlag = False,
    hub: HubOption = DEFAULT_HUB,
    token: TokenOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Follow a stream until Ctrl-C."""
    with headrace.connect(hub, token=token) as client:
        place: Any = parse_place(start) if start is not None else "latest"
        if start is None and not every:
            bounds = client.bounds(stream, partition=partition)
            place = max(bounds.first, bounds.next - last)
        reader = client.follow(
            stream,
            place,
            partition=None if every else partition,
            limit=limit,
            types=types,
            on_trimmed="skip",
        )
        with reader:
            if not (raw or as_json):
                notes().print(Text(f"following {stream}; Ctrl-C to stop", style="dim"))
            if raw:
                print_raw(reader.batches())
            elif as_json:
                for record in reader:
                    print_json_line(json_record(record))
            else:
                for batch in reader.batches():
                    _print_lines(batch)


def _print_lines(batch: pa.RecordBatch) -> None:
    console = people()
    for row in batch.select([name for name in batch.schema.names if name in ("partition", *SHOWN)]).to_pylist():
        where = f"{row['partition']}/" if "partition" in row else ""
        line = Text.assemble(
            (f"{where}{row['index']}", "bold"),
            (f"  {shown_time(row['time'])}", "dim"),
            (f"  {row['type']}" if row["type"] is not None else "", "cyan"),
            (f"  {shown_bytes(row['key'], 20)}" if row["key"] is not None else "", "magenta"),
            f"  {shown_bytes(row['payload'], 200)}",
        )
        console.print(line, soft_wrap=True)
