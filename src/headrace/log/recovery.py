"""Recovery: the newest intact snapshot, the segments, and the journal behind them, made into a State again.

Nothing is guessed. What cannot be read is named in the `Report`, never served, and never used as an index again.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from headrace.errors import Damaged, HeadraceError
from headrace.log import checkpoint, journal, segment, snapshot
from headrace.log.disk import Disk
from headrace.log.frame import (
    AnyEvent,
    CursorDeleted,
    CursorSaved,
    ProducerSet,
    RecordsEntry,
    StreamCreated,
    StreamGrown,
    StreamTrimmed,
    decode_directory,
)
from headrace.log.journal import GoodFrame, LostFrames, TornTail
from headrace.log.partition import OpenSegments, Partition, ProducerState
from headrace.log.state import State, Stream, placeholder
from headrace.log.table import Table
from headrace.log.tail import Tail, TailEntry

RECORD_BYTES_MIN = 4
"""A record takes at least its offset: so many bytes of lost frames held at most so many records."""
UNKNOWN_LOSS = 2**32
"""How far indexes are moved on when a whole file is missing."""


class Unrecoverable(HeadraceError):
    """The state cannot be told any more."""

    code = "unrecoverable"


class Finding(msgspec.Struct, frozen=True):
    """Something that is not as it was written."""

    kind: str
    """`torn-tail` (never acknowledged), `damaged-records`, `lost-frames`, `damaged-snapshot`, `possible-loss`."""
    text: str
    path: str = ""
    stream: str = ""
    partition: int = 0
    first: int = 0
    last: int = 0

    @property
    def is_damage(self) -> bool:
        return self.kind != "torn-tail"


class Report(msgspec.Struct):
    """What recovery found and did."""

    findings: list[Finding] = []
    frames: int = 0
    journal_records: int = 0
    segments: int = 0
    streams: int = 0

    @property
    def damage(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.is_damage]


class Recovered(NamedTuple):
    state: State
    next_sequence: int
    report: Report


PartitionKey = tuple[int, int]
"""Stream id and partition number."""


def _key(partition: Partition) -> PartitionKey:
    return partition.stream_id, partition.number


class _Recovery:
    def __init__(self, disk: Disk, repair: bool) -> None:
        self._disk = disk
        self._repair = repair
        self.report = Report()
        self.state, damaged = snapshot.load(disk)
        for path in damaged:
            self._note(
                "damaged-snapshot", f"{path} fails its checksum; an older one and the journal serve instead", path
            )
            if repair:
                _quarantine(disk, path)
        self._snapshot_sequence = self.state.sequence
        self._entries: dict[PartitionKey, list[TailEntry]] = {}
        self._lost_bytes: int | None = 0
        self._seen_after_loss: set[PartitionKey] = set()

    def _note(self, kind: str, text: str, path: str = "") -> None:
        self.report.findings.append(Finding(kind, text, path))

    def run(self) -> Recovered:
        for partition in self.state.partitions():
            self._adopt_segments(partition)
        next_sequence = self._replay()
        self._skip_possibly_used_indexes()
        for partition in self.state.partitions():
            self._finish(partition)
        self.state.sequence = next_sequence
        self._fold_tables()
        self.report.streams = len(self.state.streams)
        if self._repair:
            self._remove_leftovers()
        return Recovered(self.state, next_sequence, self.report)

    def _adopt_segments(self, partition: Partition) -> None:
        found, leftovers = segment.list_segments(self._disk, partition.stream_id, partition.number)
        partition.segments = [ref for ref in found if ref.next > partition.first]
        self.report.segments += len(partition.segments)
        partition.next = max(partition.next, partition.sealed_next)
        if self._repair:
            for path in [*leftovers, *(ref.path for ref in found if ref.next <= partition.first)]:
                self._disk.unlink(path)

    def _replay(self) -> int:
        paths = journal.journal_files(self._disk)
        if paths and journal.first_sequence_of(paths[0]) > self.state.sequence:
            raise Unrecoverable(
                f"the journal begins at frame {journal.first_sequence_of(paths[0])} and no intact snapshot reaches "
                "that far: restore the data directory from a backup"
            )
        if not paths and self.state.sequence:
            raise Unrecoverable("the journal is missing: restore the data directory from a backup")
        next_sequence = journal.first_sequence_of(paths[-1]) if paths else 0
        for found in journal.scan(self._disk):
            match found:
                case GoodFrame():
                    self._replay_frame(found)
                    next_sequence = max(next_sequence, found.sequence + 1)
                case LostFrames():
                    self._lost(found)
                    next_sequence = max(next_sequence, found.next_sequence)
                case TornTail():
                    self._note(
                        "torn-tail", f"{found.size} bytes behind the last acknowledged frame were set aside", found.path
                    )
                    if self._repair:
                        journal.quarantine_tail(self._disk, found)
        return self._beyond_snapshot(next_sequence, paths)

    def _beyond_snapshot(self, next_sequence: int, paths: list[str]) -> int:
        """A journal that ends before the snapshot has lost its end, and what followed the snapshot with it. One frame
        behind the snapshot counts as lost, so that the next start finds the same."""
        if next_sequence >= self._snapshot_sequence:
            return next_sequence
        beyond = self._snapshot_sequence + 1
        self._lost(LostFrames(next_sequence, beyond, paths[-1], self._disk.size(paths[-1]), 0))
        return beyond

    def _replay_frame(self, found: GoodFrame) -> None:
        self.report.frames += 1
        is_new = found.sequence >= self._snapshot_sequence
        at = 0
        for entry in decode_directory(found.directory):
            if isinstance(entry, RecordsEntry):
                body = None if found.data is None else found.data[at : at + entry.body_bytes]
                at += entry.body_bytes
                self._replay_records(entry, body, found, is_new)
            elif is_new:
                self._replay_event(entry)

    def _replay_event(self, event: AnyEvent) -> None:
        match event:
            case CursorSaved() | CursorDeleted() | ProducerSet():
                self._grow_to(self.state.by_id.get(event.stream), event.partition)
            case StreamTrimmed():
                self._grow_to(self.state.by_id.get(event.id), event.partition)
        self.state.apply(event)
        if isinstance(event, StreamCreated | StreamGrown) and event.id in self.state.by_id:
            for partition in self.state.by_id[event.id].partitions[-len(event.firsts) :]:
                self._adopt_segments(partition)

    def _replay_records(self, entry: RecordsEntry, body: bytes | None, found: GoodFrame, is_new: bool) -> None:
        partition = self._partition(entry, is_new)
        if partition is None:
            return
        if is_new:
            partition.next = max(partition.next, entry.base + entry.count)
            partition.time_us = max(partition.time_us, entry.time_us)
            if entry.producer is not None:
                state = ProducerState(entry.producer_sequence, entry.base, entry.count)
                partition.producers[entry.producer] = state
        key = _key(partition)
        self._seen_after_loss.add(key)
        if body is None or entry.base + entry.count <= max(partition.sealed_next, partition.first):
            return  # damaged records leave a gap, which `_finish` names
        self.report.journal_records += entry.count
        tail_entry = TailEntry(entry.base, entry.count, entry.time_us, body, found.sequence)
        self._entries.setdefault(key, []).append(tail_entry)

    def _partition(self, entry: RecordsEntry, is_new: bool) -> Partition | None:
        """The partition that records belong to; None when their stream has been deleted since."""
        stream = self.state.by_id.get(entry.stream)
        if stream is None:
            if not is_new:
                return None
            stream = placeholder(entry.stream)
            self.state.add_stream(stream)
            self._note(
                "possible-loss", f"the creation of stream {entry.stream} is lost; it is {stream.info.name!r} now"
            )
        self._grow_to(stream, entry.partition)
        return stream.partitions[entry.partition]

    @staticmethod
    def _grow_to(stream: Stream | None, partition: int) -> None:
        """A partition that is spoken of is there, be it that the stream's growth was lost with a damaged frame."""
        while stream is not None and partition >= len(stream.partitions):
            stream.partitions.append(Partition(stream.info.name, stream.info.id, len(stream.partitions), 0))
            stream.info = msgspec.structs.replace(stream.info, partitions=len(stream.partitions))

    def _lost(self, found: LostFrames) -> None:
        self._note(
            "lost-frames",
            f"frames {found.first_sequence} to {found.next_sequence - 1} at byte {found.offset} cannot be read",
            found.path,
        )
        if found.next_sequence <= self._snapshot_sequence:
            return  # the snapshot knows all bounds; lost records show as gaps
        if self._lost_bytes is not None:
            self._lost_bytes = self._lost_bytes + found.size if found.size else None
        self._seen_after_loss.clear()

    def _skip_possibly_used_indexes(self) -> None:
        """Lost frames may have held records of any stream that is not seen behind them: never use their indexes."""
        if self._lost_bytes == 0:
            return
        skip = UNKNOWN_LOSS if self._lost_bytes is None else self._lost_bytes // RECORD_BYTES_MIN
        for partition in self.state.partitions():
            if _key(partition) not in self._seen_after_loss:
                partition.next += skip

    def _finish(self, partition: Partition) -> None:
        partition.tail = Tail(self._entries.pop(_key(partition), None))
        self.state.tail_bytes += partition.tail.bytes
        partition.forget_pending()
        for first, last in partition.gaps():
            self.report.findings.append(
                Finding(
                    "damaged-records",
                    f"stream {partition.stream!r} partition {partition.number}: indexes {first} to {last} are lost",
                    "",
                    partition.stream,
                    partition.number,
                    first,
                    last,
                )
            )

    def _fold_tables(self) -> None:
        opened = OpenSegments(self._disk, 4)
        for stream in list(self.state.streams.values()):
            if stream.table is not None:
                self._fold_table(opened, stream.partitions[0], stream.table)

    def _fold_table(self, opened: OpenSegments, partition: Partition, table: Table) -> None:
        at = partition.first
        while at < partition.next:
            try:
                records = partition.read(opened, at, 2**31, 2**31)
                table.fold(records)
                at += records.num_rows
            except Damaged as damage:
                self._note("damaged-records", str(damage), damage.where)
                at = damage.last + 1

    def _remove_leftovers(self) -> None:
        """Files that an interrupted delete or checkpoint left behind. With damage about, nothing more is removed."""
        for stream_id in sorted(self.state.deleted_ids):
            remove_stream_files(self._disk, stream_id)
        self.state.deleted_ids.clear()
        if not self.report.damage:
            checkpoint.remove_orphans(self._disk, set(self.state.checkpoints))


