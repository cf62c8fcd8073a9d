"""How smoothly the console draws, and what it costs the hub: a real hub, a real Chromium, nothing made up.

    python benchmarks/bench_console.py [--previous REVISION] [--seconds 10] [--streams 10000] [--sessions 1000]
                                       [--scenes map-5 map-500 streams sessions live overview]

Each scene is one page, looked at for some seconds while 100 records come in each second. Printed of each:

    first ms   from the start of loading until the first paint with something in it
    ready ms   until what the page is for is there: nodes, rows, figures
    frames/s   as the browser gave them to the page; 60 is all there is
    p99 ms     99 of 100 frames came sooner than this after the one before
    late       frames later than 33 ms: fewer than 30 a second at that moment
    task ms    CPU time of the page's thread for each frame, however busy the machine is; script ms, the scripts' part
    busy ms/s  how long the page kept its thread in tasks longer than 50 ms, for each second
    elements   of the page
    KB/s       that the hub sent it
    hub CPU    of one core
    load       of the machine: with more than its cores, late frames may be somebody else's
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import previous

sys.path += [str(previous.ROOT / "tests"), str(previous.ROOT / "tools")]

import screenshots
from playwright.sync_api import Browser, CDPSession, sync_playwright
from support.hub_process import HubProcess

import headrace
from headrace.protocols.wallaroo.client import Connector

LIVE = "live.orders"
RATE = 100
AT_ONCE = 50
FRAMES = """
() => {
  const seen = { at: [], busy: 0 };
  new PerformanceObserver((list) => list.getEntries().forEach((one) => (seen.busy += one.duration)))
    .observe({ type: "longtask" });
  const frame = (now) => { seen.at.push(now); requestAnimationFrame(frame); };
  requestAnimationFrame(frame);
  window.seen = seen;
}
"""
PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN"
READY = """
addEventListener("DOMContentLoaded", () => {
  const wanted = %r;
  const look = () => {
    if (window.readyMs === undefined && document.querySelector(wanted)) window.readyMs = performance.now();
  };
  new MutationObserver(look).observe(document.body, { childList: true, subtree: true });
});
"""


class Scene(NamedTuple):
    """A page, how many streams the hub has then, and what is there when the page is ready."""

    name: str
    path: str
    streams: int
    wanted: str


class Seen(NamedTuple):
    """What was measured."""

    first_ms: float
    ready_ms: float
    frames: list[float]
    task_ms: float
    script_ms: float
    busy_ms: float
    elements: int
    received: int
    cpu_s: float
    took_s: float


def scenes(streams: int) -> list[Scene]:
    """The fewest streams first: a hub only gets more."""
    return [
        Scene("map-5", "", 5, ".node.stream"),
        Scene("map-500", "?all=1", 500, ".node.stream:nth-of-type(500)"),
        Scene("map-grouped", "", streams, ".node.group"),
        Scene("streams", "streams?order=rate", streams, "tbody tr"),
        Scene("sessions", "sessions", streams, "tbody tr"),
        Scene("live", f"stream/{LIVE}", streams, ".records tbody tr"),
        Scene("overview", "overview", streams, ".figure"),
    ]


class Load:
    """Producers in a thread of their own: sessions of a protocol, and records for one stream."""

    def __init__(self, hub: HubProcess, sessions: int) -> None:
        self._hub = hub
        self._sessions = sessions
        self._stop = threading.Event()
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> None:
        self._thread.start()
        self._up.wait()

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    async def _run(self) -> None:
        async with AsyncExitStack() as open_ones:
            address = self._hub.addresses["wallaroo"]
            for first in range(0, self._sessions, AT_ONCE):
                many = range(first, min(first + AT_ONCE, self._sessions))
                made = [await open_ones.enter_async_context(Connector(address)) for _ in many]
                await asyncio.gather(*[one.stream(f"till{at}") for at, one in zip(many, made, strict=True)])
            with headrace.connect(self._hub.addresses["flight"]) as client:
                self._up.set()
                began, sent = time.monotonic(), 0
                while not self._stop.is_set():
                    due = int((time.monotonic() - began) * RATE) - sent
                    if due:
                        records = [b'{"order": %d, "item": "pear", "count": 3}' % (sent + at) for at in range(due)]
                        await asyncio.to_thread(client.append, LIVE, records, type="order")
                        sent += due
                    await asyncio.sleep(0.02)


def cpu_s(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def counted(session: CDPSession) -> Iterator[Callable[[], int]]:
    """Bytes that the page received."""
    received = 0

    def heard(event: dict[str, Any]) -> None:
        nonlocal received
        received += event["encodedDataLength"] or event["dataLength"]

    session.on("Network.dataReceived", heard)
    session.send("Network.enable")
    yield lambda: received


def used_ms(session: CDPSession) -> tuple[float, float]:
    """CPU time of the page's thread, and of its scripts."""
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return metrics["TaskDuration"] * 1000, metrics["ScriptDuration"] * 1000


