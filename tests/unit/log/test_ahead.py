"""The body of a large append is written before its frame: others become durable meanwhile, and nothing can be lost."""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from unit.log.helpers import do, open_log, payloads

from headrace.errors import BadRequest, DiskFull, Fenced, LogFailed
from headrace.log import ahead, ops
from headrace.log.batch import Batch
from headrace.log.disk import OsDisk
from headrace.log.journal import DIRECTORY, SPARE, journal_files
from headrace.log.log import Log
from headrace.log.pending import Pending
from headrace.log.state import TABLE
from headrace.testing import FaultyDisk, MemoryDisk
from headrace.testing.disk import DiskKilled, _MemorySyncedFile

SLICE = 1_500
LARGE = bytes(range(250)) * 40
SETTINGS = {"journal_file_bytes": 16_000, "commit_bytes_max": 8_000, "segment_bytes": 100_000}


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "SLICE_BYTES", SLICE)
    monkeypatch.setattr(ahead, "LARGE_BYTES", len(LARGE))


def append(stream: str, payload: bytes, producer: str | None = None, **more: int) -> ops.Append:
    return ops.Append(stream, Batch.one(payload), producer=producer, **more)


def files(disk: MemoryDisk) -> list[str]:
    return [path for path in disk.paths() if path.startswith(DIRECTORY) and not path.endswith("proof")]


