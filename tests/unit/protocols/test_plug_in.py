"""A protocol in a package of its own (examples/lines_protocol) is found by its entry point and is part of the hub."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from support.hub_process import HubProcess

import headrace
from headrace.config.address import split_address
from headrace.protocols import descriptor
from headrace.protocols.descriptor import BUILT_IN, ENTRY_POINTS, BrokenProtocol, protocols

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "lines_protocol"
WAIT_S = 60


def install(site: Path, entries: dict[str, str]) -> str:
    """What pip would leave of the package in `site`, its code apart; the path to run Python with."""
    about = site / "headrace_lines-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: headrace-lines\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in entries.items()]
    (about / "entry_points.txt").write_text("\n".join([f"[{ENTRY_POINTS}]", *lines, ""]))
    return os.pathsep.join([str(site), str(EXAMPLE), str(ROOT / "src")])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return install(tmp_path_factory.mktemp("site"), project["entry-points"][ENTRY_POINTS])


@pytest.fixture(scope="module")
def hub(path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        folder = tmp_path_factory.mktemp("hub")
        with HubProcess(folder, "listen.lines=127.0.0.1:0", "lines.line_bytes_max=100") as running:
            yield running


class Peer:
    """Says a line, hears a line."""

    def __init__(self, hub: HubProcess) -> None:
        self.socket = socket.create_connection(split_address(hub.addresses["lines"]), WAIT_S)
        self.answers = self.socket.makefile("rb")

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *error: object) -> None:
        self.answers.close()
        self.socket.close()

    def ask(self, line: bytes) -> bytes:
        self.socket.sendall(line)
        return self.answers.readline()


def verb(hub: HubProcess, name: str, **asked: Any) -> Any:
    body = json.dumps(asked).encode()
    url = f"http://{hub.addresses['http']}/api/v1/{name}"
    with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=WAIT_S) as answer:
        return json.load(answer)


def command(path: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", *words],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=WAIT_S * 2,
        check=False,
    )


@pytest.mark.slow
def test_a_line_is_durable_and_read_back_through_other_protocols(hub: HubProcess) -> None:
    with Peer(hub) as peer, headrace.connect(hub.addresses["flight"]) as client:
        assert peer.ask(b"append fruit pear\n") == b"ok 0\n"
        assert [record.payload for record in client.read("fruit")] == [b"pear"]
        client.append("fruit", b"plum")
        assert peer.ask(b"read fruit 1\n") == b"record 1 plum\n"
        peer.socket.sendall(b"append fruit fig\r\nappend fruit quince\n")
        assert [peer.answers.readline(), peer.answers.readline()] == [b"ok 2\n", b"ok 3\n"]
        assert [record.payload for record in client.read("fruit", 2)] == [b"fig", b"quince"]


@pytest.mark.slow
def test_errors_are_its_own(hub: HubProcess) -> None:
    with Peer(hub) as peer, headrace.connect(hub.addresses["flight"]) as client:
        assert peer.ask(b"sing\n") == b"error bad-line say `append STREAM TEXT` or `read STREAM INDEX`\n"
        assert peer.ask(b"read nothing 0\n").startswith(b"error unknown-stream ")
        assert peer.ask(b"append words a\n") == b"ok 0\n"
        assert peer.ask(b"read words 7\n") == b"error no-record words has no record 7\n"
        client.append("words", b"two\nlines")
        assert peer.ask(b"read words 1\n") == b"error not-a-line record 1 has more than one line\n"
        assert peer.ask(b"append words " + b"x" * 100 + b"\n").startswith(b"error too-long ")
        assert peer.answers.read() == b""


@pytest.mark.slow
def test_metrics_documents_and_console_have_it(hub: HubProcess) -> None:
    with Peer(hub) as peer:
        assert peer.ask(b"append shown text\n") == b"ok 0\n"
        [session] = verb(hub, "console.sessions", text="lines")["rows"]
        assert session["places"] == [{"machine": "lines/connection", "what": "connection", "state": "ready"}]
        with urlopen(f"http://{hub.addresses['http']}/metrics", timeout=WAIT_S) as page:
            metrics = page.read().decode()
        assert 'headrace_lines_total{command="append"}' in metrics
        assert 'headrace_sessions{protocol="lines"} 1.0' in metrics
    server = {"host": hub.addresses["lines"], "protocol": "lines", "title": "Lines of text over TCP"}
    assert verb(hub, "hub.asyncapi")["servers"]["lines"] == server
    [machine] = [one for one in verb(hub, "console.machines") if one["protocol"] == "lines"]
    assert machine["states"] == ["ready", "busy", "ended"]
    frames = {one["protocol"]: one for one in verb(hub, "record.frames", stream="shown", index=0)}
    assert bytes.fromhex(frames["lines"]["hex"]) == b"record 0 text\n"


def test_settings_come_from_everywhere(path: str, tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text('[listen]\nlines = "127.0.0.1:7300"\n[lines]\nline_bytes_max = "2KiB"\n')
    words = ["--json", "--changed", "--config", str(file), "--set", "lines.create_streams=false"]
    done = command(path, "config", "show", *words, HEADRACE_LISTEN__LINES="off")
    assert done.returncode == 0, done.stderr
    assert {each["key"]: each["value"] for each in json.loads(done.stdout)} == {
        "listen.lines": "off",
        "lines.line_bytes_max": 2048,
        "lines.create_streams": False,
    }


def test_a_broken_one_stops_the_start_and_says_what_to_do(tmp_path: Path) -> None:
    path = install(tmp_path / "site", {"lines": "no_such_module:PROTOCOL"})
    done = command(path, "up", "--data", str(tmp_path / "data"))
    assert done.returncode == 1
    assert done.stderr == (
        "error: protocol 'lines' (no_such_module:PROTOCOL) of the package 'headrace-lines' cannot be loaded: "
        "ModuleNotFoundError(\"No module named 'no_such_module'\"); install a version that works with this Headrace, "
        "or `pip uninstall headrace-lines`\n"
    )
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("os:path", "is not a headrace.protocols.descriptor.Protocol"),
        ("headrace.protocols.ockam:PROTOCOL", "is called 'ockam', as another one"),
    ],
)
def test_what_is_no_protocol_or_has_a_name_that_is_taken(
    value: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = metadata.EntryPoint("x", value, ENTRY_POINTS)
    monkeypatch.setattr(descriptor.metadata, "entry_points", lambda group: [entry])
    with pytest.raises(BrokenProtocol, match=problem):
        protocols.__wrapped__()


def test_those_of_headrace_come_first_and_in_their_order() -> None:
    assert tuple(protocol.name for protocol in protocols())[: len(BUILT_IN)] == BUILT_IN
