"""Why a connection failed when TLS is the reason, and what to do about it."""

from __future__ import annotations

import contextlib
import socket
import ssl

from headrace.config.address import split_address

PROBE_S = 2.0
TRUST = "give the file of whoever signed it with --ca FILE (in Python tls=FILE, or HEADRACE_CA)"

# What gRPC says → what that means. The first that fits counts.
MEANINGS = (
    ("wrong version number", "it speaks without TLS; leave out --tls and --ca, or write grpc://HOST:PORT"),
    ("Peer name", "its certificate is not for this name; connect by a name that the certificate has"),
    ("certificate has expired", "its certificate has expired; have the hub's operator renew it"),
    ("not yet valid", "its certificate is not valid yet; compare the clocks of both machines"),
    ("certificate required", "it asks for a client certificate (tls.client_ca), and this client cannot show one"),
    ("self-signed certificate", f"its certificate signs itself and is not the one that is trusted here; {TRUST}"),
    ("unable to get local issuer", f"nobody who is trusted here has signed its certificate; {TRUST}"),
    ("certificate verify failed", f"its certificate is not trusted here; {TRUST}"),
)  # fmt: skip


def explain(cause: str, address: str, *, has_tls: bool) -> str | None:
    """What is wrong and what helps, or None when TLS has nothing to do with it."""
    for said, meaning in MEANINGS:
        if said in cause:
            return meaning
    if not has_tls and speaks_tls(address):
        return (
            "it speaks TLS; add --ca FILE with its certificate, or --tls if a public authority signed it "
            "(in Python tls=FILE or tls=True)"
        )
    return None


def speaks_tls(address: str) -> bool:
    """Whether what listens there takes part in a TLS handshake. Nothing is trusted, and nothing is sent."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        contextlib.suppress(OSError, ValueError),  # nobody is there, or whoever is speaks something else
        socket.create_connection(split_address(address), PROBE_S) as plain,
        context.wrap_socket(plain, server_hostname=split_address(address)[0]),
    ):
        return True
    return False
