"""A log moved to another journal and store, and two logs compared.

A copy has the segments of the original as they are, its tails as segments, its checkpoint blobs, and one snapshot of
all else, with sequence 0: the copy's journal begins behind it. Indexes, times, ids, cursors, producers and the indexes
that deleted streams have used stay what they are.

    to a directory      `snapshots/0….snapshot`, and no journal yet
    to a shared store   the snapshot, and `SnapshotStored` as the very first frame: before that nothing counts

So a copy that was cut off is none, and is made again from the beginning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.log import checkpoint, segment, snapshot
from headrace.log.frame import SnapshotStored, encode_event
from headrace.log.journal_port import JournalPort
from headrace.log.partition import Partition
from headrace.log.reading import LogView
from headrace.log.segment import write_segment
from headrace.log.state import State
from headrace.log.store import Store
from headrace.log.tail import Tail, TailEntry, pieces

COMPARED_AT_ONCE = 64 * 1024
"""Records of each log that are compared in one step."""
SEGMENT_BYTES = 32 * 1024 * 1024
"""Of a tail that becomes segments."""

Progress = Callable[[str, int, int], None]
"""What is being done, how much of it is done, and how much there is."""


def no_progress(what: str, done: int, total: int) -> None:
    """For those who do not look."""


class CopyDiffers(HeadraceError):
    """A copy of a log is not what the original is."""

    code = "copy-differs"


class Copied(NamedTuple):
    """How much a copy is."""

    streams: int
    records: int
    blobs: int
    bytes: int


def frozen(state: State) -> State:
    """A copy of a state that changes no more; whoever asks holds the log's lock. Records are not copied."""
    copy = snapshot.decode(snapshot.encode(state))
    assert copy is not None
    for partition in copy.partitions():
        original = state.by_id[partition.stream_id].partitions[partition.number]
        partition.segments = list(original.segments)
        partition.tail = Tail(list(original.tail.entries))
    copy.checkpoint_names = dict(state.checkpoint_names)
    return copy


def copy_blobs(state: State, source: Store, target: Store, progress: Progress = no_progress) -> Copied:
    """Put all that a frozen state names into another store; the state names the copies then."""
    copy = _Copying(state, source, target, progress)
    for partition in state.partitions():
        copy.partition(partition)
    for id in state.checkpoints:
        copy.checkpoint(id)
    records = sum(partition.next - partition.first for partition in state.partitions())
    return Copied(len(state.streams), records, copy.blobs, copy.done)


class _Copying:
    def __init__(self, state: State, source: Store, target: Store, progress: Progress) -> None:
        self._state = state
        self._source = source
        self._target = target
        self._progress = progress
        self.blobs = 0
        self.done = 0
        self._total = sum(partition.sealed_bytes + partition.tail.bytes for partition in state.partitions())
        self._total += sum(info.size for info in state.checkpoints.values())

    def _count(self, size: int) -> None:
        self.blobs += 1
        self.done += size
        self._progress("copied", min(self.done, self._total), self._total)

    def partition(self, partition: Partition) -> None:
        refs = []
        for ref in partition.segments:
            name = segment.name_of(partition.stream_id, partition.number, ref.first, ref.next, self._target.tag)
            refs.append(ref._replace(path=self._target.copy_in(name, self._source.chunks(ref.path))))
            self._count(ref.bytes)
        for entries in runs(partition.tail.entries):
            sealed = write_segment(
                self._target, partition.stream, partition.stream_id, partition.number, pieces(entries), self._target.tag
            )
            refs.append(sealed)
            self._count(sealed.bytes)
        partition.segments = sorted(refs)
        partition.tail = Tail()

    def checkpoint(self, id: int) -> None:
        name = checkpoint.blob_name(id, self._target.tag)
        found_by = self._target.copy_in(name, self._source.chunks(self._state.checkpoint_name(id)))
        self._state.checkpoint_names.pop(id, None)
        if self._target.is_shared:
            self._state.checkpoint_names[id] = found_by
        self._count(self._state.checkpoints[id].size)


def runs(entries: Iterable[TailEntry]) -> Iterator[list[TailEntry]]:
    """Entries without a gap, as many as a segment should have."""
    run: list[TailEntry] = []
    size = 0
    for entry in entries:
        if run and (run[-1].next != entry.base or size + len(entry.body) > SEGMENT_BYTES):
            yield run
            run, size = [], 0
        run.append(entry)
        size += len(entry.body)
    if run:
        yield run


def begin(state: State, store: Store, journal: JournalPort | None) -> None:
    """The last step: from here on the copy is a log. A shared store needs a journal that is empty and open."""
    state.sequence = 0
    state.is_final = False
    state.bookmark = b""
    state.deleted_ids.clear()
    state.garbage, state.snapshots = [], []
    state.is_shared = store.is_shared
    data = snapshot.encode(state)
    if journal is None:
        snapshot.save(store, 0, data)
        return
    name = store.put(snapshot.shared_name(0, store.tag), data)
    journal.write([journal.frame(0, encode_event(SnapshotStored(0, name, [])))])


# -- comparing ---------------------------------------------------------------------------------------------------------


def compare(one: LogView, other: LogView, progress: Progress = no_progress) -> int:
    """Raises `CopyDiffers` at the first difference, and what reading raises; returns how many records are the same."""
    _same("streams", one.streams(), other.streams())
    _same("indexes of deleted streams", one.state.retired_indexes, other.state.retired_indexes)
    _same("cursors", _cursors(one), _cursors(other))
    _same("checkpoints", one.checkpoints(), other.checkpoints())
    total = sum(partition.next - partition.first for partition in one.state.partitions())
    done = 0
    for partition in one.state.partitions():
        for count in _compare_partition(one, other, partition):
            done += count
            progress("compared", done, total)
    for info in one.streams():
        if info.kind == "table":
            _same(f"table {info.name!r}", dict(one.table_items(info.name)), dict(other.table_items(info.name)))
    for checkpoint_info in one.checkpoints():
        number = checkpoint_info.id
        same = _digest(one.read_checkpoint(number)) == _digest(other.read_checkpoint(number))
        _same(f"the data of checkpoint {number}", same, True)
    return done


def _compare_partition(one: LogView, other: LogView, partition: Partition) -> Iterator[int]:
    name, number = partition.stream, partition.number
    twin = other.partition(name, number)
    what = f"stream {name!r} partition {number}"
    _same(f"{what}: bounds", (partition.first, partition.next), (twin.first, twin.next))
    _same(f"{what}: producers", partition.producers, twin.producers)
    _same(f"{what}: time", partition.time_us, twin.time_us)
    for at in range(partition.first, partition.next, COMPARED_AT_ONCE):
        end = min(at + COMPARED_AT_ONCE, partition.next)
        here, there = (pa.Table.from_batches(list(view.scan(name, at, end, number))) for view in (one, other))
        _same(f"{what}: records {at} to {end - 1}", here.equals(there), True)
        yield end - at


def _same(what: str, one: object, other: object) -> None:
    if one != other:
        raise CopyDiffers(f"{what} differ between the original and the copy: the copy must not be used")


def _cursors(view: LogView) -> dict[tuple[str, str, int], tuple[int, int]]:
    return {(info.stream, info.name, info.partition): (info.index, info.updated_us) for info in view.cursors()}


def _digest(chunks: Iterator[bytes]) -> tuple[int, bytes]:
    digest, size = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
    return size, digest.digest()
