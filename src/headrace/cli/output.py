"""How every command speaks: tables for people, `--json` for programs, errors in one line that says what to do.

Data goes to standard output and everything else to standard error, so that `headrace … --json | jq` always works.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec
import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_LOCKED = 3
EXIT_LOG_FAILED = 4
EXIT_UNREACHABLE = 5
EXIT_INTERRUPTED = 130

EXIT_OF_CODE = {
    "bad-request": EXIT_USAGE,
    "bad-config": EXIT_USAGE,
    "data-directory-locked": EXIT_LOCKED,
    "log-failed": EXIT_LOG_FAILED,
    "unreachable": EXIT_UNREACHABLE,
}

HINT_OF_CODE = {
    "unknown-stream": "`headrace stream ls` lists the streams; `headrace stream create NAME` creates one",
    "unauthenticated": "give --token, or --user with a password; `headrace user token USER` creates a token",
    "forbidden": "`headrace user ls` shows roles; `headrace user add USER --role ROLE` changes them",
}
"""What to do at the command line, in the place of what a program is told to do."""

GENERAL = "list streams to see the names"
"""How the advice on an unknown stream ends for those who are no person at a command line. Other advice is better."""

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of tables for people.")]
PART_ROWS = 1_000
"""Rows of a long list that are printed at once."""
FIRST_ROWS = 50
"""Rows that decide how wide the columns of a table are that is printed row by row."""
PIPE_WIDTH = 1000  # tables in a pipe or file are not folded


class PipeConsole(Console):
    """One that leaves it to the caller what the end of a pipe means, instead of ending the program with code 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def people() -> Console:
    """Standard output for people. Made anew each time, so that redirection and tests are seen."""
    return PipeConsole(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def notes() -> Console:
    """Standard error."""
    return PipeConsole(file=sys.stderr, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(value)) + b"\n")
    sys.stdout.flush()


def print_json_line(value: Any) -> None:
    """One JSON document on one line: for streams of values such as `tail --json`."""
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.flush()


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    empty: str = "nothing to show",
    has_header: bool = True,
) -> None:
    """A table; a column whose name begins with `#` is right-aligned. Cells are text, never markup."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=has_header)
    for column in columns:
        table.add_column(column.removeprefix("#"), justify="right" if column.startswith("#") else "left")
    count = 0
    for row in rows:
        table.add_row(*(Text("–" if cell is None else str(cell)) for cell in row))
        count += 1
    if count:
        people().print(table)
    else:
        notes().print(Text(empty, style="dim"))


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str = "nothing to show") -> int:
    """A table printed row by row, however long it is: its columns are as wide as the first rows need. Returns how many
    rows there were. The last column is cut at the edge of a terminal."""
    rest = iter(rows)
    first = [["–" if cell is None else str(cell) for cell in row] for row in itertools.islice(rest, FIRST_ROWS)]
    if not first:
        notes().print(Text(empty, style="dim"))
        return 0
    names = [column.removeprefix("#") for column in columns]
    widths = [max(map(cell_len, cells)) for cells in zip(names, *first, strict=True)]
    edge = people().width if sys.stdout.isatty() else None

    def line(cells: Sequence[str]) -> str:
        padded = [
            " " * (width - cell_len(cell)) + cell if column.startswith("#") else cell + " " * (width - cell_len(cell))
            for cell, width, column in zip(cells, widths, columns, strict=True)
        ]
        text = "  ".join(padded).rstrip()
        return text if edge is None or cell_len(text) <= edge else set_cell_size(text, edge)

    people().print(Text(line(names), style="bold"), soft_wrap=True)
    for cells in first:
        sys.stdout.write(line(cells) + "\n")
    sys.stdout.flush()
    count = len(first)
    for row in rest:
        sys.stdout.write(line(["–" if cell is None else str(cell) for cell in row]) + "\n")
        count += 1
    sys.stdout.flush()
    return count


def print_list(
    items: Iterable[Any],
    columns: Sequence[str],
    row: Callable[[Any], Sequence[object]],
    *,
    as_json: bool,
    empty: str = "nothing to show",
) -> None:
    """A list that may be very long, printed as it comes: one JSON array, or a table with its columns as wide as the
    rows of each part need."""
    parts = _parts(items)
    if not as_json:
        print_table(columns, map(row, next(parts, [])), empty=empty)
        for part in parts:
            print_table(columns, map(row, part), has_header=False)
        return
    write = sys.stdout.buffer.write
    separator = b"[\n"
    for part in parts:
        for item in part:
            text = msgspec.json.format(msgspec.json.encode(item))
            write(separator + b"  " + text.replace(b"\n", b"\n  "))
            separator = b",\n"
        sys.stdout.flush()
    write(b"[]\n" if separator == b"[\n" else b"\n]\n")
    sys.stdout.flush()


def _parts(items: Iterable[Any]) -> Iterator[list[Any]]:
    rest = iter(items)
    while part := list(itertools.islice(rest, PART_ROWS)):
        yield part


def counted(number: int, noun: str) -> str:
    """A number with its noun."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


@contextlib.contextmanager
def spinner(text: str) -> Iterator[Callable[[str], None]]:
    """A spinner beside a text, which the function that it gives changes. Where nobody watches, none turns."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    with Status(text, console=notes()) as status:
        yield lambda text: status.update(text)


def progress_bar(*columns: ProgressColumn, quiet: bool, transient: bool = True) -> Progress:
    """A bar beside a text and before `columns`, for a `with` block. Where nobody watches there is none."""
    from rich.progress import BarColumn, Progress, TextColumn

    bar = (TextColumn("{task.description}"), BarColumn(), *columns)
    return Progress(*bar, console=notes(), transient=transient, disable=quiet or not sys.stderr.isatty())


def report(error: HeadraceError, as_json: bool) -> int:
    """Print an error the way it was asked for; returns the exit code."""
    if as_json:
        line = msgspec.json.encode({"error": {"code": error.code, "message": str(error)}})
        sys.stderr.buffer.write(line + b"\n")
        sys.stderr.flush()
    else:
        text, hint = str(error), HINT_OF_CODE.get(error.code)
        if hint is not None and (error.code != "unknown-stream" or text.endswith(GENERAL)):
            text = f"{text.partition('; ')[0]}; {hint}"
        notes().print(Text.assemble(("error: ", "bold red"), text))
    return EXIT_OF_CODE.get(error.code, EXIT_FAILED)


def fail(message: str, *, code: str = "error", exit_code: int = EXIT_FAILED) -> NoReturn:
    """End the command with a message that says what to do."""
    error = HeadraceError(message)
    error.code = code
    report(error, "--json" in sys.argv)
    raise typer.Exit(exit_code)
