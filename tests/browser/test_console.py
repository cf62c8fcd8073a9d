"""The console's pages about the hub and its streams, in a real browser."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import Page, Route, expect
from support.hub_process import HubProcess
from support.until import wait_until

import headrace

pytestmark = [pytest.mark.browser, pytest.mark.slow]

OpenPage = Callable[[str], Page]


TITLES = (
    *("Map", "Streams", "Tables", "Query", "Cursors", "Pipelines", "Dead letters"),
    *("Sessions", "Immortals", "Executions"),
    *("Overview", "History", "Cluster", "Users", "Settings"),
)


def test_every_page_opens(hub: HubProcess, open_page: OpenPage) -> None:
    page = open_page(hub.page)
    links = page.locator("#nav a")
    expect(links).to_have_text(list(TITLES))
    for title in TITLES:
        page.locator("#nav").get_by_text(title, exact=True).last.click()
        expect(page.locator("h1")).to_have_text(title)
        expect(page.locator("#pulse")).to_contain_text("records/s in")
        expect(page.locator("nav a[aria-current]")).to_have_text(title)
        expect(page.locator("main .alarm.bad")).to_be_hidden()
        expect(page).to_have_title(f"{title} · Headrace")


def test_the_overview_lives(hub: HubProcess, client: headrace.Client, open_page: OpenPage) -> None:
    client.call("stream.create", {"stream": "busy"})
    page = open_page(f"{hub.page}/#/overview")
    card = page.locator(".card", has_text="Records in and out")
    expect(card.locator(".figure")).to_be_visible()
    expect(page.get_by_label("Listeners")).to_contain_text("wallaroo")
    expect(page.get_by_label("Alarms")).to_contain_text("All is well.")
    for _ in range(20):
        client.append("busy", [b"x"] * 100)
        if not card.locator(".figure").inner_text().startswith("0 in"):
            break
        page.wait_for_timeout(200)
    expect(card.locator(".figure")).not_to_contain_text(re.compile(r"^0 in"))
    expect(card.locator("path.line")).to_have_count(2)
    for title, unit in (
        ("Append to durable", re.compile(r"ms p99|no commits")),
        ("Payload in", re.compile(r"B/s")),
        ("Sealed on disk", re.compile(r"B .* free")),
        ("Memory used by the hub", re.compile(r"MiB resident")),
        ("Open sessions", re.compile(r"across all protocols")),
    ):
        figure = page.locator(".card", has_text=title).locator(".figure")
        expect(figure).to_have_text(unit)
    card.locator(".chart").hover()
    expect(card.locator(".chart-read")).to_contain_text("records/s")


def test_a_cursor_that_is_stuck_says_why(hub: HubProcess, client: headrace.Client, open_page: OpenPage) -> None:
    """What the hub says after a minute is said by this test instead."""
    client.call("stream.create", {"stream": "left"})
    client.append("left", [b"x"])
    client.call("cursor.save", {"cursor": "gone", "stream": "left", "index": 0})
    page = open_page(hub.page)

    def a_minute_later(route: Route) -> None:
        rows = route.fetch().json()
        route.fulfill(json=[row | {"age_s": 61.0, "stuck": True} for row in rows])

    page.route("**/api/v1/console.cursors", a_minute_later)
    page.get_by_role("link", name="Cursors").click()
    row = page.locator("tr", has_text="gone")
    expect(row).to_contain_text("stopped 1 record waits. No session that reads this stream is open.")
    expect(row).to_contain_text("61 s ago")


LIVE = """
const fetched = window.fetch;
const words = new TextEncoder().encode(%s);
window.fetch = (where, ...rest) => {
  if (!String(where).startsWith("/console/live")) return fetched(where, ...rest);
  const body = new ReadableStream({ start(to) { to.enqueue(words); setInterval(() => to.enqueue(words), 1000); } });
  return Promise.resolve(new Response(body, { headers: { "Content-Type": "text/event-stream" } }));
};
"""
"""Has a page hear these words from its hub, again and again."""


@pytest.fixture
def calm(client: headrace.Client) -> None:
    """A hub that has nothing to complain of, whatever the tests before have left behind: a cursor that one of them has
    forgotten is an alarm a minute later."""
    for cursor in client.call("cursor.list", {}):
        client.call(
            "cursor.delete", {name: cursor[name] for name in ("stream", "partition")} | {"cursor": cursor["name"]}
        )
    for pipeline in client.call("pipeline.list", {}):
        client.call("pipeline.report", {"name": pipeline["name"], "state": "done"})


def test_alarms_are_grouped_and_lead_somewhere(
    hub: HubProcess, client: headrace.Client, calm: None, open_page: OpenPage
) -> None:
    """What the hub says after a minute is said by this test instead."""
    client.call("stream.create", {"stream": "late/one", "exist_ok": True})
    page = open_page(f"{hub.page}/#/overview")
    expect(page.get_by_label("Alarms")).to_contain_text("All is well.")
    since_us = (time.time() - 1500) * 1e6
    late = [
        {
            "key": f"cursor/late/one/c{number}",
            "kind": "cursor",
            "title": f"Cursor c{number} in late/one has stopped",
            "detail": "1 record waits.",
            "page": ["stream", "late/one"],
            "since_us": since_us,
        }
        for number in range(6)
    ]
    late[5]["muted"] = {"by": "ann", "until_us": (time.time() + 3600) * 1e6, "note": "moved house"}
    disk = {"key": "disk", "kind": "disk", "title": "The disk is full <b>!</b>"}

    sample = {"time_ms": 9e15, "sessions": {}, "alarms": [disk, *late]}
    numbers = dict.fromkeys(("records_in", "records_out", "bytes_in", "commits", "queue_bytes", "tail_bytes"), 0)
    numbers |= dict.fromkeys(("segment_bytes", "free_bytes", "resident_bytes", "streams", "tables"), 0)
    data = json.dumps([sample | numbers | {"commit_p50_ms": None, "commit_p99_ms": None}])
    page.add_init_script(LIVE % json.dumps(f"event: pulse\ndata: {data}\n\n"))
    page.reload()
    alarms = page.get_by_label("Alarms")
    expect(alarms.locator("[data-kind=disk]")).to_contain_text("The disk is full <b>!</b>")
    group = alarms.locator("[data-kind=cursor]")
    expect(group.locator("h2")).to_have_text("Consumers have stopped5")
    expect(group.locator("li")).to_have_count(4)
    expect(group.locator("li").first).to_contain_text("1 record waits. Not moved for 25 min.")
    group.get_by_role("button", name="Show all 5").click()
    expect(group.locator("li")).to_have_count(5)
    alarms.get_by_role("button", name="1 muted alarm").click()
    expect(alarms).to_contain_text(re.compile(r"Muted by ann until .* UTC: moved house"))
    expect(page.locator("#bell")).to_have_text("6 alarms")
    group.get_by_role("link", name="Cursor c0 in late/one has stopped").click()
    expect(page.locator("h1")).to_have_text("late/one")


def test_what_happened_is_kept_and_can_be_looked_at_closer(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage
) -> None:
    client.call("pipeline.report", {"name": "soon", "state": "failed", "error": "no such column"})
    page = open_page(f"{hub.page}/#/events")
    events = page.get_by_label("Events")
    expect(events).to_contain_text("The hub started")
    expect(events).to_contain_text("Pipeline soon has failed")
    page.get_by_role("button", name="6 h").click()
    expect(page).to_have_url(re.compile("last=21600"))
    page.reload()
    expect(page.get_by_role("button", name="6 h")).to_have_attribute("aria-pressed", "true")
    expect(events).to_contain_text("The hub started")
    chart = page.locator(".chart svg").first
    expect(chart).to_be_visible()
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 20)
    page.mouse.up()
    expect(page).to_have_url(re.compile("since=.*until="))
    page.goto(f"{hub.page}/#/overview")
    alarm = page.get_by_label("Alarms").locator("li", has_text="Pipeline soon has failed")
    alarm.get_by_role("button").click()
    page.get_by_role("menuitem", name="What changed before this").click()
    expect(page.locator("main")).to_contain_text("What changed before")
    expect(events).to_contain_text("Pipeline soon has failed")
    client.call("pipeline.report", {"name": "soon", "state": "done"})


def test_an_alarm_is_muted_with_a_reason(
    hub: HubProcess, client: headrace.Client, calm: None, open_page: OpenPage
) -> None:
    """A pipeline that is not heard of is the alarm that comes soonest."""
    client.call("pipeline.report", {"name": "broken", "state": "failed", "error": "no such column"})
    page = open_page(f"{hub.page}/#/overview")
    alarm = page.get_by_label("Alarms").locator("li", has_text="Pipeline broken has failed")
    expect(alarm).to_contain_text("no such column")
    alarm.get_by_role("button").click()
    page.get_by_role("menuitem", name="Mute…").click()
    page.get_by_label("Why").fill("known")
    page.get_by_role("dialog").get_by_role("button", name="Mute", exact=True).click()
    page.get_by_role("button", name="1 muted alarm").click()
    expect(alarm).to_contain_text(re.compile("Muted by anonymous until .*: known"))
    expect(page.locator("#bell")).to_be_hidden()
    alarm.get_by_role("button").click()
    page.get_by_role("menuitem", name="Unmute").click()
    expect(page.locator("#bell")).to_have_text("1 alarm")
    client.call("pipeline.report", {"name": "broken", "state": "done"})
    expect(page.get_by_label("Alarms")).to_contain_text("All is well.")


def test_streams_are_created_trimmed_and_deleted_with_confirmation(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage
) -> None:
    page = open_page(f"{hub.page}/#/streams")
    page.get_by_role("button", name="Create a stream").click()
    page.get_by_label("Name").fill("made here")
    page.get_by_label(re.compile("Hours to keep records")).fill("2")
    page.get_by_role("button", name="Create", exact=True).click()
    row = page.locator("tr", has_text="made here")
    expect(row).to_contain_text("2 h")
    client.append("made here", [b"x"] * 10)
    client.call("cursor.save", {"cursor": "slow", "stream": "made here", "index": 2})
    row.get_by_role("button").click()
    page.get_by_role("menuitem", name="Trim…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("First index to keep").fill("6")
    expect(dialog.locator("[data-preview]")).to_contain_text("6 records of 10 go")
    expect(dialog.locator("[data-preview]")).to_contain_text("Not read yet by slow.")
    dialog.get_by_role("button", name="Trim").click()
    expect(row).to_contain_text("6 to 10")
    row.get_by_role("button").click()
    page.get_by_role("menuitem", name="Delete…").click()
    dialog.get_by_label("Type its name").fill("something else")
    dialog.get_by_role("button", name="Delete").click()
    expect(dialog).to_contain_text("nothing was deleted")
    dialog.get_by_label("Type its name").fill("made here")
    dialog.get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)
    assert client.call("stream.list", {"pattern": "made here"}) == []


def test_streams_are_sorted_by_the_hub(hub: HubProcess, client: headrace.Client, open_page: OpenPage) -> None:
    client.call("stream.create", {"stream": "sorted/a"})
    client.call("stream.create", {"stream": "sorted/b"})
    client.append("sorted/b", [b"x" * 1000] * 5)
    page = open_page(f"{hub.page}/#/streams")
    page.get_by_label("Filter streams").fill("sorted/*")
    names = page.locator("tbody tr td:first-child")
    expect(names).to_have_text(["sorted/a", "sorted/b"])
    page.get_by_role("button", name="Size").click()
    expect(names).to_have_text(["sorted/b", "sorted/a"])
    expect(page.locator("th", has_text="Size")).to_have_attribute("aria-sort", "descending")
    expect(page.locator("tbody tr").first).to_contain_text("KiB")


def test_records_are_tailed_sought_filtered_and_sent(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage
) -> None:
    client.call("stream.create", {"stream": "orders"})
    payloads = [json.dumps({"item": {"name": "pear", "count": number}}).encode() for number in range(3000)]
    client.append("orders", payloads)
    page = open_page(f"{hub.page}/#/stream/orders")
    rows = page.locator(".records tbody tr")
    expect(rows.first).to_contain_text("2999")
    client.append("orders", [b"live record"], key=b"shop-7")
    expect(rows.first).to_contain_text("live record")
    page.get_by_role("button", name="Go to index").click()
    page.get_by_role("spinbutton", name="Index").fill("42")
    page.get_by_role("button", name="Go", exact=True).click()
    expect(rows.first).to_contain_text('"count": 42')
    page.get_by_label("Filter by JSON field").fill("item.count=50")
    expect(rows).to_have_count(1)
    page.get_by_label("Filter by JSON field").fill("item.count=2500")
    expect(rows).to_have_count(0)
    page.get_by_role("button", name="Search on").click()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text('"count": 2500')
    page.get_by_label("Filter by JSON field").fill("")
    page.get_by_role("button", name="Earliest").click()
    expect(rows.first).to_contain_text('"count": 0')
    page.get_by_role("button", name="Later").click()
    expect(rows.first).to_contain_text('"count": 200')
    page.get_by_role("button", name="Earlier").click()
    expect(rows.first).to_contain_text('"count": 0')
    page.get_by_role("button", name="Live").click()
    page.get_by_label("Filter by key").fill("shop-7")
    expect(rows).to_have_count(1)
    page.get_by_label("Filter by key").fill("")
    page.get_by_label("Filter by text").fill("LIVE rec")
    expect(rows).to_have_count(1)
    page.get_by_label("Filter by text").fill("")
    send(page, '{"sent": "by hand"}', type="TEST")
    expect(rows.first).to_contain_text("by hand")
    page.get_by_label("Filter by type").fill("TEST")
    expect(rows).to_have_count(1)
    assert client.read("orders", start=3001).to_list()[0].type == "TEST"


def send(page: Page, payload: str, *, type: str = "", form: str = "text") -> None:
    page.get_by_role("button", name="Send a record").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Payload", exact=True).fill(payload)
    dialog.get_by_label("The payload is").select_option(form)
    dialog.get_by_label("Type").fill(type)
    dialog.get_by_role("button", name="Send", exact=True).click()


def test_bytes_are_sent_as_hex_and_a_time_is_found(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage
) -> None:
    client.call("stream.create", {"stream": "raw"})
    page = open_page(f"{hub.page}/#/stream/raw")
    expect(page.locator(".records")).to_contain_text("No records here.")
    send(page, "xyz", form="hex")
    expect(page.get_by_role("dialog")).to_contain_text("not hex")
    page.get_by_role("dialog").get_by_label("Payload", exact=True).fill("00 ff 10")
    page.get_by_role("dialog").get_by_role("button", name="Send", exact=True).click()
    rows = page.locator(".records tbody tr")
    expect(rows).to_contain_text("00ff10")
    assert client.read("raw").to_list()[0].payload == b"\x00\xff\x10"
    page.get_by_role("button", name="Go to time").click()
    page.get_by_label("Time (UTC)").fill("2001-01-01T00:00:00")
    page.get_by_role("button", name="Go", exact=True).click()
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Go to time").click()
    page.get_by_label("Time (UTC)").fill("2999-01-01T00:00:00")
    page.get_by_role("button", name="Go", exact=True).click()
    expect(rows).to_have_count(0)


def test_a_record_is_shown_in_every_protocol_and_never_as_markup(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage
) -> None:
    client.call("stream.create", {"stream": "hostile"})
    hostile = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    client.append("hostile", [hostile.encode()], type="<b>type</b>")
    page = open_page(f"{hub.page}/#/stream/hostile")
    row = page.locator(".records tbody tr").first
    expect(row).to_contain_text("<img src=x")
    row.focus()
    page.keyboard.press("Enter")
    for protocol in ("wallaroo", "ockam", "futoin", "perper", "ambrosia"):
        frame = page.locator(".frame", has_text=protocol)
        expect(frame).to_have_count(1)
        assert frame.locator(".bytes span").count() == frame.locator(".fieldnames li").count() > 1
    expect(page.locator(".frame", has_text="wallaroo").locator(".fieldnames")).to_contain_text("message id")
    expect(page.locator(".frame", has_text="ambrosia").locator(".fieldnames")).to_contain_text("rpc type")
    expect(page.get_by_label("Payload")).to_have_text(hostile)
    page.get_by_role("button", name="Hex", exact=True).click()
    expect(page.get_by_label("Payload")).to_contain_text("0000  3c 69 6d 67")
    page.get_by_role("button", name="Copy hex").click()
    expect(page.locator("#note")).to_have_text("Copied the payload as hex.")
    assert page.evaluate("navigator.clipboard.readText()") == hostile.encode().hex()
    page.get_by_role("button", name="Copy JSON").click()
    expect(page.locator("#note")).to_have_text("Copied the record as JSON.")
    copied = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert (copied["index"], copied["type"], copied["payload"]) == (0, "<b>type</b>", hostile)
    assert page.locator("main img").count() == 0
    assert page.locator("main script").count() == 0
    assert "owned" not in page.title()


def test_json_is_shown_as_json(hub: HubProcess, client: headrace.Client, open_page: OpenPage) -> None:
    client.call("stream.create", {"stream": "shapes"})
    client.append("shapes", [b'{"a":{"b":1}}'])
    page = open_page(f"{hub.page}/#/stream/shapes")
    page.locator(".records tbody tr").click()
    expect(page.get_by_label("Payload")).to_have_text('{\n  "a": {\n    "b": 1\n  }\n}')
    page.get_by_role("button", name="Text", exact=True).click()
    expect(page.get_by_label("Payload")).to_have_text('{"a":{"b":1}}')


def test_a_stream_says_who_writes_and_who_reads(hub: HubProcess, client: headrace.Client, open_page: OpenPage) -> None:
    client.call("stream.create", {"stream": "shared"})
    client.call("stream.append", {"stream": "shared", "records": [{"text": "x"}], "producer": "till-1", "sequence": 5})
    client.call("cursor.save", {"cursor": "billing", "stream": "shared", "index": 0})
    page = open_page(f"{hub.page}/#/stream/shared")
    expect(page.get_by_label("Who writes")).to_contain_text("till-1")
    expect(page.get_by_label("Who writes")).to_contain_text("5")
    expect(page.get_by_label("Who reads")).to_contain_text("billing")
    expect(page.get_by_label("Who reads")).to_contain_text("1 record")


def test_a_cursor_is_reset_with_a_preview(hub: HubProcess, client: headrace.Client, open_page: OpenPage) -> None:
    client.call("stream.create", {"stream": "read"})
    client.append("read", [b"x"] * 100)
    client.call("cursor.save", {"cursor": "audit", "stream": "read", "index": 60})
    page = open_page(f"{hub.page}/#/cursors")
    row = page.locator("tr", has_text="audit")
    expect(row).to_contain_text("40 records")
    row.get_by_role("button", name="Reset").click()
    preview = page.locator("[data-preview]")
    expect(preview).to_have_text("From 60 to 0: 60 records are read again, 0 are skipped.")
    page.get_by_label("Move to").select_option("index")
    page.get_by_role("spinbutton", name="Index").fill("90")
    expect(preview).to_have_text("From 60 to 90: 0 records are read again, 30 are skipped.")
    page.get_by_role("button", name="Move the cursor").click()
    expect(row).to_contain_text("10 records")
    [cursor] = client.call("cursor.list", {"stream": "read"})
    assert cursor["index"] == 90


def test_settings_and_limits_say_where_they_come_from(hub: HubProcess, open_page: OpenPage) -> None:
    page = open_page(f"{hub.page}/#/settings")
    page.get_by_label("Filter settings").fill("listen.flight")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("flag --set listen.flight")
    page.get_by_label("Filter settings").fill("log.queue_bytes_max")
    expect(page.locator("tbody tr")).to_contain_text(re.compile("MiB.*default"))
    page.get_by_label("Filter settings").fill("")
    page.get_by_label("Which settings").select_option("set")
    expect(page.locator("main")).not_to_contain_text("log.queue_bytes_max")
    page.get_by_label("Which settings").select_option("limits")
    expect(page.locator("main")).to_contain_text("limits.sessions_max")
    expect(page.locator("main")).not_to_contain_text("listen.flight")


def test_dead_letters_show_their_reason_and_are_sent_again_as_they_were(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage
) -> None:
    client.create("bills")
    page = open_page(f"{hub.page}/#/dead")
    expect(page.locator("main")).to_contain_text("Nothing has failed.")
    client.create("bills.dead")
    letter = {"reason": "Malformed <b>JSON</b>", "stream": "bills", "type": "paid", "payload": "e2Jyb2tlbg=="}
    client.append("bills.dead", [json.dumps(letter).encode()], type="dead-letter")
    section = page.get_by_label("Letters in bills.dead")
    row = section.locator("tbody tr")
    expect(row).to_contain_text("Malformed <b>JSON</b>")
    expect(row).to_contain_text("{broken")
    section.get_by_role("button", name="Send all again").click()
    page.get_by_role("dialog").get_by_role("button", name="Send again").click()
    expect(section).to_contain_text("All of them have been sent again.")
    [record] = client.read("bills").to_list()
    assert (record.payload, record.type) == (b"{broken", "paid")
    assert client.bounds("bills.dead").first == 1


def test_the_first_paint_waits_for_one_answer_only(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage
) -> None:
    page = open_page("about:blank")
    held: list[Route] = []
    page.route("**/console/**", lambda route: held.append(route))
    page.goto(hub.page, wait_until="commit")
    painted = "performance.getEntriesByName('first-contentful-paint').length"
    wait_until(lambda: page.evaluate(painted) == 1)
    assert page.evaluate("getComputedStyle(document.querySelector('header')).position") == "sticky", "with its style"
    wait_until(lambda: page.evaluate("true") and held, "scripts are still to come")
    for route in held:
        route.continue_()
    page.unroute("**/console/**")
    expect(page.locator("nav a").first).to_be_visible()


def test_the_pictures_of_the_docs_can_be_taken() -> None:
    """Of every page, of the running demo. CI builds the documentation first: then they have been taken, of the console
    as it is now, and are only looked at."""
    import docs_screenshots
    import screenshots
    from browser.conftest import ARTEFACTS

    taken = docs_screenshots.ROOT / "build" / "screenshots" / docs_screenshots._digest()
    if (taken / "complete").exists():
        made = [taken / f"{name}.png" for name in screenshots.NAMES]
    else:
        with ThreadPoolExecutor(1) as apart:  # this thread has a browser already, and Playwright wants one a thread
            made = apart.submit(screenshots.make, ARTEFACTS / "docs", with_spark=False, themes=("light",)).result()
    assert [file.stem for file in made] == list(screenshots.NAMES)
    assert all(file.stat().st_size > 10_000 for file in made)
