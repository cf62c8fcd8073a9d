"""The pipeline of the demo: a process of `headrace pipeline window-counts`, as anyone would start it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib.util
import os
import signal
import sys
from pathlib import Path

from headrace.demo.flows import COUNTS, SOURCES

WINDOW, DELAY = "10 seconds", "5 seconds"
STOP_S = 20.0
LOG_NAME = "pipeline.log"
SET_PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


def spark_is_there() -> bool:
    """Whether PySpark is installed (extra `spark`)."""
    return importlib.util.find_spec("pyspark") is not None


def _end_with_parent() -> None:
    """Runs in the new process: when the demo is killed, Spark is told to stop too. Only Linux can do this."""
    assert _libc is not None
    _libc.prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None  # here, since the new process should load nothing


class PipelineProcess:
    """Starts it, and ends it with everything it started."""

    def __init__(self, directory: Path, flight: str) -> None:
        self._directory = directory
        self._flight = flight
        self._process: asyncio.subprocess.Process | None = None

    @property
    def state(self) -> str:
        """In a word or two, for when the pipeline has not reported anything itself."""
        if self._process is None:
            return "off"
        code = self._process.returncode
        return "starting" if code is None else f"ended with code {code}, see {self._directory / LOG_NAME}"

    async def start(self) -> None:
        """In a session of its own: Ctrl-C reaches us, and we end it in order."""
        command = [sys.executable, "-m", "headrace", "pipeline", "window-counts", SOURCES]
        command += ["--into", COUNTS, "--by", "stream", "--window", WINDOW, "--delay", DELAY]
        command += ["--hub", self._flight, "--home", str(self._directory / "pipelines"), "--master", "local[2]"]
        with (self._directory / LOG_NAME).open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=None if _libc is None else _end_with_parent,
            )

    async def stop(self) -> None:
        """After the batch that runs; what does not end in time is killed, its Java process too."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its group, of which nothing should be left
        await process.wait()
