"""The scaler, with plain processes in place of agents."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.perper_peer import Served, key, served
from support.until import until

from headrace.config.address import join_address, split_address
from headrace.protocols.perper.fabric.server import serve
from headrace.protocols.perper.records import Execution, write_execution
from headrace.protocols.perper.scaler import BadAgentsConfig, ProcessInfo, Scaler, read_config
from headrace.testing import memory_hub

WAIT = """
import os, pathlib, time
pathlib.Path(os.environ['MARK'] + os.environ.get('X_PERPER_INSTANCE', 'none')).touch()
time.sleep(600)
"""


@asynccontextmanager
async def scaler(pair: Served, folder: Path, agents: str) -> AsyncIterator[tuple[Scaler, list[list[ProcessInfo]]]]:
    path = folder / "agents.toml"
    heads = f'fabric = "{join_address(*pair.grpc)}"\nrestart_s_min = 0.02\nstop_s = 0.5\n'
    path.write_text(heads + agents)
    reports: list[list[ProcessInfo]] = []
    made = Scaler(read_config(path), folder, reports.append)
    running = asyncio.ensure_future(made.run())
    try:
        yield made, reports
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def agent(name: str, code: str, folder: Path, more: str = "") -> str:
    script = folder / f"{name}.py"
    script.write_text(code)
    environment = f'{{ MARK = "{folder}/" }}'
    return f'[agents.{name}]\ncommand = ["{sys.executable}", "{script}"]\nenvironment = {environment}\n{more}\n'


async def instance(pair: Served, name: str, kind: str | None) -> None:
    client = await pair.client()
    if kind is None:
        await client.request(1016, key(name), cache="executions")
    else:
        value = write_execution(Execution("Registry", kind, "Run", False))
        await client.request(1001, key(name), value, cache="executions")


def states(made: Scaler) -> dict[str | None, str]:
    return {process.instance: process.state for process in made.processes()}


async def test_processes_follow_the_instances(tmp_path: Path) -> None:
    async with served() as pair:
        await instance(pair, "before", "worker")
        await instance(pair, "foreign", "unknown type")
        async with scaler(pair, tmp_path, agent("worker", WAIT, tmp_path)) as (made, reports):
            await until(lambda: (tmp_path / "before").exists())
            await instance(pair, "later", "worker")
            await until(lambda: (tmp_path / "later").exists())
            assert states(made) == {"before": "running", "later": "running"}
            await instance(pair, "before", None)
            await until(lambda: states(made) == {"later": "running"})
            await until(lambda: reports and [process.instance for process in reports[-1]] == ["later"])
        assert made.processes()[0].state == "stopped"
        assert made.processes()[0].process_id is None


async def test_a_process_that_ends_is_started_again_later_each_time(tmp_path: Path) -> None:
    async with served() as pair:
        await instance(pair, "x", "worker")
        async with scaler(pair, tmp_path, agent("worker", "raise SystemExit(3)", tmp_path)) as (made, _):
            await until(lambda: made.processes() and made.processes()[0].restarts >= 3)
            assert made.processes()[0].exit_code == 3
            await until(lambda: made.processes()[0].state.startswith("restarting"))


async def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    async with served() as pair:
        settings = '[agents.none]\ncommand = ["/no/such/program"]\nalways = 1\n'
        async with scaler(pair, tmp_path, settings) as (made, _):
            await until(lambda: made.processes() and made.processes()[0].restarts >= 1)
            assert made.processes()[0].process_id is None


async def test_processes_that_always_run_and_do_not_want_to_stop(tmp_path: Path) -> None:
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAIT
    async with served() as pair, scaler(pair, tmp_path, agent("w", stubborn, tmp_path, "always = 1")) as (made, _):
        await until(lambda: (tmp_path / "none").exists())
        assert states(made) == {None: "running"}
    assert made.processes()[0].exit_code == -9


async def test_the_hub_goes_and_comes_back(tmp_path: Path) -> None:
    async with memory_hub() as hub:
        first = await serve(hub, "127.0.0.1:0")
        pair = Served(hub, first.address, first.address)
        pair.grpc = split_address(first.address)
        async with scaler(pair, tmp_path, agent("worker", WAIT, tmp_path, "always = 1")) as (made, _):
            await until(lambda: (tmp_path / "none").exists())
            process = made.processes()[0].process_id
            await until(lambda: hub.sessions.list("fabric"))
            await first.close()
            second = await serve(hub, first.address)
            await until(lambda: hub.sessions.list("fabric"))
            assert made.processes()[0].process_id == process  # it was left alone
        await second.close()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("agents = 3", "agents"),
        ("[agents.x]\ncommand = []", "command is empty"),
        ("[agents.x]\nfoo = 1", "foo"),
        ("}", "toml"),
    ],
)
def test_settings_that_cannot_be_understood(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "agents.toml"
    path.write_text(text)
    with pytest.raises(BadAgentsConfig, match=problem):
        read_config(path)


def test_settings_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadAgentsConfig, match="cannot be read"):
        read_config(tmp_path / "none.toml")
