"""A hub with users, as someone without a name, with a wrong one, or with the right one meets it at every listener; and
what of their secrets its log holds afterwards: nothing."""

import asyncio
import base64
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from support.forked_hub import ForkedHub
from support.hub_process import HubProcess

import headrace
from headrace.cli.tls import make_self_signed
from headrace.config import Config, Log
from headrace.config.address import split_address
from headrace.config.load import load
from headrace.errors import HeadraceError, Unauthenticated
from headrace.protocols.futoin.client import Client as FutoinClient
from headrace.protocols.futoin.client import RemoteError, Signer
from headrace.protocols.perper.errors import PeerError
from headrace.protocols.perper.fabric.client import FabricClient, RpcError
from headrace.protocols.perper.ignite.binary import encode_string
from headrace.protocols.perper.ignite.client import IgniteClient
from headrace.protocols.perper.ignite.configuration import Configuration
from headrace.protocols.wallaroo.client import Connector
from headrace.security import Security, hash_secret, new_token
from headrace.security.login_limit import ADDRESS_FACTOR
from headrace.serving.runtime import LISTENERS, Runtime

PASSWORD = "right-3c1f0d9a-password"
WRONG = "wrong-7be2aa41-password"
COOKIE = "cookie-5d0e1b77-shared"
WRONG_COOKIE = "cookie-0badc0de-wrong"
MAC_KEY = b"mac-key-91d2c6f3-shared-by-two-0"
TOKEN, TOKEN_DIGEST = new_token()
DEADLINE_S = 60
OPEN_S = 0.5
GET_OR_CREATE, PUT = 1054, 1001
REFUSALS = (HeadraceError, RemoteError, RpcError, PeerError, ConnectionError)


class Place(NamedTuple):
    """Where to call, and whom to trust."""

    addresses: dict[str, str]
    trusted: ssl.SSLContext


def basic(secret: str) -> str:
    return "Basic " + base64.b64encode(f"alice:{secret}".encode()).decode()


async def by_flight(at: Place, secret: str | None) -> None:
    def use() -> None:
        named: dict[str, Any] = {} if secret is None else {"user": "alice", "password": secret}
        with headrace.connect(at.addresses["flight"], **named) as hub:
            hub.create("flight")
            hub.append("flight", b"1 pear")

    await asyncio.to_thread(use)


async def by_flight_token(at: Place, secret: str | None) -> None:
    def use() -> None:
        token = TOKEN if secret == PASSWORD else secret
        with headrace.connect(at.addresses["flight"], token=token) as hub:
            hub.create("flight")
            hub.append("flight", b"1 pear")

    await asyncio.to_thread(use)


async def by_http(at: Place, secret: str | None) -> None:
    headers = {} if secret is None else {"authorization": basic(secret)}
    url = f"https://{at.addresses['http']}"
    async with httpx.AsyncClient(base_url=url, headers=headers, verify=at.trusted) as client:
        answers = [await client.post("/api/v1/stream.create", json={"stream": "http"}), await client.get("/metrics")]
        if secret != PASSWORD:  # for the right one it does not end
            answers.append(await client.get("/console/live"))
    if {answer.status_code for answer in answers} == {401}:
        raise Unauthenticated("401")
    assert {answer.status_code for answer in answers} == {200}


async def by_futoin(at: Place, secret: str | None) -> None:
    credentials = None if secret is None else f"alice:{secret}"
    url = f"wss://{at.addresses['http']}/futoin/futoin"
    async with await FutoinClient.connect(url, credentials, ssl=at.trusted) as client:
        await client.add("ORDER", {"count": 1})


async def by_futoin_signed(at: Place, secret: str | None) -> None:
    key = MAC_KEY if secret == PASSWORD else (secret or "").encode()
    url = f"wss://{at.addresses['http']}/futoin/futoin"
    async with await FutoinClient.connect(url, Signer("alice", key), ssl=at.trusted) as client:
        await client.add("ORDER", {"count": 1})


async def by_wallaroo(at: Place, secret: str | None) -> None:
    cookie = {None: "", PASSWORD: COOKIE}.get(secret, WRONG_COOKIE)
    async with Connector(at.addresses["wallaroo"], cookie=cookie, attempts_max=1) as connector:
        stream = await connector.stream("wallaroo")
        await stream.send(b"1 pear")
        await stream.flush()


async def by_ignite(at: Place, secret: str | None) -> None:
    user = None if secret is None else "alice"
    client = await IgniteClient.connect(*split_address(at.addresses["ignite"]), user=user, password=secret)
    try:
        await client.request(GET_OR_CREATE, Configuration({0: "prices"}))
        await client.request(PUT, encode_string("pear"), encode_string("1"), cache="prices")
    finally:
        await client.close()


async def by_fabric(at: Place, secret: str | None) -> None:
    metadata = [] if secret is None else [("authorization", basic(secret))]
    client = await FabricClient.connect(*split_address(at.addresses["fabric"]), metadata)
    try:
        await client.call("/perper.Fabric/AllExecutions", {"agent": "a"})
    finally:
        await client.close()


