import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.config import Config, Limits, Log
from headrace.doctor import machine
from headrace.doctor.finding import Finding
from headrace.doctor.machine import check_clock, check_limits, check_room, check_speed, clock_synchronised

GIB = 1 << 30


def test_room(tmp_path: Path) -> None:
    def found(reserve: int) -> Finding:
        return next(check_room(tmp_path / "absent", Config(log=Log(disk_reserve_bytes=reserve))))

    assert found(0).level == "ok"
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    assert found(free // 2).level == "warn"
    assert found(1 << 60).level == "fail"


def test_speed_is_measured_and_leaves_nothing(tmp_path: Path) -> None:
    (finding,) = check_speed(tmp_path / "absent")
    assert finding.check == "disk"
    assert "ms (p50)" in finding.text
    assert "MB/s in pieces of 1 MiB" in finding.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("seconds", "level"), [(1e-6, "warn"), (0.001, "ok"), (0.2, "warn")])
def test_a_disk_that_lies_or_is_slow_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, level: str
) -> None:
    def measured(folder: Path, size: int, count: int) -> Iterator[float]:
        return itertools.repeat(seconds, count)

    monkeypatch.setattr(machine, "sync_times", measured)
    (finding,) = check_speed(tmp_path)
    assert finding.level == level
    assert ("faster than a disk can be" in finding.text) == (seconds < 1e-5)


def test_a_disk_that_refuses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refused)
    (finding,) = check_speed(tmp_path)
    assert (finding.level, "Permission denied" in finding.text) == ("fail", True)


def steady() -> Callable[[], int]:
    return lambda: 5_000_000_000


@pytest.mark.parametrize("jump_s", [-3600, 0.1])
def test_a_clock_that_jumps_is_told(jump_s: float) -> None:
    times = iter([1_000_000_000, 1_000_000_000 + int(jump_s * 1e9)])
    (finding,) = check_clock(lambda: next(times), steady(), lambda: True)
    assert (finding.level, "the clock jumped by" in finding.text) == ("warn", True)
    assert ("jumped by -" in finding.text) == (jump_s < 0)


@pytest.mark.parametrize(("state", "level"), [(True, "ok"), (None, "ok"), (False, "warn")])
def test_a_clock_that_nothing_keeps_right_is_told(state: bool | None, level: str) -> None:
    (finding,) = check_clock(steady(), steady(), lambda: state)
    assert finding.level == level


def test_the_kernel_says_something_of_its_clock() -> None:
    assert clock_synchronised() in (True, False, None)


def limit(which: int, monkeypatch: pytest.MonkeyPatch, soft: int, hard: int = -1) -> None:
    real = machine.resource.getrlimit
    monkeypatch.setattr(machine.resource, "getrlimit", lambda kind: (soft, hard) if kind == which else real(kind))


@pytest.mark.parametrize(("hard", "level"), [(4096, "warn"), (65536, "ok"), (-1, "ok")])
def test_few_open_files_are_told(monkeypatch: pytest.MonkeyPatch, hard: int, level: str) -> None:
    limit(machine.resource.RLIMIT_NOFILE, monkeypatch, 256, hard)  # a hub asks for as many as it may have
    finding = next(check_limits(Config()))
    assert finding.level == level
    if level == "warn":
        assert "LimitNOFILE=11280" in finding.advice
        assert "4096 open files" in finding.text


def test_the_need_for_files_follows_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(machine.resource.RLIMIT_NOFILE, monkeypatch, 2048)
    assert next(check_limits(Config(limits=Limits(sessions_max=100)))).level == "ok"


@pytest.mark.parametrize(("memory", "level"), [(GIB // 4, "fail"), (GIB, "warn"), (8 * GIB, "ok")])
def test_little_memory_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int, level: str) -> None:
    group = tmp_path / "memory.max"
    group.write_text(f"{memory}\n")
    monkeypatch.setattr(machine, "CGROUP_MEMORY", group)
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PHYS_PAGES": 1 << 22, "SC_PAGE_SIZE": 4096}[name])
    found = list(check_limits(Config()))[1]
    assert (found.level, "the container's or unit's limit" in found.text) == (level, True)


def test_memory_without_a_group_is_the_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = tmp_path / "memory.max"
    group.write_text("max\n")
    monkeypatch.setattr(machine, "CGROUP_MEMORY", group)
    assert machine.memory_bytes()[1] == "the machine's"
    limit(machine.resource.RLIMIT_AS, monkeypatch, 1000)
    assert machine.memory_bytes() == (1000, "ulimit -v")


@pytest.mark.parametrize(("allowed", "levels"), [("1000", ["warn"]), ("65530", ["ok"]), ("?", [])])
def test_few_memory_maps_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: str, levels: list[str]
) -> None:
    file = tmp_path / "max_map_count"
    file.write_text(allowed)
    monkeypatch.setattr(machine, "MAPPINGS", file)
    assert [finding.level for finding in list(check_limits(Config()))[2:]] == levels
