"""The journal: what is written is found again; what is torn is told from what has rotted."""

from __future__ import annotations

import contextlib
import errno
import itertools
import random

import pytest

from headrace.log import journal
from headrace.log.frame import PLAIN, Salt
from headrace.log.journal import END, FileJournal, NotOurs, scan
from headrace.log.journal_port import GoodFrame, LostFrames, TornTail
from headrace.testing import FaultyDisk, MemoryDisk
from headrace.testing.disk import DiskKilled

BODY = b"12345678"


def opened(
    disk: MemoryDisk | FaultyDisk, first: int = 0, file_bytes_max: int = 10_000, spares_max: int = 1
) -> FileJournal:
    made = FileJournal(disk, file_bytes_max, spares_max)
    made.next_sequence = first
    made.open()
    return made


def write(
    disk: MemoryDisk, commits: list[int], first: int = 0, file_bytes_max: int = 10_000, spares_max: int = 1
) -> FileJournal:
    """Commits of so many frames each."""
    made = opened(disk, first, file_bytes_max, spares_max)
    for count in commits:
        made.write([made.frame(number, b"\2" + b"\0" * 7, BODY) for number in range(count)])
    return made


def sequences(disk: MemoryDisk) -> list[int]:
    return [found.sequence for found in scan(disk) if isinstance(found, GoodFrame)]


def flip(disk: MemoryDisk, path: str, offset: int) -> MemoryDisk:
    data = bytearray(disk.read(path))
    data[offset] ^= 1
    changed = disk.after_kill()
    changed.put(path, bytes(data))
    return changed


def test_frames_come_back_in_order_over_several_files() -> None:
    disk = MemoryDisk()
    made = write(disk, [1, 2, 3, 1], file_bytes_max=100)
    assert made.next_sequence == 7
    assert len(journal.journal_files(disk)) > 1
    assert sequences(disk) == list(range(7))


def test_an_empty_directory_has_nothing() -> None:
    assert list(scan(MemoryDisk())) == []


def test_a_file_header_is_as_documented() -> None:
    disk = MemoryDisk()
    write(disk, [1], first=9)
    [path] = journal.journal_files(disk)
    name, salt = path.removesuffix(".journal").split("-")
    assert name == "journal/00000000000000000009"
    magic, seed = (int(half, 16).to_bytes(4, "little") for half in (salt[:8], salt[8:]))
    data = disk.read(path)
    assert data[:24] == b"HEADRACE" + (3).to_bytes(4, "little") + magic + (9).to_bytes(8, "little")
    assert data[28:32] == seed
    assert data[32:36] == magic


@pytest.mark.parametrize("cut", range(1, 72))
def test_a_tail_cut_anywhere_is_torn_and_the_frames_before_it_stay(cut: int) -> None:
    disk = MemoryDisk()
    write(disk, [1, 1])
    path = journal.journal_files(disk)[0]
    disk.put(path, disk.read(path)[:-cut])
    *frames, last = scan(disk)
    assert isinstance(last, TornTail) == (cut > len(END) and cut != len(END) + 56)
    if isinstance(last, TornTail):
        kept = [frame.sequence for frame in frames if isinstance(frame, GoodFrame)]
        assert kept == ([0] if cut < len(END) + 56 else [])
        FileJournal(disk, 0, 0).set_aside(last)
        assert [found.sequence for found in scan(disk) if isinstance(found, GoodFrame)] == kept
        assert not [found for found in scan(disk) if isinstance(found, TornTail)]
        assert len(disk.read(f"quarantine/{path.rpartition('/')[2]}.{last.offset}")) == last.size


def test_a_torn_commit_of_several_frames_goes_as_a_whole_from_its_first_bad_frame() -> None:
    disk = MemoryDisk()
    made = write(disk, [1])
    made.write([made.frame(number, b"", BODY) for number in range(3)])
    path = journal.journal_files(disk)[0]
    torn = flip(disk, path, 32 + 56 + 48 + 4)  # in the second frame of the commit
    *frames, last = scan(torn)
    assert [frame.sequence for frame in frames if isinstance(frame, GoodFrame)] == [0, 1]
    assert isinstance(last, TornTail)


