"""The authorities that vouch for clients, changed while the hub runs: at every listener, for those who are connected
and for those who come."""

import asyncio
import datetime
import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from support.until import until

from headrace.cli.tls import make_self_signed
from headrace.config.address import split_address
from headrace.config.load import load
from headrace.security.trust import Trust
from headrace.serving.runtime import LISTENERS, Runtime

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
Subject = list[list[tuple[x509.ObjectIdentifier, str]]]
"""The names of a certificate, and the parts of each."""


class Maker:
    """A certificate and its key, signed by itself or by another."""

    def __init__(
        self, name: str, issuer: "Maker | None" = None, *, authority: bool = True, subject: Subject | None = None
    ) -> None:
        """`subject` for one with other names than a common name."""
        parts = subject or [[(x509.NameOID.COMMON_NAME, name)]]
        self.name = x509.Name(
            [x509.RelativeDistinguishedName([x509.NameAttribute(*each) for each in names]) for names in parts]
        )
        self.key = ec.generate_private_key(ec.SECP256R1())
        by = issuer or self
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(self.name)
            .issuer_name(by.name)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - DAY)
            .not_valid_after(NOW + DAY)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .sign(by.key, hashes.SHA256())
        )

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def revoke(self, *others: "Maker") -> bytes:
        """A list of certificates that this authority takes back."""
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.name).last_update(NOW).next_update(NOW + DAY)
        for other in others:
            revoked = x509.RevokedCertificateBuilder().serial_number(other.certificate.serial_number)
            builder = builder.add_revoked_certificate(revoked.revocation_date(NOW).build())
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def write(self, folder: Path, *chain: "Maker") -> tuple[Path, Path]:
        """For TLS: the certificate, with those of `chain` behind it, and the key."""
        files = folder / "client.pem", folder / "client-key.pem"
        files[0].write_bytes(self.pem + b"".join(each.pem for each in chain))
        key = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        files[1].write_bytes(key)
        return files


class Shown(ssl.SSLObject):
    """What TLS knows of a client."""

    def __new__(cls, *chain: Maker) -> "Shown":
        return object.__new__(cls)

    def __init__(self, *chain: Maker) -> None:
        self._chain = [each.certificate.public_bytes(serialization.Encoding.DER) for each in chain]

    def getpeercert(self, binary_form: bool = False) -> bytes | None:  # type: ignore[override]
        return self._chain[0] if self._chain else None

    @property
    def _sslobj(self) -> "Shown":
        return self

    def get_unverified_chain(self) -> list[bytes]:
        return self._chain


def replaced(file: Path, text: bytes) -> None:
    beside = file.with_suffix(".new")
    beside.write_bytes(text)
    os.replace(beside, file)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "authorities.pem"


def test_a_file_that_does_not_change_is_left_to_the_handshake(file: Path) -> None:
    file.write_bytes(Maker("root").pem)
    assert Trust(file).vouches_for(None)


def test_an_authority_that_goes_takes_its_clients_along(file: Path) -> None:
    ours, theirs = Maker("ours"), Maker("theirs")
    alice, bob = Maker("alice", ours, authority=False), Maker("bob", theirs, authority=False)
    file.write_bytes(ours.pem + theirs.pem)
    trust = Trust(file)
    before = trust.stamp()
    replaced(file, ours.pem)
    assert trust.stamp() != before
    assert trust.vouches_for(Shown(alice))
    assert not trust.vouches_for(Shown(bob))
    assert not trust.vouches_for(Shown())
    assert not trust.vouches_for(None)
    replaced(file, bob.pem)
    assert trust.vouches_for(Shown(bob)), "a certificate may stand in the file itself"
    assert not trust.vouches_for(Shown(alice))


def test_authorities_in_between_lead_to_the_one_in_the_file(file: Path) -> None:
    root = Maker("root")
    between = Maker("between", root)
    alice = Maker("alice", between, authority=False)
    file.write_bytes(root.pem)
    trust = Trust(file)
    replaced(file, root.pem + Maker("another").pem)
    assert trust.vouches_for(Shown(alice, between))
    assert not trust.vouches_for(Shown(alice)), "the one in between was not shown"
    assert not trust.vouches_for(Shown(alice, Maker("between", root))), "one of its name with another key"


