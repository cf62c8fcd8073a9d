"""Through the whole of it: events in by one protocol, counted by Spark, results out by another, value by value."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hubs import ThreadHub
from test_pipelines import run_once

from headrace.protocols.ockam.client import Consumer
from headrace.protocols.ockam.server import serve as serve_ockam
from headrace.protocols.wallaroo.client import Connector, Item
from headrace.protocols.wallaroo.server import serve as serve_wallaroo
from headrace.spark import pipeline
from headrace.spark.hub_client import open_port

pytestmark = [pytest.mark.spark, pytest.mark.slow]
EVENTS = 3_000
STEP_US = 50_000
WINDOW_US = 10_000_000
FRUITS = ("pear", "plum", "fig")


def event(number: int) -> Item:
    fruit = FRUITS[(number * 7) % 3]
    payload = json.dumps({"fruit": fruit, "count": number % 5}).encode()
    # Out of order by up to two seconds, as sources are.
    event_time_us = number * STEP_US + (number * 37 % 40) * STEP_US
    return Item(number + 1, payload, event_time_us)


def expected() -> dict[tuple[int, str], int]:
    totals: Counter[tuple[int, str]] = Counter()
    for number in range(EVENTS):
        one = event(number)
        document = json.loads(one.payload or b"")
        totals[(one.event_time or 0) // WINDOW_US, document["fruit"]] += document["count"]
    return dict(totals)


async def send(address: str, first: int, after: int) -> None:
    async with Connector(address, program="shop", instance="one") as connector:
        stream = await connector.stream("fruit")
        await stream.send_many([event(number) for number in range(first, after)])
        await stream.flush()


async def receive(address: str, stream: str) -> list[Any]:
    found = []
    async with Consumer(address, stream, client_id="reader", until_empty=True) as consumer:
        async for delivery in consumer:
            found += [json.loads(message.data) for message in delivery.messages]
    return found


def test_wallaroo_in_windows_in_spark_ockam_out(hub: ThreadHub, spark: Any, tmp_path: Path) -> None:
    wallaroo = hub.run(serve_wallaroo(hub.hub, "127.0.0.1:0"))
    ockam = hub.run(serve_ockam(hub.hub, "127.0.0.1:0"))
    port = open_port(hub.address)
    try:
        hub.run(send(wallaroo.address, 0, EVENTS // 2))
        (source,) = (one.name for one in hub.hub.streams("*fruit*"))

        @pipeline(
            source=source,
            sink="fruit-totals",
            name="fruit-totals",
            decode="json",
            schema="fruit STRING, count INT",
            watermark="5 seconds",
            records_per_batch_max=700,
        )
        def totals(events: Any) -> Any:
            from pyspark.sql import functions as F

            window = F.window("event_time", f"{WINDOW_US} microseconds")
            summed = events.groupBy(window, "value.fruit").agg(F.sum("value.count").alias("total"))
            return summed.select(F.unix_micros("window.start").alias("start_us"), F.col("fruit").alias("key"), "total")

        run_once(spark, port, totals, tmp_path)
        hub.run(send(wallaroo.address, EVENTS // 2, EVENTS))
        # One event far in the future closes all windows.
        hub.append(source, [b'{"fruit": "fig", "count": 0}'], event_times=[10**15])
        run_once(spark, port, replace(totals, records_per_batch_max=None), tmp_path)
        results = hub.run(receive(ockam.address, "fruit-totals"))
    finally:
        port.close()
        hub.run(ockam.close())
        hub.run(wallaroo.close())
    assert {(one["start_us"] // WINDOW_US, one["key"]): one["total"] for one in results} == expected()
    assert len(results) == len(expected())
