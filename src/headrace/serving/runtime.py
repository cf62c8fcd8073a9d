"""The process behind `headrace up`: open the hub, start what is configured, stop cleanly.

Order. The hub opens first (it holds the lock of the data directory and recovers the log). Then services start, which
register verbs and mount web applications; then listeners, HTTP last, so that nothing answers before all of it is there.
Stopping goes the other way round, and the log closes when nobody can reach it any more.

Every part is named "module:function" and imported only when it is wanted, so that a hub that serves one protocol does
not load the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.abc
import importlib.util
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from headrace import __version__
from headrace.admin.hub_verbs import Admin
from headrace.config import Config
from headrace.config.load import Loaded
from headrace.errors import Damaged, HeadraceError, NameTaken
from headrace.hub import Hub
from headrace.imports import without_pandas
from headrace.log.port import LogPort
from headrace.protocols.descriptor import protocols
from headrace.security import Security
from headrace.serving import files
from headrace.serving.garbage import Garbage, look_when_idle
from headrace.serving.listener import Listener
from headrace.serving.memory import find_trim, give_back, resident_bytes, trim_when_quiet
from headrace.telemetry.log_lines import fields
from headrace.telemetry.metrics import ProcessMetrics, counted
from headrace.telemetry.tracing import start as start_tracing

logger = logging.getLogger("headrace.server")

# Key of [listen] → `async def serve(hub, address) -> Listener`. HTTP stays last: it reports that all is ready.
LISTENERS: dict[str, str] = {
    **{kind.name: kind.serve for protocol in protocols() for kind in protocol.listeners if kind.serve},
    "http": "headrace.serving.http:serve",
}

# Name → `async def start(hub) -> Listener | None`: parts without a port of their own in [listen]. Some mount themselves
# on the HTTP port (`hub.mounts`), as the console does; some open ports as they go; pipelines are supervised.
SERVICES: dict[str, str] = {
    "admin": "headrace.admin:start",
    "sql": "headrace.sql.verbs:start",
    **{protocol.name: protocol.service for protocol in protocols() if protocol.service},
    "pipelines": "headrace.spark.hub.supervisor:start",
    "console": "headrace.console.server:start",
}

# How traces name the services that are no protocol of their own.
PROTOCOL_OF_SERVICE = {"pipelines": "spark"}

LAG_INTERVAL_S = 1.0

EXIT_OK = 0
EXIT_LOG_FAILED = 4


class StartFailed(HeadraceError):
    """A listener or service could not start; nothing was left running."""

    code = "start-failed"


class StandsBy(Protocol):
    """A hub on Kafka before it owns the log, and beside the runtime afterwards (`headrace.cluster`)."""

    log: LogPort | None

    def prepare(self, hub: Hub) -> None:
        """Add to a hub that does not listen yet."""
        ...

    async def give_up(self, name: str) -> None:
        """Free the port of a listener."""
        ...


class Runtime:
    """A running hub with its listeners and services."""

    def __init__(self, hub: Hub, config: Config) -> None:
        self.hub = hub
        self.config = config
        self.addresses = hub.addresses
        self.missing: list[str] = []
        self._running: list[tuple[str, Listener]] = []
        self._chores: list[asyncio.Task[None]] = []
        self._garbage = Garbage()

    @classmethod
    async def start(cls, loaded: Loaded, standby: StandsBy | None = None) -> Runtime:
        """Open the hub and start everything configured. If one part fails, the ones before it are stopped again. One
        that stood by has the log already, and gives up each listener when the hub's own is about to open."""
        config = loaded.config
        preload(config)
        hub = await Hub.open(
            config.log.data, config, tracing=start_tracing(config), log=None if standby is None else standby.log
        )
        runtime = cls(hub, config)
        try:
            runtime._watch_process()
            Admin(runtime, loaded).register(hub.verbs)
            if standby is not None:
                standby.prepare(hub)
            for warning in hub.security.warnings():
                logger.warning(warning)
            await runtime._start_services()
            await runtime._start_listeners(standby)
        except BaseException:
            await runtime.stop()
            raise
        return runtime

    def _watch_process(self) -> None:
        process = self.hub.metrics.process
        process.info.labels(version=__version__).set(1)
        process.started.set(time.time())
        self.hub.metrics.before_scrape(lambda: process.resident_bytes.set(resident_bytes()))
        written = self.hub.metrics.log.bytes
        self.hub.intake.connections_max = files.for_connections(files.raise_limit(), self.config.limits.files_reserved)
        files.tell_once(asyncio.get_running_loop())
        self._chores = [
            asyncio.create_task(_measure_lag(process), name="loop lag"),
            asyncio.create_task(trim_when_quiet(lambda: counted(written), find_trim()), name="trim"),
            asyncio.create_task(self.hub.admission.rights.follow(), name="rights"),
        ]

    async def _start_services(self) -> None:
        for name, entry in SERVICES.items():
            start = self._found(name, entry)
            if start is not None:
                await self._started(name, start(self.hub.used_by(PROTOCOL_OF_SERVICE.get(name, name))))

    async def _start_listeners(self, standby: StandsBy | None) -> None:
        for name, entry in LISTENERS.items():
            address = self.config.listen.addresses()[name]
            if address == "off":
                continue
            serve = self._found(name, entry)
            if serve is not None:
                if standby is not None:
                    await standby.give_up(name)
                await self._started(name, serve(self.hub.used_by(name), address))

    async def _started(self, name: str, starting: Awaitable[Listener | None]) -> None:
        try:
            listener = await starting
        except (Damaged, NameTaken) as trouble:  # with a table that the part keeps: the others serve
            reason = f"not served: {trouble}"
            logger.error(reason, extra=fields(part=name))
            self.hub.health.check(name, lambda: reason)
            return
        except OSError as error:
            address = self.config.listen.addresses().get(name, "")
            raise StartFailed(
                f"{name} cannot listen on {address}: {error.strerror or error}; `headrace doctor` says who does, and "
                f"--set listen.{name}=HOST:PORT chooses another"
            ) from error
        if listener is None:
            return
        self._running.append((name, listener))
        for part, address in listener.addresses.items() if name not in LISTENERS else [(name, listener.address)]:
            self.addresses[part] = address
            logger.info("listening", extra=fields(listener=part, address=address))

    def _found(self, name: str, entry: str) -> Callable[..., Awaitable[Listener | None]] | None:
        """The function behind "module:function", or None when this installation does not hold the module."""
        function = load_entry(entry)
        if function is None:
            self.missing.append(name)
            logger.debug("not available in this installation", extra=fields(part=name))
        return function

    def settle(self) -> None:
        """All has started, and what there is by now stays."""
        self._garbage.begin()
        self._chores.append(asyncio.create_task(look_when_idle(self._garbage), name="garbage"))
        self.hub.metrics.before_scrape(lambda: self._garbage.tell(self.hub.metrics.process))
        give_back()

    async def stop(self) -> None:
        """Stop accepting, end the sessions, close the log. Listeners go together, so that a stop does not take
        `limits.stop_s` once for each; services go after those who use them."""
        self.hub.stopping.set()
        self.hub.on_stop()  # or parts that store something at last would wait for what the log waits for
        listeners = [entry for entry in self._running if entry[0] in LISTENERS]
        services = [entry for entry in self._running if entry[0] not in LISTENERS]
        self._running.clear()
        await asyncio.gather(*(self._stopped(name, listener) for name, listener in listeners))
        for name, service in reversed(services):
            await self._stopped(name, service)
        for chore in self._chores:
            chore.cancel()
        self._garbage.end()
        await self.hub.close()
        await self._traces_sent()

    async def _traces_sent(self) -> None:
        try:
            await asyncio.wait_for(self.hub.tracing.close(), self.config.limits.stop_s)
        except TimeoutError:
            logger.warning("the last traces were not sent: no answer from the collector")

    async def _stopped(self, name: str, listener: Listener) -> None:
        """One part stopped, or left behind with a word about it: it does not keep the others."""
        try:
            await asyncio.wait_for(listener.close(), self.config.limits.stop_s)
        except Exception as error:
            logger.error("did not stop cleanly", extra=fields(part=name, error=repr(error)))


