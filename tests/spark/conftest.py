"""One Spark session for all tests: the JVM is the expensive part."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from hubs import ThreadHub
from live_queries import BATCH, Start
from spark_support import environment
from support.early import JAVA_OPTIONS

TESTS = Path(__file__).parent.parent
WARM_S = 600


@pytest.fixture(scope="session")
def class_archive() -> None:
    """Made once, in a process of its own: every JVM of the suite starts in half the time."""
    code = "from support.early import make_class_archive; make_class_archive()"
    path = os.pathsep.join([str(TESTS), str(TESTS.parent / "tools"), environment()["PYTHONPATH"]])
    known = environment() | {"PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", code], env=known, check=True, timeout=WARM_S, capture_output=True)


@pytest.fixture(scope="session")
def spark(class_archive: None) -> Iterator[Any]:
    from headrace.spark import session

    os.environ.update(environment())
    started = session("tests", master="local[2]", config={"spark.driver.extraJavaOptions": JAVA_OPTIONS})
    yield started
    started.stop()


@pytest.fixture(scope="session")
def shared_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadHub]:
    """A hub for the tests that only need streams of their own names."""
    hub = ThreadHub(tmp_path_factory.mktemp("hub"))
    yield hub
    hub.close()


@pytest.fixture(params=["java"])
def engine(request: pytest.FixtureRequest, spark: Any) -> Iterator[str]:
    """The engine of a test's sources and sinks; a module that runs with both says so."""
    spark.conf.set("spark.datasource.headrace.engine", request.param)
    yield request.param
    spark.conf.unset("spark.datasource.headrace.engine")


@pytest.fixture
def hub(shared_hub: ThreadHub, spark: Any, engine: str) -> ThreadHub:
    from headrace.spark import equip

    equip(spark, hub=shared_hub.address)
    return shared_hub


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A stream name that no other test uses."""
    return request.node.name.replace("[", "-").replace("]", "")


@pytest.fixture
def start(spark: Any, hub: ThreadHub, name: str, tmp_path: Path) -> Start:
    """Start a query into `name=out`."""

    def starting(frame: Any, batch: str = BATCH, checkpoint: Path = tmp_path, **options: Any) -> Any:
        writer = frame.writeStream.format("headrace").option("checkpointLocation", str(checkpoint))
        writer = writer.options(**{"stream": f"{name}=out", **options}).outputMode("update")
        return writer.trigger(realTime=batch).start()

    return starting


@pytest.fixture(autouse=True)
def no_query_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "spark" in request.fixturenames:
        for query in request.getfixturevalue("spark").streams.active:
            query.stop()
