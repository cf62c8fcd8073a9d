"""Recovery: from any disk that a crash or rot can leave, either the truth or a named hole."""

from __future__ import annotations

import contextlib
import random

import pytest
from unit.log.helpers import do, fill, maintain, open_log, payloads

from headrace.config import Log as LogSettings
from headrace.errors import Damaged, HeadraceError
from headrace.log import journal, ops, snapshot
from headrace.log.batch import Batch
from headrace.log.checkpoint import CheckpointDamaged
from headrace.log.directory import open_directory
from headrace.log.doctor import examine_disk
from headrace.log.frame import StreamDeleted, encode_event, encode_frame
from headrace.log.journal_port import GoodFrame, Unrecoverable
from headrace.log.log import Log
from headrace.log.proof import PROOF
from headrace.log.store import DirectoryStore
from headrace.testing import FakeClock, FaultyDisk, MemoryDisk
from headrace.testing.disk import DiskKilled


def scripted(log: Log) -> None:
    """A little of everything, with every transaction acknowledged."""
    do(log, ops.CreateStream("s", 2))
    do(log, ops.CreateStream("t", kind="table"))
    for number in range(12):
        do(log, ops.Append("s", Batch.one(b"%d" % number * 9, id=number, type="T"), 0, "p", number))
        do(log, ops.Put("t", bytes([number % 3]), b"v%d" % number), ops.Append("s", Batch.of([b"a", b"b"]), 1))
        do(log, ops.SaveCursor("c", "s", number))
        maintain(log)
    do(log, ops.CreateStream("gone"))
    fill(log, "gone", 3)
    do(log, ops.DeleteStream("gone"))
    do(log, ops.Trim("s", 2))
    blob = log.begin_checkpoint("s")
    blob.write(b"checkpoint")
    blob.finish()
    do(log, ops.RegisterCheckpoint(blob.id, "s", 5, blob.size, {}))
    maintain(log)


def image(log: Log) -> dict[str, object]:
    """Everything that a user can see."""
    seen: dict[str, object] = {}
    for stream in log.state.streams.values():
        name = stream.info.name
        for partition in stream.partitions:
            seen[f"{name}/{partition.number}"] = (
                log.bounds(name, partition.number),
                payloads(log, name, partition.number),
            )
            seen[f"{name}/{partition.number}/producers"] = dict(partition.producers)
        if stream.table is not None:
            seen[f"{name}/table"] = dict(stream.table.items())
        seen[f"{name}/cursors"] = dict(log.state.cursors.get(stream.info.id, {}))
        seen[f"{name}/info"] = stream.info
    seen["checkpoints"] = dict(log.state.checkpoints)
    seen["retired_indexes"] = dict(log.state.retired_indexes)
    return seen


def idle() -> tuple[Log, MemoryDisk, dict[str, object]]:
    """A log with a little of everything that has nothing to do and is not closed; its disk, and what it holds."""
    disk = MemoryDisk()
    log = open_log(disk, segment_bytes=400, journal_file_bytes=1_200, tail_bytes_max=2_000)
    scripted(log)
    log.mark()
    return log, disk, image(log)


@pytest.fixture(scope="module")
def finished() -> tuple[MemoryDisk, dict[str, object]]:
    log, disk, truth = idle()
    log.close()
    return disk, truth


@pytest.fixture(scope="module")
def killed() -> tuple[MemoryDisk, dict[str, object]]:
    _, disk, truth = idle()
    return disk.after_kill(), truth


def test_a_clean_restart_finds_everything(finished: tuple[MemoryDisk, dict[str, object]]) -> None:
    disk, truth = finished
    log = open_log(disk.after_kill())
    assert image(log) == truth
    assert log.recovered.findings == []
    assert examine_disk(disk.after_kill()).healthy


def test_recovering_twice_changes_nothing(finished: tuple[MemoryDisk, dict[str, object]]) -> None:
    disk = finished[0].after_kill()
    for _ in range(3):
        log = open_log(disk)
        assert image(log) == finished[1]
        log.close()


