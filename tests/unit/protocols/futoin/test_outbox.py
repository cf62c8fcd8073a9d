"""The outbox: in the stream if and only if the application's transaction was committed, and once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.programs import needs
from support.until import until
from test_programs import find

from headrace.client import connect_async
from headrace.errors import BadRequest, Busy
from headrace.hub import Hub
from headrace.log.batch import Batch
from headrace.protocols.futoin import outbox
from headrace.protocols.futoin.outbox import ClientSink, HubSink, OutboxError, Relay, add_event
from headrace.testing import memory_hub
from headrace.testing.served import served_hub

Connect = Callable[[], Any]


def run_as_postgres(*command: str) -> None:
    """PostgreSQL does not run as root."""
    user = "postgres" if os.geteuid() == 0 else None
    subprocess.run(command, check=True, user=user, capture_output=True, timeout=60)


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of our own, reached by a socket in its own folder. Yields what psycopg connects to."""
    needs("postgresql")
    initdb, pg_ctl = str(find("initdb")), str(find("pg_ctl"))
    folder = Path("/tmp") / f"headrace-pg-{os.getpid()}"  # a socket's path must be short
    folder.mkdir(mode=0o777)
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
    data = str(folder / "data")
    try:
        run_as_postgres(initdb, "-D", data, "-U", "headrace", "-A", "trust", "--no-sync")
        settings = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
        run_as_postgres(pg_ctl, "-D", data, "-w", "-o", settings, "-l", str(folder / "log"), "start")
        try:
            yield f"host={folder} user=headrace dbname=postgres"
        finally:
            run_as_postgres(pg_ctl, "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    """Opens a connection to an application's database that has an outbox and a table of orders."""
    if request.param == "sqlite":

        def open_database() -> Any:
            return sqlite3.connect(tmp_path / "shop.db", timeout=60)
    else:
        where = request.getfixturevalue("postgresql")

        def open_database() -> Any:
            return psycopg.connect(where)

    database = open_database()
    outbox.create_tables(database)
    outbox.create_tables(database)  # again is fine
    database.execute("CREATE TABLE orders (number INTEGER)")
    database.commit()
    try:
        yield open_database
    finally:
        database.rollback()
        for table in ("orders", outbox.TABLE, f"{outbox.TABLE}_relay"):
            database.execute(f"DROP TABLE {table}")
        database.commit()
        database.close()


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with memory_hub() as hub:
        yield hub


@contextlib.asynccontextmanager
async def relaying(connect: Connect, sink: Any, **options: Any) -> AsyncIterator[Relay]:
    relay = Relay(connect, sink, name="shop", **options)
    try:
        yield relay
    finally:
        await relay.close()


async def stored(hub: Hub, stream: str = "orders") -> list[Any]:
    records = await hub.read(stream, 0, limit=10_000)
    return [json.loads(payload) for payload in records.column("payload").to_pylist()]


def place_order(database: Any, number: int, stream: str = "orders") -> None:
    mark = outbox.dialect_of(database).mark
    database.execute(f"INSERT INTO orders VALUES ({mark})", (number,))
    add_event(database, stream, "ORDER", number)


async def test_committed_and_not(connect: Connect, hub: Hub) -> None:
    database = connect()
    place_order(database, 1)
    database.commit()
    place_order(database, 2)
    database.rollback()
    place_order(database, 3)
    database.commit()
    async with relaying(connect, HubSink(hub)) as relay:
        assert await relay.run_once() == 2
        assert await relay.run_once() == 0
    assert await stored(hub) == [1, 3]
    records = await hub.read("orders", 0)
    assert records.column("type").to_pylist() == ["ORDER", "ORDER"]
    assert all(time is not None for time in records.column("event_time").to_pylist())
    assert database.execute(f"SELECT count(*) FROM {outbox.TABLE}").fetchone()[0] == 0
    database.close()


async def test_through_a_cursor(connect: Connect, hub: Hub) -> None:
    database = connect()
    add_event(database.cursor(), "orders", "ORDER", {"é": [1, None]})
    database.commit()
    async with relaying(connect, HubSink(hub)) as relay:
        await relay.run_once()
    assert await stored(hub) == [{"é": [1, None]}]
    database.close()


async def test_several_streams_and_batches(connect: Connect, hub: Hub) -> None:
    database = connect()
    for number in range(25):
        place_order(database, number, "even" if number % 2 == 0 else "odd")
    database.commit()
    async with relaying(connect, HubSink(hub), batch_rows_max=4) as relay:
        while await relay.run_once():
            pass
        assert relay.moved == 25
    assert await stored(hub, "even") == list(range(0, 25, 2))
    assert await stored(hub, "odd") == list(range(1, 25, 2))
    database.close()


class DyingSink(HubSink):
    """Dies at chosen moments, before or after the hub has the batch."""

    def __init__(self, hub: Hub, before: list[bool]) -> None:
        super().__init__(hub)
        self.before = before

    async def append(self, stream: str, events: outbox.Events, producer: str, sequence: int) -> None:
        dies = bool(self.before)
        if dies and self.before[0]:
            self.before.pop(0)
            raise Busy("dead before")
        await super().append(stream, events, producer, sequence)
        if dies:
            self.before.pop(0)
            raise Busy("dead after")


async def test_once_although_the_relay_dies_anywhere(connect: Connect, hub: Hub) -> None:
    database = connect()
    dies = [True, False, False, True, False]
    sink = DyingSink(hub, dies)
    number = 0
    while dies:
        for _ in range(7):
            place_order(database, number)
            number += 1
        database.commit()
        async with relaying(connect, sink, batch_rows_max=5) as relay:  # a new relay, as after a restart
            with contextlib.suppress(Busy):
                await relay.run_once()
    async with relaying(connect, sink) as relay:
        while await relay.run_once():
            pass
    assert await stored(hub) == list(range(number))
    database.close()


@pytest.mark.slow
@pytest.mark.parametrize("connect", ["postgresql"], indirect=True)
async def test_later_commit_of_a_lower_id_is_not_lost(connect: Connect, hub: Hub) -> None:
    """SQLite has one writer at a time, so there ids are in the order of commits."""
    early, late = connect(), connect()
    place_order(early, 1)  # takes the lower id
    place_order(late, 2)
    late.commit()
    async with relaying(connect, HubSink(hub)) as relay:
        assert await relay.run_once() == 1
        early.commit()
        assert await relay.run_once() == 1
    assert await stored(hub) == [2, 1]
    early.close()
    late.close()


async def test_run_goes_on_after_failures(connect: Connect, hub: Hub) -> None:
    database = connect()
    relay = Relay(connect, DyingSink(hub, [True, False]), name="shop")
    running = asyncio.create_task(relay.run())
    for number in range(3):
        place_order(database, number)
        database.commit()
    await until(lambda: relay.moved >= 3)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert await stored(hub) == [0, 1, 2]
    database.close()


async def test_new_name_goes_on_behind_the_numbers_of_the_old(connect: Connect, hub: Hub) -> None:
    """Rows that the old one has numbered and not sent: a number used for two batches would lose the second."""
    database = connect()
    for number in range(3):
        place_order(database, number)
        database.commit()
        async with relaying(connect, DyingSink(hub, [True] if number == 2 else [])) as old:
            with contextlib.suppress(Busy):
                await old.run_once()
    new = Relay(connect, HubSink(hub), name="new")
    for number in range(3, 8):
        place_order(database, number, "orders" if number % 2 else "others")
        database.commit()
        await new.run_once()
    await new.close()
    assert await stored(hub) == [0, 1, 2, 3, 5, 7]
    assert await stored(hub, "others") == [4, 6]
    database.close()


async def test_batch_of_a_relay_that_took_more_rows_is_sent_as_a_whole(connect: Connect, hub: Hub) -> None:
    database = connect()
    for number in range(10):
        place_order(database, number)
    database.commit()
    async with relaying(connect, DyingSink(hub, [True])) as relay:
        with pytest.raises(Busy):
            await relay.run_once()
    async with relaying(connect, HubSink(hub), batch_rows_max=2) as relay:
        while await relay.run_once():
            pass
    assert await stored(hub) == list(range(10))
    database.close()


async def test_restored_database_is_noticed(connect: Connect, hub: Hub) -> None:
    await hub.create_stream("orders")
    await hub.append("orders", Batch.one(b"9"), producer="outbox:shop", sequence=50)
    database = connect()
    place_order(database, 1)
    database.commit()
    relay = Relay(connect, HubSink(hub), name="shop")
    with pytest.raises(OutboxError, match="restored"):
        await relay.run()
    assert await stored(hub) == [9]
    database.close()


@pytest.mark.parametrize("again", [False, True])
async def test_database_restored_to_one_batch_before_is_noticed(again: bool, tmp_path: Path, hub: Hub) -> None:
    """Its next batch has the number of the hub's last one, as a batch that is sent again has. It stays noticed when the
    relay is started again."""
    path = tmp_path / "shop.db"
    database = sqlite3.connect(path)
    outbox.create_tables(database)
    database.execute("CREATE TABLE orders (number INTEGER)")
    for number in range(3):
        if number == 2:
            database.commit()
            shutil.copy(path, tmp_path / "backup.db")
        place_order(database, number)
        database.commit()
        async with relaying(lambda: sqlite3.connect(path), HubSink(hub)) as relay:
            assert await relay.run_once() == 1
    database.close()
    shutil.copy(tmp_path / "backup.db", path)
    database = sqlite3.connect(path)
    place_order(database, 7)
    database.commit()
    for _ in range(1 + again):
        with pytest.raises(OutboxError, match="restored"):
            await Relay(lambda: sqlite3.connect(path), HubSink(hub), name="shop").run()
    assert await stored(hub) == [0, 1, 2]
    renamed = Relay(lambda: sqlite3.connect(path), HubSink(hub), name="shop-2")
    assert await renamed.run_once() == 1
    await renamed.close()
    assert await stored(hub) == [0, 1, 2, 7]
    database.close()


async def test_numbers_of_another_relay_are_not_given_again(connect: Connect, hub: Hub) -> None:
    """What it has left is sent by this one, while nothing new waits; the next number is above."""
    database = connect()
    for number in range(3):
        place_order(database, number)
        database.commit()
        async with relaying(connect, DyingSink(hub, [True] if number == 2 else [])) as old:
            with contextlib.suppress(Busy):
                await old.run_once()
    new = Relay(connect, HubSink(hub), name="new")
    assert await new.run_once() == 1
    for number in range(3, 8):
        place_order(database, number)
        database.commit()
        assert await new.run_once() == 1
    await new.close()
    assert await stored(hub) == list(range(8))
    database.close()


@pytest.mark.parametrize("type", ["", "order", "A1", "A" * 17, "A\n"])
def test_bad_types_are_refused_before_they_are_written(type: str) -> None:
    with sqlite3.connect(":memory:") as database, pytest.raises(BadRequest):
        add_event(database, "s", type, 1)
    database.close()


@pytest.mark.parametrize("stream", ["", "a\nb", "\ud800", "é" * 300])
def test_bad_streams_are_refused_before_they_are_written(stream: str) -> None:
    """A relay could never send them, nor anything behind them."""
    with sqlite3.connect(":memory:") as database, pytest.raises(BadRequest, match="stream"):
        add_event(database, stream, "A", 1)
    database.close()


def test_other_refusals() -> None:
    database = sqlite3.connect(":memory:")
    outbox.create_tables(database)
    with pytest.raises(BadRequest, match="bytes"):
        add_event(database, "s", "A", "x" * outbox.DATA_BYTES_MAX)
    with pytest.raises(BadRequest, match="table"):
        add_event(database, "s", "A", 1, table="a; DROP TABLE b")
    add_event(database, "s", "A", "x" * (outbox.DATA_BYTES_MAX - 2))
    database.close()


def test_own_connection_class() -> None:
    class Own(sqlite3.Connection):
        pass

    database = sqlite3.connect(":memory:", factory=Own)
    assert outbox.dialect_of(database) is outbox.SQLITE
    database.close()


async def test_sink_without_the_stream(hub: Hub) -> None:
    assert await HubSink(hub).last_sequence("none", "p") is None


async def test_to_a_hub_elsewhere(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "shop.db")
    outbox.create_tables(database)
    for number in range(3):
        add_event(database, "orders", "ORDER", number)
    database.commit()
    with served_hub() as served:
        client = connect_async(served.address)
        async with relaying(lambda: sqlite3.connect(tmp_path / "shop.db"), ClientSink(client)) as relay:
            assert await relay.run_once() == 3
        records = await asyncio.to_thread(served.run, served.hub.read("orders", 0))
        assert records.column("payload").to_pylist() == [b"0", b"1", b"2"]
        assert records.column("type").to_pylist() == ["ORDER"] * 3
        assert all(time is not None for time in records.column("event_time").to_pylist())
        assert await ClientSink(client).last_sequence("orders", "outbox:shop") == 1
        assert await ClientSink(client).last_sequence("none", "outbox:shop") is None
        await client.close()
    database.close()
