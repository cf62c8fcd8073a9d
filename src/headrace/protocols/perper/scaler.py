"""Starts and stops agent processes: the scaler that the protocol leaves open, for local processes.

An agent instance is an execution of the agent `Registry`: its id is the instance, its `instance` field the agent's
type. The scaler listens to those over gRPC, as any other scaler would, and keeps one process for each instance whose
type is in its settings. A process that ends by itself is started again, later each time; one whose instance is
removed is asked to stop (SIGTERM) and then made to (SIGKILL).

When the hub is away the processes stay; when it is back the scaler compares and sets right what changed meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.config.address import split_address
from headrace.errors import BadConfig
from headrace.protocols.perper.fabric.client import FabricClient, RpcError
from headrace.protocols.perper.records import REGISTRY_AGENT

logger = logging.getLogger("headrace.perper.scaler")

RECONNECT_S_MAX = 5.0
# The hub forgets a runner that has not reported for three times this.
REPORT_S = 5.0


class BadAgentsConfig(BadConfig):
    """The settings of `headrace agents run` cannot be understood."""


class AgentType(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to run one type of agent."""

    command: list[str]
    directory: str = "."
    environment: dict[str, str] = {}
    always: int = 0
    """Processes that run from the start, whether or not there are instances: those that begin the program."""


class AgentsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file given to `headrace agents run`."""

    agents: dict[str, AgentType]
    ignite: str = "127.0.0.1:10800"
    fabric: str = "127.0.0.1:40400"
    restart_s_min: float = 0.5
    restart_s_max: float = 30.0
    stop_s: float = 10.0
    """How long a process may take to end when it is asked to."""


def read_config(path: Path) -> AgentsConfig:
    """Settings from a TOML file; directories are relative to it."""
    try:
        config = msgspec.toml.decode(path.read_bytes(), type=AgentsConfig)
    except OSError as error:
        raise BadAgentsConfig(f"{path} cannot be read: {error}") from error
    except msgspec.MsgspecError as error:
        raise BadAgentsConfig(f"{path}: {error}") from error
    for name, kind in config.agents.items():
        if not kind.command:
            raise BadAgentsConfig(f"{path}: agents.{name}.command is empty; give the program and its arguments")
    return config


class ProcessInfo(msgspec.Struct, frozen=True):
    """One process as people see it."""

    agent: str
    instance: str | None
    state: str
    process_id: int | None
    restarts: int
    exit_code: int | None


class AgentProcess:
    """One agent process, kept running until told otherwise."""

    def __init__(self, config: AgentsConfig, agent: str, instance: str | None, folder: Path) -> None:
        self._config = config
        self._agent = agent
        self._instance = instance
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._restarts = 0
        self._exit_code: int | None = None
        self._state = "starting"
        self.task = asyncio.ensure_future(self._keep_running())

    def info(self) -> ProcessInfo:
        """How it is."""
        running = self._process is not None and self._process.returncode is None
        process_id = self._process.pid if running and self._process is not None else None
        return ProcessInfo(self._agent, self._instance, self._state, process_id, self._restarts, self._exit_code)

    def _environment(self) -> dict[str, str]:
        kind = self._config.agents[self._agent]
        environment = {
            **os.environ,
            "APACHE_IGNITE_ENDPOINT": self._config.ignite,
            "PERPER_FABRIC_ENDPOINT": f"http://{self._config.fabric}",
            "X_PERPER_AGENT": self._agent,
            **kind.environment,
        }
        if self._instance is not None:
            environment["X_PERPER_INSTANCE"] = self._instance
        return environment

    async def _keep_running(self) -> None:
        delay_s = self._config.restart_s_min
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                await self._run_once()
            except OSError as error:
                logger.error("agent %r cannot be started: %s", self._agent, error)
                self._exit_code = None
            if self._stopping.is_set():
                break
            if time.monotonic() - began > self._config.restart_s_max:
                delay_s = self._config.restart_s_min  # it ran well for a while: this is a new trouble
            self._state = f"restarting in {delay_s:.1f} s"
            logger.warning("agent %r instance %r ended with %s", self._agent, self._instance, self._exit_code)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_s)
            delay_s = min(delay_s * 2, self._config.restart_s_max)
            self._restarts += 1
        self._state = "stopped"

    async def _run_once(self) -> None:
        kind = self._config.agents[self._agent]
        self._state = "starting"
        self._process = await asyncio.create_subprocess_exec(
            *kind.command, cwd=self._folder / kind.directory, env=self._environment()
        )
        self._state = "running"
        ended = asyncio.ensure_future(self._process.wait())
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not ended.done():
            self._state = "stopping"
            await self._end(self._process)
        self._exit_code = await ended

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), self._config.stop_s)
        except TimeoutError:
            logger.warning("agent %r instance %r did not stop: killing it", self._agent, self._instance)
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def stop(self) -> None:
        """End it, and wait until it has ended."""
        self._stopping.set()
        await self.task


class Scaler:
    """All processes of one settings file."""

    def __init__(
        self, config: AgentsConfig, folder: Path, report: Callable[[list[ProcessInfo]], object] = lambda processes: None
    ) -> None:
        """`folder` is what directories are relative to; `report` hears of the processes after each change."""
        self._config = config
        self._folder = folder
        self._report = report
        self._processes: dict[tuple[str, str], AgentProcess] = {}
        self._stops: set[asyncio.Task[None]] = set()
        self._unknown: set[str] = set()

    def processes(self) -> list[ProcessInfo]:
        """How they are."""
        return [process.info() for process in self._processes.values()]

    async def run(self) -> None:
        """Keep the processes as they should be, until cancelled; then end them all."""
        reporting = asyncio.ensure_future(self._keep_reporting())
        try:
            for agent, kind in self._config.agents.items():
                for number in range(kind.always):
                    self._start(agent, None, f"#{number}")
            delay_s = 0.1
            while True:
                try:
                    await self._follow()
                except (OSError, RpcError) as error:
                    logger.warning("fabric %s: %s; trying again", self._config.fabric, error)
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, RECONNECT_S_MAX)
        finally:
            reporting.cancel()
            await asyncio.gather(*[process.stop() for process in self._processes.values()], *self._stops)

    async def _follow(self) -> None:
        client = await FabricClient.connect(*split_address(self._config.fabric))
        try:
            call = client.start("/perper.Fabric/Executions", {"agent": REGISTRY_AGENT})
            instances: dict[str, str] | None = {}
            async for message in call:
                if message.startOfStream:
                    assert instances is not None
                    self._compare(instances)
                    instances = None
                elif message.cancelled:
                    self._stop_instance(message.execution)
                elif instances is not None:
                    instances[message.execution] = message.instance
                else:
                    self._start_instance(message.instance, message.execution)
        finally:
            await client.close()

    def _compare(self, instances: dict[str, str]) -> None:
        for agent, instance in list(self._processes):
            if not instance.startswith("#") and instances.get(instance) != agent:
                self._stop_instance(instance)
        for instance, agent in instances.items():
            self._start_instance(agent, instance)

    def _start_instance(self, agent: str, instance: str) -> None:
        if agent not in self._config.agents:
            if agent not in self._unknown:
                self._unknown.add(agent)
                logger.info("agent type %r is not in the settings: its instances are managed elsewhere", agent)
            return
        if (agent, instance) not in self._processes:
            self._start(agent, instance, instance)

    def _start(self, agent: str, instance: str | None, key: str) -> None:
        self._processes[agent, key] = AgentProcess(self._config, agent, instance, self._folder)

    def _stop_instance(self, instance: str) -> None:
        for key in [key for key in self._processes if key[1] == instance]:
            task = asyncio.ensure_future(self._processes.pop(key).stop())
            self._stops.add(task)
            task.add_done_callback(self._stops.discard)

    async def _keep_reporting(self) -> None:
        reported: list[ProcessInfo] | None = None
        reported_at = 0.0
        while True:
            now = self.processes()
            if now != reported or time.monotonic() - reported_at > REPORT_S:
                self._report(now)
                reported, reported_at = now, time.monotonic()
            await asyncio.sleep(0.2)
