"""A project of Declarative Pipelines against a hub, as `headrace pipelines init` writes it: nothing is registered."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hubs import ThreadHub
from spark_support import JAVA_OPTIONS, environment

from headrace.spark.engine import VARIABLE

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
RUN_S = 280


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
    return done.stdout


@pytest.mark.needs("javac")
def test_a_project_runs_again_and_again_with_either_engine(tmp_path: Path) -> None:
    """The Python engine, which Spark finds by itself, then the Java engine: each record is in the table once, and the
    stream that the sink writes has each result once."""
    hub = ThreadHub(tmp_path / "data")
    try:
        hub.create("orders")
        headrace(tmp_path, "pipelines", "init", "shop")
        for engine in ("python", "java"):
            hub.append("orders", [b"short", f"a long one for {engine}".encode()], types=["a", "b"])
            options = ["--hub", hub.address, "--conf", f"spark.driver.extraJavaOptions={JAVA_OPTIONS}"]
            headrace(tmp_path, "pipelines", "run", "shop", *options, engine=engine)
        assert hub.payloads("orders.long") == [b"a long one for python", b"a long one for java"]
        (status,) = json.loads(headrace(tmp_path, "pipeline", "ls", "--json", "--hub", hub.address))
        assert (status["name"], status["state"]) == ("shop", "done")
        files = (tmp_path / "shop" / "warehouse" / "orders").glob("*.parquet")
        assert sorted(index for file in files for index in pq.read_table(file)["index"].to_pylist()) == [0, 1, 2, 3]
    finally:
        hub.close()
