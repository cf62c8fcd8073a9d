"""Moving a log: into a journal with a shared store, back into a directory, and backups of one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from unit.log.test_shared import FarStore, Owner, Place, checkpoint, do, expected, fill, filled, numbers, settle, work

from headrace.config import Log as LogSettings
from headrace.errors import BadRequest, StoreUnavailable
from headrace.log import backup, moving, ops, transfer
from headrace.log.batch import Batch
from headrace.log.cached_store import CACHE, CachedStore
from headrace.log.directory import open_directory
from headrace.log.disk import OsDisk
from headrace.log.frame import EncodedFrame
from headrace.log.journal_port import JournalPort, Unrecoverable
from headrace.log.log import Log
from headrace.log.store import BlobDamaged, DirectoryStore
from headrace.log.transfer import CopyDiffers
from headrace.testing import FakeClock, MemoryJournal, MemoryStore

SETTINGS = LogSettings(segment_bytes=5_000, journal_file_bytes=20_000, journal_bytes_max=40_000, disk_reserve_bytes=0)


class Far:
    """A journal and a store in memory: where a log can be moved to."""

    def __init__(self) -> None:
        self.kept = MemoryJournal(2000)
        self.far = FarStore()
        self.fails: Callable[[list[EncodedFrame]], None] = lambda frames: None
        self.tag = f"-{moving.TAG}"

    def journal(self, *, claims: bool) -> JournalPort:
        owner = Owner(self.kept)
        write = owner.write

        def watched(frames: list[EncodedFrame]) -> None:
            self.fails(frames)
            write(frames)

        owner.write = watched  # type: ignore[method-assign]
        return owner

    def hubs(self) -> list[str]:
        return []

    def store(self, disk: OsDisk) -> CachedStore:
        root, lock = disk.handover() or ("", 0)
        disk.make_dirs(CACHE)
        return CachedStore(DirectoryStore(OsDisk(f"{root}/{CACHE}", lock=lock)), self.far, 10**7, self.tag, root)

    def open(self, home: Path) -> Log:
        return Log(Owner(self.kept), self.store(OsDisk(home)), FakeClock(), SETTINGS)


@pytest.fixture
def far() -> Far:
    return Far()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with some of everything: sealed and not, trimmed, deleted and created again, and users."""
    data = tmp_path_factory.mktemp("moving") / "data"
    log = open_directory(OsDisk(data), FakeClock(), SETTINGS)
    for operation in (
        ops.CreateStream("s", 2),
        ops.CreateStream("t", kind="table"),
        ops.CreateStream("again"),
        ops.Append("again", Batch.of([b"x"] * 7)),
        ops.DeleteStream("again"),
        ops.CreateStream("again", options=ops.StreamOptions(retention_bytes=10**9)),
        ops.Append("s", Batch.one(b"other", key=b"k", type="a", event_time=5), 1, "q", 9),
    ):
        do(log, operation)
    fill(log, "s", 300)
    for number in range(40):
        do(log, ops.Put("t", b"%d" % (number % 9), b"v%d" % number))
    do(log, ops.Delete("t", b"3"))
    while log.maintain_once():
        pass
    fill(log, "s", 20, 300)
    do(log, ops.SaveCursor("c", "s", 33))
    do(log, ops.Trim("s", 20))
    do(log, ops.SetProducer("s", "r", 4))
    checkpoint(log, "s", b"state" * 300_000)
    log.close()
    (data / "users.json").write_text("{}")
    (data / "staged").mkdir()
    (data / "staged" / "rows").write_bytes(b"rows")
    return data


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "data")


def check(log: Log) -> None:
    assert log.recovered.findings == []
    assert log.bounds("s") == (20, 320)
    assert numbers(log, "s") == expected(20, 320)
    assert log.read("s", 0, 1).to_pylist()[0]["payload"] == b"other"
    assert (log.producers("s"), log.producers("s", 1)) == ({"p": 319, "r": 4}, {"q": 9})
    assert log.cursor("c", "s") == 33
    assert log.bounds("again") == (7, 7)
    assert dict(log.table_items("t")) == {
        b"%d" % (number % 9): b"v%d" % number for number in range(31, 40) if number % 9 != 3
    }
    [info] = log.checkpoints()
    assert b"".join(log.read_checkpoint(info.id)) == b"state" * 300_000
    duplicate = do(log, ops.Append("s", Batch.one(b"twice"), 0, "p", 319))
    assert duplicate == ops.Appended(319, 1, True), "what was stored last is known with its index"


