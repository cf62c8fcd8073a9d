"""Pipelines that someone starts at the hub. Each runs in a process of its own until it ends, is stopped, or the hub
stops; those that should start with the hub stand in its configuration (supervisor.py)."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import BadRequest, Busy
from headrace.spark.hub import child_process
from headrace.spark.hub.registry import ALIVE, PipelineName, PipelineRunning, Registry, Status
from headrace.spark.pipelines.checkpoints import directory_name
from headrace.spark.pipelines.report import Report
from headrace.telemetry.log_lines import fields

if TYPE_CHECKING:
    from headrace.hub import Hub

logger = logging.getLogger("headrace.spark")
RUNS_MAX = 16
"""Each is a Java process."""
LOG_DIRECTORY = "spark-runs"
LOG_SHOWN_BYTES = 16 * 1024
ENDING_S = 20.0

Launch = Callable[[str], tuple[list[str], dict[str, str]]]
"""The command and the environment of a process that runs one pipeline."""


class PipelineProcesses:
    """The processes of one hub."""

    def __init__(self, hub: Hub, registry: Registry, launch: Launch) -> None:
        self._hub = hub
        self._registry = registry
        self._launch = launch
        self._tasks: dict[str, asyncio.Task[str]] = {}

    def register(self) -> None:
        """Offer the verbs."""
        self._registry.on_stop = self._asked_to_stop
        self._registry.on_refused = self._refused
        add = self._hub.verbs.register
        add("pipeline.start", PipelineName, self.start, right="admin", summary="Run a pipeline that is defined here")

    async def close(self) -> None:
        """End them all, each after its batch."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def start(self, request: PipelineName) -> Status:
        """Begin; the pipeline reports by itself when Spark is up."""
        name = request.name
        status = await self._registry.status(request)
        if status.definition is None:
            raise BadRequest(f"pipeline {name!r} is not defined at this hub; start it where it ran")
        await self.check_ended(name)
        if len(self._tasks) >= RUNS_MAX:
            raise Busy(f"{RUNS_MAX} pipelines run in processes of this hub; stop one, or run this one elsewhere")
        if importlib.util.find_spec("pyspark") is None:
            raise BadRequest("PySpark is not installed where the hub runs: pip install 'headrace[spark]'")
        command, environment = self._launch(name)
        self._registry.apart.add(name)
        self._registry.note(Report(name, state="starting"))
        task = asyncio.create_task(self._run(name, command, environment), name=f"pipeline {name}")
        task.add_done_callback(lambda done: self._ended(name, done))
        self._tasks[name] = task
        return await self._registry.status(request)

    async def _run(self, name: str, command: list[str], environment: dict[str, str]) -> str:
        """Why it failed; nothing if it ended well."""
        log = Path(self._hub.config.log.data) / LOG_DIRECTORY / f"{directory_name(name)}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            code = await child_process.run(command, environment, output)
        return (await asyncio.to_thread(last_words, log) or f"its process ended with code {code}") if code else ""

    def _ended(self, name: str, task: asyncio.Task[str]) -> None:
        """Also for a task that was cancelled before it began."""
        del self._tasks[name]
        self._registry.apart.discard(name)
        problem = None if task.cancelled() else task.exception()
        error = "" if task.cancelled() else f"it could not be started: {problem}" if problem else task.result()
        report = self._registry.last_report(name)
        if report is not None and report.state in ALIVE:  # otherwise it has said itself how it ended
            state = "failed" if error else "stopped"
            self._registry.note(msgspec.structs.replace(report, state=state, error=error or report.error))
        logger.info("a pipeline's process ended", extra=fields(pipeline=name, error=error))

    async def check_ended(self, name: str) -> None:
        """Refuse a pipeline that is at work. It says that it has stopped some seconds before its process has ended:
        wait for that."""
        state = self._registry.state(name)
        if state not in ALIVE and name in self._tasks:
            await asyncio.wait([self._tasks[name]], timeout=ENDING_S)
        if state in ALIVE or name in self._tasks:
            raise PipelineRunning(f"pipeline {name!r} is {state}, and its process is at work; stop it first")

    def _refused(self, name: str) -> None:
        """All that it would do now is to be refused."""
        if name in self._tasks:
            self._tasks[name].cancel()

    def _asked_to_stop(self, name: str) -> None:
        """One that reports ends after its batch; one that does not yet is simply ended."""
        report = self._registry.last_report(name)
        if name in self._tasks and (report is None or report.run == ""):
            self._tasks[name].cancel()


def last_words(log: Path) -> str:
    """Why a process ended, by what it wrote last: its own error, or else its last line."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_SHOWN_BYTES))
        lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("error: ")]
        return (errors or lines or [""])[-1].removeprefix("error: ")
    return ""
