"""The demo itself: one process with a hub, producers, consumers and a view; a second one for Spark.

It ends in the order in which data flows: producers, the pipeline, consumers, the hub. All positions are kept by the
hub, so the next start in the same directory continues where this one ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace import connect_async
from headrace.config import Listen, LoggingSection
from headrace.config.address import split_address
from headrace.config.load import Loaded, load
from headrace.console.rates import Rates
from headrace.demo.consumers import CONSUMERS, NAME
from headrace.demo.flows import LEDGER, TILL, Flow, keep_going, make_flows
from headrace.demo.pipeline import PipelineProcess, spark_is_there
from headrace.demo.producers import PRODUCERS
from headrace.demo.view import Frame, PipelineRow, View, flow_row, pipeline_row
from headrace.errors import BadConfig
from headrace.log.ops import Bounds
from headrace.log.place import check_place
from headrace.security import Security
from headrace.serving.runtime import Runtime
from headrace.telemetry import log_lines

logger = logging.getLogger("headrace.demo")

STORY = (
    "A shop whose teams never agreed on a protocol: tills send orders (Wallaroo), the cold store sends readings",
    "(Ockam), the web site sends clicks (FutoIn), buyers send prices (Perper), and a till calls the ledger (AMBROSIA).",
    "One log takes them all, and each stream is read through a different protocol.",
)
FRAME_S = 0.5
DEADLINE_STEP_S = 0.1


def settings(directory: Path, flags: Sequence[str]) -> Loaded:
    """Everything on loopback, at the usual ports where they are free. `flags` win. Makes the folder of the demo."""
    check_place(directory)
    chosen = [f"log.data={directory}", "futoin.insecure=true"]
    chosen += [f"ambrosia.immortals.{name}.checkpoint_log_bytes=4MiB" for name in (TILL, LEDGER)]
    for name in Listen.__struct_fields__:
        usual = getattr(Listen(), name)
        chosen.append(f"listen.{name}={usual if is_free(usual) else '127.0.0.1:0'}")
    loaded = load(flags=[*chosen, *flags])
    if Security(loaded.config).required:
        raise BadConfig(
            f"the hub in {directory} has users, and the demo cannot sign in as one of them; "
            "start it without the demo (make up, headrace up), or run the demo elsewhere: headrace demo --data DIR"
        )
    files_of(directory).mkdir(parents=True, exist_ok=True)
    return loaded


def files_of(directory: Path) -> Path:
    """Where the demo keeps its own files, beside the hub's: logs, and how far the pipeline is."""
    return directory / "demo"


