"""What a query reads and writes changes under it: streams come, go and come back, and the hub is another one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hubs import ThreadHub
from live_queries import WAIT_S, Start, failure, results, wait_for
from support.until import wait_until
from test_source import run

from headrace.config import Config, Log, User
from headrace.security import Security, new_token
from headrace.spark import read_stream

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.needs("javac"), pytest.mark.usefixtures("engine")]
LONG = "10 minutes"


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


@pytest.mark.parametrize("engine", ["java", "python"], indirect=True)
def test_a_hub_that_has_fewer_records_than_were_read(spark: Any, tmp_path: Path) -> None:
    """A new data directory, or a backup from an earlier day, behind the same address: it is said, or passed over."""
    hub = ThreadHub(tmp_path / "a")
    address = hub.address
    try:
        hub.create("in")
        hub.append("in", numbers(0, 20))
        frame = read_stream(spark, "in", hub=address).select("payload")
        run(frame, "out", tmp_path / "checkpoint", hub=address)
        hub.close()
        hub = ThreadHub(tmp_path / "b", address=address)
        hub.create("in")
        hub.append("in", numbers(0, 15))
        with pytest.raises(Exception, match="DataLoss: stream 'in' partition 0: indexes 15 to 19 .* ends at 15 now"):
            run(frame, "out", tmp_path / "checkpoint", hub=address)
        lenient = read_stream(spark, "in", hub=address, fail_on_data_loss=False).select("payload")
        run(lenient, "out", tmp_path / "checkpoint", hub=address)
        hub.append("in", numbers(15, 18))
        run(frame, "out", tmp_path / "checkpoint", hub=address)
        assert hub.payloads("out") == numbers(15, 18)
    finally:
        hub.close()


def test_a_hub_that_has_fewer_records_in_real_time(spark: Any, tmp_path: Path) -> None:
    hub = ThreadHub(tmp_path / "a")
    address = hub.address
    try:
        hub.create("in")
        hub.append("in", numbers(0, 20))
        frame = read_stream(spark, "in", hub=address).select("payload")
        run(frame, "out", tmp_path / "checkpoint", hub=address)
        hub.close()
        hub = ThreadHub(tmp_path / "b", address=address)
        hub.create("in")
        writer = frame.writeStream.format("headrace").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer = writer.options(stream="out", hub=address).outputMode("update")
        assert "indexes 0 to 19" in failure(writer.trigger(realTime=LONG).start())
    finally:
        hub.close()


def test_a_hub_that_comes_back_with_fewer_records_in_the_middle_of_a_batch(
    hub: ThreadHub, spark: Any, name: str, start: Start, tmp_path: Path
) -> None:
    """Whoever follows it would wait for the stream to get there, and miss what it is given until then."""
    older = ThreadHub(tmp_path / "older")
    older.create("in")
    older.append("in", numbers(0, 15))
    older.close()
    source = ThreadHub(tmp_path / "data")
    address = source.address
    try:
        source.create("in")
        frame = read_stream(spark, "in", hub=address, hub_wait_seconds=2).select("payload")
        query = start(frame, LONG, tmp_path / "checkpoint")
        source.append("in", numbers(0, 20))
        wait_for(hub, name, 20, query)
        source.close()
        source = ThreadHub(tmp_path / "older", address=address)
        assert "'in' partition 0 ends at 15 now, and records up to 20 were read" in failure(query)
    finally:
        source.close()


def test_a_stream_that_comes_later(hub: ThreadHub, spark: Any, name: str, start: Start) -> None:
    """The query waits for it, and does not begin a long batch of nothing."""

    def looks() -> float:
        found = hub.hub.metrics.registry.get_sample_value("headrace_verb_seconds_count", {"verb": "spark.describe"})
        return found or 0.0

    before = looks()
    query = start(read_stream(spark, name).select("payload"), LONG)
    wait_until(lambda: looks() > before + 5, "looks at the hub", WAIT_S)
    hub.create(name)
    hub.append(name, [b"a"])
    wait_for(hub, name, 1, query)
    query.stop()


def test_a_stream_that_is_deleted(hub: ThreadHub, spark: Any, name: str, start: Start, tmp_path: Path) -> None:
    """The query fails, and says so; started again, it reads the others."""
    hub.create(f"{name}.a")
    hub.create(f"{name}.b")
    frame = read_stream(spark, f"{name}.*").select("payload")
    hub.append(f"{name}.a", [b"a"])
    hub.append(f"{name}.b", [b"b"])
    run(frame, f"{name}=out", tmp_path)  # both are in Spark's offsets then
    query = start(frame, LONG)
    hub.append(f"{name}.b", [b"live"])
    wait_for(hub, name, 3, query)
    hub.run(hub.hub.delete_stream(f"{name}.b"))
    assert f"UnknownStream: stream '{name}.b' does not exist" in failure(query)
    hub.append(f"{name}.a", [b"more"])
    again = start(frame, LONG)
    wait_for(hub, name, 4, again)
    again.stop()


def test_a_stream_that_is_not_asked_for_any_more(
    hub: ThreadHub, spark: Any, name: str, start: Start, tmp_path: Path
) -> None:
    hub.create(f"{name}.a")
    hub.create(f"{name}.b")
    hub.append(f"{name}.a", [b"a"])
    run(read_stream(spark, f"{name}.a").select("payload"), f"{name}=out", tmp_path)  # it is in Spark's offsets then
    hub.append(f"{name}.a", [b"not asked for"])
    hub.append(f"{name}.b", [b"b"])
    again = start(read_stream(spark, f"{name}.b").select("payload"), LONG)
    wait_for(hub, name, 2, again)
    again.stop()
    assert results(hub, name) == [b"a", b"b"]


def test_a_source_that_is_deleted_and_created_again(hub: ThreadHub, spark: Any, name: str, start: Start) -> None:
    hub.create(name)
    frame = read_stream(spark, name).select("payload")
    query = start(frame, LONG)
    hub.append(name, numbers(0, 10))
    wait_for(hub, name, 10, query)
    hub.run(hub.hub.delete_stream(name))
    assert "UnknownStream" in failure(query)
    hub.create(name)
    hub.append(name, numbers(10, 20))
    again = start(frame, LONG)
    wait_for(hub, name, 20, again)
    again.stop()
    assert results(hub, name) == numbers(0, 20)


def test_a_sink_that_is_deleted_and_created_again(hub: ThreadHub, spark: Any, name: str, start: Start) -> None:
    """Where the results end is gone with it: whoever runs is refused, and the next run begins where Spark knows."""
    hub.create(name)
    frame = read_stream(spark, name).select("payload")
    query = start(frame, LONG)
    hub.append(name, numbers(0, 10))
    wait_for(hub, name, 10, query)
    hub.run(hub.hub.delete_stream(f"{name}=out"))
    hub.create(f"{name}=out")
    hub.append(name, numbers(10, 20))
    assert "Fenced" in failure(query)
    again = start(frame, LONG)
    wait_for(hub, name, 20, again)
    again.stop()
    assert results(hub, name) == numbers(0, 20)


def test_partitions_that_are_added(hub: ThreadHub, spark: Any, name: str, start: Start) -> None:
    """To the source: they are read from the next batch on. To the sink: they get results from then on."""
    hub.create(name)
    hub.create(f"{name}=out")
    frame = read_stream(spark, name).selectExpr("payload", "payload AS key")
    query = start(frame)
    hub.append(name, numbers(0, 10))
    wait_for(hub, name, 10, query)
    for stream in (name, f"{name}=out"):
        hub.run(hub.hub.grow_stream(stream, 2))
    sent = 10

    def halves() -> list[list[bytes]]:
        return [hub.payloads(f"{name}=out", partition) for partition in range(2)]

    def send() -> None:
        nonlocal sent
        for partition in range(2):
            hub.append(name, numbers(sent, sent + 10), partition=partition)
            sent += 10

    def has_all() -> bool:
        assert query.isActive, query.exception()
        return sum(map(len, halves())) >= sent

    while not halves()[1]:
        send()
        wait_until(has_all, "all results", WAIT_S)
    query.stop()
    query = start(frame)
    send()
    wait_until(has_all, "all results", WAIT_S)
    query.stop()
    assert sorted((one for half in halves() for one in half), key=int) == numbers(0, sent)


@pytest.fixture
def robot(tmp_path: Path) -> Iterator[tuple[ThreadHub, str, User]]:
    """A hub that knows one user; its token."""
    token, digest = new_token()
    user = User(tokens=[digest], roles=["reader", "writer"])
    with Security(Config(log=Log(data=str(tmp_path / "data")))).users_file.changing() as users:
        users["robot"] = user
    hub = ThreadHub(tmp_path / "data")
    yield hub, token, user
    hub.close()


def test_a_user_who_loses_all_rights_in_the_middle_of_a_batch(
    spark: Any, robot: tuple[ThreadHub, str, User], tmp_path: Path
) -> None:
    hub, token, user = robot

    async def change(roles: list[str]) -> None:
        with hub.hub.security.users_file.changing() as users:
            users["robot"] = User(tokens=user.tokens, roles=roles)
        hub.hub.security.on_change()

    hub.create("in")
    way = {"hub": hub.address, "token": token}
    writer = read_stream(spark, "in", **way).select("payload").writeStream.format("headrace")
    writer = writer.options(stream="out", checkpointLocation=str(tmp_path / "checkpoint"), **way)
    writer = writer.outputMode("update").trigger(realTime=LONG)
    query = writer.start()
    hub.append("in", numbers(0, 10))
    wait_for(hub, "in", 10, query, to="out")
    hub.run(change([]))
    hub.append("in", numbers(10, 20))
    assert "Forbidden" in failure(query)
    assert hub.payloads("out") == numbers(0, 10)
    hub.run(change(user.roles))
    again = writer.start()
    wait_for(hub, "in", 20, again, to="out")
    again.stop()
    assert hub.payloads("out") == numbers(0, 20)
