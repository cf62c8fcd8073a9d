"""kill -9 of a real hub process: what was confirmed is there, at its index, under the same address."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import headrace
from headrace.protocols.ockam.client import Connection, ConnectionLost, Publisher, Stream, connect
from headrace.serving.runtime import LISTENERS

pytestmark = pytest.mark.slow

START_S_MAX = 60
# The process runs the same code as this test, installed or not.
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(headrace.__file__).parent.parent)}


class HubProcess:
    """`headrace up` with only the Ockam listener."""

    def __init__(self, data: Path) -> None:
        self._ready = data / "ready.json"
        self._ready.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "headrace",
            "up",
            "--data",
            str(data / "log"),
            "--ready-file",
            str(self._ready),
        ]
        for name in LISTENERS:
            command += ["--set", f"listen.{name}=off"]
        command += ["--set", "listen.ockam=127.0.0.1:0"]
        self._log = (data / "hub.log").open("ab")
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, env=ENVIRONMENT)

    def address(self) -> str:
        """Where it listens, once it does."""
        deadline = time.monotonic() + START_S_MAX
        while not self._ready.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the hub did not start: {Path(self._log.name).read_text()}")
            time.sleep(0.01)
        address: str = json.loads(self._ready.read_text())["ockam"]
        return address

    def kill(self) -> None:
        """kill -9; by the time this returns the process is gone."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait(START_S_MAX)
        self._log.close()


@contextmanager
def hub_process(data: Path) -> Iterator[HubProcess]:
    process = HubProcess(data)
    try:
        yield process
    finally:
        process.kill()


async def pull_all(connection: Connection, stream: Stream) -> dict[int, bytes]:
    records: dict[int, bytes] = {}
    while batch := await connection.pull(stream, max(records, default=-1) + 1, 1_000):
        records.update((message.index, message.data) for message in batch)
    return records


async def test_killed_between_confirm_and_pull(tmp_path: Path) -> None:
    with hub_process(tmp_path) as hub:
        connection = await connect(hub.address())
        stream = await connection.create("orders")
        assert await connection.push(stream, b"confirmed") == 0
        connection.save_index("billing", stream, 1)
        assert await connection.get_index("billing", stream) == 1
        hub.kill()
        await connection.close()
    with hub_process(tmp_path) as hub:
        async with await connect(hub.address()) as connection:
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
        with hub_process(tmp_path) as hub:
            connection = await connect(hub.address())
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

    with hub_process(tmp_path) as hub:
        address = hub.address()
        async with Publisher(dial, "orders") as publisher:
            before = await publisher.publish_all([b"%d" % n for n in range(50)])
            hub.kill()
            later = [publisher.publish_all([b"%d" % n]) for n in range(50, 100)]
            with hub_process(tmp_path) as again:
                address = again.address()
                async with asyncio.timeout(START_S_MAX):
                    after = [(await future)[0] for future in later]
                async with await connect(address) as connection:
                    records = await pull_all(connection, await connection.create("orders"))
    assert before == list(range(50))
    assert after == sorted(after)
    assert [records[index] for index in before + after] == [b"%d" % n for n in range(100)]
