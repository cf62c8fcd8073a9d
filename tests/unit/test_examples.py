"""The examples for running a hub as a service agree with the program: commands, options, paths, ports, user."""

import asyncio
import os
import re
import shlex
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import COMMANDS, load_command
from headrace.cli.output import EXIT_LOCKED, EXIT_USAGE
from headrace.config import Limits, Listen
from headrace.config.address import split_address
from headrace.config.load import load
from headrace.serving.http import OWN_PATHS
from headrace.serving.runtime import LISTENERS, run, tell_manager
from headrace.units import parse_seconds

EXAMPLES = Path(__file__).parents[2] / "examples"
ROOT = EXAMPLES.parent
UNIT = (EXAMPLES / "headrace.service").read_text()
CONTAINER = (EXAMPLES / "Containerfile").read_text()
SETTINGS = load(EXAMPLES / "headrace.toml", environment={}).config


def unit(key: str) -> str:
    (value,) = re.findall(rf"^{key}=(.*)$", UNIT, re.MULTILINE)
    return str(value)


def check_command(words: list[str]) -> dict[str, str]:
    """The options of a command line, each known to the command."""
    assert words[0] in COMMANDS
    command: Any = load_command(words[0], COMMANDS[words[0]][0])
    known = {option for parameter in command.params for option in parameter.opts}
    options = dict(zip(words[1::2], words[2::2], strict=True))
    assert set(options) <= known
    return options


def test_the_unit_starts_what_there_is_with_options_it_knows() -> None:
    program, *words = shlex.split(unit("ExecStart"))
    assert program == "/opt/headrace/bin/headrace"
    options = check_command(words)
    assert options["--config"] == "/etc/headrace/headrace.toml"
    assert options["--data"] == f"/var/lib/{unit('StateDirectory')}" == SETTINGS.log.data
    for path in (program.rpartition("/bin/")[0], options["--config"], options["--data"]):
        assert re.search(rf"^#.*{re.escape(path)}\b", UNIT, re.MULTILINE), f"how {path} comes to be is not said"
    assert re.search(rf"^#   useradd .* {unit('User')}$", UNIT, re.MULTILINE)


def test_the_unit_knows_exit_codes_and_times() -> None:
    assert unit("RestartPreventExitStatus").split() == [str(EXIT_USAGE), str(EXIT_LOCKED)]
    assert float(unit("TimeoutStopSec")) > SETTINGS.limits.stop_s == Limits().stop_s
    assert int(unit("LimitNOFILE")) > Limits().sessions_max
    assert unit("Type") == "notify"


@pytest.mark.needs("systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    program = tmp_path / "headrace"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    file = tmp_path / "headrace.service"
    file.write_text(UNIT.replace("/opt/headrace/bin/headrace", str(program)))
    done = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    file.write_text(file.read_text().replace("ProtectSystem=strict", "ProtectSystem=sometimes"))
    done = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True, check=False)
    assert "Failed to parse protect system value" in done.stderr, "the check can fail"


def instructions(name: str) -> list[str]:
    joined = CONTAINER.replace("\\\n", " ")
    return re.findall(rf"^{name} (.*)$", joined, re.MULTILINE)


def test_the_container_copies_what_its_build_needs() -> None:
    sources = [word for line in instructions("COPY") for word in line.split()[:-1]]
    assert all((ROOT / source).exists() for source in sources)
    project = (ROOT / "pyproject.toml").read_text()
    assert 'readme = "README.md"' in project
    assert {"pyproject.toml", "README.md", "src"} <= set(sources)
    (extras,) = re.findall(r"/build\[([\w,]+)]", CONTAINER)
    assert all(f"\n{extra} = [" in project for extra in extras.split(","))


def test_the_container_starts_what_there_is_as_a_user_of_its_own() -> None:
    (entry,) = instructions("ENTRYPOINT")
    program, *words = [str(word) for word in load_json(entry)]
    assert program == "headrace"
    assert check_command(words) == {"--data": instructions("VOLUME")[0]}
    (user,) = instructions("USER")
    assert f"--uid {user} " in CONTAINER
    assert f"--home-dir {instructions('VOLUME')[0]} " in CONTAINER
    assert instructions("STOPSIGNAL") == ["SIGTERM"]


def load_json(text: str) -> list[Any]:
    import json

    found: list[Any] = json.loads(text)
    return found


def test_the_container_exposes_the_ports_that_it_opens() -> None:
    (settings,) = instructions("ENV")
    environment = dict(pair.split("=", 1) for pair in settings.split())
    listen = load(environment=environment).config.listen
    opened = {name for name in LISTENERS if getattr(listen, name) != getattr(Listen(), name)}
    ports = {split_address(getattr(listen, name))[1] for name in opened}
    assert ports == {int(port) for port in instructions("EXPOSE")[0].split()}
    assert ports == {split_address(getattr(Listen(), name))[1] for name in opened}
    (published,) = re.findall(r"^# podman run (.*)$", CONTAINER, re.MULTILINE)
    assert {int(port) for port in re.findall(r":(\d+) ", published)} == ports


def test_the_containers_health_check_asks_what_is_open_to_all() -> None:
    (check,) = instructions("HEALTHCHECK")
    (port, path) = re.findall(r"http://127.0.0.1:(\d+)(/[a-z/]+)", check)[0]
    assert int(port) == split_address(Listen().http)[1]
    assert path == "/health/live"
    assert path.startswith(OWN_PATHS)


def test_the_settings_of_the_example_are_settings() -> None:
    assert SETTINGS.listen.ignite == "off"
    assert SETTINGS.logging.format == "json"
    assert parse_seconds("30s") == float(unit("TimeoutStopSec"))


@pytest.mark.parametrize("abstract", [False, True])
async def test_the_manager_is_told_of_start_and_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        name = f"@headrace-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
        manager.bind("\0" + name[1:] if abstract else name)
        manager.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        flags = [f"listen.{listener}=off" for listener in LISTENERS]
        settings = load(environment={}, flags=[*flags, f"log.data={tmp_path / 'data'}"])
        ready = asyncio.Event()
        running = asyncio.create_task(run(settings, on_ready=lambda runtime: ready.set()))
        await asyncio.wait_for(ready.wait(), 60)
        assert await asyncio.to_thread(manager.recv, 100) == b"READY=1"
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running == 0
        assert manager.recv(100) == b"STOPPING=1"


def test_a_manager_that_does_not_listen_is_no_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "absent"))
    with caplog.at_level("WARNING", "headrace"):
        tell_manager("READY=1")
    assert "could not notify" in caplog.text
    monkeypatch.delenv("NOTIFY_SOCKET")
    tell_manager("READY=1")
