"""Traces: what becomes a span, whose trace it belongs to, and that a hub without them knows nothing of it."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from support.until import until

import headrace
from headrace.config import Config
from headrace.config import Log as LogSection
from headrace.config import Tracing as Section
from headrace.config.load import load
from headrace.demo.flows import LEDGER, TILL, make_flows
from headrace.demo.producers import PRODUCERS
from headrace.errors import UnknownStream
from headrace.hub.hooks import Hooks
from headrace.immortals import Immortal, method, serve
from headrace.log.batch import Batch
from headrace.log.sealer import Sealer
from headrace.log.segment import SegmentRef
from headrace.serving import runtime as runtime_module
from headrace.serving.runtime import LISTENERS, Runtime
from headrace.spark.hub.sink_state import Commit
from headrace.telemetry.tracing import OFF, TracingUnavailable, start
from headrace.telemetry.tracing.otel import OtelTracing

LONG_S = 60
REMOTE_TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{REMOTE_TRACE}-b7ad6b7169203331-01"


class Told:
    """A hub with every listener, and the spans it has told so far."""

    def __init__(self, runtime: Runtime, tracing: OtelTracing, exporter: InMemorySpanExporter) -> None:
        self.runtime = runtime
        self.hub = runtime.hub
        self.tracing = tracing
        self._exporter = exporter

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        self.tracing.flush()
        return [span for span in self._exporter.get_finished_spans() if name in (None, span.name)]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.spans(name)
        return span

    def forget(self) -> None:
        self.tracing.flush()
        self._exporter.clear()


@pytest.fixture
async def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Told]:
    exporter = InMemorySpanExporter()
    tracing = OtelTracing(Section(), exporter)
    monkeypatch.setattr(runtime_module, "start_tracing", lambda config: tracing)
    ports = [f"listen.{name}=127.0.0.1:0" for name in LISTENERS]
    immortals = [f"ambrosia.immortals.{name}.receive=127.0.0.1:0" for name in (TILL, LEDGER)]
    flags = [*ports, *immortals, f"log.data={tmp_path / 'data'}", "futoin.insecure=true"]
    runtime = await Runtime.start(load(environment={}, flags=flags))
    told = Told(runtime, tracing, exporter)
    told.forget()  # what starting did
    try:
        yield told
    finally:
        await runtime.stop()


def attribute(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {}).get(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flow", "protocol"),
    [
        ("orders", "wallaroo"),
        ("readings", "ockam"),
        ("clicks", "futoin"),
        ("prices", "ignite"),
        ("calls", "ambrosia"),
    ],
)
async def test_a_client_of_each_protocol_is_seen_at_the_hub(told: Told, flow: str, protocol: str) -> None:
    sending = make_flows()[flow]
    producer = asyncio.ensure_future(PRODUCERS[flow](sending, told.runtime.addresses))
    await until(lambda: sending.sent >= 2 or producer.done())
    assert not producer.done(), producer
    producer.cancel()
    await asyncio.gather(producer, return_exceptions=True)
    stored = [
        span
        for span in told.spans()
        if span.name in ("hub.append", "hub.transact") and attribute(span, "headrace.protocol") == protocol
    ]
    assert any(attribute(span, "messaging.destination.name") for span in stored)
    assert any(attribute(span, "messaging.batch.message_count") for span in stored)


async def test_one_batch_is_one_span_and_its_commit_links_to_it(told: Told) -> None:
    hub = told.hub.used_by("wallaroo")
    await hub.create_stream("orders")
    told.forget()
    await asyncio.gather(*(hub.append("orders", Batch.of([b"pear"] * 100)) for _ in range(3)))
    appends = told.spans("hub.append")
    assert len(appends) == 3
    assert {attribute(span, "messaging.batch.message_count") for span in appends} == {100}
    assert {attribute(span, "messaging.destination.name") for span in appends} == {"orders"}
    assert {span.kind for span in appends} == {SpanKind.SERVER}
    commits = told.spans("log.commit")
    linked = {link.context.span_id for commit in commits for link in commit.links}
    assert linked == {span.context.span_id for span in appends if span.context}
    assert sum(attribute(commit, "headrace.commit.transactions") for commit in commits) == 3
    assert sum(attribute(commit, "headrace.commit.bytes") for commit in commits) >= 3 * 400
    for commit in commits:
        assert commit.parent is None
        assert commit.start_time is not None
        assert commit.end_time is not None
        assert commit.start_time <= commit.end_time


async def test_a_refusal_is_told_with_its_code(told: Told) -> None:
    hub = told.hub.used_by("ockam")
    with pytest.raises(UnknownStream):
        await hub.append("nowhere", Batch.one(b"x"))
    with pytest.raises(UnknownStream):
        await hub.read("nowhere", 0)
    for name in ("hub.append", "hub.read"):
        span = told.one(name)
        assert span.status.status_code == StatusCode.ERROR
        assert attribute(span, "error.type") == "unknown-stream"


async def test_following_tells_each_batch_and_a_scan_is_one_span(told: Told) -> None:
    hub = told.hub.used_by("futoin")
    await hub.create_stream("orders")
    await hub.append("orders", Batch.of([b"pear"] * 3))
    async for records in hub.follow("orders", 1):
        assert records.num_rows == 2
        break
    assert attribute(told.one("hub.read"), "messaging.batch.message_count") == 2
    assert sum(records.num_rows for records in await asyncio.to_thread(lambda: list(hub.scan("orders", 0, 3)))) == 3
    assert attribute(told.one("hub.scan"), "messaging.batch.message_count") == 3


async def test_cursors_and_tables_have_their_own_names(told: Told) -> None:
    hub = told.hub.used_by("ignite")
    await hub.create_table("prices")
    await hub.put("prices", b"pear", b"1")
    await hub.create_stream("orders")
    await hub.save_cursor("reader", "orders", 0)
    assert attribute(told.one("hub.put"), "messaging.destination.name") == "prices"
    assert attribute(told.one("hub.save_cursor"), "messaging.destination.name") == "orders"


async def test_a_segment_is_told_and_still_made_by_its_own_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, SegmentRef]] = []
    seal = Sealer.seal

    def remember(sealer: Sealer, *order: Any) -> SegmentRef:
        made.append((sealer.pid, seal(sealer, *order)))
        return made[-1][1]

    monkeypatch.setattr(Sealer, "seal", remember)
    exporter = InMemorySpanExporter()
    tracing = OtelTracing(Section(), exporter)
    before_ns = time.time_ns() // 1000 * 1000
    config = Config(log=LogSection(segment_bytes=64 * 1024, seal_apart_bytes=1024))
    hub = await headrace.hub.Hub.open(tmp_path / "data", config, tracing=tracing)
    try:
        stream = await hub.create_stream("orders")
        await hub.append("orders", Batch.of([b"x" * 1024] * 100))
        await until(lambda: hub.segments("orders"))
    finally:
        await hub.close()
        await tracing.close()
    (span,) = [span for span in exporter.get_finished_spans() if span.name == "log.segment"]
    ((pid, ref),) = made
    assert pid != os.getpid()
    assert span.attributes == {
        "headrace.stream.id": stream.id,
        "headrace.index": 0,
        "messaging.batch.message_count": 100,
        "headrace.bytes": ref.bytes,
    }
    assert span.parent is None
    assert span.start_time is not None
    assert span.end_time is not None
    assert before_ns <= span.start_time < span.end_time <= time.time_ns()


async def test_a_range_given_up_elsewhere_stays_in_its_trace(told: Told) -> None:
    hub = told.hub.used_by("flight")
    await hub.create_stream("orders")
    await hub.append("orders", Batch.of([b"pear"] * 3))
    with told.tracing.call("flight.get", {"traceparent": TRACEPARENT}):
        batches = hub.scan("orders", 0, 3)
        next(batches)
    batches.close()  # type: ignore[attr-defined]
    span = told.one("hub.scan")
    assert _trace_of(span) == REMOTE_TRACE
    assert span.status.status_code == StatusCode.UNSET
    assert attribute(span, "messaging.batch.message_count") == 3


async def test_http_continues_the_trace_of_its_caller(told: Told) -> None:
    async with httpx.AsyncClient(base_url=f"http://{told.runtime.addresses['http']}") as client:
        headers = {"traceparent": TRACEPARENT}
        await client.post("/api/v1/stream.create", json={"stream": "orders"}, headers=headers)
        await client.get("/health")
        answer = await client.post("/api/v1/stream.get", json={"stream": "nowhere"})
        assert answer.status_code == 404
    served = told.spans("POST /api")
    assert [attribute(span, "http.response.status_code") for span in served] == [200, 404]
    assert [attribute(span, "url.path") for span in served] == ["/api/v1/stream.create", "/api/v1/stream.get"]
    created = next(span for span in told.spans("hub.transact") if attribute(span, "headrace.protocol") == "admin")
    assert _trace_of(served[0]) == _trace_of(created) == REMOTE_TRACE
    assert created.kind == SpanKind.INTERNAL
    assert _trace_of(served[1]) != REMOTE_TRACE
    assert not [span for span in told.spans() if "health" in span.name]


class Till(Immortal):
    taken: int = 0

    @method
    def take(self, amount: int) -> int:
        if amount < 0:
            raise ValueError("no")
        self.taken += amount
        return self.taken


async def test_a_call_of_an_immortal_is_a_span_in_the_trace_of_its_caller(told: Told) -> None:
    url = f"http://{told.runtime.addresses['http']}/api/immortals/register/take"
    async with serve(Till, "register", hub=told.runtime.addresses["flight"]), httpx.AsyncClient() as client:
        headers = {"traceparent": TRACEPARENT}
        assert (await client.post(url, json={"amount": 5}, headers=headers)).json() == 5
        assert (await client.post(url, json={"amount": -1}, headers=headers)).status_code == 422
    good, bad = told.spans("register.take")
    assert {span.context.trace_id for span in (good, bad) if span.context} == {int(REMOTE_TRACE, 16)}
    assert attribute(good, "headrace.method") == "take"
    assert (attribute(good, "error.type"), attribute(bad, "error.type")) == (None, "method-raised")


class Cashier(Immortal):
    sold: int = 0

    @method
    async def sell(self, amount: int) -> int:
        till = self.proxy(Till, "register")
        first = await till.take(amount)
        return first + await till.take(amount)


async def test_calls_between_immortals_are_in_the_trace_of_the_call_that_led_to_them(told: Told) -> None:
    flight = told.runtime.addresses["flight"]
    url = f"http://{told.runtime.addresses['http']}/api/immortals/desk/sell"
    async with serve(Till, "register", hub=flight), serve(Cashier, "desk", hub=flight), httpx.AsyncClient() as client:
        assert (await client.post(url, json={"amount": 0})).json() == 0  # both have started then
        answer = await client.post(url, json={"amount": 5}, headers={"traceparent": TRACEPARENT})
        assert answer.json() == 15
    mine = [span for span in told.spans() if _trace_of(span) == REMOTE_TRACE]
    (sold,), taken = ([span for span in mine if span.name == name] for name in ("desk.sell", "register.take"))
    assert len(taken) == 2  # the second is made after the answer to the first
    assert sold.context is not None
    for span in taken:
        assert span.parent is not None
        assert (_trace_of(span), span.parent.span_id) == (REMOTE_TRACE, sold.context.span_id)
        assert attribute(span, "headrace.caller") == "desk"
        assert span.end_time is not None


async def test_futoin_continues_the_trace_of_its_caller(told: Told) -> None:
    call = {"f": "futoin.evt.gen:1.0:addEvent", "p": {"type": "ORDER", "data": {"count": 3}}}
    async with httpx.AsyncClient(base_url=f"http://{told.runtime.addresses['http']}") as client:
        answer = await client.post("/futoin/orders", json=call, headers={"traceparent": TRACEPARENT})
        assert "r" in answer.json(), answer.text
    appended = next(span for span in told.spans("hub.append") if attribute(span, "headrace.protocol") == "futoin")
    assert _trace_of(appended) == REMOTE_TRACE


async def test_flight_continues_the_trace_of_an_sdk_in_a_traced_program(told: Told) -> None:
    tracer = TracerProvider().get_tracer("a program")

    def use() -> str:
        with (
            headrace.connect(told.runtime.addresses["flight"]) as hub,
            tracer.start_as_current_span("working") as span,
        ):
            hub.create("orders")
            hub.append("orders", b"pear")
            assert len(list(hub.read("orders"))) == 1
            return f"{span.get_span_context().trace_id:032x}"

    with trace.use_span(trace.INVALID_SPAN):
        expected = await asyncio.to_thread(use)
    for name in ("flight.action", "flight.put", "flight.get", "hub.append", "hub.scan", "hub.transact"):
        assert {_trace_of(span) for span in told.spans(name)} == {expected}, name
    assert {attribute(span, "headrace.verb") for span in told.spans("flight.action")} >= {"stream.create"}
    # A call without a trace does not go on in the one before it.
    await asyncio.to_thread(_list_streams, told.runtime.addresses["flight"])
    assert _trace_of(told.spans("flight.action")[-1]) != expected


def _list_streams(address: str) -> None:
    with headrace.connect(address) as hub:
        hub.streams()


async def test_a_batch_of_spark_is_told(told: Told) -> None:
    commit = Commit(query="counts", run="1", batch=0, parts=[], sources=[], digest="")
    committing = next(verb for verb in told.hub.verbs if verb.name == "spark.commit")
    await committing.handler(commit)
    span = told.one("spark.commit")
    assert attribute(span, "headrace.spark.query") == "counts"
    assert attribute(span, "headrace.spark.outcome") == "stored"
    assert [one for one in told.spans("hub.transact") if one.parent and one.parent.span_id == span.context.span_id]


@pytest.mark.parametrize(("ratio", "kept"), [(0.0, 0), (1.0, 1)])
async def test_the_ratio_is_for_traces_that_begin_here(tmp_path: Path, ratio: float, kept: int) -> None:
    exporter = InMemorySpanExporter()
    tracing = OtelTracing(Section(ratio=ratio), exporter)
    hub = (await headrace.hub.Hub.open(tmp_path / "data", tracing=tracing)).used_by("wallaroo")
    await hub.create_stream("orders")
    tracing.flush()
    exporter.clear()
    await hub.append("orders", Batch.one(b"x"))
    with tracing.call("GET", {"traceparent": TRACEPARENT}):
        await hub.append("orders", Batch.one(b"x"))
    tracing.flush()
    names = [span.name for span in exporter.get_finished_spans()]
    assert names.count("hub.append") == kept + 1  # whoever comes with a trace has decided already
    assert names.count("log.commit") == kept + 1
    await hub.close()
    await tracing.close()


class Collector(BaseHTTPRequestHandler):
    """What a collector does with OTLP over HTTP, as far as we need it."""

    received: list[ExportTraceServiceRequest]
    paths: list[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.paths.append(self.path)
        self.received.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Quiet."""


