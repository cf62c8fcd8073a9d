"""A child process that runs Spark: it ends with its parent, and nothing that it started is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import IO

SET_PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""
STOP_S = 8.0

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None  # here, since the new process should load nothing


def _end_with_parent() -> None:
    """Runs in the new process: when the parent is killed, Spark is told to stop too. Only Linux can do this."""
    assert _libc is not None
    _libc.prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)


async def start(
    command: Sequence[str], *, environment: Mapping[str, str] | None = None, output: IO[bytes] | None = None
) -> asyncio.subprocess.Process:
    """In a session of its own: Ctrl-C reaches the parent, which ends the child in order."""
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=environment,
        start_new_session=True,
        preexec_fn=None if _libc is None else _end_with_parent,
    )


async def stop(process: asyncio.subprocess.Process, grace_s: float) -> None:
    """After the batch that runs; what does not end in time is killed, its Java process too."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), grace_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # its group, of which nothing should be left
    await process.wait()


async def run(command: Sequence[str], environment: Mapping[str, str], output: IO[bytes] | None = None) -> int:
    """Run a command to its end; its exit code. Whoever cancels this ends the command."""
    child = await start(command, environment=environment, output=output)
    try:
        return await child.wait()
    finally:
        await stop(child, STOP_S)
