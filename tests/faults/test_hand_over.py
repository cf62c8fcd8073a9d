"""A planned stop of the owner under load: clients that know the follower go on, and none of their requests fails.

Two whole hubs run in this process, over Kafka in memory. Each client counts what was acknowledged and what failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pyignite
import pytest
from support.fake_cluster import FakeCluster
from support.until import wait_until

import headrace
from headrace.config.address import split_address
from headrace.protocols.futoin import client as futoin
from headrace.protocols.ockam.client import Publisher
from headrace.protocols.wallaroo.client import Connector

pytestmark = pytest.mark.slow

BEFORE, AFTER = 20, 20
"""Requests of each client, on both sides of the hand-over."""


class Counting:
    """A client in a thread of its own, that asks until it is told to stop."""

    def __init__(self, name: str, once: Callable[[], object]) -> None:
        self.name = name
        self.done = 0
        self.errors: list[str] = []
        self._once = once
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._once()
                self.done += 1
            except Exception as error:
                self.errors.append(repr(error))

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), self.name


@contextlib.contextmanager
def in_a_loop() -> Iterator[Callable[[Awaitable[object]], object]]:
    """For clients with a loop of their own."""
    runner = asyncio.Runner()

    async def awaited(work: Awaitable[object]) -> object:
        return await work

    try:
        yield lambda work: runner.run(awaited(work))
    finally:
        runner.close()


def ask_http(address: str) -> None:
    connection = http.client.HTTPConnection(*split_address(address), timeout=60)
    try:
        connection.request("POST", "/api/v1/stream.list", b"{}", {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
    finally:
        connection.close()


def through_a_hand_over(cluster: FakeCluster, *clients: Counting) -> None:
    """Until each has done enough before and after."""
    try:
        for client in clients:
            wait_until(lambda client=client: client.done >= BEFORE)
        cluster.run(cluster.hand_over())
        reached = [client.done for client in clients]
        for client, done in zip(clients, reached, strict=True):
            wait_until(lambda client=client, done=done: client.done >= done + AFTER)
    finally:
        for client in clients:
            client.stop()


def test_sdk_and_http_clients(tmp_path: Path) -> None:
    with (
        FakeCluster(tmp_path, only=("flight", "http")) as cluster,
        headrace.connect(cluster.addresses["flight"]) as client,
        headrace.connect(cluster.addresses["flight"]) as other,
    ):
        for name in ("written", "appended"):
            client.create(name)
        with other.writer("written", producer="p", sequence=0, retry_s=60) as writer:
            clients = [
                Counting("writer", lambda: writer.append([b"x"]).result(60)),
                Counting("append", lambda: client.append("appended", [b"x"])),
                Counting("verb", lambda: client.bounds("appended")),
                Counting("read", lambda: client.read("appended", 0, end=10).to_arrow()),
                Counting("http", lambda: ask_http(cluster.addresses["http"])),
            ]
            through_a_hand_over(cluster, *clients)
        assert {each.name: each.errors for each in clients if each.errors} == {}
        assert client.bounds("written").next == clients[0].done
        assert client.bounds("appended").next == clients[1].done, "none twice, though it carries no sequence"


def test_an_sdk_that_knows_two_hubs_goes_on_when_its_own_is_gone(tmp_path: Path) -> None:
    """It talks to the owner itself, which stops for good."""
    with FakeCluster(tmp_path, only=("flight", "http")) as cluster:
        owner, follower = (hub.addresses["flight"] for hub in (cluster.owner, cluster.follower))
        with headrace.connect(f"{owner},{follower}") as client:
            client.create("appended")
            clients = [
                Counting("append", lambda: client.append("appended", [b"x"])),
                Counting("verb", lambda: client.bounds("appended")),
            ]
            through_a_hand_over(cluster, *clients)
            assert {each.name: each.errors for each in clients if each.errors} == {}
            assert client.bounds("appended").next == clients[0].done
            assert client.address == follower


def test_ockam_and_wallaroo_clients(tmp_path: Path) -> None:
    with (
        FakeCluster(tmp_path, only=("ockam", "wallaroo", "http")) as cluster,
        in_a_loop() as ockam_loop,
        in_a_loop() as wallaroo_loop,
    ):
        publisher = Publisher(cluster.addresses["ockam"], "o")
        connector = Connector(cluster.addresses["wallaroo"])
        sending = []

        async def send() -> None:
            if not sending:
                await connector.__aenter__()
                sending.append(await connector.stream("w"))
            await sending[0].send(b"x")
            await sending[0].flush()

        async def publish() -> None:
            if not publishing:
                publishing.append(await publisher.__aenter__())
            await publisher.publish(b"x")

        publishing: list[object] = []
        clients = [
            Counting("ockam", lambda: ockam_loop(publish())),
            Counting("wallaroo", lambda: wallaroo_loop(send())),
        ]
        through_a_hand_over(cluster, *clients)
        ockam_loop(publisher.__aexit__(None, None, None))
        wallaroo_loop(connector.__aexit__(None, None, None))
        assert {each.name: each.errors for each in clients if each.errors} == {}
        assert cluster.call(lambda: cluster.hub.bounds("o").next) == clients[0].done
        assert cluster.call(lambda: cluster.hub.bounds("w").next) == clients[1].done


def test_futoin_over_a_websocket(tmp_path: Path) -> None:
    """What the hub had not heard when it stopped is sent again to the next one, and nothing is there twice."""
    with FakeCluster(tmp_path, "futoin.insecure=true", only=("http",)) as cluster, in_a_loop() as loop:
        url = f"ws://{cluster.addresses['http']}/futoin/f"
        client: list[futoin.Client] = []

        async def add() -> None:
            if not client:
                client.append(await futoin.Client.connect(url, restart_s=60))
            await asyncio.gather(*(client[0].add("E", number) for number in range(20)))

        adding = Counting("futoin", lambda: loop(add()))
        through_a_hand_over(cluster, adding)
        loop(client[0].close())
        assert adding.errors == []
        assert client[0].connections == 2
        assert cluster.call(lambda: cluster.hub.bounds("f").next) == 20 * adding.done


def test_a_client_that_never_asks_twice_loses_one_request_at_most(tmp_path: Path) -> None:
    """pyignite has no word from the hub that it should come again, and reports its connection broken once."""
    with FakeCluster(tmp_path, only=("ignite", "http")) as cluster:
        client = pyignite.Client()
        with client.connect(*split_address(cluster.addresses["ignite"])):
            cache = client.get_or_create_cache("c")
            keys = iter(range(1_000_000))
            putting = Counting("pyignite", lambda: cache.put(next(keys), 1))
            through_a_hand_over(cluster, putting)
            assert len(putting.errors) <= 1, putting.errors
            assert cache.get_size() in (putting.done, putting.done + len(putting.errors))