@pytest.fixture
def collector() -> Iterator[tuple[str, type[Collector]]]:
    handler = type("Handler", (Collector,), {"received": [], "paths": []})
    receiver = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=receiver.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{receiver.server_address[1]}", handler
    finally:
        receiver.shutdown()
        thread.join()
        receiver.server_close()


async def test_a_collector_receives_it_all_by_the_end(tmp_path: Path, collector: tuple[str, type[Collector]]) -> None:
    address, handler = collector
    off = [f"listen.{name}=off" for name in LISTENERS]
    flags = [*off, "listen.http=127.0.0.1:0", f"log.data={tmp_path / 'data'}"]
    flags += [f"tracing.endpoint={address}", "tracing.service_name=mill"]
    runtime = await Runtime.start(load(environment={}, flags=flags))
    async with httpx.AsyncClient(base_url=f"http://{runtime.addresses['http']}") as client:
        await client.post("/api/v1/stream.create", json={"stream": "orders"}, headers={"traceparent": TRACEPARENT})
    await runtime.stop()
    resources = [resource for request in handler.received for resource in request.resource_spans]
    named = {value.key: value.value.string_value for one in resources for value in one.resource.attributes}
    assert named["service.name"] == "mill"
    assert named["service.version"] == headrace.__version__
    spans = [span for one in resources for scope in one.scope_spans for span in scope.spans]
    assert {span.name for span in spans} >= {"POST /api", "hub.transact", "log.commit"}
    assert bytes.fromhex(REMOTE_TRACE) in {span.trace_id for span in spans}
    assert set(handler.paths) == {"/v1/traces"}


