"""`headrace table`: look into tables."""

from __future__ import annotations

import itertools
import os
import sys
from typing import Annotated, Any

import typer

import headrace
from headrace.cli.output import DEFAULT_HUB, HubOption, JsonFlag, TokenOption, fail, print_json, print_table
from headrace.cli.positions import shown_bytes, shown_time

app = typer.Typer(no_args_is_help=True)

TableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="The name of the table.")]


@app.callback()
def table() -> None:
    """Look into tables."""


@app.command("ls")
def list_tables(
    pattern: Annotated[str, typer.Argument(help="A pattern such as `perper.*`.")] = "*",
    hub: HubOption = DEFAULT_HUB,
    token: TokenOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Tables and how many keys they have."""
    with headrace.connect(hub, token=token) as client:
        found = client.tables(pattern)
    if as_json:
        print_json(found)
        return
    rows = [[each.name, f"{each.keys:,}", shown_time(each.created_us)] for each in found]
    print_table(["table", "#keys", "created"], rows, empty="no tables")


@app.command()
def get(
    name: TableArgument,
    key: Annotated[str, typer.Argument(help="The key, as text.")],
    hub: HubOption = DEFAULT_HUB,
    token: TokenOption = None,
    as_json: JsonFlag = False,
) -> None:
    """The value of one key, as it is."""
    with headrace.connect(hub, token=token) as client:
        value = client.table(name).get(os.fsencode(key))
    if as_json:
        print_json(_item(os.fsencode(key), value))
    elif value is None:
        fail(f"table {name} has no key {key!r}", code="unknown-key")
    else:
        sys.stdout.buffer.write(value + (b"\n" if sys.stdout.isatty() else b""))
        sys.stdout.flush()


@app.command()
def items(
    name: TableArgument,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="At most this many; 0 for all.")] = 100,
    hub: HubOption = DEFAULT_HUB,
    token: TokenOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Keys and values."""
    with headrace.connect(hub, token=token) as client:
        found = list(itertools.islice(client.table(name).items(), limit or None))
    if as_json:
        print_json([_item(key, value) for key, value in found])
        return
    print_table(["key", "value"], [[shown_bytes(key, 40), shown_bytes(value)] for key, value in found], empty="no keys")


def _item(key: bytes, value: bytes | None) -> dict[str, Any]:
    """Text where it is text, base64 where it is not."""
    shown: dict[str, Any] = {}
    for name, data in (("key", key), ("value", value)):
        try:
            shown[name] = None if data is None else data.decode()
        except UnicodeDecodeError:
            shown[f"{name}_base64"] = data
    return shown
