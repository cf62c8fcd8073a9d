"""`headrace restore`: a data directory from a backup."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.backup import describe
from headrace.cli.output import EXIT_USAGE, JsonFlag, fail, people, print_json

app = typer.Typer()


@app.command()
def restore(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A backup.")],
    data: Annotated[Path, typer.Option("--data", metavar="NEW", help="The new data directory; must not exist yet.")],
    as_json: JsonFlag = False,
) -> None:
    """Make a new data directory of a backup, and check it. Then `headrace up --data NEW`.

    The backup stays as it is. Needs no hub.
    """
    from headrace.log.backup import restore as copy_back

    if not directory.is_dir():
        fail(f"there is no directory {directory}", code="bad-request", exit_code=EXIT_USAGE)
    info = copy_back(directory, data)
    if as_json:
        print_json(info)
        return
    people().print(f"restored and checked {describe(info)}: headrace up --data {info.path}", markup=False)
