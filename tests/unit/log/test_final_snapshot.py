"""What a clean stop leaves, and an idle hub: a proof of how far the journal went."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google_crc32c import value as crc32c
from support.until import wait_until
from unit.log.helpers import Outcomes, again, do, fill, maintain, open_log, payloads

from headrace.errors import Damaged
from headrace.log import journal, ops, snapshot
from headrace.log.batch import Batch
from headrace.log.clock import SystemClock
from headrace.log.doctor import examine_disk
from headrace.log.journal_port import Unrecoverable
from headrace.log.log import Log
from headrace.log.proof import PROOF, proof_of
from headrace.testing import FakeClock, FaultyDisk, MemoryDisk

BLOCK = 4096
RECORDS = 200


def stopped() -> tuple[MemoryDisk, int]:
    """The disk of a log that has stopped cleanly, and where the last block of its journal begins."""
    disk = MemoryDisk()
    log = open_log(disk, journal_file_bytes=1_000_000, segment_bytes=1_000_000)
    do(log, ops.CreateStream("s"))
    do(log, ops.CreateStream("quiet"))
    do(log, ops.CreateStream("t", kind="table"))
    do(log, ops.Append("quiet", Batch.one(b"x")))
    do(log, ops.Put("t", b"k", b"old"))
    fill(log, "s", RECORDS)
    do(log, ops.Put("t", b"k", b"new"))
    do(log, ops.SaveCursor("c", "s", 150))
    log.close()
    return disk, log.journal.position.size - BLOCK


def zeroed(data: bytes, at: int) -> bytes:
    return data[:at] + bytes(len(data) - at)


def garbled(data: bytes, at: int) -> bytes:
    return data[:at] + bytes(byte ^ 0x55 for byte in data[at:])


def cut(data: bytes, at: int) -> bytes:
    return data[:at]


@pytest.mark.parametrize("harm", [zeroed, garbled, cut])
def test_an_end_that_is_lost_after_a_clean_stop_is_named_and_no_index_is_used_again(
    harm: Callable[[bytes, int], bytes],
) -> None:
    disk, at = stopped()
    [path] = journal.journal_files(disk)
    disk.put(path, harm(disk.read(path), at))
    assert not examine_disk(disk).healthy
    expected = RECORDS
    for _ in range(3):
        log = open_log(disk)
        kinds = {found.kind for found in log.recovered.damage}
        assert kinds == {"lost-frames", "damaged-records"}
        lost = next(found for found in log.recovered.damage if found.stream == "s")
        assert 0 < lost.first < lost.last == RECORDS - 1
        assert log.cursor("c", "s") == 150
        assert payloads(log, "quiet") == [b"x"]
        assert log.bounds("quiet").next == 1
        with pytest.raises(Damaged):
            log.read("s", lost.first)
        with pytest.raises(Damaged):
            log.table_get("t", b"k")
        assert do(log, ops.Append("s", Batch.one(b"y"))).first == expected
        expected += 1
        log.close()


def test_a_start_that_stores_nothing_finds_the_same_again() -> None:
    disk, at = stopped()
    [path] = journal.journal_files(disk)
    disk.put(path, cut(disk.read(path), at))
    found = []
    for _ in range(3):
        log = open_log(disk)
        found.append([(one.kind, one.first, one.last) for one in log.recovered.damage if one.stream])
        log.close()
    assert found[0] == found[1] == found[2] != []


def test_a_journal_that_is_gone_is_missed() -> None:
    disk, _ = stopped()
    for path in journal.journal_files(disk):
        disk.unlink(path)
    with pytest.raises(Unrecoverable):
        open_log(disk)


def test_a_whole_journal_is_whole_and_a_stop_without_changes_leaves_nothing_new() -> None:
    disk, _ = stopped()
    log = open_log(disk)
    for _ in range(3):
        log = again(log)
        assert log.recovered.findings == []
    names = snapshot.names(log.store)
    assert snapshot.names(again(log).store) == names
    assert len(payloads(open_log(disk), "s")) == RECORDS


def test_an_empty_log_leaves_nothing() -> None:
    disk = MemoryDisk()
    open_log(disk).close()
    assert disk.paths() == []


def test_a_proof_that_cannot_be_left_is_said(caplog: pytest.LogCaptureFixture) -> None:
    memory = MemoryDisk()
    log: Log = open_log(FaultyDisk(memory))
    do(log, ops.CreateStream("s"))
    assert isinstance(log.store.disk, FaultyDisk)  # type: ignore[attr-defined]
    log.store.disk.fail_all("create", 28)  # type: ignore[attr-defined]
    log.close()
    assert "cannot detect a lost end" in caplog.text
    assert open_log(memory).recovered.findings == []


# -- without a clean stop ---------------------------------------------------------------------------------------------


def killed_idle() -> tuple[MemoryDisk, int]:
    """The disk of a log that was killed after a second without work, and where the last block of its journal begins."""
    disk = MemoryDisk()
    log = open_log(disk, journal_file_bytes=1_000_000, segment_bytes=1_000_000)
    do(log, ops.CreateStream("s"))
    do(log, ops.CreateStream("quiet"))
    fill(log, "s", RECORDS)
    log.mark()
    return disk.after_kill(), log.journal.position.size - BLOCK


@pytest.mark.parametrize("harm", [zeroed, garbled, cut])
def test_an_end_that_is_lost_under_a_killed_hub_is_missed(harm: Callable[[bytes, int], bytes]) -> None:
    disk, at = killed_idle()
    [path] = journal.journal_files(disk)
    disk.put(path, harm(disk.read(path), at))
    assert not examine_disk(disk).healthy
    expected = RECORDS
    for _ in range(3):
        log = open_log(disk)
        assert "lost-frames" in {found.kind for found in log.recovered.damage}
        assert log.bounds("s").next >= expected
        expected = do(log, ops.Append("s", Batch.one(b"y"))).first + 1
        with pytest.raises(Damaged):
            log.read("s", RECORDS - 1)
        log.close()


def test_a_journal_of_a_killed_hub_that_is_gone_is_missed() -> None:
    disk, _ = killed_idle()
    for path in journal.journal_files(disk):
        disk.unlink(path)
    with pytest.raises(Unrecoverable):
        open_log(disk)


@pytest.mark.parametrize("proof", [b"", b"short", b"X" * 40, None])
def test_without_a_proof_there_is_only_less_to_go_by(proof: bytes | None) -> None:
    disk, _ = killed_idle()
    if proof is None:  # another program's, with a checksum that is right
        data = b"OTHER..." + disk.read(PROOF)[8:32]
        proof = data + crc32c(data).to_bytes(4, "little")
    disk.put(PROOF, proof)
    log = open_log(disk)
    assert log.recovered.findings == []
    assert len(payloads(log, "s")) == RECORDS


def test_a_stop_that_was_not_clean_is_said() -> None:
    disk, _ = killed_idle()
    log = open_log(disk)
    assert "not clean" in log.recovered.unproven
    log = again(log)
    assert log.recovered.unproven == ""
    do(log, ops.Append("s", Batch.one(b"x")))
    assert "not clean" in open_log(disk.after_kill()).recovered.unproven


def test_a_log_at_work_proves_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.log.threads.PROOF_US", 0)
    disk = MemoryDisk()
    log = open_log(disk, SystemClock())
    outcomes = Outcomes()
    log.start(outcomes)
    outcomes.wait_for(log.submit([ops.CreateStream("s")]))
    for _ in range(3):
        outcomes.wait_for(log.submit([ops.Append("s", Batch.one(b"x"))]))
    wait_until(lambda: proof_of(disk).next_sequence >= 3)
    log.close()


def test_a_proof_that_cannot_be_written_for_lack_of_room_is_left_out() -> None:
    memory = MemoryDisk()
    disk = FaultyDisk(memory)
    log = open_log(disk)
    log.prove()  # nothing to prove yet
    do(log, ops.CreateStream("s"))
    disk.fail_all("write", 28)
    log.prove()
    assert log.failed is None
    disk.fail_all("write", 5)
    log.prove()
    assert log.failed is not None


# -- a state that rests -----------------------------------------------------------------------------------------------


def resting(**settings: int) -> tuple[MemoryDisk, Log, FakeClock]:
    disk, clock = MemoryDisk(), FakeClock()
    log = open_log(disk, clock, **{"journal_file_bytes": 1_000_000, "segment_bytes": 1_000_000, **settings})
    do(log, ops.CreateStream("s"))
    for number in range(RECORDS):
        do(log, ops.Append("s", Batch.one(b"%d" % number), 0, "p", number), ops.SaveCursor("c", "s", number))
    return disk, log, clock


def test_damage_takes_no_cursor_and_no_producer_back_under_a_hub_that_was_idle() -> None:
    disk, log, _ = resting()
    log.mark()
    maintain(log)
    [path] = journal.journal_files(disk)
    for at in range(journal.FILE_HEADER.size, log.journal.position.size, 500):
        left = disk.after_kill()
        left.put(path, zeroed(left.read(path), at))
        again = open_log(left)
        assert again.recovered.damage
        assert (again.cursor("c", "s"), again.producer("s", "p")) == (RECORDS - 1, RECORDS - 1)
        assert again.bounds("s").next >= RECORDS


def test_a_snapshot_of_a_state_that_rests_is_taken_once_and_not_too_often() -> None:
    _, log, clock = resting()
    maintain(log)
    assert snapshot.names(log.store) == [], "it does not rest"
    log.mark()
    maintain(log)
    [first] = snapshot.names(log.store)
    assert snapshot.sequence_of(first) == log.state.sequence
    log.mark()
    maintain(log)
    do(log, ops.SaveCursor("c", "s", 0, rewind=True))
    log.mark()
    maintain(log)
    assert snapshot.names(log.store) == [first], "another one follows ten seconds later"
    clock.advance(11)
    maintain(log)
    assert len(snapshot.names(log.store)) == 2
    log.close()


def test_a_large_state_that_rests_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.log.maintenance.REST_ENTRIES_MAX", 2)
    _, log, _ = resting()  # a stream, a cursor, a producer
    log.mark()
    maintain(log)
    assert snapshot.names(log.store) == []
    monkeypatch.setattr("headrace.log.maintenance.REST_ENTRIES_MAX", 0)
    maintain(log)
    assert snapshot.names(log.store) == []
    monkeypatch.setattr("headrace.log.maintenance.REST_ENTRIES_MAX", 3)
    maintain(log)
    assert len(snapshot.names(log.store)) == 1
