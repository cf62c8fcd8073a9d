"""`headrace demo` as a process: every protocol's stream fills, others read it, and a second start goes on."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.serving.runtime import LISTENERS

PORTS = [part for name in LISTENERS for part in ("--set", f"listen.{name}=127.0.0.1:0")]
NAMES = {"orders", "readings", "clicks", "prices", "calls"}
LONG_S = 120


def command(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "headrace", "demo", "--data", str(folder), "--no-spark", *PORTS, *arguments]


def run_twice(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two starts over one folder, as long as this machine needs for all streams to be read and positions kept."""
    for seconds in (5, 20, 60):
        first, second = (run_for(folder / str(seconds), seconds) for _ in range(2))
        if all(row["read"] for row in first["flows"]) and all(row["first_read"] for row in second["flows"]):
            break
    return first, second


def run_for(folder: Path, seconds: int) -> dict[str, Any]:
    done = subprocess.run(
        command(folder, "--seconds", str(seconds), "--json"),
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_all_protocols_write_others_read_and_a_second_start_goes_on(tmp_path: Path) -> None:
    first, second = run_twice(tmp_path)
    assert {row["name"] for row in first["flows"]} == NAMES
    assert first["resumed"] is False
    for row in first["flows"]:
        assert row["writer"] != row["reader"]
        assert row["sent"] > 0, row
        assert row["next"] >= row["sent"]
        assert row["read"] > 0, row
        assert row["first_read"] == 0
        assert row["ack_ms"] > 0
        assert row["error"] == ""
    assert second["resumed"] is True
    before = {row["name"]: row for row in first["flows"]}
    for row in second["flows"]:
        assert row["stored_before"] >= before[row["name"]]["next"]
        assert row["next"] > row["stored_before"], "indexes go on"
        assert row["first_read"] > 0, "the consumer's position was kept"
        assert row["first_read"] <= before[row["name"]]["next"], "and nothing was left out"
        assert row["read"] > 0


@pytest.mark.slow
def test_the_console_is_named_first_and_sigterm_ends_it_cleanly(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("console: http://127.0.0.1:"), first
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=LONG_S)
        assert process.returncode == 0, errors
        assert "ended: " in rest
        assert errors == ""
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
