"""The console's verbs, its pulse and its server, without a browser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.until import until

from headrace.config import Config, Grant, Http, Listen, SecuritySection, User
from headrace.console import pulse as pulse_module
from headrace.console.pipelines import PipelineViews
from headrace.console.pulse import Pulse, Quantiles, Sample, Shown
from headrace.console.server import Console, load_files, start
from headrace.console.traffic import Traffic
from headrace.console.views import RateHistory
from headrace.errors import BadRequest, LimitExceeded
from headrace.hub import Hub
from headrace.hub.verbs import Nothing
from headrace.log.batch import Batch
from headrace.log.ops import StreamOptions
from headrace.security import EVERYTHING, Principal
from headrace.security.admission import Nobody
from headrace.spark.hub.registry import Definition, Registry
from headrace.spark.pipelines.report import Report
from headrace.telemetry.metrics import Metrics
from headrace.testing import FakeClock, memory_hub

TIMEOUT_S = 60.0


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with memory_hub(clock=FakeClock()) as made:
        yield made


async def ask(hub: Hub, verb: str, **request: Any) -> Any:
    principal = hub.admission.admit_now("http", "", Nobody())
    return msgspec.json.decode(await hub.verbs.call_json(verb, msgspec.json.encode(request), principal))


async def get(
    app: Console, path: str, method: str = "GET", headers: tuple[tuple[bytes, bytes], ...] = (), query: bytes = b""
) -> Any:
    """Status, headers and body of one request."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(3600)
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": list(headers), "query_string": query}
    await asyncio.wait_for(app(scope, receive, send), TIMEOUT_S)
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], dict(sent[0]["headers"]), body


async def test_streams_come_in_pages_sorted_and_filtered(hub: Hub) -> None:
    listener = await start(hub)
    assert listener is not None
    for number in range(25):
        await hub.create_stream(f"s{number:02}", options=StreamOptions(retention_age_s=60.0, retention_cursors=True))
    await hub.append("s07", Batch.of([b"x"] * 5))
    await hub.save_cursor("c", "s07", 2)
    hub.sessions.open("ockam", "10.0.0.1:1", lambda: {}).uses("write", "s07")
    page = await ask(hub, "console.streams", limit=10, offset=20)
    assert (page["total"], [row["name"] for row in page["rows"]]) == (25, [f"s{n}" for n in range(20, 25)])
    page = await ask(hub, "console.streams", order="records", limit=1)
    assert page["rows"][0] == {
        "name": "s07",
        "partitions": 1,
        "first": 0,
        "next": 5,
        "records": 5,
        "bytes": hub.stored_bytes("s07"),
        "rate": 0.0,
        "writers": 1,
        "readers": 0,
        "cursors": 1,
        "lag": 3,
        "retention": "60 s, until all cursors have read them",
        "ack": "durable",
    }
    assert page["rows"][0]["bytes"] >= 5
    assert (await ask(hub, "console.streams", order="bytes", limit=1))["rows"] == page["rows"]
    assert (await ask(hub, "console.streams", text="s1*"))["total"] == 10
    assert (await ask(hub, "console.streams", text="7"))["total"] == 2
    assert (await ask(hub, "console.streams", order="rate", descending=True))["total"] == 25
    assert (await ask(hub, "console.streams", kind="table"))["total"] == 0
    for wrong in ({"limit": 0}, {"limit": 501}, {"offset": -1}):
        with pytest.raises(BadRequest):
            await ask(hub, "console.streams", **wrong)
    await listener.close()


async def test_a_record_is_shown_as_each_protocol_sends_it(hub: Hub) -> None:
    listener = await start(hub)
    assert listener is not None
    await hub.create_stream("s")
    await hub.append("s", Batch.one(b'{"a":1}', type="T", key=b"k", event_time=5))
    frames = await ask(hub, "record.frames", stream="s", index=0)
    assert len(frames) == 5
    with pytest.raises(BadRequest, match="has no record 1"):
        await ask(hub, "record.frames", stream="s", index=1)
    await listener.close()


