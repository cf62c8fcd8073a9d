"""The hub's side of the Spark source: what a planner asks before each batch, in as few calls as possible."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.errors import Forbidden, UnknownStream
from headrace.log.ops import Put, SaveCursor
from headrace.security import current, is_listed, is_own_cursor
from headrace.spark.hub.result_ends import folded, forget_producers
from headrace.spark.hub.sink_state import SINKS, SourcePosition, check_rights, sink_states


class Describe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of streams, or patterns."""

    names: list[str]


class Described(msgspec.Struct, frozen=True):
    """A stream and the (first, next) of each of its partitions."""

    name: str
    id: int
    bounds: list[tuple[int, int]]


class ReadPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cursor in a stream."""

    cursor: str
    stream: str


class Forget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cursor whose stored results no longer say where to go on: in these streams, or in all."""

    cursor: str
    streams: list[str] | None = None

    def means(self, source: SourcePosition) -> bool:
        """Whether this is about a source."""
        return source.cursor == self.cursor and (self.streams is None or source.stream in self.streams)


class MoveCursor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cursor and its new positions, by stream and partition; None where it is not read, and holds nothing."""

    cursor: str
    positions: dict[str, list[int | None]]


class Positions:
    """Answers to planners."""

    def __init__(self, hub: Any) -> None:
        self._hub = hub

    def register(self) -> None:
        """Offer the verbs."""
        add = self._hub.verbs.register
        add("spark.describe", Describe, self.describe, right="read", summary="Bounds of many streams", filters=True)
        add("spark.position", ReadPosition, self.position, right="read", summary="How far a cursor's results reach")
        add("spark.forget", Forget, self.forget, right="admin", summary="Forget how far a cursor's results reach")
        add("spark.move-cursor", MoveCursor, self.move_cursor, right="read", summary="Move a cursor", filters=True)

    async def describe(self, request: Describe) -> list[Described]:
        """The streams that exist and that the caller may read, by name."""
        infos = {
            info.name: info
            for name in request.names
            for info in self.named(name) or self._hub.streams(name)
            if is_listed(info.name, name, everything=False)
        }
        may = current().may
        return [self._described(infos[name]) for name in sorted(infos) if may("read", name)]

    def named(self, name: str) -> list[Any]:
        """The stream of exactly this name, whatever characters it has."""
        try:
            info = self._hub.stream(name)
        except UnknownStream:
            return []
        return [info] if info.kind == "stream" else []

    def _described(self, info: Any) -> Described:
        bounds = [self._hub.bounds(info.name, partition) for partition in range(info.partitions)]
        return Described(info.name, info.id, [(bound.first, bound.next) for bound in bounds])

    async def position(self, request: ReadPosition) -> list[int | None]:
        """By partition, where a query with a fresh checkpoint goes on without storing a result twice.

        That is the cursor, or further on where a sink had stored a batch that Spark did not live to note.
        """
        info = self._hub.stream(request.stream)
        known = [self._hub.cursor(request.cursor, request.stream, partition) for partition in range(info.partitions)]
        for key, _, state in await sink_states(self._hub):
            for source in folded(self._hub, key.decode(), state):
                if (source.cursor, source.stream) == (request.cursor, request.stream):
                    for partition, after in enumerate(source.next[: info.partitions]):
                        if after is not None:
                            known[partition] = max(after, known[partition] or 0)
        return known

    async def streams_behind(self, cursor: str) -> set[str]:
        """The streams whose records stand behind results that a query with this cursor has stored."""
        states = await sink_states(self._hub)
        sources = [source for key, _, state in states for source in folded(self._hub, key.decode(), state)]
        return {source.stream for source in sources if source.cursor == cursor}

    async def forget(self, request: Forget) -> int:
        """Let a query begin anew although results of it are stored; how many sinks were concerned."""
        changed = 0
        for key, value, state in await sink_states(self._hub):
            sources = folded(self._hub, key.decode(), state)
            kept = [source for source in sources if not request.means(source)]
            if len(kept) != len(sources):
                encoded = msgspec.msgpack.encode(msgspec.structs.replace(state, sources=kept, live=None))
                producers = forget_producers(self._hub, key.decode(), state)
                await self._hub.transact([Put(SINKS, key, encoded, value), *producers])
                changed += 1
        return changed

    async def move_cursor(self, request: MoveCursor) -> None:
        """Move a cursor on in all these streams at once; streams that are gone are passed over."""
        check_rights(set(), set(request.positions))
        if owned := [name for name in request.positions if is_own_cursor(request.cursor, name)]:
            raise Forbidden(f"cursor {request.cursor!r} in stream {owned[0]!r} is the hub's own")
        ops = [
            SaveCursor(request.cursor, info.name, index, partition)
            for name, positions in request.positions.items()
            for info in self.named(name)
            for partition, index in enumerate(positions[: info.partitions])
            if index is not None
        ]
        if ops:
            await self._hub.transact(ops)
