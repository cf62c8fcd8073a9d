"""Hostile peers of every protocol on a real hub: honest clients of all protocols are answered meanwhile, memory stays
within its bound, and the hub has nothing to complain about. How quick the answers are is a matter of the machine:
`table.py` measures that."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.hostile.attacks import ATTACKS
from faults.hostile.honest import CLIENTS, Honest
from faults.hostile.table import GROWTH_MIB_MAX, SETTINGS, Attacker, Victim
from support.hub_process import HubProcess

pytestmark = pytest.mark.slow
SECONDS = 1.0
FEW_CONNECTIONS = "2000"
PROTOCOLS = sorted({name.split()[0] for name in ATTACKS})


def test_there_is_an_attack_on_every_protocol() -> None:
    assert set(CLIENTS) == set(PROTOCOLS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_nobody_stops_the_others(protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTILE_HALF_OPEN", FEW_CONNECTIONS)
    hub = HubProcess(tmp_path, *SETTINGS)
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
