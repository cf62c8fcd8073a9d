"""A program that tests drive and that is not here: brought, left out with a line, or a failure in CI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import test_programs
from support.programs import leave_out, needed_by, needs

TOOL = test_programs.__file__
COMMANDS = [command for program in test_programs.PROGRAMS.values() for command in program.commands]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder that is searched; no CI, no root, and no wish for the Rust client."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(test_programs, "FOLDERS", ())
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for name in ("CI", "HEADRACE_RUST"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def put(folder: Path, name: str, script: str = "exit 0") -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_without_its_program_a_test_is_skipped(commands: Path) -> None:
    with pytest.raises(pytest.skip.Exception) as skipped:
        needs("chromium")
    line = "the console in a browser: no chromium here; to include it: sudo apt-get install chromium libatomic1"
    assert str(skipped.value) == line
    put(commands, "chromium")
    needs("chromium")


@pytest.mark.parametrize("said", ["true", "1"])
def test_in_ci_it_fails(commands: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setenv("CI", said)
    with pytest.raises(pytest.fail.Exception, match="no chromium here"):
        needs("chromium")
    with pytest.raises(pytest.fail.Exception, match="npm cannot fetch"):
        leave_out("npm cannot fetch")
    put(commands, "chromium")
    needs("chromium")


def test_a_program_that_may_not_work_here_is_a_missing_one(commands: Path) -> None:
    """As mounting for anybody but root."""
    put(commands, "strace", "exit 1")
    with pytest.raises(pytest.skip.Exception, match="strace does not work here; to include it: run as somebody"):
        needs("strace")
    put(commands, "strace")
    needs("strace")


def test_what_is_in_nobodys_path_is_found(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (commands / "15" / "bin").mkdir(parents=True)
    monkeypatch.setattr(test_programs, "FOLDERS", (str(commands / "*" / "bin"),))
    assert test_programs.absent("postgresql") == ["initdb", "pg_ctl"]
    for name in ("initdb", "pg_ctl"):
        put(commands / "15" / "bin", name)
    assert test_programs.absent("postgresql") == []
    assert test_programs.find("initdb") == str(commands / "15" / "bin" / "initdb")


def test_one_line_for_each_that_is_missing(commands: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test_programs.main([])
    said = capsys.readouterr().out.splitlines()
    assert len(said) == len(test_programs.PROGRAMS)
    assert all(line.startswith("left out") and "; to include it: " in line for line in said)
    assert "HEADRACE_RUST=1 make test" in said[-1]
    for name in COMMANDS:
        put(commands, name)
    put(commands, "sh")
    test_programs.main([])
    assert capsys.readouterr().out.splitlines() == said[-1:]


def test_in_ci_the_rust_client_is_wanted_and_missing_parts_are_called_so(
    commands: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CI", "true")
    test_programs.main([])
    said = capsys.readouterr().out.splitlines()
    assert len(said) == len(test_programs.PROGRAMS)
    assert all(line.startswith("missing: ") for line in said)


def test_root_gets_what_is_missing(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that cannot be had keeps no other away."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    put(commands, "npm")
    note = f'echo "$*" >> {commands}/asked; for last; do :; done; [ "$last" = nodejs ] || exit 100'
    put(commands, "apt-get", f"{note}; : > {commands}/node; /bin/chmod +x {commands}/node")
    test_programs.main(["chromium", "node", "npm"])
    asked = (commands / "asked").read_text().splitlines()
    assert [line.split()[0] for line in asked] == ["update", "install", "install"]
    assert [line.split()[-1] for line in asked[1:]] == ["libatomic1", "nodejs"]
    assert test_programs.absent("node") == []
    test_programs.main(["node", "npm"])
    assert (commands / "asked").read_text().splitlines() == asked, "nothing is asked for twice"


def test_it_runs_on_a_bare_python_and_never_fails(commands: Path) -> None:
    command = [sys.executable, "-I", "-S", TOOL, "chromium"]
    done = subprocess.run(command, env={"PATH": str(commands)}, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.startswith("left out: the console in a browser: no chromium here")


def test_every_mark_names_something_known(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        needed_by(item)
