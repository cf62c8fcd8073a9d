"""Backups: a copy of a data directory that is in use, and a data directory from such a copy.

    <backup>/
      journal/ segments/ snapshots/ checkpoints/ …     as in a data directory, so that the doctor reads it as one
      backup.json                                      written last: without it the backup is not complete

Everything that was acknowledged before the backup began is in it, and what was acknowledged while it began may be. How:

1. Background work stands still, so nothing is sealed, merged or removed. Appends go on.
2. Every file gets a second name in `backup-staging/`: snapshots, the journal, then segments and checkpoints. Of the
   journal file that is being written only the bytes that it has at this moment will count. Records and events in those
   bytes need only files that are there already, since files are made before the events that name them.
3. Background work goes on. It may remove names, not what the second names stand for.
4. Segments and checkpoints, which are never changed, are linked into the backup, or copied if that is another disk. The
   journal is copied up to its last whole frame. All of it is synced.

Linked files share their blocks with the data directory: a backup on the same disk is quick and takes no room, and is
lost with that disk. A restore always copies.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headrace.errors import BadRequest, HeadraceError, StoreUnavailable
from headrace.log import checkpoint, journal, segment, snapshot
from headrace.log.cached_store import CACHE
from headrace.log.disk import LOCK, PRIVATE, TEMPORARY, Disk, OsDisk, fsync, fsync_directory, is_final
from headrace.log.doctor import DoctorReport, examine
from headrace.log.journal_port import TornTail

if TYPE_CHECKING:
    from headrace.log.log import Log

STAGING = "backup-staging"
MANIFEST = "backup.json"
FORMAT = 1
LINKABLE = (segment.DIRECTORY, checkpoint.DIRECTORY)
COPIED = (snapshot.DIRECTORY, journal.DIRECTORY)
LEFT_OUT = frozenset({LOCK, STAGING, MANIFEST, CACHE, journal.QUARANTINE})
COPY_BYTES = 4 * 1024 * 1024


class BackupDamaged(HeadraceError):
    """A copy does not pass the doctor's checks."""

    code = "backup-damaged"


class BackupFailed(HeadraceError):
    """The files could not be copied; nothing was left behind."""

    code = "backup-failed"


class BackupInfo(msgspec.Struct, frozen=True):
    """What was copied. `linked_bytes` share their blocks with the original; `records` are those of all streams."""

    path: str
    format: int
    time_us: int
    seconds: float
    files: int
    bytes: int
    linked_bytes: int
    streams: int
    records: int
    next_sequence: int


class _Copied(NamedTuple):
    files: int
    bytes: int
    linked_bytes: int


def back_up(log: Log, target: str | os.PathLike[str]) -> BackupInfo:
    """Copy an open log to a new directory, check the copy, and only then call it a backup. Blocks."""
    began, time_us = time.monotonic(), log.clock.now_us()
    next_sequence = log.journal.next_sequence
    root = _root_of(log)
    place = new_directory(Path(target), root)
    staging = root / STAGING
    with emptied_on_failure(place, log):
        try:
            with log.maintenance.without_reuse():
                sizes = _stage(log, root, staging)
                copied = _copy_all(staging, place, sizes, link=True)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        cut_torn_tail(place)
        report = checked(place)
        info = BackupInfo(
            path=str(place),
            format=FORMAT,
            time_us=time_us,
            seconds=round(time.monotonic() - began, 3),
            files=copied.files,
            bytes=copied.bytes,
            linked_bytes=copied.linked_bytes,
            streams=len({partition.stream for partition in report.streams}),
            records=sum(partition.next - partition.first for partition in report.streams),
            next_sequence=next_sequence,
        )
        write_manifest(place, info)
    return info


