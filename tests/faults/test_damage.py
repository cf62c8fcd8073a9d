"""Damage to every kind of file, sampled by a seed that changes every day. `damage.py` is the long form."""

from __future__ import annotations

import datetime
import os

import pytest
from faults.damage import ENDINGS, run, table

SAMPLE = float(os.environ.get("HEADRACE_DAMAGE", "0.002"))
KINDS = {"LOCK", "checkpoints", "journal", "spare", "quarantine", "segments", "leftover", "snapshots"}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_damage_is_the_truth_an_error_or_a_stated_gap_and_never_silence() -> None:
    seed = int(os.environ.get("HEADRACE_SEED", datetime.datetime.now(datetime.UTC).strftime("%Y%m%d")))
    counts, silences = run(SAMPLE, seed)
    print(table(counts))
    assert not silences, f"HEADRACE_SEED={seed}: {silences[:10]}"
    assert {kind for _, kind in counts} == KINDS
    assert {ending for ending, _ in counts} == set(ENDINGS)
    answers = sum((counted for counted in counts.values()), start=type(next(iter(counts.values())))())
    assert min(answers[answer] for answer in ("truth", "error", "gap")) > 0
