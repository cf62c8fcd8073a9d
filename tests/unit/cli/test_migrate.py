"""`headrace migrate`, on brokers in memory."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.cli.migrate import app
from headrace.config import Config, Log
from headrace.config.sections import Kafka
from headrace.doctor.cell import check_cell
from headrace.hub import Hub
from headrace.log import ops, transfer
from headrace.log.batch import Batch
from headrace.log.clock import SystemClock
from headrace.log.disk import OsDisk
from headrace.log.kafka.cell import open_cell
from headrace.log.kafka.topics import create_missing, hubs_group, journal_topic
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


def test_while_a_hub_runs_nothing_is_moved(kafka: FakeKafka, data: Path, tmp_path: Path) -> None:
    """What it acknowledged later would be in one of the two places only. A follower would take over, too."""
    settings = Kafka(prefix="p")
    followers = [kafka.join(hubs_group(settings), journal_topic(settings), f"hub-{n}-0123", 10) for n in (1, 2)]
    for arguments in ((data, "kafka://host:9092/p"), ("kafka://host:9092/p", tmp_path / "back")):
        _, text = run(*arguments, "--data", tmp_path / "hub")
        assert "hubs of this log run: hub-1, hub-2. Stop all of them first" in text
    assert kafka.bounds(journal_topic(settings), 0) == (0, 0)
    assert not (tmp_path / "back").exists()
    for each in followers:
        each.close()
    assert run(data, "kafka://host:9092/p", "--data", tmp_path / "hub")[0] == 0


@pytest.mark.parametrize("leaves", [True, False])
def test_a_hub_that_is_started_while_a_log_moves_back_ends_the_move(
    kafka: FakeKafka, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    """Whether it has gone again, or is there still: what it has acknowledged is not in the copy."""
    assert run(data, "kafka://host:9092/p", "--data", tmp_path / "hub")[0] == 0
    settings = Kafka(prefix="p")

    def compare_late(*_: object) -> int:
        if leaves:
            log = open_cell(OsDisk(tmp_path / "late"), SystemClock(), Log(kafka=settings), kafka)
            log.close()
        else:
            kafka.join(hubs_group(settings), journal_topic(settings), "hub-1-0123", 10)
        return 0

    monkeypatch.setattr("headrace.log.transfer.compare", compare_late)
    _, text = run("kafka://host:9092/p", tmp_path / "back", "--data", tmp_path / "hub")
    assert ("a hub was started meanwhile (" if leaves else "hubs of this log run: hub-1") in text
    assert not (tmp_path / "back/journal").exists()
    assert not (tmp_path / "back/snapshots").exists()


def test_a_hub_that_takes_the_empty_log_while_another_moves_in(
    kafka: FakeKafka, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever came first has it: what the hub acknowledged is kept, and nothing is moved over it."""
    settings = Log(kafka=Kafka(prefix="p"))
    begin = transfer.copy_blobs

    def copy_late(*arguments: Any) -> Any:
        copied = begin(*arguments)
        log = open_cell(OsDisk(tmp_path / "first"), SystemClock(), settings, kafka)
        log.submit([ops.CreateStream("its own")])
        log.commit_once()
        log.close()
        return copied

    monkeypatch.setattr("headrace.log.transfer.copy_blobs", copy_late)
    _, text = run(data, "kafka://host:9092/p", "--data", tmp_path / "hub")
    assert "a log in the journal already" in text
    log = open_cell(OsDisk(tmp_path / "second"), SystemClock(), settings, kafka)
    assert [stream.name for stream in log.streams()] == ["its own"]
    log.close()
