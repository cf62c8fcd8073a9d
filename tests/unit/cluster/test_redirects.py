"""With `cluster.forward = "redirect"` clients at a follower are told, in their protocol's words, where the owner is."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pyarrow.flight as flight
import pyignite
import pytest
from support.fake_cluster import FakeCluster

import headrace
from headrace.config.address import split_address
from headrace.hub.peers import REDIRECT_AGAIN_S, REDIRECTED_MAX, Introduced, Peers
from headrace.protocols.wallaroo.client import Connector

pytestmark = pytest.mark.slow

ONLY = ("flight", "wallaroo", "ignite", "http")


@pytest.fixture(scope="module", params=["redirect", "proxy"])
def cluster(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[FakeCluster]:
    with FakeCluster(tmp_path_factory.mktemp("hubs"), f"cluster.forward={request.param}", only=ONLY) as made:
        made.redirects = request.param == "redirect"  # type: ignore[attr-defined]
        yield made


def redirects(cluster: FakeCluster) -> bool:
    return bool(cluster.redirects)  # type: ignore[attr-defined]


def test_flight_names_the_owner_and_the_way_that_is_there(cluster: FakeCluster) -> None:
    with headrace.connect(cluster.addresses["flight"]) as client:
        client.create("s", partitions=2)
        client.append("s", [b"1"])
    owner = cluster.owner.addresses["flight"]
    expected = [f"grpc://{owner}".encode(), b"arrow-flight-reuse-connection://?"] if redirects(cluster) else []
    descriptors = (flight.FlightDescriptor.for_path("s"), flight.FlightDescriptor.for_command(b'{"stream": "s"}'))
    with flight.FlightClient(f"grpc://{cluster.addresses['flight']}") as asked:
        for descriptor in descriptors:
            info = asked.get_flight_info(descriptor)
            assert [place.uri for place in info.endpoints[0].locations] == expected
        (listed,) = asked.list_flights(b'{"pattern": "s"}')
        assert [place.uri for place in listed.endpoints[1].locations] == expected
        if expected:
            with flight.FlightClient(info.endpoints[0].locations[0]) as straight:
                assert straight.do_get(info.endpoints[0].ticket).read_all().num_rows == 1
        assert asked.do_get(info.endpoints[0].ticket).read_all().num_rows == 1
    with flight.FlightClient(f"grpc://{owner}") as asked:
        assert asked.get_flight_info(descriptors[0]).endpoints[0].locations == [], "there is no better place"


def test_http_leads_to_the_owner(cluster: FakeCluster) -> None:
    with urllib.request.urlopen(f"http://{cluster.addresses['http']}/", timeout=60) as answer:
        hub = cluster.owner if redirects(cluster) else cluster.follower
        assert answer.geturl() == f"http://{hub.addresses['http']}/"
        assert "<title>" in answer.read().decode(), "the console is the owner's"


@pytest.mark.parametrize("dialect", ["v3", "draft"])
async def test_wallaroo_connectors_are_restarted_at_the_owner(cluster: FakeCluster, dialect: str) -> None:
    cluster.call(cluster.hub.peers._redirected.clear)
    for attempt in range(2):
        async with Connector(cluster.addresses["wallaroo"], dialect=dialect) as connector:
            stream = await connector.stream(f"{dialect}-{attempt}")
            await stream.send(b"1")
            await stream.flush()
            is_first = redirects(cluster) and attempt == 0 and dialect == "v3"  # the draft has no RESTART
            assert connector.address == (cluster.owner if is_first else cluster.follower).addresses["wallaroo"]
            assert connector.connections == (2 if is_first else 1)
        assert cluster.call(lambda name=f"{dialect}-{attempt}": cluster.hub.bounds(name).next) == 1


def test_pyignite_prefers_the_owner(cluster: FakeCluster) -> None:
    client = pyignite.Client(partition_aware=True)
    follower, owner = (split_address(hub.addresses["ignite"]) for hub in (cluster.follower, cluster.owner))
    with client.connect([follower, owner]):
        assert len({node.uuid for node in client._nodes}) == 2, "two hubs are two nodes"
        cache = client.get_or_create_cache("numbers")
        for key in (1, "a", 2.5, True):
            cache.put(key, key)
            assert cache.get(key) == key
            if redirects(cluster):
                assert client.get_best_node(cache, key).port == owner[1]
    with client.connect(*follower):
        assert client.get_cache("numbers").get("a") == "a", "who knows no other hub asks this one"


def test_a_client_is_sent_elsewhere_once_in_a_while() -> None:
    clock = [0.0]
    peers = Peers(lambda: clock[0])
    peers.introduce("10.0.0.2:1", Introduced("192.0.2.7:5", "hub-2"))
    peers.introduce("10.0.0.2:2", Introduced("192.0.2.7:6", "hub-2"))
    assert peers.redirect("10.0.0.2:1", "wallaroo") is None, "the settings say to pass on"
    peers.own = {"wallaroo": "hub-1:7100"}
    assert peers.redirect("192.0.2.7:5", "wallaroo") is None, "it is here already"
    assert peers.redirect("10.0.0.2:1", "wallaroo") == "hub-1:7100"
    assert peers.redirect("10.0.0.2:2", "wallaroo") is None, "it came the same way again"
    clock[0] += REDIRECT_AGAIN_S
    assert peers.redirect("10.0.0.2:2", "wallaroo") == "hub-1:7100"
    for number in range(REDIRECTED_MAX):
        peers.introduce("10.0.0.2:3", Introduced(f"host-{number}:1", "hub-2"))
        assert peers.redirect("10.0.0.2:3", "wallaroo") is not None
    assert len(peers._redirected) == REDIRECTED_MAX
