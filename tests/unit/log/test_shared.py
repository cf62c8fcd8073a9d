"""A log on a shared store: what counts is told by the journal, and the directory may be empty at each start."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.log.helpers import SMALL, maintain, payloads

from headrace.config import Log as LogSettings
from headrace.errors import BadRequest, Damaged, LogFailed, StoreUnavailable, UnknownStream
from headrace.log import ops, snapshot
from headrace.log.batch import Batch
from headrace.log.cached_store import CachedStore
from headrace.log.checkpoint import CheckpointDamaged
from headrace.log.disk import OsDisk
from headrace.log.frame import EncodedFrame
from headrace.log.journal_port import CutMeanwhile, LostFrames, Stored, TornTail, Unrecoverable
from headrace.log.log import Log
from headrace.log.pending import Pending
from headrace.log.replay import Replay
from headrace.log.stamp import split
from headrace.log.store import DirectoryStore
from headrace.testing import FakeClock, MemoryDisk, MemoryJournal, MemoryStore


class FarStore(MemoryStore):
    """Out of reach when told to; nobody needs a list of it."""

    def __init__(self) -> None:
        super().__init__()
        self.error: OSError | None = None
        self.lists = 0

    def create(self, name: str) -> Any:
        self._reach()
        return super().create(name)

    def get(self, name: str) -> bytes:
        self._reach()
        return super().get(name)

    def delete(self, name: str) -> None:
        self._reach()
        super().delete(name)

    def list(self, folder: str, *, tidy: bool = False) -> list[str]:
        self.lists += 1
        return super().list(folder, tidy=tidy)

    def _reach(self) -> None:
        if self.error is not None:
            raise self.error


class Owner(MemoryJournal):
    """A hub's hold of a journal; it is refused once another has it."""

    def __init__(self, kept: MemoryJournal) -> None:
        super().__init__()
        self.__dict__ = kept.__dict__ | {"kept": kept, "is_fenced": False}

    def write(self, frames: list[EncodedFrame]) -> None:
        if self.is_fenced:
            raise OSError("fenced")
        super().write(frames)
        self.kept.next_sequence, self.kept.position = self.next_sequence, self.position


class Place:
    """A journal and a store that hubs come to, one after the other."""

    def __init__(self, root: Path | None = None) -> None:
        self.journal = MemoryJournal(SMALL["journal_file_bytes"])
        self.far = FarStore()
        self.clock = FakeClock()
        self._root = root
        self._numbers = itertools.count()

    def open(self, **changed: Any) -> Log:
        """A hub with an empty directory and a name of its own."""
        hub = f"hub{next(self._numbers)}"
        disk = MemoryDisk() if self._root is None else OsDisk(self._root / hub)
        store = CachedStore(DirectoryStore(disk), self.far, 10_000_000, f"-{hub}")
        owner = Owner(self.journal)
        return Log(owner, store, self.clock, LogSettings(**{**SMALL, **changed}))

    def names(self, folder: str) -> list[str]:
        return sorted(name for name in self.far.blobs if name.startswith(folder))


@pytest.fixture
def place() -> Place:
    return Place()


def settle(log: Log, pending: Pending) -> Any:
    while not pending.done:
        log.commit_once()
    if pending.error is not None:
        raise pending.error
    return pending.result[0]


def do(log: Log, operation: ops.Op) -> Any:
    return settle(log, log.submit([operation]))


