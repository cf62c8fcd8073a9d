"""README's "Open it to others", run as it stands: one hub with its records, secured, and another user on it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from free_ports import free_port
from support.hub_process import START_S, STOP_S
from support.until import wait_until

from headrace.serving.runtime import LISTENERS

README = Path(__file__).parents[2] / "README.md"


def shell(line: str, folder: Path, home: str) -> list[str]:
    return ["env", "-C", str(folder), f"XDG_CONFIG_HOME={folder / home}", "sh", "-c", line]


def run(line: str, folder: Path, home: str) -> str:
    done = subprocess.run(shell(line, folder, home), capture_output=True, text=True, timeout=START_S, check=False)
    assert done.returncode == 0, f"{line}: {done.stderr}"
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_hub_one_has_is_secured_and_another_user_connects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = README.read_text(encoding="utf-8").partition("## Open it to others")[2].partition("\n## ")[0]
    first, second = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "headrace"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m headrace "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    port = str(free_port())
    first, second = (text.replace("7070", port) for text in (first, second))
    *prepare, up = first.strip().splitlines()
    for name in LISTENERS:
        if name != "flight":
            monkeypatch.setenv(f"HEADRACE_LISTEN__{name.upper()}", "off")

    for line in prepare:
        run(line, tmp_path, "operator")
    assert shutil.which("headrace") == str(command)
    output = tmp_path / "hub.log"
    with output.open("wb") as log:
        hub = subprocess.Popen(shell(f"exec {up}", tmp_path, "operator"), stdout=log, stderr=log)
    try:
        wait_until(lambda: "headrace is up" in output.read_text() or hub.poll() is not None, "the hub is up", START_S)
        banner = output.read_text()
        assert f"grpc+tls://0.0.0.0:{port}" in banner
        assert "data in headrace-data" in banner
        assert "WARNING" not in banner
        told = [run(line, tmp_path, "alice") for line in second.strip().splitlines()]
        assert "you are alice, writer" in told[0]
        assert "1 pear" in told[-1]
        stranger = subprocess.run(
            shell(f"headrace stream ls --hub localhost:{port} --ca tls/certificate.pem", tmp_path, "stranger"),
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )
        assert stranger.returncode == 1
        assert "--token" in stranger.stderr
    finally:
        hub.terminate()
        hub.wait(STOP_S)
