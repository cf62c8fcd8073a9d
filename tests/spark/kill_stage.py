"""A hub and a driver that are killed, and what must hold between what went in and what came out."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from free_ports import free_address
from spark_support import environment, java_options
from support.until import wait_until

from headrace.spark.engine import VARIABLE
from headrace.spark.hub_client import open_port

REAL_TIME = "1 minute"  # no batch of it ends here: all that Spark knows of is its start
RECORDS_PER_APPEND = 200
WAIT_S = 500


class Tally(NamedTuple):
    """What became of the records 0, 1, 2 and so on, by their results."""

    lost: int
    doubled: int
    out_of_order: int

    @classmethod
    def of(cls, results: Sequence[int], total: int) -> Tally:
        found = Counter(results)
        lost = sum(number not in found for number in range(total))
        firsts = list(dict.fromkeys(results))
        out_of_order = sum(later < earlier for earlier, later in pairwise(firsts))
        return cls(lost, len(results) - len(found), out_of_order)


@dataclass(frozen=True)
class Round:
    """A driver until it is killed: when something that it asked for is durable and not answered yet, or anywhere. The
    hub is killed before it, at the same point, or anywhere."""

    trap: str
    engine: str = "java"
    real_time: str = ""
    hub_kills: int = 1


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

    def tally(self) -> Tally:
        """Of all that was produced."""
        return Tally.of(self.results(), self.total)

    @property
    def total(self) -> int:
        """How many records went in."""
        return self.sequence * RECORDS_PER_APPEND

    def wait_all(self) -> None:
        """Until everything that was produced has its result."""
        wait_until(lambda: self.out() >= self.total, "everything to arrive", WAIT_S)

    def survive(self, one: Round, chance: random.Random) -> None:
        """A driver's life: the hub is killed under it, and then it is."""
        self.start_driver(one.real_time, one.engine, column="to" if one.trap == "spread" else "")
        before = self.out()
        self.produce()
        wait_until(lambda: self.out() > before, "results of this driver", WAIT_S)
        for _ in range(one.hub_kills):
            self._kill_hub(one.trap, chance)
        self.look()
        assert self.driver is not None
        if one.trap:
            self.trap.write_text(f"{one.trap} {self.driver.pid}")
            self.produce()
            self.driver.wait(WAIT_S)
        else:
            self.produce()
            time.sleep(chance.uniform(0, 0.5))  # the moment of a kill, not a wait
            self.kill(self.driver)
        assert self.driver.wait(60) == -signal.SIGKILL
        assert not self.trap.exists()
        self.look()

    def _kill_hub(self, trap: str, chance: random.Random) -> None:
        assert self.hub is not None
        if trap:
            self.trap.write_text(f"{trap} {self.hub.pid}")
            producing = threading.Thread(target=self.produce)  # the hub may be dead before it is asked
            producing.start()
            self.hub.wait(WAIT_S)
            self.start_hub()
            producing.join()
        else:
            self.produce()
            time.sleep(chance.uniform(0, 0.3))  # as above
            self.kill(self.hub)
            self.start_hub()
