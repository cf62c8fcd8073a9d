"""Traces by the OpenTelemetry SDK, sent as OTLP over HTTP. Imported only when `tracing.endpoint` is set.

A commit serves many appends, and an append belongs to the trace of its client, so a commit is a trace of its own that
links to the spans it settled. It is kept when one of those is.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from headrace import __version__
from headrace.config import Tracing as Section
from headrace.errors import HeadraceError
from headrace.log import ops
from headrace.telemetry.tracing import Thing, Tracing, TracingUnavailable, Value

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from headrace.hub.hooks import Hooks, Read, Token
    from headrace.log.pending import Pending

TRACES_PATH = "/v1/traces"
EXPORT_TIMEOUT_S = 5
LINKS_MAX = 128
"""Of one commit; it says how many appends it settled besides."""


class LinkedSampler(Sampler):
    """By the parent; a trace without one by the ratio; one that only links to others, if one of them is kept."""

    def __init__(self, ratio: float) -> None:
        self._by_parent = ParentBased(TraceIdRatioBased(ratio))

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Any = None,
        links: Sequence[Link] | None = None,
        trace_state: Any = None,
    ) -> SamplingResult:
        chosen: Sampler = self._by_parent
        if links:
            chosen = ALWAYS_ON if any(link.context.trace_flags.sampled for link in links) else ALWAYS_OFF
        return chosen.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        return "LinkedSampler"


class OtelTracing(Tracing):
    """Spans of one hub. `exporter` is for tests."""

    def __init__(self, section: Section, exporter: SpanExporter | None = None) -> None:
        resource = Resource.create({"service.name": section.service_name, "service.version": __version__})
        self._provider = TracerProvider(sampler=LinkedSampler(section.ratio), resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter or _exporter(section.endpoint)))
        self._propagator = TraceContextTextMapPropagator()
        self._settling: dict[asyncio.Future[Any], Span] = {}
        self._tracer = self._provider.get_tracer("headrace", __version__)

    def subscribe(self, hooks: Hooks) -> None:
        hooks.submit.append(self._submitted)
        hooks.commit.append(self._committed)
        hooks.read.append(self._read)
        hooks.seal.append(self._sealed)

    def app(self, app: Thing, prefixes: Sequence[str]) -> Thing:
        return cast("Thing", _TracedApp(cast("ASGIApp", app), self, tuple(prefixes)))

    def call(
        self, name: str, headers: Mapping[str, str], attributes: Mapping[str, Value] | None = None
    ) -> AbstractContextManager[Span]:
        context = self._propagator.extract(headers, context=Context())
        return self._current(name, SpanKind.SERVER, attributes, context)

    def span(self, name: str, attributes: Mapping[str, Value] | None = None) -> AbstractContextManager[Span]:
        return self._current(name, SpanKind.INTERNAL, attributes, None)

    def context(self) -> object | None:
        return get_current() if trace.get_current_span().is_recording() else None

    def follow(self, name: str, parent: object, attributes: Mapping[str, Value]) -> _Followed:
        return _Followed(self._tracer.start_span(name, cast("Context", parent), SpanKind.INTERNAL, attributes))

    @contextmanager
    def _current(
        self, name: str, kind: SpanKind, attributes: Mapping[str, Value] | None, context: Context | None
    ) -> Iterator[Span]:
        with self._tracer.start_as_current_span(
            name, context, kind, attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except Exception as error:
                failed(span, error)
                raise

    @contextmanager
    def continuing(self, headers: Mapping[str, str]) -> Iterator[None]:
        """A connection that may last for days is no span; the calls on it continue its opener's trace."""
        token = attach(self._propagator.extract(headers, context=Context()))
        try:
            yield
        finally:
            detach(token)

    def _started(self, name: str, began_s: float, context: Context | None = None) -> Span:
        """A span of the hub's boundary: the outermost one where the protocol carries no trace of its own. A batch that
        is read for a follower is nobody's call."""
        inside = name == "hub.read" or trace.get_current_span(context).get_span_context().is_valid
        kind = SpanKind.INTERNAL if inside else SpanKind.SERVER
        return self._tracer.start_span(name, context, kind, start_time=_wall_ns(began_s))

    def _submitted(self, protocol: str, operations: Sequence[ops.Op], token: Token) -> None:
        """A span that ends when the future is done; until then a commit may link to it. A hub that is in nobody's
        hands works for itself."""
        future, is_single, began_s = token
        if not protocol:
            return
        span = self._started(f"hub.{_verb_of(type(operations[0])) if is_single else 'transact'}", began_s)
        if not span.is_recording():  # which costs little: it is not even described
            return
        span.set_attributes({**_about(protocol, operations[0] if operations else None), **_size(operations)})
        if not is_single:
            span.set_attribute("headrace.operations", len(operations))
        if future.done():
            _ended(span, future)
        else:
            self._settling[future] = span
            future.add_done_callback(self._settled)

    def _settled(self, future: asyncio.Future[Any]) -> None:
        _ended(self._settling.pop(future), future)

    def _committed(self, outcomes: Sequence[Pending]) -> None:
        mine = [pending for pending in outcomes if pending.token is not None]
        spans = [span for pending in mine if (span := self._settling.get(pending.token[0])) is not None]
        if not spans:
            return
        commit = self._tracer.start_span(
            "log.commit",
            Context(),
            links=[Link(span.get_span_context()) for span in spans[:LINKS_MAX]],
            start_time=_wall_ns(min(pending.token[2] for pending in mine)),
            attributes={
                "headrace.commit.transactions": len(outcomes),
                "headrace.commit.bytes": sum(pending.nbytes for pending in outcomes),
                "headrace.commit.refused": sum(pending.error is not None for pending in outcomes),
            },
        )
        commit.end()

    def _read(self, read: Read) -> None:
        if not read.protocol:
            return
        span = self._started(f"hub.{read.verb}", read.began_s, read.context.run(get_current))
        span.set_attributes({**_where(read.protocol, read.stream, read.partition), "headrace.index": read.start})
        if isinstance(read.error, Exception):  # not one that was given up
            failed(span, read.error)
        else:
            span.set_attribute("messaging.batch.message_count", read.records)
        span.end()

    def _sealed(self, segment: ops.NewSegment) -> None:
        attributes = {
            "headrace.stream.id": segment.stream_id,
            "headrace.index": segment.first,
            "messaging.batch.message_count": segment.next - segment.first,
            "headrace.bytes": segment.bytes,
        }
        began_ns, ended_ns = segment.began_us * 1000, segment.ended_us * 1000
        self._tracer.start_span("log.segment", Context(), attributes=attributes, start_time=began_ns).end(ended_ns)

    def flush(self) -> bool:
        """Send what is waiting. Blocks."""
        return self._provider.force_flush()

    async def close(self) -> None:
        await asyncio.to_thread(self._provider.shutdown)