async def _measure_lag(process: ProcessMetrics) -> None:
    """How late a timer comes: a loop that something blocks shows here first."""
    while True:
        due = time.monotonic() + LAG_INTERVAL_S
        await asyncio.sleep(LAG_INTERVAL_S)
        process.loop_lag_seconds.set(max(0.0, time.monotonic() - due))


def load_entry(entry: str) -> Callable[..., Any] | None:
    """The object behind "module:name"; None when there is no such module. A module that fails to load is an error."""
    module_name, _, attribute = entry.partition(":")
    try:
        spec = importlib.util.find_spec(module_name)
    except ModuleNotFoundError:  # a parent package does not exist
        return None
    if spec is None:
        return None
    function: Callable[..., Any] = getattr(importlib.import_module(module_name), attribute)
    return function


def preload(config: Config) -> None:
    """Import what this configuration needs, before there are threads and clients that would have to wait for it."""
    addresses = config.listen.addresses()
    for entry in (*SERVICES.values(), *(entry for name, entry in LISTENERS.items() if addresses[name] != "off")):
        load_entry(entry)
    for noun in ("streams", "records", "cursors", "tables"):
        importlib.import_module(f"headrace.admin.{noun}")
    # No part of a hub uses pandas. From NumPy's first array on, pyarrow looks for `numpy.ma` as well.
    with without_pandas():
        pa.array([0])
        pa.array(np.zeros(1))


