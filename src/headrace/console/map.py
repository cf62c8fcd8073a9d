"""The map: which protocols write which streams, which pipelines work on them, who reads, how fast, how far behind.

A hub has few protocols and pipelines and may have very many streams. A map has at most `limit` of these: where there
are more, those that share the beginning of their name are one node, which can be opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from headrace.admin.requests import Asked
from headrace.console.alarms import is_stuck
from headrace.console.history import STREAM as HISTORY
from headrace.console.pipelines import FAILED, PipelineViews
from headrace.console.traffic import Traffic, protocol_labels, protocol_of
from headrace.console.views import Views, fits
from headrace.errors import UnknownStream
from headrace.log.ops import CursorInfo, StreamInfo
from headrace.protocols.descriptor import is_holding_cursor
from headrace.security import Principal, acting_as, current, is_listed
from headrace.spark.hub.registry import Status

if TYPE_CHECKING:
    from headrace.hub import Hub

STREAMS_SHOWN = 40
STREAMS_SHOWN_MAX = 600
LATE_S = 5.0
"""A cursor that has records to read and has not moved for this long is behind."""
_PART = re.compile(r"[^./]*[./]?")

Trouble = Literal["", "warn", "bad"]
_GRAVITY: dict[str, int] = {"": 0, "warn": 1, "bad": 2}


class MapRequest(Asked, frozen=True):
    """Streams whose names contain `text` or fit it as a pattern, and begin with `group`."""

    text: str = ""
    group: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=STREAMS_SHOWN_MAX)] = STREAMS_SHOWN


class MapNode(msgspec.Struct, omit_defaults=True):
    """Something that records flow through. `count` is how many sessions, or streams of a group."""

    id: str
    kind: Literal["producer", "stream", "group", "rest", "pipeline", "consumer"]
    title: str
    rate: float = 0.0
    lag: int = 0
    trouble: Trouble = ""
    count: int = 0
    state: str = ""


class MapEdge(msgspec.Struct, omit_defaults=True):
    """Records from one node to another."""

    source: str
    target: str
    rate: float = 0.0
    lag: int = 0
    trouble: Trouble = ""


class MapView(msgspec.Struct, frozen=True):
    """`streams` counts all that match."""

    streams: int
    nodes: list[MapNode]
    edges: list[MapEdge]


class Maps:
    """The handler, around one hub."""

    def __init__(self, hub: Hub, views: Views, pipelines: PipelineViews, traffic: Traffic) -> None:
        self._hub = hub
        self._views = views
        self._pipelines = pipelines
        self._traffic = traffic

    def register(self) -> None:
        self._hub.verbs.register(
            "console.map", MapRequest, self.map, right="read", summary="What flows where", filters=True
        )

    async def map(self, asked: MapRequest) -> MapView:
        """In a thread: a hub may have very many streams, and its other clients do not wait for whoever looks."""
        self._traffic.take()
        sessions = [(info.protocol, info.writes, info.reads) for info in self._hub.sessions.list()]
        principal = current()
        while True:
            with contextlib.suppress(UnknownStream):  # one was deleted meanwhile
                return await asyncio.to_thread(self._map, asked, principal, sessions)

    def _map(
        self, asked: MapRequest, principal: Principal, sessions: list[tuple[str, list[str], list[str]]]
    ) -> MapView:
        with acting_as(principal):
            self._views.measure_rates()
            # what the hub keeps for itself is on the map if something flowed there of late; its history tells nothing
            used = {edge.stream for edge, _ in self._traffic.edges()} - {HISTORY}
            infos = [
                info
                for info in self._hub.streams()
                if info.name.startswith(asked.group)
                and fits(info.name, asked.text)
                and is_listed(info.name, asked.text, info.name in used)
                and principal.may("read", info.name)
            ]
            drawing = _Drawing(_placed(infos, asked), self._views.rate)
            for protocol, writes, reads in sessions:
                drawing.session(protocol, writes, reads)
            drawing.traffic(self._traffic)
            drawing.cursors(self._hub.cursors(), self._traffic.moves(), self._names(), self._hub.clock.now_us())
            if principal.may("read"):
                drawing.pipelines(self._pipelines.statuses, self._pipelines.lineage())
            return drawing.view(len(infos))

    def _names(self) -> set[str]:
        return {status.name for status in self._pipelines.statuses}


def _placed(infos: list[StreamInfo], asked: MapRequest) -> dict[str, MapNode]:
    """Stream → the node that stands for it: itself, or a group of streams with the same beginning."""
    if len(infos) <= asked.limit:
        return {info.name: MapNode(f"stream/{info.name}", "stream", info.name) for info in infos}
    groups: dict[str, list[str]] = {}
    for info in infos:
        part = _PART.match(info.name, len(asked.group))
        groups.setdefault(asked.group + (part[0] if part else ""), []).append(info.name)
    placed: dict[str, MapNode] = {}
    rest = MapNode("rest", "rest", "other streams")
    for at, (prefix, names) in enumerate(sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))):
        if at >= asked.limit - 1 and len(groups) > asked.limit:
            node = rest
        elif len(names) == 1:
            node = MapNode(f"stream/{names[0]}", "stream", names[0])
        else:
            node = MapNode(f"group/{prefix}", "group", prefix)
        node.count += len(names) if node.kind != "stream" else 0
        placed |= dict.fromkeys(names, node)
    return placed


class _Drawing:
    """A map in the making."""

    def __init__(self, streams: dict[str, MapNode], rate: Callable[[str], float]) -> None:
        self._streams = streams
        self._rate = {name: rate(name) for name in streams}
        self._labels = protocol_labels()
        self._nodes: dict[str, MapNode] = {}
        self._edges: dict[tuple[str, str], MapEdge] = {}
        self._read_by: dict[str, set[str]] = {}
        for name, node in streams.items():
            self._nodes[node.id] = node
            node.rate = round(node.rate + self._rate[name], 1)

    def _peer(self, kind: Literal["producer", "consumer"], label: str) -> MapNode:
        name = protocol_of(label)
        return self._nodes.setdefault(f"{kind}/{name}", MapNode(f"{kind}/{name}", kind, name))

    def _edge(self, source: MapNode, target: MapNode, rate: float = 0.0) -> MapEdge:
        edge = self._edges.setdefault((source.id, target.id), MapEdge(source.id, target.id))
        edge.rate = round(edge.rate + rate, 1)
        return edge

    def session(self, label: str, writes: Iterable[str], reads: Iterable[str]) -> None:
        """An open session of a protocol."""
        written = [self._streams[name] for name in writes if name in self._streams]
        read = [self._streams[name] for name in reads if name in self._streams]
        if written:
            self._peer("producer", label).count += 1
        if read:
            self._peer("consumer", label).count += 1
        for node in written:
            self._edge(self._peer("producer", label), node)
        for node in read:
            self._edge(node, self._peer("consumer", label))

    def traffic(self, traffic: Traffic) -> None:
        """What flowed of late. What several protocols write to a stream is shared out by what each has sent."""
        writes: dict[str, dict[str, float]] = {}
        for (does, label, stream), rate in traffic.edges():
            node = self._streams.get(stream)
            if node is None:
                continue
            if does == "write":
                writes.setdefault(stream, {})[label] = rate
            elif label in self._labels:
                consumer = self._peer("consumer", label)
                self._read_by.setdefault(stream, set()).add(consumer.title)
                self._edge(node, consumer, rate)
                consumer.rate = round(consumer.rate + rate, 1)
        for stream, rates in writes.items():
            together = sum(rates.values())
            for label, rate in rates.items():
                shared = self._rate[stream] * rate / together if together else 0.0
                producer = self._peer("producer", label)
                self._edge(producer, self._streams[stream], shared)
                producer.rate = round(producer.rate + shared, 1)

    def cursors(
        self, cursors: Iterable[CursorInfo], moves: dict[tuple[str, str], str], pipelines: set[str], now_us: int
    ) -> None:
        """Consumers, by who moves their cursors, and how far behind they are."""
        for cursor in cursors:
            node = self._streams.get(cursor.stream)
            if node is None or cursor.name in pipelines or is_holding_cursor(cursor.name, cursor.stream):
                continue
            consumer = self._consumer(cursor, moves.get((cursor.name, cursor.stream)))
            edge = self._edge(node, consumer)
            trouble: Trouble = ""
            if is_stuck(cursor, now_us):
                trouble = "bad"
            elif cursor.lag and now_us - cursor.updated_us > LATE_S * 1_000_000:
                trouble = "warn"
            for each in (edge, node, consumer):
                each.lag = max(each.lag, cursor.lag)
                each.trouble = max(each.trouble, trouble, key=_GRAVITY.__getitem__)

    def _consumer(self, cursor: CursorInfo, moved_by: str | None) -> MapNode:
        """A protocol; or those who have not been seen since the hub started."""
        prefix = cursor.name.partition(":")[0]
        if not moved_by and prefix in self._labels:
            return self._peer("consumer", prefix)
        if moved_by is not None:
            readers = self._read_by.get(cursor.stream, set())
            # a cursor may be moved by a verb while the records come by a protocol
            by_protocol = moved_by in self._labels or len(readers) != 1
            return self._peer("consumer", moved_by if by_protocol else next(iter(readers)))
        return self._nodes.setdefault("consumer/-", MapNode("consumer/-", "consumer", "not connected"))

    def pipelines(self, statuses: list[Status], lineage: dict[str, tuple[set[str], set[str]]]) -> None:
        """What they read and write, as far as it is known."""
        for status in statuses:
            report = status.report
            trouble: Trouble = "bad" if status.state in FAILED else ""
            runs = status.state == "running" and report is not None
            node = MapNode(
                f"pipeline/{status.name}",
                "pipeline",
                status.name,
                report.rows_per_s if runs and report is not None else 0.0,
                report.lag if report is not None else 0,
                trouble,
                state=status.state,
            )
            self._nodes[node.id] = node
            reads, writes = lineage[status.name]
            for name in reads & self._streams.keys():
                edge = self._edge(self._streams[name], node, self._rate[name] if runs else 0.0)
                edge.trouble = trouble
            for name in writes & self._streams.keys():
                self._edge(node, self._streams[name], self._rate[name])

    def view(self, streams: int) -> MapView:
        """All of it."""
        return MapView(streams, list(self._nodes.values()), list(self._edges.values()))
