"""Pipelines that someone starts and resets at the hub. Each runs in a process of its own until it ends, is stopped, or
the hub stops; those that should start with the hub stand in its configuration (supervisor.py).

No PySpark here: this runs inside the hub.
"""

from __future__ import annotations

import asyncio
import contextlib
import glob
import importlib.util
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from headrace.admin.requests import Moment
from headrace.errors import BadRequest, Busy
from headrace.log.ops import Op, SaveCursor
from headrace.spark.hub.checkpoint_paths import checkpoint_of, default_home, directory_name
from headrace.spark.hub.planning import Forget, Planning, ReadPosition
from headrace.spark.hub.registry import ALIVE, PipelineName, PipelineRunning, Registry, Report, Status
from headrace.spark.pipelines import process
from headrace.telemetry.log_lines import fields

if TYPE_CHECKING:
    from headrace.hub import Hub

logger = logging.getLogger("headrace.spark")
RUNS_MAX = 16
"""Each is a Java process."""
LOG_DIRECTORY = "spark-runs"
LOG_SHOWN_BYTES = 16 * 1024
STOP_S = 8.0
ENDING_S = 20.0

Launch = Callable[[str], tuple[list[str], dict[str, str]]]
"""The command and the environment of a process that runs one pipeline."""


class PipelineReset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Forget a pipeline's checkpoint. It goes on where its stored results end, or somewhere else in all its streams."""

    name: str
    to: Literal["cursor", "earliest", "latest"] | Moment = "cursor"
    dry_run: bool = False


class PipelineMove(msgspec.Struct, frozen=True):
    """What a reset means for one partition of a stream that the pipeline reads."""

    stream: str
    partition: int
    before: int
    after: int
    read_again: int
    skipped: int


class ResetPlan(msgspec.Struct, frozen=True):
    """What a reset does, or did."""

    name: str
    checkpoint: str
    checkpoint_found: bool
    moves: list[PipelineMove]


class Runs:
    """The processes of one hub."""

    def __init__(self, hub: Hub, registry: Registry, planning: Planning, launch: Launch) -> None:
        self._hub = hub
        self._registry = registry
        self._planning = planning
        self._launch = launch
        self._tasks: dict[str, asyncio.Task[str]] = {}

    def register(self) -> None:
        """Offer the verbs."""
        self._registry.on_stop = self._asked_to_stop
        add = self._hub.verbs.register
        add("pipeline.start", PipelineName, self.start, right="admin", summary="Run a pipeline that is defined here")
        add("pipeline.reset", PipelineReset, self.reset, right="admin", summary="Forget a pipeline's checkpoint")

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
        if status.state in ALIVE or not await self._process_is_gone(name):
            raise PipelineRunning(f"pipeline {name!r} is {status.state}, and its process is at work")
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
        code = await _exit_code(command, environment, log)
        return (await asyncio.to_thread(last_words, log) or f"its process ended with code {code}") if code else ""

    def _ended(self, name: str, task: asyncio.Task[str]) -> None:
        """Also for a task that was cancelled before it began."""
        del self._tasks[name]
        self._registry.apart.discard(name)
        problem = None if task.cancelled() else task.exception()
        error = "" if task.cancelled() else f"it could not be started: {problem}" if problem else task.result()
        self._close_report(name, "failed" if error else "stopped", error)
        logger.info("a pipeline's process ended", extra=fields(pipeline=name, error=error))

    def _close_report(self, name: str, state: str, error: str) -> None:
        """Say how it ended, unless it said so itself."""
        report = self._registry.last_report(name)
        if report is None or report.state in ALIVE:
            known = report or Report(name)
            self._registry.note(msgspec.structs.replace(known, state=state, error=error or known.error))

    async def _process_is_gone(self, name: str) -> bool:
        """A pipeline says that it has stopped some seconds before its process has ended: wait for that."""
        if name in self._tasks:
            await asyncio.wait([self._tasks[name]], timeout=ENDING_S)
        return name not in self._tasks

    def _asked_to_stop(self, name: str) -> None:
        """One that reports ends after its batch; one that does not yet is simply ended."""
        report = self._registry.last_report(name)
        if name in self._tasks and (report is None or report.run == ""):
            self._tasks[name].cancel()

    # -- reset -----------------------------------------------------------------------------------------------------

    async def reset(self, request: PipelineReset) -> ResetPlan:
        """Do it, or only say what it would do."""
        status = await self._registry.status(PipelineName(request.name))
        if not request.dry_run and (status.state in ALIVE or not await self._process_is_gone(request.name)):
            raise PipelineRunning(
                f"pipeline {request.name!r} is {status.state}, and its process is at work; stop it first"
            )
        home = self._hub.config.spark.home
        checkpoint = checkpoint_of(Path(home) if home else default_home(), request.name)
        moves = await self._moves(request)
        plan = ResetPlan(request.name, str(checkpoint), checkpoint.exists(), moves)
        if request.dry_run:
            return plan
        if request.to != "cursor" and moves:
            steps: list[Op] = [SaveCursor(request.name, one.stream, one.after, one.partition, True) for one in moves]
            await self._hub.transact(steps)
            await self._planning.forget(Forget(request.name))
        await asyncio.to_thread(shutil.rmtree, checkpoint, ignore_errors=True)
        logger.info("a pipeline was reset", extra=fields(pipeline=request.name, checkpoint=str(checkpoint)))
        return plan

    async def _moves(self, request: PipelineReset) -> list[PipelineMove]:
        """A pipeline's cursors bear its name."""
        streams = {one.stream for one in self._hub.cursors(glob.escape(request.name))}
        streams |= self._planning.streams_behind(request.name)
        moves = []
        for stream in sorted(streams):
            positions = await self._planning.position(ReadPosition(request.name, stream))
            for partition, before in enumerate(positions):
                if before is not None:
                    moves.append(await self._move(request, stream, partition, before))
        return moves

    async def _move(self, request: PipelineReset, stream: str, partition: int, before: int) -> PipelineMove:
        bounds = self._hub.bounds(stream, partition)
        if isinstance(request.to, Moment):
            after = await self._hub.index_at_time(stream, request.to.time_us, partition)
        else:
            after = {"cursor": before, "earliest": bounds.first, "latest": bounds.next}[request.to]
        read_again = max(0, min(before, bounds.next) - max(after, bounds.first))
        return PipelineMove(stream, partition, before, after, read_again, max(0, after - max(before, bounds.first)))


async def _exit_code(command: list[str], environment: dict[str, str], log: Path) -> int:
    """Run a command to its end, what it says in `log`; its exit code."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        child = await process.start(command, environment=environment, output=output)
    try:
        return await child.wait()
    finally:
        await process.stop(child, STOP_S)


def last_words(log: Path) -> str:
    """Why a process ended, by what it wrote last: its own error, or else its last line."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_SHOWN_BYTES))
        lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("error: ")]
        return (errors or lines or [""])[-1].removeprefix("error: ")
    return ""
