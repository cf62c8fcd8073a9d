"""What Spark's tasks and driver ask of a hub, without Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.hub import Hub
from headrace.spark.hub.sink_state import Commit, Part
from headrace.spark.hub.staging_area import Committed, Stage, StagingArea
from headrace.spark.sink.rows import OutgoingRows, to_records


def chunks_of(payloads: list[bytes], to: str = "out") -> tuple[list[tuple[int, bytes]], int, int]:
    """What a task sends for these records, with the offsets; the size and the checksum of it all."""
    sent: list[tuple[int, bytes]] = []
    outgoing = OutgoingRows(lambda offset, chunk: sent.append((offset, chunk)), 256, lambda stream: 1)
    outgoing.write(to, to_records(pa.record_batch({"payload": pa.array(payloads, pa.binary())})))
    return sent, *outgoing.finish()


class Driver:
    """A run of a query that writes micro-batches."""

    def __init__(self, area: StagingArea, query: str = "q", run: str = "r1") -> None:
        self.area = area
        self.query = query
        self.run = run

    async def stage(
        self, batch: int, payloads: list[bytes], *, part: int = 0, attempt: int = 0, to: str = "out"
    ) -> Part:
        chunks, size, crc = chunks_of(payloads, to)
        for offset, chunk in chunks:
            await self.area.stage(Stage(self.query, self.run, batch, part, attempt, offset, chunk))
        return Part(part, attempt, size, crc)

    async def commit(self, batch: int, parts: list[Part], digest: str = "d", **more: Any) -> Committed:
        return await self.area.commit(Commit(self.query, self.run, batch, digest, parts, **more))


async def payloads(hub: Hub, stream: str = "out") -> list[bytes]:
    if not hub.streams(stream):
        return []
    bounds = hub.bounds(stream)
    return [value for batch in hub.scan(stream, bounds.first, bounds.next) for value in batch["payload"].to_pylist()]
