"""Hostile peers of every protocol on a real hub: honest clients of all protocols are answered meanwhile, memory stays
within its bound, and the hub has nothing to complain about. How quick the answers are is a matter of the machine:
`table.py` measures that."""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path

import httpx
import pytest
from faults.hostile.attacks import ATTACKS
from faults.hostile.honest import CLIENTS, Honest
from faults.hostile.table import GROWTH_MIB_MAX, SETTINGS, Attacker, Victim
from support.forked_hub import ForkedHub
from support.hub_process import HubProcess
from support.until import wait_until

from headrace.config.address import split_address

pytestmark = [pytest.mark.slow, pytest.mark.long]
SECONDS = 1.0
FEW_CONNECTIONS = "2000"
PROTOCOLS = sorted({name.split()[0] for name in ATTACKS})


def test_there_is_an_attack_on_every_protocol() -> None:
    """The honest client of Flight uses lines, which have attacks of their own."""
    assert {*CLIENTS, "line"} == set(PROTOCOLS)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_nobody_stops_the_others(protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTILE_HALF_OPEN", FEW_CONNECTIONS)
    hub = HubProcess(tmp_path, *SETTINGS)  # not forked: what Arrow may take is set before it is imported
    with hub:
        async with Honest(hub.addresses) as honest:
            victim = Victim(hub, honest)
            idle = await victim.look(SECONDS)
            for name in (name for name in ATTACKS if name.split()[0] == protocol):
                async with Attacker(name, hub.addresses) as attacker:
                    seen = await victim.look(SECONDS)  # returns when each honest client was answered
                    assert attacker.lives, name
                assert seen.rss_mib <= idle.rss_mib + GROWTH_MIB_MAX, name
                await victim.look(0)
        assert victim.tracebacks() == 0, hub.log.read_text()[-5000:]


def test_running_out_of_descriptors_is_one_line_and_passes(tmp_path: Path) -> None:
    with ForkedHub(tmp_path, only=("http", "wallaroo")) as hub:
        before = resource.prlimit(hub.pid, resource.RLIMIT_NOFILE)
        used = len(os.listdir(f"/proc/{hub.pid}/fd"))
        resource.prlimit(hub.pid, resource.RLIMIT_NOFILE, (used + 5, before[1]))
        address = split_address(hub.addresses["wallaroo"])
        crowd = [socket.create_connection(address) for _ in range(50)]
        wait_until(lambda: "cannot accept connections" in hub.log.read_text())
        resource.prlimit(hub.pid, resource.RLIMIT_NOFILE, before)
        with httpx.Client() as client:  # it tries again by itself
            wait_until(lambda: client.get(f"{hub.page}/health/live").status_code == 200)
        log = hub.log.read_text()
        assert log.count("cannot accept connections") < 5
        assert "Traceback" not in log
        for each in crowd:
            each.close()