WAYS: dict[str, Callable[[Place, str | None], Awaitable[None]]] = {
    "flight": by_flight,
    "flight by token": by_flight_token,
    "http": by_http,
    "futoin": by_futoin,
    "futoin signed": by_futoin_signed,
    "wallaroo": by_wallaroo,
    "ignite": by_ignite,
    "fabric": by_fabric,
}


def certificate_files(folder: Path, name: str) -> tuple[Path, Path]:
    key, certificate = make_self_signed([name, "127.0.0.1"])
    files = folder / f"{name}.pem", folder / f"{name}-key.pem"
    for file, content in zip(files, (certificate, key), strict=True):
        file.write_bytes(content)
        file.chmod(0o600)
    return files


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    """A hub with one user, who has a password and a token, and with its log as talkative as it can be."""
    folder = tmp_path_factory.mktemp("strangers")
    users = Security(Config(log=Log(data=str(folder / "data"))))
    users.add_user("alice", hash_secret(PASSWORD), ["admin"])
    users.add_token("alice", TOKEN_DIGEST)
    certificate, key = certificate_files(folder, "localhost")
    settings = [
        f"tls.listeners.http.certificate={certificate}",
        f"tls.listeners.http.key={key}",
        f"wallaroo.cookie={COOKIE}",
        f"futoin.mac_keys.alice={base64.b64encode(MAC_KEY).decode()}",
        "logging.level=debug",
    ]
    with ForkedHub(folder, *settings) as running:
        yield running


@pytest.fixture(scope="module")
def place(hub: HubProcess) -> Place:
    return Place(hub.addresses, ssl.create_default_context(cafile=str(hub.log.parent / "localhost.pem")))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
async def test_a_listener_lets_in_the_right_one_and_nobody_else(place: Place, way: str) -> None:
    for secret in (None, WRONG):
        with pytest.raises(REFUSALS):
            await asyncio.wait_for(WAYS[way](place, secret), DEADLINE_S)
    await asyncio.wait_for(WAYS[way](place, PASSWORD), DEADLINE_S)


@pytest.mark.slow
async def test_a_protocol_without_a_login_lets_nobody_in(place: Place) -> None:
    reader, writer = await asyncio.open_connection(*split_address(place.addresses["ockam"]))
    assert await asyncio.wait_for(reader.read(1), DEADLINE_S) == b""
    writer.close()


