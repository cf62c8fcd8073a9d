"""Clients of Spark Connect: one server, and clients without Java, among them the one that docs/spark.md shows."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from free_ports import free_address
from hubs import ThreadHub
from spark_support import environment, java_options
from support.until import wait_until

from headrace.spark.java import find_java

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.needs("javac")]
HOME = Path(pyspark.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
WAIT_S = 500

SECOND = """
import time

from headrace.spark import read, read_stream, session
from headrace.spark.hub_client import open_port
from headrace.spark.spark_session import engine_of

spark = session(master="sc://127.0.0.1:15002", hub="127.0.0.1:7070")
assert engine_of(spark) == "java"
read(spark, "orders", engine="python").select("payload").write.format("headrace").mode("append").option(
    "stream", "copy"
).save()
counted = read_stream(spark, "orders", cursor="counted").writeStream.format("noop")
counted.option("checkpointLocation", "/var/lib/counted").trigger(availableNow=True).start()
port = open_port("127.0.0.1:7070")
while port.position("counted", "orders") != [3]:
    time.sleep(0.01)  # the client hears of the batch, and moves its cursor
query = (
    read_stream(spark, "orders")
    .select("payload")
    .writeStream.format("headrace")
    .option("stream", "live")
    .option("checkpointLocation", "/var/lib/live")
    .outputMode("update")
    .trigger(realTime="1 minute")
    .start()
)
while port.describe(["live"])[0].bounds != ((0, 3),):
    assert query.isActive, query.exception()
    time.sleep(0.01)
query.stop()
print("stopped")
"""
"""It does not stop its session, and must end nevertheless."""


class Server:
    """Spark's own server, with the settings that `headrace spark conf` prints."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.address = free_address()
        printed = [sys.executable, "-m", "headrace", "spark", "conf"]
        settings = subprocess.run(printed, env=environment(), check=True, capture_output=True, text=True).stdout
        binding = [f"spark.connect.grpc.binding.port={self.address.rpartition(':')[2]}", "spark.ui.enabled=false"]
        binding += ["spark.connect.grpc.binding.address=127.0.0.1", f"spark.driver.extraJavaOptions={java_options()}"]
        command = [str(HOME / "sbin" / "start-connect-server.sh"), "--wait", "--master", "local[2]"]
        command += [*shlex.split(settings), *(word for one in binding for word in ("--conf", one))]
        own = {"SPARK_HOME": str(HOME), "JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable}
        own |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOG_DIR": str(place), "SPARK_PID_DIR": str(place)}
        with (place / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, env=environment() | own, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self._listens, "the server", WAIT_S)

    def _listens(self) -> bool:
        assert self._process.poll() is None, self.log()
        host, _, port = self.address.partition(":")
        try:
            socket.create_connection((host, int(port)), 1).close()
        except OSError:
            return False
        return True

    def log(self) -> str:
        return "\n".join(path.read_text() for path in self.place.glob("*server*"))[-3000:]

    def run(self, program: str, hub: ThreadHub) -> str:
        """A client that finds no Java; what it prints."""
        for old, new in (
            ("127.0.0.1:15002", self.address),
            ("127.0.0.1:7070", hub.address),
            ("/var/lib", str(self.place)),
        ):
            program = program.replace(old, new)
        without_java = environment() | {"JAVA_HOME": "/nowhere", "PATH": "/nowhere"}
        without_java["SPARK_SKIP_CONNECT_COMPAT_TESTS"] = "1"  # as where only Spark's client is installed
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=without_java,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:] + self.log()
        return done.stdout

    def end(self) -> None:
        os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait(60)


@pytest.fixture
def server(tmp_path: Path, class_archive: None) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.end()


def test_clients_without_java_read_write_and_stream(server: Server, tmp_path: Path) -> None:
    hub = ThreadHub(tmp_path / "data")
    try:
        hub.create("orders")
        hub.create("live")
        hub.append("orders", [b"1", b"2", b"3"], types=["paid", "open", "paid"])
        shown = PAGE.read_text().partition('session(master="sc://')
        program = shown[0].rpartition("```python\n")[2] + shown[1] + shown[2].partition("```")[0]
        assert "|paid|    2|" in server.run(program, hub)
        assert hub.payloads("orders.paid") == [b"1", b"3"]

        assert server.run(SECOND, hub) == "stopped\n"
        assert hub.payloads("live") == hub.payloads("copy") == [b"1", b"2", b"3"]
    finally:
        hub.close()
