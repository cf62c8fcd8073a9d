"""A process that runs queries, seen from the hub."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from headrace.sql import wire

END_WAIT_S = 10.0


class Process:
    """A process of `worker.py`."""

    def __init__(self, memory_bytes: int, threads: int) -> None:
        ours, theirs = socket.socketpair()
        arguments = [str(theirs.fileno()), str(memory_bytes), str(threads)]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "headrace.sql.worker", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd="/",
                env=_environment(),
                process_group=0,  # Ctrl-C is for the hub, which ends this one
            )
        self.wire = wire.Wire(ours)
        self.idle_since = 0.0

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """End it now; whoever waits for it sees its connection end."""
        self._process.kill()

    def close(self) -> None:
        """Returns when it is gone."""
        self._process.kill()
        self.wire.close()
        self._process.wait(END_WAIT_S)


def _environment() -> dict[str, str]:
    """Nothing of the hub's but where its modules are."""
    return {
        "PYTHONPATH": os.pathsep.join(str(path) for path in sys.path if path),
        "HOME": "/",
        "TZ": "UTC",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "MALLOC_ARENA_MAX": "2",
        "OMP_NUM_THREADS": "1",
    }
