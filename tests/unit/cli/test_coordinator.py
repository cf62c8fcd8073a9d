"""`ImmortalCoordinator`, as a binding starts it: the lines that it waits for, and ports that work."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from free_ports import free_port

import headrace
from headrace.cli.coordinator import SELF_CONNECTED, _parser, options_of
from headrace.protocols.ambrosia.client import Host, Immortal, impulse
from headrace.protocols.ambrosia.server import start
from headrace.testing import served_hub

START = [sys.executable, "-c", "from headrace.cli.coordinator import run; run()"]


class Counter(Immortal):
    total: int = 0

    def __init__(self, counted: asyncio.Event) -> None:
        self._counted = counted

    @impulse
    def add(self, amount: int) -> None:
        self.total += amount
        self._counted.set()


async def count_to_five(receive: int, send: int) -> int:
    counted = asyncio.Event()
    host = Host(lambda: Counter(counted), name="node", receive=f"127.0.0.1:{receive}", send=f"127.0.0.1:{send}")
    running = asyncio.ensure_future(host.run())
    try:
        async with asyncio.timeout(60):
            await host.wait_primary()
            host.itself.add(5)
            await counted.wait()
        return host.immortal.total  # type: ignore[attr-defined, no-any-return]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_a_binding_starts_it_waits_for_four_lines_and_is_served() -> None:
    receive, send = free_port(), free_port()
    flags = ["--port=1500", "--instanceName=node", f"--receivePort={receive}", f"--sendPort={send}", "--log=./logs/",
             "--logTriggerSize=64", "--logStorageType=files"]  # fmt: skip
    with served_hub() as served:
        ports = served.run(start(served.hub))
        environment = {**os.environ, "HEADRACE_HUB": served.address}
        with subprocess.Popen([*START, *flags], env=environment, stdout=subprocess.PIPE, text=True) as command:
            assert command.stdout is not None
            lines = [command.stdout.readline().rstrip("\n") for _ in range(5)]
            assert lines[:4] == list(SELF_CONNECTED)
            assert lines[4].startswith("Ready: the hub at ")
            assert asyncio.run(count_to_five(receive, send)) == 5
            command.terminate()
            assert command.wait(60) == 0
        assert ports is not None
        served.run(ports.close())


def test_a_binding_that_recovers_before_the_command_is_there_stays_linked() -> None:
    receive, send = free_port(), free_port()
    flags = ["--instanceName=node", f"--receivePort={receive}", f"--sendPort={send}"]
    with served_hub() as served:
        ports = served.run(start(served.hub))
        assert ports is not None
        environment = {**os.environ, "HEADRACE_HUB": served.address}
        options = {"receive": f"127.0.0.1:{receive}", "send": f"127.0.0.1:{send}", "delivery": "counted"}
        with headrace.connect(served.address) as client:
            client.call("immortal.register", {"name": "node", "options": options})
        served.run(_linked_while(receive, send, lambda: _coordinate(flags, environment)))
        served.run(ports.close())


def _coordinate(flags: list[str], environment: dict[str, str]) -> None:
    """The command, from its start until it says that it is ready, and its end."""
    with subprocess.Popen([*START, *flags], env=environment, stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        while not command.stdout.readline().startswith("Ready"):
            assert command.poll() is None
        command.terminate()
        assert command.wait(60) == 0


async def _linked_while(receive: int, send: int, work: Callable[[], None]) -> None:
    counted = asyncio.Event()
    host = Host(lambda: Counter(counted), name="node", receive=f"127.0.0.1:{receive}", send=f"127.0.0.1:{send}")
    running = asyncio.ensure_future(host.run())
    try:
        async with asyncio.timeout(120):
            await host.wait_primary()
            await asyncio.to_thread(work)
            host.itself.add(5)
            await counted.wait()
        assert host.recoveries == 1
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_without_a_hub_it_says_so_in_the_words_that_bindings_know() -> None:
    environment = {**os.environ, "HEADRACE_HUB": f"127.0.0.1:{free_port()}"}
    done = subprocess.run([*START, "-i", "node"], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 5
    assert done.stdout.startswith("FATAL ERROR: ")
    assert "start a hub (`headrace up`), or say where it is in HEADRACE_HUB" in done.stdout


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["-rp", "1000", "-sp", "1001"], {"receive": "127.0.0.1:1000", "send": "127.0.0.1:1001", "standby": False}),
        (["--activeActive"], {"standby": True}),
        (["--replicaNum=1"], {"standby": True}),
        (["-lts", "2"], {"checkpoint_log_bytes": 2 << 20}),
    ],
)
def test_flags(flags: list[str], expected: dict[str, Any]) -> None:
    options = options_of(_parser().parse_args(["-i", "x", *flags]), None)
    assert options.items() >= expected.items()