def test_damage_before_a_later_commit_is_damage_and_names_what_is_lost() -> None:
    disk = MemoryDisk()
    write(disk, [1, 1, 1])
    path = journal.journal_files(disk)[0]
    in_data = list(scan(flip(disk, path, 32 + 56 + 50)))
    assert [type(found) for found in in_data] == [GoodFrame, GoodFrame, GoodFrame]
    assert [found.data for found in in_data if isinstance(found, GoodFrame)] == [BODY, None, BODY]
    in_directory = list(scan(flip(disk, path, 32 + 56 + 41)))
    assert [type(found) for found in in_directory] == [GoodFrame, LostFrames, GoodFrame]
    in_header = list(scan(flip(disk, path, 32 + 56 + 5)))
    assert in_header[1] == LostFrames(1, 2, path, 32 + 56, 56)
    assert isinstance(in_header[2], GoodFrame)


def test_a_mark_protects_the_last_commit() -> None:
    disk = MemoryDisk()
    made = write(disk, [1, 1])
    path = journal.journal_files(disk)[0]
    assert isinstance(list(scan(flip(disk, path, 32 + 56 + 50)))[-1], TornTail)
    made.mark()
    assert not [found for found in scan(flip(disk, path, 32 + 56 + 50)) if isinstance(found, TornTail)]


def test_damage_at_the_end_of_a_file_that_is_not_the_last_is_damage() -> None:
    disk = MemoryDisk()
    write(disk, [1, 1, 1], file_bytes_max=90)
    first, second = journal.journal_files(disk)
    found = list(scan(flip(disk, first, 32 + 56 + 5)))
    assert [type(one) for one in found] == [GoodFrame, LostFrames, GoodFrame]
    disk.put(first, disk.read(first)[: -len(END) - 56])
    assert LostFrames(1, 2, second, 0, 0) in list(scan(disk))


def test_a_missing_file_is_named_by_its_frames() -> None:
    disk = MemoryDisk()
    write(disk, [1, 1, 1], file_bytes_max=50)
    _, second, third = journal.journal_files(disk)
    disk.unlink(second)
    assert [type(one) for one in scan(disk)] == [GoodFrame, LostFrames, GoodFrame]
    assert LostFrames(1, 2, third, 0, 0) in list(scan(disk))


def test_a_newer_format_is_refused() -> None:
    disk = MemoryDisk()
    write(disk, [1])
    path = journal.journal_files(disk)[0]
    data = disk.read(path)
    disk.put(path, with_version(data, 4))
    with pytest.raises(NotOurs, match="version 4"):
        list(scan(disk))
    disk.put(path, b"short")
    assert list(scan(disk)) == []


def with_version(data: bytes, version: int) -> bytes:
    head = data[:8] + version.to_bytes(4, "little") + data[12:24]
    return head + journal.crc32c(head).to_bytes(4, "little") + data[28:]


def plain(disk: MemoryDisk, version: int) -> tuple[str, bytes]:
    """A file as earlier versions made them: its name, and what is in it."""
    made = FileJournal(disk, 10_000, 1, lambda: PLAIN)
    made.open()
    for _ in range(2):
        made.write([made.frame(0, b"\2" + b"\0" * 7, BODY)])
    [path] = journal.journal_files(disk)
    data = disk.read(path)
    disk.unlink(path)
    return "journal/00000000000000000000.journal", with_version(data, version)


def test_files_of_earlier_versions_are_read() -> None:
    """One of version 1 is over where it ends; neither that one nor one of version 2 has a salt."""
    disk = MemoryDisk()
    for version, size in ((1, -len(END)), (2, None)):
        path, data = plain(disk, version)
        disk.put(path, data[:size])
        assert [type(found) for found in scan(disk)] == [GoodFrame, GoodFrame]
        disk.unlink(path)


def test_the_name_says_how_frames_begin_and_the_header_does_where_the_name_does_not() -> None:
    disk = MemoryDisk()
    write(disk, [1] * 20)
    [path] = journal.journal_files(disk)
    data = disk.read(path)
    disk.put(path, bytes(512) + data[512:])
    lost, *frames = scan(disk)
    assert isinstance(lost, LostFrames)
    assert (lost.first_sequence, lost.next_sequence) == (0, 9)
    assert [found.sequence for found in frames if isinstance(found, GoodFrame)] == list(range(9, 20))
    disk.unlink(path)
    disk.put("journal/00000000000000000000.journal", data)
    assert sequences(disk) == list(range(20))


def test_when_there_is_no_room_the_file_is_cut_back() -> None:
    memory = MemoryDisk()
    disk = FaultyDisk(memory, short_writes=10)
    made = opened(disk, 0, 10_000)
    made.write([made.frame(0, b"", BODY)])
    disk.room_bytes = 20
    with pytest.raises(OSError, match="injected"):
        made.write([made.frame(0, b"", BODY)])
    disk.heal()
    assert memory.size(journal.journal_files(memory)[0]) == made.position.size
    made.write([made.frame(0, b"", BODY)])
    assert sequences(memory) == [0, 1]