def write_ready_file(path: Path, addresses: dict[str, str]) -> None:
    """Name → address as JSON. It appears complete or not at all, for whoever waits for it."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps(addresses) + "\n", encoding="utf-8")
    os.replace(beside, path)


def tell_manager(state: str) -> None:
    """Tell systemd (`Type=notify`), if it started us, that we are ready or stopping."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path  # an abstract name
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifying:
            notifying.sendto(state.encode(), address)
    except OSError as error:
        logger.warning("could not notify the service manager", extra=fields(state=state, error=str(error)))


def _remove(ready_file: Path | None) -> None:
    if ready_file is not None:
        with contextlib.suppress(OSError):
            ready_file.unlink()


class Life:
    """One run of the process, from its start to its exit code. On Kafka it begins as a hub that stands by."""

    def __init__(self, loaded: Loaded, ready_file: Path | None, on_ready: Callable[[Announced], None]) -> None:
        self._loaded = loaded
        self._ready_file = ready_file
        self._on_ready = on_ready
        self._stop = asyncio.Event()
        self._standby: Any = None
        self._fenced = ""

    async def run(self) -> int:
        """Until SIGTERM or SIGINT, or until the log fails."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        _remove(self._ready_file)
        try:
            if self._loaded.config.log.backend == "kafka":
                return await self._stand_by()
            return await self._serve(self._loaded)
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def _stand_by(self) -> int:
        config = self._loaded.config
        preload(config)
        start = load_entry("headrace.cluster.standby:start")
        assert start is not None
        names = [name for name, at in config.listen.addresses().items() if at != "off" and load_entry(LISTENERS[name])]
        self._standby = standby = await start(self._loaded, names)
        try:
            self._ready(Announced(config, standby.addresses, standby.base.security, [], standby.node.name))
            owned = asyncio.ensure_future(standby.owned())
            await self._first_of(owned)
            if not owned.done():
                owned.cancel()
                return EXIT_OK
            await owned
            return await self._serve(standby.loaded)
        finally:
            _remove(self._ready_file)
            await standby.close()

    async def _serve(self, loaded: Loaded) -> int:
        standby = self._standby
        runtime = await Runtime.start(loaded, standby)
        runtime.settle()
        try:
            if standby is None:
                hub = runtime.hub
                self._ready(Announced(loaded.config, runtime.addresses, hub.security, runtime.missing))
            else:
                await standby.serves(runtime.hub)
            await self._first_of(runtime.hub.failed(), *([] if standby is None else [_done(standby.fenced)]))
            if standby is not None and self._stop.is_set():
                await standby.leaves()
        finally:
            tell_manager("STOPPING=1")
            _remove(self._ready_file)
            await runtime.stop()
        if standby is not None and standby.fenced.done() and not runtime.hub.has_failed:
            logger.error("%s: this hub is stopping; start it again to follow", standby.fenced.result())
            return EXIT_LOG_FAILED
        if not runtime.hub.has_failed:  # asked last: the log may fail with what is stored while the hub stops
            return EXIT_OK
        logger.error("stopping because the log has failed; start again to recover: %s", await runtime.hub.failed())
        return EXIT_LOG_FAILED

    def _ready(self, announced: Announced) -> None:
        if self._ready_file is not None:
            write_ready_file(self._ready_file, announced.addresses)
        self._on_ready(announced)
        tell_manager("READY=1")

    async def _first_of(self, *awaited: Awaitable[Any]) -> None:
        """Until the process is told to stop, or one of them is done. They are asked again afterwards, if need be."""
        tasks = [asyncio.ensure_future(each) for each in awaited]
        stopped = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait((*tasks, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        for given, task in zip(awaited, tasks, strict=True):
            if task is not given:
                task.cancel()


async def _done(future: asyncio.Future[Any]) -> None:
    await asyncio.shield(future)


class Announced(NamedTuple):
    """What is said of a hub when it listens."""

    config: Config
    addresses: dict[str, str]
    security: Security
    missing: list[str]
    hub: str = ""
    """Its name among the hubs of a cluster."""


async def run(
    loaded: Loaded,
    *,
    ready_file: Path | None = None,
    on_ready: Callable[[Announced], None] = lambda announced: None,
) -> int:
    """Run until SIGTERM or SIGINT, or until the log fails. Returns the exit code of the process."""
    return await Life(loaded, ready_file, on_ready).run()