def restore(backup: str | os.PathLike[str], data: str | os.PathLike[str]) -> BackupInfo:
    """Make a new data directory of a backup, and check it. The backup stays as it is. Blocks."""
    source = Path(backup).absolute()
    info = read_manifest(source)
    place = new_directory(Path(data), source)
    with emptied_on_failure(place):
        copied = _copy_all(source, place, {}, link=False)
        checked(place)
    return msgspec.structs.replace(info, path=str(place), files=copied.files, bytes=copied.bytes, linked_bytes=0)


def remove_leftovers(disk: Disk) -> None:
    """Second names that a hub left which ended during a backup: they would keep removed files on the disk."""
    local = disk.local_path(STAGING)
    if local is not None:
        shutil.rmtree(local, ignore_errors=True)


@contextlib.contextmanager
def emptied_on_failure(place: Path, log: Log | None = None) -> Iterator[None]:
    """A disk that is full, or that fails, is not left with half a copy. If it is the log's own, the log ends."""
    try:
        yield
    except StoreUnavailable:
        shutil.rmtree(place, ignore_errors=True)
        raise
    except OSError as error:
        if log is not None and is_final(error) and _is_on(place, _root_of(log)):
            log.fail("syncing a backup on the log's own disk", error)
        shutil.rmtree(place, ignore_errors=True)
        raise BackupFailed(f"cannot copy to {place}: {error}; nothing was left there") from error


def _is_on(place: Path, root: Path) -> bool:
    """Whether both are on one disk, as far as the system tells."""
    return place.stat().st_dev == root.stat().st_dev


