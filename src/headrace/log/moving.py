"""Moving house: a data directory becomes a log on a shared store, and back.

Both are safe to repeat. Nothing of a move into a journal counts before its first frame, which is written last; a new
data directory gets its name when it is whole. Users, and what else is kept beside a log, are copied too.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from headrace.errors import BadRequest
from headrace.log import backup, journal, shared_backup, snapshot, transfer
from headrace.log.disk import LOCK, OsDisk, fsync_directory
from headrace.log.doctor import check_blobs
from headrace.log.journal import FileJournal
from headrace.log.journal_port import JournalPort
from headrace.log.reading import LogView
from headrace.log.recovery import recover
from headrace.log.report import Finding
from headrace.log.shared_doctor import Shared
from headrace.log.state import State
from headrace.log.store import DirectoryStore, Store
from headrace.log.transfer import Copied, Progress, no_progress

TAG = "migrated"
"""Takes the place of a hub in the names of blobs."""
UNFINISHED = ".migrating"
"""The end of the name of a data directory that is not whole yet."""
VERIFY = "migrate-verify"
OPEN_SEGMENTS_MAX = 16


class Moved(NamedTuple):
    """What a move was."""

    copied: Copied
    compared: int
    """Records; 0 when nobody compared."""


def into_journal(
    data: Path, target: Shared, home: Path, *, verify: bool = True, progress: Progress = no_progress
) -> Moved:
    """Copy a data directory, or a backup, that no hub has open into a journal and store that are empty. `home` is the
    data directory of the hub that will use them."""
    if not (data / journal.DIRECTORY).is_dir():
        raise BadRequest(f"{data} is not a data directory: it has no folder {journal.DIRECTORY!r}")
    if home.resolve() == data.resolve():
        raise BadRequest(
            f"{home} holds the log that is to be moved: choose another data directory for the hub on Kafka"
        )
    _refuse_hubs(target)
    with _directory(data) as source:
        with _shared_store(target, home) as store:
            _check_empty(target, store)
            state = transfer.frozen(source.state)
            copied = transfer.copy_blobs(state, source.store, store, progress)
            backup.copy_others(data, home)  # before the log counts: one without its users would let everybody in
            _begin(target, state, store)
        compared = 0
        if verify:
            with _shared_view(target, home) as view:
                compared = transfer.compare(source, view, progress)
    return Moved(copied, compared)


def into_directory(
    source: Shared, home: Path, data: Path, *, verify: bool = True, progress: Progress = no_progress
) -> Moved:
    """Take a journal and copy all that it and its store hold to a new data directory. No hub may run: one that takes
    the journal meanwhile ends the move, since what it acknowledges would not be in the copy."""
    _refuse_hubs(source)
    place = backup.new_directory(data, home)
    unfinished = place.with_name(place.name + UNFINISHED)
    shutil.rmtree(unfinished, ignore_errors=True)
    with _shared_store(source, home) as store:
        taken = source.journal(claims=True)
        try:
            found = recover(taken, store)
            _refuse_damage(found.report.damage, "the log on Kafka")
            original = LogView(found.state, store, OPEN_SEGMENTS_MAX)
            copied = shared_backup.to_directory(transfer.frozen(found.state), store, unfinished, progress)
            backup.copy_others(home, unfinished)
            compared = 0
            if verify:
                with _directory(unfinished) as view:
                    compared = transfer.compare(original, view, progress)
                (unfinished / LOCK).unlink()
            _prove(taken)
        finally:
            taken.close()
    _refuse_hubs(source)
    place.rmdir()
    unfinished.rename(place)
    fsync_directory(place.parent)
    return Moved(copied, compared)


def _refuse_hubs(shared: Shared) -> None:
    if hubs := shared.hubs():
        raise BadRequest(
            f"hubs of this log run: {', '.join(hubs)}. Stop all of them first; one that was killed counts for "
            "cluster.session_timeout_s (10 s, unless you changed it)"
        )


def _prove(taken: JournalPort) -> None:
    """That nobody else has taken the journal since, and so nobody has acknowledged anything."""
    taken.open()
    try:
        taken.write([taken.frame(0, b"", b"")])
    except OSError as error:
        raise BadRequest(
            f"the log was not moved: a hub was started meanwhile ({error}); stop all hubs first"
        ) from error


def _refuse_damage(damage: list[Finding], what: str) -> None:
    if damage:
        raise BadRequest(
            f"{what} is damaged: {damage[0].text} ({len(damage)} findings); headrace doctor names them all. A log is "
            "moved whole or not at all: trim what is damaged, or restore a backup"
        )


def _begin(target: Shared, state: State, store: Store) -> None:
    taken = target.journal(claims=True)
    try:
        _refuse_frames(taken)
        taken.open()
        transfer.begin(state, store, taken)
    finally:
        taken.close()


def _check_empty(target: Shared, store: Store) -> None:
    """Nothing may be there but what a move left that was cut off."""
    looked_at = target.journal(claims=False)
    try:
        _refuse_frames(looked_at)
    finally:
        looked_at.close()
    own = snapshot.shared_name(0, store.tag).rpartition("/")[2]
    if others := [name for name in store.list(snapshot.DIRECTORY) if name != own]:
        raise BadRequest(
            f"the journal is empty, but the store is in use: it has {others[0]}; choose another prefix or store"
        )


def _refuse_frames(taken: JournalPort) -> None:
    for _ in taken.read(None):
        raise BadRequest("there is a log in the journal already; choose another prefix, or delete the topics")


@contextmanager
def _directory(data: Path) -> Iterator[LogView]:
    """What a data directory holds, every checksum of which is right. Nothing is changed."""
    disk = OsDisk(data)
    try:
        store = DirectoryStore(disk)
        found = recover(FileJournal(disk, 0, 0), store, repair=False)
        findings = [*found.report.findings, *check_blobs(store, found.state)]
        _refuse_damage([finding for finding in findings if finding.is_damage], str(data))
        yield LogView(found.state, store, OPEN_SEGMENTS_MAX)
    finally:
        disk.close()


@contextmanager
def _shared_store(shared: Shared, home: Path) -> Iterator[Store]:
    store = shared.store(OsDisk(home))
    try:
        if not store.is_shared:
            raise BadRequest("log.kafka.store is local: a log on Kafka that is moved needs a store that all hubs reach")
        yield store
    finally:
        store.close()


@contextmanager
def _shared_view(shared: Shared, home: Path) -> Iterator[LogView]:
    """What the next hub will find there, with an empty cache."""
    with tempfile.TemporaryDirectory(prefix=VERIFY, dir=home) as empty, _shared_store(shared, Path(empty)) as store:
        looked_at = shared.journal(claims=False)
        try:
            found = recover(looked_at, store)
            yield LogView(found.state, store, OPEN_SEGMENTS_MAX)
        finally:
            looked_at.close()
