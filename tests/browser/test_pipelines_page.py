"""The console's page about pipelines: figures, and start, stop and reset of a real one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from support.hub_process import HubProcess

import headrace

pytestmark = [pytest.mark.browser, pytest.mark.slow]

OpenPage = Callable[[str], Page]
SPARK_MS = 400_000


def test_a_pipeline_shows_figures_with_units_and_its_last_error(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage
) -> None:
    page = open_page(f"{hub.page}/#/pipelines")
    expect(page.locator("main")).to_contain_text("No pipelines.")
    report = {"name": "far away", "run": "r", "batch": 7, "rows": 1200, "rows_per_s": 345.5, "batch_ms": 250.0}
    client.call("pipeline.report", report | {"lag": 42, "state_bytes": 2048, "state_rows": 3})
    card = page.get_by_label("Pipeline far away")
    for text in ("running", "345.5 rows/s", "250 ms", "42 records", "2 KiB", "1,200"):
        expect(card).to_contain_text(text)
    expect(card.locator("path.line")).to_have_count(4)
    expect(card.get_by_role("button", name="Start")).to_be_hidden()
    client.call("pipeline.report", report | {"state": "failed", "error": "AnalysisException: <b>no column</b>"})
    expect(card).to_contain_text("Last error: AnalysisException: <b>no column</b>")
    expect(card).to_contain_text("failed")
    expect(card.get_by_role("button", name="Start")).to_be_hidden(), "it is not defined here"


def test_one_that_cannot_run_says_why(hub: HubProcess, client: headrace.Client, open_page: OpenPage) -> None:
    client.call("pipeline.create", {"name": "nowhere", "file": "/no/such/file.py"})
    page = open_page(f"{hub.page}/#/pipelines")
    card = page.get_by_label("Pipeline nowhere")
    card.get_by_role("button", name="Start").click()
    page.get_by_role("dialog").get_by_role("button", name="Start").click()
    expect(card).to_contain_text(re.compile("starting|failed"))
    expect(card).to_contain_text("/no/such/file.py", timeout=SPARK_MS)
    expect(card.locator(".alarm")).to_contain_text("there is no file", timeout=SPARK_MS)


@pytest.mark.spark
def test_a_pipeline_is_created_started_stopped_and_reset(tmp_path: Path, open_page: OpenPage) -> None:
    environment = {"HEADRACE_HOME": str(tmp_path / "home"), "SPARK_LOCAL_IP": "127.0.0.1"}
    with HubProcess(tmp_path, environment=environment) as hub, headrace.connect(hub.addresses["flight"]) as client:
        client.create("orders")
        client.append("orders", [json.dumps({"n": number}).encode() for number in range(50)])
        page = open_page(f"{hub.page}/#/pipelines")
        page.get_by_role("button", name="Create a pipeline").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Name").fill("copies")
        dialog.get_by_label("SQL").fill("SELECT payload FROM stream('orders')")
        dialog.get_by_label("Stream for the results").fill("copied")
        dialog.get_by_label("A batch every").fill("200 milliseconds")
        dialog.get_by_role("button", name="Create").click()
        card = page.get_by_label("Pipeline copies")
        card.get_by_role("button", name="Start").click()
        dialog.get_by_role("button", name="Start").click()
        expect(card.locator(".pill").first).to_have_text("running", timeout=SPARK_MS)
        expect(card).to_contain_text("Rows so far50", timeout=SPARK_MS)
        assert client.bounds("copied").next == 50
        card.get_by_role("button", name="Reset").click()
        expect(dialog.locator("[data-preview]")).to_contain_text(str(tmp_path / "home"))
        expect(dialog.locator("tbody tr")).to_contain_text("0 records")
        expect(dialog).to_contain_text("It is stopped first")
        dialog.get_by_label("at the earliest record").check()
        expect(dialog.locator("tbody tr")).to_contain_text("50 records")
        expect(dialog.locator(".command")).to_contain_text("pipeline stop copies && headrace pipeline reset copies")
        dialog.get_by_role("button", name="Reset").click()
        expect(page.locator("#note")).to_contain_text("Reset and started copies", timeout=SPARK_MS)
        expect(card.locator(".pill").first).to_have_text("running", timeout=SPARK_MS)
        while client.bounds("copied").next < 100:  # all of it is read again
            page.wait_for_timeout(100)
        card.get_by_role("button", name="Stop").click()
        dialog.get_by_role("button", name="Stop").click()
        expect(card.locator(".pill").first).to_have_text("stopped", timeout=SPARK_MS)
        card.get_by_role("button", name="Reset").click()
        dialog.get_by_label("Start it then").uncheck()
        dialog.get_by_role("button", name="Reset").click()
        expect(page.locator("#note")).to_have_text("Reset copies.")
        expect(card.get_by_role("button", name="Start")).to_be_visible()
        page.close()
