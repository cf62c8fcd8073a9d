"""A disk that fails to make something durable ends the log, whoever it was for; nothing is synced a second time."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest
from unit.log.helpers import do, maintain, open_log
from unit.log.test_recovery import scripted

from headrace.errors import LogFailed
from headrace.hub import Hub
from headrace.log import disk as disks
from headrace.log import ops
from headrace.log.backup import BackupFailed
from headrace.log.batch import Batch
from headrace.log.disk import NewFile, OsDisk, SyncFailed, fsync, fsync_directory, is_final
from headrace.testing import FaultyDisk, MemoryDisk

SETTINGS = {"segment_bytes": 400, "journal_file_bytes": 1_200, "tail_bytes_max": 2_000}
DURABLE = ("sync", "sync_dir", "rename", "truncate")
"""Calls to a disk that are there to make something durable."""


def life(disk: FaultyDisk) -> None:
    """Everything that a log does to its disk, from the start to a clean stop."""
    log = open_log(disk, **SETTINGS)
    try:
        scripted(log)
    finally:
        log.close()
        if log.failed is not None:
            raise log.failed


def calls() -> list[tuple[str, str]]:
    disk = FaultyDisk(MemoryDisk())
    life(disk)
    return disk.calls


def test_every_sync_that_fails_ends_the_log_and_is_not_tried_again() -> None:
    kinds = {path.partition("/")[0] for kind, path in calls() if kind in DURABLE}
    assert kinds == {"journal", "segments", "snapshots", "checkpoints"}
    for number, (kind, path) in enumerate(calls(), 1):
        if kind not in DURABLE:
            continue
        memory = MemoryDisk()
        disk = FaultyDisk(memory)
        disk.fail(number, errno.EIO)
        with pytest.raises(LogFailed):
            life(disk)
        later = [call for call in disk.calls[number:] if call[0] in ("write", *DURABLE)]
        assert (kind, path) not in later, f"{kind} of {path} was tried again: {later}"
        assert later == [], f"the log went on after {kind} of {path} had failed: {later}"
        again = open_log(memory.after_power_cut(random.Random(number)), **SETTINGS)
        assert not again.recovered.damage


def test_no_room_for_a_background_file_is_not_the_end() -> None:
    disk = FaultyDisk(MemoryDisk())
    log = open_log(disk, **SETTINGS)
    do(log, ops.CreateStream("s"))
    do(log, ops.Append("s", Batch.one(bytes(500))))
    disk.fail_all("sync", errno.ENOSPC)
    maintain(log)
    assert log.failed is None
    assert log.maintenance.error is not None
    disk.heal()
    log.maintain_once()
    assert log.partition("s").segments


def test_a_start_that_cannot_repair_ends_as_a_failed_log() -> None:
    memory = MemoryDisk()
    log = open_log(memory)
    do(log, ops.CreateStream("s"))
    [path] = [path for path in memory.paths() if path.endswith(".journal")]
    memory.put(path, memory.read(path)[: log.journal.position.size - 10])
    disk = FaultyDisk(memory)
    disk.fail_all("sync", errno.EIO)
    with pytest.raises(LogFailed, match="start again"):
        open_log(disk)
    disk.fail_all("sync", errno.ENOSPC)
    with pytest.raises(OSError, match="injected"):
        open_log(disk)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENXIO, errno.ESTALE])
def test_what_the_system_says_to_a_sync_is_final(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    disk = OsDisk(tmp_path)
    new = NewFile(disk, "file")
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(disks.os, name, fail)
    for sync in (new.sync, lambda: fsync(0), lambda: fsync_directory(tmp_path), lambda: disk.sync_dir(".")):
        with pytest.raises(SyncFailed) as caught:
            sync()
        assert caught.value.errno == number
        assert is_final(caught.value)
    new.abort()
    disk.close()


def test_no_room_is_not_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(disks.os, "fsync", fail)
    with pytest.raises(OSError, match="no room") as caught:
        fsync(0)
    assert not is_final(caught.value)


async def test_a_checkpoint_that_cannot_be_synced_ends_the_hub() -> None:
    disk = FaultyDisk(MemoryDisk())
    hub = await Hub.open("memory", disk=disk)
    await hub.create_stream("s")
    writer = await hub.begin_checkpoint("s")
    await writer.write(b"state")
    disk.fail_all("sync", errno.EIO)
    with pytest.raises(OSError, match="injected"):
        await writer.commit(0)
    assert "writing a checkpoint failed" in str(await hub.failed())
    await hub.close()
    assert hub.has_failed


async def test_a_backup_on_the_same_disk_that_cannot_be_synced_ends_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = await Hub.open(str(tmp_path / "data"))
    await hub.create_stream("s")
    monkeypatch.setattr("headrace.log.backup.fsync", failing)
    with pytest.raises(BackupFailed):
        await hub.back_up(tmp_path / "copy")
    assert "a backup" in str(await hub.failed())
    assert not (tmp_path / "copy").exists()
    await hub.close()


async def test_a_backup_on_another_disk_that_cannot_be_synced_is_only_a_failed_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = await Hub.open(str(tmp_path / "data"))
    await hub.create_stream("s")
    monkeypatch.setattr("headrace.log.backup.fsync", failing)
    monkeypatch.setattr("headrace.log.backup._is_on", lambda place, root: False)
    with pytest.raises(BackupFailed):
        await hub.back_up(tmp_path / "copy")
    assert not hub.has_failed
    await hub.append("s", Batch.one(b"still here"))
    await hub.close()


def failing(descriptor: int) -> None:
    raise SyncFailed(errno.EIO, "injected")
