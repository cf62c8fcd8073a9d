"""A query that changes between micro-batches and real time, its engine or its checkpoint: nothing is stored twice.

Stopping a real-time query in the middle of a batch is what a killed driver is to Spark: the batch was never noted.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hubs import ThreadHub
from live_queries import Start, results, wait_for
from spark_support import forget_commit
from test_source import run

from headrace.spark import read_stream
from headrace.spark.hub_client import open_port
from headrace.spark.pipelines.definition import Pipeline, Sink
from headrace.spark.pipelines.runner import Runner, reset

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.needs("javac"), pytest.mark.usefixtures("engine")]
LONG = "10 minutes"


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


@pytest.mark.parametrize("before", ["java", "python"])
def test_a_micro_batch_that_spark_did_not_note_is_not_repeated_in_real_time(
    hub: ThreadHub,
    spark: Any,
    name: str,
    start: Start,
    tmp_path: Path,
    before: str,
) -> None:
    hub.create(name)
    hub.append(name, numbers(0, 40))
    frame = read_stream(spark, name).select("payload")
    spark.conf.set("spark.datasource.headrace.engine", before)
    run(frame, f"{name}=out", tmp_path)
    spark.conf.set("spark.datasource.headrace.engine", "java")
    forget_commit(tmp_path)
    hub.append(name, numbers(40, 50))
    query = start(frame, LONG)
    wait_for(hub, name, 50, query)
    query.stop()
    assert results(hub, name) == numbers(0, 50)


def test_micro_batches_after_real_time(
    hub: ThreadHub,
    spark: Any,
    name: str,
    start: Start,
    tmp_path: Path,
) -> None:
    """Refused where results would come twice; a fresh checkpoint continues where they end."""
    hub.create(name)
    frame = read_stream(spark, name, cursor=name).select("payload")
    query = start(frame, LONG, tmp_path / "a")
    hub.append(name, numbers(0, 10))
    wait_for(hub, name, 10, query)
    query.stop()
    hub.append(name, numbers(10, 20))
    with pytest.raises(Exception, match="results up to 10 are stored.*start=cursor"):
        run(frame, f"{name}=out", tmp_path / "a")
    assert results(hub, name) == numbers(0, 10)
    shutil.rmtree(tmp_path / "a")
    fresh = read_stream(spark, name, cursor=name, start="cursor").select("payload")
    run(fresh, f"{name}=out", tmp_path / "b")
    assert results(hub, name) == numbers(0, 20)


def test_an_older_checkpoint_and_another_mode(
    hub: ThreadHub,
    spark: Any,
    name: str,
    start: Start,
    tmp_path: Path,
) -> None:
    """Micro-batches, then real time, then a copy of the checkpoint from before."""
    hub.create(name)
    hub.append(name, numbers(0, 10))
    frame = read_stream(spark, name).select("payload")
    run(frame, f"{name}=out", tmp_path / "now")
    shutil.copytree(tmp_path / "now", tmp_path / "older")
    query = start(frame, LONG, tmp_path / "now")
    hub.append(name, numbers(10, 20))
    wait_for(hub, name, 20, query)
    query.stop()
    with pytest.raises(Exception, match="begins at index 10 .* results up to 20 are stored"):
        run(frame, f"{name}=out", tmp_path / "older")
    shutil.rmtree(tmp_path / "older" / "offsets" / "1", ignore_errors=True)
    again = start(frame, LONG, tmp_path / "older")
    hub.append(name, numbers(20, 30))
    wait_for(hub, name, 30, again)
    again.stop()
    assert results(hub, name) == numbers(0, 30)


def test_a_batch_that_one_engine_stored_and_the_other_repeats(
    hub: ThreadHub, spark: Any, name: str, tmp_path: Path
) -> None:
    hub.create(name)
    frame = read_stream(spark, name).select("payload")
    for number, engine in enumerate(["python", "java", "python"]):
        hub.append(name, numbers(10 * number, 10 * number + 10))
        spark.conf.set("spark.datasource.headrace.engine", engine)
        if number:
            forget_commit(tmp_path)  # of the other engine
        run(frame, f"{name}=out", tmp_path)
    assert results(hub, name) == numbers(0, 30)


def test_a_pipeline_that_is_reset_after_real_time(
    hub: ThreadHub,
    spark: Any,
    name: str,
    tmp_path: Path,
) -> None:
    """Reset to its cursor it continues where its results end; to the earliest record, it starts over."""
    hub.create(name)
    hub.append(name, numbers(0, 10))
    port = open_port(hub.address)
    live = Pipeline(name, Sink("stream", f"{name}=out"), sources={"source": (name,)}, trigger=f"real time {LONG}")
    live = replace(live, transform=lambda frame: frame.select("payload"))
    runner = Runner(spark, port, home=tmp_path)
    query = runner.start(live)
    wait_for(hub, name, 10, query)
    runner.stop()
    reset(port, tmp_path, name, [name], None)
    micro = replace(live, trigger="available now")
    hub.append(name, numbers(10, 15))
    runner.start(micro)
    assert runner.watch()
    assert results(hub, name) == numbers(0, 15)
    reset(port, tmp_path, name, [name], "earliest")
    runner.start(micro)
    assert runner.watch()
    assert results(hub, name) == numbers(0, 15) + numbers(0, 15)
    port.close()
