"""`headrace up` as a process, the way an operator runs it."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

START_S = 30
STOP_S = 60


def command(tmp_path: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "headrace", "up", "--data", str(tmp_path / "data"), *arguments]


def ports_any() -> list[str]:
    from headrace.serving.runtime import LISTENERS

    return [part for name in LISTENERS for part in ("--set", f"listen.{name}=127.0.0.1:0")]


@contextmanager
def running(tmp_path: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, str]]]:
    ready = tmp_path / "ready.json"
    with (tmp_path / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            [*command(tmp_path, *ports_any(), *arguments), "--ready-file", str(ready)], stdout=errors, stderr=errors
        )
    try:
        deadline = time.monotonic() + START_S
        while not ready.exists():
            assert process.poll() is None, (tmp_path / "stderr").read_text()
            assert time.monotonic() < deadline, "not ready in time"
            time.sleep(0.02)
        yield process, json.loads(ready.read_text())
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def get(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
        text: str = answer.read().decode()
        return text


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_hub_comes_up_answers_refuses_a_second_and_stops(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path) as (process, addresses):
        assert json.loads(get(addresses["http"], "/health"))["ready"] is True
        assert "headrace_log_records_total 0.0" in get(addresses["http"], "/metrics")
        assert "/api/v1/hub.info" in json.loads(get(addresses["http"], "/api/openapi.json"))["paths"]

        second = subprocess.run(
            command(tmp_path, *ports_any()), capture_output=True, text=True, timeout=START_S, check=False
        )
        assert second.returncode == 3
        assert f"in use by another hub (process {process.pid})" in second.stderr
        assert "Traceback" not in second.stderr

        process.send_signal(number)
        assert process.wait(STOP_S) == 0
        assert not (tmp_path / "ready.json").exists()
    assert "Traceback" not in (tmp_path / "stderr").read_text()
    with running(tmp_path) as (process, addresses):  # the data directory is free again
        assert json.loads(get(addresses["http"], "/health"))["ready"] is True


@pytest.mark.slow
def test_every_listener_of_the_installation_is_in_the_ready_file_and_on_the_screen(tmp_path: Path) -> None:
    with running(tmp_path) as (_, addresses):
        info_request = urllib.request.Request(
            f"http://{addresses['http']}/api/v1/hub.info", b"{}", {"content-type": "application/json"}
        )
        with urllib.request.urlopen(info_request, timeout=60) as answer:
            info = json.load(answer)
        assert info["listeners"] == addresses
        assert info["process_id"] != os.getpid()
        from headrace.serving.runtime import LISTENERS

        assert set(addresses) | set(info["missing"]) >= set(LISTENERS)
        assert all(not address.endswith(":0") for address in addresses.values())
        shown = (tmp_path / "stderr").read_text()
        assert "headrace is up" in shown
        assert all(address in shown for address in addresses.values())


def test_a_wrong_setting_ends_with_one_line_and_code_2(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, "--set", "listen.htpt=off"), capture_output=True, text=True, timeout=START_S, check=False
    )
    assert done.returncode == 2
    assert done.stderr == (
        "error: flag --set listen.htpt: listen.htpt: there is no such setting; did you mean 'listen.http'?\n"
    )
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_an_open_listener_without_users_is_warned_about(tmp_path: Path) -> None:
    with running(tmp_path, "--set", "listen.http=0.0.0.0:0"):
        assert "anyone who reaches it may read and delete everything" in (tmp_path / "stderr").read_text()
