"""Backups of a log on a shared store: a copy in the form of a data directory. Either kind of log is restored from it.

The state is taken in a moment, and names all that has to be copied. While it is copied nothing is removed from the
store; appends, sealing and trimming go on.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import BadRequest
from headrace.log import backup, transfer
from headrace.log.backup import BackupInfo
from headrace.log.disk import LOCK, OsDisk
from headrace.log.state import State
from headrace.log.store import DirectoryStore, Store

if TYPE_CHECKING:
    from headrace.log.log import Log


def back_up(log: Log, target: str | os.PathLike[str]) -> BackupInfo:
    """As `backup.back_up`, for a log on a shared store. Blocks."""
    began, time_us = time.monotonic(), log.clock.now_us()
    home = log.store.home()
    if home is None:
        raise BadRequest("this hub keeps its log in memory: there are no files to back up")
    place = backup.new_directory(Path(target), Path(home))
    with log.maintenance.without_removal(), backup.emptied_on_failure(place):
        with log.lock:
            state, next_sequence = transfer.frozen(log.state), log.state.sequence
        copied = to_directory(state, log.store, place)
        files, size = backup.copy_others(Path(home), place)
        backup.checked(place)
        info = BackupInfo(
            path=str(place),
            format=backup.FORMAT,
            time_us=time_us,
            seconds=round(time.monotonic() - began, 3),
            files=copied.blobs + files + 1,
            bytes=copied.bytes + size,
            linked_bytes=0,
            streams=copied.streams,
            records=copied.records,
            next_sequence=next_sequence,
        )
        backup.write_manifest(place, info)
    return info


def to_directory(
    state: State, source: Store, place: Path, progress: transfer.Progress = transfer.no_progress
) -> transfer.Copied:
    """All that a frozen state names, as a data directory."""
    store = DirectoryStore(OsDisk(place))
    try:
        for folder in (*backup.COPIED, *backup.LINKABLE):
            store.disk.make_dirs(folder)
        copied = transfer.copy_blobs(state, source, store, progress)
        transfer.begin(state, store, None)
    finally:
        store.close()
        (place / LOCK).unlink(missing_ok=True)
    return copied