def _quarantine(disk: Disk, path: str) -> None:
    disk.make_dirs(journal.QUARANTINE)
    disk.rename(path, f"{journal.QUARANTINE}/{path.rpartition('/')[2]}")
    disk.sync_dir(journal.QUARANTINE)
    disk.sync_dir(path.rpartition("/")[0])


def remove_stream_files(disk: Disk, stream_id: int) -> None:
    """Remove the segments of a stream that has been deleted."""
    top = f"{segment.DIRECTORY}/{stream_id}"
    for partition in disk.list(top):
        for name in disk.list(f"{top}/{partition}"):
            disk.unlink(f"{top}/{partition}/{name}")
        disk.remove_dir(f"{top}/{partition}")
    disk.remove_dir(top)


def recover(disk: Disk, repair: bool = True) -> Recovered:
    """Read a data directory. With `repair` a torn tail is cut and leftovers go; without, nothing is changed."""
    if repair:
        for directory in (journal.DIRECTORY, segment.DIRECTORY, snapshot.DIRECTORY, checkpoint.DIRECTORY):
            disk.make_dirs(directory)
        for name in disk.list(snapshot.DIRECTORY):
            if not name.endswith(snapshot.SUFFIX):
                disk.unlink(f"{snapshot.DIRECTORY}/{name}")
    return _Recovery(disk, repair).run()
