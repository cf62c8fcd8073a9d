"""`headrace doctor`: check a data directory and this machine."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.status import Status
from rich.text import Text

from headrace.cli.output import EXIT_FAILED, JsonFlag, notes, people, print_json
from headrace.cli.up import ConfigOption, DataOption, SetOption, flags_of
from headrace.config_load import load

app = typer.Typer()
MARKS = {"fine": ("✓", "green"), "warning": ("!", "yellow"), "bad": ("✗", "bold red")}


@app.command()
def doctor(
    data: DataOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    ports: Annotated[bool, typer.Option(help="Try whether the configured ports are free.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Check a data directory, the disk under it, limits, ports, security and Java. Changes nothing.

    Ends with code 1 when something is bad; damaged records are named by stream, partition and index.
    """
    from headrace.doctor import Finding, examine

    loaded = load(config, flags=flags_of(data, settings))
    found: list[Finding] = []
    with Status("looking", console=notes()) if sys.stderr.isatty() else _Silent() as status:
        for finding in examine(loaded.config, ports=ports, progress=status.update):
            found.append(finding)
            if not as_json:
                mark, style = MARKS[finding.level]
                people().print(Text.assemble((mark, style), f" {finding.check}: {finding.text}"))
    if as_json:
        print_json(found)
    if any(finding.level == "bad" for finding in found):
        raise typer.Exit(EXIT_FAILED)


class _Silent:
    """Where nobody watches, no spinner turns."""

    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def update(self, text: str) -> None:
        """Say nothing."""
