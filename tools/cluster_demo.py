"""See a hub survive: three brokers, two hubs, the producers of `headrace demo`, a pipeline; then the owner is killed.

    make cluster
    python tools/cluster_demo.py [--after 20] [--seconds 20] [--no-spark]

All clients talk to the hub that does not own the log: it passes them on. After `--after` seconds the owner is killed
with SIGKILL, the other hub takes over, and clients go on. In the end every stream is compared with what its producer
was told to be stored. Without `--seconds` it keeps running until Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

from free_ports import free_ports
from kafka_brokers import Brokers, NoJars, fetch

from headrace import connect_async
from headrace.client import AsyncClient
from headrace.config.sections import Kafka as KafkaSettings
from headrace.demo.flows import LEDGER, TILL, Flow, keep_going, make_flows
from headrace.demo.pipeline import PipelineProcess, spark_is_there
from headrace.demo.producers import PRODUCERS
from headrace.errors import HeadraceError
from headrace.log.kafka.client import connect
from headrace.log.kafka.topics import create_missing
from headrace.serving.runtime import LISTENERS

START_S = 120.0
TAKEOVER_S = 120.0
STEP_S = 0.1
SESSION_TIMEOUT_S = 10


class Hub:
    """A process of `headrace up`."""

    def __init__(self, folder: Path, name: str, servers: str, ports: dict[str, int]) -> None:
        folder.mkdir()
        self.name = name
        self.folder = folder
        self.addresses: dict[str, str] = {}
        settings = [
            "log.backend=kafka",
            f"log.kafka.servers={servers}",
            "log.kafka.store=kafka",
            f"cluster.hub={name}",
            f"cluster.session_timeout_s={SESSION_TIMEOUT_S}",
            "futoin.insecure=true",
            *(f"listen.{listener}=127.0.0.1:0" for listener in LISTENERS),
            *(f"ambrosia.immortals.{key}=127.0.0.1:{port}" for key, port in ports.items()),
        ]
        flags = [part for setting in settings for part in ("--set", setting)]
        command = [sys.executable, "-m", "headrace", "up", "--data", str(folder / "data")]
        command += ["--ready-file", str(folder / "ready.json"), *flags]
        with (folder / "hub.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    async def ready(self) -> None:
        deadline = time.monotonic() + START_S
        while not (self.folder / "ready.json").exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.folder / "hub.log").read_text()[-3000:])
            await asyncio.sleep(STEP_S)
        self.addresses = json.loads((self.folder / "ready.json").read_text())

    async def owns(self) -> None:
        """Returns when it owns the log."""
        deadline = time.monotonic() + TAKEOVER_S
        while not await asyncio.to_thread(self._is_owner):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.folder / "hub.log").read_text()[-3000:])
            await asyncio.sleep(STEP_S)

    def _is_owner(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.addresses['http']}/health?cell=0", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


class Kill(NamedTuple):
    """When the owner was killed, and what had been acknowledged by then."""

    at: float
    sent: dict[str, int]


class Show:
    """One run."""

    def __init__(self, folder: Path, brokers: Brokers, after_s: float, with_spark: bool) -> None:
        self._folder = folder
        self._brokers = brokers
        self._after_s = after_s
        self._with_spark = with_spark and spark_is_there()
        self._flows = make_flows()
        if not self._with_spark:
            del self._flows["counts"]
        self._hubs: list[Hub] = []
        self.stop = asyncio.Event()

    async def run(self, seconds: float | None) -> bool:
        """Whether nothing was lost."""
        try:
            await self._start_hubs()
            return await self._watch(seconds)
        finally:
            for hub in self._hubs:
                if hub.process.poll() is None:
                    hub.process.terminate()
            for hub in self._hubs:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    hub.process.wait(30)
                hub.process.kill()

    async def _start_hubs(self) -> None:
        settings = KafkaSettings(servers=self._brokers.servers)
        kafka = connect(settings)
        create_missing(kafka, settings)
        kafka.close()
        ports = _immortal_ports()
        for name in ("hub-1", "hub-2"):
            hub = Hub(self._folder / name, name, self._brokers.servers, ports)
            self._hubs.append(hub)
            await hub.ready()
            if name == "hub-1":
                await hub.owns()
        immortals = {key: f"127.0.0.1:{port}" for key, port in ports.items()}
        self._addresses = {**self._hubs[1].addresses, **{f"ambrosia.{key}": at for key, at in immortals.items()}}
        say(
            f"hub-1 owns the log, hub-2 follows; clients use hub-2. Console: http://{self._addresses['http']}/#/cluster"
        )

    async def _watch(self, seconds: float | None) -> bool:
        async with connect_async(self._addresses["flight"]) as client:
            for flow in self._flows.values():
                if not flow.stream.startswith("immortal/") and flow.writer != "Perper":
                    await client.create(flow.stream)
        pipeline = PipelineProcess(self._folder, self._addresses["flight"])
        producers = [
            asyncio.create_task(keep_going(part, self._flows[name], self._addresses))
            for name, part in PRODUCERS.items()
        ]
        try:
            if self._with_spark:
                await pipeline.start()
            say(f"producers of all protocols write through hub-2; hub-1 is killed in {self._after_s:g} s")
            await self._pause(self._after_s)
            kill = self._kill_owner()
            back = await self._until_all_are_back(kill)
            if not self.stop.is_set():
                await self._report(kill, back)
                say("clients write on; " + ("Ctrl-C ends it" if seconds is None else f"it ends in {seconds:g} s"))
                await self._pause(seconds)
        finally:
            for task in producers:
                task.cancel()
            await asyncio.gather(*producers, return_exceptions=True)
            await pipeline.stop()
        return await self._report(kill, back)

    async def _pause(self, seconds: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stop.wait(), seconds)

    def _kill_owner(self) -> Kill:
        kill = Kill(time.monotonic(), {name: flow.sent for name, flow in self._flows.items()})
        self._hubs[0].process.kill()
        self._hubs[0].process.wait()
        say(f"{time.strftime('%H:%M:%S')} hub-1 killed with SIGKILL; acknowledged until now: {_sum(kill.sent)} records")
        say(f"the brokers wait {SESSION_TIMEOUT_S} s for it; clients lose their connections, and try again meanwhile:")
        return kill

    async def _until_all_are_back(self, kill: Kill) -> dict[str, float]:
        """The pause of each producer: from the kill to the next acknowledgement."""
        back: dict[str, float] = {}
        owning = asyncio.create_task(self._hubs[1].owns())
        owning.add_done_callback(lambda task: say(f"hub-2 owns the log after {time.monotonic() - kill.at:.1f} s"))
        told: set[str] = set()
        while len(back) < len(PRODUCERS) and time.monotonic() < kill.at + TAKEOVER_S and not self.stop.is_set():
            for name in PRODUCERS:
                flow = self._flows[name]
                if name not in back and flow.sent > kill.sent[name]:
                    back[name] = time.monotonic() - kill.at
                if flow.error and name not in told and name not in back:
                    told.add(name)
                    say(f"  {flow.stream} ({flow.writer}): {flow.error}")
            await asyncio.sleep(STEP_S / 2)
        await owning
        return back

    async def _report(self, kill: Kill, back: dict[str, float]) -> bool:
        async with connect_async(self._addresses["flight"]) as client:
            say(f"\n{'stream':<28}{'by':<10}{'acknowledged before':>20}{'and after':>11}{'stored':>9}{'pause':>9}")
            whole = all([await self._row(client, flow, kill, back) for flow in self._flows.values()])
        say("nothing that was acknowledged is missing" if whole else "SOMETHING IS MISSING")
        return whole

    async def _row(self, client: AsyncClient, flow: Flow, kill: Kill, back: dict[str, float]) -> bool:
        before, sent = kill.sent[flow.name], flow.sent  # before the stream is looked at: producers may be at work
        bounds = await client.bounds(flow.stream)
        stored = bounds.next
        pause = f"{back[flow.name]:.1f} s" if flow.name in back else "–"
        is_whole = bounds.first == 0 and stored >= sent and (flow.name in back or flow.name not in PRODUCERS)
        mark = "" if is_whole else "  MISSING"
        counts = ("–", "–") if flow.name not in PRODUCERS else (str(before), str(sent - before))
        say(f"{flow.stream:<28}{flow.writer:<10}{counts[0]:>20}{counts[1]:>11}{stored:>9}{pause:>9}{mark}")
        return is_whole


def _immortal_ports() -> dict[str, int]:
    """Both hubs open the same ports for an immortal, one after the other: they must be known before."""
    keys = [f"{name}.{way}" for name in (TILL, LEDGER) for way in ("receive", "send")]
    return dict(zip(keys, free_ports(len(keys)), strict=True))


def _sum(sent: dict[str, int]) -> int:
    return sum(sent.values())


def say(text: str) -> None:
    print(text, flush=True)


async def run(folder: Path, brokers: Brokers, options: argparse.Namespace) -> bool:
    show = Show(folder, brokers, options.after, not options.no_spark)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, show.stop.set)
    return await show.run(options.seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--after", type=float, default=20.0, help="kill the owner after so many seconds")
    parser.add_argument("--seconds", type=float, default=None, help="end so many seconds after all clients are back")
    parser.add_argument("--no-spark", action="store_true", help="without the pipeline")
    options = parser.parse_args()
    say("fetching Kafka with Maven, the first time only")
    try:
        fetch()
    except (NoJars, OSError) as error:
        say(f"this needs Kafka's jars, which Maven fetches: {error}")
        return 1
    with tempfile.TemporaryDirectory(prefix="headrace-cluster-") as directory:
        folder = Path(directory)
        brokers = Brokers(folder / "brokers")
        try:
            say("starting three brokers: about half a minute")
            brokers.start()
            say(f"brokers: {brokers.servers}")
            return 0 if asyncio.run(run(folder, brokers, options)) else 1
        except HeadraceError as error:
            say(f"error: {error}")
            return 1
        finally:
            brokers.stop()


if __name__ == "__main__":
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    logging.getLogger("headrace").addHandler(logging.NullHandler())  # what matters is said
    sys.exit(main())