def run_to(disk: FaultyDisk) -> None:
    try:
        log = open_log(disk, segment_bytes=400, journal_file_bytes=1_200, tail_bytes_max=2_000)
        scripted(log)
    except DiskKilled:
        pass


def count_calls() -> int:
    disk = FaultyDisk(MemoryDisk())
    run_to(disk)
    return len(disk.calls)


def acknowledged_of(log: Log) -> dict[str, list[bytes]]:
    return {
        f"{stream.info.name}/{partition.number}": payloads(log, stream.info.name, partition.number)
        for stream in log.state.streams.values()
        for partition in stream.partitions
    }


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("power", [True, False])
def test_killed_before_and_after_every_call_to_the_disk(before: bool, power: bool) -> None:
    """At every write, sync, rename, create and unlink of the script: what was acknowledged until then is there."""
    for number in range(1, count_calls() + 1):
        memory = MemoryDisk()
        disk = FaultyDisk(memory)
        disk.kill(number, before)
        acknowledged: list[tuple[str, int, bytes]] = []

        def remember(
            pendings: list[object], touched: object, kept: list[tuple[str, int, bytes]] = acknowledged
        ) -> None:
            for pending in pendings:
                for operation, result in zip(pending.operations, pending.result, strict=True):  # type: ignore[attr-defined]
                    if isinstance(operation, ops.Append) and pending.error is None:  # type: ignore[attr-defined]
                        kept.append((f"{operation.stream}/{operation.partition}", result.first, operation.batch.body))

        try:
            log = open_log(disk, segment_bytes=400, journal_file_bytes=1_200, tail_bytes_max=2_000)
            log.on_commit = remember  # type: ignore[assignment]
            scripted(log)
        except DiskKilled:
            pass
        left = memory.after_power_cut(random.Random(number)) if power else memory.after_kill()
        again = open_log(left, segment_bytes=400, journal_file_bytes=1_200, tail_bytes_max=2_000)
        assert not again.recovered.damage
        for place, first, body in acknowledged:
            name, _, partition = place.rpartition("/")
            if name not in again.state.streams:
                assert name == "gone"
                continue
            if first < again.bounds(name, int(partition)).first:
                continue
            records = again.read(name, first, int(partition), limit=1)
            assert records.column("payload")[0].as_py() in body
        # and it goes on: nothing that recovery left makes the next start fail
        do(again, ops.CreateStream("after"))
        fill(again, "after", 2)
        again.close()
        assert payloads(open_log(left), "after") == payloads(again, "after")


def served(log: Log, truth: dict[str, object]) -> None:
    """Whatever is served is true, and whatever is not served is named."""
    for stream in list(log.state.streams.values()):
        name = stream.info.name
        if name.startswith("recovered/"):
            continue
        for partition in stream.partitions:
            expected_bounds, expected = truth[f"{name}/{partition.number}"]  # type: ignore[misc]
            bounds = log.bounds(name, partition.number)
            assert bounds.next >= expected_bounds.next, "an index could be used again"
            at = bounds.first
            while at < bounds.next:
                try:
                    records = log.read(name, at, partition.number)
                except Damaged as damage:
                    assert damage.first <= damage.last < bounds.next
                    at = damage.last + 1
                    continue
                for row in records.select(["index", "payload"]).to_pylist():
                    offset = row["index"] - expected_bounds.first
                    if offset >= 0:  # below: a lost trim; the record itself is not wrong
                        assert row["payload"] == expected[offset]
                at = records.column("index")[-1].as_py() + 1
        if stream.table is not None:
            for key, value in truth[f"{name}/table"].items():  # type: ignore[attr-defined]
                with contextlib.suppress(Damaged):
                    assert log.table_get(name, key) == value