def look(browser: Browser, hub: HubProcess, scene: Scene, seconds: float) -> Seen:
    """Open the page, let it settle, and watch."""
    context = browser.new_context(viewport={"width": 1300, "height": 850})
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.add_init_script(READY % scene.wanted)
    session = context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    with counted(session) as received:
        page.goto(f"{hub.page}/#/{scene.path}")
        page.locator(scene.wanted).first.wait_for(state="attached")  # the page lets nobody evaluate a condition in it
        page.wait_for_timeout(2000)
        first_ms, ready_ms = page.evaluate(PAINT), page.evaluate("window.readyMs")
        page.evaluate(FRAMES)
        began, cpu, before, thread = time.monotonic(), cpu_s(hub.pid), received(), used_ms(session)
        page.wait_for_timeout(seconds * 1000)
        at, busy = page.evaluate("() => [window.seen.at, window.seen.busy]")
        took, used, sent = time.monotonic() - began, cpu_s(hub.pid) - cpu, received() - before
        task_ms, script_ms = (after - earlier for earlier, after in zip(thread, used_ms(session), strict=True))
    elements = page.evaluate("document.querySelectorAll('*').length")
    context.close()
    frames = [after - earlier for earlier, after in itertools.pairwise(at)]
    return Seen(first_ms, ready_ms, frames, task_ms, script_ms, busy, elements, sent, used, took)


def told(build: str, scene: Scene, seen: Seen) -> str:
    frames = sorted(seen.frames)
    p99 = frames[int(len(frames) * 0.99)] if frames else float("nan")
    late = sum(frame > 33.4 for frame in frames)
    return (
        f"{build:12} {scene.name:12} {seen.first_ms:8.0f} {seen.ready_ms:8.0f} {len(frames) / seen.took_s:8.1f} "
        f"{p99:7.0f} {late:5} {seen.task_ms / len(frames):7.2f} {seen.script_ms / len(frames):9.2f} "
        f"{seen.busy_ms / seen.took_s:9.0f} {seen.elements:8} "
        f"{seen.received / 1000 / seen.took_s:7.1f} {seen.cpu_s / seen.took_s:7.0%} {os.getloadavg()[0]:6.1f}"
    )


def fill(client: headrace.Client, streams: int, known: int) -> int:
    """So many streams, in ten groups; one of them is written."""
    for number in range(known, streams - 1):
        client.call("stream.create", {"stream": f"shop{number % 10}.till{number:05}", "exist_ok": True})
    return max(known, streams - 1)


def measure(build: str, source: Path, browser: Browser, asked: argparse.Namespace, folder: Path) -> None:
    chosen = [scene for scene in scenes(asked.streams) if scene.name in (asked.scenes or [scene.name])]
    with (
        HubProcess(folder, "log.streams_max=100000", environment={"PYTHONPATH": str(source)}) as hub,
        headrace.connect(hub.addresses["flight"]) as client,
    ):
        client.create(LIVE)
        known = 0
        for many in sorted({scene.streams for scene in chosen}):
            known = fill(client, many, known)
            with Load(hub, 0 if many < asked.streams else asked.sessions):
                for scene in chosen:
                    if scene.streams == many:
                        print(told(build, scene, look(browser, hub, scene, asked.seconds)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--sessions", type=int, default=1_000)
    parser.add_argument("--scenes", nargs="+", choices=[scene.name for scene in scenes(0)])
    parser.add_argument("--directory", default=os.environ.get("BENCH_DIR", "."))
    previous.add_option(parser)
    asked = parser.parse_args()
    print(
        "build        scene        first ms ready ms frames/s  p99 ms  late task ms script ms "
        "busy ms/s elements    KB/s hub CPU   load"
    )
    with (
        tempfile.TemporaryDirectory(prefix="bench-console-", dir=asked.directory) as folder,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=screenshots.chromium(), args=screenshots.CHROMIUM_FLAGS)
        for build, source in previous.builds(asked.previous, Path(folder)).items():
            data = Path(folder) / "hub"
            data.mkdir()
            measure(build, source, browser, asked, data)
            shutil.rmtree(data)
        browser.close()


if __name__ == "__main__":
    main()
