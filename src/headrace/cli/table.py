"""`headrace table`: look into tables, empty them, and serve what is left of damaged ones."""

from __future__ import annotations

import itertools
import os
import sys
from typing import Annotated, Any

import typer

from headrace.cli.completion import tables
from headrace.cli.options import AllFlag, Answer, YesFlag, sharing
from headrace.cli.output import counted, fail, print_json
from headrace.cli.positions import json_bytes, shown_bytes, shown_time

app = typer.Typer(no_args_is_help=True)

TableArgument = Annotated[str, typer.Argument(metavar="TABLE", autocompletion=tables, help="The name of the table.")]


@app.callback()
def table() -> None:
    """List, read and clear tables."""


@app.command("ls")
@sharing(answer=Answer)
def list_tables(
    answer: Answer,
    pattern: Annotated[str, typer.Argument(help="A pattern such as `prices.*`.")] = "*",
    everything: AllFlag = False,
) -> None:
    """List tables and their number of keys."""
    with answer.connect() as client:
        answer.listing(
            client.iter_tables(pattern, all=everything),
            ["table", "#keys", "created"],
            lambda table: [table.name, f"{table.keys:,}", shown_time(table.created_us)],
            empty="no tables",
        )


@app.command()
@sharing(answer=Answer)
def get(answer: Answer, name: TableArgument, key: Annotated[str, typer.Argument(help="The key, as text.")]) -> None:
    """Print the value of one key, unchanged."""
    with answer.connect() as client:
        value = client.table(name).get(os.fsencode(key))
    if answer.as_json:
        print_json(_item(os.fsencode(key), value))
    elif value is None:
        fail(f"table {name} has no key {key!r}", code="unknown-key")
    else:
        sys.stdout.buffer.write(value + (b"\n" if sys.stdout.isatty() else b""))
        sys.stdout.flush()


@app.command()
@sharing(answer=Answer)
def items(
    answer: Answer,
    name: TableArgument,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Print at most this many; 0 for all.")] = 100,
) -> None:
    """Show keys and values."""
    with answer.connect() as client:
        entries = itertools.islice(client.table(name).items(), limit or None)
        if answer.as_json:
            entries = (_item(key, value) for key, value in entries)  # type: ignore[assignment]
        answer.listing(
            entries, ["key", "value"], lambda entry: [shown_bytes(entry[0], 40), shown_bytes(entry[1])], empty="no keys"
        )


@app.command()
@sharing(answer=Answer)
def clear(answer: Answer, name: TableArgument, yes: YesFlag = False) -> None:
    """Remove all keys of a table in one step."""
    with answer.connect() as client:
        answer.confirm(f"remove all keys of table {name}?", yes)
        keys = client.table(name).clear()
    answer.line({"table": name, "keys": keys}, f"removed {counted(keys, 'key')} of table {name}")


@app.command("accept-damage")
@sharing(answer=Answer)
def accept_damage(answer: Answer, name: TableArgument, yes: YesFlag = False) -> None:
    """Serve what can still be read of a damaged table. What the damaged records held is lost."""
    with answer.connect() as client:
        answer.confirm(f"give up what the damaged records of table {name} held, and serve what is left?", yes)
        given_up = client.table(name).accept_damage()
    if given_up.first is None:
        answer.line(given_up, f"table {name} has no damage")
        return
    answer.line(
        given_up,
        f"table {name} is served again without what was lost in its records {given_up.first} to {given_up.last}: "
        f"{counted(given_up.keys or 0, 'key')} may hold an older value or should be gone, others may be missing",
    )


def _item(key: bytes, value: bytes | None) -> dict[str, Any]:
    return json_bytes("key", key) | json_bytes("value", value)