@pytest.mark.slow
def test_every_bit_of_a_small_log_flipped() -> None:
    disk = MemoryDisk()
    log = open_log(disk, segment_bytes=30, journal_file_bytes=300, tail_bytes_max=1_000)
    do(log, ops.CreateStream("s"))
    do(log, ops.CreateStream("t", kind="table"))
    for number in range(2):
        do(log, ops.Append("s", Batch.of([b"%d" % number, b"x"]), 0, "p", number), ops.Put("t", b"k", b"%d" % number))
    maintain(log)
    truth = image(log)
    log.close()
    assert {path.partition("/")[0] for path in disk.paths()} == {"journal", "segments", "snapshots"}
    generator = random.Random(7)
    for path in disk.paths():
        data = disk.read(path)
        # Of the segments every third byte, one bit of it: they have a test of their own for every bit.
        thinned = (8 * byte + generator.randrange(8) for byte in range(0, len(data), 3))
        for bit in thinned if path.startswith("segments/") else range(len(data) * 8):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            left = disk.after_kill()
            left.put(path, bytes(changed))
            try:
                log = open_log(left)
            except HeadraceError as error:
                assert isinstance(error, Unrecoverable | journal.NotOurs)
                continue
            served(log, truth)


def test_every_truncation_of_the_last_journal_file(killed: tuple[MemoryDisk, dict[str, object]]) -> None:
    """A file cut short was never synced that far: the records before the cut are there, none is wrong. Only where the
    snapshot, or the proof, knows of frames behind the cut they were synced, and are lost."""
    disk, truth = killed[0].after_kill(), killed[1]
    whole = disk.after_kill()
    last = journal.journal_files(whole)[-1]
    whole.put(last, whole.read(last)[:-20])
    assert "lost-frames" in [found.kind for found in open_log(whole).recovered.damage]
    disk.unlink(PROOF)
    path = journal.journal_files(disk)[-1]
    data = disk.read(path)
    known = snapshot.sequence_of(snapshot.names(DirectoryStore(disk))[-1])
    [vouched] = [
        found.offset for found in journal.scan(disk) if isinstance(found, GoodFrame) and found.sequence == known
    ]
    for size in range(len(data)):
        left = disk.after_kill()
        left.put(path, data[:size])
        log = open_log(left)
        assert ("lost-frames" in [found.kind for found in log.recovered.damage]) == (size < vouched)
        if log.recovered.damage:
            continue
        for name, partition in (("s", 0), ("s", 1)):
            expected_bounds, expected = truth[f"{name}/{partition}"]  # type: ignore[misc]
            bounds = log.bounds(name, partition)
            got = payloads(log, name, partition)
            offset = max(0, bounds.first - expected_bounds.first)
            assert (
                got[max(0, expected_bounds.first - bounds.first) :]
                == expected[offset : bounds.next - expected_bounds.first]
            )


def small() -> tuple[MemoryDisk, Log]:
    disk = MemoryDisk()
    log = open_log(disk)
    do(log, ops.CreateStream("a"))
    do(log, ops.CreateStream("b"))
    return disk, log


def flip_at(disk: MemoryDisk, path: str, needle: bytes) -> None:
    data = bytearray(disk.read(path))
    data[data.index(needle)] ^= 1
    disk.put(path, bytes(data))


@pytest.mark.parametrize("cut", [8, 400])
def test_a_torn_payload_that_looks_like_a_frame_says_nothing(cut: int) -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    do(log, ops.CreateStream("victim"))
    do(log, ops.CreateStream("mine"))
    forged = b"".join(encode_frame(1000, 1000, encode_event(StreamDeleted(1, [0])), b""))
    do(log, ops.Append("mine", Batch.one(forged + bytes(500))))
    [path] = journal.journal_files(disk)
    disk.put(path, disk.read(path)[: log.journal.position.size - cut])
    log = open_log(disk)
    assert [found.kind for found in log.recovered.findings] == ["torn-tail"]
    assert log.bounds("victim") == log.bounds("mine") == (0, 0)


