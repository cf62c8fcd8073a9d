"""Offsets of a streaming query: how far it has come in every stream partition, as Spark stores them.

    {"cursor": "daily-orders", "hub": "127.0.0.1:7070",
     "streams": {"orders": {"id": 17, "begin": [0, 0], "next": [1200, 1187]}}}

`next[p]` is the next index to read of partition p, so a batch is the half open range between two offsets. `begin[p]`
is where the query began with the partition: a partition or a stream that an older offset does not mention came into
being later and is read from there. `id` is the hub's number of the stream: a stream that was deleted and created again
has another one, and is noticed. `cursor` and `hub` ride along so that a completed batch can move the cursor without
asking the query; so does `partitions`, where a query reads only some of them.

Everything here is a pure function of offsets and stream states.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.spark.errors import DataLoss

if TYPE_CHECKING:
    from headrace.spark.hub_client import StreamState

Offset = dict[str, Any]


@dataclass(frozen=True)
class Range:
    """Records `start` up to, not including, `end` of one stream partition."""

    stream: str
    partition: int
    start: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Position:
    """How far a query has come in one stream, by partition."""

    id: int
    begin: tuple[int, ...]
    next: tuple[int, ...]


def make(
    positions: Mapping[str, Position], cursor: str | None, hub: str, partitions: Sequence[int] | None = None
) -> Offset:
    """An offset from positions by stream. Keys are sorted: equal positions are equal JSON."""
    streams = {
        name: {"id": position.id, "begin": list(position.begin), "next": list(position.next)}
        for name, position in sorted(positions.items())
    }
    only = {} if partitions is None else {"partitions": sorted(partitions)}
    return {"cursor": cursor, "hub": hub, **only, "streams": streams}


NextIndexes = dict[str, list[int | None]]
"""By stream, the next index of each partition; None where it is not read."""


def cursor_positions(offsets: Iterable[Any]) -> dict[tuple[str, str], NextIndexes]:
    """(hub, cursor) → how far a batch with these offsets has come, from those of its sources that name a cursor.

    Several sources of one query may read the same stream; what one of them has still to read is not read yet.
    """
    by_cursor: dict[tuple[str, str], NextIndexes] = {}
    for offset in map(own_offset, offsets):
        if not offset.get("cursor"):
            continue
        only = offset.get("partitions")
        positions = by_cursor.setdefault((offset["hub"], offset["cursor"]), {})
        for stream, position in offset["streams"].items():
            after = [at if only is None or partition in only else None for partition, at in enumerate(position["next"])]
            positions[stream] = _slower(positions[stream], after) if stream in positions else after
    return by_cursor


def read_ranges(before: Sequence[Any] | None, planned: Sequence[Any], hub: str) -> list[dict[str, Any]]:
    """How far a batch read each stream, and from where: by cursor, which counts only at its own hub, and stream.

    `before` are the offsets of the batch before, empty for the first; None when they are not known: then neither is
    where this batch begins.
    """
    found: dict[tuple[str | None, str], tuple[list[int | None], list[int | None]]] = {}
    for number, offset in enumerate(map(own_offset, planned)):
        only = offset.get("partitions")
        known = positions_of(before[number]) if before is not None and number < len(before) else {}
        for stream, position in positions_of(offset).items():
            begins = _begins(known.get(stream), position)
            first = [at if only is None or partition in only else None for partition, at in enumerate(begins)]
            next_ = [at if only is None or partition in only else None for partition, at in enumerate(position.next)]
            key = (offset["cursor"] if offset["hub"] == hub else None, stream)
            if key in found:
                first, next_ = _slower(found[key][0], first), _slower(found[key][1], next_)
            found[key] = (first, next_)
    return [
        {"cursor": cursor, "stream": stream, "next": next_, "first": [] if before is None else first}
        for (cursor, stream), (first, next_) in found.items()
    ]


def _begins(before: Position | None, after: Position) -> tuple[int, ...]:
    """Where a batch begins with a stream: where the one before ended, or where the query began with it."""
    if before is None or before.id != after.id:
        return after.begin
    return before.next + after.begin[len(before.next) :]


def own_offset(offset: Any) -> Offset:
    """An offset, or its JSON as Spark writes it down; empty for one of another source."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return {}
    return offset if isinstance(offset, dict) and "streams" in offset else {}


def _slower(left: Sequence[int | None], right: Sequence[int | None]) -> list[int | None]:
    """By partition, the position of whoever is behind. A partition that only one of them knows yet is not read."""
    return [b if a is None else a if b is None else min(a, b) for a, b in zip(left, right, strict=False)]


def positions_of(offset: Any) -> dict[str, Position]:
    """The opposite of `make`."""
    return {
        name: Position(position["id"], tuple(position["begin"]), tuple(position["next"]))
        for name, position in own_offset(offset).get("streams", {}).items()
    }


def beginning(state: StreamState, next_: Sequence[int]) -> Position:
    """The position of a query that begins with a stream at these indexes."""
    return Position(state.id, tuple(next_), tuple(next_))


