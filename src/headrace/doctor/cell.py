"""The log on Kafka, as a hub with an empty disk would find it: journal, snapshot, and all that the store holds."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from headrace.config import Config
from headrace.doctor.data import data_finding, wrong_with_row
from headrace.doctor.finding import Finding, Progress, fail, ok, warn
from headrace.errors import HeadraceError
from headrace.log import shared_doctor
from headrace.log.clock import SystemClock
from headrace.log.doctor import DoctorReport

UNNAMED_MAX = 3
"""Blobs that are named when nobody needs them; the others are counted."""


def check_cell(config: Config, progress: Progress = lambda text: None) -> Iterator[Finding]:
    """Everything that has a checksum. A hub may be at work meanwhile."""
    if config.log.kafka.store == "local":
        advice = "set log.kafka.store to kafka, file: or s3:, so that another hub can take over and the journal is cut"
        yield warn("store", "log.kafka.store is local: what is sealed stays on this machine", advice)
        return
    try:
        report = _examined(config, progress)
    except (HeadraceError, OSError) as error:
        advice = "look at the brokers and at log.kafka.servers, .prefix and .store"
        yield fail("log on Kafka", f"it cannot be read: {error}", advice)
        return
    if report.healthy or report.streams:
        yield ok(
            "log on Kafka",
            f"{len(report.streams)} partitions of streams and tables, {report.segments} segments, {report.snapshots} "
            f"snapshots, {report.checkpoints} checkpoints: all fetched and checked",
        )
    yield from map(data_finding, report.findings)
    if report.strangers:
        some = ", ".join(report.strangers[:UNNAMED_MAX])
        text = f"{len(report.strangers)} blobs in the store are named by no event, such as {some}"
        yield warn("store", text, "a hub died while it stored them: they take room; remove them when no hub runs")


def _examined(config: Config, progress: Progress) -> DoctorReport:
    from headrace.log.kafka.whole_cell import WholeCell

    def segments(done: int, total: int) -> None:
        progress(f"segment {done} of {total}")

    with (
        tempfile.TemporaryDirectory(prefix="headrace-doctor-") as empty,
        WholeCell(config.log, SystemClock(), "doctor") as cell,
    ):
        return shared_doctor.examine(cell, Path(empty), segments, wrong_with_row)
