"""Three pipelines over a stream of orders. Run them with

    headrace pipeline run examples/orders_pipelines.py

and append some orders: headrace append orders '{"item": "pear", "price": 3}'
"""

from __future__ import annotations

from typing import Any

from headrace.spark import console, pipeline

ORDERS: dict[str, Any] = {"source": "orders", "decode": "json", "schema": "item STRING, price DOUBLE"}


@pipeline(**ORDERS, sink="orders.dear")
def dear_orders(orders: Any) -> Any:
    """Orders above 100, as a stream of their own."""
    return orders.where("value.price > 100").selectExpr("value.item AS key", "value.price AS price", "time")


@pipeline(**ORDERS, sink="orders.turnover", trigger="1 second")
def turnover(orders: Any) -> Any:
    """Turnover per item and minute, written once when the minute is over."""
    from pyspark.sql import functions as F

    minute = F.window("time", "1 minute")
    summed = orders.withWatermark("time", "5 seconds").groupBy(minute, "value.item").agg(F.sum("value.price"))
    return summed.toDF("window", "key", "turnover").selectExpr("window.start", "key", "turnover")


@pipeline(**ORDERS, sink=console(), trigger="5 seconds")
def broken_orders(orders: Any) -> Any:
    """What could not be read, on the terminal."""
    return orders.where("error IS NOT NULL").select("index", "error", "payload")
