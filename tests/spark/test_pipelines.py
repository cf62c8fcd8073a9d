"""Pipelines: as code, as SQL, and the built-in ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import lake
import pytest
from hubs import ThreadHub
from spark_support import forget_commit
from support.until import wait_until

from headrace.errors import BadRequest
from headrace.spark import read
from headrace.spark.errors import DataLoss, PipelineError
from headrace.spark.hub_client import HubPort, open_port
from headrace.spark.pipelines import builtin
from headrace.spark.pipelines.archive import Archive
from headrace.spark.pipelines.archive_storage import HadoopStorage
from headrace.spark.pipelines.checkpoints import checkpoint_of
from headrace.spark.pipelines.definition import Pipeline, console, load_file, parquet, pipeline, sql_pipeline
from headrace.spark.pipelines.failures import exception_name
from headrace.spark.pipelines.replay import history, replay
from headrace.spark.pipelines.report import Report
from headrace.spark.pipelines.runner import Runner, first_start, reset
from headrace.spark.query import bind

pytestmark = [pytest.mark.spark, pytest.mark.slow]
SCHEMA = "item STRING, price INT"


@pytest.fixture
def port(hub: ThreadHub) -> Any:
    opened = open_port(hub.address, wait_s=60)
    yield opened
    opened.close()


def orders(hub: ThreadHub, name: str, count: int = 10, partitions: int = 1) -> None:
    hub.create(name, partitions)
    for partition in range(partitions):
        payloads = [json.dumps({"item": f"i{number % 3}", "price": number}).encode() for number in range(count)]
        hub.append(name, payloads, partition=partition, types=["even" if n % 2 == 0 else "odd" for n in range(count)])


def run_once(spark: Any, port: HubPort, one: Pipeline, home: Path) -> list[Report]:
    """Run a pipeline until it has caught up."""
    seen: dict[str, Report] = {}
    runner = Runner(spark, port, home=home, on_progress=lambda all_: seen.update({p.name: p for p in all_}))
    runner.start(replace(one, trigger="available now"))
    assert runner.watch(), runner.failures
    # Late news would move a cursor that a test has reset. News for hubs of earlier tests take 30 s each to fail.
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(300_000)
    return list(seen.values())


def documents(hub: ThreadHub, stream: str) -> list[Any]:
    return [json.loads(one) for one in hub.payloads(stream)]


def test_a_function_is_a_pipeline(hub: ThreadHub, spark: Any, port: HubPort, name: str, tmp_path: Path) -> None:
    @pipeline(source=name, sink=f"{name}=dear", decode="json", schema=SCHEMA)
    def dear_orders(frame: Any) -> Any:
        """Orders above 6."""
        return frame.where("value.price > 6").selectExpr("value.item AS key", "value.price AS price")

    assert (dear_orders.name, dear_orders.description) == ("dear-orders", "Orders above 6.")
    dear = replace(dear_orders, name=name)
    orders(hub, name)
    (progress,) = run_once(spark, port, dear, tmp_path)
    assert documents(hub, f"{name}=dear") == [{"key": f"i{n % 3}", "price": n} for n in (7, 8, 9)]
    assert hub.table(f"{name}=dear")["key"].to_pylist() == [b"i1", b"i2", b"i0"]
    assert hub.cursor(name, name) == 10
    assert (progress.state, progress.rows, progress.lag) == ("done", 10, 0)
    orders(hub, name)
    run_once(spark, port, dear, tmp_path)
    assert len(documents(hub, f"{name}=dear")) == 6
    assert hub.call("pipeline.status", {"name": name})["report"]["rows"] == 10


def test_changed_code_goes_on_with_the_same_checkpoint(
    hub: ThreadHub, spark: Any, port: HubPort, name: str, tmp_path: Path
) -> None:
    orders(hub, name, 3)
    for word in ("before", "after"):
        one = sql_pipeline(name, f"SELECT '{word}' AS word, `index` FROM stream('{name}')", f"{name}=out")
        run_once(spark, port, one, tmp_path)
        hub.append(name, [b"{}"])
    found = [(one["word"], one["index"]) for one in documents(hub, f"{name}=out")]
    assert found == [("before", 0), ("before", 1), ("before", 2), ("after", 3)]


def test_reset_goes_on_at_the_cursor_or_begins_anew(
    hub: ThreadHub, spark: Any, port: HubPort, name: str, tmp_path: Path
) -> None:
    orders(hub, name, 3)
    one = sql_pipeline(name, f"SELECT `index` FROM stream('{name}')", f"{name}=out")
    assert first_start(port, one) == "earliest"
    run_once(spark, port, one, tmp_path)
    reset(port, tmp_path, name, [name], None)
    assert not checkpoint_of(tmp_path, name).exists()
    assert first_start(port, one) == "cursor"
    hub.append(name, [b"{}"])
    run_once(spark, port, one, tmp_path)
    assert [row["index"] for row in documents(hub, f"{name}=out")] == [0, 1, 2, 3]
    reset(port, tmp_path, name, ["*"], "2")
    assert first_start(port, one) == "cursor"
    run_once(spark, port, one, tmp_path)
    assert [row["index"] for row in documents(hub, f"{name}=out")] == [0, 1, 2, 3, 2, 3]
    reset(port, tmp_path, name, [name], "earliest")
    run_once(spark, port, one, tmp_path)
    assert [row["index"] for row in documents(hub, f"{name}=out")][6:] == [0, 1, 2, 3]


@pytest.mark.parametrize(("start", "words"), [("latest", "has no cursor"), ("cursor", "cannot be reset to")])
def test_resets_that_mean_nothing_change_nothing(
    hub: ThreadHub, port: HubPort, name: str, tmp_path: Path, start: str, words: str
) -> None:
    orders(hub, name, 1)
    checkpoint_of(tmp_path, name).mkdir(parents=True)
    with pytest.raises(BadRequest, match=words):
        reset(port, tmp_path, name, [name], start)
    assert checkpoint_of(tmp_path, name).exists()


def test_names_stay_inside_the_home(tmp_path: Path) -> None:
    names = ["../x", "a/../../b", "a b", "/etc", "..", ".", "a_b", "a/b", "a.b"]
    places = {checkpoint_of(tmp_path, name) for name in names}
    assert len(places) == len(names)
    assert {place.parent.parent for place in places} == {tmp_path}
    with pytest.raises(PipelineError):
        checkpoint_of(tmp_path, "")


def test_a_failure_shows_the_python_error_first_and_is_given_up(
    hub: ThreadHub, spark: Any, port: HubPort, name: str, tmp_path: Path
) -> None:
    orders(hub, name, 3)
    hub.run(hub.hub.trim(name, 2))
    one = sql_pipeline(name, f"SELECT payload FROM stream('{name}', start => 0)", f"{name}=out")
    runner = Runner(spark, port, home=tmp_path)
    runner.start(replace(one, trigger="available now"))
    assert not runner.watch()
    failure = runner.failures[name]
    assert exception_name(failure.headline) == "DataLoss"  # whichever engine it came from
    assert "indexes 0 to 1" in failure.headline
    status = hub.call("pipeline.status", {"name": name})
    assert status["state"] == "failed"
    assert "indexes 0 to 1" in status["report"]["error"]


def test_a_failure_that_passes_is_tried_again(
    hub: ThreadHub, spark: Any, port: HubPort, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.spark.pipelines.runner.RESTART_PAUSE_FIRST_S", 0.05)
    orders(hub, name, 3)
    marker = tmp_path / "failed"

    def fail_once(batches: Any) -> Any:
        for batch in batches:
            if not marker.exists():
                marker.touch()
                raise RuntimeError("passing trouble")
            yield batch

    def transform(frame: Any) -> Any:
        return frame.select("payload").mapInArrow(fail_once, "payload BINARY")

    one = Pipeline(name, builtin.Sink("stream", f"{name}=out"), {"source": (name,)}, transform)
    (progress,) = run_once(spark, port, one, tmp_path)
    assert progress.restarts == 1
    assert hub.payloads(f"{name}=out") == hub.payloads(name)


def test_a_running_pipeline_is_listed_and_can_be_stopped(
    hub: ThreadHub, spark: Any, port: HubPort, name: str, tmp_path: Path
) -> None:
    orders(hub, name, 3)
    runner = Runner(spark, port, home=tmp_path)
    query = runner.start(sql_pipeline(name, f"SELECT payload FROM stream('{name}')", f"{name}=out"))
    wait_until(lambda: query.lastProgress and hub.hub.streams(f"{name}=out"), "the first batch")
    runner.look()
    assert {one["name"]: one["state"] for one in hub.call("pipeline.list", {})}[name] == "running"
    hub.call("pipeline.stop", {"name": name})
    assert runner.watch()
    assert not query.isActive
    assert hub.call("pipeline.status", {"name": name})["state"] in ("stopped", "done")


def test_pipelines_in_sql_are_kept_at_the_hub(hub: ThreadHub, spark: Any, port: HubPort, name: str) -> None:
    from headrace.cli.pipeline_run import created

    hub.call("pipeline.create", {"name": name, "sql": "SELECT payload FROM stream('x')", "into": "y"})
    (one,) = created(port, name)
    assert (one.name, one.sources, one.sink.target) == (name, {"sql": ("x",)}, "y")
    hub.call("pipeline.delete", {"name": name})
    with pytest.raises(Exception, match="no pipeline"):
        created(port, name)


def test_sql_answers_now(hub: ThreadHub, spark: Any, name: str) -> None:
    orders(hub, name)
    text = f"""SELECT type, sum(value.price) AS total -- stream('nothing')
    FROM stream('{name}', decode => 'json', schema => '{SCHEMA}') GROUP BY type ORDER BY type"""
    assert [tuple(row) for row in bind(spark, text).collect()] == [("even", 20), ("odd", 25)]


def test_files_define_pipelines(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from headrace.spark import pipeline, console, parquet\n"
        "@pipeline(source='a', sink=console())\ndef one(df): return df\n"
        "@pipeline(source=['a', 'b'], sink=parquet('/x'), name='two/deep')\ndef two(df): return df\n"
    )
    found = load_file(file)
    assert [(one.name, one.sink) for one in found] == [("one", console()), ("two/deep", parquet("/x"))]
    empty = tmp_path / "empty.py"
    empty.write_text("x = 1\n")
    with pytest.raises(PipelineError, match="defines no pipeline"):
        load_file(empty)


def test_the_example_runs(hub: ThreadHub, spark: Any, port: HubPort, name: str, tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "orders_pipelines.py"
    dear, turnover, _ = (replace(one, name=f"{name}-{one.name}") for one in load_file(example))
    hub.create("orders")
    hub.append("orders", [b'{"item": "car", "price": 900}', b'{"item": "pear", "price": 1}', b"broken"])
    run_once(spark, port, dear, tmp_path)
    run_once(spark, port, turnover, tmp_path)
    (row,) = documents(hub, "orders.dear")
    assert (row["key"], row["price"]) == ("car", 900.0)


def test_two_sources_are_two_frames(hub: ThreadHub, spark: Any, port: HubPort, name: str, tmp_path: Path) -> None:
    orders(hub, f"{name}.l", 3)
    orders(hub, f"{name}.r", 2)

    @pipeline(source={"left": f"{name}.l", "right": f"{name}.r"}, sink=f"{name}=out", name=name)
    def joined(left: Any, right: Any) -> Any:
        return left.select("payload").unionByName(right.selectExpr("payload"))

    run_once(spark, port, joined, tmp_path)
    assert len(hub.payloads(f"{name}=out")) == 5


def test_merge_keeps_the_order_of_each_partition(
    hub: ThreadHub, spark: Any, port: HubPort, name: str, tmp_path: Path
) -> None:
    hub.create(f"{name}.a", 2)
    hub.create(f"{name}.b")
    for stream, partition in ((f"{name}.a", 0), (f"{name}.a", 1), (f"{name}.b", 0)):
        hub.append(stream, [f"{stream[-1]}{partition}-{n}".encode() for n in range(40)], partition=partition, types="t")
    one = replace(builtin.merge([f"{name}.a", f"{name}.b"], f"{name}=all"), records_per_batch_max=50)
    run_once(spark, port, one, tmp_path)
    table = hub.table(f"{name}=all")
    assert table["index"].to_pylist() == list(range(120))
    assert set(table["type"].to_pylist()) == {"t"}
    for origin in ("a0", "a1", "b0"):
        mine = [one.decode() for one in table["payload"].to_pylist() if one.decode().startswith(origin)]
        assert mine == [f"{origin}-{n}" for n in range(40)]
    with pytest.raises(PipelineError):
        builtin.merge(["x"], "x")


def test_route_by_type_and_by_rule(hub: ThreadHub, spark: Any, port: HubPort, name: str, tmp_path: Path) -> None:
    orders(hub, name)
    hub.append(name, [b"untyped"])
    run_once(spark, port, builtin.route(name, by_type=f"{name}.{{type}}", otherwise=f"{name}.rest"), tmp_path)
    assert len(hub.payloads(f"{name}.odd")) == len(hub.payloads(f"{name}.even")) == 5
    assert hub.payloads(f"{name}.rest") == [b"untyped"]
    rules = [("get_json_object(text, '$.price') > 7", f"{name}.dear"), ("type = 'odd'", f"{name}.cheap-odd")]
    run_once(spark, port, builtin.route(name, rules=rules, name=f"{name}-rules"), tmp_path)
    assert [one["price"] for one in documents(hub, f"{name}.dear")] == [8, 9]
    assert [one["price"] for one in documents(hub, f"{name}.cheap-odd")] == [1, 3, 5, 7]


def test_dead_letters_and_their_return(hub: ThreadHub, spark: Any, port: HubPort, name: str, tmp_path: Path) -> None:
    hub.create(name)
    sent = [b'{"item": "a", "price": 1}', b"\xff\x00broken", b'{"item": "b", "price": "x"}', b""]
    hub.append(name, sent, types=["t", "u", None, "v"], keys=[b"k", b"\xfe", None, b""], ids=[1, 2, None, 4])
    run_once(spark, port, builtin.dead_letter(name, SCHEMA, f"{name}=good"), tmp_path)
    assert hub.payloads(f"{name}=good") == sent[:1]
    letters = documents(hub, f"{name}.dead")
    assert [one["index"] for one in letters] == [1, 2, 3]
    assert [bool(one["reason"]) for one in letters] == [True] * 3
    assert letters[2]["reason"] == "the payload is empty"
    request = {"stream": f"{name}.dead", "before": 3, "into": f"{name}=again"}
    assert hub.call("dead.redrive", request)["count"] == 3
    with pytest.raises(BadRequest, match="no letters"):
        hub.call("dead.redrive", request)
    columns = ["payload", "type", "key", "id"]
    again = hub.table(f"{name}=again").select(columns).to_pylist()
    assert again == hub.table(name).select(columns).to_pylist()[1:]


def test_window_counts(hub: ThreadHub, spark: Any, port: HubPort, name: str, tmp_path: Path) -> None:
    hub.create(name)
    minute = 60_000_000
    times = [0, 1, 30_000_000, minute, minute + 5, 10 * minute]
    hub.append(name, [b"x"] * 6, event_times=times, types=["a", "b", "a", "a", "a", "a"])
    one = builtin.window_counts(name)
    run_once(spark, port, one, tmp_path)
    hub.append(name, [b"late"], event_times=[5], types="a")  # its window was closed by the watermark
    hub.append(name, [b"x"], event_times=[30 * minute], types=["z"])
    run_once(spark, port, one, tmp_path)
    found = {(row["start"], row["key"]): row["count"] for row in documents(hub, f"{name}.counts")}
    first, second = "1970-01-01T00:00:00.000Z", "1970-01-01T00:01:00.000Z"
    tenth = "1970-01-01T00:10:00.000Z"
    assert found == {(first, "a"): 2, (first, "b"): 1, (second, "a"): 2, (tenth, "a"): 1}
    assert len(documents(hub, f"{name}.counts")) == 4


def test_archive_holds_each_record_once(hub: ThreadHub, spark: Any, port: HubPort, name: str, tmp_path: Path) -> None:
    orders(hub, name, 50, 2)
    place = tmp_path / "lake"
    one = replace(builtin.archive([name], str(place), name=name), records_per_batch_max=30)
    run_once(spark, port, one, tmp_path)
    assert hub.cursor(name, name, 1) == 50
    assert lake.positions(place, name) == [(p, i) for p in range(2) for i in range(50)]
    days = {row.strftime("date=%Y-%m-%d") for row in hub.table(name)["time"].to_pylist()}
    assert {file.path.split("/")[-2] for file in Archive(place, spark).files(name)} == days
    rows = lake.table(place, name).to_pylist()
    stored = hub.table(name, 1).to_pylist()
    mine = [row for row in rows if row["partition"] == 1]
    assert [(row["payload"], row["type"], row["time"]) for row in mine] == [
        (row["payload"], row["type"], row["time"]) for row in stored
    ]
    # A batch that Spark runs again leaves no second copy.
    forget_commit(checkpoint_of(tmp_path, name))
    orders(hub, name, 5, 2)
    run_once(spark, port, one, tmp_path)
    assert lake.positions(place, name) == [(p, i) for p in range(2) for i in range(55)]


def test_two_archives_share_a_place(
    hub: ThreadHub, spark: Any, port: HubPort, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stores a batch while the other is in the middle of its own."""
    place = tmp_path / "lake"
    streams = [f"{name}-a", f"{name}-b"]
    for stream in streams:
        orders(hub, stream, 20)
    first, second = (Archive(str(place), spark, writer=stream) for stream in streams)
    real = first._written

    def interrupted(work: str) -> Any:
        second.store(read(spark, streams[1]), 0)
        return real(work)

    monkeypatch.setattr(first, "_written", interrupted)
    first.store(read(spark, streams[0]), 0)
    for stream in streams:
        assert lake.positions(place, stream) == [(0, i) for i in range(20)]
    assert sorted(path.name for path in place.iterdir()) == streams


