"""The helpers of tests/support, where a mistake would make tests pass."""

import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import free_ports
import pytest
from support.early import Early, _is_whole
from support.hub_process import HubProcess
from support.order import COST_OF_FILE, TESTS, longest_files_first
from support.until import until, wait_until


async def test_waiting_ends_with_what_was_found() -> None:
    answers = iter([None, 0, "found", "more"])
    assert await until(lambda: next(answers)) == "found"
    answers = iter([[], ["found"]])
    assert wait_until(lambda: next(answers)) == ["found"]


async def test_waiting_in_vain_says_for_what() -> None:
    with pytest.raises(AssertionError, match="within 0 s this did not happen: the end"):
        wait_until(lambda: False, "the end", 0)
    never_true = 0
    with pytest.raises(AssertionError, match="never_true"):
        await until(lambda: never_true, deadline_s=0)


@pytest.mark.slow
def test_a_hub_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="there is no such setting"), HubProcess(tmp_path, "listen.htpt=off"):
        pass


@pytest.mark.slow
def test_a_hub_that_ends_by_itself_fails_the_test(tmp_path: Path) -> None:
    hub = HubProcess(tmp_path, only=())

    def kill_inside() -> None:
        with hub:
            assert hub.process is not None
            hub.process.kill()

    with pytest.raises(AssertionError):
        kill_inside()


class Item:
    """As much of a test as the order looks at."""

    def __init__(self, path: str, name: str, *marks: str) -> None:
        self.path = TESTS / path
        self.name = name
        self._marks = marks

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self._marks else None


def test_files_with_most_to_wait_for_come_first_and_brokers_by_turns() -> None:
    items: list[Any] = [
        Item("unit/test_quick.py", "1"),
        Item("unit/test_quick.py", "2"),
        Item("faults/test_small.py", "1", "kafka", "slow"),
        Item("unit/test_slow.py", "1", "slow"),
        Item("unit/spark/test_no_jvm.py", "1"),
        Item("faults/test_large.py", "1", "kafka"),
        Item("faults/test_large.py", "2", "kafka"),
        Item("spark/test_jvm.py", "1"),
        Item("spark/test_kill.py", "1"),
    ]
    longest_files_first(items)
    order = [f"{item.path.stem} {item.name}" for item in items]
    assert order == [
        "test_large 1",
        "test_large 2",
        "test_kill 1",
        "test_small 1",
        "test_jvm 1",
        "test_slow 1",
        "test_quick 1",
        "test_quick 2",
        "test_no_jvm 1",
    ]


def test_files_whose_cost_is_known_are_there() -> None:
    assert [name for name in COST_OF_FILE if not (TESTS / name).is_file()] == []


def test_a_port_is_given_once_even_to_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one on which somebody listens to nobody."""
    first, second, third = free_ports.free_ports(3)
    assert len({first, second, third}) == 3
    code = "import free_ports, sys; print(free_ports._take(int(sys.argv[1])))"
    elsewhere = subprocess.run(
        [sys.executable, "-c", code, str(first)],
        cwd=Path(free_ports.__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert elsewhere.stdout == "False\n"
    with socket.create_server((free_ports.HOST, second)):
        assert not free_ports._is_free(second)
    assert free_ports._is_free(second)
    monkeypatch.setattr(free_ports, "FIRST", first)
    monkeypatch.setattr(free_ports, "LAST", first)
    with pytest.raises(RuntimeError, match="only 0 ports"):
        free_ports.free_port()


WHOLE = {"numprocesses": 3, "keyword": "", "markexpr": "", "collectonly": False}
BY_NAME = pytest.Config.ArgsSource.ARGS


@pytest.mark.parametrize(
    ("options", "source", "expected"),
    [
        ({}, pytest.Config.ArgsSource.TESTPATHS, True),
        ({}, BY_NAME, False),
        ({"numprocesses": None}, pytest.Config.ArgsSource.TESTPATHS, False),
        ({"keyword": "cursor"}, pytest.Config.ArgsSource.TESTPATHS, False),
        ({"markexpr": "not slow"}, pytest.Config.ArgsSource.TESTPATHS, False),
    ],
)
def test_only_a_run_of_all_tests_begins_early(
    options: dict[str, Any], source: Any, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    config: Any = SimpleNamespace(option=SimpleNamespace(**WHOLE | options), args_source=source)
    assert _is_whole(config) is expected
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    assert not _is_whole(config)


def test_what_was_begun_early_ends_with_the_tests() -> None:
    early = Early()
    early._start("signal")  # nothing that can be called: it has failed by itself, or is ended
    early._start("make_nothing")
    early.pytest_sessionfinish()
    assert all(process.returncode is not None for process in early._running)
