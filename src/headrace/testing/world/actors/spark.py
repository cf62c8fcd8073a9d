"""A Spark driver, as the hub sees one: it reads a stream by its cursor, stages rows, commits batches, and notes in a
checkpoint how far it has come.

It may die between any two of these, and the next driver does the same batch again. A twin may work on the same
checkpoint: the hub lets one of them go on.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.spark.sink.rows import OutgoingRows, to_records
from headrace.testing.world.actors.actor import LOST, Actor, Refused, encoded
from headrace.testing.world.actors.producers import Producer
from headrace.testing.world.book import Book, Written
from headrace.testing.world.hub import HubProcess

BATCH = 40
QUERY = "query"
SINKS = ("results-0", "results-1")
CHUNK_BYTES = 700
TEMPTED = 0.3
"""Commits are few, and each has several steps on the disk: so often one of them is the last of its hub."""
NOT_NOTED = 0.15
"""How often a batch was committed and Spark has no note of it: the batch is done again."""


class Checkpoint:
    """What Spark keeps in files, shared by whoever runs the query: the plan of each batch, and which are done."""

    def __init__(self) -> None:
        self.plans: list[range] = []
        self.done = 0
        """Batches that are noted as committed."""


class SparkDriver(Actor):
    """One driver; number 1 is the twin of number 0."""

    kind = "spark"

    def __init__(
        self,
        number: int,
        hub: HubProcess,
        book: Book,
        stream: str,
        producers: Sequence[Producer],
        checkpoint: Checkpoint,
    ) -> None:
        super().__init__(number, hub, book)
        self.stream = stream
        self.checkpoint = checkpoint
        self.sources = [producer for producer in producers if producer.stream == stream]
        if number == 0:
            for sink in SINKS:
                book.producer(QUERY, sink, once=True)

    async def work(self) -> None:
        while True:
            run = self.random.randbytes(8).hex()
            self.world.tell(self.name, f"run {run}")
            try:
                await self._run(run)
                return
            except Refused as refused:
                self.world.tell(self.name, str(refused))
                await asyncio.sleep(self.random.uniform(5, 60) if refused.code == "fenced" else 0.5)
            except LOST:
                await self.retry()

    async def _run(self, run: str) -> None:
        goes_on = True
        while goes_on:
            goes_on = await self._batch(run)
            await asyncio.sleep(self.random.uniform(0.1, 3))

    async def _batch(self, run: str) -> bool:
        """One batch; False when there will be no more."""
        number = self.checkpoint.done
        if number == len(self.checkpoint.plans):
            are_done = all(producer.is_done for producer in self.sources)
            planned = await self._planned()
            if not planned:
                return not are_done
            if number != len(self.checkpoint.plans):  # the twin was quicker
                return True
            self.checkpoint.plans.append(planned)
        plan = self.checkpoint.plans[number]
        rows = await self._rows(plan)
        for sink in SINKS:
            self._written(sink).sent.update(index for index in rows if sink_of(index) == sink)
        half = len(rows) // 2
        parts = [
            await self._stage(run, number, part, some) for part, some in enumerate((rows[:half], rows[half:])) if some
        ]
        position = {"cursor": QUERY, "stream": self.stream, "next": [plan.stop]}
        digest = hashlib.sha256(repr(rows).encode()).hexdigest()
        commit: dict[str, Any] = {"query": QUERY, "run": run, "batch": number, "digest": digest, "parts": parts}
        self.hub.tempt(TEMPTED)
        await self.verb("spark.commit", **commit, sources=[position])
        for index in rows:
            self._written(sink_of(index)).acked[index] = None
        if self.random.random() < NOT_NOTED:
            return True  # and the cursor keeps the records for the next time
        self.checkpoint.done = max(self.checkpoint.done, number + 1)
        await self._move_cursor(plan.stop)
        return True

    async def _move_cursor(self, index: int) -> None:
        await self.verb("spark.move-cursor", cursor=QUERY, positions={self.stream: [index]})

    def _written(self, sink: str) -> Written:
        return next(each for each in self.book.written if (each.producer, each.stream) == (QUERY, sink))

    async def _planned(self) -> range:
        start = self.checkpoint.plans[-1].stop if self.checkpoint.plans else 0
        if not start:
            await self._move_cursor(0)  # what comes from now on is kept for it
        described = await self.verb("spark.describe", names=[self.stream])
        if not described:
            return range(0)
        first, end = described[0]["bounds"][0]
        start = max(start, first)
        return range(start, min(end, start + BATCH))

    async def _rows(self, plan: range) -> list[int]:
        """The source's records of a plan, by their indexes: what is trimmed meanwhile is not there."""
        rows: list[int] = []
        at = plan.start
        while at < plan.stop:
            page = await self.verb("stream.read", stream=self.stream, start=at, limit=plan.stop - at)
            found = [int(record["index"]) for record in page["records"] if record["index"] < plan.stop]
            if not found:
                break
            rows += found
            at = found[-1] + 1
        return rows

    async def _stage(self, run: str, batch: int, part: int, indexes: Sequence[int]) -> dict[str, int]:
        """A task's rows, in chunks; a chunk may come twice."""
        chunks: list[tuple[int, bytes]] = []
        rows = OutgoingRows(lambda offset, chunk: chunks.append((offset, chunk)), CHUNK_BYTES, lambda stream: 1)
        for sink in SINKS:
            payloads = [f"{QUERY}:{index}".encode() for index in indexes if sink_of(index) == sink]
            rows.write(sink, to_records(pa.RecordBatch.from_pydict({"payload": payloads})))
        size, crc = rows.finish()
        attempt = self.random.randint(0, 3)
        for offset, chunk in chunks:
            for _ in range(self.random.choice([1, 1, 2])):
                staged: dict[str, Any] = {"query": QUERY, "run": run, "batch": batch, "part": part, "attempt": attempt}
                await self.verb("spark.stage", **staged, offset=offset, rows=encoded(chunk))
        return {"part": part, "attempt": attempt, "size": size, "crc": crc}


def sink_of(index: int) -> str:
    return SINKS[index % 2]
