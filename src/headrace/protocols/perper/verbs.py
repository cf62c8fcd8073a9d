"""The admin verbs of the fabric: what `headrace agents` shows."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from headrace.hub.verbs import Nothing
from headrace.pages import Listed
from headrace.protocols.perper.records import REGISTRY_AGENT
from headrace.protocols.perper.scaler import REPORT_S, ProcessInfo

if TYPE_CHECKING:
    from headrace.hub import Hub
    from headrace.protocols.perper.fabric.executions import Reserver
    from headrace.protocols.perper.state import Fabric

RUNNERS_MAX = 1000

Holders = Callable[[], Mapping[tuple[str, str], "Reserver"]]
"""Who has which execution reserved, by work group and execution."""


class AgentInfo(msgspec.Struct, frozen=True):
    """One agent instance, and the process that serves it if a runner told of one."""

    instance: str | None
    agent: str
    process: ProcessInfo | None = None
    runner: str | None = None


class ExecutionsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`agent` narrows the list."""

    agent: str | None = None
    limit: int = 1000


class ExecutionInfo(msgspec.Struct, frozen=True):
    """One execution."""

    execution: str
    agent: str
    instance: str
    delegate: str
    finished: bool
    worker: str | None = None
    """Who has it reserved: the address of a client of the fabric."""
    started_us: int | None = None
    """When it was stored; None for one that is older than this start of the hub."""
    finished_us: int | None = None


class CacheInfo(msgspec.Struct, frozen=True):
    """One cache. `kind` is table, stream, view (of another protocol's stream) or open (not used yet)."""

    name: str
    kind: str
    size: int | None
    listeners: int


class RunnerReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The processes of one `headrace agents run`."""

    runner: str
    processes: list[ProcessInfo]


class FabricVerbs:
    """The handlers."""

    def __init__(self, fabric: Fabric, holders: Holders) -> None:
        self._fabric = fabric
        self._holders = holders
        self._reports: dict[str, tuple[float, list[ProcessInfo]]] = {}

    async def agents(self, request: Nothing) -> list[AgentInfo]:
        """Instances, with their processes; then the processes that belong to no instance."""
        processes: dict[tuple[str, str | None], tuple[ProcessInfo, str]] = {}
        rest: list[AgentInfo] = []
        for runner, (reported_at, reported) in list(self._reports.items()):
            if time.monotonic() - reported_at > 3 * REPORT_S:
                del self._reports[runner]
                continue
            for process in reported:
                if process.instance is None:
                    rest.append(AgentInfo(None, process.agent, process, runner))
                else:
                    processes[process.agent, process.instance] = (process, runner)
        instances = [
            AgentInfo(name, record.instance, *processes.pop((record.instance, name), (None, None)))
            for name, record in self._fabric.executions.of_agent(REGISTRY_AGENT).items()
        ]
        left = [AgentInfo(instance, agent, *process) for (agent, instance), process in processes.items()]
        return instances + left + rest

    async def executions(self, request: ExecutionsQuery) -> list[ExecutionInfo]:
        """Executions, finished ones too until they are removed."""
        book = self._fabric.executions
        workers = {execution: holder.worker for (_, execution), holder in self._holders().items()}
        agents = list(book.agents()) if request.agent is None else [request.agent]
        records = ((agent, name, record) for agent in agents for name, record in book.of_agent(agent).items())
        return [
            ExecutionInfo(
                name, agent, record.instance, record.delegate, record.finished, workers.get(name), *book.times(name)
            )
            for agent, name, record in itertools.islice(records, min(max(0, request.limit), len(book)))
        ]

    async def caches(self, request: Listed) -> Iterable[CacheInfo]:
        """Caches with their kinds and sizes, by name."""
        return (
            CacheInfo(
                entry.name,
                "open" if entry.cache is None else entry.cache.kind,
                entry.cache.size() if entry.cache is not None and entry.cache.ready else None,
                len(self._fabric.listeners.of_stream(entry.name)),
            )
            for entry in sorted(self._fabric.catalogue, key=lambda entry: entry.name)
        )

    async def report(self, request: RunnerReport) -> None:
        """A runner tells of its processes."""
        if request.runner in self._reports or len(self._reports) < RUNNERS_MAX:
            self._reports[request.runner] = (time.monotonic(), request.processes)


def register(hub: Hub, fabric: Fabric, holders: Holders) -> None:
    """Add the verbs, once for a hub."""
    if "agents.list" in hub.verbs:
        return
    verbs = FabricVerbs(fabric, holders)
    hub.verbs.register("agents.list", Nothing, verbs.agents, right="read", summary="Perper agent instances")
    hub.verbs.register(
        "agents.executions", ExecutionsQuery, verbs.executions, right="read", summary="Perper executions"
    )
    hub.verbs.register(
        "agents.caches",
        Listed,
        verbs.caches,
        right="read",
        summary="Perper caches",
        listed_by=lambda each: [each.name],
    )
    hub.verbs.register(
        "agents.report", RunnerReport, verbs.report, right="write", summary="A runner tells of its agent processes"
    )
