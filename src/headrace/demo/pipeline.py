"""The pipeline of the demo: a process of `headrace pipeline window-counts`, as anyone would start it."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path

from headrace.demo.flows import COUNTS, SOURCES
from headrace.spark.hub import child_process

WINDOW, DELAY = "10 seconds", "5 seconds"
STOP_S = 20.0
LOG_NAME = "pipeline.log"


def spark_is_there() -> bool:
    """Whether PySpark is installed (extra `spark`)."""
    return importlib.util.find_spec("pyspark") is not None


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
        """Begin."""
        command = [sys.executable, "-m", "headrace", "pipeline", "window-counts", SOURCES]
        command += ["--into", COUNTS, "--by", "stream", "--window", WINDOW, "--delay", DELAY]
        command += ["--hub", self._flight, "--home", str(self._directory / "pipelines"), "--master", "local[2]"]
        with (self._directory / LOG_NAME).open("ab") as output:
            self._process = await child_process.start(command, output=output)

    async def stop(self) -> None:
        """End it, in order if possible."""
        if self._process is not None:
            await child_process.stop(self._process, STOP_S)
