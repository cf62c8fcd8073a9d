"""Spark over Headrace, beside Spark over Parquet, a row-wise Python source and, if asked for, Kafka, in one run.

    python benchmarks/bench_spark.py [scan] [streaming] [latency] [latencies] [sustained] [--engine java|python]
                                     [--trigger 'real time'] [--transform counted] [--kafka]

`streaming` takes a stream from its beginning to its end (`availableNow`). `latencies` is four latencies in one run,
with the Java engine (`--load` for some of them): micro-batches; real time; a window count in real time; and real time
at 50,000/s, where the records without a result must not become more. With `--kafka` hub and broker take turns in the
first three: one Kafka broker and Spark's own connector, which Maven fetches once (`tools/spark_kafka/pom.xml` says
which versions); with `--kafka synced` the broker syncs before it acknowledges, as a hub does.

Prints ratios, which mean something on any machine, and how many cores the hub, Spark's Java and Python processes and
this process used, and how many something else used meanwhile (`other`): beside a busy neighbour no number means much.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from spark_latency import LATENCIES, TRANSFORMS, Load, measure_latency
from spark_peers import HubPeer, KafkaPeer, connector_jars, running_broker

import headrace
from headrace.spark import session
from headrace.spark.hub_client import open_port
from headrace.spark.pipelines.builtin import window_counts
from headrace.spark.pipelines.definition import TRIGGER_DEFAULT
from headrace.spark.pipelines.runner import start_query
from headrace.spark.spark_session import engine_of

TRIALS = 6
"""In the first of them the JVM still compiles."""
WARM_UP_S = 40
TASKS = 4
"""In real time each task holds a slot: those of the hub's query and of Kafka's, with a window count."""
TOTAL = "sum(length(payload))"


@contextmanager
def running_hub(place: Path) -> Iterator[dict[str, str]]:
    """A hub as users run it, in a process of its own; its addresses by listener."""
    ready = place / "ready.json"
    off = [f"listen.{name}=off" for name in ("wallaroo", "ockam", "ignite", "fabric")]
    settings = [
        *off,
        "listen.flight=127.0.0.1:0",
        "listen.http=127.0.0.1:0",
        "log.seal_age_s=2",
        "log.maintenance_interval_s=0.5",
    ]
    command = [sys.executable, "-m", "headrace", "up", "--data", str(place / "data"), "--ready-file", str(ready)]
    for one in settings:
        command += ["--set", one]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=(place / "hub.log").open("w"))
    try:
        while not ready.exists():
            if process.poll() is not None:
                raise RuntimeError((place / "hub.log").read_text())
            time.sleep(0.05)
        yield json.loads(ready.read_text())
    finally:
        process.terminate()
        process.wait(30)


def best(acts: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The quickest of a few trials of each, in seconds. They take turns: whatever disturbs one disturbs the others."""
    times: dict[str, list[float]] = {name: [] for name in acts}
    for trial in range(TRIALS):
        for name, act in acts.items():
            started = time.perf_counter()
            act()
            times[name].append(time.perf_counter() - started)
        print(f"trial {trial + 1} of {TRIALS}: {', '.join(f'{name} {each[-1]:.2f} s' for name, each in times.items())}")
    return {name: min(each) for name, each in times.items()}


def busy_cores() -> Callable[[], str]:
    """How many cores this benchmark used since the call, by process, and how many something else used meanwhile."""
    started, before, mine_before = time.monotonic(), _machine_cpu_s(), _my_cpu_s()

    def used() -> str:
        elapsed_s = time.monotonic() - started
        mine = {name: max(0.0, cpu_s - mine_before[name]) / elapsed_s for name, cpu_s in _my_cpu_s().items()}
        other = (_machine_cpu_s() - before) / elapsed_s - sum(mine.values())
        return ", ".join(f"{name} {cores:.2f}" for name, cores in mine.items()) + f"; other {max(0.0, other):.2f} cores"

    return used


def _machine_cpu_s() -> float:
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(int(word) for number, word in enumerate(words) if number not in (3, 4)) / os.sysconf("SC_CLK_TCK")


