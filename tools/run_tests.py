"""Run the tests, on all cores: with `--all` and in CI every one, otherwise without those that take minutes.

`python tools/run_tests.py [--all] [ARGUMENT …]` gives its arguments to pytest. The mark `long` is for tests that kill,
take over and attack for minutes. Where no argument asks for some tests they are left out, and a line says so.

Some tests drive brokers, browsers and JVMs for seconds while others need the same two cores. Where a handful of all
failed in CI, these run once more by themselves. What fails again fails the run. What passes is named as unsteady: a
defect to mend, of the test or of the code, but no reason to hold back a change.
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
ALL = "--all"
SHORT = ("-m", "not long")
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
    if arguments not in ([], [ALL]):
        return pytest(cache, *TOGETHER, *arguments)
    if not arguments and not in_ci():
        code = pytest(cache, *TOGETHER, *SHORT)
        print("== left out: the tests marked `long`, which take minutes; `make test-all` runs them too", flush=True)
        return code
    return run_all(cache)


def run_all(cache: Path) -> int:
    """Every test; in CI a handful has a second try."""
    code = pytest(cache, *TOGETHER)
    names = failed(cache)
    if code != TESTS_FAILED or not in_ci() or not 0 < len(names) <= UNSTEADY_TESTS_MAX:
        return code
    print(f"== run once more, alone: {' '.join(names)}", flush=True)
    code = pytest(cache, *names)
    if code == 0:
        print("== unsteady: failed beside others and passed alone. Mend them:", *names, sep="\n   ", flush=True)
    return code


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headrace-tests-") as folder:
        sys.exit(run(Path(folder), sys.argv[1:]))
