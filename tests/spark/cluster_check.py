"""`--master spark://…`: a real cluster of one machine, whose executors have never heard of Headrace.

Four Java processes on two cores take their time, so this is not part of the suite:
`pytest tests/spark/cluster_check.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from hubs import ThreadHub
from spark_support import JAVA_OPTIONS, environment, free_address
from support.until import wait_until

from headrace.spark.java import find_java

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]
HOME = Path(pyspark.__file__).parent

DRIVER = """
import sys
from dataclasses import replace
from pathlib import Path
from headrace.spark import read, session
from headrace.spark.pipelines.builtin import merge
from headrace.spark.hub_client import open_port
from headrace.spark.pipelines.runner import Runner

master, hub, home, options = sys.argv[1:]
spark = session(master=master, hub=hub, config={"spark.executor.memory": "512m", "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": options, "spark.executor.extraJavaOptions": options})


def package(batches):
    import headrace
    import pyarrow as pa

    for batch in batches:
        yield pa.record_batch({"path": [headrace.__file__] * batch.num_rows})


paths = read(spark, "in", tasks=2, split_records=10).select("index").mapInArrow(package, "path STRING").collect()
print("package", *{row.path for row in paths}, len(paths))
runner = Runner(spark, open_port(hub), home=Path(home))
runner.start(replace(merge(["in"], "out"), trigger="available now"))
assert runner.watch(), runner.failures
spark.stop()
"""


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A master and a worker, as Spark's own package starts them. Its Python path is empty."""
    address = f"spark://{free_address()}"
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    own |= {"JAVA_HOME": str(find_java().home), "SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
    own |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS, "SPARK_SCALA_VERSION": "2.13"}
    host, _, port = address.removeprefix("spark://").partition(":")
    running = []

    def start(name: str, *arguments: str) -> Path:
        log = tmp_path / f"{name}.log"
        command = [HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{name.lower()}.{name}", "--host", host]
        with log.open("wb") as output:
            running.append(
                subprocess.Popen([*command, *arguments], env=own, stdout=output, stderr=output, cwd=tmp_path)
            )
        return log

    try:
        start("Master", "--port", port, "--webui-port", "0")
        log = start(
            "Worker",
            "--cores",
            "2",
            "--memory",
            "1g",
            "--webui-port",
            "0",
            "--work-dir",
            str(tmp_path / "work"),
            address,
        )
        wait_until(lambda: "Successfully registered with master" in log.read_text(), "the worker")
        yield address
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(60)


def test_the_package_travels_to_a_cluster(master: str, tmp_path: Path) -> None:
    hub = ThreadHub(tmp_path / "data")
    try:
        hub.create("in")
        hub.append("in", [b"%d" % number for number in range(50)])
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, master, hub.address, str(tmp_path / "home"), JAVA_OPTIONS],
            env={**environment(), "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        (line,) = (line.split() for line in done.stdout.splitlines() if line.startswith("package "))
        assert line[2] == "50"
        assert ".zip/headrace/" in line[1]  # what the driver sent, and no installation
        assert hub.payloads("out") == hub.payloads("in")
        assert hub.cursor("merge/out", "in") == 50
    finally:
        hub.close()