async def test_the_pulse_counts_what_happens(hub: Hub) -> None:
    pulse = Pulse(hub)
    await hub.create_stream("s")
    pulse.sample()
    await hub.append("s", Batch.of([b"x"] * 10))
    await hub.read("s", 0)
    sample = pulse.sample()
    assert sample.records_in > 0
    assert sample.records_out > 0
    assert sample.commits > 0
    assert sample.commit_p50_ms is not None
    assert sample.streams == 1
    assert pulse.sample().commit_p99_ms is None
    await pulse.close()


async def test_watchers_are_bounded_by_a_setting_and_slow_ones_are_cut_off() -> None:
    async with memory_hub(Config(http=Http(console_pages_max=2)), clock=FakeClock()) as hub:
        pulse = Pulse(hub)
        watchers = [pulse.watch(), pulse.watch()]
        for watcher in watchers:
            await anext(watcher)
        assert b"headrace_console_pages 2.0" in hub.metrics.text()
        with pytest.raises(LimitExceeded, match="http.console_pages_max"):
            await anext(pulse.watch())
        assert b'headrace_console_refused_total{limit="http.console_pages_max"} 1.0' in hub.metrics.text()
        for _ in range(pulse_module.WAITING_MAX + 1):
            pulse._publish(pulse.sample())
        seen = [samples async for samples in watchers[0]]
        assert 0 < len(seen) <= pulse_module.WAITING_MAX + 1
        await pulse.close()
        async for _ in watchers[1]:
            pass


async def test_a_hub_that_stops_ends_the_watching(hub: Hub) -> None:
    pulse = Pulse(hub)
    watcher = pulse.watch()
    await anext(watcher)
    hub.stopping.set()
    assert len([samples async for samples in watcher]) <= 2
    await pulse.close()


@pytest.mark.parametrize("waiting", [0, 2])
async def test_whoever_loses_the_right_to_watch_is_told_so_and_nothing_else(hub: Hub, waiting: int) -> None:
    """Not even what waited to be sent."""
    pulse = Pulse(hub)
    reader = Principal("m", ("reader",), (Grant(rights=["read"]),), lambda: None)
    watcher = pulse.watch(None, reader)
    await anext(watcher)
    pulse._publish(pulse.sample())
    assert (await anext(watcher)).name == "pulse"
    for _ in range(waiting):
        pulse._publish(pulse.sample())
    for changed in reader.renew():
        changed()
    [last] = [event async for event in watcher]
    assert (last.name, b"unauthenticated" in last.data) == ("refused", True)
    assert not reader.renew(), "nobody watches any more"
    await pulse.close()


def test_quantiles_are_of_what_came_since_the_last_look() -> None:
    histogram = Metrics().log.commit_seconds
    quantiles = Quantiles(histogram)
    assert quantiles.take(0.5) == [None]
    for _ in range(99):
        histogram.observe(0.0009)
    histogram.observe(100)
    assert quantiles.take(0.5, 1.0) == [0.001, 10.0]
    histogram.observe(0.2)
    assert quantiles.take(0.5) == [0.25]


async def test_files_have_a_strict_policy(hub: Hub) -> None:
    pulse = Pulse(hub)
    app = Console(hub, pulse)
    for path, (contents, _) in load_files().items():
        status, headers, body = await get(app, path)
        assert (status, body) == (200, contents)
        assert b"script-src 'self'" in headers[b"content-security-policy"]
        assert b"unsafe" not in headers[b"content-security-policy"]
    assert (await get(app, "/none"))[0] == 404
    assert (await get(app, "/", "POST"))[0] == 405
    assert {"/", "/console/app.js"} <= load_files().keys()
    await pulse.close()


async def test_scripts_are_asked_for_at_once_and_only_if_they_have_changed(hub: Hub) -> None:
    pulse = Pulse(hub)
    app = Console(hub, pulse)
    _, _, page = await get(app, "/")
    for path in load_files():
        assert not path.endswith(".js") or f'<link rel="modulepreload" href="{path}">'.encode() in page
        _, headers, _ = await get(app, path)
        assert (await get(app, path, headers=((b"if-none-match", headers[b"etag"]),)))[0::2] == (304, b"")
        assert (await get(app, path, headers=((b"if-none-match", b'"other"'),)))[0] == 200
    await pulse.close()


