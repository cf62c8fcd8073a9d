"""All six protocols at work on one hub that is killed again and again. `kills.py` is the long form."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from faults.kills import Fire

KILLS = int(os.environ.get("HEADRACE_KILLS", "20"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_all_six_protocols_through_many_kills(tmp_path: Path) -> None:
    seed = int(os.environ.get("HEADRACE_SEED", "1"))
    outcome = await Fire(tmp_path, KILLS, seed, print, forked=True).run()
    assert outcome.is_good, outcome.table()
    assert outcome.kills.total() == KILLS
