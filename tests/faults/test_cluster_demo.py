"""`make cluster`, as somebody runs it: the owner is killed, and nothing that was acknowledged is missing."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cluster_demo
import pytest

from headrace.demo.flows import make_flows
from headrace.demo.producers import PRODUCERS

PROGRAM = Path(cluster_demo.__file__)
ROW = re.compile(r"^(\S+) +(\S+) +(\d+|–) +(\d+|–) +(\d+) +(?:([\d.]+) s|–)$", re.MULTILINE)
"""Stream, writer, acknowledged before and after, stored, pause."""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(900)
def test_owner_is_killed_and_nothing_is_missing() -> None:
    command = [sys.executable, str(PROGRAM), "--after", "5", "--seconds", "2"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said
    assert "hub-1 killed with SIGKILL" in said
    assert "hub-2 owns the log after" in said
    assert "SOMETHING IS MISSING" not in said
    last = said[said.rindex("acknowledged before") :]
    assert last.rstrip().endswith("nothing that was acknowledged is missing"), said
    rows = {stream: numbers for stream, _, *numbers in ROW.findall(last)}
    flows = make_flows()
    for name in PRODUCERS:
        before, after, stored, pause = rows[flows[name].stream]
        assert int(before) > 0, (name, said)
        assert int(after) > 0, (name, said)
        assert int(stored) >= int(before) + int(after), (name, said)
        assert float(pause) > 0, (name, said)


@pytest.mark.parametrize(
    ("first", "stored", "pause", "is_whole"),
    [(0, 9, 1.5, True), (0, 8, 1.5, False), (1, 9, 1.5, False), (0, 9, None, False)],
)
def test_what_is_missing_is_said(
    first: int, stored: int, pause: float | None, is_whole: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records that were acknowledged and are not stored, a stream that lost its beginning, a producer that did not
    come back."""
    name = next(iter(PRODUCERS))
    flow = make_flows()[name]
    flow.sent = 9

    async def bounds(stream: str) -> Any:
        return SimpleNamespace(first=first, next=stored)

    client: Any = SimpleNamespace(bounds=bounds)
    kill = cluster_demo.Kill(0.0, {name: 5})
    row = cluster_demo.Show._row(None, client, flow, kill, {} if pause is None else {name: pause})  # type: ignore[arg-type]
    assert asyncio.run(row) is is_whole
    assert ("MISSING" in capsys.readouterr().out) is not is_whole
