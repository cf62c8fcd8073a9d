"""kill -9 of a real hub process: what was confirmed is there, at its index, under the same address."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from support.forked_hub import ForkedHub
from support.until import DEADLINE_S

from headrace.protocols.ockam.client import Connection, ConnectionLost, Publisher, Stream, connect

pytestmark = pytest.mark.slow


async def pull_all(connection: Connection, stream: Stream) -> dict[int, bytes]:
    records: dict[int, bytes] = {}
    while batch := await connection.pull(stream, max(records, default=-1) + 1, 1_000):
        records.update((message.index, message.data) for message in batch)
    return records


async def test_killed_between_confirm_and_pull(tmp_path: Path) -> None:
    with ForkedHub(tmp_path, only=("ockam",)) as hub:
        connection = await connect(hub.addresses["ockam"])
        stream = await connection.create("orders")
        assert await connection.push(stream, b"confirmed") == 0
        connection.save_index("billing", stream, 1)
        assert await connection.get_index("billing", stream) == 1
        hub.kill()
        await connection.close()
    with ForkedHub(tmp_path, only=("ockam",)) as hub:
        async with await connect(hub.addresses["ockam"]) as connection:
            assert await pull_all(connection, stream) == {0: b"confirmed"}
            connection.save_index("billing", stream, 0)
            assert await connection.get_index("billing", stream) == 1
            assert await connection.push(stream, b"next") == 1


async def test_killed_under_load_again_and_again(tmp_path: Path) -> None:
    source = random.Random(9)
    confirmed: dict[int, bytes] = {}
    stream: Stream | None = None
    saved = 0
    for life in range(4):
        with ForkedHub(tmp_path, only=("ockam",)) as hub:
            connection = await connect(hub.addresses["ockam"])
            if stream is not None:
                records = await pull_all(connection, stream)
                assert {index: records.get(index) for index in confirmed} == confirmed
                assert sorted(records) == list(range(len(records)))
                index = await connection.get_index("billing", stream)
                assert index is not None
                assert saved <= index <= len(records)
                saved = index
            stream = stream or await connection.create("orders")
            confirmed_groups = source.randint(5, 30)
            under_way: list[tuple[list[bytes], asyncio.Future[list[int]]]] = []
            number = 0
            while sum(pushed.done() for _, pushed in under_way) < confirmed_groups:
                group = [b"%d %d" % (life, number + n) for n in range(source.randint(1, 200))]
                number += len(group)
                under_way.append((group, connection.push_all(stream, group)))
                if number % 3 == 0 and confirmed:
                    connection.save_index("billing", stream, max(confirmed))
                await connection.drain()
                await asyncio.sleep(0)
            hub.kill()
            await connection.close()
        for group, pushed in under_way:
            try:
                confirmed.update(zip(await pushed, group, strict=True))
            except ConnectionLost:
                continue
    assert len(confirmed) >= 4 * 5


async def test_a_publisher_outlives_the_hub(tmp_path: Path) -> None:
    """The delivery recipe: what the publisher was told is stored is stored, in order, across a kill."""
    address = ""

    async def dial() -> Connection:
        return await connect(address)

    with ForkedHub(tmp_path, only=("ockam",)) as hub:
        address = hub.addresses["ockam"]
        async with Publisher(dial, "orders") as publisher:
            before = await publisher.publish_all([b"%d" % n for n in range(50)])
            hub.kill()
            later = [publisher.publish_all([b"%d" % n]) for n in range(50, 100)]
            with ForkedHub(tmp_path, only=("ockam",)) as again:
                address = again.addresses["ockam"]
                async with asyncio.timeout(DEADLINE_S):
                    after = [(await future)[0] for future in later]
                async with await connect(address) as connection:
                    records = await pull_all(connection, await connection.create("orders"))
    assert before == list(range(50))
    assert after == sorted(after)
    assert [records[index] for index in before + after] == [b"%d" % n for n in range(100)]
