"""A log in a data directory: which folders it has, and how its parts are put together."""

from __future__ import annotations

from headrace.config.sections import Log as LogSettings
from headrace.errors import LogFailed
from headrace.log import backup, checkpoint, journal, segment, snapshot
from headrace.log.clock import Clock
from headrace.log.disk import Disk, is_final
from headrace.log.log import Log
from headrace.log.store import DirectoryStore

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
