"""Run all tests, on all cores; in CI, run the few that failed once more, alone.

`python tools/run_tests.py [ARGUMENT …]` gives its arguments to pytest. Some tests drive brokers, browsers and JVMs for
seconds while others need the same two cores. Where all tests were asked for in CI and a handful failed, these run once
more by themselves. What fails again fails the run. What passes is named as unsteady: a defect to mend, of the test or
of the code, but no reason to hold back a change.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from test_programs import in_ci

UNSTEADY_TESTS_MAX = 5
"""More than these failing at once is nobody's bad luck."""
TOGETHER = ("--numprocesses", "auto", "--dist", "loadfile", "--no-loadscope-reorder")
TESTS_FAILED = 1
"""The exit code with which pytest says so; others say that it could not run."""


def pytest(cache: Path, *arguments: str) -> int:
    """Run tests, and remember in `cache` which failed."""
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *arguments]
    return subprocess.run(command, check=False).returncode


def failed(cache: Path) -> list[str]:
    """The tests that failed in the run that kept this cache."""
    memory = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(memory.read_text())) if memory.exists() else []


def run(cache: Path, arguments: list[str]) -> int:
    """The exit code."""
    code = pytest(cache, *TOGETHER, *arguments)
    names = failed(cache)
    if code != TESTS_FAILED or arguments or not in_ci() or not 0 < len(names) <= UNSTEADY_TESTS_MAX:
        return code
    print(f"== run once more, alone: {' '.join(names)}", flush=True)
    code = pytest(cache, *names)
    if code == 0:
        print("== unsteady: failed beside others and passed alone. Mend them:", *names, sep="\n   ", flush=True)
    return code


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headrace-tests-") as folder:
        sys.exit(run(Path(folder), sys.argv[1:]))