def test_an_archive_that_was_reset_is_read_once(
    hub: ThreadHub, spark: Any, port: HubPort, name: str, tmp_path: Path
) -> None:
    """The new files begin in the middle of one that is there already."""
    orders(hub, name, 20)
    one = builtin.archive([name], str(tmp_path / "lake"), name=name)
    run_once(spark, port, one, tmp_path)
    reset(port, tmp_path, name, [name], "15")
    orders(hub, name, 10)
    run_once(spark, port, one, tmp_path)
    archive = Archive(tmp_path / "lake", spark)
    assert archive.ranges(name) == {0: (0, 30)}
    assert sorted(row["index"] for row in archive.frame(name).collect()) == list(range(30))


def test_small_files_are_joined(hub: ThreadHub, spark: Any, port: HubPort, name: str, tmp_path: Path) -> None:
    orders(hub, name, 60)
    place = tmp_path / "lake"
    one = replace(builtin.archive([name], str(place), name=name), records_per_batch_max=10)
    run_once(spark, port, one, tmp_path)
    archive = Archive(place, spark, join_files_min=3)
    assert len(archive.files(name)) == 6
    (directory,) = {file.path.rpartition("/")[0] for file in archive.files(name)}
    assert archive.join(directory) == 6
    assert len(archive.files(name)) == 1
    assert lake.positions(place, name) == [(0, i) for i in range(60)]


