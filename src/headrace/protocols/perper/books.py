"""What the fabric knows beside the bytes in the caches: executions, listeners, and who waits for which of them to
change.

Both books are folds of their cache's table. They change only when the change is on disk, in the order of the log, and
before the client that made the change gets its answer; so whatever is announced over gRPC can be read over Ignite.
"""

from __future__ import annotations

import logging
from asyncio import Future
from collections.abc import Callable
from typing import NamedTuple

from headrace.hub.waiters import Waiters
from headrace.protocols.perper.records import Execution, StreamListener

logger = logging.getLogger("headrace.perper")

# (execution id, the record before or None, the record now or None)
ExecutionWatcher = Callable[[str, Execution | None, Execution | None], None]


class Times(NamedTuple):
    """When an execution was stored and when it finished."""

    started_us: int | None
    finished_us: int | None


class Executions:
    """All executions, by id and by agent, and those who watch them."""

    def __init__(self, now_us: Callable[[], int] = lambda: 0) -> None:
        self._now_us = now_us
        self._all: dict[str, Execution] = {}
        self._times: dict[str, Times] = {}
        self._by_agent: dict[str, dict[str, Execution]] = {}
        self._watchers: dict[str, dict[ExecutionWatcher, None]] = {}  # told in the order they came
        self._finished = Waiters()

    def __len__(self) -> int:
        return len(self._all)

    def ids(self) -> list[str]:
        """All of them."""
        return list(self._all)

    def get(self, execution: str) -> Execution | None:
        """The record of an execution."""
        return self._all.get(execution)

    def of_agent(self, agent: str) -> dict[str, Execution]:
        """The executions of an agent, finished ones too, in the order they came."""
        return self._by_agent.get(agent, {})

    def times(self, execution: str) -> Times:
        """When it was stored and when it finished, as far as this start of the hub has seen it."""
        return self._times.get(execution, Times(None, None))

    def agents(self) -> dict[str, int]:
        """How many executions each agent has."""
        return {agent: len(records) for agent, records in self._by_agent.items()}

    def apply(self, execution: str, now: Execution | None) -> None:
        """A record was put or removed."""
        self.tell(execution, self.note(execution, now), now)

    def note(self, execution: str, now: Execution | None) -> Execution | None:
        """Write down the record an execution has now. The one it had before, for `tell`."""
        before = self._all.get(execution)
        if before is not None and (now is None or now.agent != before.agent):
            del self._by_agent[before.agent][execution]
            if not self._by_agent[before.agent]:
                del self._by_agent[before.agent]
        if now is None:
            self._all.pop(execution, None)
            self._times.pop(execution, None)
        else:
            self._note_time(execution, before, now)
            self._all[execution] = now
            self._by_agent.setdefault(now.agent, {})[execution] = now
        return before

    def tell(self, execution: str, before: Execution | None, now: Execution | None) -> None:
        """Those who wait for the execution or watch its agent hear of the change."""
        if now is None or now.finished:
            self._finished.notify(execution)
        agents = {record.agent for record in (before, now) if record is not None}
        for agent in agents:
            for watcher in tuple(self._watchers.get(agent, ())):
                try:
                    watcher(execution, before, now)
                except Exception:  # one listener's trouble is not the others'
                    logger.exception("could not notify a listener of execution %r", execution)

    def _note_time(self, execution: str, before: Execution | None, now: Execution) -> None:
        times = Times(self._now_us(), None) if before is None else self.times(execution)
        if now.finished and (before is None or not before.finished):
            times = times._replace(finished_us=self._now_us())
        self._times[execution] = times

    def forget_times(self) -> None:
        """What was read at the start is older than that, nobody knows how much."""
        self._times.clear()

    def watch(self, agent: str, watcher: ExecutionWatcher) -> Callable[[], None]:
        """Hear of every change to the agent's executions; the result ends it."""
        self._watchers.setdefault(agent, {})[watcher] = None

        def stop() -> None:
            watchers = self._watchers.get(agent)
            if watchers is not None:
                watchers.pop(watcher, None)
                if not watchers:
                    del self._watchers[agent]

        return stop

    def finished(self, execution: str) -> Future[None] | None:
        """A future for the end of an execution; None when it has ended or is not there."""
        record = self._all.get(execution)
        if record is None or record.finished:
            return None
        return self._finished.future(execution)


class Listeners:
    """All stream listeners, by stream."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._all: dict[str, StreamListener] = {}
        self._by_stream: dict[str, dict[str, int]] = {}
        self._attached = Waiters()
        self._changed = changed

    def __len__(self) -> int:
        return len(self._all)

    def ids(self) -> list[str]:
        """All of them."""
        return list(self._all)

    def get(self, listener: str) -> StreamListener | None:
        """The record of a listener."""
        return self._all.get(listener)

    def of_stream(self, stream: str) -> dict[str, int]:
        """Position by listener."""
        return self._by_stream.get(stream, {})

    def streams(self) -> list[str]:
        """The streams that have listeners."""
        return list(self._by_stream)

    def apply(self, listener: str, now: StreamListener | None) -> None:
        """A record was put or removed."""
        before = self._all.pop(listener, None)
        if before is not None and (now is None or now.stream != before.stream):
            positions = self._by_stream[before.stream]
            del positions[listener]
            if not positions:
                del self._by_stream[before.stream]
            self._changed(before.stream)
        if now is not None:
            self._all[listener] = now
            self._by_stream.setdefault(now.stream, {})[listener] = now.position
            self._attached.notify(now.stream)
            self._changed(now.stream)

    def attached(self, stream: str) -> Future[None] | None:
        """A future for the first listener of a stream; None when there is one."""
        if stream in self._by_stream:
            return None
        return self._attached.future(stream)
