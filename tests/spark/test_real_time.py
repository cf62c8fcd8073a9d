"""Real-time mode: results while a batch runs, exactly once, and the plans that cannot have them so."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hubs import ThreadHub
from live_queries import WAIT_S, Start, failure, results, wait_for
from support.until import wait_until

from headrace.spark import read_stream
from headrace.spark.hub.result_ends import producer_name

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.needs("javac"), pytest.mark.usefixtures("engine")]


def test_a_record_becomes_none_one_or_many_rows_and_a_restart_goes_on(
    hub: ThreadHub, spark: Any, name: str, start: Start
) -> None:
    """The first batch never ends: what Spark knows is its start, what the hub knows is where the results end."""
    hub.create(name)
    counts = [0, 1, 3, 0, 0, 1, 700, 2, 0, 1]
    expected = [b"%d" % count for count in counts for _ in range(count)]
    frame = read_stream(spark, name).selectExpr(
        "explode(array_repeat(payload, cast(cast(payload AS STRING) AS INT))) AS payload"
    )
    query = start(frame, "10 minutes")
    for number, count in enumerate(counts):
        hub.append(name, [b"%d" % count])
        if number % 3 == 2:
            wait_for(hub, name, sum(counts[: number + 1]), query)
    wait_for(hub, name, len(expected), query)
    query.stop()
    hub.append(name, [b"2"])
    again = start(frame, "10 minutes")
    wait_for(hub, name, len(expected) + 2, again)
    again.stop()
    assert results(hub, name) == [*expected, b"2", b"2"]
    ((producer, sequence),) = hub.hub.producers(f"{name}=out").items()
    # The task of a query that is stopped lives a moment longer, and may still take the last record.
    assert producer in {producer_name(query.id, run, name, 0) for run in (query.runId, again.runId)}
    assert sequence == len(counts) + 1


def test_batches_follow_each_other_and_an_old_checkpoint_does_no_harm(
    hub: ThreadHub, spark: Any, name: str, start: Start, tmp_path: Path
) -> None:
    hub.create(name)
    frame = read_stream(spark, name, cursor=name).select("payload")
    query = start(frame, checkpoint=tmp_path / "now")
    sent = 0
    while len([one for one in query.recentProgress if one["batchId"] >= 1]) < 1:
        hub.append(name, [b"%d" % sent])
        sent += 1
        wait_for(hub, name, sent, query)
        if sent == 1:
            shutil.copytree(tmp_path / "now", tmp_path / "older")
    wait_until(lambda: (hub.cursor(name, name) or 0) > 0, "the cursor", WAIT_S)
    query.stop()
    older = start(frame, checkpoint=tmp_path / "older")
    hub.append(name, [b"last"])
    wait_for(hub, name, sent + 1, older)
    older.stop()
    assert results(hub, name) == [*(b"%d" % number for number in range(sent)), b"last"]


def test_the_older_of_two_drivers_is_fenced(hub: ThreadHub, spark: Any, name: str, start: Start) -> None:
    """The newer one is a hub's caller here: `test_kill.py` has two processes."""
    hub.create(name)
    query = start(read_stream(spark, name).select("payload"), "10 minutes")
    hub.append(name, [b"a"])
    wait_for(hub, name, 1, query)
    begin = {"query": query.id, "run": "newer", "batch": 0, "stream": f"{name}=out"}
    answer = hub.call("spark.begin", begin | {"sources": [{"cursor": None, "stream": name, "next": [0]}]})
    assert answer[0]["next"] == [1]
    hub.append(name, [b"b"])
    assert "Fenced" in failure(query)
    assert results(hub, name) == [b"a"]


def test_types_and_partitions(hub: ThreadHub, spark: Any, name: str, start: Start) -> None:
    hub.create(name, 2)
    query = start(read_stream(spark, name, types="x", partitions="1").select("payload"), "10 minutes")
    hub.append(name, [b"elsewhere"], types=["x"])
    hub.append(name, [b"1", b"2", b"3", b"4"], types=["y", "x", "y", "x"], partition=1)
    wait_for(hub, name, 2, query)
    query.stop()
    assert results(hub, name) == [b"2", b"4"]


