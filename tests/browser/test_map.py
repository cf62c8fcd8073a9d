"""The map, the first page: what flows where, and how a new hub gets its first record."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from support.barriers import barriers
from support.forked_hub import ForkedHub
from support.hub_process import HubProcess

import headrace

pytestmark = [pytest.mark.browser, pytest.mark.slow]

OpenPage = Callable[[str], Page]
WAYS = ("Command line", "Python", "HTTP", "Wallaroo", "Ockam", "FutoIn", "Perper", "AMBROSIA")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with ForkedHub(tmp_path_factory.mktemp("hub"), "futoin.insecure=true") as running:
        yield running


@pytest.mark.parametrize("way", WAYS)
def test_an_empty_hub_says_how_to_send_a_first_record_and_it_works(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage, way: str
) -> None:
    for stream in ("hello", "immortal/hello/inbox"):
        if stream in [each["name"] for each in client.call("stream.list", {})]:
            client.call("stream.delete", {"stream": stream})
    page = open_page(hub.page)
    card = page.locator(f"[data-way='{way}']")
    expect(card).to_be_visible()
    assert way != WAYS[0] or barriers(page, "a new hub") == {}
    card.get_by_role("button", name="Copy").click()
    expect(page.locator("#note")).to_have_text("Copied the command.")
    command = page.evaluate("navigator.clipboard.readText()")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(command, shell=True, check=True, timeout=120, env=os.environ | {"PATH": path}, capture_output=True)
    node = page.locator(".node.stream").first
    expect(node).to_contain_text("hello")
    expect(page.locator(".map")).to_be_visible()
    if way != "AMBROSIA":
        [record] = client.read("hello").to_list()
        assert b"first record" in record.payload


def test_it_shows_who_writes_and_who_reads_and_every_node_leads_on(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage
) -> None:
    client.create("flow.orders", exist_ok=True)
    client.append("flow.orders", [b"x"] * 5)
    client.call("cursor.save", {"cursor": "billing", "stream": "flow.orders", "index": 5})
    client.call("pipeline.create", {"name": "sums", "sql": "select 1 from stream('flow.orders')", "into": "flow.sums"})
    client.create("flow.sums", exist_ok=True)
    page = open_page(f"{hub.page}/#/?text=flow.*")
    expect(page.get_by_label("Filter streams")).to_have_value("flow.*")
    stream = page.locator(".node.stream", has_text="flow.orders")
    expect(stream).to_be_visible()
    expect(page.locator(".node.pipeline", has_text="sums")).to_be_visible()
    expect(page.locator(".map-heads")).to_contain_text("Pipelines")
    stream.focus()
    expect(stream).to_have_attribute("aria-label", re.compile("stream flow.orders.*to .*sums"))
    page.keyboard.press("ArrowRight")
    expect(page.locator(".node:focus")).not_to_have_attribute("href", "#/stream/flow.orders")
    page.keyboard.press("ArrowLeft")
    expect(stream).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("flow.orders")


def test_hundreds_of_streams_are_grouped_found_and_drawn_one_by_one(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage
) -> None:
    for number in range(500):
        client.call("stream.create", {"stream": f"shop{number % 5}.till{number:03}", "exist_ok": True})
    page = open_page(f"{hub.page}/#/?text=shop*")
    groups = page.locator(".node.group")
    expect(groups).to_have_count(5)
    expect(groups.first).to_contain_text("100 streams")
    groups.first.click()
    expect(page.locator(".map-way")).to_contain_text("All streams›shop0.")
    page.get_by_role("link", name="All streams").click()
    page.get_by_label("Filter streams").fill("till123")
    expect(page.locator(".node.stream")).to_have_text(re.compile("shop3.till123"))
    page.get_by_label("Filter streams").fill("shop")
    page.get_by_role("button", name="Show 500 streams one by one").click()
    expect(page.locator(".node.stream")).to_have_count(500)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1300
    page.get_by_role("button", name="Group streams").click()
    expect(groups).to_have_count(5)


LAID_OUT = """async () => {
  const { columnsOf, lay } = await import("/console/layout.js");
  const node = (kind, name) => ({ kind, name });
  const streams = ["a", "b", "c"].map((name) => node("stream", name));
  const [writer, pipeline] = [node("producer", "w"), node("pipeline", "p")];
  const [sums, reader] = [node("stream", "sums"), node("consumer", "r")];
  const edges = [
    ...streams.map((to) => ({ from: writer, to })),
    ...streams.map((from) => ({ from, to: pipeline })),
    { from: pipeline, to: sums },
    ...[...streams, sums].map((from) => ({ from, to: reader })),
  ];
  const columns = columnsOf([writer, ...streams, pipeline, sums, reader], edges);
  const { across } = lay(columns, 1000);
  const box = ({ kind, name, x, base, wide, high }) =>
    ({ kind, name, x, wide, top: base - 4, bottom: base + high + 4 });
  return [across, columns.map((column) => column.map(box))];
}"""


def test_an_edge_that_passes_a_column_runs_beside_the_nodes_there(hub: HubProcess, open_page: OpenPage) -> None:
    across, columns = open_page(hub.page).evaluate(LAID_OUT)
    names = [[box["name"] for box in column if box["kind"] != "pass"] for column in columns]
    assert names == [["w"], ["a", "b", "c"], ["p"], ["sums"], ["r"]]
    assert [sum(box["kind"] == "pass" for box in column) for column in columns] == [0, 0, 3, 3, 0]
    assert across <= 1000
    for column in columns:
        assert all(before["bottom"] <= after["top"] for before, after in itertools.pairwise(column))
    for before, after in itertools.pairwise(columns):
        assert before[0]["x"] + before[0]["wide"] + 40 < after[0]["x"], "there is room for the edges and their rates"


def test_on_a_phone_it_is_a_list_of_streams_with_who_writes_and_who_reads(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage
) -> None:
    client.create("phone.orders", exist_ok=True)
    client.call(
        "pipeline.create", {"name": "calls", "sql": "select 1 from stream('phone.orders')", "into": "phone.sums"}
    )
    client.create("phone.sums", exist_ok=True)
    page = open_page(f"{hub.page}/#/?text=phone.*")
    expect(page.locator(".map")).to_be_visible()
    page.set_viewport_size({"width": 390, "height": 800})
    streams = page.get_by_label("Streams", exact=True)
    row = streams.get_by_role("link", name="phone.orders")
    expect(row).to_contain_text("nobody → calls")
    expect(streams.get_by_role("link", name="phone.sums")).to_contain_text("calls → nobody")
    expect(page.locator(".map")).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    row.click()
    expect(page.locator("h1")).to_have_text("phone.orders")
