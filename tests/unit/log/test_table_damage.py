"""A damaged record of a table: an error for every key that it may concern, and for none besides."""

from __future__ import annotations

import pytest
from unit.log.helpers import again, do, maintain, open_log

from headrace.errors import ConditionFailed, Damaged
from headrace.log import ops
from headrace.log.log import Log
from headrace.testing import FakeClock, MemoryDisk


def flip(disk: MemoryDisk, needle: bytes) -> None:
    """One bit, wherever the disk holds it."""
    for path in disk.paths():
        data = bytearray(disk.read(path))
        if needle in data:
            data[data.index(needle)] ^= 1
            disk.put(path, bytes(data))


@pytest.fixture(params=["in the journal", "in a segment"])
def log(request: pytest.FixtureRequest) -> Log:
    """The newest value of `k` is damaged; `later` and `removed` were changed behind it."""
    disk = MemoryDisk()
    clock = FakeClock()
    made = open_log(disk, clock, seal_age_s=1.0)
    do(made, ops.CreateStream("t", kind="table"))
    do(made, ops.PutMany("t", [b"k", b"before", b"removed"], [b"old", b"1", b"2"]))
    do(made, ops.Put("t", b"k", b"the newest value"))
    if request.param == "in a segment":
        clock.advance(10)
        maintain(made)
        assert made.segments("t")
    do(made, ops.Put("t", b"later", b"3"))
    do(made, ops.Delete("t", b"removed"))
    made.close()
    flip(disk, b"the newest value")
    return open_log(disk, clock)


def test_a_key_that_damage_may_concern_is_an_error(log: Log) -> None:
    for key in (b"k", b"before", b"never put"):
        with pytest.raises(Damaged, match="restore them from a backup, or put or delete the key again"):
            log.table_get("t", key)
    with pytest.raises(Damaged):
        log.table_items("t")


def test_a_key_that_was_changed_behind_the_damage_is_not(log: Log) -> None:
    assert log.table_get("t", b"later") == b"3"
    assert log.table_get("t", b"removed") is None
    assert do(log, ops.Put("t", b"later", b"4", b"3")) == (True, b"3")
    assert do(log, ops.Put("t", b"removed", b"5", ops.ABSENT)) == (True, None)


@pytest.mark.parametrize("expect", [b"old", ops.ABSENT, ops.PRESENT])
def test_an_expectation_of_a_key_in_doubt_is_an_error(log: Log, expect: ops.Expect | bytes) -> None:
    before = log.bounds("t")
    for change in (ops.Put("t", b"k", b"x", expect), ops.Delete("t", b"k", expect)):
        with pytest.raises(Damaged):
            do(log, change)
    assert log.bounds("t") == before


def test_a_change_that_expects_nothing_ends_the_doubt_for_good(log: Log) -> None:
    assert do(log, ops.Put("t", b"k", b"new")) == (True, None)
    assert do(log, ops.Put("t", b"k", b"newer", b"new")) == (True, b"new")
    assert do(log, ops.Delete("t", b"before")) == (True, None)
    assert do(log, ops.Delete("t", b"never put")) == (True, None)
    do(log, ops.PutMany("t", [b"many"], [b"6"]))
    for _ in range(2):
        assert log.table_get("t", b"k") == b"newer"
        assert log.table_get("t", b"many") == b"6"
        assert log.table_get("t", b"before") is log.table_get("t", b"never put") is None
        with pytest.raises(Damaged):
            log.table_get("t", b"another")
        log = again(log)


def test_a_transaction_that_is_taken_back_leaves_the_doubt(log: Log) -> None:
    refused = log.submit([ops.Put("t", b"k", b"x"), ops.Put("t", b"later", b"y", b"wrong")])
    many = log.submit([ops.PutMany("t", [b"k"], [b"x"]), ops.Put("t", b"later", b"y", b"wrong")])
    behind = log.submit([ops.Put("t", b"k", b"x", b"old")])
    log.commit_once()
    assert isinstance(refused.error, ConditionFailed)
    assert isinstance(many.error, ConditionFailed)
    assert isinstance(behind.error, Damaged)
    inside = do(log, ops.Put("t", b"k", b"x"), ops.Put("t", b"k", b"y", b"x"))
    assert inside == [(True, None), (True, b"x")]


def test_a_damaged_table_is_not_compacted() -> None:
    """The trim would take the damage away, and the values that it has made doubtful would be served again."""
    disk, clock = MemoryDisk(), FakeClock()
    log = open_log(disk, clock)
    do(log, ops.CreateStream("t", kind="table"))
    do(log, ops.PutMany("t", [b"k", b"l"], [b"old", b"old"]))
    do(log, ops.Put("t", b"k", b"the newest value"))
    for _ in range(100):
        do(log, ops.Put("t", b"l", b"x" * 50))
    log.close()
    flip(disk, b"the newest value")
    log = open_log(disk, clock)
    for _ in range(50):
        maintain(log)
        log.commit_once()
        clock.advance(10)
    assert log.bounds("t").first == 0
    with pytest.raises(Damaged):
        again(log).table_get("t", b"k")
