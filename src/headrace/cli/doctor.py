"""`headrace doctor`: check a data directory, this machine, and a hub that runs."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from headrace.cli.options import HubOptions, sharing
from headrace.cli.output import EXIT_FAILED, JsonFlag, people, print_json, spinner
from headrace.cli.up import ConfigOption, DataOption, SetOption, flags_of
from headrace.config.load import load

app = typer.Typer()
MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "bold red")}


@app.command()
@sharing(hub=HubOptions)
def doctor(
    hub: HubOptions,
    data: DataOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    ports: Annotated[bool, typer.Option(help="Check that the configured ports are free.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Check a data directory, the disk and file system under it, the clock, limits, ports, security, packages and Java.

    A hub that runs on the data directory, or is named by --hub or --profile, is asked for its version, health and
    listeners. Changes nothing. Every problem comes with what to do about it. Ends with code 1 if something must be
    done; damaged records are named by stream, partition and index.
    """
    from headrace.doctor import Finding, examine, worst

    loaded = load(config, flags=flags_of(data, settings))
    findings: list[Finding] = []
    with spinner("looking") as update:
        named = hub.target if hub.hub or hub.profile else None
        for finding in examine(loaded.config, ports=ports, hub=named, own=hub.at, progress=update):
            findings.append(finding)
            if not as_json:
                mark, style = MARKS[finding.level]
                people().print(Text.assemble((mark, style), f" {finding.check}: {finding.text}"))
                if finding.advice:
                    people().print(Text(f"    → {finding.advice}", style=style))
    if as_json:
        print_json(findings)
    if worst(findings) == "fail":
        raise typer.Exit(EXIT_FAILED)