def test_a_new_file_that_cannot_be_made_is_left_out() -> None:
    memory = MemoryDisk()
    disk = FaultyDisk(memory)
    made = opened(disk, 0, 60)
    made.write([made.frame(0, b"", BODY)])
    disk.fail_all("write", errno.ENOSPC)
    made.position = made.position._replace(size=60)
    with pytest.raises(OSError, match="injected"):
        made.write([made.frame(0, b"", BODY)])
    assert len(journal.journal_files(memory)) == 1
    disk.heal()
    made.write([made.frame(0, b"", BODY)])
    made.close()
    made.close()
    assert len(journal.journal_files(memory)) == 2
    assert sequences(memory) == [0, 1]


def test_garbage_between_frames_costs_no_frame() -> None:
    """As a write that failed half way would leave: the frame behind it has the sequence that was expected."""
    disk = MemoryDisk()
    write(disk, [1, 1, 1])
    path = journal.journal_files(disk)[0]
    data = disk.read(path)
    disk.put(path, data[: 32 + 56] + b"HRF1 garbage....".ljust(24, b"?") + data[32 + 56 :])
    assert sequences(disk) == [0, 1, 2]


def test_large_data_is_written_as_it_is_and_in_its_place() -> None:
    disk = MemoryDisk()
    made = opened(disk, 0, 10**9)
    bodies = [b"a" * 8, b"b" * journal.DIRECT_BYTES, b"c" * 16, b"d" * (journal.DIRECT_BYTES + 8), b""]
    made.write([made.frame(number, b"", body) for number, body in enumerate(bodies)])
    assert [found.data for found in scan(disk) if isinstance(found, GoodFrame)] == bodies
    assert made.position.size + len(END) == disk.size(journal.journal_files(disk)[0])


# -- salt -------------------------------------------------------------------------------------------------------------


def test_every_file_has_a_salt_of_its_own() -> None:
    disk = MemoryDisk()
    write(disk, [1] * 40, file_bytes_max=60)
    salts = {path.removesuffix(".journal").split("-")[1] for path in journal.journal_files(disk)}
    assert len(salts) == 40
    assert sequences(disk) == list(range(40))


def test_a_file_that_was_begun_and_has_no_frames_becomes_the_next() -> None:
    """Under a new name: no two files begin with the same frame."""
    memory = MemoryDisk()
    made = write(memory, [1], file_bytes_max=60)
    disk = FaultyDisk(memory)
    made._disk = disk
    disk.room_bytes = 50  # for the header, and not for a frame
    with pytest.raises(OSError, match="injected"):
        made.write([made.frame(0, b"", BODY)])
    first, begun = journal.journal_files(memory)
    again = opened(memory, 1)
    again.write([again.frame(0, b"", BODY)])
    kept, renamed = journal.journal_files(memory)
    assert kept == first
    assert renamed != begun
    assert sequences(memory) == [0, 1]


@pytest.mark.parametrize("salt", [Salt(0, 0), Salt(2**32 - 1, 0)])
def test_of_two_files_that_begin_with_the_same_frame_the_one_that_has_it_counts(salt: Salt) -> None:
    """Earlier versions could leave that behind; the other may stand before it, or behind it."""
    disk = MemoryDisk()
    write(disk, [1, 1, 1], file_bytes_max=60)
    paths = journal.journal_files(disk)
    other = journal.file_name(1, salt)
    disk.put(other, journal._head(1, salt) + END)
    assert journal.journal_files(disk) == paths
    assert sequences(disk) == [0, 1, 2]

    faulty = FaultyDisk(disk)
    again = opened(faulty, 3)
    assert list(again.spares) == [other + ".spare"]
    assert again.sealed_to(1) == 1
    assert again.cut_behind(1)
    assert journal.journal_files(disk) == paths[1:]
    faulty.room_bytes = 0
    with pytest.raises(OSError, match="injected"):
        again.write([again.frame(0, b"", BODY)])
    assert sequences(disk) == [1, 2]


