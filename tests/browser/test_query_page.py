"""The query page: completion, a table, a chart, downloads, history, cancel."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet
import pytest
from playwright.sync_api import Page, expect
from support.hub_process import HubProcess

import headrace

pytestmark = [pytest.mark.browser, pytest.mark.slow]

OpenPage = Callable[[str], Page]


@pytest.fixture(scope="module")
def orders(client: headrace.Client) -> str:
    client.create("shop.orders")
    client.append(
        "shop.orders", [b'{"fruit": "%s", "n": %d}' % (fruit, n) for n, fruit in enumerate([b"pear", b"fig"] * 5)]
    )
    client.call("table.create", {"table": "stock"})
    client.call("table.put", {"table": "stock", "key": "cGVhcg==", "value": "Nw=="})
    return "shop.orders"


def test_a_query_is_completed_run_charted_and_downloaded(
    hub: HubProcess, orders: str, open_page: OpenPage, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.node.expected_troubles = ("400",)  # the answer to a query that is none
    page = open_page(f"{hub.page}/#/query")
    editor = page.get_by_label("SQL")
    editor.fill("SELECT value.fruit, sum(value.n) AS total FROM ")
    editor.press_sequentially("shop")
    expect(page.get_by_role("listbox", name="Completions")).to_contain_text("shop.orders")
    page.keyboard.press("Tab")
    expect(editor).to_have_value('SELECT value.fruit, sum(value.n) AS total FROM "shop.orders"')
    editor.press_sequentially(" WHERE value.fr")
    expect(page.get_by_role("listbox", name="Completions")).to_contain_text("value.fruit")
    page.keyboard.press("Tab")
    editor.press_sequentially(" <> 'x' GROUP BY value.fruit ORDER BY total")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+Enter")
    rows = page.get_by_label("Rows").locator("tbody tr")
    expect(rows).to_have_text([re.compile("pear.*20"), re.compile("fig.*25")])
    expect(page.locator("main")).to_contain_text(re.compile("2 rows in .* records read"))
    page.get_by_role("button", name="Chart").click()
    expect(page.locator(".results .chart")).to_have_count(1)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    download.value.save_as(tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["fruit", "total"], ["pear", "20"], ["fig", "25"]]
    with page.expect_download() as download:
        page.get_by_role("button", name="Download Parquet").click()
    download.value.save_as(tmp_path / "rows.parquet")
    found = pyarrow.parquet.read_table(tmp_path / "rows.parquet")
    assert found.column("fruit").to_pylist() == ["pear", "fig"]
    page.reload()
    expect(editor).to_have_value(re.compile("GROUP BY value.fruit"))
    editor.fill("SELECT nothing FROM")
    page.get_by_role("button", name="Run").click()
    expect(page.locator("main [role=alert] pre")).to_contain_text(re.compile(".+"))
    page.get_by_role("button", name="Queries that you ran here").click()
    page.get_by_role("menuitem").nth(1).click()
    expect(editor).to_have_value(re.compile("GROUP BY value.fruit"))


def test_a_stream_and_a_table_are_opened_in_it(hub: HubProcess, orders: str, open_page: OpenPage) -> None:
    page = open_page(f"{hub.page}/#/stream/shop.orders")
    page.get_by_role("link", name="Open in Query").click()
    expect(page.get_by_label("Rows").locator("tbody tr")).to_have_count(10)
    page.goto(f"{hub.page}/#/table/stock")
    page.get_by_role("link", name="Open in Query").click()
    expect(page.get_by_label("Rows").locator("tbody tr")).to_have_text(re.compile("pear.*7"))


def test_a_long_query_shows_its_progress_and_is_cancelled(
    hub: HubProcess, orders: str, open_page: OpenPage, request: pytest.FixtureRequest
) -> None:
    request.node.expected_troubles = ("Failed to load resource",)  # the answer to a query that was cancelled
    page = open_page(f"{hub.page}/#/query")
    names = "abcdefghijkl"  # ten records to the power of twelve
    product = ", ".join(f'"shop.orders" AS {name}' for name in names)
    page.get_by_label("SQL").fill(f"SELECT sum({' + '.join(f'{name}.index' for name in names)}) FROM {product}")
    page.get_by_role("button", name="Run").click()
    expect(page.locator("main")).to_contain_text("so far")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("main [role=alert] pre")).to_contain_text("cancelled")
    expect(page.get_by_role("button", name="Run")).to_be_enabled()
