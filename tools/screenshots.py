"""Pictures of the console, taken of the running demo: `python tools/screenshots.py DIRECTORY`.

Nothing in them is painted: a hub with the demo's producers, consumers and (unless `--no-spark`) its Spark pipeline, a
few agents' executions and a dead letter beside them, and Debian's Chromium in front.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import headrace
from headrace.config.address import split_address
from headrace.protocols.perper.fabric.client import FabricClient
from headrace.protocols.perper.ignite.binary import encode_string
from headrace.protocols.perper.ignite.client import IgniteClient
from headrace.protocols.perper.ignite.configuration import Configuration
from headrace.protocols.perper.records import Execution, write_execution
from headrace.serving.runtime import LISTENERS

SOURCE = Path(__file__).parents[1] / "src"
START_S = 60.0
SETTLE_S = 300.0
HEIGHT_MAX = 1500
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
GET_OR_CREATE, PUT = 1054, 1001


class Shot(NamedTuple):
    """One picture: where, what must be there before it is taken, and what is done first."""

    name: str
    path: str
    wanted: str
    prepare: Callable[[Any], None] = lambda page: None


def _see_flow(page: Any) -> None:
    page.locator(".node-rate:visible").filter(has_text="/s").nth(3).wait_for()


def _see_rates(page: Any) -> None:
    page.locator("td[data-title='Records/s']").filter(has_text=re.compile("^[1-9]")).first.wait_for()


def _choose_record(page: Any) -> None:
    page.get_by_role("button", name="Earliest").click()
    page.locator(".records tbody tr").first.click()
    page.locator(".frame").nth(4).wait_for()
    page.locator(".summary .chart-foot", has_text=" ago").wait_for()


def _choose_session(page: Any) -> None:
    page.get_by_label("Filter sessions").fill("wallaroo")
    page.locator("tbody tr").nth(1).wait_for(state="detached")
    page.locator("tbody tr").click()
    page.locator(".machine .state.now").first.wait_for()


def _zoom_in(page: Any) -> None:
    """The demo is young: of the last minutes only the newest have something in them."""
    page.evaluate("location.hash = `#/events?since=${(Date.now() - 90_000) * 1000}`")
    page.locator(".chart path.line").first.wait_for()
    page.get_by_text("UTC").first.wait_for()


def _choose_immortal(page: Any) -> None:
    page.locator("tr", has_text="demo-ledger").first.click()
    page.get_by_role("button", name="Take a checkpoint").click()
    page.get_by_role("button", name="Take it").click()
    page.locator("#note", has_text="checkpoint").wait_for()
    page.locator(".timeline .checkpoint").first.wait_for()
    page.locator(".timeline .message").first.wait_for()


def _open_search(page: Any) -> None:
    page.keyboard.press("/")
    page.get_by_label("Search everything").fill("demo.or")
    page.locator("#found a", has_text="demo.orders").first.wait_for()


def _open_reset(page: Any) -> None:
    page.locator("tr", has_text="demo.orders").get_by_role("button", name="Reset").first.click()
    page.locator("[data-preview] p").wait_for()


def _open_chart(page: Any) -> None:
    page.get_by_label("SQL").fill('SELECT index, value.count FROM "demo.orders" ORDER BY index LIMIT 100')
    page.get_by_role("button", name="Run").click()
    page.get_by_role("button", name="Chart").click()
    page.locator(".results .chart").first.wait_for()


SHOTS = (
    Shot("map", "", ".node.stream:visible, .flow-row:visible", _see_flow),
    Shot("overview", "overview", ".figure"),
    Shot("streams", "streams", "tbody tr", _see_rates),
    Shot("stream", "stream/demo.orders", ".records tbody tr", _choose_record),
    Shot("tables", "tables?all=1", "tbody tr"),
    Shot("query", "query?stream=demo.orders", ".results tbody tr"),
    Shot("cursors", "cursors", "tbody tr"),
    Shot("dead-letters", "dead", "tbody tr"),
    Shot("sessions", "sessions", "tbody tr", _choose_session),
    Shot("immortals", "immortals", "tbody tr", _choose_immortal),
    Shot("executions", "executions", "[aria-label=Executions] tbody tr"),
    Shot("pipelines", "pipelines", ".pipeline, main .empty"),
    Shot("history", "events", ".chart path.line", _zoom_in),
    Shot("cluster", "cluster", "main .empty"),
    Shot("users", "users", "main .empty"),
    Shot("settings", "settings", "tbody tr"),
    Shot("table", "table/executions", "tbody tr"),
    Shot("search", "streams", "tbody tr", _open_search),
    Shot("reset", "cursors", "tbody tr", _open_reset),
    Shot("query-chart", "query", ".completions", _open_chart),
)
PHONE_WIDTH = 390
STATES = ("empty-hub", "trouble", "hub-lost", "no-rights", "some-rights", "users-some")
"""Pictures of hubs that are not like the demo's."""
_SHOT_NAMES = tuple(shot.name for shot in SHOTS)
NAMES = tuple(f"{name}{end}" for names in (_SHOT_NAMES, STATES) for end in ("", "-phone") for name in names)
"""All of them in light; those without `-phone` also in dark."""


