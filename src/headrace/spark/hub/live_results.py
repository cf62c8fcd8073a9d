"""The hub's side of real-time mode: a query says what it is about to read and write, before each of its batches.

The hub puts its run in charge, and sets a producer for each source partition to where the results end. From then on
tasks append by themselves (`Appender.java`): under a producer that is not there any more, none of them can.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from headrace.log.ops import Op, SetProducer
from headrace.spark.hub.result_ends import (
    Ends,
    folded,
    forget_producers,
    live_ends,
    live_producers,
    put_state,
    result_ends,
)
from headrace.spark.hub.sink_state import (
    SINKS,
    BatchChanged,
    Live,
    LiveSource,
    Name,
    Number,
    SinkState,
    SourcePosition,
    check_rights,
    known_sinks,
)


class Begin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A batch in real time that is about to run: where its results go, and where Spark begins to read each source.
    Without a stream they go to several places, by `spark.append`. Without sources its results are not counted, and may
    come again."""

    query: Name
    run: Name
    batch: Number
    stream: Name | None = None
    sources: list[SourcePosition] = []


class Progress(NamedTuple):
    """How far queries have come: the sum of the indexes where results end, and how many records have none yet."""

    position: int
    lag: int


class LiveResults:
    """The real-time queries of one hub."""

    def __init__(self, hub: Any, charged: Callable[[str, str], AbstractAsyncContextManager[SinkState]]) -> None:
        self._hub = hub
        self._charged = charged

    def register(self) -> None:
        """Offer the verb, and show how far each query has come."""
        add = self._hub.verbs.register
        self._hub.metrics.before_scrape(self._show)
        add("spark.begin", Begin, self.begin, right="write", filters=True, summary="Begin a batch in real time")

    def progress(self, cursor: str) -> Progress | None:
        """How far the real-time queries with a cursor have come, a long batch notwithstanding; None without any."""
        ends = [
            (end, self._lag(stream, partition, end))
            for query, state in self._live()
            for (stream, partition), end in live_ends(self._hub, query, state).items()
            if any((source.cursor, source.stream) == (cursor, stream) for source in _sources(state))
        ]
        return Progress(sum(end for end, _ in ends), sum(lag for _, lag in ends)) if ends else None

    def _live(self) -> list[tuple[str, SinkState]]:
        return [(key.decode(), state) for key, _, state in known_sinks(self._hub) if state.live is not None]

    def _lag(self, stream: str, partition: int, end: int) -> int:
        """None are missing of a stream that is not here, or not any more."""
        if not self._hub.has_stream(stream) or partition >= self._hub.stream(stream).partitions:
            return 0
        return max(0, int(self._hub.bounds(stream, partition).next) - end)

    def _show(self) -> None:
        metrics = self._hub.metrics.spark
        metrics.position.clear()
        metrics.lag.clear()
        for query, state in self._live():
            for (stream, partition), end in live_ends(self._hub, query, state).items():
                labels = {"query": query, "stream": stream, "partition": str(partition)}
                metrics.position.labels(**labels).set(end)
                metrics.lag.labels(**labels).set(self._lag(stream, partition, end))

    async def begin(self, request: Begin) -> list[SourcePosition]:
        """Where each source is to be read from, which is where its results end."""
        async with self._charged(request.query, request.run) as state:
            written = set() if request.stream is None else {request.stream}
            check_rights(written, {source.stream for source in request.sources if source.cursor})
            ends = result_ends(self._hub, request.query, state)
            _check_known(request, state, ends)
            begins = [_beginning(source, ends) for source in request.sources]
            await self._set(request, state, begins)
            return begins

    async def _set(self, request: Begin, state: SinkState, begins: list[SourcePosition]) -> None:
        sources = [
            LiveSource(source.cursor, source.stream, [at for at, index in enumerate(source.next) if index is not None])
            for source in begins
        ]
        home = request.stream or SINKS
        live = Live(home, sources) if sources else None
        if live == state.live and live_ends(self._hub, request.query, state).keys() == _partitions(sources):
            return  # the next batch of the same run, of the same partitions
        changed = structs.replace(state, sources=folded(self._hub, request.query, state), live=live)
        names = live_producers(request.query, changed)
        # One that is there stays as it is: whatever is on its way under its name may still move it.
        known = self._hub.producers(home) if sources else {}
        steps: list[Op] = [put_state(self._hub, request.query, changed)]
        kept = {(home, name) for name in names.values()}
        gone = forget_producers(self._hub, request.query, state)
        steps += [
            structs.replace(step, after=self._hub.producer(step.stream, step.producer))
            for step in gone
            if (step.stream, step.producer) not in kept
        ]
        steps += [
            SetProducer(home, names[source.stream, partition], index)
            for source in begins
            for partition, index in enumerate(source.next)
            if index is not None and names[source.stream, partition] not in known
        ]
        await self._hub.transact(steps)


def _sources(state: SinkState) -> list[LiveSource]:
    return [] if state.live is None else state.live.sources


def _beginning(source: SourcePosition, ends: Ends) -> SourcePosition:
    begins = [
        None if index is None else max(index, ends.get((source.stream, partition), 0))
        for partition, index in enumerate(source.next)
    ]
    return SourcePosition(source.cursor, source.stream, begins)


def _partitions(sources: list[LiveSource]) -> set[tuple[str, int]]:
    return {(source.stream, partition) for source in sources for partition in source.partitions}


def _check_known(request: Begin, state: SinkState, ends: Ends) -> None:
    """Refuse what may be stored already as a micro-batch of which only the rows are known, and not what it read."""
    if request.batch > state.batch:
        return
    for source in request.sources:
        for partition, index in enumerate(source.next):
            if index is not None and (source.stream, partition) not in ends:
                raise BatchChanged(
                    f"query {request.query}: batch {request.batch} was stored as a micro-batch, and how far it read "
                    f"stream {source.stream!r} partition {partition} is not known. Nothing was appended. Start the "
                    "query with its old trigger until that batch is done, and change the trigger then"
                )
