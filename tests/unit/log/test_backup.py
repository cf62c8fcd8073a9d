"""Backups of a log that is being written, and restores of them."""

import asyncio
import contextlib
import errno
import os
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.config import Config, Log
from headrace.errors import BadRequest, Busy
from headrace.hub import Hub
from headrace.log import backup as backups
from headrace.log import journal
from headrace.log.backup import BackupDamaged, BackupFailed, restore
from headrace.log.batch import Batch
from headrace.log.doctor import examine
from headrace.log.proof import PROOF
from headrace.testing import memory_hub

KIB = 1024
# So small that files are sealed, merged, rolled and removed all the time.
RESTLESS = Config(
    log=Log(
        segment_bytes=16 * KIB,
        journal_file_bytes=32 * KIB,
        journal_bytes_max=64 * KIB,
        maintenance_interval_s=0.01,
        merge_segments_min=2,
    )
)


async def filled(hub: Hub, count: int = 200) -> None:
    for number in range(count):
        await hub.append("orders", Batch.one(b"%d" % number + bytes(500), id=number), producer="p", sequence=number)
        await hub.put("prices", b"k%d" % (number % 7), b"%d" % number)
    await hub.save_cursor("reader", "orders", count // 2)
    writer = await hub.begin_checkpoint("orders")
    await writer.write(b"state" * 1000)
    await writer.commit(count, {"a": "b"})


@pytest.mark.slow
async def test_all_that_was_acknowledged_before_is_in_a_backup_under_load(tmp_path: Path) -> None:
    hub = await Hub.open(str(tmp_path / "data"), RESTLESS)
    (tmp_path / "data" / "users.json").write_text("{}")
    await hub.create_stream("orders")
    await hub.create_table("prices")
    await filled(hub)
    stop = asyncio.Event()

    async def load() -> None:
        number = 1000
        while not stop.is_set():
            number += 1
            await hub.append("orders", Batch.one(bytes(700), id=number))
            await hub.put("prices", b"k%d" % (number % 7), b"%d" % number)
            if number % 50 == 0:
                await hub.trim("orders", min(number - 1000, 100))

    loading = [asyncio.create_task(load()) for _ in range(4)]
    for round in range(5):
        before = hub.bounds("orders").next
        while hub.bounds("orders").next < before + 20:
            await asyncio.sleep(0)
        acknowledged = hub.bounds("orders").next
        prices_next = hub.bounds("prices").next
        info = await hub.back_up(tmp_path / f"backup{round}")
        assert info.linked_bytes > 0
        assert not (tmp_path / "data" / backups.STAGING).exists()
        restored = tmp_path / f"restored{round}"
        again = restore(tmp_path / f"backup{round}", restored)
        assert again.records == info.records
        copy = await Hub.open(str(restored), RESTLESS)
        assert copy._log.recovered.findings == [], "not even a torn tail"  # type: ignore[attr-defined]
        try:
            first = max(copy.bounds("orders").first, hub.bounds("orders").first)
            assert copy.bounds("orders").next >= acknowledged
            assert copy.bounds("prices").next >= prices_next
            theirs = pa.Table.from_batches(list(copy.scan("orders", first, acknowledged)))
            ours = pa.Table.from_batches(list(hub.scan("orders", first, acknowledged)))
            assert theirs.equals(ours)
            assert copy.cursor("reader", "orders") == 100
            assert copy.producer("orders", "p") == 199
            assert copy.table_size("prices") == 7
            [checkpoint] = copy.checkpoints("orders")
            assert b"".join([chunk async for chunk in copy.read_checkpoint(checkpoint.id)]) == b"state" * 1000
            appended = await copy.append("orders", Batch.one(b"new"))
            assert appended.first >= acknowledged
        finally:
            await copy.close()
        assert (restored / "users.json").read_text() == "{}"
    stop.set()
    await asyncio.gather(*loading)
    await hub.close()
    assert examine(tmp_path / "data").healthy
    assert all(examine(tmp_path / f"backup{round}").healthy for round in range(5)), "the original took nothing away"


async def test_where_a_backup_may_not_go(tmp_path: Path) -> None:
    hub = await Hub.open(str(tmp_path / "data"))
    try:
        with pytest.raises(BadRequest, match="inside"):
            await hub.back_up(tmp_path / "data" / "copy")
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "file").touch()
        with pytest.raises(BadRequest, match="not empty"):
            await hub.back_up(tmp_path / "full")
        with pytest.raises(BadRequest, match="cannot write"):
            await hub.back_up(tmp_path / "full" / "file")
        for impossible in ("x" * 300, "a\0b", "\ud800"):
            with pytest.raises(BadRequest, match="cannot write"):
                await hub.back_up(tmp_path / impossible)
        await hub.back_up(tmp_path / "fine")
    finally:
        await hub.close()
    assert examine(tmp_path / "fine").healthy


