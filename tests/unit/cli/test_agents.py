"""`headrace agents`, against a real hub."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from headrace.cli.agents import app
from headrace.config.address import split_address
from headrace.protocols.perper.fabric.server import serve as serve_fabric
from headrace.protocols.perper.ignite.binary import encode_string
from headrace.protocols.perper.ignite.client import IgniteClient
from headrace.protocols.perper.ignite.server import serve as serve_ignite
from headrace.protocols.perper.records import Execution, write_execution
from headrace.testing.served import ServedHub, served_hub


@pytest.fixture(scope="module")
def hub() -> Iterator[ServedHub]:
    with served_hub() as served:
        ignite = served.run(serve_ignite(served.hub, "127.0.0.1:0"))
        fabric = served.run(serve_fabric(served.hub, "127.0.0.1:0"))
        served.run(fill(ignite.address))
        yield served
        served.run(fabric.close())
        served.run(ignite.close())


async def fill(address: str) -> None:
    client = await IgniteClient.connect(*split_address(address))
    for name, agent, instance, delegate in (("call-1", "a", "i", "Do"), ("worker-1", "Registry", "worker", "Run")):
        value = write_execution(Execution(agent, instance, delegate, False))
        await client.request(1001, encode_string(name), value, cache="executions")
    await client.close()


def run(hub: ServedHub, *arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--hub", hub.address])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_agents_and_their_processes(hub: ServedHub) -> None:
    import headrace

    assert "not run here" in run(hub, "ls")
    process = {
        "agent": "worker",
        "instance": "worker-1",
        "state": "running",
        "process_id": 7,
        "restarts": 2,
        "exit_code": None,
    }
    with headrace.connect(hub.address) as client:
        client.call("agents.report", {"runner": "here:1", "processes": [process]})
    shown = run(hub, "ls")
    assert "worker-1" in shown
    assert "running" in shown
    assert "here:1" in shown
    listed = json.loads(run(hub, "ls", "--json"))
    assert listed[0]["process"]["restarts"] == 2


def test_executions(hub: ServedHub) -> None:
    assert "call-1" in run(hub, "executions")
    found = json.loads(run(hub, "executions", "--agent", "a", "--json"))
    assert [one["execution"] for one in found] == ["call-1"]


def test_caches(hub: ServedHub) -> None:
    assert "stream-listeners" in run(hub, "caches")
    found = {one["name"]: one for one in json.loads(run(hub, "caches", "--json"))}
    assert found["executions"] == {"name": "executions", "kind": "table", "size": 2, "listeners": 0}


def test_settings_that_are_not_there() -> None:
    result = CliRunner().invoke(app, ["run", "/no/such/file.toml"])
    assert "cannot be read" in str(result.exception)
