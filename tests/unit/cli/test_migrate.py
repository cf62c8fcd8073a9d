"""`headrace migrate`, on brokers in memory."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.migrate import app
from headrace.config import Config, Log
from headrace.config.sections import Kafka
from headrace.doctor.cell import check_cell
from headrace.hub import Hub
from headrace.log.batch import Batch
from headrace.log.kafka.topics import create_missing
from headrace.testing.kafka import FakeKafka


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    made = FakeKafka()
    create_missing(made, Kafka(prefix="p"))
    monkeypatch.setattr("headrace.log.kafka.whole_cell.connect", lambda settings: made)
    return made


@pytest.fixture
def data(tmp_path: Path) -> Path:
    async def fill() -> None:
        hub = await Hub.open(tmp_path / "data")
        await hub.create_stream("s")
        await hub.append("s", Batch.of([b"a", b"b", b"c"]))
        await hub.close()

    asyncio.run(fill())
    return tmp_path / "data"


def run(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    raised = done.exception is not None and not isinstance(done.exception, SystemExit)
    return done.exit_code, str(done.exception) if raised else done.output


def test_there_and_back(kafka: FakeKafka, data: Path, tmp_path: Path) -> None:
    code, text = run(data, "kafka://host:9092/p", "--data", tmp_path / "hub")
    assert (code, text.count("\n")) == (0, 1)
    assert "moved 3 records of 1 streams" in text
    assert "compared 3 records" in text
    assert f"headrace up --log kafka://host:9092/p --data {tmp_path / 'hub'}" in text
    code, text = run("kafka://host:9092/p", tmp_path / "back", "--data", tmp_path / "hub", "--no-verify", "--json")
    answer = json.loads(text)
    assert (code, answer["records"], answer["streams"], answer["compared"]) == (0, 3, 1, 0)
    assert (tmp_path / "back/snapshots").is_dir()


def test_what_cannot_be_meant_is_refused(kafka: FakeKafka, data: Path, tmp_path: Path) -> None:
    for arguments in ((data, tmp_path / "new"), ("kafka://a/p", "kafka://b/p")):
        code, _ = run(*arguments)
        assert code == 2
    assert run(data, "kafka://host:9092/p", "--data", tmp_path / "hub")[0] == 0
    _, text = run(data, "kafka://host:9092/p", "--data", tmp_path / "hub2")
    assert "a log in the journal already" in text


def test_the_doctor_looks_at_it(kafka: FakeKafka, data: Path, tmp_path: Path) -> None:
    config = Config(log=Log(backend="kafka", kafka=Kafka(prefix="p")))
    assert [finding.level for finding in check_cell(config)] == ["ok"]
    run(data, "kafka://host:9092/p", "--data", tmp_path / "hub")
    [finding] = check_cell(config)
    assert "1 partitions of streams and tables, 1 segments, 1 snapshots" in finding.text
    partition = kafka.topics["p.blobs"].partitions[0]
    segment = partition.messages[0]
    partition.messages[0] = segment._replace(value=(segment.value or b"")[:-1] + b"x")
    assert "fail" in [finding.level for finding in check_cell(config)]
    kafka.producer("p.blobs").send(0, partition.messages[1].value, key=b"0/segments/1/0/left.arrow/0")
    partition.messages[0] = segment
    assert [finding.level for finding in check_cell(config)] == ["ok", "warn"]
    kafka.is_down = True
    assert [finding.level for finding in check_cell(config)] == ["fail"]
    alone = Config(log=Log(backend="kafka", kafka=Kafka(prefix="p", store="local")))
    assert [finding.level for finding in check_cell(alone)] == ["warn"]
