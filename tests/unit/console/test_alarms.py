"""Alarms: what they say, to whom, where they lead, and who has muted them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from headrace.config import Config, Grant, Http, Listen
from headrace.console import alarms as alarms_module
from headrace.console.alarms import MUTES, Alarm, Alarms, MuteRequest, UnmuteRequest, told_to
from headrace.console.pipelines import PipelineViews
from headrace.console.pulse import Pulse
from headrace.console.server import start
from headrace.console.traffic import Traffic
from headrace.errors import BadRequest, LimitExceeded
from headrace.hub import Hub
from headrace.log.batch import Batch
from headrace.security import EVERYTHING, Principal
from headrace.security.admission import Nobody
from headrace.spark.hub.registry import Registry
from headrace.spark.pipelines.report import Report
from headrace.testing import FakeClock, memory_hub

MINE = Principal("m", (), (Grant(rights=["read"], streams=["mine"]),))


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with memory_hub(clock=FakeClock()) as made:
        yield made


async def ask(hub: Hub, verb: str, **request: Any) -> Any:
    principal = hub.admission.admit_now("http", "", Nobody())
    return msgspec.json.decode(await hub.verbs.call_json(verb, msgspec.json.encode(request), principal))


def later(hub: Hub, seconds: float) -> None:
    assert isinstance(hub.clock, FakeClock)
    hub.clock.advance(seconds)


async def leave_behind(hub: Hub, stream: str, *cursors: str, records: int = 1, partitions: int = 1) -> None:
    """Cursors that will be stuck in a minute, in all partitions of a new stream."""
    await hub.create_stream(stream, partitions=partitions)
    for partition in range(partitions):
        await hub.append(stream, Batch.of([b"x"] * records), partition=partition)
        for cursor in cursors:
            await hub.save_cursor(cursor, stream, 0, partition=partition)


async def test_cursors_say_whether_they_are_stuck(hub: Hub) -> None:
    listener = await start(hub)
    assert listener is not None
    await leave_behind(hub, "s", "late", records=5)
    await hub.save_cursor("done", "s", 5)
    later(hub, 100)
    rows = await ask(hub, "console.cursors")
    assert [(row["name"], row["lag"], row["age_s"], row["stuck"]) for row in rows] == [
        ("late", 5, 100.0, True),
        ("done", 0, 100.0, False),
    ]
    assert [row["name"] for row in await ask(hub, "console.cursors", text="done")] == ["done"]
    await listener.close()


async def test_a_cursor_that_stopped_is_one_alarm_that_leads_to_its_stream(hub: Hub) -> None:
    await leave_behind(hub, "s", "late", records=4, partitions=3)
    await leave_behind(hub, "one", "late")
    await hub.save_cursor("quick", "s", 4)
    assert list(Alarms(hub).stuck()) == []
    since_us = hub.clock.now_us()
    later(hub, 61)
    one, three = Alarms(hub).stuck()
    assert (one.title, one.detail) == ("Cursor late in one has stopped", "1 record waits.")
    assert three == Alarm(
        "cursor/s/late",
        "cursor",
        "Cursor late in s has stopped",
        "12 records wait in 3 partitions.",
        ["stream", "s"],
        since_us,
        "s",
    )


async def test_a_cursor_that_only_holds_records_is_no_alarm(hub: Hub) -> None:
    await leave_behind(hub, "prices", "prices-persist", "reader")
    later(hub, 61)
    assert [alarm.key for alarm in Alarms(hub).stuck()] == ["cursor/prices/reader"]
    listener = await start(hub)
    assert listener is not None
    rows = {row["name"]: row for row in await ask(hub, "console.cursors")}
    assert (rows["prices-persist"]["holds"], rows["prices-persist"]["lag"]) == (True, 0)
    assert (rows["reader"]["holds"], rows["reader"]["lag"]) == (False, 1)
    await listener.close()


async def test_very_many_are_counted(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarms_module, "STUCK_SAID", 2)
    monkeypatch.setattr(alarms_module, "STUCK_KEPT", 4)
    await leave_behind(hub, "s", "a", "b", "c", "d", "e")
    await leave_behind(hub, "mine", "m")
    later(hub, 61)
    known = Alarms(hub).take()
    *said, rest = told_to(EVERYTHING, known)
    assert [one.key for one in said] == ["cursor/mine/m", "cursor/s/a"]
    assert (rest.title, rest.page) == ("4 more cursors have stopped", ["cursors"])
    assert [one.key for one in told_to(MINE, known)] == ["cursor/mine/m"]
    monkeypatch.setattr(alarms_module, "STUCK_SAID", 5)
    assert told_to(EVERYTHING, known)[-1].title == "2 more cursors have stopped"
    monkeypatch.setattr(alarms_module, "STUCK_SAID", 6)
    assert told_to(EVERYTHING, known) == known


@pytest.mark.parametrize(("free_bytes", "expected"), [(1 << 30, []), ((1 << 30) - 1, ["The disk has 1024.0 MiB left"])])
async def test_a_disk_that_is_nearly_full_is_an_alarm(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, free_bytes: int, expected: list[str]
) -> None:
    gauges = hub.gauges() | {"free_bytes": float(free_bytes)}
    monkeypatch.setattr(type(hub), "gauges", lambda self: gauges)
    assert [alarm.title for alarm in Alarms(hub).take()] == expected


async def test_a_pipeline_that_failed_is_an_alarm_with_its_error(hub: Hub) -> None:
    registry = Registry(hub)
    registry.register()
    await registry.report(Report(name="sums", state="failed", error="column x is missing\nat line 3"))
    await registry.report(Report(name="fine"))
    views = PipelineViews(hub, Traffic(hub))
    await views.take()
    [alarm] = views.alarms()
    assert (alarm.title, alarm.detail, alarm.page) == (
        "Pipeline sums has failed",
        "column x is missing",
        ["pipelines", "sums"],
    )
    assert alarm.shown_to(MINE) is None, "whoever may not read all streams is not told of pipelines"


async def test_a_listener_that_is_open_to_all_is_an_alarm() -> None:
    async with memory_hub(Config(listen=Listen(http="0.0.0.0:80"))) as hub:
        first, *_ = Alarms(hub).take()
        assert first.kind == "warning"
        assert first.title.startswith("listener 'http' on 0.0.0.0:80 is open to other machines")
        assert first.page == ["users"]


async def test_alarms_name_only_streams_that_the_watcher_may_read(hub: Hub) -> None:
    await leave_behind(hub, "mine", "mine-cursor")
    await leave_behind(hub, "secret", "secret-cursor")
    later(hub, 120)
    pulse = Pulse(hub)
    pulse._publish(pulse.sample())
    event = await anext(pulse.watch(None, MINE))
    assert b"mine-cursor" in event.data
    assert b"secret" not in event.data
    assert b"secret-cursor" in (await anext(pulse.watch())).data
    await pulse.close()


async def test_only_the_last_sample_of_the_past_says_what_is_wrong(hub: Hub) -> None:
    await leave_behind(hub, "s", "late")
    later(hub, 120)
    pulse = Pulse(hub)
    for _ in range(3):
        pulse._publish(pulse.sample())
    samples = msgspec.json.decode((await anext(pulse.watch())).data)
    assert [len(sample["alarms"]) for sample in samples] == [0, 0, 1]
    await pulse.close()


async def test_why_the_hub_is_not_ready_is_for_those_who_may_read_all(hub: Hub) -> None:
    hub.health.check("damage", lambda: "records of secret are damaged")
    [alarm] = Alarms(hub).take()
    assert (alarm.title, alarm.detail) == ("The hub is not ready: damage", "records of secret are damaged")
    shown = alarm.shown_to(MINE)
    assert shown is not None
    assert shown.detail == "those who may read every stream are told why"


async def test_a_mute_says_who_until_when_and_why_and_ends_by_itself(hub: Hub) -> None:
    await leave_behind(hub, "s", "late")
    later(hub, 61)
    alarms = Alarms(hub)
    alarms.register()
    made = await ask(hub, "alarm.mute", alarm="cursor/s/late", for_s=60, note="it is being replaced")
    assert made == {"by": "anonymous", "until_us": hub.clock.now_us() + 60_000_000, "note": "it is being replaced"}
    [alarm] = alarms.take()
    assert alarm.muted is not None
    assert msgspec.to_builtins(alarm.muted) == made
    assert Alarms(hub).take() == [alarm], "another page, or the next start of the hub, knows it"
    later(hub, 61)
    assert alarms.take()[0].muted is None
    await ask(hub, "alarm.mute", alarm="other", for_s=60)
    assert [key for key, _ in hub.items(MUTES)] == [b"other"], "what is over is not kept"
    await ask(hub, "alarm.unmute", alarm="other")
    await ask(hub, "alarm.unmute", alarm="was never muted")
    assert list(hub.items(MUTES)) == []


async def test_mutes_are_bounded_by_a_setting_and_counted() -> None:
    async with memory_hub(Config(http=Http(console_mutes_max=2)), clock=FakeClock()) as hub:
        alarms = Alarms(hub)
        alarms.register()
        for name in ("a", "b", "b"):
            await alarms.mute(MuteRequest(name, 60))
        with pytest.raises(LimitExceeded, match="http.console_mutes_max"):
            await alarms.mute(MuteRequest("c", 60))
        text = hub.metrics.text()
        assert b"headrace_console_mutes 2.0" in text
        assert b'headrace_console_refused_total{limit="http.console_mutes_max"} 1.0' in text
        await alarms.unmute(UnmuteRequest("a"))
        await alarms.mute(MuteRequest("c", 60))


async def test_a_mute_names_an_alarm_and_lasts_for_some_time_but_not_for_ever(hub: Hub) -> None:
    Alarms(hub).register()
    for wrong in ({"for_s": 0}, {"for_s": alarms_module.MUTED_S_MAX + 1}, {"for_s": 1, "alarm": ""}):
        with pytest.raises(BadRequest):
            await ask(hub, "alarm.mute", **({"alarm": "c"} | wrong))