class _Followed:
    """A span that ends when it is told to."""

    def __init__(self, span: Span) -> None:
        self.context: object = trace.set_span_in_context(span, Context())
        self.end = span.end


def failed(span: Span, error: BaseException) -> None:
    """Note why: our own errors by their code, which is what metrics and clients see too."""
    code = error.code if isinstance(error, HeadraceError) else type(error).__qualname__
    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR, str(error)))


def _wall_ns(began_s: float) -> int:
    """A reading of `time.perf_counter` as wall time."""
    return time.time_ns() - int((time.perf_counter() - began_s) * 1e9)


def _where(protocol: str, stream: str, partition: int) -> dict[str, str | int]:
    return {
        "messaging.system": "headrace",
        "messaging.destination.name": stream,
        "messaging.destination.partition.id": str(partition),
        "headrace.protocol": protocol,
    }


def _about(protocol: str, operation: ops.Op | None) -> dict[str, str | int]:
    stream = getattr(operation, "stream", None) or getattr(operation, "table", None)
    return _where(protocol, str(stream or getattr(operation, "name", "")), getattr(operation, "partition", 0))


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


def _ended(span: Span, future: asyncio.Future[Any]) -> None:
    if future.cancelled():
        span.set_attribute("error.type", "cancelled")
    elif (error := future.exception()) is not None:
        failed(span, error)
    span.end()


def _exporter(endpoint: str) -> OTLPSpanExporter:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise TracingUnavailable(f"tracing.endpoint {endpoint!r} is not an address such as http://127.0.0.1:4318")
    if parts.path in ("", "/"):
        endpoint = endpoint.rstrip("/") + TRACES_PATH
    theirs, ours = logging.getLogger("opentelemetry"), logging.getLogger("headrace")
    theirs.handlers[:], theirs.propagate = ours.handlers, ours.propagate  # a collector that is away is told as we tell
    return OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S)


class _TracedApp:
    """An ASGI application inside spans."""

    def __init__(self, app: ASGIApp, tracing: OtelTracing, prefixes: tuple[str, ...]) -> None:
        self._app = app
        self._tracing = tracing
        self._prefixes = prefixes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or not scope["path"].startswith(self._prefixes):
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if scope["type"] == "websocket":
            with self._tracing.continuing(headers):
                await self._app(scope, receive, send)
            return
        attributes = {"http.request.method": scope["method"], "url.path": scope["path"]}
        prefix = next(prefix for prefix in self._prefixes if scope["path"].startswith(prefix))
        with self._tracing.call(f"{scope['method']} {prefix}", headers, attributes) as span:

            async def sending(message: Any) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                    if message["status"] >= 500:
                        span.set_status(Status(StatusCode.ERROR))
                await send(message)

            await self._app(scope, receive, sending)
