"""Which test files come first: those with most to wait for, so that no worker begins a long one when others are done.

What a test costs is guessed from its marks. A guess that is wrong costs a little time and nothing else.
"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

COST_OF_MARK = {"kafka": 20.0, "slow": 3.0}
COST = 0.05
COST_OF_FOLDER = {"spark": 10.0, "browser": 3.0, "interop": 5.0}
"""Everything in these folders drives a JVM, a browser or another program."""


def cost(item: pytest.Item) -> float:
    """About how many seconds a test takes."""
    marks = [seconds for name, seconds in COST_OF_MARK.items() if item.get_closest_marker(name)]
    folders = [COST_OF_FOLDER.get(part, 0.0) for part in Path(item.path).parts]
    return max([COST, *marks, *folders])


def longest_files_first(items: list[pytest.Item]) -> None:
    """Order the files; the tests of each stay as they are. Files that start brokers alternate with the others: two
    clusters at a time are slower than one after the other."""
    total: Counter[Path] = Counter()
    has_brokers: set[Path] = set()
    for item in items:
        total[item.path] += cost(item)  # type: ignore[assignment]
        if item.get_closest_marker("kafka"):
            has_brokers.add(item.path)
    files = sorted(total, key=lambda path: (-total[path], str(path)))
    brokers, others = [[path for path in files if (path in has_brokers) is of_brokers] for of_brokers in (True, False)]
    order = [path for pair in itertools.zip_longest(brokers, others) for path in pair if path is not None]
    place = {path: number for number, path in enumerate(order)}
    items.sort(key=lambda item: place[item.path])
