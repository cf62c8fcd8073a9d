"""Many keys of a table in one operation: putting, removing, clearing them; and what followers, readers of older
versions, damage and maintenance make of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.log.helpers import again, do, maintain, open_log
from unit.log.test_table_damage import flip

from headrace.errors import BadRequest, ConditionFailed, Damaged, DiskFull, LimitExceeded
from headrace.log import ops
from headrace.log.batch import Batch
from headrace.log.log import Log
from headrace.log.maintenance import FREED_AT_ONCE
from headrace.log.table import Table
from headrace.testing import FakeClock, MemoryDisk


def table_of(log: Log, name: str = "state") -> Table:
    table = log.state.stream(name).table
    assert table is not None
    return table


def contents(log: Log, name: str = "state") -> dict[bytes, bytes]:
    return dict(table_of(log, name).items())


def changes(log: Log, start: int = 0) -> list[tuple[str, bytes | None]]:
    rows = log.read("state", start).select(["type", "key"]).to_pylist()
    return [(row["type"], row["key"]) for row in rows]


def fill(log: Log, count: int) -> None:
    do(log, ops.PutMany("state", [str(n).encode() for n in range(count)], [b"value"] * count))


# -- writing again what is old -------------------------------------------------------------------------------------


def test_what_is_written_again_is_one_batch_of_what_nobody_has_changed(log: Log) -> None:
    fill(log, 5)
    do(log, ops.Put("state", b"1", b"newer"))
    do(log, ops.Delete("state", b"2"))
    entries = len(log.partition("state").tail.entries)
    assert do(log, ops.Rewrite("state", [b"0", b"1", b"2", b"3", b"absent"], 5, 20)) == 2
    assert len(log.partition("state").tail.entries) == entries + 1
    assert changes(log, 7) == [("put", b"0"), ("put", b"3")]
    expected = {b"0": b"value", b"1": b"newer", b"3": b"value", b"4": b"value"}
    assert contents(log) == expected
    assert table_of(log).written_before(5) == [(b"4", b"value")]
    assert do(log, ops.Rewrite("state", [b"0", b"3"], 5, 20)) == 0
    assert log.bounds("state").next == 9
    size = table_of(log).bytes
    log = again(log)
    assert (contents(log), table_of(log).bytes) == (expected, size)


@pytest.mark.parametrize(
    "change", [ops.Put("state", b"0", b"newer"), ops.Delete("state", b"0"), ops.ClearTable("state")]
)
def test_what_changes_in_the_same_commit_is_not_written_again(log: Log, change: ops.Op) -> None:
    fill(log, 1)
    log.submit([change])
    pending = log.submit([ops.Rewrite("state", [b"0"], 1, 6)])
    log.commit_once()
    assert pending.result == [0]
    expected = {b"0": b"newer"} if isinstance(change, ops.Put) else {}
    assert contents(log) == expected
    assert contents(again(log)) == expected


# -- removing many -------------------------------------------------------------------------------------------------


def test_many_removals_are_one_batch_of_records_of_those_that_are_there(log: Log) -> None:
    fill(log, 5)
    entries = len(log.partition("state").tail.entries)
    assert do(log, ops.DeleteMany("state", [b"1", b"3", b"3", b"absent"])) == 2
    assert len(log.partition("state").tail.entries) == entries + 1
    assert changes(log, 5) == [("delete", b"1"), ("delete", b"3")]
    assert do(log, ops.DeleteMany("state", [b"1", b"absent"])) == 0
    assert do(log, ops.DeleteMany("state", [])) == 0
    assert log.bounds("state").next == 7
    expected = {b"0": b"value", b"2": b"value", b"4": b"value"}
    assert contents(log) == expected
    assert table_of(log).bytes == 3 * 6
    log = again(log)
    assert contents(log) == expected
    assert table_of(log).bytes == 3 * 6


def test_many_removals_and_puts_must_name_a_table_and_stay_within_the_limits() -> None:
    log = open_log(record_bytes_max=20, batch_bytes_max=50)
    do(log, ops.CreateStream("state", kind="table"))
    do(log, ops.CreateStream("orders"))
    for change in (ops.DeleteMany("orders", [b"k"]), ops.ClearTable("orders"), ops.AcceptDamage("orders")):
        with pytest.raises(BadRequest, match="is a stream"):
            do(log, change)
    with pytest.raises(BadRequest, match="2 keys and 1 values"):
        do(log, ops.PutMany("state", [b"a", b"b"], [b"c"]))
    with pytest.raises(LimitExceeded, match=r"log\.record_bytes_max"):
        do(log, ops.DeleteMany("state", [b"x" * 21]))
    with pytest.raises(LimitExceeded, match=r"log\.batch_bytes_max"):
        do(log, ops.DeleteMany("state", [b"x" * 17] * 3))
    assert do(log, ops.DeleteMany("state", [b"x" * 20, b"y" * 20, b"z" * 10])) == 0
    for too_large in (ops.Measured(51, 20), ops.Measured(50, 21)):  # found out elsewhere, and not again
        for many in (ops.PutMany("state", [b"k"], [b"v"], too_large), ops.DeleteMany("state", [b"k"], too_large)):
            with pytest.raises(LimitExceeded):
                do(log, many)


# -- clearing ------------------------------------------------------------------------------------------------------


def test_clearing_is_one_record_however_much_there_is(log: Log) -> None:
    fill(log, 1000)
    before = log.bounds("state").next
    commits = log.commits
    assert do(log, ops.ClearTable("state")) == 1000
    assert (log.commits, log.bounds("state")) == (commits + 1, (before, before + 1))
    assert changes(log) == [("clear", None)]
    assert contents(log) == {}
    assert (len(table_of(log)), table_of(log).bytes) == (0, 0)
    assert do(log, ops.ClearTable("state")) == 0
    assert log.bounds("state").next == before + 1
    do(log, ops.Put("state", b"k", b"v"))
    for _ in range(2):
        assert contents(log) == {b"k": b"v"}
        log = again(log)


def test_changes_of_one_commit_see_the_clear_between_them(log: Log) -> None:
    fill(log, 3)
    pendings = [
        log.submit([operation])
        for operation in (
            ops.Put("state", b"0", b"new"),
            ops.Put("state", b"n", b"new"),
            ops.ClearTable("state"),
            ops.ClearTable("state"),
            ops.Put("state", b"0", b"x", b"new"),
            ops.Put("state", b"1", b"y", ops.ABSENT),
            ops.DeleteMany("state", [b"0", b"2"]),
            ops.Delete("state", b"2"),
        )
    ]
    log.commit_once()
    results = [pending.result[0] for pending in pendings]
    assert results == [(True, b"value"), (True, None), 4, 0, (False, None), (True, None), 0, (True, None)]
    assert contents(log) == {b"1": b"y"}
    assert table_of(log).bytes == table_of(log).pending_bytes == 2
    assert contents(again(log)) == {b"1": b"y"}


def test_a_clear_in_a_transaction_that_is_refused_did_not_happen(log: Log) -> None:
    fill(log, 3)
    refused = log.submit([ops.Put("state", b"0", b"a"), ops.ClearTable("state"), ops.Put("state", b"0", b"b", b"a")])
    wrong = log.submit(
        [
            ops.ClearTable("state"),
            ops.DeleteMany("state", [b"1"]),
            ops.PutMany("state", [b"n"], [b"v"]),
            ops.Append("orders", Batch.one(b"r"), 0, "p", 0),
            ops.Put("state", b"n", b"w", b"x"),
        ]
    )
    behind = log.submit([ops.Put("state", b"0", b"c", b"value"), ops.DeleteMany("state", [b"1", b"2"])])
    log.commit_once()
    assert isinstance(refused.error, ConditionFailed)
    assert isinstance(wrong.error, ConditionFailed)
    assert behind.result == [(True, b"value"), 2]
    for _ in range(2):
        assert contents(log) == {b"0": b"c"}
        assert table_of(log).bytes == table_of(log).pending_bytes == 2
        assert log.bounds("state") == (0, 6)
        log = again(log)


def test_clear_and_put_in_one_transaction_replace_a_table(log: Log) -> None:
    fill(log, 10)
    assert do(log, ops.ClearTable("state"), ops.PutMany("state", [b"a", b"b"], [b"1", b"2"])) == [10, 2]
    for _ in range(2):
        assert contents(log) == {b"a": b"1", b"b": b"2"}
        log = again(log)


def test_there_is_room_in_a_table_again_after_a_clear() -> None:
    log = open_log(table_bytes_max=100)
    do(log, ops.CreateStream("state", kind="table"))
    do(log, ops.Put("state", b"k", b"x" * 90))
    with pytest.raises(LimitExceeded):
        do(log, ops.Put("state", b"l", b"x" * 90))
    assert do(log, ops.ClearTable("state"), ops.Put("state", b"l", b"x" * 90))[0] == 1
    do(log, ops.DeleteMany("state", [b"l"]))
    do(log, ops.PutMany("state", [b"m"], [b"x" * 99]))


def test_a_table_can_be_cleared_on_a_full_disk() -> None:
    log = open_log(MemoryDisk(free_bytes=20_000), disk_reserve_bytes=15_000)
    do(log, ops.CreateStream("state", kind="table"))
    fill(log, 20)
    log.settings = msgspec.structs.replace(log.settings, disk_reserve_bytes=20_000)
    with pytest.raises(DiskFull):
        do(log, ops.PutMany("state", [b"1"], [b""]))
    assert do(log, ops.ClearTable("state")) == 20


def test_a_follower_that_folds_the_records_sees_the_same(log: Log) -> None:
    """One that was in time, and one that is late and finds the records before the clear gone."""
    followed: dict[bytes, bytes] = {}
    at = 0
    for change in (
        ops.PutMany("state", [b"a", b"b"], [b"1", b"2"]),
        ops.Delete("state", b"a"),
        ops.ClearTable("state"),
        ops.PutMany("state", [b"c", b"a"], [b"3", b"4"]),
        ops.DeleteMany("state", [b"c"]),
    ):
        do(log, change)
        at = _fold(log, followed, at)
        assert followed == contents(log)
    late: dict[bytes, bytes] = {b"stale": b"x"}
    _fold(log, late, 1)
    assert late == contents(log) == {b"a": b"4"}


def _fold(log: Log, into: dict[bytes, bytes], start: int) -> int:
    records = log.read("state", start)
    for row in records.to_pylist():
        if row["type"] == "clear":
            into.clear()
        elif row["type"] == "delete":
            into.pop(row["key"], None)
        else:
            into[row["key"]] = row["payload"]
    return int(records.column("index")[-1].as_py()) + 1


def test_a_version_that_does_not_know_of_clear_comes_to_the_same(log: Log) -> None:
    """It folds what is left behind the trim, and passes over records without a key."""
    fill(log, 50)
    do(log, ops.ClearTable("state"))
    do(log, ops.PutMany("state", [b"a", b"b"], [b"1", b"2"]))
    do(log, ops.DeleteMany("state", [b"b"]))
    for _ in range(2):
        older: dict[bytes, bytes] = {}
        for row in log.read("state", 0).to_pylist():
            if row["key"] is not None:
                older.pop(row["key"], None)
                if row["type"] != "delete":
                    older[row["key"]] = row["payload"]
        assert older == {b"a": b"1"}
        log = again(log)


def test_a_clear_whose_frame_is_lost_is_damage_and_no_return_of_the_dead() -> None:
    disk = MemoryDisk()
    log = open_log(disk, journal_file_bytes=100_000)
    do(log, ops.CreateStream("state", kind="table"))
    fill(log, 10)
    start = log.journal.position.size
    do(log, ops.ClearTable("state"))
    end = log.journal.position.size
    do(log, ops.Put("state", b"later", b"v"))
    log.close()
    for name in disk.list("snapshots"):
        disk.unlink(f"snapshots/{name}")
    [path] = [path for path in disk.paths() if path.endswith(".journal")]
    data = bytearray(disk.read(path))
    data[start:end] = bytes(end - start)
    disk.put(path, bytes(data))
    log = open_log(disk)
    assert log.recovered.damage
    assert log.table_get("state", b"later") == b"v"
    for key in (b"0", b"never"):
        with pytest.raises(Damaged):
            log.table_get("state", key)


def test_a_clear_ends_the_damage_of_a_table() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    do(log, ops.CreateStream("state", kind="table"))
    fill(log, 3)
    do(log, ops.Put("state", b"k", b"the newest value"))
    log.close()
    flip(disk, b"the newest value")
    log = open_log(disk)
    assert "damage" in log.trouble()
    assert do(log, ops.ClearTable("state"), ops.Put("state", b"k", b"v", ops.ABSENT))[1] == (True, None)
    for _ in range(2):
        assert contents(log) == {b"k": b"v"}
        assert not log.trouble()
        log = again(log)
    assert not log.recovered.damage


def test_a_removal_of_many_keys_that_may_be_damaged_ends_the_doubt() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    do(log, ops.CreateStream("state", kind="table"))
    fill(log, 3)
    do(log, ops.Put("state", b"k", b"the newest value"))
    log.close()
    flip(disk, b"the newest value")
    log = open_log(disk)
    assert do(log, ops.DeleteMany("state", [b"k", b"1", b"1"])) == 1
    for _ in range(2):
        assert log.table_get("state", b"k") is log.table_get("state", b"1") is None
        with pytest.raises(Damaged):
            log.table_get("state", b"2")
        log = again(log)


def test_what_a_cleared_or_deleted_table_held_is_freed_by_maintenance(log: Log) -> None:
    fill(log, 2 * FREED_AT_ONCE + 1)
    held = table_of(log)._values
    do(log, ops.ClearTable("state"))
    assert log.state.discarded == [held]
    assert len(held) == 2 * FREED_AT_ONCE + 1  # not while others wait for the writer
    maintain(log)
    assert (log.state.discarded, held) == ([], {})
    fill(log, 3)
    held = table_of(log)._values
    do(log, ops.DeleteStream("state"))
    maintain(log)
    assert (log.state.discarded, held) == ([], {})


def test_the_tail_of_a_cleared_table_is_freed_before_it_is_sealed() -> None:
    log = open_log(segment_bytes=1_000_000, journal_file_bytes=1_000_000, journal_bytes_max=10_000_000)
    do(log, ops.CreateStream("state", kind="table"))
    for number in range(20):
        do(log, ops.Put("state", str(number).encode(), b"v"))
    do(log, ops.ClearTable("state"))
    maintain(log)
    assert [entry.base for entry in log.partition("state").tail.entries] == [20]
    assert log.state.tail_bytes == log.partition("state").tail.bytes
    assert not log.partition("state").segments
    do(log, ops.CreateStream("s"))
    do(log, ops.Append("s", Batch.of([b"a", b"b"])))
    do(log, ops.Trim("s", 1))
    maintain(log)
    assert len(log.partition("s").tail.entries) == 1  # holds what is kept, too
    do(log, ops.Trim("s", 2))
    maintain(log)
    assert not log.partition("s").tail.entries
    assert contents(again(log)) == {}


def test_commits_that_begin_before_one_with_a_clear_is_durable_see_it() -> None:
    table = Table()
    table.apply_many([b"a", b"b"], [b"1", b"2"], 0)
    table.settle_pending()
    table.set_pending([(b"c", b"3")], 2)
    table.set_off()
    assert table.pending_count == 3
    table.set_cleared()
    table.set_pending([(b"d", b"4")], 2)
    table.set_off()
    assert [table.peek(key) for key in (b"a", b"c", b"d")] == [None, None, b"4"]
    assert (table.pending_count, table.pending_bytes, table.is_blank) == (1, 2, False)
    assert table.to_delete([b"a", b"b", b"c", b"d"]) == ([b"d"], 1, -2)
    table.set_pending([(b"a", b"5")], table.growth(b"a", b"5"))
    undo = table.set_cleared()
    assert (table.peek(b"a"), table.is_blank) == (None, True)
    undo()
    assert (table.peek(b"a"), table.pending_count) == (b"5", 2)
    table.set_off()
    table.apply(b"c", b"3", 2)
    table.land()
    assert [table.peek(key) for key in (b"a", b"b", b"c", b"d")] == [b"5", None, None, b"4"]
    table.clear()
    table.apply(b"d", b"4", 4)
    table.land()
    assert [table.peek(key) for key in (b"a", b"b", b"d")] == [b"5", None, b"4"]
    table.apply(b"a", b"5", 5)
    table.land()
    assert dict(table.items()) == {b"d": b"4", b"a": b"5"}
    assert table.peek(b"d") == b"4"
    assert table.bytes == table.pending_bytes == 4


# -- accepting damage ------------------------------------------------------------------------------------------------


@pytest.fixture
def damaged() -> Log:
    disk = MemoryDisk()
    log = open_log(disk, FakeClock())
    do(log, ops.CreateStream("state", kind="table"))
    fill(log, 3)
    do(log, ops.Put("state", b"k", b"the first that is lost"))
    do(log, ops.Put("state", b"k", b"old"))
    do(log, ops.Put("state", b"k", b"the newest value"))
    do(log, ops.Put("state", b"later", b"v"))
    log.close()
    flip(disk, b"the first that is lost")
    flip(disk, b"the newest value")
    return open_log(disk, FakeClock())


def test_damage_that_is_accepted_is_served_as_what_is_left(damaged: Log) -> None:
    log = damaged
    assert len(log.damage()) == 2
    lost = do(log, ops.AcceptDamage("state"))
    assert lost == ops.LostChanges(first=3, last=5, keys=4)
    expected = {b"0": b"value", b"1": b"value", b"2": b"value", b"k": b"old", b"later": b"v"}
    assert do(log, ops.AcceptDamage("state")) is None
    for _ in range(3):
        assert contents(log) == expected
        assert log.table_get("state", b"never put") is None
        assert log.damage() == []
        assert "damage" not in log.trouble()
        log = again(log)
        assert {finding.kind for finding in log.recovered.findings} <= {"accepted-damage"}
    assert do(log, ops.Put("state", b"k", b"new", b"old")) == (True, b"old")


def test_the_records_of_accepted_damage_go_by_compaction(damaged: Log) -> None:
    log = damaged
    do(log, ops.AcceptDamage("state"))
    expected = contents(log)
    assert isinstance(log.clock, FakeClock)
    for _ in range(30):
        log.clock.advance(10)
        maintain(log)
        while log.commit_once():
            pass
    assert log.bounds("state").first > 5
    assert contents(log) == expected
    log = again(log)
    assert contents(log) == expected
    assert not log.recovered.findings


def test_damage_behind_what_was_accepted_is_damage(damaged: Log) -> None:
    log = damaged
    do(log, ops.AcceptDamage("state"))
    do(log, ops.Put("state", b"k", b"lost once more"))
    log.close()
    assert isinstance(log.store.disk, MemoryDisk)
    flip(log.store.disk, b"lost once more")
    log = open_log(log.store.disk)
    with pytest.raises(Damaged, match=r"table\.accept-damage"):
        log.table_get("state", b"k")
    assert [finding.kind for finding in log.recovered.findings].count("damaged-records") == 1
    assert do(log, ops.AcceptDamage("state")) == ops.LostChanges(8, 8, 5)
    assert contents(again(log))[b"k"] == b"old"


def test_an_expectation_in_the_commit_that_accepts_still_waits_for_it(damaged: Log) -> None:
    accepted = damaged.submit([ops.AcceptDamage("state")])
    early = damaged.submit([ops.Put("state", b"k", b"x", b"old")])
    damaged.commit_once()
    assert accepted.result[0] is not None
    assert isinstance(early.error, Damaged)


# -- looking ---------------------------------------------------------------------------------------------------------


def test_pages_and_keys_are_in_the_order_of_items(log: Log) -> None:
    fill(log, 10)
    do(log, ops.DeleteMany("state", [b"3", b"4"]))
    do(log, ops.Put("state", b"3", b"again"))
    items = list(log.table_items("state"))
    assert log.table_keys("state") == [key for key, _ in items]
    assert [item for start in range(0, 12, 4) for item in log.table_page("state", start, 4)] == items


def test_a_damaged_table_has_no_pages_and_no_keys(damaged: Log) -> None:
    with pytest.raises(Damaged):
        damaged.table_keys("state")
    with pytest.raises(Damaged):
        damaged.table_page("state", 0, 1)


def test_a_page_is_taken_again_when_the_table_changed_meanwhile(log: Log) -> None:
    fill(log, 3)

    class Changing(dict[bytes, Any]):
        turns = 0

        def items(self) -> Any:
            self.turns += 1
            if self.turns == 1:
                raise RuntimeError("dictionary changed size during iteration")
            return super().items()

    table_of(log)._values = Changing(table_of(log)._values)
    assert len(log.table_page("state", 1, 5)) == 2


# -- against a model -------------------------------------------------------------------------------------------------

keys = st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), max_size=4)
single = st.one_of(
    st.builds(lambda key, value: ops.Put("state", key, value), st.sampled_from([b"a", b"b"]), st.binary(max_size=3)),
    st.builds(lambda key: ops.Delete("state", key), st.sampled_from([b"a", b"b", b"c"])),
    st.builds(lambda found: ops.DeleteMany("state", found), keys),
    st.builds(
        lambda pairs: ops.PutMany("state", [key for key, _ in pairs], [value for _, value in pairs]),
        st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.binary(max_size=3)), min_size=1, max_size=4),
    ),
    st.just(ops.ClearTable("state")),
)
FALSE = ops.Put("state", b"a", b"", b"never there")
transactions = st.lists(st.tuples(st.lists(single, min_size=1, max_size=4), st.booleans()), max_size=4)


@settings(max_examples=200, deadline=None)
@given(commits=st.lists(transactions, max_size=6), restarts=st.booleans())
def test_any_changes_in_any_commits_and_transactions_are_those_of_a_dict(
    commits: list[list[tuple[list[ops.Op], bool]]], restarts: bool
) -> None:
    log = open_log()
    do(log, ops.CreateStream("state", kind="table"))
    model: dict[bytes, bytes] = {}
    for commit in commits:
        expected = []
        pendings = []
        for operations, is_refused in commit:
            pendings.append(log.submit([*operations, FALSE] if is_refused else operations))
            expected.append(None if is_refused and len(operations) else [_apply(model, op) for op in operations])
        log.commit_once()
        for pending, results in zip(pendings, expected, strict=True):
            if results is None:
                assert isinstance(pending.error, ConditionFailed)
            else:
                found = [one.previous if isinstance(one, ops.PutResult) else one for one in pending.result]
                assert found == results
        assert contents(log) == model
        assert table_of(log).bytes == sum(len(key) + len(value) for key, value in model.items())
        maintain(log)
        if restarts:
            log = again(log)
            assert contents(log) == model


def _apply(model: dict[bytes, bytes], op: ops.Op) -> object:
    match op:
        case ops.Put():
            previous = model.get(op.key)
            model[op.key] = op.value
            return previous
        case ops.Delete():
            return model.pop(op.key, None)
        case ops.PutMany():
            model.update(zip(op.keys, op.values, strict=True))
            return len(op.keys)
        case ops.DeleteMany():
            return sum(model.pop(key, None) is not None for key in set(op.keys))
        case _:
            count = len(model)
            model.clear()
            return count
