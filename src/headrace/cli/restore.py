"""`headrace restore`: a data directory from a backup."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.backup import describe
from headrace.cli.options import Output, sharing
from headrace.cli.output import EXIT_USAGE, fail

app = typer.Typer()


@app.command()
@sharing(output=Output)
def restore(
    output: Output,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A backup.")],
    data: Annotated[Path, typer.Option("--data", metavar="NEW", help="The new data directory; must not exist yet.")],
) -> None:
    """Restore a backup into a new data directory, and check it. Then `headrace up --data NEW`.

    The backup stays as it is. Needs no hub.
    """
    from headrace.log.backup import restore as copy_back

    if not directory.is_dir():
        fail(f"there is no directory {directory}", code="bad-request", exit_code=EXIT_USAGE)
    info = copy_back(directory, data)
    output.line(info, f"restored and checked {describe(info)}: headrace up --data {info.path}")
