"""The doctor of a log on a shared store: changes nothing, takes nothing, and names what is wrong.

The journal is read as a hub would read it that opens with an empty disk, and connects to a snapshot or not. Everything
that the state names then is fetched and checked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from headrace.errors import HeadraceError
from headrace.log import checkpoint, doctor, segment, snapshot
from headrace.log.disk import OsDisk
from headrace.log.doctor import DoctorReport, Progress, RowCheck
from headrace.log.journal_port import JournalPort
from headrace.log.orphans import named
from headrace.log.recovery import recover
from headrace.log.report import Finding
from headrace.log.state import State
from headrace.log.store import BlobDamaged, Store


class Shared(Protocol):
    """A log on a shared store."""

    def journal(self, *, claims: bool) -> JournalPort:
        """Not read yet. Without `claims` it is only looked at."""
        ...

    def store(self, disk: OsDisk) -> Store:
        """With its cache on a disk, which it owns then."""
        ...

    def hubs(self) -> list[str]:
        """The names of those that run, or were killed a moment ago."""
        ...


def examine(
    shared: Shared, empty: Path, progress: Progress | None = None, row_check: RowCheck | None = None
) -> DoctorReport:
    """`empty` is a directory for what is fetched. A hub may be at work meanwhile."""
    store = shared.store(OsDisk(empty))
    journal = shared.journal(claims=False)
    try:
        try:
            recovered = recover(journal, store)
        except HeadraceError as error:
            if error.retriable:
                raise
            return DoctorReport(False, [Finding("unrecoverable", str(error))], [], 0, 0, 0, 0, 0, [])
        state = recovered.state
        findings = list(recovered.report.findings)
        findings += _check_snapshots(store, state)
        findings += doctor.check_blobs(store, state, progress, row_check)
        return doctor.report(state, findings, 0, 0, len(state.snapshots), _unnamed(store, state))
    finally:
        journal.close()
        store.close()


def _check_snapshots(store: Store, state: State) -> list[Finding]:
    findings = []
    for ref in state.snapshots:
        try:
            is_whole = snapshot.read_shared(store, ref.name) is not None
        except (FileNotFoundError, BlobDamaged):
            is_whole = False
        if not is_whole:
            text = f"{ref.name} is damaged or missing; another one and the journal serve instead"
            findings.append(Finding("damaged-snapshot", text, ref.name))
    return findings


def _unnamed(store: Store, state: State) -> list[str]:
    """Blobs that nobody will read: a hub died before its event was durable. One that is being stored is among them."""
    known = named(state)
    suffixes = segment.SUFFIX, snapshot.SUFFIX, checkpoint.SUFFIX
    return [name for name in store.names() if name.endswith(suffixes) and name not in known]
