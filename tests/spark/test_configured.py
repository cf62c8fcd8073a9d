"""`[[pipeline]]` in the configuration: the hub runs it, through its own restarts, until somebody stops it."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_address
from spark_support import environment
from support.early import JAVA_OPTIONS
from support.hub_process import HubProcess
from support.until import DEADLINE_S, wait_until

from headrace.config import Config, Log, User
from headrace.security import Security, new_token
from headrace.spark.hub_client import HubPort, access_to, open_port

pytestmark = [pytest.mark.spark, pytest.mark.slow]
CONFIG = """
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


class Up(HubProcess):
    """`headrace up` with a configuration file."""

    port: HubPort

    def __init__(self, folder: Path) -> None:
        config = folder / "headrace.toml"
        config.write_text(CONFIG.format(place=folder, java=JAVA_OPTIONS))
        fixed = f"listen.flight={free_address()}"  # a hub with pipelines needs to know its port
        super().__init__(folder, fixed, only=("flight",), config=config, environment=environment())

    @property
    def address(self) -> str:
        return self.addresses["flight"]

    def append(self, *kinds: str) -> None:
        payload = base64.b64encode(b"{}").decode()
        records = [{"payload": payload, "type": kind} for kind in kinds]
        self.port.call("stream.append", {"stream": "orders", "records": records})

    def results(self) -> int:
        found = self.port.describe(["orders.paid"])
        return found[0].bounds[0][1] if found else 0

    def pipeline(self, *words: str) -> Any:
        run = [sys.executable, "-m", "headrace", "pipeline", *words, "--hub", self.address]
        done = subprocess.run(run, env=environment(), capture_output=True, text=True, timeout=DEADLINE_S, check=True)
        return json.loads(done.stdout) if "--json" in words else done.stderr

    def status(self) -> Any:
        """The pipeline `paid`, by the hub's own word."""
        return self.port.call("pipeline.status", {"name": "paid"})

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
    with Up(tmp_path) as hub:
        hub.port = open_port(hub.address, wait_s=DEADLINE_S)
        yield hub
        hub.port.close()


def test_a_configured_pipeline_runs_with_its_hub(up: Up) -> None:
    up.port.call("stream.create", {"stream": "orders"})
    up.append("paid", "open", "paid")
    wait_until(lambda: up.results() == 2, "the first results", 120)
    listed = wait_until(lambda: {one["name"]: one for one in up.pipeline("ls", "--json")}, "the list")
    assert (listed["paid"]["state"], listed["later"]["state"]) == ("running", "stopped")
    assert up.pipeline("status", "paid", "--json")["definition"]["into"] == "orders.paid"

    up.kill()  # its driver must not outlive it, or two would work on one checkpoint
    wait_until(lambda: not up.drivers(), "the driver to end", 60)
    up.start()
    up.append("paid", "open")
    wait_until(lambda: up.results() == 3, "results after the restart", 120)

    assert "asked to stop" in up.pipeline("stop", "paid")
    wait_until(lambda: up.status()["state"] == "stopped", "the stop", 60)
    wait_until(lambda: not up.drivers(), "the driver to end", 60)
    up.append("paid")
    assert up.results() == 3


ROBOT, ROBOT_DIGEST = new_token()
ADMIN, ADMIN_DIGEST = new_token()


def test_a_pipeline_stops_with_its_user_and_goes_on_when_the_user_is_back(tmp_path: Path, class_archive: None) -> None:
    """It works in the name of the user whose token it has. Nothing of it is stored after the user has gone."""
    robot = User(tokens=[ROBOT_DIGEST], roles=["reader", "writer"])
    file = Security(Config(log=Log(data=str(tmp_path / "data")))).users_file
    with file.changing() as users:
        users |= {"robot": robot, "admin": User(tokens=[ADMIN_DIGEST], roles=["admin"])}
    up = Up(tmp_path)
    config = tmp_path / "headrace.toml"
    config.write_text(config.read_text().replace("[spark]\n", f'[spark]\ntoken = "{ROBOT}"\n'))
    with up:
        up.port = open_port(access_to(up.address, ADMIN), wait_s=DEADLINE_S)
        up.port.call("stream.create", {"stream": "orders"})
        up.append("paid", "open", "paid")
        wait_until(lambda: up.results() == 2, "the first results", 120)
        wait_until(lambda: up.status()["state"] == "running", "the first report", 60)
        with file.changing() as users:
            del users["robot"]
        wait_until(lambda: up.status()["state"] == "failed", "the end", 60)
        assert up.status()["report"]["error"] == "the user 'robot', in whose name it runs, may not run it any more"
        up.append("paid")
        wait_until(lambda: not up.drivers(), "the driver to end", 120)
        assert up.results() == 2
        with file.changing() as users:
            users["robot"] = robot
        wait_until(lambda: up.results() == 3, "results after the user's return", 180)
        up.port.close()
