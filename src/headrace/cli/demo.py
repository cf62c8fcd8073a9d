"""`headrace demo`: a hub with live producers, consumers and a pipeline, to see it work."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
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
    seconds: Annotated[
        float | None, typer.Option("--seconds", help="Stop after this time; without it, at Ctrl-C.")
    ] = None,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Without the pipeline.")] = False,
    settings: SetOption = None,
) -> None:
    """Start a hub with live producers through all five protocols, a Spark pipeline, and consumers, to see it work.

    Started again, it continues where it stopped. `--json` prints the state at the end and nothing before.
    """
    from headrace.demo.stage import run
    from headrace.demo.view import View

    view = View(people(), quiet=output.as_json)
    frame = asyncio.run(run(data, view, flags=settings or [], seconds=seconds, with_spark=not no_spark))
    total = sum(row.next for row in frame.flows)
    sent, read = sum(row.sent for row in frame.flows), sum(row.read for row in frame.flows)
    text = f"ended: {sent:,} records sent and {read:,} read in this run, {total:,} stored"
    output.line(frame, "\n".join([text, *_next_steps(data)]))


def _next_steps(data: Path) -> list[str]:
    """Three things to try with what the demo leaves behind."""
    place = "" if data == DATA else f" --data {data}"
    activate = Path(os.path.relpath(Path(sys.prefix, "bin", "activate")))
    is_found = shutil.which("headrace") is not None  # not after `make run`, for one
    first = "" if is_found else f" (first `. {activate}`, which puts headrace on your path)"
    return [
        "",
        f"Three things to try{first}:",
        f"  1. headrace up{place}",
        "     then, in another terminal, headrace read demo.orders: everything that was acknowledged is still there",
        "  2. headrace sql \"select type, count(*) from stream('demo.clicks') group by type\"",
        "     while the hub runs: any stream is a table",
        f"  3. headrace demo{place}",
        "     then kill it with kill -9 and start it again: nothing is lost, nothing is counted twice",
    ]
