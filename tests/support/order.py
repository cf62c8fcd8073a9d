"""How the tests share the cores: how many workers there are, and which files come first.

Tests that start processes spend much of their time waiting, so there is one worker more than there are cores. Long
files come first, so that no worker starts one when the others are done. What a test costs is guessed from its marks and
its folder; what the longest files cost was measured, since they have few tests. A wrong guess costs a little time and
nothing else.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from pathlib import Path

import pytest

COST_OF_MARK = {"kafka": 20.0, "slow": 3.0}
COST = 0.05
COST_OF_FOLDER = {"spark": 4.0, "browser": 3.0, "interop": 1.0}
"""Everything in these folders of `tests` drives a JVM, a browser or another program."""
COST_OF_FILE = {
    "spark/test_kill.py": 220.0,
    "unit/test_docs.py": 200.0,
    "faults/test_log_process.py": 200.0,
    "faults/hostile/test_hostile_peers.py": 200.0,
    "spark/test_configured.py": 170.0,
    "browser/test_pipelines_page.py": 110.0,
    "spark/test_cluster.py": 90.0,
    "spark/test_projects.py": 90.0,
    # The Rust client is built meanwhile (early.py).
    "interop/test_ockam_rust.py": 0.0,
    "interop/test_through_a_follower.py": 0.0,
}
"""By path below `tests`, as a whole, where the marks say too little or too much."""

TESTS = Path(__file__).parent.parent


def workers() -> int:
    """How many processes run tests."""
    return (os.cpu_count() or 1) + 1


def cost(item: pytest.Item) -> float:
    """About how many seconds a test takes."""
    marks = [seconds for name, seconds in COST_OF_MARK.items() if item.get_closest_marker(name)]
    folder = item.path.relative_to(TESTS).parts[0]
    return max([COST, COST_OF_FOLDER.get(folder, 0.0), *marks])


def longest_files_first(items: list[pytest.Item]) -> None:
    """Order the files; the tests of each stay as they are. Files that start brokers alternate with the others: two
    clusters at a time are slower than one after the other."""
    total: Counter[Path] = Counter()
    has_brokers: set[Path] = set()
    for item in items:
        total[item.path] += cost(item)  # type: ignore[assignment]
        if item.get_closest_marker("kafka"):
            has_brokers.add(item.path)
    for path in total:
        known = COST_OF_FILE.get(path.relative_to(TESTS).as_posix())
        total[path] = total[path] if known is None else known  # type: ignore[assignment]
    files = sorted(total, key=lambda path: (-total[path], str(path)))
    brokers, others = [[path for path in files if (path in has_brokers) is of_brokers] for of_brokers in (True, False)]
    order = [path for pair in itertools.zip_longest(brokers, others) for path in pair if path is not None]
    place = {path: number for number, path in enumerate(order)}
    items.sort(key=lambda item: place[item.path])
