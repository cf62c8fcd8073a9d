"""`--master spark://…`: a real cluster with two workers, whose executors have never heard of Headrace.

Executors, a worker, the hub and the driver are killed in turn, executors also in real time: nothing is lost, doubled or
reordered. HEADRACE_KILLS=20 kills more executors.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kill_stage import REAL_TIME, WAIT_S, Stage
from spark_cluster import Cluster, Driven
from support.until import wait_until
from test_kill import MORE_ROUNDS, stage

TIMEOUT = pytest.mark.timeout(600 + 60 * MORE_ROUNDS)
pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.slow, pytest.mark.needs("javac"), TIMEOUT]
EXECUTORS = 1 + MORE_ROUNDS // 4
"""How many are killed in each mode."""
__all__ = ["stage"]


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
    query = Driven(stage, cluster)
    query.go_on("the start")
    assert ".zip/headrace/" in (stage.place / "driver.log").read_text()  # what the driver sent, and no installation
    wait_until(lambda: cluster.executors(0) and cluster.executors(1), "executors on both workers", WAIT_S)
    query.kill_executors(EXECUTORS)
    stage.produce()
    cluster.workers[1].kill()
    query.go_on("a killed worker")
    stage.produce()
    stage.kill(stage.hub)
    stage.start_hub()
    query.go_on("a killed hub")
    stage.produce()
    stage.kill(stage.driver)
    query = Driven(stage, cluster, REAL_TIME)
    query.go_on("a killed driver, in real time")
    query.kill_executors(EXECUTORS)
    assert stage.tally() == (0, 0, 0)
