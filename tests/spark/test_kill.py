"""SIGKILL, twenty times: the driver anywhere, the driver between the sink's commit and Spark's, the hub anywhere.

Nothing may be lost, doubled or reordered, and no cursor may go back.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from spark_support import JAVA_OPTIONS, environment, free_address
from support.until import wait_until

from headrace.errors import HeadraceError
from headrace.spark.engine import VARIABLE
from headrace.spark.hub_client import open_port

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]
SEED = 20
# Where a driver is killed: anywhere, while it stages, or between the sink's commit and Spark's own.
# Each costs the start of a JVM.
DRIVER_KILLS = ["commit", "random", "stage", "random", "commit", "random", "commit", "random"]
HUB_KILLS = 12
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
        self.kills = 0

    def start_hub(self) -> None:
        self.ready.unlink(missing_ok=True)
        self.hub = self._start("hub", str(self.place / "data"), self.address, str(self.ready))
        wait_until(self.ready.exists, "the hub")

    def start_driver(self, real_time: str = "", engine: str = "") -> None:
        """A driver with the engine that suits, or with this one."""
        checkpoint = str(self.place / "checkpoint")
        self.driver = self._start("driver", self.address, checkpoint, JAVA_OPTIONS, real_time, engine=engine)

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


def test_exactly_once_through_twenty_kills(stage: Stage) -> None:
    chance = random.Random(SEED)
    rounds = len(DRIVER_KILLS)
    for number, kind in enumerate(DRIVER_KILLS):
        stage.start_driver(engine="python" if number % 2 else "")  # a query may change its engine at any batch
        before = stage.out()
        stage.produce()
        wait_until(lambda before=before: stage.out() > before, "results of this driver", 200)
        for _ in range(HUB_KILLS * number // rounds, HUB_KILLS * (number + 1) // rounds):
            stage.produce()
            time.sleep(chance.uniform(0, 0.3))  # the moment of a kill, not a wait
            stage.kill(stage.hub)
            stage.kills += 1
            stage.start_hub()
        stage.look()
        assert stage.driver is not None
        if kind == "random":
            stage.produce()
            time.sleep(chance.uniform(0, 0.5))
            stage.kill(stage.driver)
        else:
            stage.trap.write_text(f"{kind} {stage.driver.pid}")
            stage.produce()
            stage.driver.wait(200)
        assert stage.driver.wait(60) == -signal.SIGKILL
        stage.kills += 1
        stage.look()
    stage.start_driver()
    total = stage.sequence * RECORDS_PER_APPEND
    wait_until(lambda: stage.out() >= total, "everything to arrive", 120)
    wait_until(lambda: stage.look() == total, "the cursor", 120)
    assert stage.kills == 20
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


@pytest.mark.needs("javac")
def test_exactly_once_in_real_time_through_kills_of_driver_and_hub(stage: Stage) -> None:
    """Batches of a minute: none of them ends here, so all that Spark knows of is the start."""
    for victim in ("driver", "hub", "driver"):
        if stage.driver is None or stage.driver.poll() is not None:
            stage.start_driver("1 minute", "java")
        before = stage.out()
        for _ in range(3):
            stage.produce()
        wait_until(lambda before=before: stage.out() > before, "results of this driver", 200)
        stage.kill(stage.driver if victim == "driver" else stage.hub)
        if victim == "hub":
            stage.start_hub()
    stage.start_driver("1 minute", "java")
    stage.produce()
    total = stage.sequence * RECORDS_PER_APPEND
    wait_until(lambda: stage.out() >= total, "everything to arrive", 200)
    assert stage.results() == list(range(total))
