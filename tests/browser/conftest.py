"""A hub process and a real browser. The browser is Debian's Chromium."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from test_programs import find

import headrace
from headrace.serving.runtime import LISTENERS

SOURCE = Path(__file__).parents[2] / "src"
ARTEFACTS = Path(os.environ.get("HEADRACE_ARTEFACTS", Path(__file__).parents[2] / "artefacts"))
"""Where a picture of every page stays that a test has looked at."""
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DEADLINE_S = 60.0

Result = TypeVar("Result")


class RunningHub(NamedTuple):
    page: str
    flight: str
    addresses: dict[str, str]
    process: subprocess.Popen[bytes]


class Background:
    """An event loop in a thread of its own, for peers of the hub: the browser's own loop runs in this one."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._started: list[Future[Any]] = []

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do it and wait for the result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do it until the test ends."""
        self._started.append(asyncio.run_coroutine_threadsafe(work, self._loop))

    def close(self) -> None:
        for future in self._started:
            future.cancel()
        self.run(asyncio.sleep(0))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()


def run_hub(
    directory: Path, settings: Path | None = None, environment: dict[str, str] | None = None
) -> Iterator[RunningHub]:
    ready = directory / "ready.json"
    command = [sys.executable, "-m", "headrace", "up", "--data", str(directory / "data"), "--ready-file", str(ready)]
    for name in LISTENERS:
        command += ["--set", f"listen.{name}=127.0.0.1:0"]
    if settings is not None:
        command += ["--config", str(settings)]
    with open(directory / "hub.log", "wb") as log:
        given = os.environ | {"PYTHONPATH": str(SOURCE)} | (environment or {})
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=given)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not ready.exists():
            assert process.poll() is None, (directory / "hub.log").read_text()
            assert time.monotonic() < deadline, (directory / "hub.log").read_text()
            time.sleep(0.05)
        addresses = json.loads(ready.read_text())
        yield RunningHub(f"http://{addresses['http']}", addresses["flight"], addresses, process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@pytest.fixture
def background() -> Iterator[Background]:
    made = Background()
    yield made
    made.close()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    yield from run_hub(tmp_path_factory.mktemp("hub"))


@pytest.fixture(scope="module")
def client(hub: RunningHub) -> Iterator[headrace.Client]:
    with headrace.connect(hub.flight) as connected:
        yield connected


@pytest.fixture(scope="module")  # no longer: while it is open, its event loop is in the way of other tests
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=find("chromium"), args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Page]]:
    """Opens an address; afterwards: no script errors, no requests to other hosts, and a screenshot is kept."""
    context = browser.new_context(
        viewport={"width": 1300, "height": 850}, permissions=["clipboard-read", "clipboard-write"]
    )
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
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    for page in (page for page in pages if not page.is_closed()):
        page.screenshot(path=ARTEFACTS / f"{request.node.name.replace('/', '-')}.png")
        assert hosts <= {urlsplit(page.url).netloc}
    context.close()
    expected = getattr(request.node, "expected_troubles", ())
    unexpected = [one for one in troubles if not any(part in one for part in expected)]
    assert unexpected == []