def on_write(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """Have something done at each write of a synced file."""
    real = _MemorySyncedFile.write_at

    def write_at(self: _MemorySyncedFile, offset: int, pieces: Sequence[bytes]) -> None:
        then()
        real(self, offset, pieces)

    monkeypatch.setattr(_MemorySyncedFile, "write_at", write_at)


def test_others_become_durable_between_the_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    log = open_log(disk, **SETTINGS)
    do(log, ops.CreateStream("large"))
    do(log, ops.CreateStream("small"))
    submitted: list[Pending] = []
    done_before: list[int] = []
    large = log.submit([append("large", LARGE)])

    def another() -> None:
        if not large.done and len(submitted) < 5:
            done_before.append(sum(each.done for each in submitted))
            submitted.append(log.submit([append("small", b"%d" % len(submitted))]))

    on_write(monkeypatch, another)
    log.commit_once()
    assert large.done
    assert done_before[-1] >= 3
    while log.commit_once():
        pass
    for found in (log, open_log(disk.after_power_cut(random.Random(1)), **SETTINGS)):
        assert payloads(found, "large") == [LARGE]
        assert payloads(found, "small") == [b"0", b"1", b"2", b"3", b"4"]
        assert not found.recovered.damage


def test_what_belongs_behind_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(**SETTINGS)
    do(log, ops.CreateStream("s"))
    behind: list[Pending] = []
    on_write(monkeypatch, lambda: None if behind else behind.append(log.submit([append("s", b"behind")])))
    log.submit([append("s", LARGE)])
    while log.commit_once():
        pass
    assert payloads(log, "s") == [LARGE, b"behind"]


def test_without_room_only_what_is_small_goes_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the memory of the tails but here, as long as a large one is written."""
    log = open_log(**SETTINGS, tail_bytes_max=len(LARGE))
    for name in ("large", "bulky", "small"):
        do(log, ops.CreateStream(name))
    do(log, append("large", LARGE))
    bulky: list[Pending] = []
    small: list[Pending] = []

    def more() -> None:
        if not bulky:
            bulky.append(log.submit([append("bulky", bytes(2_000))]))
            small.append(log.submit([append("small", b"x")]))

    large = log.submit([append("large", LARGE)])
    on_write(monkeypatch, more)
    log.commit_once()
    assert (large.done, small[0].done, bulky[0].done) == (True, True, False)
    log.commit_once()
    assert bulky[0].done


def test_a_producer_that_is_no_name_is_refused() -> None:
    log = open_log(**SETTINGS)
    do(log, ops.CreateStream("s"))
    with pytest.raises(BadRequest):
        do(log, append("s", LARGE, "\ud800", sequence=1))
    do(log, append("s", LARGE, "é", sequence=1))
    assert payloads(log, "s") == [LARGE]


def test_producers_set_beside_it_are_of_the_same_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """So an immortal's calls are stored: records, and how far each sender is."""
    disk = MemoryDisk()
    log = open_log(disk, **SETTINGS)
    do(log, ops.CreateStream("s"))
    do(log, ops.CreateStream("small"))
    names = ["é" * 40, "p", "gone"]
    do(log, ops.SetProducer("s", "gone", 1))
    between = passed_while_written(log, monkeypatch)
    beside = [ops.SetProducer("s", name, None if name == "gone" else 2**64 - 1) for name in names]
    large = log.submit([append("s", LARGE, "writer", sequence=7), *beside])
    log.commit_once()
    assert large.error is None
    assert between[0].done
    for found in (log, open_log(disk.after_power_cut(random.Random(1)), **SETTINGS)):
        assert payloads(found, "s") == [LARGE]
        points = [found.producer("s", name) for name in (*names, "writer")]
        assert points == [2**64 - 1, 2**64 - 1, None, 7]


@pytest.mark.parametrize("operation", ["put", "put if absent", "put many"])
def test_values_of_tables_too(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    log = open_log(disk, **SETTINGS)
    do(log, ops.CreateStream("t", kind=TABLE))
    do(log, ops.CreateStream("small"))
    between = passed_while_written(log, monkeypatch)
    op: ops.Op = ops.Put("t", b"k", LARGE, ops.ABSENT if operation == "put if absent" else ops.ANY)
    if operation == "put many":
        op = ops.PutMany("t", [b"k", b"l"], [LARGE, b"x"])
    do(log, op)
    assert between[0].done
    for found in (log, open_log(disk.after_power_cut(random.Random(1)), **SETTINGS)):
        assert found.table_get("t", b"k") == LARGE
        assert found.table_get("t", b"l") == (b"x" if operation == "put many" else None)


def test_a_put_whose_condition_does_not_hold_leaves_no_file() -> None:
    disk = MemoryDisk()
    log = open_log(disk, **SETTINGS)
    do(log, ops.CreateStream("t", kind=TABLE))
    do(log, ops.Put("t", b"k", b"x"))
    before = files(disk)
    assert not do(log, ops.Put("t", b"k", LARGE, ops.ABSENT)).applied
    assert files(disk) == before
    assert log.table_get("t", b"k") == b"x"


def passed_while_written(log: Log, monkeypatch: pytest.MonkeyPatch) -> list[Pending]:
    """A small append comes with the first write."""
    between: list[Pending] = []
    on_write(monkeypatch, lambda: None if between else between.append(log.submit([append("small", b"x")])))
    return between


def work(log: Log, acknowledged: list[tuple[str, bytes]]) -> None:
    """Large ones and small ones between them; what was acknowledged, in order."""
    for number in range(3):
        submitted = [("large", LARGE + b"%d" % number), *(("small", b"%d.%d" % (number, each)) for each in range(4))]
        pendings = [(each, log.submit([append(*each)])) for each in submitted]
        while log.commit_once():
            acknowledged += [each for each, pending in pendings if pending.done and each not in acknowledged]


def begun(disk: MemoryDisk) -> None:
    log = open_log(disk, **SETTINGS)
    for name in ("large", "small"):
        do(log, ops.CreateStream(name))
    do(log, append("large", LARGE))  # there may be a spare
    log.close()


def calls_of_work() -> int:
    disk = MemoryDisk()
    begun(disk)
    faulty = FaultyDisk(disk)
    work(open_log(faulty, **SETTINGS), [])
    return len(faulty.calls)


CALLS = 75
"""More than the work takes."""


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("number", range(1, CALLS))
def test_a_power_cut_at_any_moment_takes_nothing_that_was_acknowledged(number: int, before: bool) -> None:
    disk = MemoryDisk()
    begun(disk)
    faulty = FaultyDisk(disk)
    acknowledged: list[tuple[str, bytes]] = []
    faulty.kill(number, before)
    try:
        work(open_log(faulty, **SETTINGS), acknowledged)
    except DiskKilled:
        pass
    else:
        assert calls_of_work() < CALLS  # all moments are tried
    for seed in range(3):
        left = disk.after_power_cut(random.Random(seed))
        log = open_log(left, **SETTINGS)
        assert not log.recovered.damage
        stored = {name: payloads(log, name) for name in ("large", "small")}
        for name, found in stored.items():
            known = [LARGE][: name == "large"] + [payload for stream, payload in acknowledged if stream == name]
            assert found[: len(known)] == known
            assert len(found) <= len(known) + 4  # nobody was told of these, and they are whole
            assert all(len(payload) in (len(LARGE), len(LARGE) + 1, 3) for payload in found)
        do(log, append("small", b"4.4"))
        do(log, append("large", LARGE))
        log = open_log(left.after_kill(), **SETTINGS)
        assert not log.recovered.damage
        assert payloads(log, "small") == [*stored["small"], b"4.4"]
        assert payloads(log, "large") == [*stored["large"], LARGE]


def test_a_disk_that_is_full_in_the_middle_is_as_it_was() -> None:
    disk = MemoryDisk()
    begun(disk)
    faulty = FaultyDisk(disk)
    log = open_log(faulty, **SETTINGS)
    do(log, append("small", b"x"))
    before = {path: disk.size(path) for path in files(disk)}
    faulty.room_bytes = 4_000
    with pytest.raises(DiskFull):
        do(log, append("large", LARGE))
    assert {path: disk.size(path) for path in files(disk) if not path.endswith(SPARE)} == {
        path: size for path, size in before.items() if not path.endswith(SPARE)
    }
    faulty.heal()
    do(log, append("large", LARGE))
    assert payloads(log, "large") == [LARGE, LARGE]


def test_a_disk_that_fails_in_the_middle_is_the_logs_end() -> None:
    disk = MemoryDisk()
    begun(disk)
    faulty = FaultyDisk(disk)
    log = open_log(faulty, **SETTINGS)
    do(log, append("small", b"x"))
    faulty.fail(len(faulty.calls) + 5, errno.EIO)
    with pytest.raises(LogFailed):
        do(log, append("large", LARGE))
    assert log.failed is not None
    found = open_log(disk.after_kill(), **SETTINGS)
    assert payloads(found, "large") == [LARGE]
    assert payloads(found, "small") == [b"x"]


def test_what_is_refused_at_last_leaves_no_file() -> None:
    disk = MemoryDisk()
    begun(disk)
    log = open_log(disk, **SETTINGS)
    do(log, append("small", b"x"))
    before = files(disk)
    with pytest.raises(Fenced):
        do(log, ops.Append("large", Batch.one(LARGE), producer="p", sequence=5, after=3))
    assert files(disk) == before
    do(log, append("large", LARGE, "p", sequence=5))
    assert do(log, append("large", LARGE, "p", sequence=5)).duplicate
    assert len(files(disk)) == len(before) + 1  # the second one was not written at all
    assert payloads(log, "large") == [LARGE, LARGE]


def test_a_large_one_begins_a_file_and_others_follow_it_there() -> None:
    disk = MemoryDisk()
    begun(disk)
    log = open_log(disk, **SETTINGS)
    do(log, append("large", LARGE))
    last = journal_files(disk)[-1]
    do(log, append("small", b"behind"))
    assert journal_files(disk)[-1] == last
    log.close()
    assert payloads(open_log(disk, **SETTINGS), "small") == [b"behind"]


@pytest.mark.parametrize("has_spare", [False, True])
@pytest.mark.parametrize("more", [0, 1000, 2152])  # the last ends with a block
def test_on_a_real_disk_whose_writes_are_whole_blocks(tmp_path: Path, has_spare: bool, more: int) -> None:
    if has_spare:
        (tmp_path / DIRECTORY).mkdir(mode=0o700)
        for number in range(2):  # the first file that is written takes one
            (tmp_path / f"{DIRECTORY}/{number:020d}-{1:016x}.journal{SPARE}").write_bytes(b"\xff" * 40_000)
    disk = OsDisk(tmp_path)
    log = open_log(disk, **SETTINGS)
    do(log, ops.CreateStream("large"))
    do(log, ops.CreateStream("small"))
    large = LARGE + bytes(more)
    do(log, append("large", large))
    killed = tmp_path / "killed"
    shutil.copytree(tmp_path / DIRECTORY, killed / DIRECTORY)
    do(log, append("small", b"behind"))
    log.close()
    for folder, small in ((killed, []), (tmp_path, [b"behind"])):
        found = open_log(OsDisk(folder), **SETTINGS)
        assert not found.recovered.findings
        assert payloads(found, "large") == [large]
        assert payloads(found, "small") == small
        found.close()