async def test_a_pulse_stays_small_however_much_is_wrong(hub: Hub) -> None:
    await hub.create_stream("s")
    await hub.append("s", Batch.of([b"x"]))
    for number in range(300):
        await hub.save_cursor(f"a-consumer-with-a-long-name-{number}", "s", 0)
    assert isinstance(hub.clock, FakeClock)
    hub.clock.advance(61)
    pulse = Pulse(hub)
    assert len(msgspec.json.encode(pulse.sample().shown_to(EVERYTHING))) < 8_000
    await pulse.close()


def test_the_whole_page_is_light() -> None:
    assert sum(len(contents) for contents, _ in load_files().values()) < 300_000


async def test_the_page_names_no_other_host() -> None:
    for path, (contents, _) in load_files().items():
        assert b"https://" not in contents, path
        assert b"http://" not in contents.replace(b"http://www.w3.org/2000/svg", b""), path
        assert b"innerHTML" not in contents, path


async def test_a_record_of_no_year_that_python_knows_is_shown(hub: Hub) -> None:
    listener = await start(hub)
    assert listener is not None
    await hub.create_stream("s")
    await hub.append("s", Batch.of([b"x"], event_times=[2**62]))
    assert len(await ask(hub, "record.frames", stream="s", index=0)) == 5
    await listener.close()


async def test_a_broken_users_file_is_an_alarm_and_not_the_end_of_the_pulse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse_module, "INTERVAL_S", 0.01)
    async with memory_hub(Config(listen=Listen(http="0.0.0.0:80"))) as hub:
        hub.security.users_file.path = tmp_path / "users.json"
        hub.security.users_file.path.write_text("{")
        pulse = Pulse(hub)
        watching = pulse.watch()
        seen = [(await asyncio.wait_for(anext(watching), TIMEOUT_S)).data for _ in range(3)]
        assert seen[-1].count(b'"title":"the users file cannot be read, so nobody can sign in') == 1
        await pulse.close()


async def test_one_second_without_numbers_is_not_the_end_of_the_pulse(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pulse_module, "INTERVAL_S", 0.01)
    troubles = [OSError("no disk")]

    async def beside(sample: Sample) -> None:
        if troubles:
            raise troubles.pop()

    pulse = Pulse(hub, beside)
    watching = pulse.watch()
    for _ in range(4):
        await asyncio.wait_for(anext(watching), TIMEOUT_S)
    assert "the console could not be updated" in caplog.text
    await pulse.close()


async def test_a_page_too_many_is_told_so() -> None:
    async with memory_hub(Config(http=Http(console_pages_max=1)), clock=FakeClock()) as hub:
        pulse = Pulse(hub)
        watcher = pulse.watch()
        await anext(watcher)
        status, _, body = await get(Console(hub, pulse), "/console/live")
        assert (status, b"open console pages" in body) == (LimitExceeded.status, True)
        await pulse.close()
        async for _ in watcher:
            pass


async def test_the_pulse_needs_the_right_to_read() -> None:
    security = SecuritySection(
        users={"w": User(secret="pw", roles=["writes"]), "r": User(secret="pw", roles=["reader"])},
        roles={"writes": [Grant(rights=["write"])]},
    )
    async with memory_hub(Config(security=security)) as hub:
        pulse = Pulse(hub)
        app = Console(hub, pulse)
        assert (await get(app, "/console/live"))[0] == 401
        assert (await get(app, "/console/live", headers=((b"authorization", b"Basic dzpwdw=="),)))[0] == 403
        task = asyncio.create_task(get(app, "/console/live", headers=((b"authorization", b"Basic cjpwdw=="),)))
        await until(lambda: pulse._watchers)
        await pulse.close()
        status, _, body = await task
        assert status == 200
        name, data = body.splitlines()[:2]
        assert name == b"event: pulse"
        assert "records_in" in msgspec.json.decode(data.removeprefix(b"data: "))[0]


async def test_a_websocket_is_refused(hub: Hub) -> None:
    pulse = Pulse(hub)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await Console(hub, pulse)({"type": "websocket"}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]
    await pulse.close()


async def test_it_can_be_switched_off() -> None:
    async with memory_hub(Config(http=Http(console=False))) as hub:
        assert await start(hub) is None
        assert list(hub.mounts) == []


