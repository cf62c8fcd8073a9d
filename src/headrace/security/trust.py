"""The file of authorities that vouch for clients (`client_ca`), and what changes in it while the hub runs.

A TLS context can learn of more authorities but cannot forget one. So a file that has changed is taken in twice: what is
new in it goes into the contexts that use it, and every certificate that a client has shown, or shows from then on, is
checked against the file as it is now. The file may also hold revocation lists of its authorities.
"""

from __future__ import annotations

import importlib
import logging
import ssl
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.security import small_file
from headrace.telemetry.log_lines import fields

if TYPE_CHECKING:
    from cryptography import x509

logger = logging.getLogger("headrace.security")

CHAIN_MAX = 10
LIST_MARK = b"-----BEGIN X509 CRL-----"
LIST_END = b"-----END X509 CRL-----"


class Trust:
    """One such file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.contexts: weakref.WeakSet[ssl.SSLContext] = weakref.WeakSet()
        """Those that were made with the file."""
        importlib.import_module("cryptography.x509")  # now, and not while clients wait
        self._seen = _stamp(path)
        self._authorities: list[x509.Certificate] = []
        self._revoked: list[x509.CertificateRevocationList] = []
        self._checks = self._read() if self._holds_lists() else False

    def stamp(self) -> object:
        """Differs when the file has changed; then it has been read again."""
        now = _stamp(self._path)
        if now != self._seen:
            self._seen = now
            self._checks = self._read()
        return now

    def vouches_for(self, connection: ssl.SSLObject | None) -> bool:
        """Whether the client at the other end would be let in if it came now, with a TLS that knows no other file."""
        self.stamp()
        if not self._checks:  # as the hub started with it: the handshake has looked
            return True
        from cryptography import x509

        try:
            chain = [x509.load_der_x509_certificate(der) for der in _chain(connection)]
        except ValueError:
            return False
        return bool(chain) and self._is_trusted(chain[0], chain[1:])

    def _is_trusted(self, leaf: x509.Certificate, others: list[x509.Certificate]) -> bool:
        certificate = leaf
        for _ in range(CHAIN_MAX):
            if any(_is_revoked(each, certificate, [*self._authorities, *others]) for each in self._revoked):
                return False
            if certificate in self._authorities or any(_issued(each, certificate) for each in self._authorities):
                return True
            issuer = next((each for each in others if each != certificate and _issued(each, certificate)), None)
            if issuer is None:
                return False
            certificate = issuer
        return False

    def _holds_lists(self) -> bool:
        try:
            return LIST_MARK in small_file.read(self._path)
        except OSError:
            return False

    def _read(self) -> bool:
        """Always True: from now on certificates are checked here. What cannot be read vouches for nobody."""
        from cryptography import x509

        try:
            text = small_file.read(self._path)
            self._authorities = x509.load_pem_x509_certificates(text)
            self._revoked = [x509.load_pem_x509_crl(each) for each in _lists(text)]
            for context in self.contexts:
                context.load_verify_locations(self._path)
        except (OSError, ValueError) as error:  # an ssl.SSLError is an OSError
            self._authorities, self._revoked = [], []
            logger.error(
                "no client certificate is accepted: the authorities cannot be read",
                extra=fields(file=str(self._path), error=str(error)),
            )
        return True


def _stamp(path: Path) -> small_file.Stamp | None:
    try:
        return small_file.stamp(path.stat())
    except OSError:
        return None


def _lists(text: bytes) -> list[bytes]:
    parts = text.split(LIST_MARK)[1:]
    return [LIST_MARK + part.partition(LIST_END)[0] + LIST_END + b"\n" for part in parts]


def _chain(connection: Any) -> list[bytes]:
    """What the client has shown, its own certificate first. The whole chain has a public name from Python 3.13 on."""
    if connection is None:
        return []
    inner = getattr(connection, "_sslobj", None)
    shown = getattr(inner, "get_unverified_chain", lambda: None)() or []
    chain = [each if isinstance(each, bytes) else ssl.PEM_cert_to_DER_cert(each.public_bytes()) for each in shown]
    own = connection.getpeercert(binary_form=True)
    return chain or ([own] if own else [])


def _issued(issuer: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except Exception:  # a wrong name, signature or kind of key
        return False
    return True


def _is_revoked(
    revoked: x509.CertificateRevocationList, certificate: x509.Certificate, issuers: list[x509.Certificate]
) -> bool:
    if revoked.issuer != certificate.issuer:
        return False
    if revoked.get_revoked_certificate_by_serial_number(certificate.serial_number) is None:
        return False
    return any(
        each.subject == revoked.issuer and revoked.is_signature_valid(each.public_key())  # type: ignore[arg-type]
        for each in issuers
    )
