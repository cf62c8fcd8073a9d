"""Whom a client certificate names where a protocol has no login, with real handshakes: nobody but the user whose name
is its only common name, letter by letter."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from unit.security.test_trust import Maker, Subject

from headrace.config import Config, SecuritySection, User
from headrace.errors import Unauthenticated
from headrace.security.admission import Certificate
from headrace.testing import memory_hub

COMMON, OTHER = x509.NameOID.COMMON_NAME, x509.NameOID.ORGANIZATION_NAME
CYRILLIC_I = "\N{CYRILLIC SMALL LETTER BYELORUSSIAN-UKRAINIAN I}"


def one(name: str) -> Subject:
    return [[(COMMON, name)]]


FOREIGN: dict[str, Subject] = {
    "nobody": [[(OTHER, "alice")]],
    "another": one("mallory"),
    "everybody": one("*"),
    "wildcard": one("a*"),
    "wildcard of a domain": one("*.alice"),
    "capitals": one("Alice"),
    "look-alike": one(f"al{CYRILLIC_I}ce"),
    "wide letters": one("\N{FULLWIDTH LATIN SMALL LETTER A}lice"),
    "soft hyphen": one("al\N{SOFT HYPHEN}ice"),
    "blank before": one(" alice"),
    "blank after": one("alice "),
    "zero after": one("alice\0"),
    "zero and more": one("alice\0.example"),
    "a role": one("admin"),
    "the nameless": one("anonymous"),
    "two, the known one first": [[(COMMON, "alice")], [(COMMON, "mallory")]],
    "two, the known one last": [[(COMMON, "mallory")], [(COMMON, "alice")]],
    "two in one": [[(COMMON, "alice"), (COMMON, "mallory")]],
    "the same twice": [[(COMMON, "alice")], [(COMMON, "alice")]],
}


@pytest.fixture(scope="module")
def authority() -> Maker:
    return Maker("bob")  # the name of a user, which those it signs do not have


class Transport(asyncio.BaseTransport):
    """After a handshake."""

    def __init__(self, certificate: object) -> None:
        super().__init__({"peercert": certificate})


def shown(names: Subject, authority: Maker, folder: Path) -> Transport:
    """What TLS on the hub's side tells of a client with a certificate of these names."""
    client = Maker("", authority, authority=False, subject=names)
    certificate, key = client.write(folder)
    (folder / "authority.pem").write_bytes(authority.pem)
    hub = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    hub.load_cert_chain(certificate, key)
    hub.load_verify_locations(folder / "authority.pem")
    hub.verify_mode = ssl.CERT_REQUIRED
    peer = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    peer.check_hostname, peer.verify_mode = False, ssl.CERT_NONE
    peer.load_cert_chain(certificate, key)
    to_hub, to_peer = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = hub.wrap_bio(to_hub, to_peer, server_side=True), peer.wrap_bio(to_peer, to_hub)
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return Transport(ends[0].getpeercert())


CONFIG = Config(security=SecuritySection(users={"alice": User(roles=["writer"]), "bob": User(roles=["admin"])}))


async def test_the_user_that_it_names(authority: Maker, tmp_path: Path) -> None:
    async with memory_hub(CONFIG) as hub:
        for names in (one("alice"), [[(OTHER, "mallory")], [(COMMON, "alice")]]):
            let_in = hub.admission.admit_now("ockam", "here", Certificate(shown(names, authority, tmp_path)))
            assert (let_in.name, let_in.roles) == ("alice", ("writer",))


@pytest.mark.parametrize("which", FOREIGN)
async def test_nobody_else(which: str, authority: Maker, tmp_path: Path) -> None:
    transport = shown(FOREIGN[which], authority, tmp_path)
    async with memory_hub(CONFIG) as hub:
        with pytest.raises(Unauthenticated):
            hub.admission.admit_now("ockam", "here", Certificate(transport))


@pytest.mark.parametrize("which", FOREIGN)
async def test_others_have_at_most_the_rights_of_the_nameless(which: str, authority: Maker, tmp_path: Path) -> None:
    transport = shown(FOREIGN[which], authority, tmp_path)
    section = msgspec.structs.replace(CONFIG.security, anonymous="reader")
    async with memory_hub(msgspec.structs.replace(CONFIG, security=section)) as hub:
        try:
            let_in = hub.admission.admit_now("ockam", "here", Certificate(transport))
        except Unauthenticated:
            assert "two" in which or "twice" in which
        else:
            assert (let_in.name, let_in.roles) == ("anonymous", ("reader",))