async def test_a_copy_is_nobody_elses_while_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = await Hub.open(str(tmp_path / "data"))
    await hub.create_stream("s")
    await hub.append("s", Batch.one(b"x"))
    users = tmp_path / "data" / "users.json"
    users.write_text("{}")
    users.chmod(0o600)
    modes: list[int] = []
    copy_mode = backups.shutil.copymode  # type: ignore[attr-defined]

    def seen(source: Path, target: Path) -> None:
        modes.append(target.stat().st_mode & 0o777)
        copy_mode(source, target)

    monkeypatch.setattr("headrace.log.backup.shutil.copymode", seen)
    await hub.back_up(tmp_path / "backup")
    assert set(modes) == {0o600}
    assert (tmp_path / "backup" / "users.json").stat().st_mode & 0o777 == 0o600
    await hub.close()


async def test_a_log_in_memory_has_nothing_to_back_up(tmp_path: Path) -> None:
    async with memory_hub() as hub:
        with pytest.raises(BadRequest, match="in memory"):
            await hub.back_up(tmp_path / "copy")


async def test_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go_on = threading.Event(), threading.Event()
    real = backups.cut_torn_tail

    def held(place: Path) -> None:
        inside.set()
        assert go_on.wait(60)
        real(place)

    monkeypatch.setattr(backups, "cut_torn_tail", held)
    hub = await Hub.open(str(tmp_path / "data"))
    try:
        first = asyncio.create_task(hub.back_up(tmp_path / "one"))
        assert await asyncio.to_thread(inside.wait, 60)
        with pytest.raises(Busy):
            await hub.back_up(tmp_path / "two")
        go_on.set()
        await first
        await hub.back_up(tmp_path / "two")
    finally:
        go_on.set()
        await hub.close()


async def test_another_disk_gets_copies_and_a_full_one_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = await Hub.open(str(tmp_path / "data"), RESTLESS)
    try:
        await hub.create_stream("orders")
        await hub.create_table("prices")
        await filled(hub, 60)
        monkeypatch.setattr(backups, "_linked", lambda source, target: False)
        info = await hub.back_up(tmp_path / "copy")
        assert info.linked_bytes == 0
        assert info.bytes > 30_000

        def no_room(*arguments: object) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(backups, "_copy_file", no_room)
        with pytest.raises(BackupFailed, match="No space"):
            await hub.back_up(tmp_path / "full")
        assert not (tmp_path / "full").exists()
        assert not (tmp_path / "data" / backups.STAGING).exists()
        assert (await hub.append("orders", Batch.one(b"x"))).count == 1
    finally:
        await hub.close()


async def test_a_backup_that_is_damaged_or_not_complete_is_not_restored(tmp_path: Path) -> None:
    hub = await Hub.open(str(tmp_path / "data"))
    await hub.create_stream("orders")
    await hub.create_table("prices")
    await filled(hub, 20)
    await hub.back_up(tmp_path / "copy")
    await hub.close()
    [file] = (tmp_path / "copy" / "journal").iterdir()
    data = bytearray(file.read_bytes())
    at = data.index(b"17" + bytes(100))
    data[at + 5] ^= 1
    file.write_bytes(data)
    with pytest.raises(BackupDamaged, match="damaged"):
        restore(tmp_path / "copy", tmp_path / "new")
    (tmp_path / "copy" / backups.MANIFEST).write_text('{"path": 7}')
    with pytest.raises(BackupDamaged, match="cannot be read"):
        restore(tmp_path / "copy", tmp_path / "new2")
    (tmp_path / "copy" / backups.MANIFEST).unlink()
    with pytest.raises(BadRequest, match="interrupted"):
        restore(tmp_path / "copy", tmp_path / "new3")
    with pytest.raises(BadRequest, match="not a backup"):
        restore(tmp_path / "nowhere", tmp_path / "new4")


async def test_a_backup_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    hub = await Hub.open(str(tmp_path / "data"))
    await hub.back_up(tmp_path / "copy")
    await hub.close()
    manifest = tmp_path / "copy" / backups.MANIFEST
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(BadRequest, match="format 2"):
        restore(tmp_path / "copy", tmp_path / "new")


