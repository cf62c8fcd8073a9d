"""SIGKILL to drivers and hubs, with either engine, in micro-batches and in real time, on one checkpoint.

Nothing may be lost, doubled or reordered, and no cursor may go back. Each kill of a driver costs the start of a JVM, so
every trap is sprung once here; HEADRACE_KILLS=20 adds as many drivers, half of them killed anywhere: then 16 drivers
and 27 hubs are killed in micro-batches, 10 and 18 in real time.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from kill_stage import REAL_TIME, RECORDS_PER_APPEND, Round, Stage, Tally
from support.until import wait_until

from headrace.errors import HeadraceError

MORE_ROUNDS = int(os.environ.get("HEADRACE_KILLS", "0"))
pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900 + 60 * MORE_ROUNDS)]
SEED = 20

SHORT = [
    Round("stage", "python"),
    Round("stage"),
    Round("commit", "python", hub_kills=0),
    Round("commit"),
    Round("append", real_time=REAL_TIME),
    Round("spread", real_time=REAL_TIME),
]
MORE = itertools.cycle(
    [
        *(Round(trap, engine, hub_kills=2) for trap in ("", "commit") for engine in ("java", "python")),
        *(Round(trap, real_time=REAL_TIME, hub_kills=2) for trap in ("", "append", "spread")),
    ]
)
ROUNDS = [*SHORT, *itertools.islice(MORE, MORE_ROUNDS)]


@pytest.fixture
def stage(tmp_path: Path, class_archive: None) -> Any:
    made = Stage(tmp_path)
    made.start_hub()
    made.port.call("stream.create", {"stream": "in"})
    yield made
    made.end()


def test_a_tally_counts_each_fault() -> None:
    assert Tally.of([0, 1, 2], 3) == (0, 0, 0)
    assert Tally.of([0, 2, 2, 1], 4) == (1, 1, 1)
    assert Tally.of([0, 1, 0, 1], 2) == (0, 2, 0)


@pytest.mark.needs("javac")
def test_exactly_once_through_kills_of_drivers_and_hubs(stage: Stage) -> None:
    """Every round goes on with the checkpoint of the one before. Real time comes last: from it there is no way back to
    micro-batches but a fresh checkpoint."""
    chance = random.Random(SEED)
    for one in sorted(ROUNDS, key=lambda one: one.real_time):
        stage.survive(one, chance)
    stage.start_driver(REAL_TIME, "java")
    stage.produce()
    stage.wait_all()
    wait_until(lambda: stage.look() == stage.total, "what a fresh checkpoint would begin with", 60)
    assert stage.tally() == (0, 0, 0)


@pytest.mark.needs("javac")
@pytest.mark.parametrize("trap", ["stage", "commit", "append", "spread"])
def test_two_drivers_on_one_checkpoint(stage: Stage, trap: str) -> None:
    """The older one is stopped when something that it asked for is durable and not answered yet, and fenced off when
    it wakes; the results stay exact. The hub is killed meanwhile, and in real time the newer one begins with the
    checkpoint of an earlier day."""
    real_time = REAL_TIME if trap in ("append", "spread") else ""
    column = "to" if trap == "spread" else ""
    stage.produce()
    stage.start_driver(real_time, column=column)
    first = stage.driver
    wait_until(lambda: stage.out() == RECORDS_PER_APPEND, "the first driver", 200)
    assert first is not None
    checkpoint, older = stage.place / "checkpoint", stage.place / "older"
    if real_time:
        shutil.copytree(checkpoint, older)
    stage.trap.write_text(f"{trap} {first.pid} SIGSTOP")
    stage.produce()
    wait_until(lambda: not stage.trap.exists(), "the trap", 120)
    stage.kill(stage.hub)
    stage.start_hub()
    if real_time:
        shutil.rmtree(checkpoint)
        older.rename(checkpoint)
    stage.produce()
    stage.start_driver(real_time, column=column)
    wait_until(lambda: stage.out() == 3 * RECORDS_PER_APPEND, "the second driver", 200)
    os.killpg(first.pid, signal.SIGCONT)
    for _ in range(3):
        stage.produce()
    wait_until(lambda: stage.out() >= stage.total, "everything", 120)
    assert first.wait(120) != 0
    try:
        results = stage.results()
    except HeadraceError as error:
        raise AssertionError("the hub must still answer") from error
    assert results == list(range(stage.total))
