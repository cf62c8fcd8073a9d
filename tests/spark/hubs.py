"""Hubs for the Spark tests: one inside this process, on its own thread and event loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from support.background import Background

from headrace.config import Config
from headrace.config import Log as LogSection
from headrace.hub import Hub
from headrace.log.batch import Batch
from headrace.log.ops import StreamOptions


class ThreadHub(Background):
    """A hub with Flight, nouns and Spark's verbs, driven from the test's own thread."""

    def __init__(self, data: Path, *, address: str = "127.0.0.1:0", config: Config | None = None, **log: Any) -> None:
        super().__init__()
        self.data = data
        self._config = msgspec.structs.replace(config or Config(), log=LogSection(data=str(data), **log))
        self._address = address
        self._closing: list[Any] = []
        self.hub: Hub
        self.run(self._start())

    async def _start(self) -> None:
        from headrace import admin
        from headrace.protocols.flight.server import serve
        from headrace.spark.hub import supervisor

        self.hub = await Hub.open(self.data, self._config)
        await admin.start(self.hub)
        self._closing.append(await supervisor.start(self.hub))
        listener = await serve(self.hub, self._address)
        self._closing.append(listener)
        self.address = listener.address

    def close(self) -> None:
        """Stop everything."""
        self.run(self._stop())
        super().close()

    async def _stop(self) -> None:
        for one in reversed(self._closing):
            await one.close()
        await self.hub.close()

    def create(self, stream: str, partitions: int = 1, **options: Any) -> None:
        self.run(self.hub.create_stream(stream, partitions, StreamOptions(**options)))

    def append(self, stream: str, payloads: Sequence[bytes], *, partition: int = 0, **columns: Any) -> int:
        """Append and wait; the first index."""

        async def act() -> int:
            appended = await self.hub.append(stream, Batch.of(payloads, **columns), partition=partition)
            return appended.first

        return self.run(act())

    def bounds(self, stream: str, partition: int = 0) -> tuple[int, int]:
        found = self.hub.bounds(stream, partition)
        return found.first, found.next

    def table(self, stream: str, partition: int = 0) -> pa.Table:
        """Everything in a stream partition."""
        first, after = self.bounds(stream, partition)
        batches = list(self.hub.scan(stream, first, after, partition=partition))
        from headrace.log.columns import SCHEMA

        return pa.Table.from_batches(batches, SCHEMA) if batches else SCHEMA.empty_table()

    def payloads(self, stream: str, partition: int = 0) -> list[bytes]:
        return list(self.table(stream, partition)["payload"].to_pylist())

    def cursor(self, cursor: str, stream: str, partition: int = 0) -> int | None:
        return self.hub.cursor(cursor, stream, partition)

    def call(self, verb: str, request: dict[str, Any]) -> Any:
        """A verb, with everybody's rights."""
        from headrace.spark.hub_client import open_port

        port = open_port(self.address, wait_s=60)
        try:
            return port.call(verb, request)
        finally:
            port.close()
