"""Who is told of which execution, and who has it reserved.

An *execution feed* tells a call of the executions that match its filter: those there are, then the changes. An
execution is announced once, until it is cancelled: removed, finished, or changed so that it does not match any more.

A *reserved feed* delivers each execution to one worker of a work group only. Delivering takes a permit of the worker
and the execution's lock, both at the same moment, so nobody sits on a lock without the means to work. A lock is given
back when the execution ends or the worker's stream does; then the next worker with a permit gets the execution at
once. Locks live in memory: they are leases on a connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from headrace.protocols.perper.books import Executions
from headrace.protocols.perper.records import Execution

Send = Callable[[dict[str, Any]], None]
START_OF_STREAM = {"startOfStream": True}


class Filter(NamedTuple):
    """Which executions a call wants to hear of; empty means any."""

    agent: str
    instance: str
    delegate: str

    @classmethod
    def of(cls, request: Any) -> Filter:
        """The filter in an ExecutionsRequest."""
        return cls(request.agent, request.instance, request.delegate)

    def matches(self, execution: Execution | None) -> bool:
        """Whether an execution is active and wanted."""
        return (
            execution is not None
            and not execution.finished
            and execution.agent == self.agent
            and self.instance in ("", execution.instance)
            and self.delegate in ("", execution.delegate)
        )


def announcement(execution: str, record: Execution, *, cancelled: bool = False) -> dict[str, Any]:
    """An ExecutionsResponse."""
    return {"instance": record.instance, "delegate": record.delegate, "execution": execution, "cancelled": cancelled}


def snapshot(book: Executions, wanted: Filter) -> list[dict[str, Any]]:
    """All active executions that match."""
    return [
        announcement(name, record) for name, record in book.of_agent(wanted.agent).items() if wanted.matches(record)
    ]


class ExecutionFeed:
    """What the `Executions` call sends."""

    def __init__(self, book: Executions, wanted: Filter, send: Send) -> None:
        self._book = book
        self._wanted = wanted
        self._send = send
        self._announced: set[str] = set()
        self._stop: Callable[[], None] | None = None

    def start(self) -> None:
        """Send what there is, the mark, and from then on the changes."""
        for message in snapshot(self._book, self._wanted):
            self._announced.add(message["execution"])
            self._send(message)
        self._send(START_OF_STREAM)
        self._stop = self._book.watch(self._wanted.agent, self._changed)

    def _changed(self, execution: str, before: Execution | None, now: Execution | None) -> None:
        wanted = self._wanted.matches(now)
        if wanted and execution not in self._announced:
            assert now is not None
            self._announced.add(execution)
            self._send(announcement(execution, now))
        elif not wanted and execution in self._announced:
            assert before is not None
            self._announced.discard(execution)
            self._send(announcement(execution, before, cancelled=True))

    def close(self) -> None:
        """The call is over."""
        if self._stop is not None:
            self._stop()


class Reserver(Protocol):
    """Somebody who wants executions of a work group."""

    worker: str

    def offered(self, execution: str) -> None:
        """The lock of `execution` is free: take it, or leave it."""


Key = tuple[str, str]  # work group, execution


class Reservations:
    """The locks: who holds which execution, and who waits for it."""

    def __init__(self) -> None:
        self._holders: dict[Key, Reserver] = {}
        self._waiting: dict[Key, dict[Reserver, None]] = {}
        self._offering: set[Key] = set()

    def __len__(self) -> int:
        return len(self._holders)

    def take(self, key: Key, who: Reserver) -> bool:
        """Get the lock if it is free; otherwise wait for the offer."""
        if self._holders.setdefault(key, who) is who:
            self.forget(key, who)
            return True
        self._waiting.setdefault(key, {})[who] = None
        return False

    def forget(self, key: Key, who: Reserver) -> None:
        """Wait no longer."""
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.pop(who, None)
            if not waiting:
                del self._waiting[key]

    def release(self, key: Key, who: Reserver) -> None:
        """Give the lock back; it is offered to those who wait, the longest waiting first."""
        if self._holders.get(key) is not who:
            return
        del self._holders[key]
        if key in self._offering:
            return  # by one who was offered it just now: the round below goes on to the next, however many there are
        self._offering.add(key)
        try:
            for other in list(self._waiting.get(key, ())):
                if key in self._holders:
                    return
                other.offered(key[1])
        finally:
            self._offering.discard(key)

    def holders(self) -> dict[Key, Reserver]:
        """A copy, for people who look."""
        return dict(self._holders)


class ReservedFeed:
    """What the `ReservedExecutions` call sends."""

    def __init__(
        self, book: Executions, locks: Reservations, group: str, wanted: Filter, send: Send, worker: str = ""
    ) -> None:
        self.worker = worker
        self._book = book
        self._locks = locks
        self._group = group
        self._wanted = wanted
        self._send = send
        self.permits = 0  # how many executions the worker will still take
        self.delivered: dict[str, None] = {}  # delivered here and not ended
        self._ready: dict[str, None] = {}  # announced, not known to be taken by another
        self._contended: dict[str, None] = {}  # announced, taken by another; its lock will be offered
        self._stop: Callable[[], None] | None = None

    def start(self) -> None:
        """The initial executions are known: say so, and deliver as permits allow."""
        self._send(START_OF_STREAM)
        for name, record in self._book.of_agent(self._wanted.agent).items():
            if self._wanted.matches(record):
                self._ready[name] = None
        self._stop = self._book.watch(self._wanted.agent, self._changed)
        self._deliver()

    def add_permits(self, count: int) -> None:
        """The worker will take so many more."""
        self.permits = min(self.permits + count, 2**64 - 1)
        self._deliver()

    def _deliver(self) -> None:
        while self.permits and self._ready:
            execution = next(iter(self._ready))
            del self._ready[execution]
            self._try(execution)

    def _try(self, execution: str) -> None:
        record = self._book.get(execution)
        # A finished execution is not given to a second worker, however late its lock became free.
        if record is None or not self._wanted.matches(record):
            self._locks.forget((self._group, execution), self)
            return
        if not self._locks.take((self._group, execution), self):
            self._contended[execution] = None
            return
        self.permits -= 1
        self.delivered[execution] = None
        self._send(announcement(execution, record))

    def offered(self, execution: str) -> None:
        """Another worker gave the execution back."""
        self._contended.pop(execution, None)
        if self.permits:
            self._try(execution)
        else:
            self._locks.forget((self._group, execution), self)
            self._ready = {execution: None, **self._ready}

    def _changed(self, execution: str, before: Execution | None, now: Execution | None) -> None:
        if self._wanted.matches(now):
            if execution not in self.delivered and execution not in self._contended:
                self._ready[execution] = None
                self._deliver()
            return
        self._ready.pop(execution, None)
        if execution in self._contended:
            self._contended.pop(execution, None)
            self._locks.forget((self._group, execution), self)
        if execution in self.delivered:
            assert before is not None
            self.delivered.pop(execution, None)
            self._send(announcement(execution, before, cancelled=True))
            self._locks.release((self._group, execution), self)

    def close(self) -> None:
        """The worker is gone: what it had goes to others."""
        if self._stop is not None:
            self._stop()
        self.permits = 0
        for execution in self._contended:
            self._locks.forget((self._group, execution), self)
        self._contended.clear()
        delivered, self.delivered = self.delivered, {}
        for execution in delivered:
            self._locks.release((self._group, execution), self)


class SingleReservation:
    """What the `ReserveExecution` call does: wait for one lock, tell once, hold it until the call ends."""

    def __init__(self, book: Executions, locks: Reservations, group: str, execution: str, worker: str = "") -> None:
        self.worker = worker
        self._book = book
        self._locks = locks
        self._key = (group, execution)
        self.granted: Callable[[bool], None] = lambda active: None

    def start(self) -> None:
        """Ask for the lock. `granted(True)` when it is held; `granted(False)` when the execution is not active."""
        if self._locks.take(self._key, self):
            record = self._book.get(self._key[1])
            self.granted(record is not None and not record.finished)

    def offered(self, execution: str) -> None:
        """The lock became free."""
        self.start()

    def close(self) -> None:
        """The caller is gone."""
        self._locks.forget(self._key, self)
        self._locks.release(self._key, self)