async def test_one_stream_says_who_writes_and_who_reads(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = await start(hub)
    assert listener is not None
    await hub.create_stream("s", partitions=2)
    await hub.append("s", Batch.of([b"x"] * 4), partition=1, producer="till", sequence=9)
    await hub.save_cursor("late", "s", 1, partition=1)
    writer = hub.sessions.open("ockam", "10.0.0.1:1", lambda: {})
    writer.uses("write", "s")
    hub.sessions.open("flight", "10.0.0.2:1", lambda: {}).uses("read", "s")
    seen = await ask(hub, "console.stream", stream="s")
    assert seen["bounds"] == [[0, 0], [0, 4]]
    assert seen["producers"] == [{"name": "till", "partition": 1, "sequence": 9}]
    assert [(one["protocol"], one["peer"]) for one in seen["writers"]] == [("ockam", "10.0.0.1:1")]
    assert [(one["protocol"], one["peer"]) for one in seen["readers"]] == [("flight", "10.0.0.2:1")]
    assert [(one["name"], one["lag"]) for one in seen["cursors"]] == [("late", 3)]
    assert seen["row"]["bytes"] == hub.stored_bytes("s") > 0
    writer.close()
    assert (await ask(hub, "console.stream", stream="s"))["writers"] == []
    await listener.close()


def test_rates_are_of_the_time_between_two_looks() -> None:
    history = RateHistory()
    assert history.look(10.0, 100) == []
    assert history.look(10.2, 150) == []
    assert history.look(12.0, 300) == [100.0]
    assert history.look(13.0, 300) == [100.0, 0.0]


async def test_a_page_hears_when_its_stream_moves(hub: Hub) -> None:
    await hub.create_stream("s")
    await hub.append("s", Batch.of([b"x"] * 3))
    pulse = Pulse(hub)
    events = pulse.watch(Shown("s", 0, 3))
    assert (await anext(events)).name == "pulse"

    async def moved() -> int:
        async with asyncio.timeout(TIMEOUT_S):
            while (event := await anext(events)).name != "moved":
                pass
        return int(event.data)

    await hub.append("s", Batch.of([b"x"] * 2))
    assert await moved() == 5
    for _ in range(20):
        await hub.append("s", Batch.one(b"x"))
    heard = [await moved()]
    while heard[-1] < 25:
        heard.append(await moved())
    assert len(heard) < 20, "not one word for each record"
    await hub.delete_stream("s")
    await pulse.close()


async def test_a_stream_is_shown_only_to_who_may_read_it() -> None:
    security = SecuritySection(
        users={"r": User(secret="pw", roles=["some"])}, roles={"some": [Grant(rights=["read"], streams=["mine*"])]}
    )
    async with memory_hub(Config(security=security)) as hub:
        await hub.create_stream("mine")
        await hub.create_stream("other")
        pulse = Pulse(hub)
        app = Console(hub, pulse)
        known = ((b"authorization", b"Basic cjpwdw=="),)
        assert (await get(app, "/console/live", headers=known, query=b"stream=other"))[0] == 403
        assert (await get(app, "/console/live", headers=known, query=b"stream=mine.no"))[0] == 404
        assert (await get(app, "/console/live", headers=known, query=b"stream=mine&next=x"))[0] == 400
        await pulse.close()


async def test_pipelines_have_a_past(hub: Hub) -> None:
    views = PipelineViews(hub, Traffic(hub))
    await views.take()
    assert await views.pipelines(Nothing()) == [], "this hub has no Spark"
    registry = Registry(hub)
    registry.register()
    await registry.report(Report("p", run="r", rows_per_s=5.0, batch_ms=20.0, lag=3, state_bytes=7))
    await views.take()
    await registry.report(Report("p", run="r", state="stopped", rows_per_s=5.0, lag=2))
    await views.take()
    [row] = await views.pipelines(Nothing())
    assert row.status.state == "stopped"
    assert (row.reads, row.writes) == ([], [])
    await registry.create(Definition("p", sql="select 1 from stream('a')", into="b"))
    [row] = await views.pipelines(Nothing())
    assert (row.reads, row.writes) == (["a"], ["b"])
    assert [(one.rows_per_s, one.batch_ms, one.lag, one.state_bytes) for one in row.history] == [
        (5.0, 20.0, 3, 7),
        (0.0, 0.0, 2, 0),
    ]