def fill(log: Log, stream: str, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        do(log, ops.Append(stream, Batch.one(b"%d" % number * 10, id=number), 0, "p", number))


def work(log: Log) -> None:
    """All that is due in the background, with its commits."""
    while log.maintain_once() or log.commit_once():
        pass


def checkpoint(log: Log, stream: str, data: bytes) -> int:
    blob = log.begin_checkpoint(stream)
    blob.write(data)
    blob.finish()
    do(log, ops.RegisterCheckpoint(blob.id, stream, 7, blob.size, {"a": "b"}))
    return blob.id


def numbers(log: Log, stream: str) -> list[bytes]:
    return payloads(log, stream)


def expected(start: int, end: int) -> list[bytes]:
    return [b"%d" % number * 10 for number in range(start, end)]


def filled(place: Place, **changed: Any) -> Log:
    """A log whose journal was cut, with some of everything."""
    log = place.open(**changed)
    do(log, ops.CreateStream("s"))
    do(log, ops.CreateStream("t", kind="table"))
    do(log, ops.CreateStream("gone"))
    fill(log, "gone", 20)
    for start in range(0, 200, 20):
        fill(log, "s", 20, start)
        do(log, ops.Put("t", b"k%d" % start, b"v%d" % start))
        do(log, ops.SaveCursor("c", "s", start))
        work(log)
    do(log, ops.DeleteStream("gone"))
    work(log)
    return log


def test_a_hub_with_an_empty_directory_finds_everything(place: Place) -> None:
    log = filled(place)
    number = checkpoint(log, "s", b"state" * 1000)
    dropped = checkpoint(log, "s", b"old")
    do(log, ops.DropCheckpoint(dropped))
    do(log, ops.Trim("s", 50))
    work(log)
    assert log.journal.first > 0, "the journal was cut"
    lists = place.far.lists
    for _ in range(2):  # killed; and after it, stopped
        after = place.open()
        assert after.recovered.findings == []
        assert after.bounds("s") == (50, 200)
        assert numbers(after, "s") == expected(50, 200)
        assert (after.cursor("c", "s"), after.producers("s")) == (180, {"p": 199})
        assert dict(after.table_items("t")) == {b"k%d" % start: b"v%d" % start for start in range(0, 200, 20)}
        assert [info.id for info in after.checkpoints()] == [number]
        assert b"".join(after.read_checkpoint(number)) == b"state" * 1000
        with pytest.raises(UnknownStream):
            after.bounds("gone")
        do(after, ops.CreateStream("gone"))
        assert after.bounds("gone") == (20, 20), "an index is never used twice"
        do(after, ops.DeleteStream("gone"))
        work(after)
        after.close()
    assert place.far.lists == lists, "the journal says what there is"
    assert place.names("segments/3") == []
    assert len(place.names("checkpoints")) == 1
    assert len(place.names("snapshots")) <= 2


def test_the_embedded_log_knows_nothing_of_it(place: Place) -> None:
    log = Log(MemoryJournal(2000), MemoryStore(), place.clock, LogSettings(**SMALL))
    do(log, ops.CreateStream("s"))
    assert checkpoint(log, "s", b"x") == 1
    assert (log.state.checkpoint_names, log.state.snapshots) == ({}, [])
    assert log.store.list("checkpoints") == ["1.blob"]


def test_what_no_event_names_does_not_count(place: Place) -> None:
    """The hub dies after the upload and before the event: the records come from the journal."""
    log = place.open()
    do(log, ops.CreateStream("s"))
    fill(log, "s", 30)
    log.maintain_once()
    assert place.names("segments")
    assert log.segments("s") == []
    blob = log.begin_checkpoint("s")
    blob.finish()
    after = place.open()
    assert after.segments("s") == []
    assert numbers(after, "s") == expected(0, 30)
    assert after.checkpoints() == []
    with pytest.raises(BadRequest, match="not in the store"):
        do(after, ops.RegisterCheckpoint(blob.id, "s", 0, 0, {}))
    work(after)
    assert len(after.segments("s")) == 1
    assert numbers(after, "s") == expected(0, 30)


def test_a_checkpoint_that_is_given_up_leaves_nothing(place: Place) -> None:
    log = place.open()
    do(log, ops.CreateStream("s"))
    blob = log.begin_checkpoint("s")
    blob.write(b"x")
    blob.abort()
    finished = log.begin_checkpoint("s")
    finished.finish()
    finished.abort()
    assert place.names("checkpoints") == []


def test_records_are_let_go_of_when_the_event_is_durable(place: Place) -> None:
    log = place.open()
    do(log, ops.CreateStream("s"))
    fill(log, "s", 30)
    tail = log.state.tail_bytes
    log.maintain_once()
    assert log.state.tail_bytes == tail
    assert log.maintenance.is_compacting, "it waits only for a commit"
    log.maintain_once()
    assert len(place.names("segments")) == 1, "one at a time"
    log.commit_once()
    assert log.state.tail_bytes < tail
    assert numbers(log, "s") == expected(0, 30)


def test_merged_segments_go_after_the_event(place: Place) -> None:
    log = place.open(merge_segments_min=2, segment_bytes=40_000)
    do(log, ops.CreateStream("s"))
    for start in range(0, 60, 10):
        fill(log, "s", 10, start)
        place.clock.advance(700)
        work(log)
    place.clock.advance(700)
    work(log)
    assert log.maintenance.merged_segments == 6
    assert len(place.names("segments")) == len(log.segments("s"))
    assert numbers(log, "s") == expected(0, 60)
    assert numbers(place.open(), "s") == expected(0, 60)


def test_a_hub_that_lost_its_cell_removes_nothing_of_the_next(place: Place) -> None:
    zombie = place.open(merge_segments_min=2, segment_bytes=40_000)
    do(zombie, ops.CreateStream("s"))
    for start in range(0, 30, 10):
        fill(zombie, "s", 10, start)
        place.clock.advance(700)
        zombie.maintain_once()
        zombie.commit_once()
    owner = place.open(merge_segments_min=2, segment_bytes=40_000)
    before = {ref.path for ref in owner.partition("s").segments}
    zombie.journal.is_fenced = True  # type: ignore[attr-defined]
    place.clock.advance(700)
    while zombie.maintain_once() or zombie.commit_once():
        pass
    assert isinstance(zombie.failed, LogFailed)
    zombie.maintain_once()
    assert {split(name)[0] for name in before} <= set(place.far.blobs)
    assert numbers(owner, "s") == expected(0, 30)
    fill(owner, "s", 30, 30)
    work(owner)
    assert numbers(owner, "s") == expected(0, 60)
    assert numbers(place.open(), "s") == expected(0, 60)


def test_a_stream_that_is_deleted_while_its_segment_is_stored(place: Place) -> None:
    log = place.open()
    do(log, ops.CreateStream("s"))
    fill(log, "s", 30)
    pending = log.submit([ops.DeleteStream("s")])
    log.maintain_once()
    log.queue._own, own = log.queue._own.__class__(), log.queue._own  # the deletion is quicker
    settle(log, pending)
    log.queue._own = own
    work(log)
    assert place.names("segments") == []


def test_a_segment_of_what_was_trimmed_meanwhile(place: Place) -> None:
    log = place.open()
    do(log, ops.CreateStream("s"))
    fill(log, "s", 30)
    log.maintain_once()
    log.queue._own, own = log.queue._own.__class__(), log.queue._own
    do(log, ops.Trim("s", 30))
    log.queue._own = own
    work(log)
    assert place.names("segments") == []
    assert log.bounds("s") == (30, 30)
    assert place.open().bounds("s") == (30, 30)


def test_a_store_out_of_reach_stops_sealing_and_not_appending(place: Place) -> None:
    log = place.open()
    do(log, ops.CreateStream("s"))
    place.far.error = OSError("no route")
    fill(log, "s", 100)
    place.clock.advance(700)
    work(log)
    assert "no route" in str(log.maintenance.error)
    assert "no route" in log.trouble()["store"]
    assert log.failed is None
    assert numbers(log, "s") == expected(0, 100)
    place.far.error = None
    work(log)
    assert log.trouble() == {}
    assert log.segments("s")
    place.far.error = OSError("no route")
    with pytest.raises(StoreUnavailable):
        numbers(place.open(), "s")
    place.far.error = None
    assert numbers(place.open(), "s") == expected(0, 100)


def test_what_could_not_be_removed_is_not_forgotten(place: Place) -> None:
    log = filled(place)
    blobs = len(place.names("segments/1"))
    place.far.error = OSError("no route")
    do(log, ops.Trim("s", 200))
    work(log)
    assert len(place.names("segments/1")) == blobs
    place.far.error = None
    log.maintenance._keeps_garbage = True  # until there is a snapshot that knows of it
    fill(log, "s", 200, 200)
    work(log)
    log.maintenance._keeps_garbage = False
    after = place.open()
    work(after)
    assert len(place.names("segments/1")) == len(after.segments("s")) < blobs + 5
    assert after.state.garbage == []


def test_damage_in_the_store_is_an_error_for_that_range(place: Place) -> None:
    log = filled(place)
    damaged, *_ = log.partition("s").segments
    bare = split(damaged.path)[0]
    place.far.blobs[bare] = place.far.blobs[bare][:-100] + bytes(100)
    after = place.open()
    with pytest.raises(Damaged) as raised:
        numbers(after, "s")
    assert (raised.value.first, raised.value.last) == (damaged.first, damaged.next - 1)
    assert after.read("s", damaged.next, limit=1).column("index").to_pylist() == [damaged.next]
    del place.far.blobs[bare]
    with pytest.raises(Damaged):
        place.open().read("s", 0)


def test_damage_in_the_cache_is_no_damage(tmp_path: Path) -> None:
    place = Place(tmp_path)
    log = filled(place)
    number = checkpoint(log, "s", b"state" * 300_000)
    ref = log.partition("s").segments[0]
    for name in (ref.path, log.state.checkpoint_name(number)):
        local = tmp_path / "hub0" / split(name)[0]
        data = bytearray(local.read_bytes())
        data[len(data) // 2] ^= 1
        local.write_bytes(data)
    log.opened.close()
    assert numbers(log, "s") == expected(0, 200)
    assert b"".join(log.read_checkpoint(number)) == b"state" * 300_000
    log.close()


def test_a_checkpoint_that_is_damaged_in_the_store(place: Place) -> None:
    log = filled(place)
    number = checkpoint(log, "s", b"state")
    bare = split(log.state.checkpoint_name(number))[0]
    place.far.blobs[bare] = b"rotten"
    with pytest.raises(CheckpointDamaged):
        list(place.open().read_checkpoint(number))


def test_a_damaged_snapshot_costs_nothing_and_two_are_the_end(place: Place) -> None:
    log = filled(place)
    older, newer = (split(ref.name)[0] for ref in log.state.snapshots)
    assert log.journal.first > 0
    kept = dict(place.far.blobs)
    for name in (older, newer):
        place.far.blobs = kept | {name: kept[name][:-1]}
        after = place.open()
        assert numbers(after, "s") == expected(0, 200)
        found = [finding.kind for finding in after.recovered.findings]
        assert found == (["damaged-snapshot"] if name == older else [])
    place.far.blobs = {name: data for name, data in kept.items() if name != older} | {newer: b""}
    with pytest.raises(Unrecoverable, match="no snapshot that it names"):
        place.open()


def test_a_snapshot_that_rotted_in_the_cache_is_fetched_again(tmp_path: Path) -> None:
    place = Place(tmp_path)
    log = filled(place)
    name = log.state.snapshots[0].name
    bare = split(name)[0]
    (tmp_path / "hub0" / bare).write_bytes(b"rotten")
    state = snapshot.read_shared(log.store, name)
    assert state is not None
    assert state.sequence == log.state.snapshots[0].sequence
    log.close()


def test_an_empty_journal_beside_a_store_in_use_is_no_beginning(place: Place) -> None:
    filled(place)
    place.journal = MemoryJournal()
    with pytest.raises(Unrecoverable, match="created again"):
        place.open()


def test_a_journal_that_is_cut_while_it_is_read_is_read_again(place: Place) -> None:
    log = filled(place)
    cuts = iter([True] * 9)

    class Cut(Owner):
        def read(self, sequence: int | None, is_final: bool = False, bookmark: bytes = b"") -> Any:
            found = list(super().read(sequence, is_final, bookmark))
            yield found[0]
            if next(cuts, False):
                raise CutMeanwhile("cut")
            yield from found[1:]

    store = CachedStore(DirectoryStore(MemoryDisk()), place.far, 10**6)
    after = Log(Cut(log.journal), store, place.clock, LogSettings(**SMALL))  # type: ignore[arg-type]
    assert numbers(after, "s") == expected(0, 200)
    cuts = iter([True] * 10)
    with pytest.raises(CutMeanwhile):
        Log(Cut(log.journal), store, place.clock, LogSettings(**SMALL))  # type: ignore[arg-type]


@pytest.mark.parametrize("stored", [LostFrames(3, 5, "j", 0, 0), TornTail("j", 0, 8)])
def test_what_a_cell_never_has_is_the_end(place: Place, stored: Stored) -> None:
    with pytest.raises(Unrecoverable):
        Replay(place.far).add(stored)


def test_lost_frames_behind_the_snapshot_are_named(place: Place) -> None:
    log = filled(place)
    replay = Replay(log.store)
    for stored in log.journal.read(None):
        replay.add(stored)
    replay.add(LostFrames(10**6, 10**6 + 2, "j", 0, 100))
    replay.finish(10**6 + 2)
    assert [finding.kind for finding in replay.report.findings][:1] == ["lost-frames"]


def test_a_log_that_closes_leaves_a_snapshot_if_it_is_worth_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    log = place.open(journal_file_bytes=10**6)
    do(log, ops.CreateStream("s"))
    fill(log, "s", 30)
    log.close()
    assert place.names("snapshots") == []
    monkeypatch.setattr("headrace.log.maintenance.LEAVE_BYTES", 100)
    log = place.open(journal_file_bytes=10**6)
    fill(log, "s", 30, 30)
    log.close()
    assert len(place.names("snapshots")) == 1
    log = place.open()
    assert [ref.sequence for ref in log.state.snapshots]
    fill(log, "s", 5, 60)
    place.far.error = OSError("no route")
    log.close()
    place.far.error = None
    assert numbers(place.open(), "s") == expected(0, 65)


def test_a_table_is_compacted(place: Place) -> None:
    log = place.open()
    do(log, ops.CreateStream("t", kind="table"))
    for number in range(300):
        do(log, ops.Put("t", b"k%d" % (number % 5), b"v%d" % number))
        if number % 50 == 0:
            place.clock.advance(10)
            work(log)
    for _ in range(20):
        place.clock.advance(10)
        work(log)
    assert log.bounds("t").first > 0
    assert dict(place.open().table_items("t")) == {b"k%d" % key: b"v%d" % (295 + key) for key in range(5)}


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_whatever_happens_nothing_is_lost(seed: int) -> None:
    """Random work, a store that comes and goes, and hubs that die anywhere: each next one has an empty directory."""
    rng = random.Random(seed)
    place = Place()
    records: dict[str, list[bytes]] = {"a": [], "b": []}
    firsts = {"a": 0, "b": 0}
    rows: dict[bytes, bytes] = {}
    blobs: dict[int, bytes] = {}
    log = place.open(merge_segments_min=2)
    for name in records:
        do(log, ops.CreateStream(name))
    do(log, ops.CreateStream("t", kind="table"))
    for step in range(rng.randrange(50, 250)):
        place.far.error = OSError("no route") if rng.random() < 0.1 else None
        place.clock.advance(rng.choice([0, 1, 300]))
        name = rng.choice("ab")
        match rng.randrange(8):
            case 0 | 1 | 2:
                data = [b"%d" % step * rng.randrange(1, 40) for _ in range(rng.randrange(1, 4))]
                do(log, ops.Append(name, Batch.of(data)))
                records[name] += data
            case 3:
                key = b"%d" % rng.randrange(9)
                do(log, ops.Put("t", key, b"%d" % step))
                rows[key] = b"%d" % step
            case 4:
                firsts[name] = rng.randrange(firsts[name], len(records[name]) + 1)
                do(log, ops.Trim(name, firsts[name]))
            case 5:
                try:
                    number = checkpoint(log, name, b"%d" % step)
                except StoreUnavailable:
                    continue
                blobs[number] = b"%d" % step
            case 6:
                for _ in range(rng.randrange(6)):
                    rng.choice([log.maintain_once, log.commit_once])()
            case 7:
                place.far.error = None
                if rng.random() < 0.3:
                    log.close()
                log = place.open(merge_segments_min=2)
    place.far.error = None
    for each in (log, place.open()):
        maintain(each)
        for name, data in records.items():
            assert each.bounds(name) == (firsts[name], len(data))
            assert numbers(each, name) == data[firsts[name] :]
        assert dict(each.table_items("t")) == rows
        assert {info.id: b"".join(each.read_checkpoint(info.id)) for info in each.checkpoints()} == blobs
