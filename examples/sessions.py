"""Sessions: who came, how often they clicked, and when they left. State in Python, by Spark's `transformWithState`.

    headrace pipeline run examples/sessions.py

A session of a user, the record's key, ends ten seconds of event time after the last click. Its result goes to the
stream `sessions`, exactly once. What is open can be looked at while the pipeline is stopped: `open_sessions`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from headrace.spark import pipeline

GAP_MS = 10_000


class Sessions(StatefulProcessor):
    """One user's session: how many clicks, and when its timer rings."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.session = handle.getValueState("session", "clicks INT, ends BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        clicks, ends = self.session.get() or (0, 0)
        for row in rows:
            clicks, last_ms = clicks + 1, int(row.event_time.timestamp() * 1000)
            if last_ms + GAP_MS > ends:
                if ends:
                    self.handle.deleteTimer(ends)
                ends = last_ms + GAP_MS
        self.handle.registerTimer(ends)
        self.session.update((clicks, ends))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        clicks, _ = self.session.get()
        self.session.clear()
        yield Row(user=key[0], clicks=clicks)

    def close(self) -> None:
        pass


@pipeline(source="clicks", sink="sessions", watermark="1 second", trigger="1 second")
def sessions(clicks: DataFrame) -> DataFrame:
    """Sessions of ten seconds."""
    users = clicks.selectExpr("cast(key AS STRING) AS user", "event_time").groupBy("user")
    found = users.transformWithState(Sessions(), "user STRING, clicks INT", outputMode="append", timeMode="EventTime")
    return found.selectExpr("user AS key", "concat(user, ' ', clicks) AS payload")


def open_sessions(spark: SparkSession, checkpoint: str) -> dict[str, int]:
    """Clicks of the sessions that have not ended, from the state that Spark keeps in its checkpoint."""
    state = spark.read.format("statestore").option("stateVarName", "session").load(checkpoint)
    return {row.user: row.clicks for row in state.select("key.user", "value.clicks").collect()}
