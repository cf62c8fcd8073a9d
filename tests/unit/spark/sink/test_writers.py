"""What the sink knows of a batch, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructType

from headrace.spark.options import parse_sink
from headrace.spark.sink import writers
from headrace.spark.sink.writers import StreamWriter

PROPERTIES = {"sql.streaming.queryId": "q", "spark.jobGroup.id": "r", "streaming.sql.batchId": "3"}


class Context:
    """What Spark says to a task."""

    def getLocalProperty(self, name: str) -> str:
        return PROPERTIES[name]

    def partitionId(self) -> int:
        return 0

    def taskAttemptId(self) -> int:
        return 0


class Port:
    """A hub that only notes what it is told."""

    def __init__(self) -> None:
        self.digests: list[str] = []

    def call(self, verb: str, request: dict[str, Any], **body: bytes) -> None:
        if verb == "spark.commit":
            self.digests.append(request["digest"])


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Port:
    made = Port()
    monkeypatch.setattr(writers, "shared_port", lambda access, wait_s: made)
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: Context())
    return made


def store(payload: bytes, checkpoint: str) -> None:
    """One batch of one row."""
    options = parse_sink({"stream": "out", "hub": "hub:1", "checkpointLocation": checkpoint})
    writer = StreamWriter(options, StructType().add("payload", BinaryType()))
    writer.commit([writer.write(iter([pa.record_batch({"payload": pa.array([payload], pa.binary())})]))], 3)


@pytest.mark.parametrize("checkpoint", ["hdfs://name/checkpoint", "/user/somebody/checkpoint"])
def test_a_checkpoint_that_is_elsewhere_makes_the_rows_the_digest(port: Port, checkpoint: str) -> None:
    """Also where a path without a scheme is one of HDFS, because that is Spark's default file system."""
    for payload in (b"a", b"b", b"a"):
        store(payload, checkpoint)
    first, second, third = port.digests
    assert first == third != second
    assert first.startswith("rows:1:")


def test_a_checkpoint_that_is_here_makes_the_offsets_the_digest(port: Port, tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    for end in ("17", "18"):
        (tmp_path / "offsets" / "3").write_text(f"v1\n{{}}\n{end}")
        for payload in (b"a", b"b"):
            store(payload, str(tmp_path))
    assert len(set(port.digests)) == 2
    assert port.digests[0] == port.digests[1]
    assert all(one.startswith("offsets:") for one in port.digests)