def test_there_and_back(data: Path, far: Far, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    moved = moving.into_journal(data, far, tmp_path / "hub", progress=lambda *step: seen.append(step))
    assert moved.compared == moved.copied.records == 300 + 1 + 41
    assert {what for what, _, _ in seen} == {"copied", "compared"}
    assert all(done <= total for _, done, total in seen)
    assert (tmp_path / "hub/users.json").read_text() == "{}"
    assert (tmp_path / "hub/staged/rows").read_bytes() == b"rows"
    log = far.open(tmp_path / "another")
    check(log)
    assert do(log, ops.Append("s", Batch.one(b"new"))) == ops.Appended(320, 1, False)
    work(log)
    log.close()
    back = moving.into_directory(far, tmp_path / "hub", tmp_path / "back")
    assert back.compared == moved.compared + 1
    assert sorted(path.name for path in tmp_path.glob("back*")) == ["back"]
    assert (tmp_path / "back/users.json").read_text() == "{}"
    after = open_directory(OsDisk(tmp_path / "back"), FakeClock(), SETTINGS)
    assert after.bounds("s") == (20, 321)
    do(after, ops.Append("s", Batch.one(b"newer")))
    after.close()
    after = open_directory(OsDisk(tmp_path / "back"), FakeClock(), SETTINGS)
    assert after.recovered.findings == []
    assert numbers(after, "s") == [*expected(20, 320), b"new", b"newer"]
    assert after.cursor("c", "s") == 33
    after.close()


def test_the_original_stays_as_it_is(data: Path, far: Far, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file() and path.name != "LOCK"}
    moving.into_journal(data, far, tmp_path / "hub", verify=False)
    assert {path: path.read_bytes() for path in before} == before
    log = open_directory(OsDisk(data), FakeClock(), SETTINGS)
    check(log)
    log.close()


@pytest.mark.parametrize("blobs", [0, 1, 3, 6])
def test_a_move_that_is_cut_off_is_made_again(data: Path, far: Far, tmp_path: Path, blobs: int) -> None:
    put = far.far.copy_in
    left = iter(range(blobs))

    def copy_in(name: str, chunks: Any) -> str:
        if next(left, None) is None:
            raise OSError("no route")
        return put(name, chunks)

    far.far.copy_in = copy_in  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        moving.into_journal(data, far, tmp_path / "hub")
    assert far.kept.next_sequence == 0
    far.far.copy_in = put  # type: ignore[method-assign]
    moving.into_journal(data, far, tmp_path / "hub")
    log = far.open(tmp_path / "another")
    check(log)
    log.close()


def test_nothing_counts_before_the_first_frame(data: Path, far: Far, tmp_path: Path) -> None:
    def refuse(frames: list[EncodedFrame]) -> None:
        raise OSError("fenced")

    far.fails = refuse
    with pytest.raises(OSError, match="fenced"):
        moving.into_journal(data, far, tmp_path / "hub")
    with pytest.raises(Unrecoverable, match="cut off"):
        far.open(tmp_path / "another")
    far.fails = lambda frames: None
    moving.into_journal(data, far, tmp_path / "hub")


def test_users_are_there_before_the_log_counts(data: Path, far: Far, tmp_path: Path) -> None:
    users = tmp_path / "hub" / "users.json"

    def look(frames: list[EncodedFrame]) -> None:
        assert users.exists(), "a move that is cut off here is a hub that lets everybody in"

    far.fails = look
    moving.into_journal(data, far, tmp_path / "hub")


def test_a_log_is_not_moved_onto_another(data: Path, far: Far, tmp_path: Path) -> None:
    moving.into_journal(data, far, tmp_path / "hub")
    with pytest.raises(BadRequest, match="a log in the journal already"):
        moving.into_journal(data, far, tmp_path / "hub")
    far.kept = MemoryJournal()
    far.far.blobs["snapshots/00000000000000000009-hub.snapshot"] = b""
    with pytest.raises(BadRequest, match="the store is in use"):
        moving.into_journal(data, far, tmp_path / "hub")


def test_what_cannot_be_moved_is_said(data: Path, far: Far, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="not a data directory"):
        moving.into_journal(tmp_path / "nothing", far, tmp_path / "hub")
    with pytest.raises(BadRequest, match="choose another data directory"):
        moving.into_journal(data, far, data)
    with pytest.raises(BadRequest, match="is not empty"):
        moving.into_directory(far, tmp_path / "hub", data)
    far.store = lambda disk: DirectoryStore(disk)  # type: ignore[method-assign,assignment]
    with pytest.raises(BadRequest, match=r"log\.kafka\.store is local"):
        moving.into_journal(data, far, tmp_path / "hub")


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("what", ["a record", "a segment", "a checkpoint"])
def test_damage_is_not_moved(data: Path, far: Far, tmp_path: Path, what: str, verify: bool) -> None:
    whole = shutil.copytree(data, tmp_path / "whole")
    segment = min((data / "segments/1/0").iterdir())
    if what == "a record":
        garble(segment, b"30" * 10)
    elif what == "a segment":
        segment.unlink()
    else:
        garble(next((data / "checkpoints").iterdir()), b"state" * 10)
    with pytest.raises(BadRequest, match="is damaged"):
        moving.into_journal(data, far, tmp_path / "hub", verify=verify)
    moving.into_journal(whole, far, tmp_path / "hub")  # nothing was there that is in its way
    log = far.open(tmp_path / "another")
    check(log)
    log.close()


def garble(path: Path, what: bytes) -> None:
    whole = path.read_bytes()
    at = whole.index(what)
    path.write_bytes(whole[:at] + b"?" + whole[at + 1 :])


@pytest.mark.parametrize("verify", [True, False])
def test_damage_in_a_store_is_not_moved_back(data: Path, far: Far, tmp_path: Path, verify: bool) -> None:
    moving.into_journal(data, far, tmp_path / "hub")
    shutil.rmtree(tmp_path / "hub" / CACHE)
    name = next(name for name in far.far.blobs if name.startswith("segments/1/0"))
    blob = far.far.blobs[name]
    at = blob.index(b"30" * 10)
    far.far.blobs[name] = blob[:at] + b"?" + blob[at + 1 :]
    with pytest.raises(BlobDamaged):
        moving.into_directory(far, tmp_path / "hub", tmp_path / "back", verify=verify)
    assert list((tmp_path / "back").iterdir()) == []
    far.far.blobs[name] = blob
    shutil.rmtree(tmp_path / "hub" / CACHE)
    moving.into_directory(far, tmp_path / "hub", tmp_path / "back", verify=verify)


def test_a_move_back_that_is_cut_off_leaves_no_directory(data: Path, far: Far, tmp_path: Path) -> None:
    moving.into_journal(data, far, tmp_path / "hub")
    kept = dict(far.far.blobs)
    for name in list(far.far.blobs):
        if name.startswith("checkpoints"):
            del far.far.blobs[name]
    shutil.rmtree(tmp_path / "hub" / CACHE)
    with pytest.raises(FileNotFoundError):
        moving.into_directory(far, tmp_path / "hub", tmp_path / "back")
    assert list((tmp_path / "back").iterdir()) == []
    far.far.blobs = kept
    moving.into_directory(far, tmp_path / "hub", tmp_path / "back", verify=False)
    log = open_directory(OsDisk(tmp_path / "back"), FakeClock(), SETTINGS)
    check(log)
    log.close()


DIFFERENCES: dict[str, Callable[[Log], Any]] = {
    "streams": lambda log: do(log, ops.CreateStream("more")),
    "indexes of deleted streams": lambda log: [do(log, ops.CreateStream("more")), do(log, ops.DeleteStream("more"))],
    "cursors": lambda log: do(log, ops.SaveCursor("c", "s", 34)),
    "checkpoints": lambda log: do(log, ops.DropCheckpoint(1)),
    "bounds": lambda log: do(log, ops.Append("s", Batch.one(b"x"))),
    "producers": lambda log: do(log, ops.SetProducer("s", "r", 5)),
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_a_difference_is_found(data: Path, far: Far, tmp_path: Path, what: str) -> None:
    moving.into_journal(data, far, tmp_path / "hub")
    log, one = far.open(tmp_path / "another"), open_directory(OsDisk(data), FakeClock(), SETTINGS)
    assert transfer.compare(one, log)
    DIFFERENCES[what](log)
    with pytest.raises(CopyDiffers, match=what):
        transfer.compare(one, log)
    log.close()
    one.close()


def test_other_records_are_found(tmp_path: Path) -> None:
    logs = []
    for number in range(2):
        log = Log(MemoryJournal(), MemoryStore(), FakeClock(), SETTINGS)
        for operation in (
            ops.CreateStream("t", kind="table"),
            ops.Put("t", b"k", b"%d" % number),
        ):
            do(log, operation)
        logs.append(log)
    with pytest.raises(CopyDiffers, match="records 0 to 0"):
        transfer.compare(*logs)


def test_gaps_stay_gaps() -> None:
    log = Log(MemoryJournal(), MemoryStore(), FakeClock(), SETTINGS)
    do(log, ops.CreateStream("s"))
    fill(log, "s", 10)
    entries = log.partition("s").tail.entries
    assert [len(run) for run in transfer.runs([*entries[:3], *entries[5:]])] == [3, 5]
    assert list(transfer.runs([])) == []


def test_long_tails_become_several_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(MemoryJournal(), MemoryStore(), FakeClock(), SETTINGS)
    do(log, ops.CreateStream("s"))
    fill(log, "s", 10)
    monkeypatch.setattr(transfer, "SEGMENT_BYTES", 100)
    assert len(list(transfer.runs(log.partition("s").tail.entries))) > 2


# -- backups -----------------------------------------------------------------------------------------------------------


def test_a_backup_of_a_shared_log_restores_into_either(far: Far, data: Path, tmp_path: Path) -> None:
    moving.into_journal(data, far, tmp_path / "hub")
    log = far.open(tmp_path / "hub")
    do(log, ops.CreateStream("late"))
    settle(log, log.submit([ops.Append("late", Batch.one(b"last"))]))
    info = log.back_up(tmp_path / "backup")
    assert (info.records, info.streams, info.linked_bytes) == (343, 4, 0)
    assert info.bytes > 1_500_000
    do(log, ops.Append("late", Batch.one(b"later")))
    do(log, ops.Trim("s", 320))
    work(log)
    log.close()
    backup.restore(tmp_path / "backup", tmp_path / "restored")
    assert (tmp_path / "restored/users.json").read_text() == "{}"
    restored = open_directory(OsDisk(tmp_path / "restored"), FakeClock(), SETTINGS)
    check(restored)
    assert numbers(restored, "late") == [b"last"]
    restored.close()
    elsewhere = Far()
    moving.into_journal(tmp_path / "backup", elsewhere, tmp_path / "hub3")
    log = elsewhere.open(tmp_path / "hub4")
    check(log)
    log.close()


def test_nothing_is_removed_while_it_is_copied(tmp_path: Path) -> None:
    place = Place(tmp_path)
    log = filled(place)
    with log.maintenance.without_removal():
        blobs = set(place.far.blobs)
        do(log, ops.Trim("s", 200))
        work(log)
        assert blobs <= set(place.far.blobs)
    work(log)
    assert not blobs <= set(place.far.blobs)
    log.close()


def test_a_backup_that_fails_leaves_nothing(far: Far, data: Path, tmp_path: Path) -> None:
    moving.into_journal(data, far, tmp_path / "hub")
    log = far.open(tmp_path / "another")
    far.far.error = OSError("no route")
    with pytest.raises(StoreUnavailable):
        log.back_up(tmp_path / "backup")
    assert not (tmp_path / "backup").exists()
    far.far.error = None
    log.close()


def test_a_log_without_a_directory_has_no_backup(tmp_path: Path) -> None:
    log = filled(Place())
    with pytest.raises(BadRequest, match="in memory"):
        log.back_up(tmp_path / "backup")