@pytest.mark.parametrize("seed", range(50))
def test_power_cuts_one_behind_the_other_cost_no_frame(seed: int) -> None:
    """A process may die while it takes over what an earlier one has begun, and so may the one behind it."""
    chance = random.Random(seed)
    left = MemoryDisk()
    stored: dict[int, bytes] = {}
    tried: dict[int, bytes] = {}
    cut = 0
    for _ in range(40):
        disk = FaultyDisk(left)
        made = FileJournal(disk, 150, 2)
        found = {}
        for frame in list(made.read(None)):
            if isinstance(frame, TornTail):
                made.set_aside(frame)
            else:
                assert isinstance(frame, GoodFrame)
                found[frame.sequence] = frame.data
        assert {sequence: data for sequence, data in stored.items() if sequence >= cut}.items() <= found.items()
        assert found.items() <= (stored | tried).items()
        stored = found
        disk.calls.clear()
        disk.kill(chance.randint(1, 12), before=chance.random() < 0.5)
        with contextlib.suppress(DiskKilled):
            made.open()
            for _ in range(20):
                if chance.random() < 0.1:
                    disk.room_bytes = chance.choice([0, 50])
                body = chance.randbytes(8)
                tried = {made.next_sequence: body}
                try:
                    if chance.random() < 0.3:
                        list(made.write_ahead(body, 8))
                        if chance.random() < 0.3:
                            made.forget_ahead()
                    made.write([made.frame(0, b"", body)])
                    stored |= tried
                except OSError:
                    disk.room_bytes = None
                    made.forget_ahead()
                if len(stored) > 2 and chance.random() < 0.2:
                    cut = max(stored) - 1
                    made.cut_behind(cut)
        left = left.after_power_cut(chance)


# -- files that are written over --------------------------------------------------------------------------------------


def reused(commits: list[int]) -> tuple[MemoryDisk, FileJournal]:
    """A journal whose last file was another before: twelve frames, of which so many are written over."""
    disk = MemoryDisk()
    made = write(disk, [12], file_bytes_max=700)
    made.write([made.frame(0, b"", BODY)])
    made.cut_behind(12)
    made.position = made.position._replace(size=700)  # as if it were full
    for count in commits:
        made.write([made.frame(number, b"\2" + b"\0" * 7, BODY) for number in range(count)])
    return disk, made


def test_a_retired_file_is_written_over() -> None:
    disk, made = reused([1, 2])
    assert not made.spares
    last = journal.journal_files(disk)[-1]
    assert disk.size(last) > 700  # it has kept its size
    assert made.position.size == 32 + 3 * 56
    assert sequences(disk) == [12, 13, 14, 15]
    assert [type(found) for found in scan(disk)] == [GoodFrame] * 4  # the nine that are left pass for nothing


@pytest.mark.parametrize("offset", range(0, 56, 3))
def test_a_torn_frame_over_an_earlier_one_is_torn(offset: int) -> None:
    disk, _ = reused([1, 1])
    path = journal.journal_files(disk)[-1]
    torn = flip(disk, path, 32 + 56 + offset)
    *frames, last = scan(torn)
    assert [frame.sequence for frame in frames if isinstance(frame, GoodFrame)] == [12, 13]
    assert isinstance(last, TornTail)
    assert last.offset == 32 + 56
    FileJournal(torn, 0, 0).set_aside(last)
    assert [type(found) for found in scan(torn)] == [GoodFrame, GoodFrame]


def test_zeros_before_a_later_commit_are_damage_and_not_the_end() -> None:
    disk, _ = reused([1, 1, 1])
    path = journal.journal_files(disk)[-1]
    data = bytearray(disk.read(path))
    data[32 + 56 : 32 + 2 * 56] = bytes(56)
    disk.put(path, bytes(data))
    assert [type(found) for found in scan(disk)] == [GoodFrame, GoodFrame, LostFrames, GoodFrame]


def test_an_end_that_has_rotted_costs_nothing_once_another_file_follows() -> None:
    disk, made = reused([1, 1])
    path = journal.journal_files(disk)[-1]
    end = made.position.size
    made.position = made.position._replace(size=700)
    made.write([made.frame(0, b"", BODY)])
    assert [type(found) for found in scan(flip(disk, path, end + 3))] == [GoodFrame] * 4


def test_only_files_of_some_size_are_kept_and_not_too_many() -> None:
    disk = MemoryDisk()
    made = write(disk, [2] * 5, file_bytes_max=100, spares_max=2)
    short, *files = journal.journal_files(disk)
    disk.put(short, disk.read(short)[:24])
    assert made.cut_behind(9)
    assert not made.cut_behind(9)
    assert list(made.spares) == [path + journal.SPARE for path in files[:2]]
    assert journal.journal_files(disk) == files[-1:]
    assert list(opened(disk, 99, 100).spares) == list(made.spares)  # also after a restart


