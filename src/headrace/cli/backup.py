"""`headrace backup`: copy a data directory while the hub runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import Answer, sharing
from headrace.cli.output import people, print_json

app = typer.Typer()

TIMEOUT_S = 24 * 3600.0


@app.command()
@sharing(answer=Answer)
def backup(
    answer: Answer,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty directory on the hub's machine.")],
) -> None:
    """Copy the data directory of a running hub, and check the copy.

    Everything that was acknowledged before is in it. Appends go on meanwhile.
    """
    from headrace.log.backup import BackupInfo

    with answer.connect(timeout_s=TIMEOUT_S) as client:
        info = client.request("hub.backup", {"path": str(directory.absolute())}, BackupInfo)
    if answer.as_json:
        print_json(info)
        return
    people().print(f"backed up and checked {describe(info)} in {info.seconds:,.1f} s: {info.path}", markup=False)
    if info.linked_bytes:
        shared = f"{info.linked_bytes:,} bytes share their disk blocks with the data directory"
        people().print(f"{shared}: copy the backup elsewhere to be safe from the loss of this disk", markup=False)


def describe(info: object) -> str:
    """What a backup holds, in a few words."""
    from headrace.log.backup import BackupInfo

    assert isinstance(info, BackupInfo)
    return f"{info.records:,} records of {info.streams:,} streams ({info.files:,} files, {info.bytes:,} bytes)"