def beyond(start: Offset, states: Sequence[StreamState], only: Collection[int] | None) -> list[DataLoss]:
    """What was read before `start`, in partitions that are read, and is not at the hub. Where a query begins may lie
    beyond the end of a stream, too: that is no loss."""
    positions = positions_of(start)
    losses = []
    for state in states:
        known = positions.get(state.name)
        if known is None or known.id != state.id:
            continue
        for partition, ((_, end), begin, at) in enumerate(zip(state.bounds, known.begin, known.next, strict=False)):
            if at > max(end, begin) and (only is None or partition in only):
                why = (
                    f"they were read before, and the stream ends at {end} now: the hub has another data directory, or "
                    "an older copy of its own"
                )
                losses.append(DataLoss(state.name, partition, end, at - 1, why))
    return losses


def back(start: Offset, losses: Sequence[DataLoss]) -> Offset:
    """The same, where these losses begin."""
    streams = {name: {**at, "next": list(at["next"])} for name, at in start.get("streams", {}).items()}
    for loss in losses:
        streams[loss.stream]["next"][loss.partition] = loss.first
    return {**start, "streams": streams}


def advance(
    start: Offset, states: Sequence[StreamState], records_max: int | None
) -> tuple[dict[str, Position], list[DataLoss]]:
    """The positions after the next batch: everything there is, or `records_max` records shared out by backlog."""
    positions = positions_of(start)
    losses: list[DataLoss] = []
    goals: dict[tuple[str, int], tuple[int, int]] = {}
    for state in states:
        known = positions.get(state.name, Position(state.id, (), ()))
        if known.id != state.id:
            losses.extend(_recreated(state, known))
            known = Position(state.id, (), ())
        new = tuple(first for first, _ in state.bounds[len(known.next) :])
        positions[state.name] = Position(state.id, known.begin + new, known.next + new)
        for partition, (_, after) in enumerate(state.bounds):
            begin = positions[state.name].next[partition]
            # A hub never goes back; should it answer late, a query must not go back with it.
            goals[state.name, partition] = (begin, max(begin, after))
    ends = _share(goals, records_max)
    for state in states:
        at = positions[state.name]
        reached = tuple(ends.get((state.name, partition), next_) for partition, next_ in enumerate(at.next))
        positions[state.name] = Position(at.id, at.begin, reached)
    return positions, losses


def _recreated(state: StreamState, known: Position) -> list[DataLoss]:
    """What may be missing of a stream that was deleted and created again: indexes go on where the old one ended."""
    why = "the stream was deleted and created again"
    return [
        DataLoss(state.name, partition, after, state.bounds[partition][0] - 1, why)
        for partition, after in enumerate(known.next[: len(state.bounds)])
        if state.bounds[partition][0] > after
    ]


def _share(goals: Mapping[tuple[str, int], tuple[int, int]], records_max: int | None) -> dict[tuple[str, int], int]:
    backlog = sum(end - start for start, end in goals.values())
    if records_max is None or backlog <= records_max:
        return {key: end for key, (_, end) in goals.items()}
    shares = {key: start + (end - start) * records_max // backlog for key, (start, end) in goals.items()}
    left = records_max - sum(shares[key] - start for key, (start, _) in goals.items())
    for key, (_, end) in goals.items():
        extra = min(left, end - shares[key])
        shares[key] += extra
        left -= extra
    return shares


def ranges_between(start: Offset, end: Offset) -> list[Range]:
    """What a batch reads, in the order of stream name and partition."""
    before = positions_of(start)
    ranges = []
    for name, after in positions_of(end).items():
        for partition, (begin, stop) in enumerate(zip(_begins(before.get(name), after), after.next, strict=True)):
            if stop > begin:
                ranges.append(Range(name, partition, begin, stop))
    return ranges


def clip(ranges: Sequence[Range], states: Sequence[StreamState]) -> tuple[list[Range], list[DataLoss]]:
    """The ranges as far as the hub still has them, and what is missing."""
    by_name = {state.name: state for state in states}
    kept: list[Range] = []
    losses: list[DataLoss] = []
    for asked in ranges:
        state = by_name.get(asked.stream)
        if state is None or asked.partition >= len(state.bounds):
            losses.append(DataLoss(asked.stream, asked.partition, asked.start, asked.end - 1, "the stream was deleted"))
            continue
        first = state.bounds[asked.partition][0]
        if first > asked.start:
            last = min(first, asked.end) - 1
            losses.append(
                DataLoss(asked.stream, asked.partition, asked.start, last, f"the first index kept is {first}")
            )
        if asked.end > max(first, asked.start):
            kept.append(Range(asked.stream, asked.partition, max(first, asked.start), asked.end))
    return kept, losses


def split(ranges: Sequence[Range], tasks: int, records_min: int) -> list[Range]:
    """Cut ranges into about `tasks` equal pieces of at least `records_min` records, keeping their order."""
    total = sum(asked.count for asked in ranges)
    size = max(1, records_min, -(-total // max(1, tasks)))
    pieces = []
    for asked in ranges:
        count = max(1, -(-asked.count // size))
        for number in range(count):
            start = asked.start + asked.count * number // count
            end = asked.start + asked.count * (number + 1) // count
            pieces.append(Range(asked.stream, asked.partition, start, end))
    return pieces
