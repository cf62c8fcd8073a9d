"""The examples for Spark, and what else its users expect of a source and a sink."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hubs import ThreadHub
from test_source import run

from headrace.spark import read_stream
from headrace.spark.hub_client import open_port
from headrace.spark.pipelines.checkpoints import checkpoint_of
from headrace.spark.pipelines.runner import Runner

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.usefixtures("engine")]
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_sessions_end_exactly_once_and_what_is_open_can_be_looked_at(
    hub: ThreadHub, spark: Any, name: str, tmp_path: Path
) -> None:
    example = runpy.run_path(str(EXAMPLES / "sessions.py"))
    sessions = replace(example["sessions"], name=name, sources={"source": (name,)}, trigger="available now")
    sessions = replace(sessions, sink=replace(sessions.sink, target=f"{name}=out"))
    hub.create(name)
    port = open_port(hub.address)
    clicks = [(b"ann", 1), (b"bob", 2), (b"ann", 3), (b"bob", 5), (b"ann", 4), (b"cleo", 60)]
    for user, second in clicks:
        hub.append(name, [b"click"], keys=[user], event_times=[second * 1_000_000])
    runner = Runner(spark, port, home=tmp_path)
    runner.start(sessions)
    assert runner.watch(), runner.failures
    assert sorted(hub.payloads(f"{name}=out")) == [b"ann 3", b"bob 2"]
    assert example["open_sessions"](spark, str(checkpoint_of(tmp_path, name))) == {"cleo": 1}
    port.close()


def test_arrow_functions_and_for_each_batch(hub: ThreadHub, spark: Any, name: str, tmp_path: Path) -> None:
    from pyspark.sql.pandas.functions import arrow_udf

    hub.create(name)
    hub.append(name, [b"pear", b"plum"])

    @arrow_udf("string")
    def shout(texts: pa.Array) -> pa.Array:
        return pc.utf8_upper(texts)

    batches: list[tuple[int, list[str]]] = []

    def keep(frame: Any, batch: int) -> None:
        batches.append((batch, [row.text for row in frame.collect()]))
        frame.selectExpr("text AS payload").write.format("headrace").mode("append").option(
            "stream", f"{name}=each"
        ).option("query", f"{name} {batch}").save()

    texts = read_stream(spark, name).selectExpr("cast(payload AS STRING) AS text").select(shout("text").alias("text"))
    run(texts.selectExpr("text AS payload"), f"{name}=out", tmp_path / "a")
    assert hub.payloads(f"{name}=out") == [b"PEAR", b"PLUM"]
    writer = texts.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "b"))
    writer.trigger(availableNow=True).start().awaitTermination(120)
    assert batches == [(0, ["PEAR", "PLUM"])]
    assert hub.payloads(f"{name}=each") == [b"PEAR", b"PLUM"]
