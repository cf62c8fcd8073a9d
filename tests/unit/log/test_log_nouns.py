"""The log's verbs, step by step, without threads: tables, cursors, streams, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from unit.log.helpers import again, do, fill, maintain, open_log, payloads

from headrace.errors import BadRequest, DiskFull, StreamExists, Trimmed, UnknownCheckpoint, UnknownStream
from headrace.log import ops
from headrace.log.batch import Batch
from headrace.log.disk import OsDisk
from headrace.log.log import Log
from headrace.log.partition import Partition
from headrace.testing import FaultyDisk, MemoryDisk

# -- tables --------------------------------------------------------------------------------------------------------


def test_puts_say_whether_they_applied_and_what_was_there(log: Log) -> None:
    assert do(log, ops.Put("state", b"k", b"1")) == (True, None)
    assert do(log, ops.Put("state", b"k", b"2", ops.ABSENT)) == (False, b"1")
    assert do(log, ops.Put("state", b"k", b"2", b"0")) == (False, b"1")
    assert do(log, ops.Put("state", b"k", b"2", b"1")) == (True, b"1")
    assert do(log, ops.Put("state", b"n", b"2", ops.PRESENT)) == (False, None)
    assert do(log, ops.Put("state", b"k", b"", ops.PRESENT)) == (True, b"2")
    assert do(log, ops.Delete("state", b"k", b"x")) == (False, b"")
    assert do(log, ops.Delete("state", b"k")) == (True, b"")
    assert do(log, ops.Delete("state", b"k")) == (True, None)
    assert log.state.stream("state").table.get(b"k") is None  # type: ignore[union-attr]


def test_a_put_sees_the_puts_before_it_in_the_same_commit(log: Log) -> None:
    pendings = [
        log.submit([operation])
        for operation in (
            ops.Put("state", b"k", b"1", ops.ABSENT),
            ops.Put("state", b"k", b"2", ops.ABSENT),
            ops.Put("state", b"k", b"3", b"1"),
            ops.Delete("state", b"k", b"3"),
            ops.Put("state", b"k", b"4", ops.ABSENT),
        )
    ]
    log.commit_once()
    assert [pending.result[0].applied for pending in pendings] == [True, False, True, True, True]
    assert dict(again(log).state.stream("state").table.items()) == {b"k": b"4"}  # type: ignore[union-attr]


def test_a_table_is_also_a_stream_of_its_changes(log: Log) -> None:
    do(log, ops.Put("state", b"k", b"v"))
    do(log, ops.Delete("state", b"k"))
    rows = log.read("state", 0).select(["type", "key", "payload"]).to_pylist()
    assert rows == [
        {"type": "put", "key": b"k", "payload": b"v"},
        {"type": "delete", "key": b"k", "payload": b""},
    ]


def test_many_puts_are_one_batch_of_records(log: Log) -> None:
    do(log, ops.Put("state", b"k", b"old"))
    many = log.submit([ops.PutMany("state", [b"k", b"n", b"k"], [b"1", b"2", b"3"])])
    after = log.submit([ops.Put("state", b"n", b"4", b"2")])
    entries = len(log.partition("state").tail.entries)
    log.commit_once()
    assert (many.result, after.result) == ([3], [(True, b"2")])
    assert len(log.partition("state").tail.entries) == entries + 2
    expected = {b"k": b"3", b"n": b"4"}
    rows = log.read("state", 1).select(["type", "key", "payload"]).to_pylist()
    assert [(row["type"], row["key"], row["payload"]) for row in rows] == [
        ("put", b"k", b"1"),
        ("put", b"n", b"2"),
        ("put", b"k", b"3"),
        ("put", b"n", b"4"),
    ]
    assert dict(log.state.stream("state").table.items()) == expected  # type: ignore[union-attr]
    assert log.state.stream("state").table.written_before(4) == [(b"k", b"3")]  # type: ignore[union-attr]
    with pytest.raises(BadRequest, match="at least one"):
        do(log, ops.PutMany("state", [], []))
    with pytest.raises(BadRequest, match="is a stream"):
        do(log, ops.PutMany("orders", [b""], [b""]))
    assert dict(again(log).state.stream("state").table.items()) == expected  # type: ignore[union-attr]


def test_tables_are_folded_again_from_segments_and_journal(log: Log) -> None:
    for number in range(100):
        do(log, ops.Put("state", bytes([number % 10]), str(number).encode() * 5))
    do(log, ops.Delete("state", bytes([3])))
    maintain(log)
    assert log.segments("state")
    expected = dict(log.state.stream("state").table.items())  # type: ignore[union-attr]
    size = log.state.stream("state").table.bytes  # type: ignore[union-attr]
    log = again(log)
    assert dict(log.state.stream("state").table.items()) == expected  # type: ignore[union-attr]
    assert log.state.stream("state").table.bytes == size  # type: ignore[union-attr]


# -- cursors -------------------------------------------------------------------------------------------------------


def test_nothing_but_compaction_takes_records_from_a_table(log: Log) -> None:
    do(log, ops.Put("state", b"k", b"v"))
    with pytest.raises(BadRequest, match="table"):
        do(log, ops.Trim("state", 1))
    for options in (ops.StreamOptions(retention_age_s=1.0), ops.StreamOptions(retention_cursors=True)):
        with pytest.raises(BadRequest, match="table"):
            do(log, ops.SetOptions("state", options))
        with pytest.raises(BadRequest, match="table"):
            do(log, ops.CreateStream("other", kind="table", options=options))
    assert dict(again(log).state.stream("state").table.items()) == {b"k": b"v"}  # type: ignore[union-attr]


def test_cursors_only_go_forward_unless_rewound(log: Log) -> None:
    assert do(log, ops.SaveCursor("c", "orders", 5)) == 5
    assert do(log, ops.SaveCursor("c", "orders", 3)) == 5
    assert do(log, ops.SaveCursor("c", "orders", 3, rewind=True)) == 3
    assert do(log, ops.SaveCursor("c", "orders", 4, 1)) == 4
    log = again(log)
    assert do(log, ops.SaveCursor("c", "orders", 1)) == 3
    assert do(log, ops.DeleteCursor("c", "orders")) is True
    assert do(log, ops.DeleteCursor("c", "orders")) is False
    assert do(log, ops.SaveCursor("c", "orders", 1)) == 1
    with pytest.raises(BadRequest):
        do(log, ops.SaveCursor("c", "orders", -1))
    with pytest.raises(BadRequest):
        do(log, ops.SaveCursor("", "orders", 1))


# -- streams -------------------------------------------------------------------------------------------------------


def test_creating_again_is_fine_or_refused_as_asked(log: Log) -> None:
    assert do(log, ops.CreateStream("orders", 9)) is False
    assert log.stream("orders").partitions == 2
    with pytest.raises(StreamExists):
        do(log, ops.CreateStream("orders", exist_ok=False))
    with pytest.raises(StreamExists):
        do(log, ops.CreateStream("orders", kind="table"))


@pytest.mark.parametrize("name", ["", "a\nb", "\ud800"])
def test_names_that_are_none(log: Log, name: str) -> None:
    with pytest.raises(BadRequest):
        do(log, ops.CreateStream(name))


def test_shapes_that_are_none(log: Log) -> None:
    for operation in (
        ops.CreateStream("x", 0),
        ops.CreateStream("x", kind="heap"),
        ops.CreateStream("x", 2, kind="table"),
        ops.GrowStream("orders", 1),
        ops.GrowStream("state", 2),
        ops.Trim("orders", 1),
        ops.Trim("orders", -1),
    ):
        with pytest.raises(BadRequest):
            do(log, operation)


def test_many_creates_share_a_commit_and_other_changes_do_not(log: Log) -> None:
    commits = log.commits
    pendings = [log.submit([ops.CreateStream(f"s{number}")]) for number in range(20)]
    again_same = log.submit([ops.CreateStream("s1")])
    append = log.submit([ops.Append("s19", Batch.one(b"x"))])
    delete = log.submit([ops.DeleteStream("s19")])
    while log.commit_once():
        pass
    assert [pending.result for pending in pendings] == [[True]] * 20
    assert again_same.result == [False]
    assert append.result == [ops.Appended(0, 1, False)]
    assert delete.error is None
    assert log.commits - commits == 3
    assert len({stream.info.id for stream in log.state.streams.values()}) == len(log.state.streams)


def test_growing_keeps_what_is_there(log: Log) -> None:
    fill(log, "orders", 2)
    do(log, ops.GrowStream("orders", 4))
    do(log, ops.GrowStream("orders", 4))
    do(log, ops.Append("orders", Batch.one(b"x"), 3))
    log = again(log)
    assert log.stream("orders").partitions == 4
    assert [log.bounds("orders", number).next for number in range(4)] == [2, 0, 0, 1]


def test_options_change_and_stay(log: Log) -> None:
    options = ops.StreamOptions(retention_age_s=5.0, ack="processed:x", labels={"a": "b"})
    do(log, ops.SetOptions("orders", options))
    assert again(log).stream("orders").options == options


@pytest.mark.parametrize(
    "options",
    [
        ops.StreamOptions(retention_age_s=1e308),
        ops.StreamOptions(retention_age_s=-1.0),
        ops.StreamOptions(max_hold_s=float("nan")),
        ops.StreamOptions(max_hold_s=float("inf")),
        ops.StreamOptions(retention_bytes=-1),
    ],
)
def test_options_that_maintenance_could_not_count_with_are_refused(log: Log, options: ops.StreamOptions) -> None:
    with pytest.raises(BadRequest, match=r"retention|max_hold"):
        do(log, ops.CreateStream("x", options=options))
    with pytest.raises(BadRequest, match=r"retention|max_hold"):
        do(log, ops.SetOptions("orders", options))
    maintain(log)
    assert log.maintenance.error is None


def test_indexes_are_never_used_again_after_delete_and_create(log: Log) -> None:
    fill(log, "orders", 5)
    do(log, ops.Append("orders", Batch.one(b"x"), 1))
    do(log, ops.SaveCursor("c", "orders", 2))
    do(log, ops.DeleteStream("orders"))
    with pytest.raises(UnknownStream):
        log.read("orders", 0)
    log = again(log)
    do(log, ops.CreateStream("orders", 1))
    assert log.bounds("orders") == (5, 5)
    assert log.state.cursors.get(log.stream("orders").id) is None
    do(log, ops.GrowStream("orders", 3))
    assert [log.bounds("orders", number).first for number in range(3)] == [5, 1, 0]
    do(log, ops.DeleteStream("orders"))
    do(log, ops.CreateStream("orders", 2))
    log = again(log)
    assert [log.bounds("orders", number).first for number in range(2)] == [5, 1]


def test_deleting_removes_the_files(log: Log) -> None:
    fill(log, "orders", 100)
    maintain(log)
    disk = log.store.disk
    assert isinstance(disk, MemoryDisk)
    assert [path for path in disk.paths() if path.startswith("segments/1/")]
    do(log, ops.DeleteStream("orders"))
    assert log.state.tail_bytes == 0
    maintain(log)
    assert not [path for path in disk.paths() if path.startswith("segments/1/")]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux tells which files are mapped")
def test_a_deleted_stream_gives_its_room_on_the_disk_back(tmp_path: Path) -> None:
    log = open_log(OsDisk(tmp_path))
    do(log, ops.CreateStream("s"))
    fill(log, "s", 100)
    maintain(log)
    reading = log.scan("s", 0, 100)
    next(reading)
    do(log, ops.DeleteStream("s"))
    maintain(log)
    with pytest.raises(Trimmed):
        next(reading)
    assert str(tmp_path / "segments") not in Path("/proc/self/maps").read_text()
    log.close()


def test_files_of_a_deleted_stream_go_at_the_next_start(log: Log) -> None:
    fill(log, "orders", 100)
    maintain(log)
    do(log, ops.DeleteStream("orders"))
    log = again(log)
    assert isinstance(log.store.disk, MemoryDisk)
    assert not [path for path in log.store.disk.paths() if path.startswith("segments/1/")]


def test_trimming_forgets_and_reading_goes_on_from_the_first_kept(log: Log) -> None:
    fill(log, "orders", 100)
    maintain(log)
    assert do(log, ops.Trim("orders", 40)) == 40
    assert do(log, ops.Trim("orders", 30)) == 40
    assert log.read("orders", 0).column("index").to_pylist()[0] == 40
    with pytest.raises(Trimmed) as caught:
        list(log.scan("orders", 0, 50))
    assert (caught.value.asked, caught.value.first) == (0, 40)
    maintain(log)
    assert isinstance(log.store.disk, MemoryDisk)
    assert all(ref.next > 40 for ref in log.partition("orders").segments)
    do(log, ops.Trim("orders", 100))
    log = again(log)
    assert log.bounds("orders") == (100, 100)
    assert do(log, ops.Append("orders", Batch.one(b"x"))).first == 100
    log = again(log)
    assert payloads(log, "orders") == [b"x"]


# -- checkpoints -----------------------------------------------------------------------------------------------------


def write_checkpoint(log: Log, data: bytes, position: int = 3) -> ops.CheckpointInfo:
    blob = log.begin_checkpoint("orders")
    for start in range(0, len(data), 700_000):
        blob.write(data[start : start + 700_000])
    blob.finish()
    info = do(log, ops.RegisterCheckpoint(blob.id, "orders", position, blob.size, {"kind": "test"}))
    assert isinstance(info, ops.CheckpointInfo)
    return info


def test_checkpoints_come_back_in_chunks(log: Log) -> None:
    data = bytes(range(256)) * 10_000
    info = write_checkpoint(log, data)
    log = again(log)
    assert log.checkpoint(info.id) == info
    chunks = list(log.read_checkpoint(info.id))
    assert b"".join(chunks) == data
    assert max(map(len, chunks)) <= 1024 * 1024
    assert list(log.read_checkpoint(write_checkpoint(log, b"").id)) == []


def test_a_checkpoint_that_was_not_registered_is_removed_at_the_next_start(log: Log) -> None:
    blob = log.begin_checkpoint("orders")
    blob.write(b"x")
    blob.finish()
    half = log.begin_checkpoint("orders")
    half.write(b"y" * 2_000_000)
    assert half.id != blob.id
    log = again(log)
    assert isinstance(log.store.disk, MemoryDisk)
    assert not [path for path in log.store.disk.paths() if path.startswith("checkpoints/")]


def test_checkpoints_can_be_aborted_and_dropped(log: Log) -> None:
    blob = log.begin_checkpoint("orders")
    blob.write(b"x")
    blob.abort()
    finished = log.begin_checkpoint("orders")
    finished.finish()
    finished.abort()
    info = write_checkpoint(log, b"z")
    do(log, ops.DropCheckpoint(info.id))
    with pytest.raises(UnknownCheckpoint):
        log.checkpoint(info.id)
    with pytest.raises(UnknownCheckpoint):
        do(log, ops.DropCheckpoint(info.id))
    maintain(log)
    assert isinstance(log.store.disk, MemoryDisk)
    assert not [path for path in log.store.disk.paths() if path.startswith("checkpoints/")]
    assert write_checkpoint(again(log), b"").id > info.id


@pytest.mark.parametrize("room", [0, 100, 2_000_000])
def test_a_checkpoint_on_a_full_disk_is_refused_and_leaves_nothing(room: int) -> None:
    disk = FaultyDisk(MemoryDisk())
    log = open_log(disk)
    do(log, ops.CreateStream("orders"))
    disk.room_bytes = room
    blob = log.begin_checkpoint("orders")
    with pytest.raises(DiskFull, match="the checkpoint is not stored; make room and try again"):
        blob.write(b"x" * 2_100_000)
    blob.abort()
    assert not disk.list("checkpoints")
    disk.room_bytes = None
    assert log.failed is None
    write_checkpoint(log, b"x")


def test_checkpoints_go_with_their_stream(log: Log) -> None:
    info = write_checkpoint(log, b"x")
    do(log, ops.DeleteStream("orders"))
    assert info.id not in log.state.checkpoints
    maintain(log)
    assert isinstance(log.store.disk, MemoryDisk)
    assert not [path for path in log.store.disk.paths() if path.startswith("checkpoints/")]


def test_a_number_that_the_journal_cannot_hold_is_refused_and_the_log_goes_on(log: Log) -> None:
    with pytest.raises(BadRequest, match="CheckpointAdded does not fit the journal"):
        do(log, ops.RegisterCheckpoint(1, "orders", 2**70, 0, {}))
    do(log, ops.SaveCursor("c", "orders", 1))


def test_a_scan_that_is_overtaken_by_a_trim_says_so(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(log, "orders", 4)
    read = Partition.read

    def trimmed_meanwhile(*arguments: Any) -> Any:
        do(log, ops.Trim("orders", 2))
        return read(*arguments)

    monkeypatch.setattr(Partition, "read", trimmed_meanwhile)
    with pytest.raises(Trimmed):
        list(log.scan("orders", 0, 4))
