"""The real disk does what the port says, and so do the disks for tests."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.errors import DataDirectoryLocked
from headrace.log import disk as disk_module
from headrace.log.disk import Disk, FreeSpace, NewFile, OsDisk, write_all
from headrace.testing import FaultyDisk, MemoryDisk
from headrace.testing.disk import DiskKilled


@pytest.fixture(params=["os", "memory", "faulty"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    made: dict[str, Callable[[], Disk]] = {
        "os": lambda: OsDisk(tmp_path / "data"),
        "memory": MemoryDisk,
        "faulty": lambda: FaultyDisk(MemoryDisk(), short_writes=3),
    }
    disk = made[request.param]()
    yield disk
    disk.close()


def test_files(disk: Disk) -> None:
    disk.make_dirs("a/b")
    file = disk.create("a/b/file")
    write_all(file, b"hello world")
    file.sync()
    file.truncate(5)
    write_all(file, b"!")
    file.close()
    assert disk.read("a/b/file") == b"hello!"
    assert disk.read_range("a/b/file", 1, 3) == b"ell"
    assert disk.map("a/b/file").to_pybytes() == b"hello!"
    assert disk.size("a/b/file") == 6
    more = disk.open_append("a/b/file")
    write_all(more, memoryview(b"??"))
    more.close()
    assert disk.read("a/b/file") == b"hello!??"
    disk.rename("a/b/file", "a/b/other")
    disk.sync_dir("a/b")
    assert disk.list("a/b") == ["other"]
    assert disk.list("a") == ["b"]
    disk.unlink("a/b/other")
    disk.unlink("a/b/other")
    disk.remove_dir("a/b")
    disk.remove_dir("a/b")
    assert disk.list("a/b") == []
    assert disk.list("none") == []
    assert disk.free_bytes() > 0
    with pytest.raises(FileNotFoundError):
        disk.open_append("none")


def test_a_whole_file_is_in_place_or_not_at_all(disk: Disk) -> None:
    disk.make_dirs("d")
    for data in (b"1", b"2"):
        with NewFile(disk, "d/f") as file:
            file.write(data)
    file.abort()
    assert disk.read("d/f") == b"2"
    assert disk.list("d") == ["f"]
    with pytest.raises(ZeroDivisionError), NewFile(disk, "d/f") as file:
        file.write(b"%d" % (1 // 0))
    assert disk.read("d/f") == b"2"
    assert disk.list("d") == ["f"]


def test_a_mapped_file_outlives_its_name(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    with NewFile(disk, "f") as file:
        file.write(b"x" * 5_000)
    mapped = disk.map("f")
    disk.unlink("f")
    assert mapped.to_pybytes() == b"x" * 5_000
    assert disk.local_path("f") == str(tmp_path / "f")
    assert MemoryDisk().local_path("f") is None
    assert FaultyDisk(MemoryDisk()).local_path("f") is None
    disk.close()


def test_a_directory_belongs_to_one_hub(tmp_path: Path) -> None:
    first = OsDisk(tmp_path)
    with pytest.raises(DataDirectoryLocked, match=str(os.getpid())):
        OsDisk(tmp_path)
    first.close()
    OsDisk(tmp_path).close()


@pytest.fixture
def orphaned(tmp_path: Path) -> Iterator[OsDisk]:
    """A directory whose hub is gone, while a process that worked for it still has the lock."""
    held = OsDisk(tmp_path)
    done = subprocess.Popen(["true"])
    done.wait()
    (tmp_path / "LOCK").write_text(f"{done.pid}\n")
    yield held
    with contextlib.suppress(OSError):
        held.close()


def test_the_lock_of_a_hub_that_is_gone_is_waited_for(
    orphaned: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", lambda seconds: (waits.append(seconds), len(waits) == 3 and orphaned.close()))
    OsDisk(tmp_path).close()
    assert len(waits) == 3


def test_a_dead_hub_that_its_parent_has_not_noticed_is_gone(
    orphaned: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    (tmp_path / "LOCK").write_text(f"{zombie.pid}\n")
    monkeypatch.setattr(time, "sleep", lambda _: orphaned.close())
    OsDisk(tmp_path).close()
    zombie.wait()


@pytest.mark.parametrize("has_proc", [True, False])
def test_a_hub_that_ends_while_it_is_looked_for(
    orphaned: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_proc: bool
) -> None:
    """The second look finds nothing; where there is nothing to look at, the first one counts."""
    monkeypatch.setattr(os, "kill", lambda *_: None)
    monkeypatch.setattr(os.path, "exists", lambda _: has_proc)
    monkeypatch.setattr(time, "sleep", lambda _: orphaned.close())
    if has_proc:
        OsDisk(tmp_path).close()
    else:
        with pytest.raises(DataDirectoryLocked):
            OsDisk(tmp_path)


WITHOUT_STANDARD_DESCRIPTORS = """
    import os, sys
    for number in (0, 1, 2):
        os.close(number)
    from headrace.log.disk import OsDisk
    disk = OsDisk({root!r})
    file = disk.open_synced("file")
    os.write(1, b"printed by somebody")
    file.write_at(0, [b"ours"])
    sys.stdin = sys.stdout = sys.stderr = None
    os._exit(0 if disk.handover()[1] > 2 and file._fd > 2 else 1)