def test_a_certificate_that_was_revoked_is_none_any_more(file: Path) -> None:
    root, other = Maker("root"), Maker("other")
    alice, bob = Maker("alice", root, authority=False), Maker("bob", root, authority=False)
    file.write_bytes(root.pem)
    trust = Trust(file)
    replaced(file, root.pem + root.revoke(alice) + other.revoke(bob))
    assert not trust.vouches_for(Shown(alice))
    assert trust.vouches_for(Shown(bob)), "only its own authority can take it back"
    forged = Maker("root")
    replaced(file, root.pem + forged.revoke(alice))
    assert trust.vouches_for(Shown(alice)), "a list that someone else has signed"
    file.write_bytes(root.pem + root.revoke(alice))
    assert not Trust(file).vouches_for(Shown(alice)), "lists count from the start on"


@pytest.mark.parametrize("damage", ["deleted", "garbled", "emptied"])
def test_a_file_that_cannot_be_read_vouches_for_nobody(
    file: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    root = Maker("root")
    alice = Maker("alice", root, authority=False)
    file.write_bytes(root.pem)
    trust = Trust(file)
    if damage == "deleted":
        file.unlink()
    else:
        replaced(file, b"" if damage == "emptied" else root.pem[:100])
    assert not trust.vouches_for(Shown(alice))
    assert "no client certificate is accepted" in caplog.text
    replaced(file, root.pem)
    assert trust.vouches_for(Shown(alice))


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[tuple[Runtime, Maker, Maker]]:
    """A hub whose listeners all want a client certificate, of one of two authorities."""
    key, certificate = make_self_signed(["localhost", "127.0.0.1"])
    (tmp_path / "hub.pem").write_bytes(certificate)
    (tmp_path / "hub-key.pem").write_bytes(key)
    ours, theirs = Maker("ours"), Maker("theirs")
    (tmp_path / "authorities.pem").write_bytes(ours.pem + theirs.pem)
    flags = [f"listen.{name}=127.0.0.1:0" for name in LISTENERS]
    flags += [f"tls.certificate={tmp_path / 'hub.pem'}", f"tls.key={tmp_path / 'hub-key.pem'}"]
    flags += [f"tls.client_ca={tmp_path / 'authorities.pem'}", f"log.data={tmp_path / 'data'}"]
    flags += ["wallaroo.handshake_s=600", "perper.login_s=600", "ockam.greeting_timeout_s=600"]  # nobody goes for that
    runtime = await Runtime.start(load(environment={}, flags=flags))
    try:
        yield runtime, ours, theirs
    finally:
        await runtime.stop()


class Client:
    """A bare TLS connection."""

    def __init__(self, folder: Path, address: str) -> None:
        self._context = ssl.create_default_context(cafile=str(folder / "hub.pem"))
        self._context.load_cert_chain(folder / "client.pem", folder / "client-key.pem")
        self._context.set_alpn_protocols(["h2", "http/1.1"])
        self._place = split_address(address)

    async def connect(self) -> asyncio.StreamReader:
        reader, self.writer = await asyncio.open_connection(
            *self._place, ssl=self._context, server_hostname="localhost"
        )
        return reader

    async def is_let_in(self) -> bool:
        try:
            reader = await self.connect()
        except (ssl.SSLError, ConnectionError):
            return False
        return await self.stays(reader)

    async def stays(self, reader: asyncio.StreamReader) -> bool:
        """Whether the hub leaves the connection open for a moment."""
        try:
            async with asyncio.timeout(0.3):
                while await reader.read(4096):
                    pass
            return False
        except TimeoutError:
            return True
        except (ssl.SSLError, ConnectionError):
            return False
        finally:
            self.writer.transport.abort()


async def gone(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(60):
        try:
            while await reader.read(4096):
                pass
        except (ssl.SSLError, ConnectionError):
            pass
    return True


@pytest.mark.slow
@pytest.mark.parametrize("listener", LISTENERS)
async def test_a_certificate_is_good_only_while_the_file_says_so(
    running: tuple[Runtime, Maker, Maker], tmp_path: Path, listener: str
) -> None:
    runtime, ours, theirs = running
    file = tmp_path / "authorities.pem"
    Maker("bob", theirs, authority=False).write(tmp_path)
    bob = Client(tmp_path, runtime.addresses[listener])
    connected = await bob.connect()
    assert await Client(tmp_path, runtime.addresses[listener]).is_let_in()
    replaced(file, ours.pem)
    assert await gone(connected), "one who is connected"
    bob.writer.transport.abort()
    assert not await bob.is_let_in(), "one who comes"
    third = Maker("third")
    replaced(file, ours.pem + third.pem)
    Maker("carol", third, authority=False).write(tmp_path)
    deadline = asyncio.get_running_loop().time() + 60
    while not await Client(tmp_path, runtime.addresses[listener]).is_let_in():
        assert asyncio.get_running_loop().time() < deadline, "an authority that is new"
    await until(lambda: runtime.hub.health.report().ready)
