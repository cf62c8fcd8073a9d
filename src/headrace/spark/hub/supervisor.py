"""The part of Spark that lives in the hub: its verbs, and the process that runs the configured pipelines.

Spark itself never runs inside the hub: a JVM that swallows all memory must not take the log with it. When the
configuration names pipelines, one child process runs them all, and is started again when it dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.config import Config
from headrace.config.address import join_address, split_address
from headrace.errors import BadRequest
from headrace.serving.listener import Listener
from headrace.spark.hub import child_process
from headrace.spark.hub.dead_letters import DeadLetters
from headrace.spark.hub.live_appends import LiveAppends
from headrace.spark.hub.live_results import LiveResults
from headrace.spark.hub.pipeline_processes import PipelineProcesses
from headrace.spark.hub.pipeline_reset import Resets
from headrace.spark.hub.positions import Positions
from headrace.spark.hub.registry import Definition, Registry
from headrace.spark.hub.staging_area import StagingArea
from headrace.telemetry.log_lines import fields

if TYPE_CHECKING:
    from headrace.hub import Hub

logger = logging.getLogger("headrace.spark")
STAGING_DIRECTORY = "spark-staging"
RESTART_FIRST_S = 1.0
PROJECT_TRIGGER_DEFAULT = "1 minute"
RESTART_MOST_S = 60.0


async def start(hub: Hub) -> Listener:
    """Offer the verbs; run the configured pipelines, if there are any."""
    staging = StagingArea(hub, Path(hub.config.log.data) / STAGING_DIRECTORY)
    staging.register()
    await staging.recover()
    positions = Positions(hub)
    registry = Registry(hub)
    processes = PipelineProcesses(hub, registry, lambda name: _launch(hub, registry, [name]))
    live = LiveResults(hub, staging.charged)
    registry.live = live.progress
    resets = Resets(hub, registry, positions, processes)
    appends = LiveAppends(hub, staging.owned_state)
    for part in (live, appends, positions, registry, processes, resets, DeadLetters(hub)):
        part.register()
    projects = [name for name in registry.to_run() if registry.project_of(name)]
    groups = [[name] for name in projects]
    if together := [name for name in registry.to_run() if name not in projects]:
        groups.append(together)
    tasks = [asyncio.create_task(_supervise(hub, registry, group)) for group in groups]

    async def close() -> None:
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await processes.close()

    return Listener("", close)


async def _supervise(hub: Hub, registry: Registry, group: list[str]) -> None:
    """Keep a process at work until every pipeline of a group has ended, or was stopped."""

    def to_run() -> list[str]:
        return [name for name in registry.to_run() if name in group]

    address = hub.config.listen.addresses()["flight"]
    if address == "off" or split_address(address)[1] == 0:
        logger.error("pipelines need listen.flight with a fixed port", extra=fields(pipelines=to_run()))
        return
    pause_s = RESTART_FIRST_S
    while names := to_run():
        started = asyncio.get_running_loop().time()
        code = await child_process.run(*_launch(hub, registry, names))
        lived_s = asyncio.get_running_loop().time() - started
        pause_s = RESTART_FIRST_S if lived_s > RESTART_MOST_S else min(pause_s * 2, RESTART_MOST_S)
        if to_run():
            logger.error("the pipelines' process ended", extra=fields(code=code, again_in_s=pause_s))
            await asyncio.sleep(pause_s)


def _launch(hub: Hub, registry: Registry, names: list[str]) -> tuple[list[str], dict[str, str]]:
    """The command and the environment of a process that runs these pipelines."""
    files = hub.security.tls_files("flight")
    certificate = "" if files is None else files.certificate
    address = hub.addresses.get("flight", hub.config.listen.addresses()["flight"])
    if address == "off":
        raise BadRequest("pipelines read and write by Arrow Flight, and listen.flight is off")
    command = _command(hub.config, names, certificate, address)
    if (project := registry.project_of(names[0])) is not None:
        command = _project_command(hub.config, project, certificate, address)
    return command, _environment(hub.config, certificate)


def _command(config: Config, names: list[str], certificate: str, address: str) -> list[str]:
    command = _headrace(config, ["pipeline", "run"], certificate, address)
    if config.spark.home:
        command += ["--home", config.spark.home]
    return [*command, *names]


def _project_command(config: Config, project: Definition, certificate: str, address: str) -> list[str]:
    every = project.trigger or PROJECT_TRIGGER_DEFAULT
    command = _headrace(config, ["pipelines", "run"], certificate, address)
    return [*command, "--name", project.name, "--every", every, project.project]


def _headrace(config: Config, words: list[str], certificate: str, address: str) -> list[str]:
    host, port = split_address(address)
    address = join_address("127.0.0.1" if host in ("", "0.0.0.0", "::") else host, port)
    if certificate:
        address = f"grpc+tls://{address}"
    command = [sys.executable, "-m", "headrace", *words, "--hub", address, "--quiet", "--master", config.spark.master]
    for name, value in config.spark.conf.items():
        command += ["--conf", f"{name}={value}"]
    return command


def _environment(config: Config, certificate: str) -> dict[str, str]:
    """With what must not stand on the command line, where everybody may read it."""
    environment = dict(os.environ)
    if config.spark.token:
        environment["HEADRACE_TOKEN"] = config.spark.token
    authority = config.spark.ca or environment.get("HEADRACE_CA") or certificate
    if authority:
        environment["HEADRACE_CA"] = authority
    return environment
