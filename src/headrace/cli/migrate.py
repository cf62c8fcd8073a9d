"""`headrace migrate`: move a log from a data directory to Kafka, and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import Output, sharing
from headrace.cli.output import EXIT_USAGE, fail, spinner
from headrace.cli.up import KAFKA, ConfigOption, DataOption, SetOption, flags_of
from headrace.config.load import load

if TYPE_CHECKING:
    from headrace.config.sections import Log
    from headrace.log.kafka.whole_cell import WholeCell

app = typer.Typer()


@app.command()
@sharing(output=Output)
def migrate(
    output: Output,
    source: Annotated[str, typer.Argument(metavar="FROM", help="A data directory or backup; or kafka://HOST/PREFIX.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="kafka://HOST/PREFIX; or a new data directory.")],
    data: DataOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    verify: Annotated[bool, typer.Option(help="Compare every record of the copy with the original.")] = True,
) -> None:
    """Move a log from a data directory to Kafka, or back. Stop its hubs first.

    Streams, indexes, cursors, producers, tables, checkpoints and users stay the same. The original stays as it is. A
    target that is not empty is refused; a move that was cut off can be started again. --data is the data directory of
    the hub on Kafka: users come from there, or go there. log.kafka.store says where segments go.
    """
    from headrace.log.moving import into_directory, into_journal

    if source.startswith(KAFKA) == target.startswith(KAFKA):
        text = "one of FROM and TO is a directory, the other kafka://HOST/PREFIX"
        fail(text, code="bad-request", exit_code=EXIT_USAGE)
    to_kafka = target.startswith(KAFKA)
    loaded = load(config, flags=flags_of(data, settings, target if to_kafka else source))
    log = loaded.config.log
    home = Path(log.data)
    with spinner("looking") as update, _cell(log) as cell:

        def progress(what: str, done: int, total: int) -> None:
            update(f"{what} {done:,} of {total:,} {'bytes' if what == 'copied' else 'records'}")

        if to_kafka:
            moved = into_journal(Path(source), cell, home, verify=verify, progress=progress)
        else:
            moved = into_directory(cell, home, Path(target), verify=verify, progress=progress)
    copied = moved.copied
    text = f"moved {copied.records:,} records of {copied.streams:,} streams and tables, {copied.bytes:,} bytes, "
    text += f"and compared {moved.compared:,} records" if verify else "and compared nothing"
    after = f"headrace up --log {target} --data {home}" if to_kafka else f"headrace up --data {target}"
    output.line({**copied._asdict(), "compared": moved.compared}, f"{text}: {after}")


def _cell(log: Log) -> WholeCell:
    from headrace.log.clock import SystemClock
    from headrace.log.kafka.whole_cell import WholeCell
    from headrace.log.moving import TAG

    return WholeCell(log, SystemClock(), TAG)
