"""`[[pipeline]]` in the configuration: the hub runs it, through its own restarts, until somebody stops it."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from spark_support import JAVA_OPTIONS, environment, free_address
from support.until import wait_until

from headrace.spark.hub_client import HubPort, open_port

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]
CONFIG = """
[log]
data = "{place}/data"

[listen]
flight = "{address}"
http = "off"
wallaroo = "off"
ockam = "off"
ignite = "off"
fabric = "off"

[spark]
master = "local[2]"
home = "{place}/checkpoints"
conf = {{ "spark.driver.extraJavaOptions" = "{java}" }}

[[pipeline]]
name = "paid"
sql = "SELECT payload, type FROM stream('orders') WHERE type = 'paid'"
into = "orders.paid"

[[pipeline]]
name = "later"
file = "{place}/later.py"
enabled = false
"""


class Up:
    """`headrace up` with a configuration file."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.address = free_address()
        self.config = place / "headrace.toml"
        self.config.write_text(CONFIG.format(place=place, address=self.address, java=JAVA_OPTIONS))
        self.port: HubPort = open_port(self.address, wait_s=30)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        ready = self.place / "ready"
        command = [sys.executable, "-m", "headrace", "up", "--config", str(self.config), "--ready-file", str(ready)]
        with (self.place / "log").open("ab") as log:
            self.process = subprocess.Popen(command, env=environment(), stdout=log, stderr=log, start_new_session=True)
        wait_until(ready.exists, "the hub")

    def stop(self, number: int = signal.SIGTERM) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)
        self.process.wait(30)
        self.process = None

    def append(self, *kinds: str) -> None:
        payload = base64.b64encode(b"{}").decode()
        records = [{"payload": payload, "type": kind} for kind in kinds]
        self.port.call("stream.append", {"stream": "orders", "records": records})

    def results(self) -> int:
        found = self.port.describe(["orders.paid"])
        return found[0].bounds[0][1] if found else 0

    def command(self, *words: str) -> Any:
        run = [sys.executable, "-m", "headrace", "pipeline", *words, "--hub", self.address]
        done = subprocess.run(run, env=environment(), capture_output=True, text=True, timeout=60, check=True)
        return json.loads(done.stdout) if "--json" in words else done.stderr

    def drivers(self) -> list[int]:
        """The processes of Spark that belong to this hub, by its address on their command line."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if b"pipeline" in words and self.address.encode() in words:
                    found.append(int(entry.name))
        return found


@pytest.fixture
def up(tmp_path: Path, class_archive: None) -> Any:
    made = Up(tmp_path)
    made.start()
    yield made
    if made.process is not None:
        made.stop()
    made.port.close()


def test_a_configured_pipeline_runs_with_its_hub(up: Up) -> None:
    up.port.call("stream.create", {"stream": "orders"})
    up.append("paid", "open", "paid")
    wait_until(lambda: up.results() == 2, "the first results", 120)
    listed = wait_until(lambda: {one["name"]: one for one in up.command("ls", "--json")}, "the list")
    assert (listed["paid"]["state"], listed["later"]["state"]) == ("running", "stopped")
    assert up.command("status", "paid", "--json")["definition"]["into"] == "orders.paid"

    up.stop(signal.SIGKILL)  # its driver must not outlive it, or two would work on one checkpoint
    wait_until(lambda: not up.drivers(), "the driver to end", 60)
    up.start()
    up.append("paid", "open")
    wait_until(lambda: up.results() == 3, "results after the restart", 120)

    assert "asked to stop" in up.command("stop", "paid")
    wait_until(lambda: up.command("status", "paid", "--json")["state"] == "stopped", "the stop", 60)
    wait_until(lambda: not up.drivers(), "the driver to end", 60)
    up.append("paid")
    assert up.results() == 3
