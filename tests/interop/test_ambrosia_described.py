"""An immortal in another language, written from the published description alone, through changes of the owner.

The published C and Node bindings are in no package registry, so that no test can fetch them. This one does what the
description asks of a binding: it starts, takes checkpoints, is recovered, and repeats its calls in a recovery.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_ports
from support.fake_cluster import FakeCluster
from support.until import wait_until

PROGRAM = Path(__file__).parent / "ambrosia" / "described.js"
NAMES = ("ping", "pong")
WINDOW = 5
"""Calls on their way at once: with few of them there is time for a takeover before all have come."""
LOG = "immortal/pong/log"
"""Of a stream that gets a record for each call, or for some of them."""
RESULT_S = 240.0

pytestmark = [pytest.mark.slow, pytest.mark.node]


def immortals() -> tuple[str, ...]:
    """Settings for both, with ports that every hub opens when it is the owner."""
    keys = [f"{name}.{way}" for name in NAMES for way in ("receive", "send")]
    ports = (
        f"ambrosia.immortals.{key}=127.0.0.1:{port}" for key, port in zip(keys, free_ports(len(keys)), strict=True)
    )
    return (*ports, *(f"ambrosia.immortals.{name}.checkpoint_log_bytes=2KiB" for name in NAMES))


class Programs:
    """Both, each a process of its own."""

    def __init__(self, folder: Path, settings: tuple[str, ...], calls: int) -> None:
        self._folder = folder
        self._calls = calls
        addresses = dict(setting.split("=") for setting in settings)
        ready = {key.replace(".immortals", ""): at for key, at in addresses.items() if at.startswith("127.")}
        (folder / "immortals.json").write_text(json.dumps(ready))
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        for name, other in (NAMES, NAMES[::-1]):
            words = (name, other, self._folder / "immortals.json", self._result(name), self._calls, WINDOW)
            with (self._folder / f"{name}.log").open("ab") as output:
                command = ["node", str(PROGRAM), *map(str, words)]
                self._running.append(subprocess.Popen(command, stdout=output, stderr=output))

    def _result(self, name: str) -> Path:
        return self._folder / f"{name}.result"

    def _is_done(self) -> bool:
        for name, process in zip(NAMES, self._running, strict=True):
            assert process.poll() is None, (self._folder / f"{name}.log").read_text()[-3000:]
        return all(self._result(name).exists() for name in NAMES)

    def results(self) -> dict[str, Any]:
        wait_until(self._is_done, "all calls have come", RESULT_S)
        return {name: json.loads(self._result(name).read_text()) for name in NAMES}

    def stop(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()


@contextmanager
def running(folder: Path, settings: tuple[str, ...], calls: int) -> Iterator[Programs]:
    programs = Programs(folder, settings, calls)
    try:
        programs.start()
        yield programs
    finally:
        programs.stop()


def check(results: dict[str, Any], calls: int, lives: int) -> None:
    """Every number came once and in order, though both programs have begun again with each owner."""
    for name in NAMES:
        assert (results[name]["last"], results[name]["wrong"]) == (calls, 0), results
        assert results[name]["lives"] >= lives, results


def test_through_a_takeover(tmp_path: Path) -> None:
    calls = 3_000
    settings = immortals()
    with FakeCluster(tmp_path, *settings, only=("http",)) as cluster, running(tmp_path, settings, calls) as programs:
        hub = cluster.hub
        wait_until(lambda: cluster.call(lambda: hub.bounds(LOG).next) > 100, "some calls are logged", RESULT_S)
        cluster.run(cluster.hand_over())
        check(programs.results(), calls, lives=2)
