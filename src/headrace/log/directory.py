"""A log in a data directory: which folders it has, and how its parts are put together."""

from __future__ import annotations

from pathlib import Path

from headrace.config.sections import Log as LogSettings
from headrace.errors import BadConfig, LogFailed
from headrace.log import backup, checkpoint, journal, segment, snapshot
from headrace.log.clock import Clock
from headrace.log.disk import Disk, is_final
from headrace.log.log import Log
from headrace.log.store import DirectoryStore

OLD_FOLDER = "data"
"""Until 0.1 `make up`, `make run` and `headrace demo` kept the log in a folder of this name inside the directory."""
FOLDERS = (journal.DIRECTORY, segment.DIRECTORY, snapshot.DIRECTORY, checkpoint.DIRECTORY)


def open_directory(disk: Disk, clock: Clock, settings: LogSettings | None = None) -> Log:
    """Recover the log that a disk holds, or make a new one: blocks. Raises `LogFailed` when the disk fails."""
    settings = settings or LogSettings()
    try:
        backup.remove_leftovers(disk)
        for folder in FOLDERS:
            disk.make_dirs(folder)
        files = journal.FileJournal(disk, settings.journal_file_bytes, settings.journal_spares_max)
        return Log(files, DirectoryStore(disk), clock, settings)
    except OSError as error:
        if is_final(error):
            raise LogFailed(f"the disk failed while the log was opened ({error}): check it and start again") from error
        raise


def holds_log(directory: Path) -> bool:
    """Whether a hub has kept its log there."""
    return (directory / journal.DIRECTORY).is_dir()


def older_log(directory: Path) -> Path | None:
    """The log that an earlier version kept inside this directory instead of in it."""
    older = directory / OLD_FOLDER
    return older if holds_log(older) else None


def check_place(directory: Path) -> str | None:
    """Refuse to begin a new log around one of an earlier version. Returns a warning when both are there."""
    older = older_log(directory)
    if older is None:
        return None
    if holds_log(directory):
        return f"{older} holds another log, of an earlier `make up` or `make run`; headrace up --data {older} serves it"
    aside = directory.with_name(f"{directory.name}-old")
    raise BadConfig(
        f"{directory} holds no log, and {older} holds one of an earlier `make up` or `make run`; "
        f"move it: mv {directory} {aside} && mv {aside / OLD_FOLDER} {directory}"
    )
