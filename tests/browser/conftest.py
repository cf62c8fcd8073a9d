"""A hub process and a real browser. The browser is Debian's Chromium."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from support.background import Background
from support.forked_hub import ForkedHub
from support.hub_process import HubProcess
from support.until import DEADLINE_S
from test_programs import find

import headrace

ARTEFACTS = Path(os.environ.get("HEADRACE_ARTEFACTS", Path(__file__).parents[2] / "artefacts"))
"""Where a picture stays of every page that a test failed with; with `HEADRACE_ARTEFACTS` of every page."""
FAILED = pytest.StashKey[bool]()
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


expect.set_options(timeout=DEADLINE_S * 1000)  # the default of 5 s is too short for a busy machine


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture
def background() -> Iterator[Background]:
    made = Background()
    yield made
    made.close()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with ForkedHub(tmp_path_factory.mktemp("hub")) as running:
        yield running


@pytest.fixture(scope="module")
def client(hub: HubProcess) -> Iterator[headrace.Client]:
    with headrace.connect(hub.addresses["flight"]) as connected:
        yield connected


@pytest.fixture(scope="module")  # no longer: while it is open, its event loop is in the way of other tests
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=find("chromium"), args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Page]]:
    """Opens an address; afterwards: no script errors, no requests to other hosts, and a picture if the test failed."""
    context = browser.new_context(
        viewport={"width": 1300, "height": 850}, permissions=["clipboard-read", "clipboard-write"]
    )
    troubles: list[str] = []
    hosts: set[str] = set()
    pages: list[Page] = []

    def opened(address: str) -> Page:
        page = context.new_page()
        page.set_default_timeout(DEADLINE_S * 1000)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda line: troubles.append(line.text) if line.type == "error" else None)
        page.on("request", lambda asked: hosts.add(urlsplit(asked.url).netloc))
        page.goto(address)
        pages.append(page)
        return page

    yield opened
    pictured = request.node.stash.get(FAILED, False) or "HEADRACE_ARTEFACTS" in os.environ
    for page in (page for page in pages if not page.is_closed()):
        if pictured:
            page.screenshot(path=ARTEFACTS / f"{request.node.name.replace('/', '-')}.png")
        assert hosts <= {urlsplit(page.url).netloc}
    context.close()
    expected = getattr(request.node, "expected_troubles", ())
    unexpected = [one for one in troubles if not any(part in one for part in expected)]
    assert unexpected == []