def is_free(address: str) -> bool:
    """Whether nobody listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(split_address(address))
        except OSError:
            return False
    return True


class Demo:
    """One run."""

    def __init__(self, directory: Path, view: View, *, with_spark: bool) -> None:
        self._directory = directory
        self._view = view
        self._with_spark = with_spark and spark_is_there()
        self._flows = make_flows()
        if not self._with_spark:
            del self._flows["counts"]
        self._stored_before: dict[str, int] = {}
        self._rates = Rates()
        self._started_s = time.monotonic()
        self.stop = asyncio.Event()

    async def run(self, loaded: Loaded, seconds: float | None = None) -> Frame:
        """Until `stop` is set, the log fails, or the time is over. Returns the last frame."""
        runtime = await Runtime.start(loaded)
        try:
            return await self._run(runtime, seconds)
        finally:
            await runtime.stop()

    async def _run(self, runtime: Runtime, seconds: float | None) -> Frame:
        hub = runtime.hub
        for flow in self._flows.values():
            if not flow.stream.startswith("immortal/") and flow.writer != "Perper":
                await hub.create_stream(flow.stream)
        self._stored_before = {name: bounds.next for name, bounds in self._bounds(runtime).items()}
        self._announce(runtime)
        pipeline = PipelineProcess(files_of(self._directory), runtime.addresses["flight"])
        producers = self._start(PRODUCERS, runtime)
        await self._wait_for_streams(runtime)
        consumers = self._start(CONSUMERS, runtime)
        try:
            if self._with_spark:
                await pipeline.start()
            await self._watch(runtime, pipeline, seconds)
        finally:
            await _cancel(producers)
            await pipeline.stop()
            frame = self._frame(runtime, PipelineRow(pipeline.state))
            await _cancel(consumers)
        return frame

    def _announce(self, runtime: Runtime) -> None:
        self._view.say(f"console: {self._console_url(runtime)}")
        for line in STORY:
            self._view.say(line)
        listening = [f"{name} {address}" for name, address in runtime.addresses.items() if "." not in name]
        self._view.say(f"listening: {', '.join(listening)}, and two ports for each immortal")
        stored = sum(self._stored_before.values())
        what = f"continuing after {stored:,} records of earlier runs" if stored else "a new hub"
        self._view.say(f"data in {self._directory}: {what}")
        if self._with_spark:
            self._view.say("a Spark pipeline counts everything")
        else:
            self._view.say("no Spark pipeline: switched off, or not installed (pip install 'headrace[spark]')")

    def _console_url(self, runtime: Runtime) -> str:
        return f"http://{runtime.addresses['http']}/"

    def _bounds(self, runtime: Runtime) -> dict[str, Bounds]:
        """Of each flow's stream, as far as it is there."""
        hub = runtime.hub
        return {
            name: hub.bounds(flow.stream) if hub.streams(flow.stream) else Bounds(0, 0)
            for name, flow in self._flows.items()
        }

    def _stored_lag(self, runtime: Runtime, flow: Flow, bounds: Bounds) -> int:
        """How far the reader's saved position is behind; all of the stream when it has saved none."""
        cursors = runtime.hub.cursors(stream=flow.stream) if bounds.next else []
        lags = [cursor.lag for cursor in cursors if NAME in cursor.name.lower().split(":")[-1]]
        return min(lags, default=bounds.next - bounds.first)

    def _start(self, parts: dict[str, Any], runtime: Runtime) -> list[asyncio.Task[None]]:
        return [
            asyncio.create_task(keep_going(part, self._flows[name], runtime.addresses), name=f"demo {part.__name__}")
            for name, part in parts.items()
            if name in self._flows
        ]

    async def _wait_for_streams(self, runtime: Runtime) -> None:
        """A consumer does not create what it reads; Perper's stream is there once its producer is."""
        while not all(runtime.hub.streams(flow.stream) for flow in self._flows.values()):
            if self.stop.is_set():
                return
            await asyncio.sleep(DEADLINE_STEP_S)

    async def _watch(self, runtime: Runtime, pipeline: PipelineProcess, seconds: float | None) -> None:
        ends_s = None if seconds is None else self._started_s + seconds
        failed = asyncio.ensure_future(runtime.hub.failed())
        try:
            async with connect_async(runtime.addresses["flight"]) as client:
                while not (self.stop.is_set() or failed.done() or (ends_s and time.monotonic() >= ends_s)):
                    known = await client.call("pipeline.list") if self._with_spark else []
                    self._view.show(self._frame(runtime, pipeline_row(pipeline.state, known)))
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self.stop.wait(), FRAME_S)
        finally:
            failed.cancel()

    def _frame(self, runtime: Runtime, pipeline: PipelineRow) -> Frame:
        bounds = self._bounds(runtime)
        self._rates.measure({name: of_stream.next for name, of_stream in bounds.items()})
        rows = []
        for name, flow in self._flows.items():
            lag = self._stored_lag(runtime, flow, bounds[name])
            rows.append(flow_row(flow, bounds[name], self._stored_before[name], self._rates.of(name), lag))
        resumed = any(self._stored_before.values())
        uptime_s = time.monotonic() - self._started_s
        return Frame(self._console_url(runtime), resumed, uptime_s, rows, pipeline)


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def run(
    directory: Path, view: View, *, flags: Sequence[str] = (), seconds: float | None = None, with_spark: bool = True
) -> Frame:
    """Run the demo in a directory; its logs go there too. Returns the state at the end."""
    loaded = settings(directory, flags)
    with (files_of(directory) / "hub.log").open("a", encoding="utf-8") as output, view:
        log_lines.set_up(LoggingSection(level="info", format="text"), output)
        demo = Demo(directory, view, with_spark=with_spark)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, demo.stop.set)
        try:
            return await demo.run(loaded, seconds)
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