def test_several_streams_and_partitions_in_one_step_and_a_restart_goes_on(
    hub: ThreadHub, spark: Any, name: str, start: Start
) -> None:
    """Each record has a result in two streams, of which one has two partitions. What a killed batch stored counts."""
    hub.create(name)
    hub.create(f"{name}=a", 2)
    frame = read_stream(spark, name).selectExpr(
        f"explode(array('{name}=a', '{name}=b')) AS to", "payload", "payload AS key"
    )
    sent: list[bytes] = []
    ids = set()
    for _ in range(2):
        query = start(frame, "10 minutes", stream="", streamColumn="to")
        ids.add(query.id)
        for _ in range(3):
            more = [b"%d" % (len(sent) + number) for number in range(20)]
            hub.append(name, more)
            sent += more
            wait_for(hub, name, len(sent), query, to=f"{name}=b")
        query.stop()
    assert len(ids) == 1
    assert hub.payloads(f"{name}=b") == sent
    halves = [hub.payloads(f"{name}=a", partition) for partition in range(2)]
    assert all(half == sorted(half, key=int) for half in halves)
    assert sorted(halves[0] + halves[1], key=int) == sent
    assert min(map(len, halves)) > 20
    assert producer_name(query.id, query.runId, name, 0) in hub.hub.producers("spark/sinks")


def test_with_state_results_are_keyed_updates(hub: ThreadHub, spark: Any, name: str, start: Start) -> None:
    hub.create(name)
    spark.conf.set("spark.sql.shuffle.partitions", "1")  # two slots: one reads, one counts
    try:
        counts = read_stream(spark, name).groupBy("type").count()
        frame = counts.selectExpr("cast(count AS STRING) AS payload", "type AS key")
        query = start(frame, "10 minutes")
        hub.append(name, [b"."] * 5, types=["a", "b", "a", "a", "b"])
        wait_until(lambda: {b"2", b"3"} <= set(results(hub, name)), "the counts", WAIT_S)
        query.stop()
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    table = hub.table(f"{name}=out")
    last = dict(zip(table["key"].to_pylist(), table["payload"].to_pylist(), strict=True))
    assert last == {b"a": b"3", b"b": b"2"}


def test_plans_and_options_that_cannot_be_met_are_refused(hub: ThreadHub, spark: Any, name: str, start: Start) -> None:
    from pyspark.sql import functions as F

    for stream in (name, f"{name}-b"):
        hub.create(stream)
        hub.append(stream, [b"x"])
    one = read_stream(spark, name).select("payload")
    shout = F.udf(lambda payload: bytes(payload).upper(), "binary")
    wide = read_stream(spark, f"{name}*").select("payload")
    hub.create(f"{name}-c")
    refused = [
        (one.select(shout("payload").alias("payload")), {}, "EvalPythonExec"),
        (one.repartition(1), {}, "ShuffleExchangeExec"),
        (one.union(read_stream(spark, f"{name}-b").select("payload")), {}, "one source; this one has 2|UnionExec"),
        (wide, {}, "this one has 3, and there are 2 slots"),
        (one, {"delivery": "staged"}, "delivery=staged needs micro-batches"),
        (one, {"delivery": "twice"}, "one of staged, once, direct"),
    ]
    for number, (frame, options, problem) in enumerate(refused):
        query = start(frame, checkpoint=Path(hub.data).parent / f"{name}-{number}", **options)
        text = failure(query)
        assert any(part in text for part in problem.split("|")), text
    assert results(hub, name) == []


def test_the_slots_are_those_of_all_queries(
    hub: ThreadHub, spark: Any, name: str, start: Start, tmp_path: Path
) -> None:
    """Two slots: one query holds one of them until it ends, and only then is there room for one with two tasks."""
    hub.create(name)
    hub.create(f"{name}-b", 2)
    hub.append(name, [b"a"])
    one = start(read_stream(spark, name).select("payload"), "10 minutes")
    wait_for(hub, name, 1, one)
    wide = read_stream(spark, f"{name}-b").select("payload")
    refused = start(wide, checkpoint=tmp_path / "b", stream=f"{name}=out")
    assert "this one has 2, other real-time queries hold 1, and there are 2 slots" in failure(refused)
    one.stop()
    hub.append(f"{name}-b", [b"b"], partition=1)
    again = start(wide, "10 minutes", checkpoint=tmp_path / "b")
    wait_for(hub, name, 2, again)
    again.stop()
