"""Calls that last, when the rights of whoever makes them change."""

import json
from collections.abc import Iterator

import pyarrow.flight as flight
import pytest
from support.flight_peer import PAYLOADS, get, payloads
from support.until import wait_until

import headrace
from headrace.config import Config, SecuritySection
from headrace.errors import Unauthenticated
from headrace.protocols.flight.connections import cut
from headrace.security import new_token
from headrace.testing import ServedHub, served_hub

ORDERS = flight.FlightDescriptor.for_path("orders")


@pytest.fixture
def hub(request, tmp_path, monkeypatch) -> Iterator[ServedHub]:
    """The parameter, if there is one, is how long a client may do nothing."""
    section = SecuritySection(farewell_s=getattr(request, "param", 600))
    monkeypatch.chdir(tmp_path)  # where a hub in memory keeps its users
    with served_hub(Config(security=section)) as served:
        served.run(served.hub.create_stream("orders"))
        yield served


async def _add(hub: ServedHub, name: str) -> str:
    token, digest = new_token()
    hub.hub.security.add_user(name, None, ["writer"])
    hub.hub.security.add_token(name, digest)
    return token


def shown(token: str) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(headers=[(b"authorization", b"Bearer " + token.encode())])


@pytest.fixture
def token(hub: ServedHub) -> str:
    return hub.run(_add(hub, "ann"))


@pytest.fixture
def ann(token: str) -> flight.FlightCallOptions:
    return shown(token)


def change(hub: ServedHub, roles: list[str] | None) -> None:
    async def changed() -> None:
        if roles is None:
            hub.hub.security.remove_user("ann")
        else:
            hub.hub.security.add_user("ann", None, roles)

    hub.run(changed())


def connect(hub: ServedHub) -> flight.FlightClient:
    # gRPC would let clients with the same options share a connection.
    return flight.connect(f"grpc://{hub.address}", generic_options=[("grpc.use_local_subchannel_pool", 1)])


def open_put(hub: ServedHub, client: flight.FlightClient, options: flight.FlightCallOptions):
    writer, acks = client.do_put(ORDERS, PAYLOADS, options)
    writer.write_batch(payloads(b"1"))
    assert json.loads(acks.read().to_pybytes())["first"] >= 0
    return writer, acks


@pytest.mark.parametrize(
    ("roles", "code", "kind"),
    [
        (None, "unauthenticated", flight.FlightUnauthenticatedError),
        (["reader"], "forbidden", flight.FlightUnauthorizedError),
    ],
)
def test_an_upload_that_waits_is_told_at_once_and_stores_nothing_more(hub, ann, roles, code, kind):
    with connect(hub) as client:
        writer, acks = open_put(hub, client, ann)
        change(hub, roles)
        told = json.loads(acks.read().to_pybytes())
        assert (told["batch"], told["error"]["code"]) == (1, code)
        writer.write_batch(payloads(b"2"))
        with pytest.raises(kind):
            writer.close()
    assert hub.hub.bounds("orders").next == 1


def test_a_change_that_does_not_concern_an_upload_leaves_it(hub, ann):
    with connect(hub) as client:
        writer, acks = open_put(hub, client, ann)
        change(hub, ["admin"])
        writer.write_batch(payloads(b"2"))
        assert json.loads(acks.read().to_pybytes())["first"] == 1
        writer.close()


@pytest.mark.parametrize("hub", [0.05], indirect=True)
def test_an_upload_whose_client_does_nothing_is_cut_off_and_others_are_not(hub, ann):
    robot = shown(hub.run(_add(hub, "robot")))
    with connect(hub) as client, connect(hub) as another:
        open_put(hub, client, ann)
        writer, acks = open_put(hub, another, robot)
        change(hub, None)
        wait_until(lambda: len(hub.hub.sessions.list("flight")) == 1)
        writer.write_batch(payloads(b"3"))
        assert json.loads(acks.read().to_pybytes())["first"] == 2
        writer.close()


@pytest.mark.parametrize("hub", [0.05], indirect=True)
def test_a_reader_who_does_not_read_is_cut_off(hub, ann):
    with connect(hub) as client:
        writer, acks = client.do_put(ORDERS, PAYLOADS, ann)
        for _ in range(32):
            writer.write_batch(payloads(bytes(1 << 20)))
            acks.read()
        writer.close()
        reader = client.do_get(flight.Ticket(b'{"stream": "orders"}'), ann)
        reader.read_chunk()
        wait_until(lambda: len(hub.hub.sessions.list("flight")) == 1)
        change(hub, None)
        wait_until(lambda: not hub.hub.sessions.list("flight"))
        with pytest.raises(flight.FlightError):
            reader.read_all()


def test_a_read_that_follows_ends_with_the_right(hub, ann):
    with connect(hub) as client:
        open_put(hub, client, ann)[0].close()
        reader = client.do_get(flight.Ticket(b'{"stream": "orders", "follow": true}'), ann)
        assert reader.read_chunk().data.num_rows == 1
        change(hub, None)
        with pytest.raises(flight.FlightUnauthenticatedError):
            reader.read_chunk()
        with pytest.raises(flight.FlightUnauthenticatedError):
            get(client, stream="orders").read_all()


def test_only_the_peer_that_is_meant_is_cut(hub):
    port = int(hub.address.rpartition(":")[2])
    assert cut(port, peer="ipv4:192.0.2.1:5000") == 0
    assert cut(port, peer="ipv6:%5B2001:db8::1%5D:5000") == 0


def test_the_sdk_tells_why_a_reader_and_a_writer_end(hub, token):
    with headrace.connect(hub.address, token=token) as client:
        client.append("orders", b"1")
        records = iter(client.follow("orders", "earliest"))
        assert next(records).payload == b"1"
        writer = client.writer("orders")
        writer.append(b"2").result()
        change(hub, None)
        with pytest.raises(Unauthenticated):
            writer.append(b"3").result()
        with pytest.raises(Unauthenticated):
            writer.close()
        with pytest.raises(Unauthenticated):
            list(records)
    assert hub.hub.bounds("orders").next == 2