def test_a_spare_that_cannot_be_used_costs_nothing() -> None:
    memory, made = reused([1])
    disk = FaultyDisk(memory)
    again = opened(disk, made.next_sequence, 100)
    memory.put("journal/old.spare", bytes(200))
    again.spares.append("journal/old.spare")
    disk.fail_all("rename", errno.EIO)
    with pytest.raises(OSError, match="injected"):
        again.write([again.frame(0, b"", BODY)])
    assert sequences(memory) == [12, 13]
    disk.heal()
    again.write([again.frame(0, b"", BODY)])
    assert sequences(memory) == [12, 13, 14]


@pytest.mark.parametrize("before", [True, False])
def test_a_power_cut_while_a_spare_is_taken_shows_nothing_of_its_past(before: bool) -> None:
    """Neither under its old name, nor under its new one."""
    cuts = 0
    for number in itertools.count(1):
        memory = MemoryDisk()
        made = write(memory, [12, 1], file_bytes_max=700)
        disk = FaultyDisk(memory)
        again = opened(disk, made.next_sequence, 700)
        again.write([again.frame(0, b"", BODY)])
        disk.calls.clear()
        disk.kill(number, before)
        try:
            again.cut_behind(12)
            again.position = again.position._replace(size=700)
            again.write([again.frame(0, b"", BODY)])
        except DiskKilled:
            for seed in range(30):
                left = memory.after_power_cut(random.Random(seed))
                kinds = {type(found) for found in scan(left)}
                assert kinds <= {GoodFrame}, (number, seed)
                cuts += 1
            continue
        break
    assert cuts > 100


def test_a_spare_whose_name_was_not_durable_when_the_process_died_is_safe_to_take() -> None:
    """Killed between the renaming and the sync; then a power cut while the next process takes the spare."""
    memory = MemoryDisk()
    made = write(memory, [12, 1], file_bytes_max=700)
    made.write([made.frame(0, b"", BODY)])
    dying = FaultyDisk(memory)
    made._disk = dying
    dying.fail_all("sync_dir", errno.EIO)
    with pytest.raises(OSError, match="injected"):
        made.cut_behind(12)
    disk = FaultyDisk(memory)
    again = opened(disk, made.next_sequence, 700)
    assert len(again.spares) == 1
    disk.fail_all("sync_dir", errno.EIO)  # the spare has its new header, and its new name is not durable
    with pytest.raises(OSError, match="injected"):
        again.write([again.frame(0, b"", BODY)])
    for seed in range(30):
        kinds = {type(found) for found in scan(memory.after_power_cut(random.Random(seed)))}
        assert kinds <= {GoodFrame}, seed


def test_a_spare_that_has_its_new_name_before_its_head_costs_no_frame() -> None:
    """The head is written first all the same. What the file held before has another salt than its new name says, so a
    process that dies between the two leaves a torn end, and never old frames."""
    memory = MemoryDisk()
    made = write(memory, [12, 1], file_bytes_max=700)
    made.cut_behind(12)
    memory.rename(made.spares[0], journal.file_name(made.next_sequence, journal.random_salt()))
    kinds = [type(found) for found in scan(memory, made.next_sequence)]
    assert kinds == [GoodFrame, TornTail]
    again = FileJournal(memory, 700, 1)
    for found in again.read(None):
        if isinstance(found, TornTail):
            again.set_aside(found)
    again.open()
    again.write([again.frame(0, b"", BODY)])
    assert sequences(memory) == [12, 13]


def test_files_that_went_do_not_come_back() -> None:
    disk = MemoryDisk()
    made = write(disk, [2] * 4, file_bytes_max=100, spares_max=0)
    *_, last = journal.journal_files(disk)
    made.cut_behind(99)
    for seed in range(20):
        assert journal.journal_files(disk.after_power_cut(random.Random(seed))) == [last]


@pytest.mark.parametrize("spares_max", [0, 1])
def test_a_power_cut_while_files_go_leaves_no_gap(spares_max: int) -> None:
    chance = random.Random(1)
    for calls in range(12):
        disk = MemoryDisk()
        write(disk, [1] * 12, file_bytes_max=100, spares_max=0).close()
        faulty = FaultyDisk(disk)
        made = FileJournal(faulty, 100, spares_max)
        assert len(list(made.read(0))) == 12
        faulty.kill(calls + 1, before=False)
        with contextlib.suppress(DiskKilled):
            made.cut_behind(10)
        for _ in range(20):
            left = disk.after_power_cut(chance)
            assert not [found for found in scan(left) if isinstance(found, LostFrames)]
