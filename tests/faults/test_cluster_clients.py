"""Each protocol's clients, published ones among them, through a hub that does not own the log, and through takeovers.

The tests of `kill -9` are run once more, with two hubs on Kafka in the place of one: what was acknowledged is there,
and what was repeated is stored once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import immortal_kills, test_flight_kill, test_futoin_kill, test_ockam_kill, test_perper_kill
from interop import test_ambrosia_described
from kafka_brokers import Brokers
from support.cluster import FailoverHub
from support.until import wait_until

import headrace
from headrace.protocols.wallaroo.client import Connector
from headrace.protocols.wallaroo.sources import GenerateSource

pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.kafka,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # as with a single hub: pyignite
]


@pytest.fixture(autouse=True)
def hubs_are_clusters(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(FailoverHub, "servers", brokers.servers)
    for module in (test_flight_kill, test_futoin_kill, test_ockam_kill, test_perper_kill, immortal_kills):
        monkeypatch.setattr(module, "ForkedHub", FailoverHub)
    monkeypatch.setattr(test_flight_kill, "KILLS", 2)
    monkeypatch.setattr(test_futoin_kill, "ROUNDS", 2)
    yield
    FailoverHub.end()


@pytest.fixture
def up(tmp_path: Path) -> FailoverHub:
    hub = FailoverHub(tmp_path, only=("ignite", "fabric"))
    hub.start()
    return hub


def test_sdk_writer_and_follower(tmp_path: Path) -> None:
    test_flight_kill.test_kill_under_a_writer_and_a_follower(tmp_path)


async def test_ockam_between_confirm_and_pull(tmp_path: Path) -> None:
    await test_ockam_kill.test_killed_between_confirm_and_pull(tmp_path)


async def test_ockam_publisher(tmp_path: Path) -> None:
    await test_ockam_kill.test_a_publisher_outlives_the_hub(tmp_path)


async def test_futoin_clients(tmp_path: Path) -> None:
    await test_futoin_kill.test_killed_again_and_again(tmp_path)


@pytest.mark.node
async def test_futoin_published_receiver(tmp_path: Path, futoin_node_modules: Path) -> None:
    await test_futoin_kill.test_published_receiver_goes_on(tmp_path, futoin_node_modules)


def test_pyignite(up: FailoverHub) -> None:
    test_perper_kill.test_nothing_acknowledged_is_lost(up)


def test_perper_agents(up: FailoverHub, tmp_path: Path) -> None:
    test_perper_kill.test_executions_streams_and_listeners_survive(up, tmp_path)


def test_immortals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs of immortals know one hub, which does not own the log; their ports are the owner's, whichever it
    is."""
    victims = ["hub", "shop", "hub"]
    fire = immortal_kills.Fire(tmp_path, seed=3)
    monkeypatch.setattr(fire, "kill_one", lambda: fire.kill(victims[fire.kills.total()]))
    assert fire.run(len(victims), minutes=5) == []
    assert fire.kills.total() == len(victims)
    assert FailoverHub.clusters[tmp_path].epoch() >= 3, "two takeovers"


@pytest.mark.node
def test_immortals_in_node(tmp_path: Path) -> None:
    """Programs that know the description of AMBROSIA's protocol only, while the owner is killed twice."""
    calls = 10_000
    settings = test_ambrosia_described.immortals()
    hub = FailoverHub(tmp_path, *settings, only=("flight",))
    hub.start()
    with test_ambrosia_described.running(tmp_path, settings, calls) as programs:
        for reached in (calls // 20, calls // 10):
            with headrace.connect(hub.addresses["flight"]) as client:
                wait_until(lambda: client.bounds(test_ambrosia_described.LOG).next > reached, "calls are logged", 120)  # noqa: B023
            hub.kill()
            hub.start()
        test_ambrosia_described.check(programs.results(), calls, lives=3)
    assert FailoverHub.clusters[tmp_path].epoch() >= 3, "two takeovers"


@pytest.mark.parametrize("dialect", ["v3", "draft"])
async def test_wallaroo_connector(dialect: str, tmp_path: Path) -> None:
    count = 4_000
    kills = [count // 3, 2 * count // 3]
    hub = FailoverHub(tmp_path, "wallaroo.window_credits=200", only=("wallaroo", "flight"))
    hub.start()
    address = hub.addresses["wallaroo"]
    connector = Connector(address, dialect=dialect, attempts_max=None, pause_s=lambda attempt: 0.1)
    loop = asyncio.get_running_loop()
    source = GenerateSource(stream="s", count=count, size=60, seed=3)

    async def kill_sometimes(point: int) -> None:
        if kills and point >= kills[0]:
            kills.pop(0)
            await loop.run_in_executor(None, hub.kill)
            await loop.run_in_executor(None, hub.start)

    async with connector:
        assert await asyncio.wait_for(connector.run(source, kill_sometimes), 300) == count
    assert not kills
    with headrace.connect(hub.addresses["flight"]) as client:
        stored = client.read("s").to_arrow()
        assert stored.column("payload").to_pylist() == [source.payload(number) for number in range(1, count + 1)]
        assert client.bounds("s") == (0, count)
