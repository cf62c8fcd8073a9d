"""docs/how-to/cluster.md, performed: its commands against real brokers, up to the failover."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from free_ports import free_ports
from kafka_brokers import Brokers
from support.until import wait_until

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.kafka]

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "cluster.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PORTS = ("8080", "8081", "7070", "7071")
AGAIN_S = 120


class Reader:
    """Somebody who does what the page says."""

    def __init__(self, folder: Path, brokers: Brokers, ports: list[int]) -> None:
        self.folder = folder
        self.hubs: dict[str, subprocess.Popen[bytes]] = {}
        self.printed = ""
        self.last = ""
        self._brokers = brokers
        self._ports = dict(zip(PORTS, ports, strict=True))

    def here(self, text: str) -> str:
        for number, broker in enumerate(self._brokers.brokers):
            text = text.replace(f"127.0.0.1:{9092 + number}", broker.address)
        return re.sub(r"127\.0\.0\.1:(8080|8081|7070|7071)\b", lambda found: f"127.0.0.1:{self._ports[found[1]]}", text)

    def do(self, line: str) -> None:
        words = shlex.split(self.here(line))
        match words:
            case ["make" | "pip", *_]:
                pass
            case ["kafka-acls.sh", *_]:
                pass  # test_kafka_outside.py gives these rights
            case ["headrace", "up", *rest]:
                name = rest[-1].removesuffix(".toml")
                with (self.folder / f"{name}.log").open("wb") as log:
                    command = [sys.executable, "-m", "headrace", "up", *rest]
                    self.hubs[name] = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
                wait_until(lambda: b"headrace is up" in (self.folder / f"{name}.log").read_bytes(), name, AGAIN_S)
            case ["pkill", "-9", "-f", name]:
                hub = self.hubs[name.removesuffix(".toml")]
                hub.send_signal(signal.SIGKILL)
                hub.wait()
            case ["headrace", *rest]:
                try:
                    wait_until(lambda: self._ran(rest), line, AGAIN_S)
                except AssertionError as error:
                    raise AssertionError(f"{error}: {self.printed}") from None
            case _:
                pytest.fail(f"no way to try {line!r}")

    def shows(self, wanted: list[list[str]]) -> bool:
        """Whether the last command prints so; a hub that has just come is known to the others a moment later."""
        self.do(self.last)
        return [line.split()[:2] for line in self.printed.splitlines()[: len(wanted)]] == wanted

    def _ran(self, words: list[str]) -> bool:
        """Whether it worked; the page says to try again while nobody owns the log."""
        done = subprocess.run(
            [sys.executable, "-m", "headrace", *words], cwd=self.folder, capture_output=True, text=True, check=False
        )
        self.printed = done.stdout + done.stderr
        return done.returncode == 0


@pytest.fixture
def reader(brokers: Brokers, tmp_path: Path, unused_ports: list[int]) -> Reader:
    made = Reader(tmp_path, brokers, unused_ports)
    yield made
    for hub in made.hubs.values():
        hub.kill()
        hub.wait()


@pytest.fixture
def unused_ports() -> list[int]:
    return free_ports(len(PORTS))


def test_the_page_leads_to_a_failover(reader: Reader) -> None:
    files = iter(re.findall(r"^`(hub-\d\.toml)`:$", PAGE, re.MULTILINE))
    printed: dict[str, list[str]] = {}
    for language, text in BLOCK.findall(PAGE):
        if language == "toml":
            (reader.folder / next(files)).write_text(reader.here(text), encoding="utf-8")
        elif language == "sh":
            for line in text.replace("\\\n", "").splitlines():
                reader.do(line)
                reader.last = line
                printed.setdefault(" ".join(shlex.split(line)[:3]), []).append(reader.printed)
        else:
            shown = [line.split()[:2] for line in reader.here(text).splitlines()]
            wait_until(partial(reader.shows, shown), f"the other hub is known: {shown}", AGAIN_S)
            assert shown[1] == ["hub-1", "owner"]
    before, after = printed["headrace cluster status"]
    assert "owner hub-1, epoch 1" in before
    assert "owner hub-2, epoch 2" in after
    for word in ("pear", "plum", "quince"):
        assert word in printed["headrace read orders"][0]
