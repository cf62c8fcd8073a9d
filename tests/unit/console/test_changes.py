"""What changed before an alarm: figures that left where they had been, and what happened."""

from __future__ import annotations

import pytest

from headrace.config import Grant
from headrace.console.changes import CHANGES_MAX, Changes, ChangesRequest, changed
from headrace.console.history import NAMED_MAX, History, Moment
from headrace.console.pipelines import PipelineViews
from headrace.console.traffic import Traffic
from headrace.console.views import Views
from headrace.security import Principal, acting_as
from headrace.testing import FakeClock, memory_hub


def moment(**known: object) -> Moment:
    figures = {"records_in": 0.0, "records_out": 0.0, "commit_p50_ms": None, "commit_p99_ms": None}
    return Moment(**({"time_us": 0, "sessions": 0, "lag": 0, "alarms": 0} | figures | known))  # type: ignore[arg-type]


def test_what_doubled_or_halved_is_told_the_greatest_change_first() -> None:
    earlier = [moment(rates={"orders": 100.0, "steady": 50.0}, commit_p99_ms=4.0, sessions=10)] * 3
    near = [moment(rates={"steady": 60.0}, commit_p99_ms=12.0, sessions=9, lags=[("orders", "billing", 4000)])]
    told = [(each.what, each.was, each.became) for each in changed(earlier, near)]
    assert told == [
        ("Cursor billing in orders", 0, 4000),
        ("Stream orders", 100.0, 0.0),
        ("Append to durable, p99", 4.0, 12.0),
    ]
    assert [each.page for each in changed(earlier, near)][:2] == [["stream", "orders"]] * 2


def test_what_nobody_would_notice_is_no_change() -> None:
    assert changed([moment(rates={"s": 0.1}, commit_p99_ms=1.0)], [moment(rates={"s": 0.9}, commit_p99_ms=4.0)]) == []
    assert changed([], [moment(records_in=5.0)]) == [], "there is nothing to compare with"
    assert changed([moment(records_in=5.0)], []) == []


def test_a_stream_that_a_moment_does_not_name_is_not_taken_for_silent() -> None:
    busy = {f"s{number}": 100.0 for number in range(NAMED_MAX)}
    assert changed([moment(rates={"quiet": 10.0})], [moment(rates=busy)])[0].what != "Stream quiet"
    many = changed([moment()], [moment(rates={f"s{number}": 9.0 for number in range(NAMED_MAX - 1)}, lags=[])])
    assert len(many) == NAMED_MAX - 1
    lags = [(f"s{number}", "c", 50) for number in range(NAMED_MAX + 5)]
    assert len(changed([moment()], [moment(lags=lags)])) == CHANGES_MAX


@pytest.mark.parametrize(("may_read", "told"), [("*", ["Stream orders"]), ("other", [])])
async def test_the_verb_compares_the_last_five_minutes_for_those_who_may_read(may_read: str, told: list[str]) -> None:
    async with memory_hub(clock=FakeClock()) as hub:
        assert isinstance(hub.clock, FakeClock)
        history = History(hub, Views(hub), PipelineViews(hub, Traffic(hub)))
        changes = Changes(hub, history)
        changes.register()
        for minute in range(30):
            hub.clock.advance(60)
            rates = {"orders": 100.0 if minute < 25 else 0.0}
            rows = [moment(time_us=hub.clock.now_us(), rates=rates)]
            history._moments = lambda gathered, rows=rows: iter(rows)  # type: ignore[method-assign,misc]
            await history.write()
        asked = ChangesRequest(hub.clock.now_us())
        with acting_as(Principal("m", (), (Grant(rights=["read"], streams=[may_read]),))):
            view = await changes.changes(asked)
        assert [each.what for each in view.changes] == told
        assert view.events[0].kind == "start"