@pytest.mark.parametrize("kind", ["uri", "hadoop"])
def test_archive_wherever_spark_can_write(
    kind: str, hub: ThreadHub, spark: Any, port: HubPort, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A URI of this machine, and the way through Hadoop that leads to all others."""
    orders(hub, name, 4)
    place = tmp_path / "a lake"
    location = f"file://{tmp_path}/a%20lake" if kind == "uri" else f"file:{place}"
    if kind == "hadoop":
        monkeypatch.setattr(
            "headrace.spark.pipelines.archive.storage_of", lambda path, spark: (HadoopStorage(spark), path)
        )
    one = builtin.archive([name], location, name=name)
    run_once(spark, port, one, tmp_path)
    for _ in range(2):
        orders(hub, name, 4)
        run_once(spark, port, one, tmp_path)
    assert lake.positions(place, name) == [(0, i) for i in range(12)]
    archive = Archive(location, spark, join_files_min=3)
    assert archive.streams() == [name]
    assert archive.ranges(name) == {0: (0, 12)}
    (directory,) = {file.path.rpartition("/")[0] for file in archive.files(name)}
    assert archive.join(directory) == 3
    assert [row["index"] for row in archive.frame(name).collect()] == list(range(12))
    assert sorted(path.name for path in place.iterdir()) == [quote(name, safe="")]


def test_replay_takes_the_archive_and_the_log_together(
    hub: ThreadHub, spark: Any, port: HubPort, name: str, tmp_path: Path
) -> None:
    orders(hub, name, 40)
    place = tmp_path / "lake"
    run_once(spark, port, builtin.archive([name], str(place), name=f"{name}-archive"), tmp_path)
    orders(hub, name, 10)
    hub.run(hub.hub.trim(name, 25))

    @pipeline(source=name, sink=f"{name}=live", decode="json", schema=SCHEMA, name=name)
    def prices(frame: Any) -> Any:
        return frame.selectExpr("value.price AS price", "`index` AS at")

    with pytest.raises(DataLoss, match="0 to 24"):
        replay(spark, port, prices, f"{name}=new")
    with pytest.raises(PipelineError, match="writes live"):
        replay(spark, port, prices, f"{name}=live", archive=place)
    replay(spark, port, prices, f"{name}=new", archive=place)
    found = sorted((row["at"], row["price"]) for row in documents(hub, f"{name}=new"))
    assert found == [(n, n) for n in range(40)] + [(40 + n, n) for n in range(10)]
    assert hub.hub.streams(f"{name}=live") == []
    assert hub.cursor(name, name) is None
    part = history(spark, port, name, archive=place, start="20", end="30", reading={"columns": "type,payload"})
    assert part.columns == ["type", "payload"]
    assert part.count() == 10
    with pytest.raises(DataLoss, match="indexes 5 to 24"):
        history(spark, port, name, start="5")
    moved = history(spark, port, name, archive=place)
    hub.run(hub.hub.trim(name, 30))  # what was planned from the log is gone by now
    with pytest.raises(Exception, match="indexes 25 to 29"):
        moved.count()


def test_sql_is_replayed_like_code(hub: ThreadHub, spark: Any, port: HubPort, name: str, tmp_path: Path) -> None:
    """The archived half is decoded by the same rules as the half in the log, bad records too."""
    half = [b'{"item": "a", "price": 1}', b'{"item": "a", "price": "dear"}', b"not JSON", b'{"item": "b", "price": 2}']
    hub.create(name)
    hub.append(name, half, types=["sale"] * 4)
    hub.append(name, [b"{}"], types=["other"])
    place = tmp_path / "lake"
    run_once(spark, port, builtin.archive([name], str(place), name=f"{name}-archive"), tmp_path)
    hub.append(name, half, types=["sale"] * 4)
    hub.run(hub.hub.trim(name, 5))
    text = f"""SELECT value.price AS price, error IS NULL AS good FROM
    stream('{name}', decode => 'json', schema => '{SCHEMA}', types => 'sale', start => 'latest')"""
    one = sql_pipeline(name, text, f"{name}=live")
    replay(spark, port, one, f"{name}=new", archive=place)
    expected = [{"price": 1, "good": True}, {"good": False}, {"good": False}, {"price": 2, "good": True}]
    assert documents(hub, f"{name}=new") == expected * 2
    assert hub.hub.streams(f"{name}=live") == []
    replay(spark, port, one, f"{name}=late", start="5")
    assert documents(hub, f"{name}=late") == expected
    with pytest.raises(PipelineError, match="none exists"):
        replay(spark, port, sql_pipeline("x", "SELECT payload FROM stream('not-there')", "y"), "z")


def test_results_as_parquet(hub: ThreadHub, spark: Any, port: HubPort, name: str, tmp_path: Path) -> None:
    orders(hub, name, 10)

    @pipeline(source=name, sink=parquet(tmp_path / "out"), name=name)
    def plain(frame: Any) -> Any:
        return frame.select("index", "type")

    run_once(spark, port, plain, tmp_path)
    assert spark.read.parquet(str(tmp_path / "out")).count() == 10
    assert hub.cursor(name, name) == 10


def test_reading_while_being_written(hub: ThreadHub, spark: Any, port: HubPort, name: str) -> None:
    orders(hub, name, 10)
    frame = read(spark, name)
    hub.append(name, [b"{}"])
    assert frame.count() in (10, 11)
