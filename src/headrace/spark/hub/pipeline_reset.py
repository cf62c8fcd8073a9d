"""A pipeline that begins anew: its checkpoint is forgotten, and its cursors are moved in all its streams at once."""

from __future__ import annotations

import asyncio
import fnmatch
import glob
import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from headrace.admin.cursors import planned_move
from headrace.admin.requests import Moment
from headrace.errors import BadRequest
from headrace.log.ops import Op, SaveCursor
from headrace.security import is_own_cursor
from headrace.spark.hub.pipeline_processes import PipelineProcesses
from headrace.spark.hub.positions import Forget, Positions, ReadPosition
from headrace.spark.hub.registry import PipelineName, Registry
from headrace.spark.pipelines.checkpoints import checkpoint_of, default_home
from headrace.telemetry.log_lines import fields

if TYPE_CHECKING:
    from headrace.hub import Hub

logger = logging.getLogger("headrace.spark")


class PipelineReset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Forget a pipeline's checkpoint. It goes on where its stored results end, or somewhere else in all its streams.

    With `streams` (names or patterns) only in these, and also if it has not reported since the hub started.
    """

    name: str
    to: int | Literal["cursor", "earliest", "latest"] | Moment = "cursor"
    dry_run: bool = False
    streams: list[str] | None = None


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


class Resets:
    """The resets of one hub's pipelines."""

    def __init__(self, hub: Hub, registry: Registry, positions: Positions, processes: PipelineProcesses) -> None:
        self._hub = hub
        self._registry = registry
        self._positions = positions
        self._processes = processes

    def register(self) -> None:
        """Offer the verb."""
        add = self._hub.verbs.register
        add("pipeline.reset", PipelineReset, self.reset, right="admin", summary="Forget a pipeline's checkpoint")

    async def reset(self, request: PipelineReset) -> ResetPlan:
        """Do it, or only say what it would do."""
        name = request.name
        if request.streams is None:
            await self._registry.status(PipelineName(name))  # raises for one that nobody knows
        if not request.dry_run:
            await self._processes.check_ended(name)
        moves = await self._moves(request)
        if request.streams is not None and not moves:
            streams = ", ".join(request.streams)
            raise BadRequest(f"pipeline {name!r} has no cursor in {streams}: it begins where its definition says")
        home = self._hub.config.spark.home
        checkpoint = checkpoint_of(Path(home) if home else default_home(), name)
        plan = ResetPlan(name, str(checkpoint), checkpoint.exists(), moves)
        if request.dry_run:
            return plan
        # First out of the way: with it, a query whose results are forgotten would store them again.
        aside = await asyncio.to_thread(set_aside, checkpoint)
        if request.to != "cursor" and moves:
            steps: list[Op] = [SaveCursor(name, move.stream, move.after, move.partition, True) for move in moves]
            await self._hub.transact(steps)
            await self._positions.forget(Forget(name, sorted({move.stream for move in moves})))
        await asyncio.to_thread(shutil.rmtree, aside, ignore_errors=True)
        logger.info("a pipeline was reset", extra=fields(pipeline=name, checkpoint=str(checkpoint)))
        return plan

    async def _moves(self, request: PipelineReset) -> list[PipelineMove]:
        """A pipeline's cursors bear its name."""
        streams = {cursor.stream for cursor in self._hub.cursors(glob.escape(request.name))}
        streams |= await self._positions.streams_behind(request.name)
        moves = []
        for stream in sorted(streams):
            if not _is_among(stream, request.streams) or not self._positions.named(stream):
                continue
            if is_own_cursor(request.name, stream):
                continue
            positions = await self._positions.position(ReadPosition(request.name, stream))
            for partition, before in enumerate(positions):
                if before is None:
                    continue
                if request.to == "cursor":
                    moves.append(PipelineMove(stream, partition, before, before, 0, 0))
                else:
                    move = await planned_move(self._hub, stream, partition, before, request.to)
                    moves.append(PipelineMove(stream=stream, **msgspec.structs.asdict(move)))
        return moves


def set_aside(checkpoint: Path) -> Path:
    """Give a checkpoint, if there is one, a name under which nobody finds it."""
    aside = checkpoint.with_name(f".{checkpoint.name}.reset")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        checkpoint.rename(aside)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise BadRequest(
            f"the checkpoint {checkpoint} cannot be removed ({error.strerror}); nothing was reset"
        ) from error
    return aside


def _is_among(stream: str, patterns: list[str] | None) -> bool:
    return patterns is None or stream in patterns or any(fnmatch.fnmatchcase(stream, pattern) for pattern in patterns)
