"""One record and its way: who can have written it, who has read it, which pipelines stand before and behind it.

A record does not say who sent it. What is known is which sessions had the stream open for writing when the hub accepted
it; when there was one, it was that one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace.admin.requests import StreamName
from headrace.console.pipelines import PipelineViews
from headrace.console.traffic import Traffic, protocol_of
from headrace.errors import BadRequest
from headrace.hub.sessions import SessionInfo
from headrace.protocols.descriptor import is_holding_cursor
from headrace.security import current

if TYPE_CHECKING:
    from headrace.hub import Hub

ROWS_MAX = 100


class TraceRequest(StreamName, frozen=True):
    """Names one record."""

    index: int
    partition: int = 0


class Writer(msgspec.Struct, frozen=True):
    """A session that was open when the record came, and writes this stream."""

    session: int
    protocol: str
    peer: str
    ended: bool


class Reader(msgspec.Struct, frozen=True):
    """A cursor. `to_go` is how many records it reads before this one is done; 0 when it has been read."""

    cursor: str
    protocol: str
    to_go: int
    moved_us: int


class Step(msgspec.Struct, frozen=True):
    """A pipeline, and the streams on its other side."""

    pipeline: str
    streams: list[str]


class Trace(msgspec.Struct, frozen=True):
    """The way of a record. `before` made this stream, `behind` works on it. `ways` are how else the
    stream was written of late, without a session."""

    time_us: int
    writers: list[Writer]
    ways: list[str]
    readers: list[Reader]
    before: list[Step]
    behind: list[Step]


class Traces:
    """The handler, around one hub."""

    def __init__(self, hub: Hub, pipelines: PipelineViews, traffic: Traffic) -> None:
        self._hub = hub
        self._pipelines = pipelines
        self._traffic = traffic

    def register(self) -> None:
        self._hub.verbs.register(
            "record.trace", TraceRequest, self.trace, right="read", summary="Who wrote a record, who has read it"
        )

    async def trace(self, asked: TraceRequest) -> Trace:
        """As far as the hub knows."""
        records = await self._hub.read(asked.stream, asked.index, partition=asked.partition, limit=1)
        if not records.num_rows or records.column("index")[0].as_py() != asked.index:
            raise BadRequest(f"stream {asked.stream!r} partition {asked.partition} has no record {asked.index}")
        time_us = records.column("time")[0].value
        sessions = [*self._hub.sessions.list(), *self._hub.sessions.list(ended=True)]
        before, behind = self._steps(asked.stream) if current().may("read") else ([], [])
        writers = [_writer(info) for info in sessions if _wrote(info, asked.stream, time_us)][:ROWS_MAX]
        known = {protocol_of(writer.protocol) for writer in writers}
        return Trace(
            time_us,
            writers,
            sorted({protocol_of(label) for label in self._traffic.writers(asked.stream)} - known),
            self._readers(asked)[:ROWS_MAX],
            before,
            behind,
        )

    def _readers(self, asked: TraceRequest) -> list[Reader]:
        moves = self._traffic.moves()
        return [
            Reader(
                cursor.name,
                moves.get((cursor.name, cursor.stream), ""),
                max(0, asked.index + 1 - cursor.index),
                cursor.updated_us,
            )
            for cursor in self._hub.cursors(stream=asked.stream)
            if cursor.partition == asked.partition and not is_holding_cursor(cursor.name, cursor.stream)
        ]

    def _steps(self, stream: str) -> tuple[list[Step], list[Step]]:
        lineage = self._pipelines.lineage().items()
        return (
            [Step(name, sorted(reads)) for name, (reads, writes) in lineage if stream in writes],
            [Step(name, sorted(writes)) for name, (reads, writes) in lineage if stream in reads],
        )


def _wrote(info: SessionInfo, stream: str, time_us: int) -> bool:
    return stream in info.writes and info.opened_us <= time_us <= (info.closed_us or time_us)


def _writer(info: SessionInfo) -> Writer:
    return Writer(info.id, info.protocol, info.peer, info.closed_us is not None)
