"""Streams as DataFrames."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hubs import ThreadHub
from spark_support import ENGINES
from support.until import wait_until

from headrace.spark import read, read_stream

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.usefixtures("engine"),
    pytest.mark.parametrize("engine", ENGINES, indirect=True),
]


def fill(hub: ThreadHub, stream: str, count: int = 100, partitions: int = 2) -> None:
    hub.create(stream, partitions)
    for partition in range(partitions):
        hub.append(
            stream,
            [b'{"n": %d}' % number for number in range(count)],
            partition=partition,
            types=["odd" if number % 2 else "even" for number in range(count)],
            keys=[b"k%d" % (number % 3) for number in range(count)],
            ids=[number + partition * 1000 for number in range(count)],
            event_times=[number * 1_000_000 for number in range(count)],
        )


def run(frame: Any, sink: str, checkpoint: Path | str, **options: Any) -> Any:
    """Run a streaming frame until it has caught up, into memory or a stream."""
    writer = frame.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    if sink.startswith("memory:"):
        writer = writer.format("memory").queryName(sink[7:])
    else:
        writer = writer.format("headrace").option("stream", sink)
    for name, value in options.items():
        writer = writer.option(name, value)
    query = writer.start()
    query.awaitTermination(120)
    assert not query.isActive
    return query


def test_every_column_of_every_partition(hub: ThreadHub, spark: Any, name: str) -> None:
    fill(hub, name)
    rows = read(spark, name).orderBy("partition", "index").collect()
    assert [(row.partition, row["index"]) for row in rows] == [(p, i) for p in range(2) for i in range(100)]
    stored = hub.table(name, 1).to_pylist()
    for row, expected in zip(rows[100:], stored, strict=True):
        assert (bytes(row.payload), bytes(row.key), row.type, row.id) == (
            expected["payload"], expected["key"], expected["type"], expected["id"],
        )  # fmt: skip
        assert row.event_time.replace(tzinfo=UTC) == expected["event_time"]
        assert row.time.replace(tzinfo=UTC) == expected["time"]
        assert row.stream == name


def test_batch_and_streaming_give_the_same_rows(hub: ThreadHub, spark: Any, name: str, tmp_path: Path) -> None:
    fill(hub, name)
    frame = read_stream(spark, name, max_records_per_batch=30)
    query = run(frame, "memory:same", tmp_path)
    batches = [one for one in query.recentProgress if one["numInputRows"]]
    assert [one["numInputRows"] for one in batches] == [30, 30, 30, 30, 30, 30, 20]
    columns = ["partition", "index", "type", "id", "payload", "time"]
    assert (
        spark.table("same").select(columns).orderBy("partition", "index").collect()
        == read(spark, name).select(columns).orderBy("partition", "index").collect()
    )


def test_starts_and_ends(hub: ThreadHub, spark: Any, name: str) -> None:
    hub.create(name)
    hub.append(name, [b"old"] * 5)
    middle = datetime.now(UTC)
    wait_until(lambda: datetime.now(UTC) > middle, "the clock")
    hub.append(name, [b"new"] * 5)

    def indexes(**options: Any) -> list[int]:
        return sorted(row["index"] for row in read(spark, name, columns="index", **options).collect())

    assert indexes(start=3, end=8) == [3, 4, 5, 6, 7]
    assert indexes(start=middle.isoformat()) == [5, 6, 7, 8, 9]
    assert indexes(end=middle.isoformat()) == [0, 1, 2, 3, 4]
    assert indexes(start="latest") == []
    assert indexes(end=10**6) == list(range(10))


def test_filters_reach_the_planner(hub: ThreadHub, spark: Any, name: str) -> None:
    fill(hub, name)
    frame = read(spark, name)
    found = frame.where("index >= 90 AND index < 95 AND partition = 1 AND type = 'odd'")
    assert sorted(row["index"] for row in found.collect()) == [91, 93]
    plan = found._jdf.queryExecution().executedPlan().toString()
    assert "index" not in plan.partition("Filter")[2].partition("\n")[0]
    last = frame.agg({"time": "max"}).collect()[0][0]
    assert frame.where(frame.time > last).count() == 0
    assert frame.where(frame.time >= last).count() > 0


def test_types_and_columns_where_spark_pushes_nothing_down(
    hub: ThreadHub, spark: Any, name: str, tmp_path: Path
) -> None:
    fill(hub, name)
    frame = read_stream(spark, name, types="odd", columns="index,type", partitions="1", cursor=name)
    assert frame.columns == ["index", "type"]
    run(frame, "memory:odd", tmp_path)
    assert sorted(row["index"] for row in spark.table("odd").collect()) == list(range(1, 100, 2))
    wait_until(lambda: hub.cursor(name, name, 1) == 100, what="the cursor")
    assert hub.cursor(name, name, 0) is None


def test_decoding(hub: ThreadHub, spark: Any, name: str) -> None:
    hub.create(name)
    hub.append(name, [b'{"n": 1, "at": "2026-01-02T03:04:05Z", "deep": {"list": [1, 2]}}', b"broken", b'{"n": "x"}'])
    schema = "n INT, at TIMESTAMP, deep STRUCT<list: ARRAY<INT>>"
    good, *bad = read(spark, name, decode="json", schema=schema).orderBy("index").collect()
    assert (good.value.n, good.value.deep.list, good.error) == (1, [1, 2], None)
    assert good.value.at == datetime(2026, 1, 2, 3, 4, 5)
    assert all(row.value is None and row.error and bytes(row.payload) for row in bad)
    strict = read(spark, name, decode="json", schema="n INT NOT NULL, other STRING NOT NULL").orderBy("index").collect()
    assert strict[0].error == "field 'other' is missing"
    assert read(spark, name, decode="string").orderBy("index").collect()[1].payload == "broken"


def test_nulls_empty_payloads_and_large_ones(hub: ThreadHub, spark: Any, name: str) -> None:
    hub.create(name)
    hub.append(name, [b""])
    hub.append(name, [b"L" * (16 << 20)])
    empty, large = read(spark, name).orderBy("index").collect()
    assert (empty.payload, empty.key, empty.type, empty.id, empty.event_time) == (b"", None, None, None, None)
    assert len(large.payload) == 16 << 20


def test_unsigned_ids_keep_their_bits(hub: ThreadHub, spark: Any, name: str) -> None:
    hub.create(name)
    hub.append(name, [b"x"], ids=[2**64 - 1])
    assert read(spark, name).collect()[0].id == -1


def test_patterns_and_lists(hub: ThreadHub, spark: Any, name: str) -> None:
    for suffix in ("a", "b", "c"):
        hub.create(f"{name}.{suffix}")
        hub.append(f"{name}.{suffix}", [suffix.encode()])
    assert {row.stream for row in read(spark, f"{name}.*").collect()} == {f"{name}.{one}" for one in "abc"}
    assert {row.stream for row in read(spark, f"{name}.a", f"{name}.c").collect()} == {f"{name}.a", f"{name}.c"}


def test_a_stream_that_does_not_exist_is_named(hub: ThreadHub, spark: Any, name: str) -> None:
    with pytest.raises(Exception, match="UnknownStream: stream 'nothing-here' does not exist"):
        read(spark, "nothing-here").count()


def test_an_empty_stream(hub: ThreadHub, spark: Any, name: str, tmp_path: Path) -> None:
    hub.create(name)
    assert read(spark, name).count() == 0
    run(read_stream(spark, name), "memory:empty", tmp_path)
    assert spark.table("empty").count() == 0


def test_streams_and_partitions_that_come_later(hub: ThreadHub, spark: Any, name: str, tmp_path: Path) -> None:
    frame = read_stream(spark, f"{name}.*", f"{name}-named")
    run(frame, "memory:later0", tmp_path)
    hub.create(f"{name}.one")
    hub.append(f"{name}.one", [b"1"])
    hub.create(f"{name}-named")
    hub.append(f"{name}-named", [b"named"])
    run(frame, f"{name}=out", tmp_path / "b")
    hub.run(hub.hub.grow_stream(f"{name}.one", 3))
    hub.append(f"{name}.one", [b"2"], partition=2)
    hub.create(f"{name}.two")
    hub.append(f"{name}.two", [b"3"])
    run(frame, f"{name}=out", tmp_path / "b")
    assert sorted(hub.payloads(f"{name}=out")) == [b"1", b"2", b"3", b"named"]


def test_trimmed_records_are_never_passed_over_in_silence(
    hub: ThreadHub, spark: Any, name: str, tmp_path: Path
) -> None:
    fill(hub, name, 20, 1)
    run(read_stream(spark, name, max_records_per_batch=10), f"{name}=out", tmp_path)
    hub.append(name, [b"more"] * 10)
    hub.run(hub.hub.trim(name, 25))
    with pytest.raises(Exception, match=r"indexes 20 to 24 .* first index kept is 25"):
        run(read_stream(spark, name), f"{name}=out", tmp_path)
    with pytest.raises(Exception, match="indexes 3 to 24"):
        read(spark, name, start=3).count()
    assert read(spark, name, start=3, fail_on_data_loss=False).count() == 5
    assert read(spark, name).count() == 5
    run(read_stream(spark, name, fail_on_data_loss=False), f"{name}=out", tmp_path)
    assert hub.bounds(f"{name}=out") == (0, 25)


def test_latest_begins_with_what_comes_after_the_start(hub: ThreadHub, spark: Any, name: str, tmp_path: Path) -> None:
    fill(hub, name, 10, 1)
    frame = read_stream(spark, name, start="latest")
    run(frame, f"{name}=out", tmp_path)
    hub.append(name, [b"new"])
    run(frame, f"{name}=out", tmp_path)
    assert hub.payloads(f"{name}=out") == [b"new"]


def test_ten_thousand_tiny_appends(hub: ThreadHub, spark: Any, name: str) -> None:
    from headrace.log.batch import Batch

    hub.create(name)

    async def append() -> None:
        last = None
        for number in range(10_000):
            last = hub.hub.append(name, Batch.one(b"%d" % number))
            if hub.hub.congested:
                await hub.hub.drained()
        assert last is not None
        await last

    hub.run(append())
    assert read(spark, name).selectExpr("sum(cast(cast(payload AS STRING) AS INT))").collect()[0][0] == 49_995_000


def scan_metrics(frame: Any) -> dict[str, int]:
    """What Spark's UI shows of the scan of a frame, after it was read."""
    frame.collect()
    metrics = frame._jdf.queryExecution().executedPlan().collectLeaves().head().metrics()
    return {name: metrics.apply(name).value() for name in ("mappedRecords", "sentRecords", "recordBytes")}


