"""kill -9 of a real hub, and of a real connector, while records flow: no gap and no duplicate afterwards."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path

import pytest
from support.forked_hub import ForkedHub
from support.until import wait_until

import headrace
from headrace.hub import Hub
from headrace.protocols.wallaroo.client import Connector
from headrace.protocols.wallaroo.sources import GenerateSource

pytestmark = pytest.mark.slow

COUNT = 20_000
SIZE = 60
SEED = 3
ENDLESS = 10**9
"""More records than any machine stores between two kills."""


async def check(data: Path, stream: str, count: int) -> None:
    """Every record once, in order, with the bytes that were sent."""
    source = GenerateSource(stream=stream, count=count, size=SIZE, seed=SEED)
    hub = await Hub.open(data)
    try:
        assert hub.bounds(stream) == (0, count)
        assert list(hub.producers(stream).values()) == [count]
        expected = 1
        while expected <= count:
            batch = await hub.read(stream, expected - 1, limit=10_000, max_bytes=1 << 24)
            for number, payload in zip(batch["id"].to_pylist(), batch["payload"].to_pylist(), strict=True):
                assert number == expected
                assert payload == source.payload(number)
                expected += 1
    finally:
        await hub.close()


@pytest.mark.parametrize("dialect", ["v3", "draft"])
async def test_a_hub_killed_again_and_again(dialect: str, tmp_path: Path) -> None:
    kills = [COUNT * part // 5 for part in range(1, 5)]
    killed_at: list[int] = []
    with ForkedHub(tmp_path, "wallaroo.window_credits=200", only=("wallaroo",)) as hub:
        connector = Connector(
            hub.addresses["wallaroo"], dialect=dialect, attempts_max=None, pause_s=lambda attempt: 0.02
        )
        loop = asyncio.get_running_loop()

        async def kill_sometimes(point: int) -> None:
            if len(killed_at) < len(kills) and point >= kills[len(killed_at)]:
                killed_at.append(point)
                hub.kill()
                await loop.run_in_executor(None, hub.start)

        async with connector:
            source = GenerateSource(stream="s", count=COUNT, size=SIZE, seed=SEED)
            assert await asyncio.wait_for(connector.run(source, kill_sometimes), 120) == COUNT
        assert len(killed_at) == len(kills)
        assert connector.connections == len(kills) + 1
        assert hub.stop() == 0
        await check(hub.data, "s", COUNT)


@pytest.mark.parametrize("dialect", ["v3", "draft"])
async def test_a_connector_killed_again_and_again(dialect: str, tmp_path: Path) -> None:
    """The connector's next life knows nothing: what it needs is in the hub."""
    rng = random.Random(7)
    command = [sys.executable, "-m", "headrace", "connect", "generate", "--stream", "s", "--quiet"]
    command += ["--size", str(SIZE), "--seed", str(SEED), "--dialect", dialect]
    with ForkedHub(tmp_path, "wallaroo.window_credits=50", only=("wallaroo", "flight")) as hub:
        command += ["--to", hub.addresses["wallaroo"]]
        with headrace.connect(hub.addresses["flight"]) as client:
            for _ in range(4):
                goal = stored(client) + rng.randrange(1, COUNT // 5)
                process = subprocess.Popen([*command, "--count", str(ENDLESS)], stderr=subprocess.DEVNULL)
                try:
                    wait_until(lambda goal=goal: stored(client) >= goal)
                    assert process.poll() is None, "it ended by itself"
                finally:
                    process.kill()
                    process.wait()
            count = stored(client) + COUNT // 5
        subprocess.run([*command, "--count", str(count)], check=True, timeout=120, stderr=subprocess.DEVNULL)
        assert hub.stop() == 0
        await check(hub.data, "s", count)


def stored(client: headrace.Client) -> int:
    return client.bounds("s").next if client.streams("s") else 0
