"""A clean stop with Flight calls of every kind under way ends with code 0. `clean_stops.py` is the long form."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from faults.clean_stops import run

STOPS = int(os.environ.get("HEADRACE_STOPS", "3"))


@pytest.mark.slow
def test_a_hub_stops_cleanly_while_it_is_called(tmp_path: Path) -> None:
    codes = run(tmp_path, STOPS, print)
    assert codes == {0: STOPS + 1}
    assert "Traceback (most recent call last)" not in (tmp_path / "hub.log").read_text()
