"""The hub's side of the Spark source: what a planner asks before each batch, in as few calls as possible.

No PySpark here: this runs inside the hub.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Describe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of streams, or patterns."""

    names: list[str]


class Described(msgspec.Struct, frozen=True):
    """A stream and the (first, next) of each of its partitions."""

    name: str
    id: int
    bounds: list[tuple[int, int]]


class MoveCursor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cursor and its new positions, by stream and partition."""

    cursor: str
    positions: dict[str, list[int]]


class Planning:
    """Answers to planners."""

    def __init__(self, hub: Any) -> None:
        self._hub = hub

    def register(self) -> None:
        """Offer the verbs."""
        add = self._hub.verbs.register
        add("spark.describe", Describe, self.describe, right="read", summary="Bounds of many streams", filters=True)
        add("spark.move-cursor", MoveCursor, self.move_cursor, right="read", summary="Move a cursor", filters=True)

    async def describe(self, request: Describe) -> list[Described]:
        """The streams that exist and that the caller may read, by name."""
        from headrace.security import current

        may = current().may
        found = {}
        for name in request.names:
            for info in self._hub.streams(name):
                if info.kind == "stream" and may("read", info.name):
                    found[info.name] = info
        return [self._described(found[name]) for name in sorted(found)]

    def _described(self, info: Any) -> Described:
        bounds = [self._hub.bounds(info.name, partition) for partition in range(info.partitions)]
        return Described(info.name, info.id, [(one.first, one.next) for one in bounds])

    async def move_cursor(self, request: MoveCursor) -> None:
        """Move a cursor on in all these streams at once; streams that are gone are passed over."""
        from headrace.log.ops import SaveCursor
        from headrace.spark.staging import check_rights

        check_rights(set(), set(request.positions))
        ops = []
        for name, positions in request.positions.items():
            for info in self._hub.streams(name):
                for partition, index in enumerate(positions[: info.partitions]):
                    ops.append(SaveCursor(request.cursor, info.name, index, partition))
        if ops:
            await self._hub.transact(ops)
