"""Where TLS ends at a follower it begins again: the owner must show a certificate that the follower has a reason to
trust, and not just any that this machine would."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from headrace.cli.tls import make_self_signed
from headrace.cluster.front import Front
from headrace.cluster.http_front import tls_to_owner
from headrace.cluster.route import Owner, Route
from headrace.config.address import split_address
from headrace.config.sections import TlsFiles
from headrace.serving.tcp import address_of
from headrace.telemetry.metrics import Metrics

NAMES = {"own": "hub.example", "elsewhere": "evil.example", "here": "127.0.0.1"}


def signed(authority: Path) -> tuple[bytes, bytes]:
    """A key, and a certificate for another name that an authority has signed."""
    issuer = x509.load_pem_x509_certificate(authority.with_suffix(".pem").read_bytes())
    secret = serialization.load_pem_private_key(authority.with_suffix(".key").read_bytes(), None)
    assert isinstance(secret, ec.EllipticCurvePrivateKey)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "leaf.example")]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(secret, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return plain, certificate.public_bytes(pem)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A certificate of each kind, and one that the first has signed."""
    for kind, name in NAMES.items():
        key, certificate = make_self_signed([name])
        (tmp_path / f"{kind}.key").write_bytes(key)
        (tmp_path / f"{kind}.pem").write_bytes(certificate)
    key, certificate = signed(tmp_path / "own")
    (tmp_path / "leaf.key").write_bytes(key)
    (tmp_path / "leaf.pem").write_bytes(certificate)
    return tmp_path


@pytest.mark.parametrize(
    ("shown", "own", "authority", "trusted", "is_known"),
    [
        ("own", "own", "", "here", True),
        ("leaf", "leaf", "", "here", True),
        ("leaf", "here", "own", "here", True),
        ("here", "own", "", "here", True),
        ("elsewhere", "own", "", "elsewhere", False),
        ("elsewhere", "own", "", "here", False),
        ("here", "leaf", "own", "here", False),
    ],
    ids=[
        "its own",
        "its own, signed by somebody",
        "of the authority",
        "trusted by the machine for this name",
        "trusted by the machine for another name",
        "trusted by nobody",
        "not of the authority",
    ],
)
async def test_the_owner_is_known_by_its_certificate(
    folder: Path, monkeypatch: pytest.MonkeyPatch, shown: str, own: str, authority: str, trusted: str, is_known: bool
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"owner")
        await writer.drain()
        writer.close()

    monkeypatch.setenv("SSL_CERT_FILE", str(folder / f"{trusted}.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(folder / "none"))
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(folder / f"{shown}.pem", folder / f"{shown}.key")
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=serving)
    route = Route("me")
    route.claimed(Owner("hub-1", "life", 1, {"http": address_of(server)}))
    tls = tls_to_owner(TlsFiles(str(folder / f"{own}.pem")), str(folder / f"{authority}.pem") if authority else "")
    front = Front("http", route, 60 if is_known else 0.1, Metrics().cluster, tls)
    await front.open("127.0.0.1:0")
    reader, writer = await asyncio.open_connection(*split_address(front.address))
    try:
        found = await reader.read()
    except ConnectionError:
        found = b""
    assert found == (b"owner" if is_known else b"")
    writer.close()
    await front.close()
    server.close()
    await server.wait_closed()


def test_without_tls_there_is_nothing_to_know() -> None:
    assert tls_to_owner(None, "") == []
