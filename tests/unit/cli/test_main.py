import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from headrace import __version__
from headrace.cli import main

Command = Callable[..., SimpleNamespace]


def test_help_lists_the_commands_that_are_there(headrace: Command) -> None:
    shown = headrace("--help").out
    assert "Start a hub." in shown
    listed = {line.split()[1] for line in shown.splitlines() if line.startswith("│ ") and len(line.split()) > 2}
    assert {name for name in main.COMMANDS if main.available(name)} == listed & set(main.COMMANDS)


def test_help_imports_no_command() -> None:
    script = """
import sys
from headrace.cli.main import run
sys.argv = ["headrace", "--help"]
try:
    run()
except SystemExit:
    print([name for name in sys.modules if name in ("pyarrow", "uvicorn", "starlette", "headrace.cli.up")])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_version(headrace: Command) -> None:
    assert headrace("--version").out == f"headrace {__version__}\n"


def test_an_unknown_command_is_a_usage_error(headrace: Command) -> None:
    result = headrace("strem")
    assert result.code == 2
    assert "strem" in result.err


def test_a_command_whose_module_is_missing_breaks_no_other(headrace: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(main.COMMANDS, "gone", ("headrace.cli.no_such_module", "Not here."))
    assert "gone" not in headrace("--help").out
    assert headrace("gone").code == 2


def test_a_reader_that_goes_away_is_no_error(headrace: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(main, "app", broken)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(flush=lambda: None, fileno=lambda: 1))
    assert headrace().code == 0


def test_ctrl_c_ends_with_its_own_code(headrace: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "app", interrupted)
    assert headrace().code == 130


def test_every_available_noun_has_help(headrace: Command) -> None:
    for name in filter(main.available, main.COMMANDS):
        result = headrace(name, "--help")
        assert (result.code, "Usage" in result.out) == (0, True), name
