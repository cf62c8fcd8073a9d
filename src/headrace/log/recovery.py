"""Recovery: the newest intact snapshot, the segments, and the journal behind them, made into a State again.

Nothing is guessed. What cannot be read is named in the `Report`, never served, and never used as an index again.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.collection import without_collection
from headrace.errors import Damaged
from headrace.log import checkpoint, segment, snapshot
from headrace.log.fold import Fold
from headrace.log.journal_port import CutMeanwhile, GoodFrame, JournalPort, LostFrames, TornTail
from headrace.log.partition import OpenSegments, Partition
from headrace.log.replay import Replay
from headrace.log.report import Report
from headrace.log.runs import FrameRun
from headrace.log.state import State
from headrace.log.store import Store
from headrace.log.table import Table

CUTS_MAX = 10
"""So often the owner before may cut a journal while it is read."""


class Recovered(NamedTuple):
    state: State
    report: Report


def recover(journal: JournalPort, store: Store, repair: bool = True) -> Recovered:
    """Read all of a log. With `repair` a torn tail is cut and leftovers go; without, nothing is changed."""
    with without_collection():
        return _recover(journal, store, repair)


def _recover(journal: JournalPort, store: Store, repair: bool) -> Recovered:
    if store.is_shared:
        return _recover_shared(journal, store)
    report = Report()
    state, damaged = snapshot.load(store, tidy=repair)
    for name in damaged:
        report.note("damaged-snapshot", f"{name} fails its checksum; an older one and the journal serve instead", name)
        if repair:
            store.set_aside(name)
    _replay(journal, store, state, report, repair)
    _fold_tables(store, state, report)
    report.streams = len(state.streams)
    if repair:
        _remove_leftovers(store, state, report)
    return Recovered(state, report)


def _recover_shared(journal: JournalPort, store: Store) -> Recovered:
    state, report = _replay_shared(journal, store)
    _fold_tables(store, state, report)
    report.streams = len(state.streams)
    report.segments = sum(len(partition.segments) for partition in state.partitions())
    return Recovered(state, report)


def _replay_shared(journal: JournalPort, store: Store) -> Recovered:
    tries = CUTS_MAX
    while True:
        replay = Replay(store)
        try:
            for stored in journal.read(None):
                replay.add(stored)
        except CutMeanwhile:
            tries -= 1
            if not tries:
                raise
        else:
            return Recovered(replay.finish(journal.next_sequence), replay.report)


def _replay(journal: JournalPort, store: Store, state: State, report: Report, repair: bool) -> None:
    # One list for all streams that have none: to ask for each takes seconds when there are very many.
    with_segments = set(store.list(segment.DIRECTORY))

    def find_segments(partition: Partition) -> None:
        if str(partition.stream_id) not in with_segments:
            return
        refs, leftovers = segment.list_segments(store, partition.stream_id, partition.number, tidy=repair)
        partition.segments = [ref for ref in refs if ref.next > partition.first]
        report.segments += len(partition.segments)
        partition.next = max(partition.next, partition.sealed_next)
        if repair:
            for name in [*leftovers, *(ref.path for ref in refs if ref.next <= partition.first)]:
                store.delete(name)

    final_sequence = state.sequence if state.is_final else None
    fold = Fold(state, report, find_segments)
    for stored in journal.read(state.sequence, state.is_final, state.bookmark):
        match stored:
            case GoodFrame() | FrameRun():
                fold.add(stored)
            case LostFrames():
                fold.lose(stored)
            case TornTail():
                text = f"{stored.size} bytes behind the last intact frame were set aside"
                report.note("torn-tail", text, stored.path)
                if repair:
                    journal.set_aside(stored)
    fold.finish(journal.next_sequence)
    report.unproven = journal.doubt(final_sequence)


def _fold_tables(store: Store, state: State, report: Report) -> None:
    opened = OpenSegments(store, 4)
    for stream in list(state.streams.values()):
        if stream.table is not None:
            _fold_table(opened, stream.partitions[0], stream.table, report)


def _fold_table(opened: OpenSegments, partition: Partition, table: Table, report: Report) -> None:
    at = partition.first
    while at < partition.next:
        try:
            records = partition.read(opened, at, 2**31, 2**31)
            table.fold(records)
            at += records.num_rows
        except Damaged as damage:
            report.note_damage(damage)
            table.lose(damage)
            at = damage.last + 1
    report.accept(partition.stream, table.accepted_below)


def _remove_leftovers(store: Store, state: State, report: Report) -> None:
    """What an interrupted delete or checkpoint left behind. With damage about, nothing more is removed."""
    for stream_id in sorted(state.deleted_ids):
        store.delete_all(segment.folder(stream_id))
    state.deleted_ids.clear()
    if not report.damage:
        checkpoint.remove_orphans(store, set(state.checkpoints))