def chromium() -> str | None:
    """Where Chromium is, or None."""
    return shutil.which("chromium")


@contextlib.contextmanager
def running_demo(directory: Path, with_spark: bool) -> Iterator[str]:
    """The demo on free ports; the address of its console."""
    command = [sys.executable, "-m", "headrace", "demo", "--data", str(directory)]
    for name in LISTENERS:
        command += ["--set", f"listen.{name}=127.0.0.1:0"]
    command += [] if with_spark else ["--no-spark"]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )
    assert process.stdout is not None
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(iter(process.stdout.readline, "")), daemon=True)
    reader.start()
    try:
        yield _console_address(process, lines)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(10)
        process.stdout.close()


def _console_address(process: subprocess.Popen[str], lines: list[str]) -> str:
    deadline = time.monotonic() + START_S
    while True:
        found = re.search(r"console: (http://\S+?)/?\s", "".join(lines))
        if found:
            return found[1]
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the demo did not start:\n{''.join(lines)}")
        time.sleep(0.05)


def call(console: str, verb: str, request: dict[str, Any] | None = None) -> Any:
    """One verb of the admin API."""
    body = json.dumps(request or {}).encode()
    asked = urllib.request.Request(f"{console}/api/v1/{verb}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=20) as answer:
        return json.load(answer)


def _wait_until(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SETTLE_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {SETTLE_S:g} s: {what}")
        time.sleep(0.2)


def add_letters(flight: str) -> None:
    """Records that a pipeline could not read, as it leaves them."""
    letter = {"stream": "demo.orders", "reason": "Malformed JSON: expected ',' or '}' at byte 17"}
    letters = [letter | {"payload": "eyJpdGVtIjogInBlYXIiIA=="}, letter | {"payload": "bm90IEpTT04=", "type": "order"}]
    with headrace.connect(flight) as client:
        client.create("demo.orders.dead")
        client.append("demo.orders.dead", [json.dumps(one).encode() for one in letters], type="dead-letter")


class Agents:
    """A worker of the fabric, and executions: some finished, some at work, some waiting."""

    async def start(self, addresses: dict[str, str]) -> None:
        self._ignite = await IgniteClient.connect(*split_address(addresses["ignite"]))
        self._fabric = await FabricClient.connect(*split_address(addresses["fabric"]))
        await self._ignite.request(GET_OR_CREATE, Configuration({0: "executions"}))
        for number in range(6):
            await self._put(number, finished=False)
        chosen = {"agent": "Pricing", "instance": "", "delegate": ""}
        asked = {"workGroup": "prices", "filter": chosen, "reserveNext": 4}
        worker = self._fabric.start("/perper.Fabric/ReservedExecutions", asked, end=False)
        taken = 0
        while taken < 4:
            message = await worker.next()
            taken += bool(message and message.execution)
        for number in range(2):
            await self._put(number, finished=True)

    async def _put(self, number: int, *, finished: bool) -> None:
        record = write_execution(Execution("Pricing", f"shop-{number % 2 + 1}", "Quote", finished))
        await self._ignite.request(PUT, encode_string(f"Quote-{number:04}"), record, cache="executions")

    async def stop(self) -> None:
        await self._fabric.close()
        await self._ignite.close()


def take(console: str, target: Path, themes: tuple[str, ...], width: int) -> list[Path]:
    """All pictures of a console; dark ones end in `-dark`."""
    from playwright.sync_api import sync_playwright

    target.mkdir(parents=True, exist_ok=True)
    made = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_FLAGS)
        for theme in themes:
            page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme).new_page()
            ending = "" if theme == "light" else f"-{theme}"
            made += [_taken(page, console, shot, target / f"{shot.name}{ending}.png") for shot in SHOTS]
            page.context.close()
        phone = {"viewport": {"width": PHONE_WIDTH, "height": 900}, "has_touch": True}
        page = browser.new_context(**phone).new_page()
        made += [_taken(page, console, shot, target / f"{shot.name}-phone.png") for shot in SHOTS]
        browser.close()
    return made


