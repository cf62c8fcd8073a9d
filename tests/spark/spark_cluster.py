"""A standalone cluster of Spark on this machine, whose executors are killed under a query."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pyspark
from free_ports import free_address
from kill_stage import WAIT_S, Stage
from spark_support import java_options
from support.until import wait_until

from headrace.spark.java import find_java

HOME = Path(pyspark.__file__).parent


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


class Driven:
    """A query on a cluster, in micro-batches or in real time, that goes on whatever is killed."""

    def __init__(self, stage: Stage, cluster: Cluster, real_time: str = "", engine: str = "") -> None:
        self.stage = stage
        self.cluster = cluster
        self._real_time = real_time
        self._engine = engine
        self._start()

    def _start(self) -> None:
        self.stage.start_driver(self._real_time, self._engine, master=self.cluster.address)

    def go_on(self, what: str) -> None:
        """Everything gets its result, also what comes now. In real time Spark runs no task again: the query ends with
        it, and is started again."""
        self.stage.produce()

        def there() -> bool:
            assert self.stage.driver is not None
            if self.stage.driver.poll() is not None:
                assert self._real_time, (self.stage.place / "driver.log").read_text()[-3000:]
                self._start()
            return self.stage.out() >= self.stage.total

        wait_until(there, f"the results after {what}", WAIT_S)
        self.stage.look()

    def kill_executors(self, count: int) -> None:
        """Those of the first worker, so many times."""
        for number in range(count):
            wait_until(lambda: self.cluster.executors(0), "an executor", WAIT_S)
            self.stage.produce()
            for executor in self.cluster.executors(0):
                os.kill(executor, signal.SIGKILL)
            self.go_on(f"the kill of executor {number}")
