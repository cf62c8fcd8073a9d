"""`headrace demo`: a hub with live producers, consumers and a pipeline, to see it work."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.output import JsonFlag, people, print_json
from headrace.cli.up import SetOption

app = typer.Typer()


@app.command()
def demo(
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="Directory of the demo.")] = Path("headrace-demo"),
    seconds: Annotated[float | None, typer.Option("--seconds", help="End after this time; else at Ctrl-C.")] = None,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Without the pipeline.")] = False,
    settings: SetOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Start a hub with live producers through all five protocols, a Spark pipeline, and consumers, to see it work.

    Started again it goes on where it was. `--json` prints how things stood at the end, and nothing before.
    """
    from headrace.demo.stage import run
    from headrace.demo.view import View

    console = people()
    view = View(console, quiet=as_json)
    frame = asyncio.run(run(data, view, flags=settings or [], seconds=seconds, with_spark=not no_spark))
    if as_json:
        print_json(frame)
        return
    total = sum(row.next for row in frame.flows)
    sent, read = sum(row.sent for row in frame.flows), sum(row.read for row in frame.flows)
    console.print(
        f"ended: {sent:,} records sent and {read:,} read in this run, {total:,} stored; start it again to go on"
    )
