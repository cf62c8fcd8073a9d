"""Calls from outside, timers, effects, sagas, tokens, keyed instances, standbys and upgrades while hub and programs are
killed: exactly once, as seen from outside. The short form of `immortal_kills.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.immortal_kills import Fire

KILLS = 12


@pytest.mark.slow
def test_every_call_is_made_once_whatever_is_killed(tmp_path: Path) -> None:
    fire = Fire(tmp_path, seed=3)
    assert fire.run(KILLS, minutes=5) == []
    assert fire.kills.total() == KILLS
    assert set(fire.versions) == {1, 2}  # there were upgrades
