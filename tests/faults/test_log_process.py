"""Real processes on a real disk: killed, cut off, full, failing."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.victim import Victim, check
from test_programs import find

pytestmark = [pytest.mark.slow, pytest.mark.long]

KILLS = 50
CUTS = 50
IMAGE_BYTES = 64 * 1024 * 1024
STRACE = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=pwritev2"]
# Stops the process at this call only: without it strace stops it at every one, and a start takes ten times as long.
FILTER = "--seccomp-bpf"  # injected errors come through, injected signals do not


def test_kill_nine_under_load_again_and_again(tmp_path: Path) -> None:
    generator = random.Random(1)
    acknowledged: list[tuple[str, str, str]] = []
    for _ in range(KILLS):
        with Victim(tmp_path) as victim:
            victim.wait_for_lines(1 + generator.randrange(0, 600))
        acknowledged += victim.acknowledged()
        assert not victim.lines or victim.lines[0] == "ready"
    assert len(acknowledged) > 1_000
    check(tmp_path, acknowledged)


def test_kill_nine_while_another_process_seals(tmp_path: Path) -> None:
    """The hub dies in the middle of a seal, and the next one starts at once; or the other process dies."""
    generator = random.Random(3)
    acknowledged: list[tuple[str, str, str]] = []
    helped = 0
    for turn in range(20):
        with Victim(tmp_path, options=("apart",)) as victim:
            victim.wait_for("ready")
            while not victim.children():
                victim.wait_for_lines(len(victim.lines) + 10)
            victim.wait_for_lines(len(victim.lines) + generator.randrange(0, 4_000))
            children = victim.children()
            helped += len(children)
            if turn % 3 == 0 and children:
                os.kill(children[0], signal.SIGKILL)
                victim.wait_for_lines(len(victim.lines) + 1_000)
        acknowledged += victim.acknowledged()
    assert helped >= 10
    check(tmp_path, acknowledged)


@pytest.fixture
def image(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A small ext4 file system in a file, mounted: copying the file is a power cut."""
    file, mounted = tmp_path / "disk.img", tmp_path / "disk"
    mounted.mkdir()
    with open(file, "wb") as made:
        made.truncate(IMAGE_BYTES)
    subprocess.run([str(find("mkfs.ext4")), "-q", "-F", str(file)], check=True)
    # Without a commit by timer only the victim's own syncs change what a stopped victim's disk holds: a copy that takes
    # a moment is then the same as the instant of a power cut.
    subprocess.run(["mount", "-o", "loop,commit=86400", str(file), str(mounted)], check=True)
    yield file, mounted
    subprocess.run(["umount", str(mounted)], check=True)


@pytest.mark.root
def test_power_cuts(image: tuple[Path, Path], tmp_path: Path) -> None:
    """What is on the platter at a random moment recovers to everything acknowledged before that moment."""
    file, mounted = image
    generator = random.Random(2)
    copy, recovered = tmp_path / "copy.img", tmp_path / "copy"
    recovered.mkdir()
    with Victim(mounted / "data") as victim:
        victim.wait_for("ready")
        for _ in range(CUTS):
            victim.wait_for_lines(len(victim.lines) + generator.randrange(1, 300))
            victim.stop()
            acknowledged = victim.acknowledged()
            subprocess.run(["cp", "--sparse=always", str(file), str(copy)], check=True)
            victim.process.send_signal(signal.SIGCONT)
            subprocess.run(["mount", "-o", "loop", str(copy), str(recovered)], check=True)
            try:
                check(recovered / "data", acknowledged)
            finally:
                subprocess.run(["umount", str(recovered)], check=True)


@pytest.mark.root
def test_a_really_full_disk_refuses_keeps_reading_and_resumes(tmp_path: Path) -> None:
    mounted = tmp_path / "small"
    mounted.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(mounted)], check=True)
    try:
        (mounted / "ballast").write_bytes(b"\0" * 1_000_000)
        with Victim(mounted / "data") as victim:
            victim.wait_for("full")
            stored = len(victim.acknowledged())
            (mounted / "ballast").unlink()
            victim.wait_for_lines(len(victim.lines) + 200)
            assert len(victim.acknowledged()) > stored
        check(mounted / "data", victim.acknowledged())
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


@pytest.mark.needs("strace")
@pytest.mark.parametrize("when", [3, 10, 40])
def test_a_commit_that_fails_stops_the_log_and_loses_nothing(tmp_path: Path, when: int) -> None:
    with Victim(tmp_path, [*STRACE, FILTER, "-e", f"inject=pwritev2:error=EIO:when={when}"]) as victim:
        victim.wait_for("failed")
        assert victim.process.wait(60) == 4
    check(tmp_path, victim.acknowledged())


@pytest.mark.needs("strace")
@pytest.mark.parametrize("when", [2, 9, 33])
def test_killed_in_a_commit(tmp_path: Path, when: int) -> None:
    with Victim(tmp_path, [*STRACE, "-e", f"inject=pwritev2:signal=KILL:when={when}"]) as victim:
        victim.wait_for_lines(10**9)  # until it is gone
    check(tmp_path, victim.acknowledged())


def test_writes_that_take_only_a_part(tmp_path: Path) -> None:
    """A file size limit makes write(2) short and then fail: nothing is lost, and the log goes on in a new file."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (59_000, 59_000))

    with Victim(tmp_path, preexec=limit) as victim:
        victim.wait_for("full")
    check(tmp_path, victim.acknowledged())
    with Victim(tmp_path) as again:
        again.wait_for_lines(100)
    check(tmp_path, victim.acknowledged() + again.acknowledged())


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    with Victim(tmp_path) as first:
        first.wait_for("ready")
        with Victim(tmp_path) as second:
            second.wait_for("refused")
            assert second.process.wait(60) == 1
        assert "data-directory-locked" in second.lines[-1]
        assert str(first.process.pid) in second.lines[-1]
