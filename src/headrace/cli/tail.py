"""`headrace tail`: follow a stream live."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from headrace.cli.completion import streams
from headrace.cli.options import Answer, sharing
from headrace.cli.output import notes, people
from headrace.cli.positions import parse_position, shown_bytes, shown_time
from headrace.cli.read import PartitionOption, RawFlag, TypesOption, print_plain

if TYPE_CHECKING:
    import headrace
    from headrace.admin.streams import PartitionBounds
    from headrace.client import Client

app = typer.Typer()


@app.command()
@sharing(answer=Answer)
def tail(
    answer: Answer,
    stream: Annotated[str, typer.Argument(metavar="STREAM", autocompletion=streams, help="What to follow.")],
    start: Annotated[
        str | None, typer.Option("--start", "-s", help="An index, earliest, latest, a time, or an age such as 5m.")
    ] = None,
    last: Annotated[int, typer.Option("--last", min=0, help="Start with this many of the latest records.")] = 10,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Stop after this many.")] = None,
    partition: PartitionOption = None,
    every: Annotated[bool, typer.Option("--all-partitions", hidden=True)] = False,
    types: TypesOption = None,
    raw: RawFlag = False,
) -> None:
    """Follow a stream until Ctrl-C: all partitions, or one."""
    with answer.connect() as client:
        bounds = client.describe(stream).bounds
        where = 0 if partition is None and len(bounds) == 1 and not every else partition
        begins: dict[int | None, int] = {}
        position: Any = parse_position(start) if start is not None else "latest"
        if start is None and where is not None:
            of = client.bounds(stream, partition=where)
            position = max(of.first, of.next - last)
        elif start is None and last:
            position, begins = _latest(client, stream, bounds, last)
        with client.follow(stream, position, partition=where, types=types, on_trimmed="skip") as reader:
            wanted = (record for record in reader if record.index >= begins.get(record.partition, 0))
            records = itertools.islice(wanted, limit)
            if raw or answer.as_json:
                print_plain(records, raw)
                return
            notes().print(Text(f"following {stream}; Ctrl-C to stop", style="dim"))
            _print_lines(records)


def _latest(
    client: Client, stream: str, bounds: Sequence[PartitionBounds], last: int
) -> tuple[Any, dict[int | None, int]]:
    """When the latest records of all partitions began, and the index at which each partition does."""
    found: list[tuple[Any, int, int]] = []
    for each in bounds:
        with client.read([stream], max(each.first, each.next - last), each.next, partition=each.partition) as reader:
            found += [(record.time, each.partition, record.index) for record in reader]
    found = sorted(found)[-last:]
    begins: dict[int | None, int] = {each.partition: each.next for each in bounds}
    begins |= {partition: index for _, partition, index in reversed(found)}
    return found[0][0] if found else "latest", begins


def _print_lines(records: Iterable[headrace.Record]) -> None:
    console = people()
    for record in records:
        where = f"{record.partition}/" if record.partition is not None else ""
        line = Text.assemble(
            (f"{where}{record.index}", "bold"),
            (f"  {shown_time(record.time)}", "dim"),
            (f"  {record.type}" if record.type is not None else "", "cyan"),
            (f"  {shown_bytes(record.key, 20)}" if record.key is not None else "", "magenta"),
            f"  {shown_bytes(record.payload, 200)}",
        )
        console.print(line, soft_wrap=True)
