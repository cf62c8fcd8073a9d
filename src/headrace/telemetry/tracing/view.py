"""The hub and the disk as seen through traces.

A `TracedHub` shares all of a hub's state, so it *is* that hub, and passes through the ways in which anything reaches
the log: one operation, several, a read, a scan. Every other verb of the hub is made of them.
"""

from __future__ import annotations

import asyncio
import functools
import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from opentelemetry import trace

from headrace.hub import READ_BYTES, Hub
from headrace.log import ops

if TYPE_CHECKING:
    from headrace.telemetry.tracing.otel import OtelTracing

_SEGMENT = re.compile(r"segments/(\d+)/.*?(\d+)-(\d+)\.[a-z]+$")


class TracedHub(Hub):
    """A hub whose verbs make spans that name a protocol."""

    __slots__ = ("_protocol", "_tracing")
    _protocol: str
    _tracing: OtelTracing

    @classmethod
    def of(cls, hub: Hub, tracing: OtelTracing, protocol: str) -> TracedHub:
        """The same hub, seen by a protocol."""
        view = object.__new__(cls)
        view.__dict__ = hub.__dict__
        view._protocol = protocol
        view._tracing = tracing
        return view

    def _submit_one(self, operation: ops.Op) -> asyncio.Future[Any]:
        name = f"hub.{_verb_of(type(operation))}"
        span = self._tracing.begin(name, lambda: {**self._about(operation), **_size([operation])})
        future = super()._submit_one(operation)
        self._tracing.settles(span, future)
        return future

    def transact(self, operations: Sequence[ops.Op]) -> asyncio.Future[list[Any]]:
        def describe() -> dict[str, str | int]:
            first = self._about(operations[0] if operations else None)
            return {**first, **_size(operations), "headrace.operations": len(operations)}

        span = self._tracing.begin("hub.transact", describe)
        future = super().transact(operations)
        self._tracing.settles(span, future)
        return future

    async def read(
        self, name: str, start: int, *, partition: int = 0, limit: int = 1000, max_bytes: int = READ_BYTES
    ) -> pa.RecordBatch:
        attributes = {**self._where(name, partition), "headrace.index": start}
        with self._tracing.span("hub.read", attributes) as span:
            records = await super().read(name, start, partition=partition, limit=limit, max_bytes=max_bytes)
            span.set_attribute("messaging.batch.message_count", records.num_rows)
            return records

    def scan(
        self, name: str, start: int, end: int, *, partition: int = 0, columns: list[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        span = self._tracing.begin("hub.scan", lambda: {**self._where(name, partition), "headrace.index": start})
        count = 0
        try:
            for records in super().scan(name, start, end, partition=partition, columns=columns):
                count += records.num_rows
                yield records
        finally:
            if span is not None:
                span.set_attribute("messaging.batch.message_count", count)
                span.end()

    def _where(self, stream: str, partition: int) -> dict[str, str | int]:
        return {
            "messaging.system": "headrace",
            "messaging.destination.name": stream,
            "messaging.destination.partition.id": str(partition),
            "headrace.protocol": self._protocol,
        }

    def _about(self, operation: ops.Op | None) -> dict[str, str | int]:
        stream = getattr(operation, "stream", None) or getattr(operation, "table", None)
        return self._where(str(stream or getattr(operation, "name", "")), getattr(operation, "partition", 0))


@functools.cache
def _verb_of(kind: type[ops.Op]) -> str:
    """`SaveCursor` as `save_cursor`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def _size(operations: Sequence[ops.Op]) -> dict[str, int]:
    batches = [operation.batch for operation in operations if isinstance(operation, ops.Append)]
    if not batches:
        return {}
    return {
        "messaging.batch.message_count": sum(batch.count for batch in batches),
        "headrace.bytes": sum(batch.nbytes for batch in batches),
    }


class TracedDisk:
    """A disk on which a segment that is put in place makes a span: from the file's first byte to its name."""

    def __init__(self, disk: Any, tracing: OtelTracing) -> None:
        self._disk = disk
        self._tracing = tracing
        self._begun_ns: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def handover(self) -> None:
        """Nobody else makes segments here: we would not see it."""

    def create(self, path: str) -> Any:
        if path.startswith("segments/"):
            self._begun_ns[path] = time.time_ns()
        return self._disk.create(path)

    def unlink(self, path: str) -> None:
        self._begun_ns.pop(path, None)
        self._disk.unlink(path)

    def rename(self, old: str, new: str) -> None:
        self._disk.rename(old, new)
        begun_ns = self._begun_ns.pop(old, None)
        found = _SEGMENT.match(new)
        if begun_ns is None or found is None:
            return
        stream_id, first, following = (int(part) for part in found.groups())
        attributes = {
            "headrace.stream.id": stream_id,
            "headrace.index": first,
            "messaging.batch.message_count": following - first,
            "headrace.bytes": self._disk.size(new),
        }
        span = self._tracing.tracer.start_span(
            "log.segment", trace.set_span_in_context(trace.INVALID_SPAN), attributes=attributes, start_time=begun_ns
        )
        span.end()
