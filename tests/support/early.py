"""What takes minutes to make and is needed late is begun when the tests begin: by the time of its first use it is done.

Each of these asks for a lock that whoever needs the result asks for too, so a test waits for one that is not done. A
failure here says nothing: the test that needs the result tries again, and fails with the reason.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from run_tests import SHORT
from test_programs import absent, rust_asked

NICE = 5
"""Behind the tests, with what they leave of the cores."""
SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parents[1]
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a short life: compile quickly rather than well, and collect garbage without extra threads."""


def make_class_archive() -> None:
    """For all of Spark's JVMs: they start in half the time."""
    from headrace.spark.java import cache_directory
    from headrace.spark.spark_session import warm

    folder = cache_directory()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "classes.lock").open("w") as lock:  # two at once would make it twice
        fcntl.flock(lock, fcntl.LOCK_EX)
        warm(JAVA_OPTIONS)


def make_kafka() -> None:
    """The jars of the brokers, and their class archive."""
    from kafka_brokers import fetch, share_classes

    fetch()
    share_classes()


def make_rust_client() -> None:
    """Ockam's published client."""
    from interop.test_ockam_rust import build

    build()


class Early:
    """Of a run of all tests, where several processes share them. The controller has nothing else to do."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        if not _is_whole(session.config):
            return
        if not absent("javac"):
            self._start("make_class_archive")
        if not absent("kafka"):
            self._start("make_kafka")
        if rust_asked() and not absent("cargo"):
            self._start("make_rust_client")

    def _start(self, name: str) -> None:
        path = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "tools"), os.environ["PYTHONPATH"]])
        self._running.append(
            subprocess.Popen(
                ["nice", "-n", str(NICE), sys.executable, "-c", f"from support.early import {name}; {name}()"],
                cwd=tempfile.gettempdir(),
                env=os.environ | {"PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )

    def pytest_sessionfinish(self) -> None:
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _is_whole(config: pytest.Config) -> bool:
    """Whether all tests were asked for, or all but the long ones, by a controller with several workers."""
    option = config.option
    return bool(
        getattr(option, "numprocesses", None)
        and "PYTEST_XDIST_WORKER" not in os.environ
        and config.args_source is pytest.Config.ArgsSource.TESTPATHS
        and not (option.keyword or option.collectonly)
        and option.markexpr in ("", SHORT[1])
    )
