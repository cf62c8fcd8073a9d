"""Runs of frames: what they become is what the same frames become one by one, damaged or not."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from unit.log.helpers import do, fill, open_log

from headrace.log import fold, ops, runs, snapshot
from headrace.log.batch import Batch, decode_single
from headrace.log.disk import Disk
from headrace.log.frame import PLAIN, Salt, encode_frame, encode_records, random_salt
from headrace.log.journal import FILE_HEADER, FileJournal, journal_files, scan
from headrace.log.journal_port import GoodFrame
from headrace.log.recovery import Recovered, recover
from headrace.log.runs import Entry, FrameRun, Group, RunReader, grouped
from headrace.log.store import DirectoryStore
from headrace.log.tail import PACKED_ENTRY
from headrace.testing import FakeClock, MemoryDisk

LARGE = {"journal_file_bytes": 1_000_000, "journal_bytes_max": 8_000_000}
"""One file for all."""


def written(seed: int, turns: int = 150) -> MemoryDisk:
    """A log that was used in all ways, and killed."""
    chance, disk, clock = random.Random(seed), MemoryDisk(), FakeClock()
    log = open_log(disk, clock, journal_file_bytes=chance.choice((3_000, 20_000)), journal_bytes_max=60_000)
    do(log, ops.CreateStream("t", kind="table"))
    for name in "ab":
        do(log, ops.CreateStream(name, partitions=2))
    for turn in range(turns):
        clock.advance(chance.random())
        stream, partition = chance.choice("ab"), chance.randrange(2)
        batch = Batch.of([chance.randbytes(chance.randrange(60)) for _ in range(chance.randint(1, 4))])
        what = chance.random()
        if what < 0.6:
            log.submit([ops.Append(stream, batch, partition)])
        elif what < 0.8:
            log.submit([ops.Append(stream, batch, partition, f"producer {chance.randrange(3)}", turn)])
        elif what < 0.85:
            log.submit([ops.Append("a", batch), ops.Append("b", batch, 1), ops.SaveCursor("c", "a", turn)])
        elif what < 0.9:
            log.submit([ops.Put("t", b"key %d" % (turn % 5), batch.body)])
        elif what < 0.92:
            log.submit([ops.Trim(stream, log.bounds(stream, partition).next // 2, partition)])
        elif what < 0.93:
            log.commit_once()
            do(log, ops.DeleteStream(stream))
            do(log, ops.CreateStream(stream, partitions=2))
        if chance.random() < 0.2:
            log.commit_once()
        if chance.random() < 0.05:
            log.commit_once()
            log.maintain_once()
    log.commit_once()
    return disk


def read(disk: Disk) -> Recovered:
    return recover(FileJournal(disk, 0, 0), DirectoryStore(disk), repair=False)


def content(recovered: Recovered) -> dict[str, Any]:
    """All that recovery has found."""
    state, report = recovered
    tails = {(each.stream, each.number): each.tail.entries for each in state.partitions()}
    return {
        "state": snapshot.encode(state),
        "tails": tails,
        "tail bytes": state.tail_bytes,
        "needed": state.needed_sequence,
        "findings": report.findings,
        "counts": (report.frames, report.journal_records),
    }


def both_ways(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], dict[str, Any]]:
    results = []
    for least, most, waiting in ((2, 5, 500), (10**9, 10**9, 0)):
        monkeypatch.setattr(runs, "RUN_MIN", least)
        monkeypatch.setattr(runs, "RUN_MAX", most)
        monkeypatch.setattr(fold, "RUNS_BYTES_MAX", waiting)
        results.append(content(read(disk)))
    return results[0], results[1]


@pytest.mark.parametrize("seed", range(8))
def test_runs_and_single_frames_become_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = written(seed)
    in_runs, one_by_one = both_ways(disk, monkeypatch)
    assert in_runs == one_by_one
    assert any(isinstance(found, FrameRun) for found in _scanned_in_runs(disk, monkeypatch))


def _scanned_in_runs(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    monkeypatch.setattr(runs, "RUN_MIN", 2)
    return list(scan(disk))


@pytest.mark.parametrize("seed", range(60))
def test_damage_is_told_in_the_same_words(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, chance = written(seed % 3, 60), random.Random(seed)
    path = chance.choice(journal_files(disk))
    data = bytearray(disk.read(path))
    at = chance.randrange(FILE_HEADER.size, len(data))
    match seed % 4:
        case 0:
            data[at] ^= 1 << chance.randrange(8)
        case 1:
            del data[at:]
        case 2:
            data[at : at + 100] = bytes(len(data[at : at + 100]))
        case 3:
            at -= at % 8
            data[at : at + 16] = data[at + 8 : at + 16] + data[at : at + 8]
    disk.put(path, bytes(data))
    in_runs, one_by_one = both_ways(disk, monkeypatch)
    assert in_runs == one_by_one


@pytest.mark.parametrize("salt", [PLAIN, random_salt()])
def test_a_file_of_appends_is_read_in_runs(salt: Salt, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream's creation comes first, and puts off the first of them; in the end too few are left for another."""
    monkeypatch.setattr(FileJournal.__init__, "__defaults__", (lambda: salt,))
    monkeypatch.setattr(runs, "RUN_MAX", 150)
    disk = MemoryDisk()
    log = open_log(disk, **LARGE)
    do(log, ops.CreateStream("s"))
    fill(log, "s", 600)
    found = list(scan(disk))
    assert [len(each.bodies) for each in found if isinstance(each, FrameRun)] == [150] * 3
    assert [each.sequence for each in found if isinstance(each, FrameRun)] == [128, 278, 428]
    assert sum(isinstance(each, GoodFrame) for each in found) == 601 - 450


