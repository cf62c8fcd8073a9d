"""The doctor: looks at a data directory that no hub has open, changes nothing, and names what is wrong."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.errors import BadRequest, HeadraceError
from headrace.log import checkpoint, journal, segment, snapshot
from headrace.log.disk import Disk, OsDisk
from headrace.log.recovery import recover
from headrace.log.report import Finding
from headrace.log.segment import Segment, SegmentDamaged
from headrace.log.state import State
from headrace.log.store import DirectoryStore, Store

Progress = Callable[[int, int], None]
"""Segments looked at, and how many there are."""
RowCheck = Callable[[str, bytes, bytes], str | None]
"""What is wrong with a row of a table: its name, the key and the value in."""


class StreamReport(msgspec.Struct, frozen=True):
    """One partition as it is on disk."""

    stream: str
    kind: str
    partition: int
    first: int
    next: int
    segments: int
    segment_bytes: int
    journal_records: int


class DoctorReport(msgspec.Struct, frozen=True):
    """What the doctor found. `healthy` allows a torn tail: nothing in it was ever acknowledged."""

    healthy: bool
    findings: list[Finding]
    streams: list[StreamReport]
    journal_files: int
    journal_bytes: int
    segments: int
    snapshots: int
    checkpoints: int
    strangers: list[str]
    """Segment directories that belong to no stream."""
    last_time_us: int = 0
    """Time of the newest record; 0 when there is none."""


def examine(
    path: str | os.PathLike[str], progress: Progress | None = None, row_check: RowCheck | None = None
) -> DoctorReport:
    """Check every byte that has a checksum, and with `row_check` what tables hold. Refuses a directory that a hub has
    open, or that is none."""
    root = Path(path)
    if not (root / journal.DIRECTORY).is_dir():
        raise BadRequest(f"{root} is not a data directory: it has no folder {journal.DIRECTORY!r}")
    disk = OsDisk(root)
    try:
        return examine_disk(disk, progress, row_check)
    finally:
        disk.close()


def examine_disk(disk: Disk, progress: Progress | None = None, row_check: RowCheck | None = None) -> DoctorReport:
    """As `examine`, for any disk."""
    files, store = journal.FileJournal(disk, 0, 0), DirectoryStore(disk)
    try:
        recovered = recover(files, store, repair=False)
    except HeadraceError as error:
        return _hopeless(disk, store, Finding("unrecoverable", str(error)))
    state = recovered.state
    findings = list(recovered.report.findings)
    findings += check_blobs(store, state, progress, row_check)
    paths = journal.journal_files(disk)
    strangers = [
        f"{segment.DIRECTORY}/{name}"
        for name in store.list(segment.DIRECTORY)
        if not name.isdigit() or int(name) not in state.by_id.keys() | state.deleted_ids
    ]
    snapshots = len(snapshot.names(store))
    return report(state, findings, len(paths), sum(map(disk.size, paths)), snapshots, strangers)


def check_blobs(
    store: Store, state: State, progress: Progress | None = None, row_check: RowCheck | None = None
) -> list[Finding]:
    """All that a state names, and with `row_check` what tables hold."""
    findings = _check_segments(store, state, progress or (lambda done, total: None))
    findings += _check_checkpoints(store, state)
    return findings + (_check_rows(state, row_check) if row_check is not None else [])


def report(
    state: State, findings: list[Finding], files: int, journal_bytes: int, snapshots: int, strangers: list[str]
) -> DoctorReport:
    """What was found, with what there is."""
    return DoctorReport(
        not any(finding.is_damage for finding in findings),
        findings,
        [
            StreamReport(
                partition.stream,
                state.by_id[partition.stream_id].info.kind,
                partition.number,
                partition.first,
                partition.next,
                len(partition.segments),
                partition.sealed_bytes,
                sum(entry.count for entry in partition.tail.entries),
            )
            for partition in state.partitions()
        ],
        files,
        journal_bytes,
        sum(len(partition.segments) for partition in state.partitions()),
        snapshots,
        len(state.checkpoints),
        strangers,
        max((partition.time_us for partition in state.partitions()), default=0),
    )


def _hopeless(disk: Disk, store: Store, finding: Finding) -> DoctorReport:
    files = len(journal.journal_files(disk))
    return DoctorReport(False, [finding], [], files, 0, 0, len(snapshot.names(store)), 0, [])


def _check_segments(store: Store, state: State, progress: Progress) -> list[Finding]:
    findings: list[Finding] = []
    total = sum(len(partition.segments) for partition in state.partitions())
    done = 0
    for partition in state.partitions():
        table = state.by_id[partition.stream_id].table
        accepted_below = 0 if table is None else table.accepted_below
        for ref in partition.segments:
            try:
                damages = Segment(store, ref).damage()
            except SegmentDamaged as damage:
                damages = [damage]
            findings += [
                Finding(
                    "accepted-damage" if damage.last < accepted_below else "damaged-records",
                    f"stream {partition.stream!r} partition {partition.number}: indexes {damage.first} to "
                    f"{damage.last} fail their checksum",
                    damage.path,
                    partition.stream,
                    partition.number,
                    damage.first,
                    damage.last,
                )
                for damage in damages
            ]
            done += 1
            progress(done, total)
    return findings


def _check_rows(state: State, check: RowCheck) -> list[Finding]:
    tables = [(name, stream.table) for name, stream in state.streams.items() if stream.table is not None]
    return [
        Finding("unreadable-row", f"table {name!r}: the row {key!r} cannot be used: {wrong}", "", name)
        for name, table in tables
        for key, value in table.items()
        if (wrong := check(name, key, value)) is not None
    ]


def _check_checkpoints(store: Store, state: State) -> list[Finding]:
    findings = []
    for info in state.checkpoints.values():
        try:
            for _ in checkpoint.read_blob(store, state.checkpoint_name(info.id), info.size):
                pass
        except checkpoint.CheckpointDamaged as error:
            name = state.checkpoint_name(info.id)
            findings.append(Finding("damaged-checkpoint", str(error), name, info.stream))
    return findings
