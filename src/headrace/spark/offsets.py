"""Offsets of a streaming query: how far it has come in every stream partition, as Spark stores them.

    {"cursor": "daily-orders", "hub": "127.0.0.1:7070",
     "streams": {"orders": {"id": 17, "next": [1200, 1187]}}}

`next[p]` is the next index to read of partition p, so a batch is the half open range between two offsets. `id` is the
hub's number of the stream: a stream that was deleted and made again has another one, and is noticed. A partition or
a stream that an older offset does not mention came into being later and is read from its index 0. `cursor` and `hub`
ride along so that a completed batch can move the cursor without asking the query.

Everything here is a pure function of offsets and stream states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.spark.errors import DataLoss
from headrace.spark.port import StreamState

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
class Loss:
    """Records that a range asked for and that the hub no longer has; inclusive."""

    stream: str
    partition: int
    first: int
    last: int
    why: str

    def error(self) -> DataLoss:
        """The error that names them."""
        return DataLoss(self.stream, self.partition, self.first, self.last, self.why)


def make(positions: Mapping[str, tuple[int, Sequence[int]]], cursor: str | None, hub: str) -> Offset:
    """An offset from (stream id, next indexes) by stream. Keys are sorted: equal positions are equal JSON."""
    streams = {name: {"id": positions[name][0], "next": list(positions[name][1])} for name in sorted(positions)}
    return {"cursor": cursor, "hub": hub, "streams": streams}


def positions_of(offset: Offset) -> dict[str, tuple[int, list[int]]]:
    """The opposite of `make`."""
    return {name: (one["id"], list(one["next"])) for name, one in offset.get("streams", {}).items()}


def advance(
    start: Offset, states: Sequence[StreamState], records_max: int | None
) -> tuple[dict[str, tuple[int, list[int]]], list[Loss]]:
    """The positions after the next batch: everything there is, or `records_max` records shared out by backlog."""
    positions = positions_of(start)
    losses: list[Loss] = []
    goals: dict[tuple[str, int], tuple[int, int]] = {}
    for state in states:
        known_id, known = positions.get(state.name, (state.id, []))
        if known_id != state.id:
            losses.extend(_recreated(state.name, known))
            known = []
        begin = known + [0] * (len(state.bounds) - len(known))
        positions[state.name] = (state.id, begin)
        for partition, (_, after) in enumerate(state.bounds):
            # A hub never goes back; should it answer late, a query must not go back with it.
            goals[state.name, partition] = (begin[partition], max(begin[partition], after))
    for (name, partition), end in _share(goals, records_max).items():
        positions[name][1][partition] = end
    return positions, losses


def _recreated(name: str, known: Sequence[int]) -> list[Loss]:
    why = "the stream was deleted and made again"
    return [Loss(name, partition, after, after, why) for partition, after in enumerate(known)]


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
    found = []
    for name, (stream_id, after) in positions_of(end).items():
        known_id, known = before.get(name, (stream_id, []))
        if known_id != stream_id:
            known = []
        for partition, stop in enumerate(after):
            begin = known[partition] if partition < len(known) else 0
            if stop > begin:
                found.append(Range(name, partition, begin, stop))
    return found


def clip(ranges: Sequence[Range], states: Sequence[StreamState]) -> tuple[list[Range], list[Loss]]:
    """The ranges as far as the hub still has them, and what is missing."""
    by_name = {state.name: state for state in states}
    kept: list[Range] = []
    losses: list[Loss] = []
    for one in ranges:
        state = by_name.get(one.stream)
        if state is None or one.partition >= len(state.bounds):
            losses.append(Loss(one.stream, one.partition, one.start, one.end - 1, "the stream was deleted"))
            continue
        first = state.bounds[one.partition][0]
        if first > one.start:
            last = min(first, one.end) - 1
            losses.append(Loss(one.stream, one.partition, one.start, last, f"the first index kept is {first}"))
        if one.end > max(first, one.start):
            kept.append(Range(one.stream, one.partition, max(first, one.start), one.end))
    return kept, losses


def split(ranges: Sequence[Range], tasks: int, records_min: int) -> list[Range]:
    """Cut ranges into about `tasks` equal pieces of at least `records_min` records, keeping their order."""
    total = sum(one.count for one in ranges)
    size = max(1, records_min, -(-total // max(1, tasks)))
    pieces = []
    for one in ranges:
        count = max(1, -(-one.count // size))
        for number in range(count):
            start = one.start + one.count * number // count
            end = one.start + one.count * (number + 1) // count
            pieces.append(Range(one.stream, one.partition, start, end))
    return pieces
