"""Much at once. What would make a page slow is counted, since how fast this machine is says nothing; frames are
measured by benchmarks/bench_console.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from support.forked_hub import ForkedHub
from support.hub_process import HubProcess

import headrace
from headrace.config import Config
from headrace.hub import Hub
from headrace.log.ops import CreateStream

pytestmark = [pytest.mark.browser, pytest.mark.slow]

OpenPage = Callable[[str], Page]
STREAMS = 10_000
COUNT = """() => {
  window.made = 0;
  for (const name of ["createElement", "createElementNS"]) {
    const original = document[name].bind(document);
    document[name] = (...given) => { window.made += 1; return original(...given); };
  }
}"""
"""Counts the elements that the page makes from now on."""


def pulses(page: Page, many: int) -> None:
    """Waits until the page has heard from its hub so many times more."""
    page.evaluate(
        """(many) => new Promise((done) => {
            let left = many;
            const seen = new MutationObserver(() => { left -= 1; if (!left) { seen.disconnect(); done(); } });
            seen.observe(document.getElementById("pulse"), { childList: true, characterData: true, subtree: true });
        })""",
        many,
    )


def elements(page: Page) -> int:
    return int(page.evaluate("document.querySelectorAll('*').length"))


async def create(data: Path, names: list[str]) -> None:
    hub = await Hub.open(data, Config())
    await asyncio.gather(*[hub.transact([CreateStream(name)]) for name in names])
    await hub.close()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    """A hub that has very many streams when it starts: one by one over a connection takes long."""
    folder = tmp_path_factory.mktemp("hub")
    shops = [f"shop.till{number:03}" for number in range(500)]
    many = [f"many/{number:05}" for number in range(STREAMS)]
    with ThreadPoolExecutor(1) as apart:  # here Playwright's event loop may run
        apart.submit(lambda: asyncio.run(create(folder / "data", shops + many))).result()
    with ForkedHub(folder) as running:
        yield running


def test_a_stream_that_never_rests_makes_only_the_rows_that_are_new(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage
) -> None:
    client.create("busy")
    client.append("busy", [b'{"n": %d}' % number for number in range(3_000)])
    page = open_page(f"{hub.page}/#/stream/busy")
    rows = page.locator(".records tbody tr")
    expect(rows).to_have_count(100)
    pulses(page, 2)
    page.evaluate(COUNT)
    for number in range(5):
        client.append("busy", [b'{"n": %d}' % (3_000 + 100 * number + at) for at in range(100)])
        expect(page.locator(".records tbody tr td:last-child").first).to_have_text(f'{{"n": {3_099 + 100 * number}}}')
    assert page.evaluate("window.made") < 500 * 8 + 1_500, (
        "about seven for a record, and what the page says each second"
    )
    expect(rows).to_have_count(100)
    assert elements(page) < 3_000


def test_the_map_is_drawn_anew_only_where_something_has_changed(hub: HubProcess, open_page: OpenPage) -> None:
    page = open_page(f"{hub.page}/#/?text=shop&all=1")
    expect(page.locator(".node.stream")).to_have_count(500)
    pulses(page, 2)
    page.evaluate(COUNT)
    pulses(page, 3)
    assert page.evaluate("window.made") < 100, "headings and the way, and not five hundred nodes"
    assert page.locator("canvas").count() == 2, "edges are no elements"
    lefts = "new Set([...document.querySelectorAll('.node')].map((one) => one.getBoundingClientRect().left)).size"
    assert page.evaluate(lefts) == 3, "streams that nothing is connected to stand side by side"


def test_ten_thousand_streams_are_a_page_of_a_hundred(hub: HubProcess, open_page: OpenPage) -> None:
    page = open_page(f"{hub.page}/#/streams?text=many")
    expect(page.locator("tbody tr")).to_have_count(100)
    expect(page.locator("main")).to_contain_text("1 to 100 of 10,000")
    pulses(page, 1)
    page.evaluate(COUNT)
    pulses(page, 3)
    assert page.evaluate("window.made") < 50, "rows that stay the same are not made again"
    following = page.get_by_role("button", name="Next")
    following.focus()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_contain_text("101 to 200 of 10,000")
    pulses(page, 1)
    expect(following).to_be_focused()
    page.get_by_label("Filter streams").fill("many/09876")
    expect(page.locator("tbody tr")).to_have_count(1)
    bytes_sent = page.evaluate(
        """async () => (await (await fetch("/api/v1/console.map", {method: "POST",
            headers: {"Content-Type": "application/json"}, body: "{}"})).text()).length"""
    )
    assert bytes_sent < 20_000, "a map of any number of streams has a few dozen nodes"
