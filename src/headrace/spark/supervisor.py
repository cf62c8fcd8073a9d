"""The part of Spark that lives in the hub: its verbs, and the process that runs the configured pipelines.

Spark itself never runs inside the hub: a JVM that swallows all memory must not take the log with it. When the
configuration names pipelines, one child process runs them all, and is started again when it dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.config import Spark
from headrace.listener import Listener, split_address
from headrace.logs import fields
from headrace.spark.planning import Planning
from headrace.spark.registry import Registry
from headrace.spark.staging import Staging

if TYPE_CHECKING:
    from headrace.hub import Hub

logger = logging.getLogger("headrace.spark")
STAGING_DIRECTORY = "spark-staging"
RESTART_FIRST_S = 1.0
RESTART_MOST_S = 60.0
STOP_S = 8.0


async def start(hub: Hub) -> Listener:
    """Offer the verbs; run the configured pipelines, if there are any."""
    staging = Staging(hub, Path(hub.config.log.data) / STAGING_DIRECTORY)
    staging.register()
    await staging.recover()
    Planning(hub).register()
    Registry(hub).register()
    wanted = [name for name, entry in hub.config.pipelines.items() if entry.enabled]
    task = asyncio.create_task(_supervise(hub, wanted)) if wanted else None

    async def close() -> None:
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    return Listener("", close)


async def _supervise(hub: Hub, names: list[str]) -> None:
    address = hub.config.listen.flight
    if address == "off" or split_address(address)[1] == 0:
        logger.error("pipelines need listen.flight with a fixed port", extra=fields(pipelines=names))
        return
    pause_s = RESTART_FIRST_S
    while True:
        started = asyncio.get_running_loop().time()
        code = await _run_once(_command(hub.config.spark, address, names))
        lived_s = asyncio.get_running_loop().time() - started
        pause_s = RESTART_FIRST_S if lived_s > RESTART_MOST_S else min(pause_s * 2, RESTART_MOST_S)
        logger.error("the pipelines' process ended", extra=fields(code=code, again_in_s=pause_s))
        await asyncio.sleep(pause_s)


def _command(settings: Spark, address: str, names: list[str]) -> list[str]:
    command = [sys.executable, "-m", "headrace", "pipeline", "run", "--hub", address, "--quiet"]
    command += ["--master", settings.master]
    for name, value in settings.conf.items():
        command += ["--conf", f"{name}={value}"]
    return [*command, *names]


async def _run_once(command: list[str]) -> int:
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL)
    try:
        return await process.wait()
    except asyncio.CancelledError:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()
        raise
