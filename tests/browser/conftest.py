"""A hub process and a real browser. The browser is Debian's Chromium: a machine without it fails, and says so."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

import headrace

SOURCE = Path(__file__).parents[2] / "src"
ARTEFACTS = Path(__file__).parents[2] / "artefacts"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LISTENERS = ("flight", "http", "wallaroo", "ockam", "ignite", "fabric")
DEADLINE_S = 60.0


class RunningHub(NamedTuple):
    page: str
    flight: str


def run_hub(directory: Path, settings: Path | None = None) -> Iterator[RunningHub]:
    ready = directory / "ready.json"
    command = [sys.executable, "-m", "headrace", "up", "--data", str(directory / "data"), "--ready-file", str(ready)]
    for name in LISTENERS:
        command += ["--set", f"listen.{name}=127.0.0.1:0"]
    if settings is not None:
        command += ["--config", str(settings)]
    with open(directory / "hub.log", "wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | {"PYTHONPATH": str(SOURCE)}
        )
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not ready.exists():
            assert process.poll() is None, (directory / "hub.log").read_text()
            assert time.monotonic() < deadline, (directory / "hub.log").read_text()
            time.sleep(0.05)
        addresses = json.loads(ready.read_text())
        yield RunningHub(f"http://{addresses['http']}", addresses["flight"])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    yield from run_hub(tmp_path_factory.mktemp("hub"))


@pytest.fixture(scope="module")
def client(hub: RunningHub) -> Iterator[headrace.Client]:
    with headrace.connect(hub.flight) as connected:
        yield connected


@pytest.fixture(scope="module")  # no longer: while it is open, its event loop is in the way of other tests
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    assert chromium is not None, "install chromium to test the console (Debian package: chromium)"
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Page]]:
    """Opens an address; afterwards: no script errors, no requests to other hosts, and a screenshot is kept."""
    context = browser.new_context(viewport={"width": 1300, "height": 850})
    troubles: list[str] = []
    hosts: set[str] = set()
    pages: list[Page] = []

    def opened(address: str) -> Page:
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda line: troubles.append(line.text) if line.type == "error" else None)
        page.on("request", lambda asked: hosts.add(urlsplit(asked.url).netloc))
        page.goto(address)
        pages.append(page)
        return page

    yield opened
    ARTEFACTS.mkdir(exist_ok=True)
    for page in (page for page in pages if not page.is_closed()):
        page.screenshot(path=ARTEFACTS / f"{request.node.name.replace('/', '-')}.png")
        assert hosts <= {urlsplit(page.url).netloc}
    context.close()
    expected = getattr(request.node, "expected_troubles", ())
    unexpected = [one for one in troubles if not any(part in one for part in expected)]
    assert unexpected == []
