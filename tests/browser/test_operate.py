"""What the console does to a hub, and the command that it offers for the same: run in a shell, it does the same."""

from __future__ import annotations

import io
import shlex
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import Locator, Page, expect
from support.hub_process import HubProcess

import headrace
from headrace.cli import main

pytestmark = [pytest.mark.browser, pytest.mark.slow]

OpenPage = Callable[[str], Page]


@pytest.fixture
def shell(hub: HubProcess, monkeypatch: pytest.MonkeyPatch) -> Callable[[Locator], str]:
    """Runs the command of a dialog, as it is shown, and closes the dialog without doing it there. What a shell makes of
    `headrace …` is run in this process, which has imported it already."""

    def run(dialog: Locator) -> str:
        shown = dialog.locator(".command code").inner_text()
        program, *arguments = shlex.split(shown)
        if program == "headrace":
            monkeypatch.setenv("HEADRACE_HUB", hub.addresses["flight"])
            monkeypatch.setattr(sys, "argv", [program, *arguments])
            monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
            with ThreadPoolExecutor(1) as apart:  # here Playwright's event loop runs
                assert apart.submit(_code_of, main.run).result(120) == 0, shown
        else:
            done = subprocess.run(shown, shell=True, capture_output=True, timeout=120, check=False)
            assert done.returncode == 0, (shown, done.stderr)
        dialog.get_by_role("button", name="Cancel").click()
        return shown

    return run


def _code_of(work: Callable[[], None]) -> object:
    try:
        work()
    except SystemExit as end:
        return end.code or 0
    return 0


def test_streams_by_dialog_and_by_command(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage, shell: Callable[[Locator], str]
) -> None:
    page = open_page(f"{hub.page}/#/streams")
    dialog = page.get_by_role("dialog")
    page.get_by_role("button", name="Create a stream").click()
    dialog.get_by_label("Name").fill("it's new")
    dialog.get_by_label("Partitions").fill("2")
    dialog.get_by_label("Hours to keep records").fill("0.5")
    assert shell(dialog).startswith("headrace stream create 'it")
    made = client.call("stream.describe", {"stream": "it's new"})
    assert (made["partitions"], made["options"]["retention_age_s"]) == (2, 1800)
    page.get_by_role("link", name="it's new").click()
    page.get_by_role("button", name="Send a record").click()
    dialog.get_by_label("Payload", exact=True).fill('{"item": "a pear"}')
    dialog.get_by_label("Type").fill("order")
    dialog.get_by_label("Partition").select_option("1")
    shell(dialog)
    [record] = client.read("it's new", partition=1).to_list()
    assert (record.payload, record.type) == (b'{"item": "a pear"}', "order")
    more = page.get_by_role("button", name="What to do with this stream")
    more.click()
    page.get_by_role("menuitem", name="Change options…").click()
    dialog.get_by_label("Hours to keep records").fill("")
    dialog.get_by_label("MiB to keep").fill("3")
    shell(dialog)
    options = client.call("stream.describe", {"stream": "it's new"})["options"]
    assert (options.get("retention_age_s"), options["retention_bytes"]) == (None, 3 << 20)
    more.click()
    page.get_by_role("menuitem", name="More partitions…").click()
    shell(dialog)
    assert client.call("stream.describe", {"stream": "it's new"})["partitions"] == 3


def test_cursors_by_dialog_and_by_command(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage, shell: Callable[[Locator], str]
) -> None:
    client.create("read")
    client.append("read", [b"x"] * 10)
    client.call("cursor.save", {"cursor": "billing", "stream": "read", "index": 4})
    page = open_page(f"{hub.page}/#/cursors")
    row = page.locator("tr", has_text="billing")
    dialog = page.get_by_role("dialog")
    row.get_by_role("button", name="Reset").click()
    dialog.get_by_label("Move to").select_option("index")
    dialog.get_by_role("spinbutton", name="Index").fill("9")
    expect(dialog.locator("[data-preview]")).to_contain_text("5 are skipped")
    assert shell(dialog) == "headrace cursor reset billing read --to 9 --partition 0"
    assert client.call("cursor.get", {"cursor": "billing", "stream": "read"})["index"] == 9
    for done in (shell, lambda dialog: dialog.get_by_role("button", name="Forget the cursor").click()):
        client.call("cursor.reset", {"cursor": "billing", "stream": "read", "to": 2})
        expect(row).to_contain_text("8 records")
        row.get_by_role("button", name="What else to do").click()
        page.get_by_role("menuitem", name="Forget…").click()
        expect(dialog).to_contain_text("8 records that it has not read may be removed")
        done(dialog)
        expect(row).to_have_count(0)