def read_manifest(backup: Path) -> BackupInfo:
    """What a backup says of itself; refuses what is not a complete one."""
    try:
        info = msgspec.json.decode((backup / MANIFEST).read_bytes(), type=BackupInfo)
    except FileNotFoundError:
        raise BadRequest(f"{backup} is not a backup, or one that was interrupted: it has no {MANIFEST}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError) as error:
        raise BackupDamaged(f"{backup / MANIFEST} cannot be read: {error}") from error
    if info.format != FORMAT:
        raise BadRequest(f"{backup} has format {info.format}; this program reads format {FORMAT}: use a newer one")
    return info


def checked(place: Path) -> DoctorReport:
    """Every checksum of a copy. Damage in the original is damage in the copy: it is refused, so that nobody relies on
    a backup that is not one."""
    report = examine(place)
    (place / LOCK).unlink(missing_ok=True)  # the doctor's own
    if not report.healthy:
        damage = [finding for finding in report.findings if finding.is_damage]
        raise BackupDamaged(
            f"the copy in {place} is damaged: {damage[0].text} ({len(damage)} findings); run headrace doctor on it "
            "and on the data directory"
        )
    return report


def _root_of(log: Log) -> Path:
    local = log.store.local_path("")
    if local is None:
        raise BadRequest("this hub keeps its log in memory: there are no files to back up")
    return Path(local).absolute()


def new_directory(place: Path, other: Path) -> Path:
    try:
        place = place.absolute()
        if place.resolve().is_relative_to(other.resolve()):
            raise BadRequest(f"{place} is inside {other}; choose a directory elsewhere")
        place.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        if any(place.iterdir()):
            raise BadRequest(f"{place} is not empty; choose a new directory")
    except (OSError, ValueError, RuntimeError) as error:  # no permission, a name that no disk takes, a loop of links
        raise BadRequest(f"cannot write to {str(place)!r}: {error}") from error
    return place


# -- staging: quick, while background work stands still ----------------------------------------------------------------


def _stage(log: Log, root: Path, staging: Path) -> dict[str, int]:
    """Second names for all files; returns how much of each journal file counts.

    What others keep beside the log (users, what Spark has staged) is linked before and after the journal's size is
    taken: files that an event in the journal needs exist then.
    """
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    with log.maintenance.standing_still():
        _stage_others(root, staging)
        for name in snapshot.names(log.store):
            _link(root / name, staging / name)
        sizes = _stage_journal(log, root, staging)
        _stage_others(root, staging)
        for directory in LINKABLE:
            for file in _files_below(root / directory):
                _link(file, staging / file.relative_to(root))
    return sizes


def _stage_journal(log: Log, root: Path, staging: Path) -> dict[str, int]:
    """The journal as it is at this moment: of the file being written what is written, and none that is begun later."""
    now = log.journal.position
    sizes = {}
    for file in sorted((root / journal.DIRECTORY).glob(f"*{journal.SUFFIX}")):
        name = f"{journal.DIRECTORY}/{file.name}"
        first = journal.first_sequence_of(name)
        if first < now.first_sequence or (first == now.first_sequence and now.size):
            size = file.stat().st_size
            sizes[name] = min(now.size, size) if first == now.first_sequence else size
            _link(file, staging / name)
    return sizes


def _stage_others(root: Path, staging: Path) -> None:
    for file in _others(root):
        _link(file, staging / file.relative_to(root))


def copy_others(root: Path, place: Path) -> tuple[int, int]:
    """What others keep beside a log, copied and synced: files and bytes. What is gone meanwhile was temporary."""
    files = size = 0
    for source in _others(root):
        target = place / source.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            size += _copy_file(source, target, None)
            files += 1
    sync_directories(place)
    return files, size


def _others(root: Path) -> Iterator[Path]:
    known = LEFT_OUT.union(LINKABLE, COPIED)
    for entry in root.iterdir():
        if entry.name not in known:
            yield from _files_below(entry) if entry.is_dir() else [entry]


def _link(source: Path, target: Path) -> None:
    """A second name. A file that is gone was temporary, or given up: nothing durable needs it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix != TEMPORARY:
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            os.link(source, target)


def _files_below(directory: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(directory):
        for name in sorted(names):
            yield Path(folder) / name


# -- copying: at length, while everything goes on ----------------------------------------------------------------------


def _copy_all(source: Path, place: Path, sizes: dict[str, int], *, link: bool) -> _Copied:
    """Everything below `source`; of files in `sizes` only so much. Synced."""
    files = size = linked = 0
    for directory in (*COPIED, *LINKABLE):
        (place / directory).mkdir(exist_ok=True)
    for path in _files_below(source):
        name = path.relative_to(source)
        if name.parts[0] in LEFT_OUT:
            continue
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if link and name.parts[0] in LINKABLE and _linked(path, target):
            copied = path.stat().st_size
            linked += copied
        else:
            copied = _copy_file(path, target, sizes.get(name.as_posix()))
        files += 1
        size += copied
    sync_directories(place)
    return _Copied(files, size, linked)


def _linked(source: Path, target: Path) -> bool:
    """Link, if the target is on the same disk and the disk can."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            return False
        raise
    return True


def _copy_file(source: Path, target: Path, limit: int | None) -> int:
    """The first `limit` bytes, or all; synced. Returns how many."""
    left = source.stat().st_size if limit is None else limit
    copied = 0
    # The copy gets the rights of the original when it is whole; until then nobody else reads what others may not.
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with source.open("rb") as reading, os.fdopen(descriptor, "wb") as writing:
        while left > copied and (piece := reading.read(min(COPY_BYTES, left - copied))):
            writing.write(piece)
            copied += len(piece)
        writing.flush()
        fsync(writing.fileno())
    shutil.copymode(source, target)
    return copied


def cut_torn_tail(place: Path) -> None:
    """End the last journal file with its last whole frame: what stands behind it was being written."""
    disk = OsDisk(place)
    try:
        for stored in journal.scan(disk):
            if isinstance(stored, TornTail):
                journal.cut(disk, stored)
    finally:
        disk.close()


def sync_directories(place: Path) -> None:
    for folder, _, _ in os.walk(place):
        fsync_directory(Path(folder))


def write_manifest(place: Path, info: BackupInfo) -> None:
    beside = place / f"{MANIFEST}{TEMPORARY}"
    with beside.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(info)) + b"\n")
        file.flush()
        fsync(file.fileno())
    beside.rename(place / MANIFEST)
    fsync_directory(place)
