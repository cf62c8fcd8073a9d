"""Clients at a hub that does not own the log: the owner knows where each of them comes from, and TLS goes through."""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import pyignite
import pytest
from interop.test_wallaroo_described_client import frame, text
from support.fake_cluster import FakeCluster
from support.until import wait_until

import headrace
from headrace.cli.tls import make_self_signed
from headrace.config.address import split_address
from headrace.hub.peers import address_from
from headrace.protocols.futoin.client import Client as FutoinClient
from headrace.protocols.wallaroo.client import Connector
from headrace.security.login_limit import ADDRESS_FACTOR

pytestmark = pytest.mark.slow

TCP = ("wallaroo", "ockam", "ignite", "fabric")
FAILURES_MAX = 3
ADMIN = ("alice", "secret")
USERS = """
[security.users.alice]
secret = "secret"
roles = ["admin"]
"""


def users_file(folder: Path) -> Path:
    file = folder / "users.toml"
    file.write_text(USERS)
    return file


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCluster]:
    folder = tmp_path_factory.mktemp("hubs")
    settings = (f"security.login_failures_max={FAILURES_MAX}", "futoin.insecure=true")
    with FakeCluster(folder, *settings, config=users_file(folder)) as made:
        yield made


def ask(address: str, source: str, password: str, tls: ssl.SSLContext | None = None) -> int:
    """The status of an answer to somebody from that address."""
    host, port = split_address(address)
    connection: http.client.HTTPConnection = (
        http.client.HTTPConnection(host, port, 60, (source, 0))
        if tls is None
        else http.client.HTTPSConnection(host, port, timeout=60, source_address=(source, 0), context=tls)
    )
    headers = {"Content-Type": "application/json"}
    if password:
        headers["Authorization"] = "Basic " + base64.b64encode(f"{ADMIN[0]}:{password}".encode()).decode()
    try:
        connection.request("POST", "/api/v1/session.list", b"{}", headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_wrong_passwords_count_for_whoever_sends_them(cluster: FakeCluster) -> None:
    address = cluster.addresses["http"]
    assert [ask(address, "127.0.0.5", "wrong") for _ in range(FAILURES_MAX + 1)] == [401] * FAILURES_MAX + [429]
    assert ask(address, "127.0.0.6", "wrong") == 401, "another client of the same hub"
    assert ask(address, "127.0.0.6", ADMIN[1]) == 200
    assert ask(cluster.owner.addresses["http"], "127.0.0.5", "wrong") == 429, "no hub lets it try more often"
    assert ask(cluster.owner.addresses["http"], "127.0.0.1", "wrong") == 401, "nor counts it for the hub between"


def test_wrong_tokens_count_for_whoever_sends_them(cluster: FakeCluster) -> None:
    """By a protocol whose bytes are passed on unseen."""

    def hello(source: str) -> bytes:
        with socket.create_connection(split_address(cluster.addresses["wallaroo"]), 60, (source, 0)) as client:
            client.sendall(frame(0, b"".join(map(text, (b"0.0.1", b"a wrong token", b"program", b"instance")))))
            return client.recv(4096)

    for _ in range(FAILURES_MAX * ADDRESS_FACTOR):
        assert hello("127.0.0.8") == frame(2, text(b"Bad cookie"))
    assert ask(cluster.addresses["http"], "127.0.0.8", "wrong") == 429, "whatever it tries next"
    assert ask(cluster.addresses["http"], "127.0.0.9", "wrong") == 401, "another client of the same hub"


def peers(cluster: FakeCluster) -> set[str]:
    """Of sessions that are open, and of those that have ended: some protocols refuse who has no name."""
    sessions = cluster.hub.sessions
    return cluster.call(lambda: {each.peer for ended in (False, True) for each in sessions.list(ended=ended)})


@pytest.mark.parametrize("listener", TCP)
def test_sessions_show_the_client(cluster: FakeCluster, listener: str) -> None:
    with socket.create_connection(split_address(cluster.addresses[listener]), 60, ("127.0.0.7", 0)) as client:
        peer = address_from(client.getsockname())
        wait_until(lambda: peer in peers(cluster))


def test_flight_sessions_show_the_client(cluster: FakeCluster) -> None:
    with headrace.connect(cluster.addresses["flight"], user=ADMIN[0], password=ADMIN[1]) as client:
        client.create("s")
        client.append("s", [b"1"])
        (session,) = cluster.call(lambda: cluster.hub.sessions.list("flight"))
        front = cluster.follower.standby.fronts["flight"]
        assert session.peer in cluster.call(lambda: {each.address for each in front._joined})
    wait_until(lambda: len(cluster.hub.peers) == 0)


def test_a_hub_without_a_door_passes_on_nevertheless(tmp_path: Path) -> None:
    with FakeCluster(tmp_path, "cluster.listen=off", only=("http",), config=users_file(tmp_path)) as cluster:
        assert ask(cluster.addresses["http"], "127.0.0.5", ADMIN[1]) == 200
        assert ask(cluster.addresses["http"], "127.0.0.5", "wrong") == 401


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = make_self_signed(["localhost", "127.0.0.1"])
    (folder / "key.pem").write_bytes(key)
    (folder / "certificate.pem").write_bytes(certificate)
    return folder / "certificate.pem"


@pytest.fixture(scope="module")
def secured(authority: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCluster]:
    tls = (f"tls.certificate={authority}", f"tls.key={authority.with_name('key.pem')}")
    with FakeCluster(tmp_path_factory.mktemp("hubs"), *tls, "futoin.insecure=true") as made:
        yield made


@pytest.fixture
def context(authority: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority)


def test_tls_http(secured: FakeCluster, context: ssl.SSLContext) -> None:
    """TLS ends at the follower, which looks into the request, and begins again."""
    assert ask(secured.addresses["http"], "127.0.0.6", "", context) == 200
    with pytest.raises(ssl.SSLError):
        ask(secured.addresses["http"], "127.0.0.6", "", ssl.create_default_context())


def test_tls_sdk(secured: FakeCluster, authority: Path) -> None:
    with headrace.connect(secured.addresses["flight"], tls=authority) as client:
        client.create("tls")
        client.append("tls", [b"1"])
        assert [record.text for record in client.read("tls")] == ["1"]


async def test_tls_futoin(secured: FakeCluster, context: ssl.SSLContext) -> None:
    async with await FutoinClient.connect(f"wss://{secured.addresses['http']}/futoin/events", ssl=context) as client:
        assert await client.add("ORDER", {"count": 1}) is not None


async def test_tls_wallaroo(secured: FakeCluster, context: ssl.SSLContext) -> None:
    async with Connector(secured.addresses["wallaroo"], tls=context) as connector:
        stream = await connector.stream("wallaroo")
        await stream.send(b"1")
        await stream.flush()
    assert secured.call(lambda: secured.hub.bounds("wallaroo").next) == 1


def test_tls_ockam(secured: FakeCluster, context: ssl.SSLContext) -> None:
    """Its clients know no TLS; the listener does."""
    with (
        socket.create_connection(split_address(secured.addresses["ockam"]), 60, ("127.0.0.7", 0)) as bare,
        context.wrap_socket(bare, server_hostname="127.0.0.1") as client,
    ):
        peer = address_from(client.getsockname())
        wait_until(lambda: peer in peers(secured))


@pytest.mark.filterwarnings("ignore:ssl.PROTOCOL_TLS:DeprecationWarning")
def test_tls_pyignite(secured: FakeCluster, authority: Path) -> None:
    client = pyignite.Client(use_ssl=True, ssl_cert_reqs=ssl.CERT_REQUIRED, ssl_ca_certfile=str(authority))
    with client.connect(*split_address(secured.addresses["ignite"])):
        cache = client.create_cache("pyignite")
        cache.put("a", 1)
        assert cache.get("a") == 1


def test_tls_grpc(secured: FakeCluster, authority: Path) -> None:
    credentials = grpc.ssl_channel_credentials(authority.read_bytes())
    with grpc.secure_channel(secured.addresses["fabric"], credentials) as channel:
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=60) == b"\x08\x01"


def test_client_certificates_go_through(authority: Path, tmp_path: Path) -> None:
    """The follower cannot show a client's certificate: it passes the bytes on as they are."""
    key, certificate = make_self_signed(["alice"])
    (tmp_path / "alice.pem").write_bytes(certificate)
    (tmp_path / "alice.key").write_bytes(key)
    tls = (f"tls.certificate={authority}", f"tls.key={authority.with_name('key.pem')}")
    both = (*tls, f"tls.client_ca={tmp_path / 'alice.pem'}")
    context = ssl.create_default_context(cafile=authority)
    with FakeCluster(tmp_path / "hubs", *both, only=("http",)) as cluster:
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            ask(cluster.addresses["http"], "127.0.0.6", "", context)
        context.load_cert_chain(tmp_path / "alice.pem", tmp_path / "alice.key")
        assert ask(cluster.addresses["http"], "127.0.0.6", "", context) == 200