def _my_cpu_s() -> dict[str, float]:
    """Seconds of this process and of all that it started."""
    parents, spent, kinds = {}, {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(words[1])
            spent[int(entry.name)] = sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")
            kinds[int(entry.name)] = "hub" if "\0up\0" in command else "java" if "java\0" in command else "workers"
    total = {"hub": 0.0, "java": 0.0, "workers": 0.0, "this": spent[os.getpid()]}
    for process in spent:
        above = parents[process]
        while above not in (0, os.getpid()):
            above = parents.get(above, 0)
        if above:
            total[kinds[process]] += spent[process]
    return total


def fill(client: Any, stream: str, count: int, size: int) -> None:
    """`count` records of `size` random bytes, sealed."""
    client.create(stream)
    random = np.random.default_rng(1)
    chunk = max(1, (8 << 20) // size)
    for start in range(0, count, chunk):
        rows = min(chunk, count - start)
        data = pa.py_buffer(random.bytes(rows * size))
        offsets = pa.py_buffer(np.arange(0, (rows + 1) * size, size, dtype=np.int32))
        payload = pa.Array.from_buffers(pa.binary(), rows, [None, offsets, data])
        client.append(stream, pa.record_batch({"payload": payload}))
    while True:
        (partition,) = client.segments(stream, partition=0).partitions
        if partition.segments and partition.segments[-1].next == count:
            return
        time.sleep(0.2)


def to_parquet(client: Any, stream: str, path: Path) -> None:
    """The same rows as Parquet, uncompressed, which is Parquet at its quickest."""
    (partition,) = client.segments(stream, partition=0).partitions
    path.mkdir()
    for number, segment in enumerate(partition.segments):
        table = pa.ipc.open_file(pa.memory_map(segment.path)).read_all()
        table = table.append_column("stream", pa.array([stream] * len(table)).dictionary_encode().cast(pa.string()))
        table = table.append_column("partition", pa.array(np.zeros(len(table), np.int32)))
        pq.write_table(table, path / f"{number}.parquet", compression="none", use_dictionary=["stream"])


def row_wise_source(schema_text: str, constants: tuple[Any, ...]) -> Any:
    """A Python data source as the tutorials write it: one tuple per row, over the same files.

    `constants` follow the columns that are in the files.
    """
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Reader(DataSourceReader):
        def __init__(self, files: list[str]) -> None:
            self.files = files

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(file) for file in self.files]

        def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
            import pyarrow as arrow

            reader = arrow.ipc.open_file(arrow.memory_map(partition.value))
            names = reader.schema.names if constants else ["payload"]
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                for row in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
                    yield row + constants

    class RowWise(DataSource):
        @classmethod
        def name(cls) -> str:
            return "rowwise"

        def schema(self) -> str:
            return schema_text

        def reader(self, schema: Any) -> Reader:
            return Reader(self.options["files"].split(","))

    return RowWise


def noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def scan(spark: Any, client: Any, place: Path, megabytes: int, sizes: list[int], kafka: KafkaPeer | None) -> None:
    """Sealed segments against Parquet, a row-wise source and a topic."""
    hub = HubPeer(spark, client, place)
    for size in sizes:
        count = megabytes * 1_000_000 // size
        stream = f"scan{size}"
        fill(client, stream, count, size)
        to_parquet(client, stream, place / f"{stream}.parquet")
        (partition,) = client.segments(stream, partition=0).partitions
        files = [one.path for one in partition.segments]
        few = files[: max(4, len(files) // 4)]  # slow: a part will do, but enough files to keep every core at work
        few_count = sum(one.next - one.first for one in partition.segments[: len(few)])
        parquet = spark.read.parquet(str(place / f"{stream}.parquet"))
        ours, payloads = hub.frame(stream, payload=False), hub.frame(stream, payload=True)
        ddl = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in ours.schema)
        row_frames = {}
        for what, source in (
            ("all columns", row_wise_source(ddl, (stream, 0))),
            ("payload", row_wise_source("payload BINARY", ())),
        ):
            spark.dataSource.register(source)
            row_frames[what] = spark.read.format("rowwise").option("files", ",".join(few)).load()
        topics: dict[str, Callable[[], Any]] = {}
        if kafka is not None:
            kafka.fill(stream, parquet.limit(few_count))
            topics = {
                "kafka, payload": partial(noop, kafka.frame(stream, payload=True)),
                "kafka, all columns": partial(noop, kafka.frame(stream, payload=False)),
            }
        noop(ours.limit(1000))
        used = busy_cores()
        times_s = best(
            {
                "parquet, sum": lambda f=parquet: f.selectExpr(TOTAL).collect(),
                "headrace, sum": lambda f=payloads: f.selectExpr(TOTAL).collect(),
                "parquet, payload": lambda f=parquet: noop(f.select("payload")),
                "headrace, payload": lambda f=payloads: noop(f),
                "parquet, all columns": lambda f=parquet: noop(f),
                "headrace, all columns": lambda f=ours: noop(f),
                "row-wise, payload": lambda f=row_frames["payload"]: noop(f),
                "row-wise, all columns": lambda f=row_frames["all columns"]: noop(f),
                **topics,
            }
        )
        slow = ("row-wise", "kafka")
        speeds = {name: (few_count if name.startswith(slow) else count) / each for name, each in times_s.items()}
        print(f"\nscan, {size} B × {count:,} ({used()})")
        for name, speed in speeds.items():
            print(f"  {name:24} {speed / 1e6:6.2f} M records/s  {speed * size / 1e6:7.0f} MB/s")
        for what in ("sum", "payload", "all columns"):
            print(f"  headrace ÷ parquet, {what}: {speeds[f'headrace, {what}'] / speeds[f'parquet, {what}']:.2f}")
        for what, peer in itertools.product(("payload", "all columns"), slow if kafka else slow[:1]):
            print(f"  headrace ÷ {peer}, {what}: {speeds[f'headrace, {what}'] / speeds[f'{peer}, {what}']:.1f}")


def streaming(spark: Any, client: Any, place: Path, megabytes: int, kafka: KafkaPeer | None) -> None:
    """From the first record to the last in one query, into nothing; records per second of its batches."""
    size, stream = 100, "streaming"
    count = megabytes * 1_000_000 // size
    fill(client, stream, count, size)
    hub = HubPeer(spark, client, place)
    peers: list[HubPeer | KafkaPeer] = [hub]
    if kafka is not None:
        kafka.fill(stream, hub.frame(stream, payload=True).limit(count // 2))
        peers.append(kafka)
    speeds: dict[str, list[float]] = {}
    used = busy_cores()
    for trial, peer, payload in itertools.product(range(3), peers, (True, False)):
        frame = peer.live_frame(stream, payload)
        writer = frame.writeStream.format("noop").trigger(availableNow=True)
        checkpoint = place / f"streaming-{peer.name}-{payload}-{trial}"
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        query.awaitTermination()
        batches = [one for one in query.recentProgress if one["numInputRows"]]
        took_s = sum(one["durationMs"]["triggerExecution"] for one in batches) / 1000
        what = f"{peer.name}, {'payload' if payload else 'all columns'}"
        speeds.setdefault(what, []).append(sum(one["numInputRows"] for one in batches) / took_s)
    print(f"\nstreaming (availableNow), {size} B × {count:,} ({used()})")
    for name, each in speeds.items():
        print(f"  {name:24} {max(each) / 1e6:6.2f} M records/s")
    for what in ("payload", "all columns") if kafka else ():
        print(f"  headrace ÷ kafka, {what}: {max(speeds[f'headrace, {what}']) / max(speeds[f'kafka, {what}']):.1f}")


def sustained(spark: Any, client: Any, place: Path, seconds: float, rate: int) -> None:
    """A windowed count that keeps up: the lag at the end of each ten seconds."""
    client.create("flow")
    one = window_counts("flow", "flow.counts", window="1 second", delay="1 second", by="type")
    query = start_query(spark, open_port(client.address), one, place / "home")
    per_tick = rate // 20
    payload = pa.array([b"x" * 100] * per_tick, pa.binary())
    kinds = pa.array([f"t{number % 10}" for number in range(per_tick)])
    for _ in range(20):  # the JVM warms up
        client.append("flow", pa.record_batch({"payload": payload, "type": kinds}))
        while _lag(client, query):
            time.sleep(0.05)
    started = tick = time.monotonic()
    sent, lags = 0, []
    used = busy_cores()
    while time.monotonic() - started < seconds:
        now_us = time.time_ns() // 1000
        times = pa.array(np.full(per_tick, now_us), pa.timestamp("us", "UTC"))
        client.append("flow", pa.record_batch({"payload": payload, "type": kinds, "event_time": times}))
        sent += per_tick
        if (time.monotonic() - started) // 10 > len(lags):
            lags.append(_lag(client, query))
        tick += per_tick / rate
        time.sleep(max(0, tick - time.monotonic()))
    elapsed = time.monotonic() - started
    cores = used()
    while _lag(client, query) and time.monotonic() - started < seconds + 60:
        time.sleep(0.2)
    drained_s = time.monotonic() - started - elapsed
    query.stop()
    print(f"\nsustained, {sent / elapsed:,.0f} records/s of 100 B for {elapsed:.0f} s ({cores})")
    print(f"  lag every 10 s: {', '.join(f'{lag:,}' for lag in lags)}; caught up {drained_s:.1f} s after the end")


def _lag(client: Any, query: Any) -> int:
    last = query.lastProgress
    if last is None:
        return client.bounds("flow").next
    offset = last["sources"][0]["endOffset"]
    streams = (json.loads(offset) if isinstance(offset, str) else offset)["streams"]
    return client.bounds("flow").next - (streams["flow"]["next"][0] if "flow" in streams else 0)


def measure(arguments: argparse.Namespace, place: Path, addresses: dict[str, str], kafka: KafkaPeer | None) -> None:
    config = {"spark.driver.memory": "3g"} | dict(one.split("=", 1) for one in arguments.conf)
    if kafka is not None:
        config["spark.jars"] = connector_jars()
    with headrace.connect(addresses["flight"]) as client:
        is_scan = bool({"scan", "streaming", "sustained"} & set(arguments.what))
        master = None if is_scan else f"local[{TASKS}]"
        spark = session("bench", master=master, hub=addresses["flight"], config=config)
        if arguments.engine:
            spark.conf.set("spark.datasource.headrace.engine", arguments.engine)
        print(f"engine: {arguments.engine or engine_of(spark)}, Spark {spark.version}")
        peers: list[HubPeer | KafkaPeer] = [HubPeer(spark, client, place)]
        if kafka is not None:
            kafka.spark = spark
            kafka.sink_options = dict(one.split("=", 1) for one in arguments.kafka_sink)
            peers.append(kafka)
        if "scan" in arguments.what:
            scan(spark, client, place, arguments.megabytes, arguments.size or [100, 1024], kafka)
        if "streaming" in arguments.what:
            streaming(spark, client, place, arguments.megabytes, kafka)
        spark.conf.set("spark.sql.shuffle.partitions", "1")  # in real time each task of each stage holds a slot
        wanted = [Load(arguments.trigger, arguments.latency_rate, TRANSFORMS[arguments.transform])]
        if "latencies" in arguments.what:
            wanted = [LATENCIES[name] for name in arguments.load or LATENCIES]
        for load in wanted if {"latency", "latencies"} & set(arguments.what) else ():
            measure_latency(load, peers, arguments.seconds, arguments.warm_up, addresses["http"], busy_cores)
        if "sustained" in arguments.what:
            spark.conf.set("spark.sql.shuffle.partitions", str(os.cpu_count()))
            sustained(spark, client, place, arguments.seconds, arguments.sustained_rate)
        spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", default=["scan", "latency", "sustained"])
    parser.add_argument("--conf", action="append", default=[], help="another Spark setting, NAME=VALUE")
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--size", type=int, action="append", help="of a record that is scanned; 100 and 1024")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--warm-up", type=float, default=WARM_UP_S, help="seconds; the JVM compiles what it runs often")
    parser.add_argument("--engine", choices=("java", "python"), help="the session's own unless given")
    parser.add_argument("--trigger", default=TRIGGER_DEFAULT, help="of the latency's pipeline, such as 'real time'")
    parser.add_argument("--transform", choices=TRANSFORMS, default="copied", help="of the latency's pipeline")
    parser.add_argument("--load", choices=LATENCIES, action="append", help="of the latencies only this one")
    parser.add_argument("--latency-rate", type=int, default=1_000)
    parser.add_argument("--sustained-rate", type=int, default=150_000)
    parser.add_argument("--kafka", nargs="?", const="", choices=("", "synced"), help="measure Kafka, too, as it comes")
    parser.add_argument("--kafka-sink", action="append", default=[], help="NAME=VALUE, such as kafka.linger.ms=5")
    arguments = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    try:
        with running_hub(place) as addresses, contextlib.ExitStack() as stack:
            kafka = None
            if arguments.kafka is not None:
                kafka = stack.enter_context(running_broker(place, is_synced=arguments.kafka == "synced"))
            measure(arguments, place, addresses, kafka)
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
