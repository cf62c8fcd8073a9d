"""Two immortals exchange counted calls while the hub and both services are killed at random."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.forked_hub import ForkedHub

HERE = Path(__file__).parent
CALLS = 50_000  # each way: 100,000 in all
WINDOW = 1_000
KILLS_MIN = 12
KILLING_S = 40  # after this, whatever is left is done in peace
DEADLINE_S = 240


class Processes:
    """The hub and the two services, each started again after it was killed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        immortals = [
            f"ambrosia.immortals.{each}.{setting}"
            for each in ("ping", "pong")
            for setting in ("receive=127.0.0.1:0", "checkpoint_log_bytes=262144")
        ]
        self.hub = ForkedHub(directory, *immortals, only=())
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.kills = dict.fromkeys(("hub", "ping", "pong"), 0)

    def linked(self, name: str) -> Path:
        """The file that appears when a process does its work."""
        return self.hub.ready if name == "hub" else self.directory / f"{name}.linked"

    def start(self, name: str) -> None:
        if name == "hub":
            self.hub.launch()
            assert self.hub.process is not None
            self.running[name] = self.hub.process
            return
        self.linked(name).unlink(missing_ok=True)
        result = str(self.directory / f"{name}.json")
        command = [str(HERE / "ambrosia_service.py"), name, str(self.hub.ready), result, str(CALLS), str(WINDOW)]
        with (self.directory / f"{name}.log").open("ab") as output:
            self.running[name] = subprocess.Popen([sys.executable, *command], stdout=output, stderr=output)

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        assert process.poll() is None, f"{name} ended by itself: {(self.directory / f'{name}.log').read_text()[-4000:]}"
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.kills[name] += 1

    def results(self) -> dict[str, dict[str, object]]:
        found = {}
        for name in ("ping", "pong"):
            path = self.directory / f"{name}.json"
            if path.exists():
                found[name] = json.loads(path.read_text())
        return found


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path)
    try:
        for name in ("hub", "ping", "pong"):
            made.start(name)
        yield made
    finally:
        for process in made.running.values():
            process.kill()
            process.wait()


@pytest.mark.slow
def test_no_call_is_lost_or_repeated_under_fire(processes: Processes) -> None:
    seed = int(os.environ.get("HEADRACE_SEED", "20"))
    chance = random.Random(seed)
    begun = time.monotonic()
    enough = False
    while len(processes.results()) < 2 or not enough:
        taken = time.monotonic() - begun
        assert taken < DEADLINE_S, f"seed {seed}: {processes.kills}, {processes.results()}"
        time.sleep(chance.uniform(0.05, 0.6))  # the moments of the kills, not a wait for luck
        name = chance.choice(["hub", "ping", "pong"])
        at_work = processes.linked(name).exists() or chance.random() < 0.1  # now and then in the middle of a start
        if at_work and (taken < KILLING_S or not enough):
            processes.kill(name)
            processes.start(name)
        enough = sum(processes.kills.values()) >= KILLS_MIN and all(processes.kills.values())
    total = CALLS * (CALLS + 1) // 2
    expected = {"last": CALLS, "total": total, "wrong": []}
    assert processes.results() == {"ping": expected, "pong": expected}, f"seed {seed}: {processes.kills}"
