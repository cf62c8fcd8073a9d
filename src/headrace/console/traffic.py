"""Who writes what and who reads what: records by protocol and stream, heard from the hub's hooks.

Everything here is about now and bounded: what has been silent for some minutes is forgotten, and a hub with more pairs
of protocol and stream than `EDGES_MAX` counts the first of them.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headrace.hub.hooks import Read, Token
from headrace.log.ops import Append, Op, Put, SaveCursor
from headrace.protocols.descriptor import protocols
from headrace.spark.hub.sink_state import SINKS, SinkState

if TYPE_CHECKING:
    from headrace.hub import Hub

EDGES_MAX = 20_000
SILENT_S = 600.0
LOOK_S = 0.9
WEIGHT = 0.4
"""Of the newest second in a rate: it follows quickly, and does not flicker."""


VERBS = "admin API"
"""Whoever comes by the admin verbs: a command, the console, a script."""


@functools.cache
def protocol_labels() -> dict[str, str]:
    """What sessions and hooks call a protocol → its name."""
    return {label: each.name for each in protocols() for label in (each.name, *each.labels)}


def protocol_of(label: str) -> str:
    """The protocol's name; whatever is none came by the admin verbs."""
    return protocol_labels().get(label, VERBS)


class Edge(NamedTuple):
    """A protocol that writes a stream, reads it, or moves a cursor in it."""

    does: str
    who: str
    stream: str


class Count(msgspec.Struct):
    """What went over an edge."""

    total: int = 0
    before: int = 0
    rate: float = 0.0
    used_s: float = 0.0


class Lineage(msgspec.Struct):
    """What a pipeline reads and writes, from the batches that it stored."""

    reads: set[str]
    writes: set[str]
    used_s: float


class Traffic:
    """Counts, from now on."""

    def __init__(self, hub: Hub, now_s: Callable[[], float] | None = None) -> None:
        self._now_s = now_s or time.monotonic
        self._lock = threading.Lock()  # reads end in whatever thread they were done
        self._edges: dict[Edge, Count] = {}
        self._cursors: dict[tuple[str, str], tuple[str, float]] = {}
        self._pipelines: dict[str, Lineage] = {}
        self._looked_s = self._now_s()
        hub.hooks.submit.append(self._submitted)
        hub.hooks.read.append(self._read)

    def _submitted(self, protocol: str, operations: Sequence[Op], token: Token) -> None:
        """What is refused later is counted, too: rates are shares of what a stream really got."""
        written: dict[str, int] = {}
        for operation in operations:
            if type(operation) is Append:
                written[operation.stream] = written.get(operation.stream, 0) + operation.batch.count
            elif type(operation) is SaveCursor:
                self._moved(protocol, operation)
            elif type(operation) is Put and operation.table == SINKS:
                return self._stored(operation.value, written)
        for stream, records in written.items():
            self._count(Edge("write", protocol, stream), records)
        return None

    def _read(self, reading: Read) -> None:
        if reading.records:
            self._count(Edge("read", reading.protocol, reading.stream), reading.records)

    def _count(self, edge: Edge, records: int) -> None:
        with self._lock:
            count = self._edges.get(edge)
            if count is None:
                if len(self._edges) >= EDGES_MAX:
                    return
                count = self._edges[edge] = Count()
            count.total += records
            count.used_s = self._now_s()

    def _moved(self, protocol: str, operation: SaveCursor) -> None:
        key = (operation.cursor, operation.stream)
        with self._lock:
            if key in self._cursors or len(self._cursors) < EDGES_MAX:
                self._cursors[key] = (protocol, self._now_s())

    def _stored(self, state: bytes, written: dict[str, int]) -> None:
        """A batch of a query: its sources are known by the cursor, which is the pipeline's name."""
        with contextlib.suppress(msgspec.MsgspecError):  # whoever stored it says so
            for source in msgspec.msgpack.decode(state, type=SinkState).sources:
                if source.cursor is None:
                    continue
                with self._lock:
                    known = self._pipelines.setdefault(source.cursor, Lineage(set(), set(), 0.0))
                    known.reads.add(source.stream)
                    known.writes.update(written)
                    known.used_s = self._now_s()

    def take(self) -> None:
        """Look, about once a second: rates since the last time; what is silent goes."""
        now_s = self._now_s()
        passed_s = now_s - self._looked_s
        if passed_s < LOOK_S:
            return
        self._looked_s = now_s
        with self._lock:
            self._edges = {edge: count for edge, count in self._edges.items() if now_s - count.used_s < SILENT_S}
            self._cursors = {key: seen for key, seen in self._cursors.items() if now_s - seen[1] < SILENT_S}
            self._pipelines = {name: seen for name, seen in self._pipelines.items() if now_s - seen.used_s < SILENT_S}
            for count in self._edges.values():
                fresh = (count.total - count.before) / passed_s
                count.rate += WEIGHT * (fresh - count.rate)
                count.before = count.total

    def edges(self) -> Iterator[tuple[Edge, float]]:
        """Every edge that was used of late, and its records per second."""
        with self._lock:
            found = [(edge, count.rate) for edge, count in self._edges.items()]
        return iter(found)

    def writers(self, stream: str) -> set[str]:
        """Those who wrote to a stream of late, as the hub's hooks call them."""
        with self._lock:
            return {edge.who for edge in self._edges if (edge.does, edge.stream) == ("write", stream)}

    def moves(self) -> dict[tuple[str, str], str]:
        """Cursor and stream → the protocol that moved it last."""
        with self._lock:
            return {key: protocol for key, (protocol, _) in self._cursors.items()}

    def lineage(self) -> dict[str, tuple[set[str], set[str]]]:
        """Pipeline → the streams that it reads, and those that it writes."""
        with self._lock:
            return {name: (set(seen.reads), set(seen.writes)) for name, seen in self._pipelines.items()}
