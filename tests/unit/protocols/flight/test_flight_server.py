"""Looking, verbs, stopping and logging in over a real socket, with a Flight client that knows nothing of Headrace."""

import asyncio
import threading
from types import SimpleNamespace

import msgspec
import pyarrow.flight as flight
import pytest
from support.flight_peer import PAYLOADS, call, code_of, command, failing, get, payloads, put, rows
from support.until import wait_until

from headrace.cli.tls import make_self_signed
from headrace.config import Config, SecuritySection, Tls, User
from headrace.log.batch import Batch
from headrace.protocols.flight import connections
from headrace.protocols.flight.bridge import Bridge
from headrace.protocols.flight.server import FlightServer, serve
from headrace.protocols.flight.settings import Flight
from headrace.security import Principal
from headrace.security.login_limit import ADDRESS_FACTOR
from headrace.security.principal import BUILT_IN_ROLES
from headrace.testing import memory_hub, served_hub


def test_flight_info_has_a_ticket_for_each_partition(ten):
    info = ten.get_flight_info(flight.FlightDescriptor.for_path("orders"))
    assert info.total_records == 10
    assert [len(ten.do_get(endpoint.ticket).read_all()) for endpoint in info.endpoints] == [10, 0]
    info = ten.get_flight_info(flight.FlightDescriptor.for_path("orders", "1"))
    assert (info.total_records, len(info.endpoints)) == (0, 1)
    info = ten.get_flight_info(command(stream="orders", start=4, columns=["index"]))
    assert info.total_records == 6
    assert info.schema.names == ["index"]
    assert ten.do_get(info.endpoints[0].ticket).read_all().num_rows == 6
    assert ten.get_flight_info(command(stream="orders", follow=True)).total_records == -1
    assert ten.get_schema(flight.FlightDescriptor.for_path("orders")).schema.names[0] == "index"
    with failing() as caught:
        ten.get_flight_info(flight.FlightDescriptor.for_path("nowhere"))
    assert code_of(caught.value) == "unknown-stream"


def test_list_flights(served, ten):
    served.run(served.hub.create_stream("other"))
    assert {info.descriptor.path[0] for info in ten.list_flights()} == {b"orders", b"other"}
    (only,) = ten.list_flights(b'{"pattern":"oth*"}')
    assert only.descriptor.path == [b"other"]
    served.run(served.hub.create_table("prices"))
    assert [info.descriptor.path[0] for info in ten.list_flights(b'{"kind":"table"}')] == [b"prices"]
    assert len(list(ten.list_flights(b'{"kind":null}'))) == 3
    with failing():
        list(ten.list_flights(b"{"))


def test_every_verb_is_an_action(served, plain):
    names = {action.type for action in plain.list_actions()}
    assert names == {verb.name for verb in served.hub.verbs}
    assert "stream.create" in names


def test_an_action_that_is_not_a_verb(plain):
    with failing() as caught:
        call(plain, "stream.fly")
    assert code_of(caught.value) == "unknown-verb"


def test_a_bug_is_not_told_to_the_client(served, plain, caplog):
    async def broken(request: msgspec.Struct) -> None:
        raise ZeroDivisionError("a secret")

    served.hub.verbs.register("test.broken", msgspec.Struct, broken, right="read")
    with failing(flight.FlightInternalError) as caught:
        call(plain, "test.broken")
    assert "secret" not in str(caught.value)
    assert "a secret" in caplog.text


def test_a_request_has_so_many_bytes_and_no_more():
    config = Config(flight=Flight(action_bytes_max=100))
    with served_hub(config) as served, flight.connect(f"grpc://{served.address}") as client:
        body = msgspec.json.encode({"pattern": "x"})
        assert list(client.do_action(flight.Action("stream.list", body.ljust(100))))
        with failing() as caught:
            list(client.do_action(flight.Action("stream.list", body.ljust(101))))
    assert code_of(caught.value) == "limit-exceeded"
    assert "flight.action_bytes_max" in str(caught.value)


def test_sessions_are_shown(served, ten):
    reader = get(ten, stream="orders", follow=True)
    reader.read_chunk()
    (session,) = served.hub.sessions.list("flight")
    assert session.details == {"state": "following", "streams": ["orders/0"], "position": [10], "sent": 10}
    reader.cancel()
    wait_until(lambda: not served.hub.sessions.list("flight"), "ended")
    ended = served.hub.sessions.list("flight", ended=True)
    assert {info.details["state"] for info in ended} == {"following", "ended"}


