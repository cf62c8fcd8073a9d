"""`headrace tls`: certificates to try TLS with. For real use, take certificates of an authority people trust."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import Output, sharing
from headrace.cli.output import fail

if TYPE_CHECKING:
    from cryptography import x509

app = typer.Typer(no_args_is_help=True)
VALID_DAYS = 365


@app.callback()
def tls() -> None:
    """Create certificates to try out TLS."""


@app.command("self-signed")
@sharing(output=Output)
def self_signed(
    output: Output,
    directory: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the two files go.")] = Path("tls"),
    name: Annotated[
        list[str] | None, typer.Option("--name", help="Host name or address; may be repeated. Default: this machine.")
    ] = None,
    days: Annotated[int, typer.Option("--days", min=1, max=3650, help="Days until it expires.")] = VALID_DAYS,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Create a private key and a self-signed certificate, and print the settings that use them."""
    certificate_file, key_file = directory / "certificate.pem", directory / "key.pem"
    existing = [str(file) for file in (certificate_file, key_file) if file.exists()]
    if existing and not force:
        fail(f"{' and '.join(existing)} exist; name another directory with --out, or replace them with --force")
    key, certificate = make_self_signed(name or ["localhost", "127.0.0.1", "::1"], days)
    directory.mkdir(parents=True, exist_ok=True)
    key_file.unlink(missing_ok=True)
    descriptor = os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key)
    certificate_file.write_bytes(certificate)
    text = f"created {certificate_file} and {key_file}, valid for {days} days; settings that use them:"
    output.note({"certificate": str(certificate_file), "key": str(key_file), "days": days}, text)
    if not output.as_json:
        typer.echo(f'[tls]\ncertificate = "{certificate_file}"\nkey = "{key_file}"')


def make_self_signed(names: list[str], days: int = VALID_DAYS) -> tuple[bytes, bytes]:
    """A private key and a certificate for `names`, both PEM. It is its own authority, so clients can trust the file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0])])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    )
    certificate = builder.sign(key, hashes.SHA256())
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return key_pem, certificate.public_bytes(serialization.Encoding.PEM)


def _general_name(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