@pytest.mark.slow
async def test_guessing_is_answered_with_patience(place: Place) -> None:
    """The limit is for one user at one address, so the others of this module are not kept out by it."""
    pair = base64.b64encode(b"mallory:guess").decode()
    async with httpx.AsyncClient(base_url=f"https://{place.addresses['http']}", verify=place.trusted) as client:
        headers = {"authorization": f"Basic {pair}"}
        answers = [await client.post("/api/v1/hub.info", json={}, headers=headers) for _ in range(12)]
        counted = (await client.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"})).text
    assert [answer.status_code for answer in answers] == [401] * 10 + [429] * 2
    assert 0 < int(answers[-1].headers["retry-after"]) <= 60
    assert answers[-1].json()["error"]["code"] == "too-many-logins"
    assert "headrace_logins_held_back_total 2.0" in counted


@pytest.mark.slow
async def test_a_stranger_learns_nothing_from_health(place: Place) -> None:
    async with httpx.AsyncClient(base_url=f"https://{place.addresses['http']}", verify=place.trusted) as client:
        answer = await client.get("/health")
    assert answer.json() == {"live": True, "ready": True, "reasons": {}}


@pytest.mark.slow
async def test_no_secret_is_in_the_log(hub: HubProcess, place: Place) -> None:
    for use in WAYS.values():  # also when the other tests were not run
        for secret in (WRONG, PASSWORD):
            try:
                await asyncio.wait_for(use(place, secret), DEADLINE_S)
            except REFUSALS:
                assert secret == WRONG
    written = hub.log.read_text()
    assert "login refused" in written
    encoded = [base64.b64encode(f"alice:{secret}".encode()).decode() for secret in (PASSWORD, WRONG)]
    for secret in (PASSWORD, WRONG, COOKIE, WRONG_COOKIE, TOKEN, TOKEN_DIGEST, *encoded):
        assert secret not in written
    for form in (MAC_KEY.decode(), base64.b64encode(MAC_KEY).decode(), MAC_KEY.hex()):
        assert form not in written
    assert not re.search(r"hf_[A-Za-z0-9_-]{20}|scrypt\$\d", written)


@pytest.fixture
async def limited(tmp_path: Path) -> AsyncIterator[tuple[Runtime, Place]]:
    """A hub in this process that holds back whoever has failed twice."""
    users = Security(Config(log=Log(data=str(tmp_path / "data"))))
    users.add_user("alice", hash_secret(PASSWORD), ["admin"])
    certificate, key = certificate_files(tmp_path, "localhost")
    flags = [f"listen.{name}=127.0.0.1:0" for name in LISTENERS]
    flags += [f"log.data={tmp_path / 'data'}", "security.login_failures_max=2", f"wallaroo.cookie={COOKIE}"]
    flags += [f"tls.listeners.http.certificate={certificate}", f"tls.listeners.http.key={key}"]
    flags += [f"futoin.mac_keys.alice={base64.b64encode(MAC_KEY).decode()}"]
    runtime = await Runtime.start(load(environment={}, flags=flags))
    try:
        yield runtime, Place(runtime.addresses, ssl.create_default_context(cafile=str(certificate)))
    finally:
        await runtime.stop()


def refused_logins(runtime: Runtime) -> dict[str, int]:
    """By protocol, those that have any."""
    pattern = r'^headrace_refused_logins_total\{protocol="(\w+)"\} (\d+)'
    found = re.findall(pattern, runtime.hub.metrics.text().decode(), re.MULTILINE)
    return {protocol: int(count) for protocol, count in found if int(count)}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
async def test_a_refused_login_is_counted_and_logged_once_and_then_held_back(
    limited: tuple[Runtime, Place], way: str, caplog: pytest.LogCaptureFixture
) -> None:
    runtime, place = limited
    listener = way.split()[0]
    tries = 3 if way == "http" else 1  # that way asks at three places
    with caplog.at_level("WARNING", "headrace.security"):
        with pytest.raises((*REFUSALS, AssertionError)):
            await asyncio.wait_for(WAYS[way](place, WRONG), DEADLINE_S)
        assert refused_logins(runtime) == {listener: tries}
        lines = [record for record in caplog.records if record.getMessage() == "login refused"]
        assert len(lines) == min(tries, 2)  # the third was held back without a look, and that has a line of its own
        assert {vars(line)["headrace_fields"]["listener"] for line in lines} == {listener}
        for _ in range(2 * ADDRESS_FACTOR):  # tokens have no name, so they are counted for the address
            with pytest.raises((*REFUSALS, AssertionError)):
                await asyncio.wait_for(WAYS[way](place, WRONG), DEADLINE_S)
            tries += 3 if way == "http" else 1
            if "headrace_logins_held_back_total 0.0" not in runtime.hub.metrics.text().decode():
                break
    assert "headrace_logins_held_back_total 0.0" not in runtime.hub.metrics.text().decode()
    assert refused_logins(runtime) == {listener: tries}
    assert "logins held back" in [record.getMessage() for record in caplog.records]


@pytest.mark.slow
async def test_a_peer_without_a_login_is_counted_and_logged_once(
    limited: tuple[Runtime, Place], caplog: pytest.LogCaptureFixture
) -> None:
    runtime, place = limited
    with caplog.at_level("WARNING", "headrace.security"):
        await test_a_protocol_without_a_login_lets_nobody_in(place)
    assert refused_logins(runtime) == {"ockam": 1}
    assert [record.getMessage() for record in caplog.records] == ["login refused"]


def test_only_the_door_lets_in() -> None:
    """No listener looks at credentials, counts refusals or asks who nobody is on its own."""
    root = Path(headrace.__file__).parent
    own = r"security\.(authenticate\w*|anonymous|certificate_principal)\(|refused_logins\b.*\.inc|LoginLimiter"
    for path in root.rglob("*.py"):
        if path.parent.name != "security":
            assert not re.search(own, path.read_text()), path


@pytest.fixture
async def certified(tmp_path: Path) -> AsyncIterator[tuple[Runtime, Path]]:
    """A hub whose listeners all want a client certificate."""
    certificate, key = certificate_files(tmp_path, "localhost")
    client, _ = certificate_files(tmp_path, "alice")
    flags = [f"listen.{name}=127.0.0.1:0" for name in LISTENERS]
    flags += [f"tls.certificate={certificate}", f"tls.key={key}", f"tls.client_ca={client}"]
    runtime = await Runtime.start(load(environment={}, flags=[*flags, f"log.data={tmp_path / 'data'}"]))
    try:
        yield runtime, tmp_path
    finally:
        await runtime.stop()


@pytest.mark.parametrize("listener", LISTENERS)
async def test_a_client_without_a_certificate_is_cut_off(certified: tuple[Runtime, Path], listener: str) -> None:
    runtime, folder = certified
    context = ssl.create_default_context(cafile=str(folder / "localhost.pem"))
    assert not await stays_open(runtime.addresses[listener], context)
    certificate_files(folder, "mallory")
    context.load_cert_chain(folder / "mallory.pem", folder / "mallory-key.pem")
    assert not await stays_open(runtime.addresses[listener], context), "a certificate that nobody vouches for"
    context = ssl.create_default_context(cafile=str(folder / "localhost.pem"))
    context.load_cert_chain(folder / "alice.pem", folder / "alice-key.pem")
    assert await stays_open(runtime.addresses[listener], context)


async def stays_open(address: str, context: ssl.SSLContext) -> bool:
    """Whether a connection lasts beyond its greeting: a refused certificate is told after the client's handshake."""
    context.set_alpn_protocols(["h2", "http/1.1"])
    host, port = split_address(address)
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname="localhost")
    except (ssl.SSLError, ConnectionError):
        return False
    try:
        return await asyncio.wait_for(reader.read(1), OPEN_S) != b""
    except TimeoutError:
        return True
    except (ssl.SSLError, ConnectionError):
        return False
    finally:
        writer.transport.abort()
