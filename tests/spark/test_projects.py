"""A project of Declarative Pipelines against a hub, as `headrace pipelines init` writes it: nothing is registered."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from free_ports import free_address
from hubs import ThreadHub
from spark_support import environment
from support.early import JAVA_OPTIONS
from support.until import wait_until

from headrace.config import Config, Listen, PipelineEntry, Spark
from headrace.spark.engine import VARIABLE

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.slow]
RUN_S = 500
CONNECT_PORT = 15002


def headrace(place: Path, *arguments: str, engine: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-m", "headrace", *arguments],
        env=environment() | {VARIABLE: engine},
        cwd=place,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert "UserWarning" not in done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def another_project() -> Iterator[None]:
    """Someone has the port of Spark Connect, as another project that runs at the same time would."""
    with contextlib.ExitStack() as stack:
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            listening = stack.enter_context(socket.socket(family))
            with contextlib.suppress(OSError):  # then someone else has it, or this machine knows no such address
                listening.bind((host, CONNECT_PORT))
                listening.listen()
        yield


@pytest.fixture
def hub(tmp_path: Path, class_archive: None) -> Iterator[ThreadHub]:
    """One that can run the project."""
    address = free_address()
    java = {"spark.driver.extraJavaOptions": JAVA_OPTIONS}
    entry = PipelineEntry("shop", project=str(tmp_path / "shop"), trigger="1 hour", enabled=False)
    config = Config(listen=Listen(flight=address), spark=Spark(master="local[2]", conf=java), pipeline=[entry])
    made = ThreadHub(tmp_path / "data", address=address, config=config)
    yield made
    made.close()


@pytest.mark.needs("javac")
def test_a_project_runs_again_and_again_with_either_engine(
    tmp_path: Path, hub: ThreadHub, another_project: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command with the Python engine, which Spark finds by itself, then by the hub with the Java engine: each
    record is in the table once, and the stream that the sink writes has each result once."""

    def status() -> Any:
        return hub.call("pipeline.status", {"name": "shop"})

    hub.create("orders")
    headrace(tmp_path, "pipelines", "init", "shop")
    hub.append("orders", [b"short", b"a long one for python"], types=["a", "b"])
    options = ["--hub", hub.address, "--conf", f"spark.driver.extraJavaOptions={JAVA_OPTIONS}"]
    headrace(tmp_path, "pipelines", "run", "shop", *options, engine="python")
    assert hub.payloads("orders.long") == [b"a long one for python"]
    assert status()["state"] == "done"

    monkeypatch.setenv(VARIABLE, "java")
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    hub.append("orders", [b"short", b"a long one for java"], types=["a", "b"])
    hub.call("pipeline.start", {"name": "shop"})
    wait_until(lambda: status()["report"]["batch"] == 0, "a run", RUN_S)
    assert (status()["state"], status()["report"]["error"]) == ("running", "")  # it waits for the next run
    assert hub.payloads("orders.long") == [b"a long one for python", b"a long one for java"]
    hub.call("pipeline.stop", {"name": "shop"})
    wait_until(lambda: status()["state"] == "stopped", "its end")
    files = (tmp_path / "shop" / "warehouse" / "orders").glob("*.parquet")
    assert sorted(index for file in files for index in pq.read_table(file)["index"].to_pylist()) == [0, 1, 2, 3]
