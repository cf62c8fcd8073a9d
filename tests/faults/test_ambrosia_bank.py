"""The example of the documentation, for a few seconds: the books balance after random kills."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "bank" / "bank.py"


@pytest.mark.slow
def test_the_bank_never_loses_or_repeats_a_transfer() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--seconds", "6"], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the books balance" in done.stdout
    booked = int(done.stdout.split("booked")[-1].split()[0])
    assert booked > 0
