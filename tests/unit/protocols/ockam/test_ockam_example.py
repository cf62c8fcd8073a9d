"""The example that the documentation shows does what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import headrace

EXAMPLE = Path(__file__).parents[4] / "examples" / "ockam_delivery.py"


def test_the_example_delivers_everything_once() -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(headrace.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    lines = done.stdout.splitlines()
    orders = [line.rpartition(" order ")[2] for line in lines if " order " in line]
    assert orders == [str(number) for number in range(9)]
    assert "consumer:  goes on at index 6" in lines