async def test_leftovers_of_an_interrupted_backup_go_at_the_next_start(tmp_path: Path) -> None:
    leftover = tmp_path / "data" / backups.STAGING / "segments" / "1"
    leftover.mkdir(parents=True)
    (leftover / "x").touch()
    hub = await Hub.open(str(tmp_path / "data"))
    await hub.close()
    assert not (tmp_path / "data" / backups.STAGING).exists()


async def test_the_journal_of_a_backup_ends_with_a_whole_frame(tmp_path: Path) -> None:
    hub = await Hub.open(str(tmp_path / "data"))
    await hub.create_stream("orders")
    await hub.append("orders", Batch.one(b"one"))
    await hub.append("orders", Batch.one(b"two"))
    await hub.close()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(tmp_path / "data" / "LOCK")
    for final in (tmp_path / "data" / "snapshots").iterdir():  # a hub at work has none
        final.unlink()
    (tmp_path / "data" / PROOF).unlink()  # and it is not copied
    [*_, file] = sorted((tmp_path / "data" / "journal").iterdir())
    data = file.read_bytes()
    end = data.index(b"two")
    file.write_bytes(data[: end + 1])
    backups.cut_torn_tail(tmp_path / "data")
    assert file.read_bytes() == data[: len(file.read_bytes())]
    assert len(file.read_bytes()) < end
    report = examine(tmp_path / "data")
    assert report.findings == []
    assert [one.next for one in report.streams] == [1]


async def test_background_work_stands_still_while_files_get_their_second_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = await Hub.open(str(tmp_path / "data"))
    log = hub._log  # type: ignore[attr-defined]
    real, finished, finished_inside = backups._stage_others, threading.Event(), []

    def maintain() -> None:
        log.maintain_once()
        finished.set()

    def hooked(root: Path, staging: Path) -> None:
        if not finished_inside:
            threading.Thread(target=maintain).start()
        finished_inside.append(finished.wait(0.2))
        real(root, staging)

    monkeypatch.setattr(backups, "_stage_others", hooked)
    try:
        await hub.back_up(tmp_path / "copy")
        assert finished_inside == [False, False]
        assert await asyncio.to_thread(finished.wait, 60), "and goes on afterwards"
    finally:
        await hub.close()


async def test_a_backup_takes_of_a_reused_journal_file_what_is_written_and_nothing_is_written_over_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = await Hub.open(str(tmp_path / "data"), RESTLESS)
    log = hub._log  # type: ignore[attr-defined]
    await hub.create_stream("orders")

    def is_reused() -> bool:
        size: int = log.store.disk.size(journal.journal_files(log.store.disk)[-1])
        return size > log.journal.position.size + 4 * KIB

    for _ in range(5_000):
        await hub.append("orders", Batch.one(bytes(700)))
        if is_reused():
            break
    assert is_reused(), "no journal file was written over"
    written, real, reused_meanwhile = log.journal.position, backups._copy_all, []

    def copy_all(*arguments: Any, **options: Any) -> Any:
        reused_meanwhile.append(log.maintenance._reuses_files)
        return real(*arguments, **options)

    monkeypatch.setattr(backups, "_copy_all", copy_all)
    await hub.back_up(tmp_path / "backup")
    assert reused_meanwhile == [False]
    assert log.maintenance._reuses_files
    [copied] = (tmp_path / "backup" / "journal").glob(f"{written.first_sequence:020d}-*")
    assert copied.stat().st_size == written.size
    await hub.close()


async def test_what_cannot_be_linked_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another disk, or one that knows no links; any other error is one."""
    hub = await Hub.open(str(tmp_path / "data"), RESTLESS)
    await hub.create_stream("orders")
    await hub.create_table("prices")
    await filled(hub, 20)
    link, number = os.link, errno.EXDEV

    def refuse(source: Path, target: Path) -> None:
        if backups.STAGING not in target.parts:
            raise OSError(number, "injected")
        link(source, target)

    monkeypatch.setattr(os, "link", refuse)
    info = await hub.back_up(tmp_path / "copied")
    assert (info.linked_bytes, info.streams) == (0, 2)
    number = errno.EIO
    with pytest.raises(BackupFailed, match="injected"):
        await hub.back_up(tmp_path / "failed")
    await hub.close()


def test_a_directory_without_a_journal_is_no_data_directory(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="not a data directory"):
        examine(tmp_path)
