"""What every journal keeps to."""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from headrace.log.disk import OsDisk
from headrace.log.journal import FileJournal
from headrace.log.journal_port import GoodFrame, JournalPort, LostFrames, Position, TornTail, Unrecoverable
from headrace.log.kafka.journal import KafkaJournal
from headrace.log.kafka.messages import Claim
from headrace.testing import FakeKafka, FaultyDisk, MemoryDisk, MemoryJournal

BODY = b"12345678"
PIECE_BYTES = 200

Open = Callable[[], JournalPort]
"""The same journal, as the next process finds it."""


@pytest.fixture(params=["files", "files in memory", "memory", "kafka in memory"])
def again(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if request.param == "memory":
        journal = MemoryJournal(PIECE_BYTES)
        return lambda: journal
    if request.param == "kafka in memory":
        kafka = FakeKafka()
        kafka.create_topic("journal", 1, 3, {})
        names = map(str, count())
        return lambda: KafkaJournal(kafka, "journal", 0, Claim(next(names)), piece_bytes_max=PIECE_BYTES)
    disk = OsDisk(tmp_path / "data") if request.param == "files" else MemoryDisk()
    disk.make_dirs("journal")
    return lambda: FileJournal(disk, PIECE_BYTES, spares_max=1)


def begin(again: Open, sequence: int = 0) -> JournalPort:
    journal = again()
    list(journal.read(sequence))
    journal.open()
    return journal


def commit(journal: JournalPort, *bodies: bytes) -> None:
    journal.write([journal.frame(number, b"\2" + bytes(7), body) for number, body in enumerate(bodies)])


def frames(journal: JournalPort, sequence: int = 0, bookmark: bytes = b"") -> list[tuple[int, bytes | None]]:
    found = list(journal.read(sequence, bookmark=bookmark))
    assert all(isinstance(stored, GoodFrame) for stored in found)
    return [(frame.sequence, frame.data) for frame in found if isinstance(frame, GoodFrame)]


def test_a_new_journal_holds_nothing(again: Open) -> None:
    journal = begin(again)
    assert (journal.first, journal.next_sequence, journal.position) == (0, 0, Position(0, 0))
    assert journal.free_bytes() > 0
    journal.mark()
    journal.close()
    assert frames(again()) == []


def test_what_is_written_is_read_again_in_order(again: Open) -> None:
    journal = begin(again)
    commit(journal, b"a" * 8, b"b" * 16)
    commit(journal, b"")
    assert (journal.first, journal.next_sequence) == (0, 3)
    journal.close()
    journal = again()
    assert frames(journal) == [(0, b"a" * 8), (1, b"b" * 16), (2, b"")]
    assert journal.next_sequence == 3
    assert [stored.directory for stored in journal.read(0)] == [b"\2" + bytes(7)] * 3  # type: ignore[union-attr]


def test_sequences_go_on_after_a_restart(again: Open) -> None:
    for number in range(3):
        journal = begin(again)
        assert journal.next_sequence == number
        assert journal.position == Position(number, 0)
        commit(journal, BODY)
        assert journal.position.first_sequence == number
        journal.close()
    assert [sequence for sequence, _ in frames(again())] == [0, 1, 2]


def test_a_mark_is_a_frame_without_anything(again: Open) -> None:
    journal = begin(again)
    commit(journal, BODY)
    journal.mark()
    assert journal.next_sequence == 2
    journal.close()
    assert frames(again())[-1] == (1, b"")


def test_pieces_are_begun_and_cut(again: Open) -> None:
    journal = begin(again)
    assert not journal.cut_behind(0)
    begun = {journal.position.first_sequence}
    for _ in range(20):
        commit(journal, BODY)
        begun.add(journal.position.first_sequence)
    assert len(begun) > 3
    second = sorted(begun)[1]
    assert journal.sealed_to(10_000) == 0
    assert journal.sealed_to(300) == second
    assert not journal.cut_behind(second - 1)
    assert journal.first == 0
    assert journal.cut_behind(second, reuse=False)
    assert journal.first == second
    assert journal.cut_behind(10**6)
    assert not journal.cut_behind(10**6)
    assert journal.first == journal.position.first_sequence, "the piece being written stays"
    assert journal.sealed_to(0) == 0
    commit(journal, BODY, BODY, BODY)
    commit(journal, BODY)
    journal.close()
    left = frames(again(), 20, journal.bookmark(20))
    assert [sequence for sequence, _ in left] == list(range(left[0][0], 24))


def test_a_journal_that_begins_behind_the_snapshot_is_no_journal(again: Open) -> None:
    journal = begin(again)
    for _ in range(20):
        commit(journal, BODY)
    journal.cut_behind(20)
    first, bookmark = journal.first, journal.bookmark(20)
    journal.close()
    assert frames(again(), first, bookmark)
    with pytest.raises(Unrecoverable, match=f"begins at (frame {first}|offset)"):
        list(again().read(first - 1, bookmark=bookmark))


def test_a_journal_that_is_missing_is_not_taken_for_a_new_one(again: Open) -> None:
    with pytest.raises(Unrecoverable):
        list(again().read(1))


def test_what_the_snapshot_has_seen_and_is_not_there_is_lost(again: Open) -> None:
    journal = begin(again)
    commit(journal, BODY)
    journal.close()
    journal = again()
    if isinstance(journal, KafkaJournal):  # acknowledged by several brokers: whatever that is, it is no torn tail
        with pytest.raises(Unrecoverable, match="a snapshot has seen all before 5"):
            list(journal.read(5))
        return
    *_, lost = journal.read(5)
    assert isinstance(lost, LostFrames)
    assert (lost.first_sequence, lost.next_sequence, lost.size) == (1, 6, 0)
    assert journal.next_sequence == 6
    journal.open()
    commit(journal, BODY)
    assert journal.position.first_sequence == 6


def failing(kind: str) -> tuple[JournalPort, Callable[[int | None], None]]:
    """A journal, and what makes its writes fail."""
    if kind == "memory":
        memory = MemoryJournal()

        def refuse(number: int | None) -> None:
            memory.error = None if number is None else OSError(number, "injected")

        return memory, refuse
    disk = FaultyDisk(MemoryDisk())
    return FileJournal(
        disk, 10_000, 0
    ), lambda number: disk.heal() if number is None else disk.fail_all("write", number)


@pytest.mark.parametrize("kind", ["files", "memory"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_commit_that_fails_did_not_happen(kind: str, number: int) -> None:
    journal, refuse = failing(kind)
    journal.open()
    commit(journal, BODY)
    before = journal.position
    refuse(number)
    with pytest.raises(OSError, match="injected") as raised:
        commit(journal, b"x" * 8, b"y" * 8)
    assert raised.value.errno == number
    assert (journal.position, journal.next_sequence) == (before, 1)
    refuse(None)
    if number == errno.ENOSPC:
        commit(journal, b"z" * 8)
        assert frames(journal) == [(0, BODY), (1, b"z" * 8)]


def test_a_torn_tail_is_set_aside() -> None:
    disk = MemoryDisk()
    journal = FileJournal(disk, 10_000, 0)
    journal.open()
    commit(journal, BODY)
    size = journal.position.size
    commit(journal, b"torn" * 2)
    [path] = disk.paths()
    disk.put(path, disk.read(path)[: size + 20])
    *_, torn = journal.read(0)
    assert torn == TornTail(path, size, 20)
    journal.set_aside(torn)
    assert frames(journal) == [(0, BODY)]
    assert len(disk.read(f"quarantine/{path.rpartition('/')[2]}.{size}")) == 20
    MemoryJournal().set_aside(torn)  # has none, and does nothing
