"""Programs as people start them: what they say before they serve, and that they can be stopped then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.until import wait_until

PROGRAM = """
import sys
from headrace.immortals import Immortal, method, run


class Clerk(Immortal):
    done: int = 0

    @method
    def work(self) -> int:
        self.done += 1
        return self.done


run(Clerk, "clerk", sys.argv[1])
"""
STOP_S = 30


@contextmanager
def program(folder: Path, hub: str, name: str) -> Iterator[Any]:
    """A program, and a function that reads what it has said so far."""
    file, said = folder / "clerk.py", folder / f"{name}.txt"
    file.write_text(PROGRAM)
    with said.open("wb") as output:
        process = subprocess.Popen([sys.executable, file, hub], stderr=output)
        try:
            yield process, said.read_text
        finally:
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_without_a_hub_says_so_and_can_be_stopped(tmp_path: Path, number: int) -> None:
    with program(tmp_path, "127.0.0.1:9", "alone") as (process, said):
        wait_until(lambda: "waits for its hub" in said(), "it says what it waits for")
        assert "the hub at 127.0.0.1:9 does not answer" in said()
        os.kill(process.pid, number)
        assert process.wait(STOP_S) == 0


@pytest.mark.slow
def test_a_program_that_stands_by_says_so_and_can_be_stopped(world: Any, tmp_path: Path) -> None:
    with program(tmp_path, world.address, "first") as (_, first):
        wait_until(lambda: "Ctrl-C stops it" in first(), "the first one serves")
        with program(tmp_path, world.address, "second") as (second, said):
            wait_until(lambda: "stands by, and takes over when the program that runs is gone" in said(), "it stands by")
            os.kill(second.pid, signal.SIGTERM)
            assert second.wait(STOP_S) == 0
        assert world.client.immortal("clerk").work() == 1
    world.client.call("immortal.forget", {"name": "clerk"})