def _taken(page: Any, console: str, shot: Shot, file: Path) -> Path:
    page.goto(f"{console}/#/{shot.path}")
    page.locator(shot.wanted).first.wait_for()
    shot.prepare(page)
    page.locator("#note:not(:empty)").wait_for(state="detached")
    page.mouse.move(0, 0)
    page.evaluate("scrollTo(0, 0)")
    size = page.viewport_size
    height = page.evaluate("document.documentElement.scrollHeight")
    page.set_viewport_size(size | {"height": min(max(height, 700), HEIGHT_MAX)})
    page.screenshot(path=file)
    page.set_viewport_size(size)
    return file


USERS = """
[security.users.ann]
secret = "ann"
roles = ["admin"]
[security.users.ben]
secret = "ben"
roles = ["mute"]
[security.users.eva]
secret = "eva"
roles = ["shop-reader"]
[[security.roles.mute]]
rights = ["write"]
[[security.roles.shop-reader]]
rights = ["read"]
streams = ["shop.*"]
"""


class States:
    """A new hub, one with something amiss, the same when it has gone, and one that does not show everybody all."""

    def __init__(self, target: Path, directory: Path, themes: tuple[str, ...]) -> None:
        self._target = target
        self._directory = directory
        self._themes = themes
        target.mkdir(parents=True, exist_ok=True)

    def take(self) -> list[Path]:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_FLAGS)
            page = browser.new_context(viewport={"width": 1280, "height": 760}).new_page()
            self._of_a_new_hub(page)
            self._of_a_closed_hub(page)
            browser.close()
        endings = ["", *(f"-{theme}" for theme in self._themes if theme != "light"), "-phone"]
        return [self._target / f"{name}{ending}.png" for ending in endings for name in STATES]

    def _of_a_new_hub(self, page: Any) -> None:
        with _running_hub(self._directory / "new") as console:
            page.goto(console)
            page.locator(".first .command").first.wait_for()
            self._shoot(page, "empty-hub")
            for stream in ("shop.orders", "shop.bills"):
                call(console, "stream.create", {"stream": stream})
            sql = "SELECT payload FROM stream('shop.orders')"
            call(console, "pipeline.create", {"name": "billing", "sql": sql, "into": "shop.bills"})
            error = "no column 'price' in stream 'shop.orders'"
            call(console, "pipeline.report", {"name": "billing", "state": "failed", "error": error})
            page.locator(".node.pipeline.bad").wait_for()
            page.locator("[data-kind=pipeline]").wait_for()
            self._shoot(page, "trouble")
            page.goto(f"{console}/#/overview")
            page.locator(".figure").first.wait_for()
        page.locator("#lost").wait_for()
        self._shoot(page, "hub-lost")

    def _of_a_closed_hub(self, page: Any) -> None:
        settings = self._directory / "closed.toml"
        settings.write_text(USERS)
        with _running_hub(self._directory / "closed", "--config", str(settings)) as console:
            page.goto(console)
            self._sign_in(page, "ben")
            page.locator("#lost", has_text="do not have access").wait_for()
            self._shoot(page, "no-rights")
            page.get_by_role("button", name="Sign in as someone else").click()
            self._sign_in(page, "eva")
            page.goto(f"{console}/#/overview")
            page.get_by_text("You see only what concerns").wait_for()
            self._shoot(page, "some-rights")
            page.get_by_role("button", name="Sign out").click()
            self._sign_in(page, "ann")
            page.goto(f"{console}/#/users")
            page.locator("tbody tr").nth(2).wait_for()
            self._shoot(page, "users-some")

    def _sign_in(self, page: Any, name: str) -> None:
        page.get_by_label("User").fill(name)
        page.get_by_label("Password or token").fill(name)
        page.get_by_role("button", name="Sign in").click()
        page.locator("dialog").wait_for(state="detached")

    def _shoot(self, page: Any, name: str) -> None:
        """As it is, without another look at the hub, which may be gone."""
        page.mouse.move(0, 0)
        for theme in (*self._themes[::-1], "light"):
            page.evaluate("(theme) => { document.documentElement.dataset.theme = theme; }", theme)
            page.screenshot(path=self._target / f"{name}{'' if theme == 'light' else f'-{theme}'}.png")
        size = page.viewport_size
        page.set_viewport_size({"width": PHONE_WIDTH, "height": 800})
        page.locator(".map").filter(visible=True).wait_for(state="detached")  # a phone shows a list in its place
        page.screenshot(path=self._target / f"{name}-phone.png")
        page.set_viewport_size(size)


