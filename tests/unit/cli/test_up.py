"""`headrace up` as a process, the way an operator runs it."""

import json
import os
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest
from support.hub_process import START_S, HubProcess

from headrace.cli.up import _announce
from headrace.config import Config, Tls, TlsFiles
from headrace.security import Security
from headrace.serving.runtime import LISTENERS, Announced


def get(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
        text: str = answer.read().decode()
        return text


FILES = {"certificate": "c.pem", "key": "k.pem"}


@pytest.mark.parametrize(
    ("tls", "shown"),
    [
        (Tls(), "http://127.0.0.1:8080/"),
        (Tls(**FILES), "https://127.0.0.1:8080/"),
        (Tls(listeners={"http": TlsFiles(**FILES)}), "https://127.0.0.1:8080/"),
        (Tls(listeners={"ignite": TlsFiles(**FILES)}), "http://127.0.0.1:8080/"),
    ],
)
def test_the_banner_has_the_scheme_of_the_listener(
    tls: Tls, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config(tls=tls)
    addresses = {"http": "127.0.0.1:8080", "ignite": "127.0.0.1:10800"}
    _announce(Announced(config, addresses, Security(config, tmp_path), []))
    words = capsys.readouterr().err.split()
    assert shown in words
    assert "127.0.0.1:10800" in words


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_hub_comes_up_answers_refuses_a_second_and_stops(tmp_path: Path, number: signal.Signals) -> None:
    with HubProcess(tmp_path) as hub:
        assert json.loads(get(hub.addresses["http"], "/health"))["ready"] is True
        assert "headrace_log_records_total 0.0" in get(hub.addresses["http"], "/metrics")
        assert "/api/v1/hub.info" in json.loads(get(hub.addresses["http"], "/api/openapi.json"))["paths"]

        other = HubProcess(tmp_path / "other")
        other.data = hub.data
        second = subprocess.run(other.command(), capture_output=True, text=True, timeout=START_S, check=False)
        assert second.returncode == 3
        assert f"in use by another hub (process {hub.pid})" in second.stderr
        assert "Traceback" not in second.stderr

        assert hub.stop(number) == 0
        assert not hub.ready.exists()
    assert "Traceback" not in hub.log.read_text()
    with HubProcess(tmp_path) as hub:  # the data directory is free again
        assert json.loads(get(hub.addresses["http"], "/health"))["ready"] is True


@pytest.mark.slow
def test_every_listener_of_the_installation_is_in_the_ready_file_and_on_the_screen(tmp_path: Path) -> None:
    with HubProcess(tmp_path) as hub:
        addresses = hub.addresses
        info_request = urllib.request.Request(
            f"http://{addresses['http']}/api/v1/hub.info", b"{}", {"content-type": "application/json"}
        )
        with urllib.request.urlopen(info_request, timeout=60) as answer:
            info = json.load(answer)
        assert info["listeners"] == addresses
        assert info["process_id"] != os.getpid()
        assert set(addresses) | set(info["missing"]) >= set(LISTENERS)
        assert all(not address.endswith(":0") for address in addresses.values())
        shown = hub.log.read_text()
        assert "headrace is up" in shown
        assert all(address in shown for address in addresses.values())


def test_a_wrong_setting_ends_with_one_line_and_code_2(tmp_path: Path) -> None:
    wrong = HubProcess(tmp_path, "listen.htpt=off")
    done = subprocess.run(wrong.command(), capture_output=True, text=True, timeout=START_S, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "error: flag --set listen.htpt: listen.htpt: there is no such setting; did you mean 'listen.http'?\n"
    )
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_an_open_listener_without_users_is_warned_about(tmp_path: Path) -> None:
    with HubProcess(tmp_path, "listen.http=0.0.0.0:0") as hub:
        assert "anyone who reaches it may read and delete everything" in hub.log.read_text()