def test_sealed_segments_are_read_by_memory_map(spark: Any, tmp_path: Path, engine: str) -> None:
    hub = ThreadHub(tmp_path / "data", seal_age_s=0.0, maintenance_interval_s=0.05, merge_segments_min=10**6)
    try:
        hub.create("s")
        hub.append("s", [b"%d" % number for number in range(50_000)])
        wait_until(lambda: hub.hub.segments("s") and hub.hub.segments("s")[-1].next == 50_000, "sealing")
        hub.append("s", [b"%d" % number for number in range(50_000, 50_100)])
        frame = read(spark, "s", hub=hub.address, split_records=1000)
        total = frame.selectExpr("count(*)", "sum(cast(cast(payload AS STRING) AS BIGINT))", "max(index)")
        assert tuple(total.collect()[0]) == (50_100, sum(range(50_100)), 50_099)
        assert frame.rdd.getNumPartitions() > 2
        plain = read(spark, "s", hub=hub.address, memory_map=False)
        assert plain.count() == 50_100
        assert plain.where("index = 49999").collect()[0].payload == b"49999"
        if engine == "java":
            shown = scan_metrics(frame.select("payload"))
            assert shown["mappedRecords"] >= 50_000
            assert shown["mappedRecords"] + shown["sentRecords"] == 50_100
            assert shown["recordBytes"] > 50_100 * len("50000")
            assert scan_metrics(plain.select("payload"))["sentRecords"] == 50_100
    finally:
        hub.close()


def test_progress_shows_the_lag(hub: ThreadHub, spark: Any, name: str, tmp_path: Path, engine: str) -> None:
    from headrace.spark.pipelines.report import Report

    fill(hub, name, 50, 1)
    query = run(read_stream(spark, name, max_records_per_batch=20), "memory:lag", tmp_path)
    progress = Report(name)
    progress.take(query.recentProgress[0])
    assert progress.lag == 30
    if engine == "java":
        lags = query.recentProgress[0]["sources"][0]["metrics"]
        assert (lags["recordsBehind"], lags[f"recordsBehind {name}/0"]) == ("30", "30")
    for one in query.recentProgress:
        progress.take(one)
    assert (progress.lag, progress.rows) == (0, 50)
