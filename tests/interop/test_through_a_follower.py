"""The published clients once more, through a hub that does not own the log: they notice nothing.

Two whole hubs run in this process, over Kafka in memory; clients know the address of the follower only.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyignite
import pytest
from interop import test_futoin_npm, test_perper_agent, test_perper_pyignite
from interop.test_flight_plain_client import PROGRAM as FLIGHT_PROGRAM
from interop.test_ockam_rust import program, running
from interop.test_wallaroo_described_client import DescribedClient, run
from support.fake_cluster import FakeCluster
from support.until import DEADLINE_S, wait_until
from support.wallaroo_peer import records

__all__ = ["program"]  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

WINDOW = ("wallaroo.window_credits=50", "wallaroo.credit_bytes=1MiB")
"""All that the described client understands."""
USERS = f"""
[futoin]
insecure = true
mac_keys = {{ macuser = "{test_futoin_npm.MAC_KEY}" }}
global_id = "127.0.0.1"
master_keys = {{ master-1 = {{ user = "macuser", key = "{test_futoin_npm.MAC_KEY}" }} }}
[security.users.evtuser]
secret = "evtpass"
roles = ["writer"]
[security.users.macuser]
secret = "not used"
roles = ["writer"]
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCluster]:
    with FakeCluster(tmp_path_factory.mktemp("hubs"), *WINDOW) as cluster:
        yield cluster


@pytest.fixture
def cache(shared: FakeCluster) -> Iterator[Any]:
    client = pyignite.Client()
    with client.connect("127.0.0.1", shared.ignite_port):
        yield client.get_or_create_cache("kv")


def test_pyignite(cache: Any) -> None:
    test_perper_pyignite.test_put_and_get(cache)
    for number in range(200):
        cache.put(number, number / 2)
    assert cache.get(7) == 3.5
    with cache.scan(page_size=16) as rows:
        assert {key for key, _ in rows if isinstance(key, int)} == set(range(200))


def test_perper_agents(shared: FakeCluster, tmp_path: Path) -> None:
    test_perper_agent.test_calls_errors_and_states(shared, tmp_path)


@pytest.mark.node
async def test_futoin_published(futoin_node_modules: Path, tmp_path: Path) -> None:
    (tmp_path / "hub.toml").write_text(USERS)
    with FakeCluster(tmp_path, only=("http",), config=tmp_path / "hub.toml") as cluster:
        await test_futoin_npm.test_published_clients(futoin_node_modules, cluster.addresses["http"], "JSON")


async def test_wallaroo_as_described(shared: FakeCluster) -> None:
    client = DescribedClient(shared.addresses["wallaroo"], [b"a", b"b"], 300)
    await run(client)
    assert client.problems == []
    for name in ("a", "b"):
        assert shared.call(lambda name=name: shared.hub.bounds(f"instance.{name}")) == (0, 300)


class Halfway(DescribedClient):
    """It pauses when some of its messages are acknowledged."""

    def __init__(self, address: str, last: int) -> None:
        super().__init__(address, [b"a"], last)
        self.is_halfway, self.goes_on = threading.Event(), threading.Event()

    def take_ack(self, stream_id: int, point: int) -> None:
        super().take_ack(stream_id, point)
        if point >= self.last // 2:
            self.is_halfway.set()
            assert self.goes_on.wait(DEADLINE_S)


async def test_wallaroo_as_described_through_a_takeover(tmp_path: Path) -> None:
    with FakeCluster(tmp_path, *WINDOW, only=("wallaroo", "http")) as cluster:
        client = Halfway(cluster.addresses["wallaroo"], 1_000)
        running = asyncio.create_task(run(client))
        assert await asyncio.to_thread(client.is_halfway.wait, DEADLINE_S)
        await asyncio.to_thread(cluster.run, cluster.hand_over())
        client.goes_on.set()
        await running
        assert client.problems == []
        assert client.connections >= 2, "the owner has changed between"
        found = cluster.run(records(cluster.hub, "instance.a"))
        assert [row["id"] for row in found] == list(range(1, 1_001))


def test_plain_flight(shared: FakeCluster, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-W", "ignore", "-c", FLIGHT_PROGRAM, shared.addresses["flight"]]
    ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, timeout=DEADLINE_S, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    assert "orders" in json.loads(ran.stdout)["streams"]


async def test_ockam_rust_and_what_it_sent_outlives_a_takeover(program: Path, tmp_path: Path) -> None:
    """The responder comes when the hub that took the messages is gone, and answers at the next one."""
    texts = ["Hello World!", "grüß dich 水", ""]
    with FakeCluster(tmp_path, only=("ockam", "http")) as cluster:
        address = cluster.addresses["ockam"]

        def stored(stream: str) -> int:
            return cluster.call(lambda: cluster.hub.bounds(stream).next if cluster.hub.has_stream(stream) else 0)

        async with running(program, "initiator", address, *texts):
            await asyncio.to_thread(wait_until, lambda: stored("to-responder") > 0)
            sent = stored("to-responder")
        await asyncio.to_thread(cluster.run, cluster.hand_over())
        async with running(program, "responder", address):
            await asyncio.to_thread(wait_until, lambda: stored("to-initiator") >= sent)
