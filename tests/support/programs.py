"""Whether a test can run here: the one place that decides what happens where a program is missing."""

from typing import NoReturn

import pytest
from test_programs import PROGRAMS, in_ci, lacking

MARKS = {"browser": ("chromium",), "kafka": ("kafka",), "node": ("node", "npm"), "root": ("mounts",)}
"""What the markers of pyproject.toml need."""


def needs(*names: str) -> None:
    """Leave the test out unless these of tools/test_programs.py are here. As a mark: `@pytest.mark.needs("strace")`."""
    for line in filter(None, map(lacking, names)):
        leave_out(line)


def leave_out(why: str) -> NoReturn:
    """A part that is missing is a failure in CI, and elsewhere a skip that says so."""
    if in_ci():
        pytest.fail(f"{why} (CI is set, so this must run)", pytrace=False)
    pytest.skip(why)


def needed_by(item: pytest.Item) -> list[str]:
    """What a test's marks say that it needs."""
    names = [
        name
        for mark in item.iter_markers()
        for name in (mark.args if mark.name == "needs" else MARKS.get(mark.name, ()))
    ]
    assert set(names) <= set(PROGRAMS), names
    return names
