"""A log in a data directory: which folders it has, and how its parts are put together."""

from __future__ import annotations

from headrace.config.sections import Log as LogSettings
from headrace.log import backup, checkpoint, journal, segment, snapshot
from headrace.log.clock import Clock
from headrace.log.disk import Disk
from headrace.log.log import Log
from headrace.log.store import DirectoryStore

FOLDERS = (journal.DIRECTORY, segment.DIRECTORY, snapshot.DIRECTORY, checkpoint.DIRECTORY)


def open_directory(disk: Disk, clock: Clock, settings: LogSettings | None = None) -> Log:
    """Recover the log that a disk holds, or make a new one: blocks."""
    settings = settings or LogSettings()
    backup.remove_leftovers(disk)
    for folder in FOLDERS:
        disk.make_dirs(folder)
    files = journal.FileJournal(disk, settings.journal_file_bytes, settings.journal_spares_max)
    return Log(files, DirectoryStore(disk), clock, settings)