def test_damaged_records_in_the_journal_are_named_by_stream_and_index() -> None:
    disk, log = small()
    for number in range(5):
        do(log, ops.Append("a", Batch.of([b"record %d" % number] * 2)))
    log.close()
    flip_at(disk, journal.journal_files(disk)[0], b"record 2")
    log = open_log(disk)
    [found] = log.recovered.damage
    assert (found.kind, found.stream, found.partition, found.first, found.last) == ("damaged-records", "a", 0, 4, 5)
    with pytest.raises(Damaged) as caught:
        log.read("a", 4)
    assert (caught.value.first, caught.value.last) == (4, 5)
    assert log.read("a", 0).num_rows == 4
    assert log.read("a", 6).num_rows == 4
    assert do(log, ops.Append("a", Batch.one(b"new"))).first == 10
    log.close()
    assert not examine_disk(disk).healthy


def test_damage_stays_named_after_sealing() -> None:
    disk, log = small()
    for number in range(40):
        do(log, ops.Append("a", Batch.one(b"record %02d" % number * 5)))
    log.close()
    flip_at(disk, journal.journal_files(disk)[0], b"record 05" * 5)
    log = open_log(disk)
    maintain(log)
    assert log.partition("a").segments[0].next == 5
    log.close()
    log = open_log(disk)
    with pytest.raises(Damaged) as caught:
        log.read("a", 5)
    assert (caught.value.first, caught.value.last) == (5, 5)
    assert log.read("a", 6, limit=1).column("payload")[0].as_py() == b"record 06" * 5


def test_when_nobody_knows_what_was_lost_no_index_is_used_again() -> None:
    disk, log = small()
    do(log, ops.Append("a", Batch.one(b"one")))
    do(log, ops.Append("b", Batch.one(b"lost, and nothing of b follows")))
    do(log, ops.Append("a", Batch.one(b"two")))
    log.mark()
    path = journal.journal_files(disk)[0]
    data = bytearray(disk.read(path))
    at = data.index(b"lost, and") - 60  # in the directory of that frame
    data[at] ^= 1
    disk.put(path, bytes(data))
    log = open_log(disk)
    assert log.recovered.damage[0].kind == "lost-frames"
    assert payloads(log, "a") == [b"one", b"two"]
    assert do(log, ops.Append("a", Batch.one(b"x"))).first == 2
    assert do(log, ops.Append("b", Batch.one(b"x"))).first > 0


def test_a_missing_journal_file_moves_quiet_streams_far_on() -> None:
    disk = MemoryDisk()
    log = open_log(disk, journal_file_bytes=300)
    do(log, ops.CreateStream("a"))
    do(log, ops.CreateStream("b"))
    fill(log, "a", 20)
    log.mark()
    disk.unlink(journal.journal_files(disk)[2])
    log = open_log(disk)
    assert [found for found in log.recovered.damage if found.kind == "lost-frames"]
    assert do(log, ops.Append("a", Batch.one(b"x"))).first == 20
    assert do(log, ops.Append("b", Batch.one(b"x"))).first >= 2**32


def test_a_missing_last_journal_file_is_noticed_by_the_snapshot() -> None:
    disk = MemoryDisk()
    log = open_log(disk, journal_file_bytes=1_000, segment_bytes=100)
    do(log, ops.CreateStream("a"))
    do(log, ops.CreateStream("b"))
    fill(log, "a", 20)
    while log.journal.position.size > 300:
        fill(log, "a", 1)
    maintain(log)
    assert snapshot.sequence_of(snapshot.names(DirectoryStore(disk))[-1]) > log.journal.position.first_sequence
    lost = do(log, ops.Append("a", Batch.one(b"acknowledged, and behind the snapshot")))
    log.mark()
    disk.unlink(journal.journal_files(disk)[-1])
    for _ in range(2):
        log = open_log(disk)
        assert "lost-frames" in [found.kind for found in log.recovered.damage]
        assert log.bounds("a").next > lost.first
        do(log, ops.Append("b", Batch.one(b"x")))
        log.close()


