"""`headrace agents`: Perper agents, their processes, executions and caches."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from headrace.cli.options import Answer, HubOptions, sharing
from headrace.cli.output import notes
from headrace.config import LoggingSection
from headrace.errors import HeadraceError
from headrace.telemetry import log_lines

app = typer.Typer(no_args_is_help=True)
logger = logging.getLogger("headrace.agents")


@app.callback()
def agents() -> None:
    """Run and inspect Perper agents."""


@app.command("run")
@sharing(hub=HubOptions)
def run(
    hub: HubOptions,
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="TOML file: the command for each type of agent.")],
) -> None:
    """Start and stop agent processes as instances come and go. Runs until stopped (Ctrl-C, SIGTERM)."""
    from headrace.protocols.perper.scaler import ProcessInfo, Scaler, read_config

    settings = read_config(config)
    log_lines.set_up(LoggingSection())
    runner = f"{socket.gethostname()}:{os.getpid()}"
    told_of_trouble = False

    def tell(processes: list[ProcessInfo]) -> None:
        nonlocal told_of_trouble
        body = {"runner": runner, "processes": msgspec.to_builtins(processes)}
        try:
            hub.call("agents.report", body)
            told_of_trouble = False
        except (HeadraceError, OSError) as error:
            if not told_of_trouble:
                logger.warning("cannot report the agents' processes to hub %s: %s", hub.target.address, error)
            told_of_trouble = True

    async def main() -> None:
        loop = asyncio.get_running_loop()
        scaler = Scaler(settings, config.parent, lambda processes: loop.run_in_executor(None, tell, processes))
        work = asyncio.ensure_future(scaler.run())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, work.cancel)
        notes().print(f"agents: {', '.join(settings.agents)}; fabric {settings.fabric}; ignite {settings.ignite}")
        with contextlib.suppress(asyncio.CancelledError):
            await work

    asyncio.run(main())


@app.command("ls")
@sharing(answer=Answer)
def list_agents(answer: Answer) -> None:
    """List agent instances and the processes that serve them."""
    instances = answer.call("agents.list")
    columns = ["agent", "instance", "state", "#pid", "#restarts", "runner"]
    answer.table(instances, columns, [_agent_row(info) for info in instances], empty="no agent instances")


def _agent_row(info: dict[str, Any]) -> list[Any]:
    process = info["process"] or {}
    how = [process.get("state", "not run here"), process.get("process_id"), process.get("restarts")]
    return [info["agent"], info["instance"], *how, info["runner"]]


@app.command("executions")
@sharing(answer=Answer)
def list_executions(
    answer: Answer, agent: Annotated[str | None, typer.Option("--agent", help="Only executions of this agent.")] = None
) -> None:
    """List executions: what was called, and whether it has finished."""
    executions = answer.call("agents.executions", {"agent": agent})
    columns = ["execution", "agent", "instance", "delegate", "finished"]
    rows = [[info[column] for column in columns] for info in executions]
    answer.table(executions, columns, rows, empty="no executions")


@app.command("caches")
@sharing(answer=Answer)
def list_caches(answer: Answer) -> None:
    """List caches: tables, streams of items, and their number of listeners."""
    with answer.connect() as client:
        answer.listing(
            client.entries("agents.caches", {}, dict),
            ["name", "kind", "#size", "#listeners"],
            lambda info: [info[column] for column in ("name", "kind", "size", "listeners")],
            empty="no caches",
        )