"""


def test_no_file_takes_the_place_of_a_standard_descriptor(tmp_path: Path) -> None:
    code = textwrap.dedent(WITHOUT_STANDARD_DESCRIPTORS).format(root=str(tmp_path / "data"))
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
    assert (tmp_path / "data" / "file").read_bytes().rstrip(b"\0") == b"ours"


def test_the_lock_is_not_waited_for_without_end(
    orphaned: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_module, "LOCK_WAIT_S", 0.05)
    with pytest.raises(DataDirectoryLocked, match="in use by another hub"):
        OsDisk(tmp_path)


def test_a_hub_of_another_user_is_no_hub_that_is_gone(
    orphaned: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waits"))
    with pytest.raises(DataDirectoryLocked):
        OsDisk(tmp_path)


def test_a_file_that_cannot_be_written_leaves_nothing() -> None:
    memory = MemoryDisk()
    disk = FaultyDisk(memory)
    disk.fail_all("sync", errno.EIO)
    with pytest.raises(OSError, match="injected"), NewFile(disk, "d/f") as file:
        file.write(b"1")
    assert memory.paths() == []


def test_a_power_cut_takes_what_was_not_synced() -> None:
    outcomes = set()
    for seed in range(50):
        disk = MemoryDisk()
        file = disk.create("d/f")
        file.write(b"synced")
        file.sync()
        disk.sync_dir("d")
        file.write(b"not synced")
        disk.create("d/never").write(b"x")
        left = disk.after_power_cut(random.Random(seed))
        assert left.read("d/f").startswith(b"synced")
        outcomes.add((left.read("d/f"), "d/never" in left.paths()))
    assert len(outcomes) > 4


def test_a_power_cut_may_bring_a_truncated_file_back() -> None:
    found = set()
    for seed in range(20):
        disk = MemoryDisk()
        disk.put("f", b"long")
        disk.open_append("f").truncate(1)
        found.add(disk.after_power_cut(random.Random(seed)).read("f"))
    assert found == {b"long", b"l"}


def test_faults_hit_the_call_they_are_meant_for() -> None:
    memory = MemoryDisk()
    disk = FaultyDisk(memory)
    disk.fail(2, errno.EIO)
    file = disk.create("f")
    with pytest.raises(OSError, match="injected"):
        file.write(b"a")
    disk.kill(4, before=True)
    file.write(b"b")
    with pytest.raises(DiskKilled):
        file.write(b"c")
    assert memory.read("f") == b"b"
    disk = FaultyDisk(memory)
    disk.kill(1, before=False)
    with pytest.raises(DiskKilled):
        disk.rename("f", "g")
    assert memory.paths() == ["g"]


def test_the_disk_is_asked_for_its_room_only_when_it_may_matter() -> None:
    asked: list[int] = []

    def free_bytes() -> int:
        asked.append(1)
        return 4 * FreeSpace.MARGIN_BYTES

    room = FreeSpace(free_bytes)
    for _ in range(3):
        assert room.free_bytes(1_000) >= 4 * FreeSpace.MARGIN_BYTES - 2_000
        room.use(1_000)
    assert len(asked) == 1
    room.free_bytes(3 * FreeSpace.MARGIN_BYTES + 1)
    assert len(asked) == 2
    room.use(FreeSpace.CHECK_BYTES + 1)
    assert room.free_bytes(1_000) == 4 * FreeSpace.MARGIN_BYTES
    assert len(asked) == 3


@pytest.mark.parametrize("what", ["pipe", "device", "directory"])
def test_what_is_no_file_is_an_error_and_no_wait(tmp_path: Path, what: str) -> None:
    """A pipe would be waited for without end, and a device never ends."""
    path = tmp_path / "x"
    if what == "pipe":
        os.mkfifo(path)
    elif what == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    disk = OsDisk(tmp_path)
    for read in (disk.read, disk.map, lambda name: disk.read_range(name, 0, 1)):
        with pytest.raises(OSError, match=str(path)):
            read("x")
