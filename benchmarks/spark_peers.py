"""Who Spark reads from and writes to in bench_spark.py: a hub, and a Kafka broker with Spark's own connector.

Both have the same verbs, so that the same code measures both. The broker is as it comes: it acknowledges before it
syncs, unless that is asked for, and Spark's sink into it is at least once.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

import headrace
from headrace.errors import Closed
from headrace.spark import read, read_stream
from headrace.spark.hub_client import open_port
from headrace.spark.pipelines.definition import pipeline
from headrace.spark.pipelines.runner import real_time, start_query

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import kafka_brokers

Transform = Callable[[Any], Any]
Look = Callable[[int], None]
"""Hears, after each sending, how many records were sent ever."""
Seen = list[tuple[float, float]]
"""When a result could be read, and how old its record was by then, in ms."""
PARTS = 2
"""One partition of a topic is one task unless Spark is told to cut it: as many as there are cores."""
CONNECTOR = kafka_brokers.POM.parents[1] / "spark_kafka" / "pom.xml"
ASYNC_PROGRESS = "spark.sql.streaming.realTimeMode.asyncProgressTrackingByDefault.enabled"


def paced(rate: int, seconds: float, send: Callable[[bytes, int], int], look: Look) -> int:
    """Every ten milliseconds: `send` that many records of 100 B, which begin with the time. How many were sent ever."""
    per_tick = max(1, rate // 100)
    tick = time.monotonic()
    end = tick + seconds
    sent = 0
    while time.monotonic() < end:
        sent = send((b"%d " % (time.time_ns() // 1000)).ljust(100, b"."), per_tick)
        look(sent)
        tick += per_tick / rate
        time.sleep(max(0, tick - time.monotonic()))
    return sent


def note(seen: Seen, payloads: list[bytes]) -> None:
    """They can be read now."""
    now_us, now = time.time_ns() // 1000, time.monotonic()
    seen.extend((now, (now_us - int(one.split(b" ", 1)[0])) / 1000) for one in payloads)


class HubPeer:
    """Streams of a hub: exactly once, synced."""

    name = "headrace"

    def __init__(self, spark: Any, client: Any, place: Path) -> None:
        self._spark, self._client, self._place = spark, client, place

    def create(self, stream: str) -> None:
        self._client.create(stream)

    def frame(self, stream: str, payload: bool) -> Any:
        return read(self._spark, stream, **({"columns": "payload"} if payload else {}))

    def live_frame(self, stream: str, payload: bool) -> Any:
        return read_stream(self._spark, stream, **({"columns": "payload"} if payload else {}))

    def start(self, name: str, transform: Transform, trigger: str) -> Any:
        made = pipeline(source=f"{name}.in", sink=f"{name}.out", name=name, trigger=trigger)(transform)
        return start_query(self._spark, open_port(self._client.address), made, self._place / "home")

    def settings(self, is_stateless: bool) -> str:
        """What this peer promises meanwhile."""
        promise = "exactly once" if is_stateless else "at least once, with a key"
        return f"{promise}; each record and each result synced to disk before anyone sees it"

    def produce(self, stream: str, rate: int, seconds: float, look: Look) -> int:
        def send(record: bytes, count: int) -> int:
            batch = pa.record_batch({"payload": pa.array([record] * count, pa.binary())})
            return int(self._client.append(stream, batch).first) + count

        return paced(rate, seconds, send, look)

    def follow(self, stream: str, seen: Seen) -> None:
        def following() -> None:
            client = headrace.connect(self._client.address)
            with contextlib.suppress(Closed), client.follow(stream, "earliest", columns=["payload"]) as results:
                for batch in results.batches():
                    note(seen, batch.column("payload").to_pylist())

        threading.Thread(target=following, daemon=True).start()


class KafkaPeer:
    """Topics of one broker."""

    name = "kafka"

    def __init__(self, servers: str, place: Path, is_synced: bool) -> None:
        self.servers, self._place = servers, place
        self._topic = {"flush.messages": "1"} if is_synced else {}
        self.spark: Any = None
        self._sent: dict[str, int] = {}
        self._producers: dict[str, Any] = {}
        self.sink_options: dict[str, str] = {}
        """Of Spark's sink, such as `kafka.linger.ms`."""

    def create(self, topic: str) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.create_topics([NewTopic(topic, 1, 1, config=self._topic)])[topic].result()

    def _options(self, **more: Any) -> dict[str, Any]:
        return {"kafka.bootstrap.servers": self.servers, **more}

    def fill(self, topic: str, frame: Any) -> None:
        """With the payloads of a frame."""
        self.create(topic)
        writer = frame.selectExpr("payload AS value").write.format("kafka")
        writer.options(**self._options(topic=topic)).save()

    def frame(self, topic: str, payload: bool) -> Any:
        options = self._options(subscribe=topic, minPartitions=PARTS)
        loaded = self.spark.read.format("kafka").options(**options).load()
        return loaded.select("value") if payload else loaded

    def live_frame(self, topic: str, payload: bool) -> Any:
        loaded = self._live(topic, minPartitions=PARTS)
        return loaded.select("value") if payload else loaded

    def _live(self, topic: str, **more: Any) -> Any:
        """In real time Spark takes no `minPartitions`."""
        options = self._options(subscribe=topic, startingOffsets="earliest", **more)
        return self.spark.readStream.format("kafka").options(**options).load()

    def start(self, name: str, transform: Transform, trigger: str) -> Any:
        live = real_time(trigger)
        frame = self._live(f"{name}.in").selectExpr("value AS payload", "timestamp AS time")
        writer = transform(frame).selectExpr("payload AS value").writeStream.format("kafka")
        writer = writer.options(**self._options(topic=f"{name}.out", **self.sink_options)).outputMode(
            "update" if live else "append"
        )
        writer = writer.option("checkpointLocation", str(self._place / f"kafka-{name}"))
        before = self.spark.conf.get(ASYNC_PROGRESS, "true")
        self.spark.conf.set(ASYNC_PROGRESS, "true")  # as Spark comes: Kafka's sink may note its progress aside
        try:
            return writer.trigger(**({"realTime": live} if live else {"processingTime": trigger})).start()
        finally:
            self.spark.conf.set(ASYNC_PROGRESS, before)

    def settings(self, is_stateless: bool) -> str:
        """What this peer promises meanwhile, and what Spark's sink sends with: the defaults of its client."""
        jar = next(jar for jar in connector_jars().split(",") if "kafka-clients" in jar)
        synced = "synced" if self._topic else "never synced"
        chosen = "".join(f", {name}={value}" for name, value in self.sink_options.items())
        return f"at least once; {synced}; Spark's sink by {Path(jar).stem} with its defaults{chosen}"

    def produce(self, topic: str, rate: int, seconds: float, look: Look) -> int:
        from confluent_kafka import Producer

        if topic not in self._producers:
            self._producers[topic] = Producer({"bootstrap.servers": self.servers, "linger.ms": 0})
        producer = self._producers[topic]

        def send(record: bytes, count: int) -> int:
            for _ in range(count):
                producer.produce(topic, record)
            producer.flush()
            self._sent[topic] = self._sent.get(topic, 0) + count
            return self._sent[topic]

        return paced(rate, seconds, send, look)

    def follow(self, topic: str, seen: Seen) -> None:
        from confluent_kafka import Consumer

        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": topic, "auto.offset.reset": "earliest"})
        consumer.subscribe([topic])

        def following() -> None:
            while True:
                message = consumer.poll(1.0)
                if message is not None and message.error() is None:
                    note(seen, [message.value()])

        threading.Thread(target=following, daemon=True).start()


@contextmanager
def running_broker(place: Path, is_synced: bool) -> Iterator[KafkaPeer]:
    """One broker: on a small machine that is Kafka at its quickest."""
    kafka_brokers.fetch()
    brokers = kafka_brokers.Brokers(place / "kafka", 1, options=kafka_brokers.RUN_FAST)
    brokers.start()
    try:
        yield KafkaPeer(brokers.servers, place, is_synced)
    finally:
        brokers.stop()


def connector_jars() -> str:
    """Spark's Kafka connector, as `spark.jars` takes it."""
    jars = kafka_brokers.CACHE / f"spark-kafka-{hashlib.sha256(CONNECTOR.read_bytes()).hexdigest()[:16]}"
    kafka_brokers.copy_jars(CONNECTOR, jars, "Spark's Kafka connector")
    return ",".join(str(jar) for jar in sorted(jars.glob("*.jar")))