def test_without_its_journal_the_log_refuses_to_guess() -> None:
    disk, log = small()
    for _ in range(10):
        fill(log, "a", 40)
        maintain(log)
    log.close()
    for path in journal.journal_files(disk):
        disk.unlink(path)
    with pytest.raises(Unrecoverable, match="backup"):
        open_log(disk)


def test_a_stream_whose_creation_was_lost_keeps_its_records() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    do(log, ops.CreateStream("lost"))
    do(log, ops.CreateStream("kept"))
    do(log, ops.Append("lost", Batch.one(b"still here")))
    do(log, ops.GrowStream("kept", 2))
    do(log, ops.Append("kept", Batch.one(b"x"), 1))
    log.mark()
    flip_at(disk, journal.journal_files(disk)[0], b"lost")
    log = open_log(disk)
    assert payloads(log, "recovered/1") == [b"still here"]
    assert [found for found in log.recovered.damage if found.kind == "possible-loss"]
    assert payloads(log, "kept", 1) == [b"x"]


@pytest.mark.parametrize(
    "spoken_of",
    [
        ops.Append("s", Batch.one(b"x"), 2),
        ops.SaveCursor("c", "s", 7, 2),
        ops.SetProducer("s", "p", 7, 2),
    ],
)
def test_a_stream_whose_growth_was_lost_grows_again(spoken_of: ops.Op) -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    do(log, ops.CreateStream("s"))
    do(log, ops.GrowStream("s", 3))
    do(log, spoken_of)
    log.mark()
    path = journal.journal_files(disk)[0]
    data = bytearray(disk.read(path))
    second_frame = data.index(data[32:36], 40)
    data[second_frame + 45] ^= 1
    disk.put(path, bytes(data))
    again = open_directory(disk, FakeClock(), LogSettings(disk_reserve_bytes=0))
    assert again.stream("s").partitions == 3
    if isinstance(spoken_of, ops.Append):
        assert payloads(again, "s", 2) == [b"x"]
    assert [(one.partition, one.index) for one in again.cursors()] == (
        [(2, 7)] if isinstance(spoken_of, ops.SaveCursor) else []
    )
    assert again.producer("s", "p", 2) == (7 if isinstance(spoken_of, ops.SetProducer) else None)


def test_a_damaged_snapshot_costs_nothing(finished: tuple[MemoryDisk, dict[str, object]]) -> None:
    disk, truth = finished
    left = disk.after_kill()
    newest = snapshot.names(DirectoryStore(left))[-1]
    flip_at(left, newest, b"c")
    assert [finding.kind for finding in examine_disk(left).findings] == ["damaged-snapshot"]
    assert newest in snapshot.names(DirectoryStore(left)), "the doctor changes nothing"
    log = open_log(left)
    assert [found.kind for found in log.recovered.damage] == ["damaged-snapshot"]
    assert image(log) == truth
    assert newest not in snapshot.names(DirectoryStore(left))
    assert "quarantine" in " ".join(left.paths())
    left = disk.after_kill()
    left.put(newest, b"short")
    assert image(open_log(left)) == truth


def test_without_any_snapshot_the_log_refuses_to_guess() -> None:
    left, log = small()
    for _ in range(10):
        fill(log, "a", 40)
        maintain(log)
    log.close()
    for path in snapshot.names(DirectoryStore(left)):
        left.put(path, b"rotten")
    with pytest.raises(Unrecoverable, match="backup"):
        open_log(left)
    report = examine_disk(left)
    assert not report.healthy
    assert report.findings[0].kind == "unrecoverable"


