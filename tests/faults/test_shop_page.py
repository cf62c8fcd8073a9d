"""docs/tutorial-shop.md as its reader performs it: real programs, real kills."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.forked_hub import ForkedHub
from support.until import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "tutorial-shop.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = ("shipping", "shop")
pytestmark = pytest.mark.slow


class Reader:
    """Somebody with a terminal for each program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hub = ForkedHub(folder, only=("flight",))
        self.programs: list[subprocess.Popen[bytes]] = []
        self.expected: str | None = None
        """What the page shows behind the command."""

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "HEADRACE_HUB": self.hub.addresses["flight"]}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", *command]
        return subprocess.run(
            words, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )

    def parcel_token(self) -> str:
        parcels = json.loads(self.run("headrace", "immortal", "call", "shipping", "parcels").stdout)
        return str(parcels["o-1"])

    def obey(self, line: str) -> None:
        match shlex.split(line):
            case ["headrace", "up"]:
                self.hub.start()
            case ["python", program] if program.removesuffix(".py") in PROGRAMS:
                with (self.folder / f"{program}.log").open("ab") as log:
                    command = [sys.executable, program]
                    started = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=log, stderr=log)
                self.programs.append(started)
            case ["pkill", "-9", "-f", "headrace up|shipping.py|shop.py"]:
                self.kill()
            case ["cat", name]:
                wait_until(lambda: (self.folder / name).read_text() == self.expected, line)
            case ["python", "-m", "pytest", *rest]:
                done = self.run("pytest", "-p", "no:cacheprovider", "-W", "ignore", *rest)
                assert done.returncode == 0, done.stdout
            case ["headrace", "immortal", *rest]:
                token = self.parcel_token() if "TOKEN" in rest else ""
                self.call(line, ["headrace", "immortal", *(token if word == "TOKEN" else word for word in rest)])
            case _:
                pytest.fail(f"no way to try {line!r}")

    def call(self, line: str, words: list[str]) -> None:
        if self.expected is None:
            done = wait_until(lambda: (got := self.run(*words)).returncode == 0 and got, line)
            assert done.stderr == ""
        elif self.expected.startswith("error: "):
            done = self.run(*words)
            assert (done.returncode, done.stderr) == (1, self.expected)
        else:
            wanted = json.loads(self.expected)
            wait_until(lambda: (got := self.run(*words)).returncode == 0 and json.loads(got.stdout) == wanted, line)

    def kill(self) -> None:
        if self.hub.process is not None and self.hub.process.poll() is None:
            self.hub.kill()
        for program in self.programs:
            program.kill()
            program.wait()
        self.programs.clear()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.kill()


def test_the_page_does_what_it_says(reader: Reader) -> None:
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    for (language, text), (next_language, following) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if language == "python":
            (reader.folder / text.split()[1]).write_text(text, encoding="utf-8")
        elif language == "sh":
            *before, last = text.splitlines()
            reader.expected = None
            for line in before:
                reader.obey(line)
            reader.expected = following if next_language in ("json", "text") else None
            reader.obey(last)
        else:
            assert language in ("json", "text")
