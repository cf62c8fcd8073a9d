"""`headrace read`: records that are there now."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.progress import MofNCompleteColumn, TimeElapsedColumn
from rich.text import Text

import headrace
from headrace.cli.completion import streams
from headrace.cli.options import Answer, PartitionOption, sharing
from headrace.cli.output import notes, people, print_json_line, print_table, progress_bar
from headrace.cli.positions import json_record, parse_position, shown_bytes, shown_time
from headrace.errors import BadRequest

app = typer.Typer()

StartOption = Annotated[
    str, typer.Option("--start", "-s", help="An index, earliest, latest, a time, or an age such as 5m.")
]
TypesOption = Annotated[list[str] | None, typer.Option("--type", help="Only records of this type; may be repeated.")]
RawFlag = Annotated[bool, typer.Option("--raw", help="Only the payloads, one per line.")]
SHOWN = ["index", "time", "type", "key", "payload"]
"""Not `event_time`: it may be any number, and Python knows the years 1 to 9999."""


@app.command()
@sharing(answer=Answer)
def read(
    answer: Answer,
    stream: Annotated[str, typer.Argument(metavar="STREAM", autocompletion=streams, help="What to read.")],
    start: StartOption = "earliest",
    end: Annotated[str | None, typer.Option("--end", "-e", help="Up to before this: as --start.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="At most this many; 0 for all.")] = 100,
    partition: PartitionOption = 0,
    types: TypesOption = None,
    skip_trimmed: Annotated[bool, typer.Option("--skip-trimmed", help="Do not mind records that are gone.")] = False,
    raw: RawFlag = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write FILE.arrow, .parquet or .csv.")] = None,
) -> None:
    """Read a range. With --json one record per line: text as `text`, other bytes as base64 in `payload`."""
    with answer.connect() as client:
        reader = client.read(
            stream,
            parse_position(start),
            _parse_end(end),
            partition=partition,
            limit=limit or None,
            types=types,
            on_trimmed="skip" if skip_trimmed else "fail",
        )
        with reader:
            if output is not None:
                bounds = client.bounds(stream, partition=partition)
                total = min(bounds.next - bounds.first, limit or bounds.next)
                _save(reader, output, total, answer.as_json)
            elif raw or answer.as_json:
                print_plain(reader, raw)
            else:
                print_records(reader.batches(), limit)


def _parse_end(text: str | None) -> Any:
    if text is None:
        return None
    if text == "earliest":
        raise typer.BadParameter("nothing lies before the earliest", param_hint="--end")
    return parse_position(text)


def print_plain(reader: headrace.Reader, raw: bool) -> None:
    """For programs, one record per line: only the payloads, or JSON."""
    if not raw:
        for record in reader:
            print_json_line(json_record(record))
        return
    for batch in reader.batches():
        for payload in batch.column("payload").to_pylist():
            sys.stdout.buffer.write(payload + b"\n")
        sys.stdout.flush()


def print_records(batches: Iterator[pa.RecordBatch], limit: int) -> None:
    """A table, one for each batch of records that fits a screen's memory."""
    count = 0
    width = max(20, people().width - 60)
    rows: list[list[Any]] = []
    for batch in batches:
        for row in batch.select(SHOWN).to_pylist():
            key = shown_bytes(row["key"], 20)
            rows.append([row["index"], shown_time(row["time"]), row["type"], key, shown_bytes(row["payload"], width)])
        count += batch.num_rows
        if len(rows) >= 10_000:
            print_table(["#index", *SHOWN[1:]], rows)
            rows = []
    if rows or not count:
        print_table(["#index", *SHOWN[1:]], rows, empty="no records")
    if limit and count == limit:
        notes().print(Text(f"{count} records; there may be more: see --limit", style="dim"))


def _save(reader: headrace.Reader, output: Path, total: int, quiet: bool) -> None:
    count = 0
    columns = (MofNCompleteColumn(), TimeElapsedColumn())
    with progress_bar(*columns, quiet=quiet) as progress, _file_writer(output, reader.schema) as writer:
        task = progress.add_task(output.name, total=total)
        for batch in reader.batches():
            writer.write_batch(batch)
            count += batch.num_rows
            progress.advance(task, batch.num_rows)
    if quiet:
        print_json_line({"file": str(output), "records": count})
    else:
        people().print(Text(f"wrote {count:,} records to {output}"))


def _file_writer(output: Path, schema: pa.Schema) -> Any:
    match output.suffix:
        case ".arrow" | ".feather":
            return pa.ipc.new_file(str(output), schema)
        case ".parquet":
            import pyarrow.parquet

            return pyarrow.parquet.ParquetWriter(str(output), schema)
        case ".csv":
            import pyarrow.csv

            return pyarrow.csv.CSVWriter(str(output), schema)
    raise BadRequest(f"--output {output}: the name must end in .arrow, .parquet or .csv")
