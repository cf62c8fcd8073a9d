"""`headrace demo`: a hub with live producers, consumers and a pipeline, to see it work."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import Output, sharing
from headrace.cli.output import people
from headrace.cli.up import SetOption
from headrace.config import Log

app = typer.Typer()
DATA = Path(Log().data)


@app.command()
@sharing(output=Output)
def demo(
    output: Output,
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="Directory of the hub's log.")] = DATA,
    seconds: Annotated[float | None, typer.Option("--seconds", help="End after this time; else at Ctrl-C.")] = None,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Without the pipeline.")] = False,
    settings: SetOption = None,
) -> None:
    """Start a hub with live producers through all five protocols, a Spark pipeline, and consumers, to see it work.

    Started again it goes on where it was. `--json` prints how things stood at the end, and nothing before.
    """
    from headrace.demo.stage import run
    from headrace.demo.view import View

    view = View(people(), quiet=output.as_json)
    frame = asyncio.run(run(data, view, flags=settings or [], seconds=seconds, with_spark=not no_spark))
    total = sum(row.next for row in frame.flows)
    sent, read = sum(row.sent for row in frame.flows), sum(row.read for row in frame.flows)
    text = f"ended: {sent:,} records sent and {read:,} read in this run, {total:,} stored; start it again to go on"
    output.line(frame, text)
