"""SIGKILL to drivers and hubs, with either engine, in micro-batches and in real time, on one checkpoint.

Nothing may be lost, doubled or reordered, and no cursor may go back. Each kill of a driver costs the start of a JVM, so
every trap is sprung once here; HEADRACE_KILLS=20 adds as many drivers, half of them killed anywhere: then 16 drivers
and 27 hubs are killed in micro-batches, 10 and 18 in real time.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_address
from spark_support import environment, java_options
from support.until import wait_until

from headrace.errors import HeadraceError
from headrace.spark.engine import VARIABLE
from headrace.spark.hub_client import open_port

MORE_ROUNDS = int(os.environ.get("HEADRACE_KILLS", "0"))
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900 + 60 * MORE_ROUNDS)]
SEED = 20
REAL_TIME = "1 minute"  # no batch of it ends here: all that Spark knows of is its start


@dataclass(frozen=True)
class Round:
    """A driver until it is killed: when something that it asked for is durable and not answered yet, or anywhere. The
    hub is killed before it, at the same point, or anywhere."""

    trap: str
    engine: str = "java"
    real_time: str = ""
    hub_kills: int = 1


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
RECORDS_PER_APPEND = 200


class Stage:
    """A hub and a driver as processes, a producer here, and what must hold between them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.address = free_address()
        self.ready = place / "ready"
        self.trap = place / "trap"
        self.hub: subprocess.Popen[bytes] | None = None
        self.driver: subprocess.Popen[bytes] | None = None
        self.port = open_port(self.address, wait_s=60)
        self.sequence = 0
        self.cursor = 0

    def start_hub(self) -> None:
        self.ready.unlink(missing_ok=True)
        self.hub = self._start("hub", str(self.place / "data"), self.address, str(self.ready))
        wait_until(self.ready.exists, "the hub")

    def start_driver(self, real_time: str = "", engine: str = "", master: str = "", column: str = "") -> None:
        """A driver with the engine that suits, or with this one; in one process, or on a cluster."""
        options = [str(self.place / "checkpoint"), java_options(), real_time, master, column]
        self.driver = self._start("driver", self.address, *options, engine=engine)

    def _start(self, *arguments: str, engine: str = "") -> subprocess.Popen[bytes]:
        with (self.place / f"{arguments[0]}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("processes.py")), *arguments],
                env={**environment(), VARIABLE: engine},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def kill(self, process: subprocess.Popen[bytes] | None) -> None:
        if process is not None and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        if process is not None:
            process.wait(60)

    def produce(self) -> None:
        """Append the next records; a repeated append after a killed hub is stored once."""
        import base64

        first = self.sequence * RECORDS_PER_APPEND
        records = [
            {"payload": base64.b64encode(b"%d" % number).decode(), "id": number}
            for number in range(first, first + RECORDS_PER_APPEND)
        ]
        self.port.call(
            "stream.append",
            {"stream": "in", "records": records, "producer": "test", "sequence": self.sequence},
        )
        self.sequence += 1

    def out(self) -> int:
        found = self.port.describe(["out"])
        return found[0].bounds[0][1] if found else 0

    def results(self) -> list[int]:
        batches = self.port.read("out", 0, 0, self.out())
        return [int(value) for batch in batches for value in batch["payload"].to_pylist()]

    def look(self) -> int:
        """The cursor, which never goes back."""
        at = self.port.position("c", "in")[0] or 0
        assert at >= self.cursor
        self.cursor = at
        return at

    def end(self) -> None:
        self.port.close()
        self.kill(self.driver)
        self.kill(self.hub)


@pytest.fixture
def stage(tmp_path: Path, class_archive: None) -> Any:
    made = Stage(tmp_path)
    made.start_hub()
    made.port.call("stream.create", {"stream": "in"})
    yield made
    made.end()


@pytest.mark.needs("javac")
def test_exactly_once_through_kills_of_drivers_and_hubs(stage: Stage) -> None:
    """Every round goes on with the checkpoint of the one before. Real time comes last: from it there is no way back to
    micro-batches but a fresh checkpoint."""
    chance = random.Random(SEED)
    for one in sorted(ROUNDS, key=lambda one: one.real_time):
        stage.start_driver(one.real_time, one.engine, column="to" if one.trap == "spread" else "")
        before = stage.out()
        stage.produce()
        wait_until(lambda before=before: stage.out() > before, "results of this driver", 200)
        for _ in range(one.hub_kills):
            assert stage.hub is not None
            if one.trap:
                stage.trap.write_text(f"{one.trap} {stage.hub.pid}")
                producing = threading.Thread(target=stage.produce)  # the hub may be dead before it is asked
                producing.start()
                stage.hub.wait(200)
                stage.start_hub()
                producing.join()
            else:
                stage.produce()
                time.sleep(chance.uniform(0, 0.3))  # the moment of a kill, not a wait
                stage.kill(stage.hub)
                stage.start_hub()
        stage.look()
        assert stage.driver is not None
        if one.trap:
            stage.trap.write_text(f"{one.trap} {stage.driver.pid}")
            stage.produce()
            stage.driver.wait(200)
        else:
            stage.produce()
            time.sleep(chance.uniform(0, 0.5))
            stage.kill(stage.driver)
        assert stage.driver.wait(60) == -signal.SIGKILL
        assert not stage.trap.exists()
        stage.look()
    stage.start_driver(REAL_TIME, "java")
    stage.produce()
    total = stage.sequence * RECORDS_PER_APPEND
    wait_until(lambda: stage.out() >= total, "everything to arrive", 200)
    wait_until(lambda: stage.look() == total, "what a fresh checkpoint would begin with", 60)
    assert stage.results() == list(range(total))


def test_two_drivers_on_one_checkpoint(stage: Stage) -> None:
    """The older one is fenced off; the results stay exact."""
    stage.produce()
    stage.start_driver()
    first = stage.driver
    wait_until(lambda: stage.out() == RECORDS_PER_APPEND, "the first driver", 200)
    assert first is not None
    os.killpg(first.pid, signal.SIGSTOP)
    stage.produce()
    stage.start_driver()
    wait_until(lambda: stage.out() == 2 * RECORDS_PER_APPEND, "the second driver", 200)
    os.killpg(first.pid, signal.SIGCONT)
    for _ in range(3):
        stage.produce()
    total = stage.sequence * RECORDS_PER_APPEND
    wait_until(lambda: stage.out() >= total, "everything", 120)
    assert first.wait(60) != 0
    try:
        results = stage.results()
    except HeadraceError as error:
        raise AssertionError("the hub must still answer") from error
    assert results == list(range(total))
