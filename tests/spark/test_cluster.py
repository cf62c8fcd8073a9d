"""`--master spark://…`: a real cluster with two workers, whose executors have never heard of Headrace.

Executors, a worker, the hub and the driver are killed in turn, executors also in real time: nothing is lost, doubled or
reordered. HEADRACE_KILLS=20 kills more executors.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from free_ports import free_address
from spark_support import java_options
from support.until import wait_until
from test_kill import MORE_ROUNDS, REAL_TIME, RECORDS_PER_APPEND, Stage, stage

from headrace.spark.java import find_java

TIMEOUT = pytest.mark.timeout(600 + 60 * MORE_ROUNDS)
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.needs("javac"), TIMEOUT]
HOME = Path(pyspark.__file__).parent
WAIT_S = 500
EXECUTORS = 1 + MORE_ROUNDS // 4
"""How many are killed in each mode."""
__all__ = ["stage"]


class Cluster:
    """A master and two workers of one core each, as Spark's own package starts them. Their Python path is empty."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.address = f"spark://{free_address()}"
        self.workers: list[subprocess.Popen[bytes]] = []
        self._environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
            "JAVA_HOME": str(find_java().home),
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": java_options(),
            "SPARK_SCALA_VERSION": "2.13",
        }
        port = self.address.rpartition(":")[2]
        self._master = self._start("Master", "master", "--port", port)

    def add_worker(self) -> None:
        number = len(self.workers)
        name = f"worker{number}"
        work = str(self.place / f"work{number}")
        options = ["--cores", "1", "--memory", "600m", "--work-dir", work, self.address]
        self.workers.append(self._start("Worker", name, *options))

    def wait_ready(self) -> None:
        for number in range(len(self.workers)):
            log = self.place / f"worker{number}.log"
            wait_until(lambda log=log: "Successfully registered with master" in log.read_text(), "a worker", WAIT_S)

    def _start(self, kind: str, name: str, *options: str) -> subprocess.Popen[bytes]:
        main = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
        command = [HOME / "bin" / "spark-class", main, "--host", "127.0.0.1", "--webui-port", "0", *options]
        with (self.place / f"{name}.log").open("wb") as log:
            return subprocess.Popen(command, env=self._environment, stdout=log, stderr=log, cwd=self.place)

    def executors(self, worker: int) -> list[int]:
        """The processes that a worker has started."""
        threads = Path(f"/proc/{self.workers[worker].pid}/task").glob("*/children")
        return [int(one) for thread in threads for one in thread.read_text().split()]

    def end(self) -> None:
        for process in (*self.workers, self._master):
            process.terminate()
        for process in (*self.workers, self._master):
            process.wait(60)


@pytest.fixture
def cluster(tmp_path: Path, class_archive: None) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        made.add_worker()
        made.add_worker()
        made.wait_ready()
        yield made
    finally:
        made.end()


def test_exactly_once_on_a_cluster_whose_parts_are_killed(stage: Stage, cluster: Cluster) -> None:
    def go_on(what: str, real_time: str = "") -> None:
        stage.produce()
        total = stage.sequence * RECORDS_PER_APPEND

        def there() -> bool:
            assert stage.driver is not None
            if stage.driver.poll() is not None:  # in real time Spark runs no task again: the query ends with it
                assert real_time, (stage.place / "driver.log").read_text()[-3000:]
                stage.start_driver(real_time, master=cluster.address)
            return stage.out() >= total

        wait_until(there, f"the results after {what}", WAIT_S)
        stage.look()

    def kill_executors(real_time: str = "") -> None:
        for number in range(EXECUTORS):
            wait_until(lambda: cluster.executors(0), "an executor", WAIT_S)
            stage.produce()
            for executor in cluster.executors(0):
                os.kill(executor, signal.SIGKILL)
            go_on(f"the kill of executor {number}", real_time)

    stage.start_driver(master=cluster.address)
    go_on("the start")
    assert ".zip/headrace/" in (stage.place / "driver.log").read_text()  # what the driver sent, and no installation
    wait_until(lambda: cluster.executors(0) and cluster.executors(1), "executors on both workers", WAIT_S)
    kill_executors()
    stage.produce()
    cluster.workers[1].kill()
    go_on("a killed worker")
    stage.produce()
    stage.kill(stage.hub)
    stage.start_hub()
    go_on("a killed hub")
    stage.produce()
    stage.kill(stage.driver)
    stage.start_driver(REAL_TIME, master=cluster.address)
    go_on("a killed driver, in real time", REAL_TIME)
    kill_executors(REAL_TIME)
    assert stage.results() == list(range(stage.sequence * RECORDS_PER_APPEND))
