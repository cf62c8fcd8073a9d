"""The console in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from browser.conftest import RunningHub, run_hub
from playwright.sync_api import Page, expect

import headrace

pytestmark = [pytest.mark.browser, pytest.mark.slow]

OpenPage = Callable[[str], Page]


@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("", "Overview"),
        ("streams", "Streams"),
        ("cursors", "Cursors"),
        ("sessions", "Sessions"),
        ("immortals", "Immortals"),
        ("executions", "Executions"),
        ("pipelines", "Pipelines"),
        ("dead", "Dead letters"),
        ("settings", "Settings"),
    ],
)
def test_every_page_opens(hub: RunningHub, open_page: OpenPage, path: str, title: str) -> None:
    page = open_page(f"{hub.page}/#/{path}")
    expect(page.locator("h1")).to_contain_text(title)
    expect(page.locator("#pulse")).to_contain_text("records/s in")
    expect(page.locator("nav a[aria-current]")).to_have_text(title)
    assert page.title() == f"{title} · Headrace"


def test_the_overview_lives(hub: RunningHub, client: headrace.Client, open_page: OpenPage) -> None:
    client.call("stream.create", {"stream": "busy"})
    page = open_page(hub.page)
    card = page.locator(".card", has_text="Records in and out").locator(".figure")
    expect(card).to_be_visible()
    expect(page.get_by_label("Listeners")).to_contain_text("wallaroo")
    for _ in range(20):
        client.append("busy", [b"x"] * 100)
        if not card.inner_text().startswith("0 in"):
            break
        page.wait_for_timeout(200)
    expect(card).not_to_contain_text(re.compile(r"^0 in"))


def test_streams_are_created_and_deleted_with_confirmation(hub: RunningHub, open_page: OpenPage) -> None:
    page = open_page(f"{hub.page}/#/streams")
    page.get_by_role("button", name="Create a stream").click()
    page.get_by_label("Name").fill("made here")
    page.get_by_role("button", name="Create", exact=True).click()
    row = page.locator("tr", has_text="made here")
    expect(row).to_be_visible()
    row.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_label("Name").fill("something else")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("dialog")).to_contain_text("nothing was deleted")
    page.get_by_role("button", name="Close").click()
    row.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_label("Name").fill("made here")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)


def test_records_are_tailed_sought_filtered_and_sent(
    hub: RunningHub, client: headrace.Client, open_page: OpenPage
) -> None:
    client.call("stream.create", {"stream": "orders"})
    client.append("orders", [json.dumps({"item": "pear", "count": number}).encode() for number in range(300)])
    page = open_page(f"{hub.page}/#/stream/orders")
    rows = page.locator(".records tbody tr")
    expect(rows.first).to_contain_text("299")
    client.append("orders", [b"live record"])
    expect(rows.first).to_contain_text("live record")
    page.get_by_role("button", name="Go to index").click()
    page.get_by_role("spinbutton", name="Index").fill("42")
    page.get_by_role("button", name="Go", exact=True).click()
    expect(rows.first).to_contain_text('"count": 42')
    page.get_by_label("Filter records").fill("count=50")
    expect(rows).to_have_count(1)
    page.get_by_label("Filter records").fill("")
    page.get_by_role("button", name="Earliest").click()
    expect(rows.first).to_contain_text('"count": 0')
    page.get_by_role("button", name="Send a record").click()
    page.get_by_label("Payload").fill('{"sent": "by hand"}')
    page.get_by_label("Type").fill("TEST")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(rows.first).to_contain_text("by hand")
    page.get_by_label("Filter records").fill("type:TEST")
    expect(rows).to_have_count(1)


def test_a_record_is_shown_in_every_protocol_and_never_as_markup(
    hub: RunningHub, client: headrace.Client, open_page: OpenPage
) -> None:
    client.call("stream.create", {"stream": "hostile"})
    hostile = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    client.append("hostile", [hostile.encode()])
    page = open_page(f"{hub.page}/#/stream/hostile")
    row = page.locator(".records tbody tr").first
    expect(row).to_contain_text("<img src=x")
    row.focus()
    page.keyboard.press("Enter")
    for protocol in ("wallaroo", "ockam", "futoin", "perper", "ambrosia"):
        expect(page.locator(".split .pill", has_text=protocol)).to_be_visible()
    expect(page.locator("pre")).to_have_text(hostile)
    page.get_by_role("button", name="Hex", exact=True).click()
    expect(page.locator("pre")).to_contain_text("3c 69 6d 67")
    assert page.locator("main img").count() == 0
    assert "owned" not in page.title()


def test_a_cursor_is_reset_with_a_preview(hub: RunningHub, client: headrace.Client, open_page: OpenPage) -> None:
    client.call("stream.create", {"stream": "read"})
    client.append("read", [b"x"] * 100)
    client.call("cursor.save", {"cursor": "billing", "stream": "read", "index": 60})
    page = open_page(f"{hub.page}/#/cursors")
    row = page.locator("tr", has_text="billing")
    expect(row).to_contain_text("40 records")
    row.get_by_role("button", name="Reset").click()
    preview = page.locator("[data-preview]")
    expect(preview).to_have_text("From 60 to 0: 60 records are read again, 0 are skipped.")
    page.get_by_label("Where to").select_option("index")
    page.get_by_role("spinbutton", name="Index").fill("90")
    expect(preview).to_have_text("From 60 to 90: 0 records are read again, 30 are skipped.")
    page.get_by_role("button", name="Move the cursor").click()
    expect(row).to_contain_text("10 records")
    [cursor] = client.call("cursor.list", {"stream": "read"})
    assert cursor["index"] == 90


def test_settings_say_where_they_come_from(hub: RunningHub, open_page: OpenPage) -> None:
    page = open_page(f"{hub.page}/#/settings")
    page.get_by_label("Filter settings").fill("listen.flight")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("flag --set listen.flight")


def test_light_and_dark(hub: RunningHub, open_page: OpenPage) -> None:
    page = open_page(hub.page)
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.get_by_role("button", name="Light or dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_ten_thousand_streams_stay_quick(hub: RunningHub, client: headrace.Client, open_page: OpenPage) -> None:
    for number in range(10_000):
        client.call("stream.create", {"stream": f"many/{number:05}"})
    page = open_page(f"{hub.page}/#/streams")
    expect(page.locator("tbody tr")).to_have_count(100)
    page.get_by_label("Filter streams").fill("many/09876")
    expect(page.locator("tbody tr")).to_have_count(1)
    took_ms = page.evaluate(
        """async () => {
            const began = performance.now();
            await fetch("/api/v1/console.streams", {method: "POST", headers: {"Content-Type": "application/json"},
                body: JSON.stringify({order: "records", limit: 100})}).then((answer) => answer.json());
            return performance.now() - began;
        }"""
    )
    assert took_ms < 5_000


def test_who_are_you(tmp_path: Path, open_page: OpenPage, request: pytest.FixtureRequest) -> None:
    request.node.expected_troubles = ("401",)
    settings = tmp_path / "headrace.toml"
    settings.write_text('[security.users.ann]\nsecret = "right"\nroles = ["admin"]\n')
    for hub in run_hub(tmp_path, settings):
        page = open_page(hub.page)
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("User").fill("ann")
        dialog.get_by_label("Password or token").fill("wrong")
        dialog.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("dialog")).to_contain_text("wrong")
        page.get_by_role("dialog").get_by_label("User").fill("ann")
        page.get_by_role("dialog").get_by_label("Password or token").fill("right")
        page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
        expect(page.locator("#pulse")).to_contain_text("records/s in")
        expect(page.locator("h1")).to_contain_text("Overview")
        page.close()  # before the hub goes: a page that loses its hub says so in the browser's own words


def test_dead_letters_show_their_reason_and_are_sent_again_as_they_were(
    hub: RunningHub, client: headrace.Client, open_page: OpenPage
) -> None:
    client.create("bills")
    client.create("bills.dead")
    letter = {"reason": "Malformed <b>JSON</b>", "stream": "bills", "type": "paid", "payload": "e2Jyb2tlbg=="}
    client.append("bills.dead", [json.dumps(letter).encode()], type="dead-letter")
    page = open_page(f"{hub.page}/#/dead")
    row = page.get_by_label("bills.dead").locator("tbody tr")
    expect(row).to_contain_text("Malformed <b>JSON</b>")
    expect(row).to_contain_text("{broken")
    page.locator("section", has_text="bills.dead").get_by_role("button", name="Send the shown ones again").click()
    page.get_by_role("dialog").get_by_role("button", name="Send again").click()
    expect(page.locator("section", has_text="bills.dead")).to_contain_text("All of them have been sent again.")
    [record] = client.read("bills").to_list()
    assert (record.payload, record.type) == (b"{broken", "paid")
    assert client.bounds("bills.dead").first == 1
