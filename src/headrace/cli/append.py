"""`headrace append`: records from the command line, standard input or a file."""

from __future__ import annotations

import concurrent.futures
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.progress import DownloadColumn, TimeElapsedColumn, TransferSpeedColumn
from rich.text import Text

from headrace.cli.completion import streams
from headrace.cli.options import Answer, sharing
from headrace.cli.output import notes, progress_bar
from headrace.errors import BadRequest
from headrace.log.ops import Appended

if TYPE_CHECKING:
    from headrace.client import Client

app = typer.Typer()

CHUNK_BYTES = 1 << 20
# A line longer than this is refused; the hub's own limit for a record is usually lower.
LINE_BYTES_MAX = 256 << 20


class Outcome(msgspec.Struct):
    """What was appended."""

    stream: str
    partition: int
    records: int = 0
    first: int | None = None
    last: int | None = None
    duplicates: int = 0

    def add(self, appended: Appended) -> None:
        """Count one batch."""
        if appended.duplicate:
            self.duplicates += appended.count
            return
        self.records += appended.count
        self.first = appended.first if self.first is None else self.first
        self.last = appended.first + appended.count - 1


@app.command()
@sharing(answer=Answer)
def append(
    answer: Answer,
    stream: Annotated[str, typer.Argument(metavar="STREAM", autocompletion=streams, help="Where to append.")],
    records: Annotated[
        list[str] | None, typer.Argument(metavar="[RECORD]...", help="Records; without any, lines of standard input.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Lines of this file; `-` is standard input.")
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="The file is one record, not one per line.")] = False,
    create: Annotated[bool, typer.Option("--create", help="Create the stream if it does not exist.")] = False,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="The partition; by default the one of the key, or 0.")
    ] = None,
    type: Annotated[str | None, typer.Option("--type", help="The type of all records.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="The key of all records.")] = None,
    producer: Annotated[
        str | None, typer.Option("--producer", help="Producer name; with it, each batch is stored only once.")
    ] = None,
    sequence: Annotated[int | None, typer.Option("--sequence", min=0, help="The number of the first batch.")] = None,
) -> None:
    """Append records and wait until they are on disk.

    Records given as arguments are one batch: all or none is stored. Lines go in batches as they arrive.
    """
    if records and file is not None:
        raise typer.BadParameter("give records or --file, not both")
    with answer.connect() as client:
        if create:
            client.create(stream)
        where = _partition(client, stream, key) if partition is None else partition
        outcome = Outcome(stream, where)
        with client.writer(stream, partition=where, producer=producer, sequence=sequence) as writer:
            under_way: list[concurrent.futures.Future[Appended]] = []
            for batch in _batches(records, file, whole, quiet=answer.as_json):
                under_way.append(writer.append(batch, type=type, key=key))
                while under_way and under_way[0].done():
                    outcome.add(under_way.pop(0).result())
            for future in under_way:
                outcome.add(future.result())
    answer.line(outcome, _told(outcome))


def _partition(client: Client, stream: str, key: str | None) -> int:
    """Where records with a key belong."""
    from headrace.client.partitions import partition_of

    return 0 if key is None else partition_of(key.encode(), client.describe(stream).partitions)


def _told(outcome: Outcome) -> str:
    where = f"stream {outcome.stream} partition {outcome.partition}"
    again = f"; {outcome.duplicates} had been stored before" if outcome.duplicates else ""
    if not outcome.records and not outcome.duplicates:
        return "nothing to append: give records as arguments, or one a line on standard input or in --file"
    if not outcome.records:
        return f"nothing new appended to {where}{again}"
    if outcome.records == 1:
        return f"appended 1 record to {where}, index {outcome.first}{again}"
    return f"appended {outcome.records:,} records to {where}, indexes {outcome.first} to {outcome.last}{again}"


def _batches(records: list[str] | None, file: Path | None, whole: bool, *, quiet: bool) -> Iterator[list[bytes]]:
    if records:
        yield [os.fsencode(record) for record in records]
        return
    if file is None or str(file) == "-":
        if sys.stdin.isatty():
            notes().print(Text("one record per line; end with Ctrl-D", style="dim"))
        yield from [[sys.stdin.buffer.read()]] if whole else _lines(sys.stdin.fileno())
        return
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError as error:
        raise BadRequest(f"cannot read {file}: {error.strerror}") from None
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise BadRequest(f"cannot read {file}: it is a directory")
        if whole:
            yield [file.read_bytes()]
        else:
            yield from _with_progress(descriptor, file, quiet)
    finally:
        os.close(descriptor)


def _with_progress(descriptor: int, file: Path, quiet: bool) -> Iterator[list[bytes]]:
    columns = (DownloadColumn(), TransferSpeedColumn(), TimeElapsedColumn())
    with progress_bar(*columns, quiet=quiet) as progress:
        task = progress.add_task(file.name, total=os.fstat(descriptor).st_size)
        for batch in _lines(descriptor):
            yield batch
            progress.advance(task, sum(map(len, batch)) + len(batch))


def _lines(descriptor: int) -> Iterator[list[bytes]]:
    """Complete lines, as many as have arrived, without their line ends."""
    rest: list[bytes] = []
    rest_bytes = 0
    while chunk := os.read(descriptor, CHUNK_BYTES):
        *complete, last = chunk.split(b"\n")
        if complete:
            complete[0] = b"".join([*rest, complete[0]])
            rest, rest_bytes = [], 0
            yield [line.removesuffix(b"\r") for line in complete]
        rest.append(last)
        rest_bytes += len(last)
        if rest_bytes > LINE_BYTES_MAX:
            raise BadRequest(f"a line is longer than {LINE_BYTES_MAX} bytes")
    if rest_bytes:
        yield [b"".join(rest)]
