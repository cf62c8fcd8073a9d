"""Large changes of tables: what is small goes between their slices, and nothing is lost or mixed up by it."""

from __future__ import annotations

import errno
from random import Random
from typing import Any

import pytest
from unit.log.helpers import do, maintain, open_log

from headrace.log import ops
from headrace.log.batch import Batch
from headrace.log.log import Log
from headrace.log.pending import Pending
from headrace.log.table import Table
from headrace.testing import FaultyDisk, MemoryDisk

COUNT = 35
KEYS = [b"key %d" % number for number in range(COUNT)]
MANY = dict.fromkeys(KEYS, b"new")


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.log.slices.SLICE_KEYS", 10)
    monkeypatch.setattr("headrace.log.log.SLICE_KEYS", 10)


def opened(disk: MemoryDisk | None = None) -> Log:
    log = open_log(disk or MemoryDisk(), commit_bytes_max=2_000, segment_bytes=100_000)
    do(log, ops.CreateStream("state", kind="table"))
    do(log, ops.CreateStream("orders"))
    do(log, ops.PutMany("state", KEYS[:5], [b"old"] * 5))
    let_large_ones_go(log)
    return log


def let_large_ones_go(log: Log) -> None:
    """They take turns with small ones."""
    do(log, ops.SaveCursor("c", "orders", 0))


def table_of(log: Log) -> Table:
    table = log.state.stream("state").table
    assert table is not None
    return table


def contents(log: Log) -> dict[bytes, bytes]:
    return dict(table_of(log).items())


def append(text: bytes) -> list[ops.Op]:
    return [ops.Append("orders", Batch.one(text))]