def test_metrics_count_records(served, ten):
    rows(ten, stream="orders")
    text = served.hub.metrics.text().decode()
    assert 'headrace_records_in_total{protocol="flight"} 10.0' in text
    assert 'headrace_records_out_total{protocol="flight"} 10.0' in text


def test_a_hub_that_stops_tells_its_followers(served, orders):
    reader = get(orders, stream="orders", follow=True)
    wait_until(lambda: served.hub.sessions.list("flight"), "the reader is open")
    served.stop()
    with failing(flight.FlightUnavailableError) as caught:
        reader.read_chunk()
    assert code_of(caught.value) == "closed"


@pytest.mark.slow
async def test_a_stop_does_not_wait_for_clients_that_do_nothing():
    """One client has an open put, another does not read what it asked for: neither holds up the stop."""
    async with memory_hub() as hub:
        await hub.create_stream("orders")
        await hub.append("orders", Batch.of([b"x" * 1024] * 32 * 1024))
        listener = await serve(hub, "127.0.0.1:0")
        client = flight.connect(f"grpc://{listener.address}")
        writer, acks = await asyncio.to_thread(client.do_put, flight.FlightDescriptor.for_path("orders"), PAYLOADS)
        await asyncio.to_thread(writer.write_batch, payloads(b"x"))
        await asyncio.to_thread(acks.read)
        reader = await asyncio.to_thread(get, client, stream="orders", batch_bytes=1 << 20)
        await asyncio.to_thread(reader.read_chunk)
        await asyncio.wait_for(listener.close(), 60)
        with failing():
            await asyncio.to_thread(reader.read_all)
        with failing():
            await asyncio.to_thread(writer.close)
        client.close()


async def test_after_a_stop_the_port_is_free():
    async with memory_hub() as hub:
        listener = await serve(hub, "127.0.0.1:0")
        await listener.close()
        again = await serve(hub, listener.address)
        assert again.address == listener.address
        await again.close()


def test_cut_connections_touches_nothing_else(orders):
    assert connections.cut(1) == 0
    assert put(orders, [payloads(b"x")])


USERS = SecuritySection(
    users={
        "ann": User(secret="pear", tokens=["ann-token"], roles=["admin"]),
        "rob": User(tokens=["rob-token"], roles=["reader"]),
    }
)


def options(header: str) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(headers=[(b"authorization", header.encode())])


@pytest.fixture
def guarded():
    with served_hub(Config(security=USERS)) as served:
        served.run(served.hub.create_stream("orders"))
        with flight.connect(f"grpc://{served.address}") as client:
            yield client


def test_strangers_are_refused_everywhere(guarded):
    path = flight.FlightDescriptor.for_path("orders")
    attempts = [
        lambda: call(guarded, "stream.list"),
        lambda: call(guarded, "stream.list", options("Bearer wrong")),
        lambda: call(guarded, "stream.list", options("Basic !")),
        lambda: call(guarded, "stream.list", options("Bearer hf_forged")),
        lambda: get(guarded, stream="orders").read_all(),
        lambda: put(guarded, [payloads(b"x")]),
        lambda: guarded.get_flight_info(path),
        lambda: list(guarded.list_flights()),
        lambda: list(guarded.list_actions()),
    ]
    for attempt in attempts:
        with failing(flight.FlightUnauthenticatedError) as caught:
            attempt()
        assert code_of(caught.value) == "unauthenticated"
    with pytest.raises(OSError, match="this hub asks who you are"):  # pyarrow loses the kind of this one
        guarded.get_schema(path)


def test_a_token_and_a_password_open_the_door(guarded):
    for header in ("Bearer ann-token", "Basic YW5uOnBlYXI="):
        assert call(guarded, "stream.list", options(header))[0]["name"] == "orders"


def test_the_handshake_gives_a_token(guarded):
    pair = guarded.authenticate_basic_token("ann", "pear")
    assert pair[1].startswith(b"Bearer hf_")
    assert call(guarded, "stream.list", flight.FlightCallOptions(headers=[pair]))
    with failing(flight.FlightUnauthenticatedError):
        guarded.authenticate_basic_token("ann", "apple")


