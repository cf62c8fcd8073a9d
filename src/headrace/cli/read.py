"""`headrace read`: records that are there now."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.progress import MofNCompleteColumn, TimeElapsedColumn
from rich.text import Text

import headrace
from headrace.cli.completion import streams
from headrace.cli.merged import read_all
from headrace.cli.options import Answer, sharing
from headrace.cli.output import counted, notes, people, print_json_line, print_rows, progress_bar
from headrace.cli.positions import json_record, parse_position, shown_bytes, shown_time
from headrace.errors import BadRequest

app = typer.Typer()

StartOption = Annotated[
    str, typer.Option("--start", "-s", help="An index, earliest, latest, a time, or an age such as 5m.")
]
TypesOption = Annotated[list[str] | None, typer.Option("--type", help="Only records of this type; may be repeated.")]
RawFlag = Annotated[bool, typer.Option("--raw", help="Only the payloads, one per line.")]
PartitionOption = Annotated[
    int | None, typer.Option("--partition", min=0, help="Only this partition; all partitions if left out.")
]
SHOWN = ["index", "time", "type", "key", "payload"]
"""Not `event_time`: it may be any number, and Python knows the years 1 to 9999."""


@app.command()
@sharing(answer=Answer)
def read(
    answer: Answer,
    stream: Annotated[str, typer.Argument(metavar="STREAM", autocompletion=streams, help="What to read.")],
    start: StartOption = "earliest",
    end: Annotated[str | None, typer.Option("--end", "-e", help="Stop before this; same forms as --start.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Print at most this many; 0 for all.")] = 100,
    partition: PartitionOption = None,
    types: TypesOption = None,
    skip_trimmed: Annotated[
        bool, typer.Option("--skip-trimmed", help="Skip records that are gone instead of failing.")
    ] = False,
    raw: RawFlag = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write FILE.arrow, .parquet or .csv.")] = None,
) -> None:
    """Read a range of all partitions, by time. With --json one record per line: text stays text, other bytes are base64
    in `payload_base64` and `key_base64`."""
    asked: dict[str, Any] = {"start": parse_position(start), "end": _parse_end(end), "types": types}
    asked["on_trimmed"] = "skip" if skip_trimmed else "fail"
    with answer.connect() as client:
        described = client.describe(stream)
        partition = 0 if partition is None and described.partitions == 1 else partition
        if output is not None:
            total = sum(each.next - each.first for each in described.bounds if partition in (None, each.partition))
            with client.read(stream, partition=partition, limit=limit or None, **asked) as reader:
                _save(reader, output, min(total, limit or total), answer.as_json)
            return
        records: Iterable[headrace.Record]
        if partition is None:
            records = read_all(client, stream, described.partitions, limit or None, **asked)
        else:
            records = client.read(stream, partition=partition, limit=limit or None, **asked)
        if raw or answer.as_json:
            print_plain(records, raw)
        else:
            print_records(records, limit, partition is None)


def _parse_end(text: str | None) -> Any:
    if text is None:
        return None
    if text == "earliest":
        raise typer.BadParameter("nothing is before the earliest", param_hint="--end")
    return parse_position(text)


def print_plain(records: Iterable[headrace.Record], raw: bool) -> None:
    """For programs, one record per line: only the payloads, or JSON."""
    for record in records:
        if raw:
            sys.stdout.buffer.write(record.payload + b"\n")
            sys.stdout.flush()
        else:
            print_json_line(json_record(record))


def print_records(records: Iterable[headrace.Record], limit: int, with_partition: bool) -> None:
    """A table, row by row."""
    width = max(20, people().width - 60)

    def row(record: headrace.Record) -> list[Any]:
        key, payload = shown_bytes(record.key, 20), shown_bytes(record.payload, width)
        where = [record.partition] if with_partition else []
        return [*where, record.index, shown_time(record.time), record.type, key, payload]

    columns = [*(["#partition"] if with_partition else []), "#index", *SHOWN[1:]]
    count = print_rows(columns, map(row, records), empty="no records")
    if limit and count == limit:
        notes().print(Text(f"{counted(count, 'record')}; there may be more: see --limit", style="dim"))


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