class Watched:
    """Notes in which order transactions are reported, and how far the table was."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.reported: list[str] = []
        self.behind: list[tuple[bool, int]] = []
        self.on_report: Any = lambda: None
        log.on_commit = self._reported

    def _reported(self, gathered: list[Pending], touched: object) -> None:
        self.reported += [pending.token for pending in gathered]
        self.behind.append((table_of(self.log).is_behind, len(table_of(self.log))))
        self.on_report()


def test_small_ones_go_between_the_slices_and_those_of_the_same_table_wait() -> None:
    log = opened()
    watched = Watched(log)
    more = iter([append(b"2"), append(b"3")])
    watched.on_report = lambda: [log.submit(each, "later") for each in [next(more, None)] if each]
    log.submit([ops.PutMany("state", KEYS, [b"new"] * COUNT)], "large")
    log.submit(append(b"1"), "beside")
    log.submit([ops.Put("state", KEYS[0], b"newest")], "same")
    log.commit_once()
    assert watched.reported == ["beside", "later", "later", "large"]
    assert watched.behind == [(True, 10), (True, 20), (True, 30), (False, COUNT)]
    assert contents(log) == MANY
    log.commit_once()
    assert contents(log) == {**MANY, KEYS[0]: b"newest"}
    assert table_of(log).bytes == table_of(log).pending_bytes == sum(map(len, KEYS)) + 3 * COUNT + 3


def test_what_passes_is_durable_and_so_is_the_large_one() -> None:
    """A kill between two slices loses nothing of either."""
    disk = MemoryDisk()
    log = opened(disk)
    watched = Watched(log)
    left: list[MemoryDisk] = []
    watched.on_report = lambda: left.append(disk.after_kill())
    log.submit([ops.PutMany("state", KEYS, [b"new"] * COUNT)], "large")
    log.submit(append(b"1"), "beside")
    log.commit_once()
    assert watched.behind[0] == (True, 10)
    again = open_log(left[0])
    assert contents(again) == MANY
    assert again.bounds("orders").next == 1
    assert again.bounds("state") == log.bounds("state")


def test_large_removals_too() -> None:
    log = opened()
    do(log, ops.PutMany("state", KEYS, [b"new"] * COUNT))
    let_large_ones_go(log)
    watched = Watched(log)
    log.submit([ops.DeleteMany("state", [*KEYS[5:], *KEYS[5:], b"never there"])], "large")
    log.submit(append(b"1"), "beside")
    log.submit([ops.Put("state", KEYS[7], b"after")], "same")
    log.commit_once()
    assert watched.reported == ["beside", "large"]
    assert watched.behind[0] == (False, COUNT)  # before the commit, while it was found out what there is
    assert contents(log) == dict.fromkeys(KEYS[:5], b"new")
    log.commit_once()
    assert contents(log) == {**dict.fromkeys(KEYS[:5], b"new"), KEYS[7]: b"after"}
    assert table_of(log).bytes == table_of(log).pending_bytes


def test_a_removal_says_how_many_were_there() -> None:
    log = opened()
    assert do(log, ops.DeleteMany("state", KEYS)) == 5
    assert do(log, ops.DeleteMany("state", KEYS)) == 0
    assert contents(log) == {}


def test_a_table_that_is_behind_is_not_compacted() -> None:
    """Its old values would be taken for the newest, and the new records trimmed."""
    log = open_log(MemoryDisk(), commit_bytes_max=2_000, compact_bytes_min=0)
    do(log, ops.CreateStream("state", kind="table"))
    do(log, ops.CreateStream("orders"))
    for _ in range(3):
        do(log, ops.PutMany("state", KEYS, [b"old"] * COUNT))
    let_large_ones_go(log)
    watched = Watched(log)
    queued: list[int] = []

    def maintains() -> None:
        if table_of(log).is_behind:
            maintain(log)
            queued.append(len(log.queue))

    watched.on_report = maintains
    log.submit([ops.PutMany("state", KEYS, [b"new"] * COUNT)], "large")
    log.submit(append(b"1"), "beside")
    log.commit_once()
    assert queued == [0]
    log.on_commit = None
    maintain(log)
    for _ in range(20):
        log.commit_once()
        log.clock.advance(10)  # type: ignore[attr-defined]
        maintain(log)
    assert log.bounds("state").first > 0
    assert contents(log) == MANY
    assert isinstance(log.store.disk, MemoryDisk)  # type: ignore[attr-defined]
    assert contents(open_log(log.store.disk.after_kill())) == MANY  # type: ignore[attr-defined]


def test_a_disk_that_fails_between_two_slices_fails_only_what_was_not_durable() -> None:
    memory = MemoryDisk()
    log = opened(memory)
    disk = FaultyDisk(memory)
    log.close()
    log = open_log(disk, commit_bytes_max=2_000, segment_bytes=100_000)
    watched = Watched(log)
    watched.on_report = lambda: disk.fail_all("sync", errno.EIO) if len(watched.reported) == 1 else None
    large = log.submit([ops.PutMany("state", KEYS, [b"new"] * COUNT)], "large")
    first = log.submit(append(b"1"), "first")
    beside: list[Pending] = []
    fail = watched.on_report

    def reported() -> None:
        fail()
        if not beside:
            beside.append(log.submit(append(b"2"), "second"))

    watched.on_report = reported
    log.commit_once()
    assert watched.reported == ["first", "second", "large"]
    assert (first.error, large.error) == (None, None)
    assert beside[0].error is not None
    assert log.failed is not None
    disk.heal()
    assert contents(log) == MANY
    assert contents(open_log(memory.after_kill())) == MANY


@pytest.mark.parametrize("seed", range(10))
def test_any_order_of_large_and_small_comes_to_the_same_as_one_after_the_other(seed: int) -> None:
    chance = Random(seed)
    disk = MemoryDisk()
    log = opened(disk)
    expected = contents(log)
    for _ in range(30):
        for _ in range(chance.randrange(1, 6)):
            keys = chance.choices(KEYS, k=chance.choice([1, 3, 20, 35]))
            value = b"%d" % chance.randrange(100)
            if chance.random() < 0.4:
                log.submit([ops.DeleteMany("state", keys)])
                expected = {key: held for key, held in expected.items() if key not in keys}
            else:
                log.submit([ops.PutMany("state", keys, [value] * len(keys))])
                expected |= dict.fromkeys(keys, value)
            log.submit(append(b"x"))
        while log.commit_once():
            pass
        assert contents(log) == expected
        assert table_of(log).bytes == sum(len(key) + len(value) for key, value in expected.items())
    assert contents(open_log(disk.after_kill())) == expected