def test_a_damaged_checkpoint_is_named() -> None:
    for rot in (b"rotten", b"\xff" * 100, b""):
        disk, log = small()
        blob = log.begin_checkpoint("a")
        blob.write(b"the checkpoint")
        blob.finish()
        do(log, ops.RegisterCheckpoint(blob.id, "a", 0, blob.size, {}))
        path = f"checkpoints/{blob.id}.blob"
        good = disk.read(path)
        disk.put(path, rot)
        with pytest.raises(CheckpointDamaged):
            list(log.read_checkpoint(blob.id))
        disk.put(path, good[:-1] + b"?")
        with pytest.raises(CheckpointDamaged):
            list(log.read_checkpoint(blob.id))
        disk.unlink(path)
        with pytest.raises(CheckpointDamaged):
            list(log.read_checkpoint(blob.id))
        log.close()
        report = examine_disk(disk)
        assert [found.kind for found in report.findings] == ["damaged-checkpoint"]


def test_a_table_with_a_damaged_record_says_so_and_serves_the_rest() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    do(log, ops.CreateStream("t", kind="table"))
    for number in range(4):
        do(log, ops.Put("t", b"key %d" % number, b"value"))
    log.close()
    flip_at(disk, journal.journal_files(disk)[0], b"key 2")
    log = open_log(disk)
    assert log.table_get("t", b"key 3") == b"value"
    for key in (b"key 0", b"key 2"):
        with pytest.raises(Damaged):
            log.table_get("t", key)
    assert log.recovered.damage


def test_the_doctor_changes_nothing_and_names_strangers(killed: tuple[MemoryDisk, dict[str, object]]) -> None:
    left = killed[0].after_kill()
    left.put("segments/99/0/x.arrow", b"?")
    path = journal.journal_files(left)[-1]
    left.put(path, left.read(path)[:-10])
    left.unlink(PROOF)
    before = {name: left.read(name) for name in left.paths()}
    steps: list[tuple[int, int]] = []
    report = examine_disk(left, lambda done, total: steps.append((done, total)))
    assert {name: left.read(name) for name in left.paths()} == before
    assert report.strangers == ["segments/99"]
    assert report.healthy
    assert [found.kind for found in report.findings] == ["torn-tail"]
    assert steps[-1] == (report.segments, report.segments)
    assert {(one.stream, one.partition) for one in report.streams} == {("s", 0), ("s", 1), ("t", 0)}


def test_the_doctor_finds_rot_in_segments(finished: tuple[MemoryDisk, dict[str, object]]) -> None:
    left = finished[0].after_kill()
    victims = [path for path in left.paths() if path.endswith(".arrow")][:2]
    data = bytearray(left.read(victims[0]))
    data[data.index(b"0" * 9)] ^= 1
    left.put(victims[0], bytes(data))
    left.put(victims[1], b"gone")
    report = examine_disk(left)
    assert not report.healthy
    assert {found.path for found in report.findings} == set(victims)


def test_time_goes_on_after_a_restart_with_a_clock_set_back() -> None:
    disk, log = small()
    fill(log, "a", 1)
    log.close()
    log = open_log(disk, FakeClock(5))
    fill(log, "a", 1)
    times = log.read("a", 0).column("time").to_pylist()
    assert times[0] <= times[1]


STRANGE = [
    "journal/abc.journal",
    "journal/٠٠١.journal",
    "journal/00000000000000000099-xyz.journal",
    "journal/Copy of 00000000000000000000.journal",
    "segments/1/0/²-³.arrow",
    "segments/1/0/00000000000000000009-00000000000000000003.arrow",
    "segments/1/0/00000000000000000000-99999999999999999999.arrow",
]


@pytest.mark.parametrize("path", STRANGE)
def test_a_file_of_a_strange_name_changes_nothing(path: str) -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    do(log, ops.CreateStream("s"))
    for number in range(30):
        do(log, ops.Append("s", Batch.one(b"%d" % number * 100)))
    log.close()
    disk.put(path, b"x" * 100)
    log = open_log(disk)
    assert not log.recovered.findings
    assert len(payloads(log, "s")) == 30
    assert do(log, ops.Append("s", Batch.one(b"x"))).first == 30