@contextlib.contextmanager
def _running_hub(data: Path, *options: str) -> Iterator[str]:
    """A hub by itself on free ports; the address of its console."""
    ready = data.with_suffix(".json")
    command = [sys.executable, "-m", "headrace", "up", "--data", str(data), "--ready-file", str(ready), *options]
    for name in LISTENERS:
        command += ["--set", f"listen.{name}=127.0.0.1:0"]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        _wait_until("a hub that is ready", lambda: ready.exists() or process.poll() is not None)
        yield f"http://{json.loads(ready.read_text())['http']}"
    finally:
        process.terminate()
        process.wait(60)


def make(
    target: Path, *, with_spark: bool, themes: tuple[str, ...] = ("light", "dark"), width: int = 1280
) -> list[Path]:
    """Start everything, take the pictures, end everything."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    with (
        tempfile.TemporaryDirectory(prefix="headrace-screenshots-") as directory,
        running_demo(Path(directory), with_spark) as console,
    ):
        addresses = call(console, "hub.info")["listeners"]
        add_letters(addresses["flight"])
        agents = Agents()
        asyncio.run_coroutine_threadsafe(agents.start(addresses), loop).result(30)
        _wait_until(
            "enough orders", lambda: call(console, "stream.describe", {"stream": "demo.orders"})["records"] > 80
        )
        if with_spark:
            _wait_until(
                "the pipeline's first results",
                lambda: call(console, "stream.describe", {"stream": "counts"})["records"] > 0,
            )
        try:
            return take(console, target, themes, width) + States(target, Path(directory), themes).take()
        finally:
            asyncio.run_coroutine_threadsafe(agents.stop(), loop).result(30)
            loop.call_soon_threadsafe(loop.stop)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--no-spark", action="store_true", help="without the demo's pipeline")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--theme", action="append", choices=("light", "dark"), help="both unless given")
    chosen = parser.parse_args()
    themes = tuple(chosen.theme or ("light", "dark"))
    for file in make(chosen.directory, with_spark=not chosen.no_spark, themes=themes, width=chosen.width):
        print(file)


if __name__ == "__main__":
    main()
