"""A hub as a process that is forked from one which has imported everything: it starts in a fifth of the time.

It is the same program in a process of its own, for tests that start hundreds. Whoever wants to see the start itself
takes `HubProcess`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from multiprocessing.context import ForkServerContext, ForkServerProcess

from support.hub_process import HubProcess

from headrace.serving.runtime import LISTENERS, SERVICES

PRELOADED = [
    "headrace.cli.main",
    "headrace.cli.up",
    "headrace.log.sealer",
    "headrace.log.kafka.confluent",
    "headrace.cluster.node",
    *{entry.partition(":")[0] for entry in (*LISTENERS.values(), *SERVICES.values())},
    "support.forked_start",
]


def _run(arguments: list[str], log: str) -> None:
    """In the forked process."""
    from headrace.cli.main import run

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    sys.argv = ["headrace", *arguments]
    run()


def context() -> ForkServerContext:
    """What makes processes that have imported everything."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(PRELOADED)
    return made


class Forked:
    """As much of `subprocess.Popen` as the keeper of a process needs."""

    def __init__(self, process: ForkServerProcess) -> None:
        """Starts it."""
        process.start()
        self._process = process
        assert process.pid is not None
        self.pid = process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("headrace", timeout or 0.0)
        return code


class ForkedHub(HubProcess):
    """A `HubProcess` whose lives are forked."""

    def launch(self) -> None:
        self.ready.unlink(missing_ok=True)
        process = context().Process(target=_run, args=(self.command()[3:], str(self.log)), daemon=False)
        self.process = Forked(process)  # type: ignore[assignment]
