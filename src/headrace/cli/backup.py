"""`headrace backup`: copy a data directory while the hub runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import Answer, sharing

if TYPE_CHECKING:
    from headrace.log.backup import BackupInfo

app = typer.Typer()

TIMEOUT_S = 24 * 3600.0


@app.command()
@sharing(answer=Answer)
def backup(
    answer: Answer,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A new or empty directory below the hub's log.backup_root.")
    ],
) -> None:
    """Copy the data directory of a running hub, and check the copy.

    Everything that was acknowledged before is in it. Appends continue meanwhile. A relative DIR is taken from
    log.backup_root, which is headrace-backups beside the data directory unless set.
    """
    from headrace.log.backup import BackupInfo

    with answer.connect(timeout_s=TIMEOUT_S) as client:
        info = client.request("hub.backup", {"path": str(directory)}, BackupInfo)
    text = f"backed up and checked {describe(info)} in {info.seconds:,.1f} s: {info.path}"
    if info.linked_bytes:
        text += f"\n{info.linked_bytes:,} bytes share their disk blocks with the data directory"
        text += ": copy the backup elsewhere to be safe from the loss of this disk"
    answer.line(info, text)


def describe(info: BackupInfo) -> str:
    """What a backup holds, in a few words."""
    return f"{info.records:,} records of {info.streams:,} streams ({info.files:,} files, {info.bytes:,} bytes)"