def test_an_address_that_is_none_is_told_at_the_start() -> None:
    with pytest.raises(TracingUnavailable, match=r"tracing.endpoint 'collector:4318' is not an address such as"):
        start(load(environment={}, flags=["tracing.endpoint=collector:4318"]).config)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "headrace.telemetry.tracing.otel", None)
    with pytest.raises(TracingUnavailable, match=r"install headrace\[otel\]"):
        start(load(environment={}, flags=["tracing.endpoint=http://127.0.0.1:4318"]).config)


def test_off_is_off() -> None:
    assert start(load(environment={}, flags=[]).config) is OFF
    hooks = Hooks()
    OFF.subscribe(hooks)
    assert not any(vars(hooks).values())
    app = object()
    assert OFF.app(app, []) is app
    with OFF.call("x", {}) as call, OFF.span("x") as span:
        call.set_attribute("a", 1)
        span.set_attribute("a", 1)


def test_a_hub_without_traces_loads_nothing_of_them() -> None:
    script = (
        "import sys, headrace, headrace.serving.runtime\n"
        "for entry in [*headrace.serving.runtime.LISTENERS.values(), *headrace.serving.runtime.SERVICES.values()]:\n"
        "    headrace.serving.runtime.load_entry(entry)\n"
        "loaded = [name for name in sys.modules if name.startswith(('opentelemetry', 'headrace.telemetry.tracing.'))]\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _trace_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.trace_id:032x}"
