"""`headrace tail`: follow a stream live."""

from __future__ import annotations

from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.text import Text

from headrace.cli.completion import streams
from headrace.cli.options import Answer, PartitionOption, sharing
from headrace.cli.output import notes, people
from headrace.cli.positions import parse_position, shown_bytes, shown_time
from headrace.cli.read import SHOWN, RawFlag, TypesOption, print_plain

app = typer.Typer()


@app.command()
@sharing(answer=Answer)
def tail(
    answer: Answer,
    stream: Annotated[str, typer.Argument(metavar="STREAM", autocompletion=streams, help="What to follow.")],
    start: Annotated[
        str | None, typer.Option("--start", "-s", help="An index, earliest, latest, a time, or an age such as 5m.")
    ] = None,
    last: Annotated[int, typer.Option("--last", min=0, help="Show the last so many first.")] = 10,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Stop after this many.")] = None,
    partition: PartitionOption = 0,
    every: Annotated[bool, typer.Option("--all-partitions", help="Follow all partitions.")] = False,
    types: TypesOption = None,
    raw: RawFlag = False,
) -> None:
    """Follow a stream until Ctrl-C."""
    with answer.connect() as client:
        position: Any = parse_position(start) if start is not None else "latest"
        if start is None and not every:
            bounds = client.bounds(stream, partition=partition)
            position = max(bounds.first, bounds.next - last)
        where = None if every else partition
        with client.follow(stream, position, partition=where, limit=limit, types=types, on_trimmed="skip") as reader:
            if raw or answer.as_json:
                print_plain(reader, raw)
                return
            notes().print(Text(f"following {stream}; Ctrl-C to stop", style="dim"))
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
