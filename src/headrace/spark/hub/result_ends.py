"""How far the results of each query are stored, by source partition: the one place that says so, for both modes.

    micro-batches    `SinkState.sources`: every commit replaces it in the transaction that appends its rows
    real time        producers of the stream that is written to, named after the query, its run and the source
                     partition: every append moves the last sequence of its producer in the same frame. Where results go
                     to several streams or partitions they are producers of `spark/sinks` (`live_appends.py`)

The end of the results of a source partition is the higher of the two. Only the run in charge may store any: a run that
takes over has the producers renamed after itself, so that an append of the run before is `Fenced`, even one that is on
its way. Whoever takes over begins at these ends (real time), or is refused where it would begin below them
(micro-batches, whose rows are computed before they are offered).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from headrace.log.ops import ABSENT, Op, Put, RenameProducer, SetProducer
from headrace.spark.hub.sink_state import (
    SINKS,
    BatchChanged,
    Commit,
    SinkState,
    SourcePosition,
    after_takeover,
)

Ends = dict[tuple[str, int], int]
"""(stream, partition) of a source → the index up to which results are stored."""


def producer_name(query: str, run: str, stream: str, partition: int) -> str:
    """Whose last sequence is the end of the results of a source partition. `Appender.java` makes the same name."""
    return f"spark/{query}/{run}/{stream}/{partition}"


def live_producers(query: str, state: SinkState) -> dict[tuple[str, int], str]:
    """The producers of a query in real time, by source partition."""
    sources = () if state.live is None else state.live.sources
    return {
        (source.stream, partition): producer_name(query, state.run, source.stream, partition)
        for source in sources
        for partition in source.partitions
    }


def live_ends(hub: Any, query: str, state: SinkState) -> Ends:
    """How far real time has come. Nothing of a stream that was deleted: its producers went with it."""
    if state.live is None or not hub.has_stream(state.live.stream):
        return {}
    ends = {at: hub.producer(state.live.stream, name) for at, name in live_producers(query, state).items()}
    return {at: end for at, end in ends.items() if end is not None}


def result_ends(hub: Any, query: str, state: SinkState) -> Ends:
    """The higher of both. Of two sources that read the same stream, the slower counts."""
    ends = _slowest((source.stream, source.next) for source in state.sources)
    for at, end in live_ends(hub, query, state).items():
        ends[at] = max(end, ends.get(at, 0))
    return ends


def _slowest(positions: Iterable[tuple[str, list[int | None]]]) -> Ends:
    ends: Ends = {}
    for stream, indexes in positions:
        for partition, index in enumerate(indexes):
            if index is not None:
                ends[stream, partition] = min(index, ends.get((stream, partition), index))
    return ends


def check_begin(hub: Any, state: SinkState, commit: Commit) -> None:
    """Refuse a micro-batch that reads again what has results already, as after real time whose driver was killed."""
    ends = result_ends(hub, commit.query, state)
    for (stream, partition), first in _slowest((source.stream, source.first) for source in commit.sources).items():
        end = ends.get((stream, partition), 0)
        if end > first:
            raise BatchChanged(
                f"query {commit.query}: batch {commit.batch} begins at index {first} of stream {stream!r} partition "
                f"{partition}, but results up to {end} are stored: Spark did not live to note them, as when the driver "
                "of a real-time query is killed. Nothing was appended. Start the query with the real-time trigger "
                "again, or with a fresh checkpoint and start=cursor (a pipeline: `headrace pipeline reset NAME`); both "
                "continue where the stored results end"
            )


def folded(hub: Any, query: str, state: SinkState) -> list[SourcePosition]:
    """What `sources` is when real time is over: the ends of its results in place of its producers."""
    live = [] if state.live is None else state.live.sources
    ends = result_ends(hub, query, state)
    kept = [source for source in state.sources if source.stream not in {one.stream for one in live}]
    return kept + [SourcePosition(one.cursor, one.stream, _indexes(ends, one.stream)) for one in live]


def _indexes(ends: Ends, stream: str) -> list[int | None]:
    count = 1 + max((partition for name, partition in ends if name == stream), default=-1)
    return [ends.get((stream, partition)) for partition in range(count)]


def forget_producers(hub: Any, query: str, state: SinkState) -> list[SetProducer]:
    """What makes the log forget the producers of a query in real time."""
    if state.live is None or not hub.has_stream(state.live.stream):
        return []
    return [SetProducer(state.live.stream, name, None) for name in live_producers(query, state).values()]


async def take_over(hub: Any, query: str, state: SinkState, run: str) -> SinkState:
    """Put a run in charge. Afterwards nobody else can move the ends of the results."""
    taken = after_takeover(state, run, hub.clock.now_us())
    renames: list[Op] = []
    if state.live is not None and hub.has_stream(state.live.stream):
        new = live_producers(query, taken)
        renames = [
            RenameProducer(state.live.stream, name, new[at]) for at, name in live_producers(query, state).items()
        ]
    await hub.transact([put_state(hub, query, taken), *renames])
    return taken


async def end_live(hub: Any, query: str, state: SinkState) -> SinkState:
    """Real time is over, and the run in charge does without: its ends are kept as those of micro-batches are."""
    if state.live is None:
        return state
    ended = msgspec.structs.replace(state, sources=folded(hub, query, state), live=None)
    await hub.transact([put_state(hub, query, ended), *forget_producers(hub, query, state)])
    return ended


def put_state(hub: Any, query: str, state: SinkState) -> Put:
    """Replace what is known of a query; the transaction fails if someone else did so meanwhile."""
    known = hub.get(SINKS, query.encode())
    return Put(SINKS, query.encode(), msgspec.msgpack.encode(state), ABSENT if known is None else known)
