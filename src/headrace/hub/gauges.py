"""What a hub tells of its log: what was found when it was opened, and gauges, set when somebody asks for them."""

from __future__ import annotations

import logging

from headrace.log.port import LogPort
from headrace.log.report import Report
from headrace.telemetry.metrics import Metrics

logger = logging.getLogger("headrace.hub")


def report_damage(report: Report, metrics: Metrics) -> None:
    """To whoever reads the log lines and metrics of the hub."""
    for finding in report.findings:
        level = logging.ERROR if finding.is_damage else logging.WARNING
        logger.log(level, "recovery: %s: %s %s", finding.kind, finding.text, finding.path)
        if finding.kind == "damaged-records":
            metrics.log.damaged.inc(finding.last - finding.first + 1)


def refresh_gauges(log: LogPort, metrics: Metrics) -> None:
    """Ask the log."""
    gauges, counters, nouns = log.gauges(), metrics.log, metrics.nouns
    counters.backlog_bytes.set(gauges["queue_bytes"])
    counters.tail_bytes.set(gauges["tail_bytes"])
    counters.disk_bytes.labels(kind="segments").set(gauges["segment_bytes"])
    counters.failed.set(log.failed is not None)
    counters.free_bytes.set(gauges["free_bytes"])
    counters.sealed.set(gauges["sealed_segments"])
    counters.foreign_messages.set(gauges.get("foreign_messages", 0))
    counters.looks.set(gauges.get("looks", 0))
    counters.cache_bytes.set(gauges.get("cache_bytes", 0))
    counters.fetched_bytes.set(gauges.get("store_fetched_bytes", 0))
    counters.stored_bytes.set(gauges.get("store_stored_bytes", 0))
    counters.orphans.set(gauges.get("store_orphans", 0))
    nouns.streams.set(gauges["streams"])
    nouns.tables.set(gauges["tables"])
    nouns.table_bytes.set(gauges["table_bytes"])
    nouns.checkpoints.set(gauges["checkpoints"])
    cursors = log.cursors()
    nouns.cursors.set(len(cursors))
    nouns.cursor_lag_max.set(max((cursor.lag for cursor in cursors), default=0))
