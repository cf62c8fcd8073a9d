"""Pipelines with a past: what each reported, once a second for some minutes, so that a page can draw it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from headrace.console.alarms import Alarm
from headrace.console.traffic import Traffic
from headrace.hub.verbs import Nothing
from headrace.pages import Listed
from headrace.spark.hub.registry import Status

if TYPE_CHECKING:
    from headrace.hub import Hub

LIST_VERB = "pipeline.list"
KEPT = 180
PIPELINES_MAX = 200
FAILED = {"failed": "has failed", "lost": "has not been heard of"}
"""States in which somebody should look after a pipeline, in words."""

_SOURCES = re.compile(r"stream\(\s*'([^']+)'")


class PipelineSample(msgspec.Struct, frozen=True):
    """A pipeline in one second."""

    rows_per_s: float
    batch_ms: float
    lag: int
    state_bytes: int


class PipelineRow(msgspec.Struct, frozen=True):
    """A pipeline as the page shows it: `history` is oldest first, a second each; `reads` and `writes` are streams."""

    status: Status
    history: list[PipelineSample]
    reads: list[str]
    writes: list[str]


class PipelineViews:
    """The handler, around one hub."""

    def __init__(self, hub: Hub, traffic: Traffic) -> None:
        self._hub = hub
        self._traffic = traffic
        self._histories: dict[str, deque[PipelineSample]] = {}
        self.statuses: list[Status] = []
        """As they were at the last look."""

    def register(self) -> None:
        self._hub.verbs.register(
            "console.pipelines", Nothing, self.pipelines, right="read", summary="Pipelines, with their last minutes"
        )

    async def pipelines(self, asked: Nothing) -> list[PipelineRow]:
        """Those that the hub knows, up to `PIPELINES_MAX`."""
        self.statuses = await self._listed()
        return [
            PipelineRow(each, list(self._histories.get(each.name, ())), sorted(reads), sorted(writes))
            for each, (reads, writes) in zip(self.statuses, self.lineage().values(), strict=True)
        ]

    async def take(self) -> None:
        """Note how each is now; those that nobody knows any more are forgotten."""
        listed = self.statuses = await self._listed()
        self._histories = {status.name: self._histories.get(status.name, deque(maxlen=KEPT)) for status in listed}
        for status in listed:
            report = status.report
            if report is None or status.state != "running":
                sample = PipelineSample(0.0, 0.0, 0 if report is None else report.lag, 0)
            else:
                sample = PipelineSample(report.rows_per_s, report.batch_ms, report.lag, report.state_bytes)
            self._histories[status.name].append(sample)

    def lineage(self) -> dict[str, tuple[set[str], set[str]]]:
        """Pipeline → the streams that it reads and writes: by its definition, and by the batches that it stored."""
        seen = self._traffic.lineage()
        found = {}
        for status in self.statuses:
            reads, writes = seen.get(status.name, (set(), set()))
            if status.definition is not None:
                reads |= set(_SOURCES.findall(status.definition.sql))
                writes |= {status.definition.into} - {""}
            found[status.name] = (reads, writes)
        return found

    def alarms(self) -> Iterator[Alarm]:
        """Of those that should run and do not."""
        for status in self.statuses:
            if status.state in FAILED:
                error = status.report.error.strip().partition("\n")[0] if status.report is not None else ""
                title = f"Pipeline {status.name} {FAILED[status.state]}"
                yield Alarm(f"pipeline/{status.name}", "pipeline", title, error, ["pipelines", status.name])

    async def _listed(self) -> list[Status]:
        if LIST_VERB not in self._hub.verbs:
            return []
        return list(islice(await self._hub.verbs.get(LIST_VERB).handler(Listed()), PIPELINES_MAX))