def test_wrong_handshakes_lock_nobody_out():
    section = SecuritySection(users={"ann": User(secret="pear", roles=["admin"])}, login_failures_max=1)
    with served_hub(Config(security=section)) as served, flight.connect(f"grpc://{served.address}") as client:
        for number in range(ADDRESS_FACTOR):
            with failing(flight.FlightUnauthenticatedError):
                client.authenticate_basic_token(f"stranger{number}", "apple")
        right = flight.FlightCallOptions(headers=[client.authenticate_basic_token("ann", "pear")])
        assert call(client, "stream.list", right) == []
        wrong = flight.FlightCallOptions(headers=[client.authenticate_basic_token("ann", "plum")])
        codes = []
        for _ in range(2):  # a guess is looked at where its address is known
            with failing() as caught:
                call(client, "stream.list", wrong)
            codes.append(code_of(caught.value))
        assert codes == ["unauthenticated", "too-many-logins"]
        assert call(client, "stream.list", right) == []


@pytest.mark.parametrize("token", ["hu_", "hu_x", "hu__w==", "hf_unknown"])
def test_a_made_up_handshake_token_opens_nothing(guarded, token):
    with failing(flight.FlightUnauthenticatedError):
        call(guarded, "stream.list", options(f"Bearer {token}"))


def test_rights_are_checked(guarded):
    reader = options("Bearer rob-token")
    assert guarded.do_get(flight.Ticket(b'{"stream":"orders"}'), reader).read_all().num_rows == 0
    writer, _ = guarded.do_put(flight.FlightDescriptor.for_path("orders"), PAYLOADS, reader)
    with failing(flight.FlightUnauthorizedError) as caught:
        writer.close()
    assert code_of(caught.value) == "forbidden"
    assert "'rob' may not write stream 'orders'" in str(caught.value)
    with failing(flight.FlightUnauthorizedError):
        call(guarded, "stream.delete", reader, stream="orders")


def test_tls(tmp_path):
    key, root = make_self_signed(["127.0.0.1"])
    (tmp_path / "key.pem").write_bytes(key)
    (tmp_path / "certificate.pem").write_bytes(root)
    config = Config(tls=Tls(certificate=str(tmp_path / "certificate.pem"), key=str(tmp_path / "key.pem")))
    with served_hub(config) as served:
        with flight.connect(f"grpc+tls://{served.address}", tls_root_certs=root) as client:
            assert call(client, "stream.list") == []
        with flight.connect(f"grpc://{served.address}") as client, failing():
            call(client, "stream.list")


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0"])
def test_guessing_over_new_connections_is_held_back(address):
    section = SecuritySection(users={"alice": User(secret="right")}, login_failures_max=1)
    codes = []
    with served_hub(Config(security=section), address=address) as served:
        for number in range(12):
            # an own channel for each, so that each has a port of its own
            only_here = [("grpc.use_local_subchannel_pool", 1)]
            with flight.connect(f"grpc://{served.address}", generic_options=only_here) as client:
                token = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer guess-%d" % number)])
                with failing() as caught:
                    call(client, "stream.list", token)
                codes.append(code_of(caught.value))
    assert codes == ["unauthenticated"] * 10 + ["too-many-logins"] * 2


class ShortLived:
    """The context of a call: gRPC frees it when the call has ended, which the loop may not have noticed yet."""

    def __init__(self):
        self._thread = threading.get_ident()

    def peer(self):
        assert threading.get_ident() == self._thread, "whoever looks from elsewhere may look at freed memory"
        return "ipv4:127.0.0.1:5000"

    def is_cancelled(self):
        return False

    def get_middleware(self, name):
        return SimpleNamespace(
            principal=lambda peer: Principal("ada", ("admin",), tuple(BUILT_IN_ROLES["admin"])), headers={}
        )


async def test_the_loop_does_not_look_at_the_context_of_a_call():
    """A hub that stopped while a get or a put began ended with SIGSEGV."""
    async with memory_hub() as hub:
        await hub.create_stream("orders")
        server = FlightServer(hub, Bridge(asyncio.get_running_loop()), "grpc://127.0.0.1:0")

        def call() -> None:
            server.do_get(ShortLived(), flight.Ticket(b'{"stream": "orders"}'))
            with failing() as caught:
                server.do_put(ShortLived(), command(stream="nowhere"), None, None)
            assert code_of(caught.value) == "unknown-stream"

        await asyncio.to_thread(call)
        await asyncio.to_thread(server.shutdown)
