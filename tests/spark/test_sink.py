"""DataFrames into streams, exactly once."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from hubs import ThreadHub
from spark_support import ENGINES, forget_commit
from support.until import wait_until
from test_source import fill, run

from headrace.spark import read_stream, to_records

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.usefixtures("engine"),
    pytest.mark.parametrize("engine", ENGINES, indirect=True),
]


def test_a_batch_write_is_one_append(hub: ThreadHub, spark: Any, name: str) -> None:
    frame = spark.range(1000).repartition(3).selectExpr(
        "cast(id AS STRING) AS payload", "cast(id % 5 AS STRING) AS key", "'t' AS type", "id",
        "timestamp_seconds(id) AS event_time",
    )  # fmt: skip
    frame.write.format("headrace").mode("append").option("stream", name).save()
    table = hub.table(name)
    assert sorted(table["id"].to_pylist()) == list(range(1000))
    row = table.slice(17, 1).to_pylist()[0]
    assert row["payload"] == str(row["id"]).encode()
    assert row["key"] == str(row["id"] % 5).encode()
    assert row["event_time"].timestamp() == row["id"]
    assert len(set(table["time"].to_pylist())) == 1


def test_keys_choose_the_partition(hub: ThreadHub, spark: Any, name: str) -> None:
    hub.create(name, 4)
    frame = spark.range(400).selectExpr("cast(id AS STRING) AS payload", "cast(id % 20 AS STRING) AS key")
    frame.write.format("headrace").mode("append").option("stream", name).save()
    keys = [set(hub.table(name, partition)["key"].to_pylist()) for partition in range(4)]
    assert sum(len(one) for one in keys) == 20
    assert sum(hub.table(name, partition).num_rows for partition in range(4)) == 400


def test_what_cannot_be_records_is_refused_before_it_runs(hub: ThreadHub, spark: Any, name: str) -> None:
    for frame, why in (
        (spark.range(3), "payload"),
        (spark.range(3).selectExpr("'x' AS payload", "id AS colour"), "colour"),
    ):
        with pytest.raises(Exception, match=why):
            frame.write.format("headrace").mode("append").option("stream", name).save()
    with pytest.raises(Exception, match="only grows"):
        spark.range(3).selectExpr("'x' AS payload").write.format("headrace").mode("overwrite").option(
            "stream", name
        ).save()
    assert hub.hub.streams(name) == []


def test_any_frame_becomes_json_records(hub: ThreadHub, spark: Any, name: str) -> None:
    frame = to_records(spark.sql("SELECT 'a' AS key, 7 AS n, named_struct('x', 1) AS deep, 't' AS type"))
    frame.write.format("headrace").mode("append").option("stream", name).save()
    (row,) = hub.table(name).to_pylist()
    assert json.loads(row["payload"]) == {"key": "a", "n": 7, "deep": {"x": 1}, "type": "t"}
    assert (row["key"], row["type"]) == (b"a", "t")


def test_a_batch_that_spark_forgot_is_stored_once(hub: ThreadHub, spark: Any, name: str, tmp_path: Path) -> None:
    fill(hub, name, 100, 1)
    frame = read_stream(spark, name, max_records_per_batch=30, cursor="c")
    run(frame, f"{name}=out", tmp_path)
    assert forget_commit(tmp_path) == 3
    hub.append(name, [b"more"] * 5)
    run(frame, f"{name}=out", tmp_path)
    assert hub.payloads(f"{name}=out") == hub.payloads(name)


def test_a_checkpoint_on_a_file_system_that_only_spark_knows(
    hub: ThreadHub, spark: Any, name: str, tmp_path: Path
) -> None:
    """As on HDFS or S3: Java reads the planned offsets through Hadoop, and Python knows a batch by its rows."""
    lake = uuid.uuid4().hex
    spark._jsc.hadoopConfiguration().set(f"fs.viewfs.mounttable.{lake}.link./checkpoints", tmp_path.as_uri())
    checkpoint = f"viewfs://{lake}/checkpoints/query"
    fill(hub, name, 20, 1)
    frame = read_stream(spark, name).select("payload")
    run(frame, f"{name}=out", checkpoint)
    forget_commit(tmp_path / "query")
    hub.append(name, [b"more"])
    for _ in range(2):
        run(frame, f"{name}=out", checkpoint)
    assert hub.payloads(f"{name}=out") == hub.payloads(name)


def test_rows_that_differ_on_replay_are_still_stored_once(
    hub: ThreadHub, spark: Any, name: str, tmp_path: Path
) -> None:
    fill(hub, name, 20, 1)
    frame = read_stream(spark, name).selectExpr("cast(rand() AS STRING) AS payload")
    run(frame, f"{name}=out", tmp_path)
    before = hub.payloads(f"{name}=out")
    forget_commit(tmp_path)
    run(frame, f"{name}=out", tmp_path)
    assert hub.payloads(f"{name}=out") == before


def test_a_checkpoint_that_went_back_is_refused(hub: ThreadHub, spark: Any, name: str, tmp_path: Path) -> None:
    fill(hub, name, 20, 1)
    frame = read_stream(spark, name)
    run(frame, f"{name}=out", tmp_path)
    last = forget_commit(tmp_path)
    for path in (tmp_path / "offsets").glob(f"*{last}*"):
        path.unlink()
    hub.append(name, [b"more"] * 5)
    with pytest.raises(Exception, match=f"batch {last} is offered with digest"):
        run(frame, f"{name}=out", tmp_path)
    assert hub.bounds(f"{name}=out") == (0, 20)


def test_a_fresh_checkpoint_goes_on_where_the_results_end(
    hub: ThreadHub, spark: Any, name: str, tmp_path: Path
) -> None:
    fill(hub, name, 20, 2)
    run(read_stream(spark, name, cursor="go-on"), f"{name}=out", tmp_path / "a")
    hub.append(name, [b"more"])
    run(read_stream(spark, name, cursor="go-on", start="cursor"), f"{name}=out", tmp_path / "b")
    assert sorted(hub.payloads(f"{name}=out")) == sorted(hub.payloads(name) + hub.payloads(name, 1))


def test_every_completed_batch_moves_the_cursor_also_the_last(
    hub: ThreadHub, spark: Any, name: str, tmp_path: Path
) -> None:
    hub.create(name, 2)
    frame = read_stream(spark, name, cursor=name)
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    for count in (3, 4):
        hub.append(name, [b"x"] * count, partition=1)
        wait_until(lambda: hub.cursor(name, name, 1) == hub.bounds(name, 1)[1], "the cursor to follow")
    assert hub.cursor(name, name, 1) == 7
    query.stop()


def test_processed_acknowledgements_wait_for_the_query(hub: ThreadHub, spark: Any, name: str, tmp_path: Path) -> None:
    hub.create(name, ack=f"processed:{name}")
    hub.append(name, [b"x"] * 3)
    waiting = hub.start(hub.hub.acknowledged(name, 3))
    assert not waiting.done()
    frame = read_stream(spark, name, cursor=name)
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    waiting.result(60)
    query.stop()


def test_a_task_that_fails_is_run_again_and_counts_once(spark: Any, hub: ThreadHub, name: str, tmp_path: Path) -> None:
    """A part that was staged by an attempt which then failed is not stored."""
    marker = tmp_path / "failed-once"

    def fail_once(batches: Any) -> Any:
        yield from batches
        if not marker.exists():
            marker.touch()
            raise RuntimeError("this attempt fails at its end")

    frame = spark.range(100).selectExpr("cast(id AS STRING) AS payload").mapInArrow(fail_once, "payload STRING")
    with pytest.raises(Exception, match="fails at its end"):
        frame.write.format("headrace").mode("append").option("stream", name).save()
    assert hub.hub.streams(name) == [] or hub.bounds(name) == (0, 0)
    frame.write.format("headrace").mode("append").option("stream", name).save()
    assert sorted(int(one) for one in hub.payloads(name)) == list(range(100))


def test_a_named_batch_write_may_be_repeated(hub: ThreadHub, spark: Any, name: str) -> None:
    def load(count: int) -> None:
        frame = spark.range(count).repartition(2).selectExpr("cast(id AS STRING) AS payload")
        frame.write.format("headrace").mode("append").option("stream", name).option("query", f"load {name}").save()

    load(50)
    load(50)
    assert hub.bounds(name) == (0, 50)
    with pytest.raises(Exception, match="was stored with digest"):
        load(51)
    assert hub.bounds(name) == (0, 50)


def test_rows_to_many_streams_at_once(hub: ThreadHub, spark: Any, name: str) -> None:
    frame = spark.range(90).selectExpr("cast(id AS STRING) AS payload", f"concat('{name}.', id % 3) AS place")
    frame.write.format("headrace").mode("append").option("streamColumn", "place").save()
    for number in range(3):
        assert sorted(int(one) % 3 for one in hub.payloads(f"{name}.{number}")) == [number] * 30


def test_the_largest_record_goes_through(hub: ThreadHub, spark: Any, name: str, tmp_path: Path) -> None:
    hub.create(name)
    largest = b"L" * (16 << 20)
    hub.append(name, [b"before", largest, b"after"])
    run(read_stream(spark, name), f"{name}=out", tmp_path)
    assert [len(one) for one in hub.payloads(f"{name}=out")] == [6, 16 << 20, 5]
    assert hub.payloads(f"{name}=out")[1] == largest


def test_a_batch_larger_than_a_transaction(spark: Any, tmp_path: Path) -> None:
    hub = ThreadHub(tmp_path, batch_bytes_max=1 << 20, record_bytes_max=1 << 20)
    try:
        frame = spark.range(40_000).selectExpr("concat(lpad(cast(id AS STRING), 100, '0')) AS payload").coalesce(1)
        frame.write.format("headrace").mode("append").option("hub", hub.address).option("stream", "big").save()
        assert [int(one) for one in hub.payloads("big")] == list(range(40_000))
    finally:
        hub.close()


def test_the_hub_may_restart_under_a_running_query(spark: Any, tmp_path: Path) -> None:
    hub = ThreadHub(tmp_path / "data")
    address = hub.address
    hub.create("in")
    frame = read_stream(spark, "in", hub=address, cursor="c")
    writer = frame.writeStream.format("headrace").option("stream", "out").option("hub", address)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        for round_ in range(3):
            hub.append("in", [b"%d-%d" % (round_, number) for number in range(50)])
            wait_until(lambda hub=hub: hub.hub.streams("out") and hub.bounds("out")[1] > 0, "results")
            hub.close()
            hub = ThreadHub(tmp_path / "data", address=address)
        wait_until(lambda: hub.bounds("out")[1] == 150, "everything")
        assert query.isActive
        assert hub.payloads("out") == hub.payloads("in")
    finally:
        query.stop()
        hub.close()