@pytest.mark.parametrize("place", ["magic", "sequence", "directory", "body", "producer"])
def test_a_run_ends_before_what_is_not_as_it_should_be(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "RUN_MIN", 2)
    disk = MemoryDisk()
    log = open_log(disk, **LARGE)
    do(log, ops.CreateStream("s"))
    for number in range(9):
        do(
            log,
            ops.Append("s", Batch.one(b"x" * number), producer="p" * number, sequence=number)
            if number
            else ops.Append("s", Batch.one(b"")),
        )
    (path,) = journal_files(disk)
    frames = [each for each in _one_by_one(disk, monkeypatch) if isinstance(each, GoodFrame)]
    broken = frames[6]
    at = broken.offset + {"magic": 0, "sequence": 24, "directory": 45, "producer": 40 + 48 + 1}.get(place, 0)
    if place == "body":
        at = broken.offset + 40 + len(broken.directory) + 3
    data = bytearray(disk.read(path))
    data[at] ^= 4
    run = RunReader(bytes(data), log.journal.salt).find(frames[1].offset, frames[1].sequence, 100)
    assert run is not None
    assert (run.sequence, run.end, len(run.bodies)) == (frames[1].sequence, broken.offset, 5)
    assert [sent.producer for sent in run.sent] == ["p" * number for number in range(1, 5)]
    assert RunReader(bytes(data), log.journal.salt).find(broken.offset, broken.sequence, 100) is None
    assert RunReader(bytes(data), random_salt()).find(frames[1].offset, frames[1].sequence, 100) is None


def _one_by_one(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    with monkeypatch.context() as patch:
        patch.setattr(runs, "RUN_MIN", 10**9)
        return list(scan(disk))


def test_what_is_sealed_already_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, clock = MemoryDisk(), FakeClock()
    log = open_log(disk, clock, seal_age_s=1.0, **LARGE)
    do(log, ops.CreateStream("s"))
    for _ in range(2):
        do(log, ops.Append("s", Batch.of([b"x"] * 3)))
    clock.advance(10)
    log.maintain_once()
    assert [(each.first, each.next) for each in log.segments("s")] == [(0, 6)]
    for _ in range(3):
        do(log, ops.Append("s", Batch.of([b"x"] * 3)))
    in_runs, one_by_one = both_ways(disk, monkeypatch)
    assert in_runs == one_by_one
    assert [entry.base for entry in in_runs["tails"]["s", 0]] == [6, 9, 12]


def test_frames_inside_of_payloads_are_no_part_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a salt somebody can send a frame as a payload, with the right sequence."""
    monkeypatch.setattr(FileJournal.__init__, "__defaults__", (lambda: PLAIN,))
    disk = MemoryDisk()
    log = open_log(disk, **LARGE)
    do(log, ops.CreateStream("s"))
    for number in range(20):
        forged = Batch.one(b"forged")
        directory = encode_records(1, 0, 1, number + 1, 9, b"", 0, len(forged.body))
        frame = b"".join(encode_frame(log.journal.next_sequence + 1, 0, directory, forged.body))
        do(log, ops.Append("s", Batch.one(frame)))
    in_runs, one_by_one = both_ways(disk, monkeypatch)
    assert in_runs == one_by_one
    assert [entry.count for entry in in_runs["tails"]["s", 0]] == [1] * 20
    assert not any(decode_single(entry.body)[-1] == b"forged" for entry in in_runs["tails"]["s", 0])


def test_entries_with_a_gap_between_them_are_groups_of_their_own() -> None:
    bases = np.array([4, 0, 6, 9])
    entries = np.array([(7, 1, 2, 8), (8, 2, 5, 8), (6, 3, 1, 8), (9, 4, 1, 8)], Entry)
    run = FrameRun(1, 0, 32, np.array([5, 3, 5, 5]) << 32, bases, entries, [b"a", b"b", b"c", b"d"], [])
    packed, bodies, groups = grouped([run])
    assert bodies == [b"b", b"a", b"c", b"d"]
    assert [count for _, _, count, _ in PACKED_ENTRY.iter_unpack(packed)] == [5, 2, 1, 1]
    assert list(groups) == [
        Group(3, 0, 0, 1, 0, 5, 8, 2),
        Group(5, 0, 1, 3, 4, 7, 7, 3),
        Group(5, 0, 3, 4, 9, 10, 9, 4),
    ]
