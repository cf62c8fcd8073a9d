"""What a running pipeline says of itself: to the hub, and to whoever started it."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import msgspec

from headrace.spark.source.offsets import positions_of


class Report(msgspec.Struct, forbid_unknown_fields=True):
    """How a pipeline is, in numbers that people watch."""

    name: str
    state: str = "running"
    run: str = ""
    batch: int = -1
    rows: int = 0
    rows_per_s: float = 0.0
    batch_ms: float = 0.0
    lag: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    restarts: int = 0
    error: str = ""

    def take(self, progress: dict[str, Any]) -> None:
        """Take over what Spark reports of a batch."""
        if progress["batchId"] > self.batch:
            self.rows += progress["numInputRows"]
        self.batch = max(self.batch, progress["batchId"])
        self.rows_per_s = float(progress.get("processedRowsPerSecond") or 0.0)
        self.batch_ms = float(progress.get("durationMs", {}).get("triggerExecution", 0.0))
        self.lag = sum(_lag(source) for source in progress.get("sources", ()))
        operators = progress.get("stateOperators", ())
        self.state_rows = sum(operator.get("numRowsTotal", 0) for operator in operators)
        self.state_bytes = sum(operator.get("memoryUsedBytes", 0) for operator in operators)


def _lag(source: dict[str, Any]) -> int:
    end, latest = (positions_of(source.get(name)) for name in ("endOffset", "latestOffset"))
    return sum(
        max(0, after - at)
        for name, position in latest.items()
        for after, at in zip_longest(position.next, end[name].next if name in end else (), fillvalue=0)
    )