def test_pipelines_by_dialog_and_by_command(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage, shell: Callable[[Locator], str]
) -> None:
    page = open_page(f"{hub.page}/#/pipelines")
    dialog = page.get_by_role("dialog")
    page.get_by_role("button", name="Create a pipeline").click()
    dialog.get_by_label("Name").fill("sums")
    dialog.get_by_label("SQL").fill("SELECT payload FROM stream('read')")
    dialog.get_by_label("Stream for the results").fill("totals")
    shell(dialog)
    card = page.get_by_label("Pipeline sums")
    expect(card).to_contain_text("SELECT payload FROM stream('read')")
    for verb in ("Start", "Reset"):
        card.get_by_role("button", name=verb).click()
        expect(dialog.locator(".command")).to_contain_text(f"headrace pipeline {verb.lower()} sums")
        dialog.get_by_role("button", name="Cancel").click()
    card.get_by_role("button", name="What else to do").click()
    page.get_by_role("menuitem", name="Delete…").click()
    dialog.get_by_role("button", name="Delete").click()
    expect(card).to_have_count(0)


def test_a_backup_is_taken_and_says_what_it_holds(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage, shell: Callable[[Locator], str]
) -> None:
    client.create("kept", exist_ok=True)
    page = open_page(f"{hub.page}/#/overview")
    dialog = page.get_by_role("dialog")
    for place, done in (
        ("one", lambda: dialog.get_by_role("button", name="Back up").click()),
        ("two", lambda: shell(dialog)),
    ):
        page.get_by_role("button", name="Back up…").click()
        dialog.get_by_label("Directory").fill(place)
        done()
        if place == "one":
            expect(dialog).to_contain_text("Backed up, and checked")
            dialog.get_by_role("button", name="Close").click()
        assert list(hub.folder.glob(f"**/{place}/*")), "there is something in it"


def test_a_damaged_table_and_keys_have_their_commands(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage, shell: Callable[[Locator], str]
) -> None:
    client.call("table.create", {"table": "stock"})
    page = open_page(f"{hub.page}/#/table/stock")
    dialog = page.get_by_role("dialog")
    page.get_by_role("button", name="Set a key").click()
    dialog.get_by_role("textbox", name="Key").fill("pear")
    dialog.get_by_label("Value").fill("it's 7")
    shell(dialog)
    expect(page.locator("tbody tr")).to_contain_text("it's 7")
    more = page.get_by_role("button", name="What to do with this table")
    more.click()
    page.get_by_role("menuitem", name="Accept damage…").click()
    dialog.get_by_role("button", name="Serve what is left").click()
    expect(page.locator("#note")).to_have_text("This table has no damage.")
    more.click()
    page.get_by_role("menuitem", name="Remove all keys…").click()
    shell(dialog)
    expect(page.locator("main")).to_contain_text("No entries.")


def test_what_happened_is_marked_on_charts_and_a_span_leads_to_the_history(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage
) -> None:
    client.call("pipeline.report", {"name": "late", "state": "failed", "error": "no such column"})
    page = open_page(f"{hub.page}/#/overview")
    chart = page.locator(".chart", has=page.get_by_label("Records in and out"))
    expect(chart.locator("path.mark.of-alarm title").first).to_have_text("Pipeline late has failed")
    expect(chart.locator("path.mark.of-start title")).to_contain_text("The hub started")
    box = chart.locator("svg").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 20)
    page.mouse.up()
    expect(page.locator("h1")).to_have_text("History")
    assert "since=" in page.url
    page.get_by_role("button", name="1 h").click()
    events = page.get_by_label("Events")
    expect(page.locator(".chart path.mark.of-alarm").first).to_be_attached()
    events.locator("tr", has_text="Pipeline late has failed").get_by_role("link", name="What changed before").click()
    changes = page.get_by_label("What changed")
    expect(changes).to_contain_text("What changed before 20")
    expect(changes).to_contain_text("The hub started")
    client.call("pipeline.report", {"name": "late", "state": "done"})
