"""The process of the demo's pipeline, with a stand-in for Spark."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from support.until import until

from headrace.demo import pipeline
from headrace.demo.pipeline import LOG_NAME, PipelineProcess


def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> None:
    program = tmp_path / "spark"
    program.write_text(f"#!{sys.executable}\n{script}")
    program.chmod(0o755)
    monkeypatch.setattr(pipeline.sys, "executable", str(program))


async def logged(folder: Path, text: str) -> None:
    await until(lambda: text in (folder / LOG_NAME).read_text())


def is_alive(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


async def test_it_is_told_to_stop_and_what_it_started_goes_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = """
import os, signal, sys, time
child = os.fork()
if not child:
    time.sleep(600)
def stop(number, frame):
    print("stopping", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("child", child, "arguments", sys.argv[1:], flush=True)
time.sleep(600)
"""
    stand_in(monkeypatch, tmp_path, script)
    process = PipelineProcess(tmp_path, "127.0.0.1:7070")
    assert process.state == "off"
    await process.stop()
    await process.start()
    assert process.state == "starting"
    await logged(tmp_path, "]\n")  # all of the line
    text = (tmp_path / LOG_NAME).read_text()
    assert "'window-counts', '*demo*'" in text
    assert "'127.0.0.1:7070'" in text
    await process.stop()
    assert "stopping" in (tmp_path / LOG_NAME).read_text()
    child = int(text.split()[1])
    await until(lambda: not is_alive(child) or _state_of(child) == "Z")
    assert process.state.startswith("ended with code 0")


async def test_one_that_does_not_listen_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(600)"
    )
    stand_in(monkeypatch, tmp_path, script)
    monkeypatch.setattr(pipeline, "STOP_S", 0.1)
    process = PipelineProcess(tmp_path, "127.0.0.1:7070")
    await process.start()
    await logged(tmp_path, "deaf")
    await process.stop()
    assert process.state.startswith(f"ended with code {-signal.SIGKILL}")


async def test_one_that_ends_by_itself_says_where_to_look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch, tmp_path, "raise SystemExit(3)")
    process = PipelineProcess(tmp_path, "127.0.0.1:7070")
    await process.start()
    await until(lambda: process.state != "starting")
    assert process.state == f"ended with code 3, see {tmp_path / LOG_NAME}"
    await process.stop()


def _state_of(number: int) -> Any:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
