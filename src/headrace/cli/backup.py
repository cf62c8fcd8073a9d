"""`headrace backup`: copy a data directory while the hub runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from headrace.cli.output import DEFAULT_HUB, HubOption, JsonFlag, TokenOption, people, print_json

app = typer.Typer()

TIMEOUT_S = 24 * 3600.0


@app.command()
def backup(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty directory on the hub's machine.")],
    hub: HubOption = DEFAULT_HUB,
    token: TokenOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Copy the data directory of a running hub, and check the copy.

    Everything that was acknowledged before is in it. Appends go on meanwhile.
    """
    import headrace
    from headrace.log.backup import BackupInfo

    with headrace.connect(hub, token=token, timeout_s=TIMEOUT_S) as client:
        found = client.call("hub.backup", {"path": str(directory.absolute())})
    if as_json:
        print_json(found)
        return
    info = msgspec.convert(found, BackupInfo)
    people().print(f"backed up and checked {describe(info)} in {info.seconds:,.1f} s: {info.path}", markup=False)
    if info.linked_bytes:
        shared = f"{info.linked_bytes:,} bytes share their disk blocks with the data directory"
        people().print(f"{shared}: copy the backup elsewhere to be safe from the loss of this disk", markup=False)


def describe(info: object) -> str:
    """What a backup holds, in a few words."""
    from headrace.log.backup import BackupInfo

    assert isinstance(info, BackupInfo)
    return f"{info.records:,} records of {info.streams:,} streams ({info.files:,} files, {info.bytes:,} bytes)"
