"""Which tests run, and who gets a second try: a handful, in a run of all of them, in CI."""

from pathlib import Path

import pytest
import run_tests

UNSTEADY = """
import pathlib

def test_steady():
    pass

def test_unsteady():
    seen = pathlib.Path("seen")
    first = not seen.exists()
    seen.touch()
    assert not first
"""
BROKEN = """
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_broken(number):
    assert False
"""


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(run_tests, "TOGETHER", ("-p", "no:xdist"))


LONG = """
import pytest

@pytest.mark.long
def test_long():
    pass

def test_short():
    pass
"""


def tries(tmp_path: Path, text: str, *arguments: str) -> int:
    (tmp_path / "test_it.py").write_text(text)
    return run_tests.run(tmp_path / "cache", list(arguments))


@pytest.mark.slow
def test_what_passes_alone_is_named_and_no_failure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tries(tmp_path, UNSTEADY) == 0
    shown = capfd.readouterr().out
    assert "1 failed, 1 passed" in shown
    assert shown.rstrip().endswith("test_it.py::test_unsteady")
    assert "unsteady" in shown


@pytest.mark.slow
def test_what_fails_again_fails_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tries(tmp_path, UNSTEADY + BROKEN.format(count=1)) == 1
    assert "1 failed, 1 passed" in capfd.readouterr().out.splitlines()[-1]


@pytest.mark.slow
def test_many_failures_are_no_bad_luck(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tries(tmp_path, BROKEN.format(count=run_tests.UNSTEADY_TESTS_MAX + 1)) == 1
    assert "once more" not in capfd.readouterr().out


@pytest.mark.slow
def test_some_tests_asked_for_by_name_have_one_try(tmp_path: Path) -> None:
    assert tries(tmp_path, UNSTEADY, "test_it.py") == 1


@pytest.mark.slow
def test_outside_ci_there_is_one_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI")
    assert tries(tmp_path, UNSTEADY, "--all") == 1


@pytest.mark.slow
def test_long_tests_are_left_out_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long")
    assert tries(tmp_path, LONG) == 0
    assert "2 passed" in capfd.readouterr().out
    monkeypatch.delenv("CI")
    assert tries(tmp_path, LONG) == 0
    shown = capfd.readouterr().out
    assert "1 passed, 1 deselected" in shown
    assert "`make test-all`" in shown.splitlines()[-1]
    for asked in (["--all"], ["-k", "test_"]):
        assert tries(tmp_path, LONG, *asked) == 0
        assert "2 passed" in capfd.readouterr().out


@pytest.mark.slow
def test_a_run_that_cannot_begin_has_one_try(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tries(tmp_path, "") == 5
    assert "once more" not in capfd.readouterr().out
