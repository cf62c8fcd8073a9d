"""Passwords and tokens in the form that may stand in a file. Secrets are compared in constant time and never logged."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets

from headrace.errors import BadRequest

# scrypt as OWASP names it for interactive logins, with a memory cost of 16 MiB.
SCRYPT_N = 2**14
SCRYPT_R = 8
SCRYPT_P = 1
SECRET_LENGTH_MIN = 8


class SecurityError(BadRequest):
    """The security settings contradict themselves."""

    code = "bad-security"


def hash_secret(secret: str) -> str:
    """The form of a password that may stand in a file: `scrypt$N$r$p$salt$hash`."""
    salt = os.urandom(16)
    digest = _scrypt(secret, salt, SCRYPT_N, SCRYPT_R, SCRYPT_P)
    return f"scrypt${SCRYPT_N}${SCRYPT_R}${SCRYPT_P}${_text(salt)}${_text(digest)}"


def check_secret(stored: str, secret: str) -> bool:
    """Whether `secret` is the password that `stored` (hashed or plain) stands for; constant time."""
    if not stored.startswith("scrypt$"):
        return hmac.compare_digest(stored.encode(), secret.encode())
    try:
        _, n, r, p, salt, digest = stored.split("$")
        computed = _scrypt(secret, base64.b64decode(salt), int(n), int(r), int(p))
        return hmac.compare_digest(computed, base64.b64decode(digest))
    except ValueError as error:
        raise SecurityError("a stored secret begins with 'scrypt$' and is not one; write it again") from error


def new_token() -> tuple[str, str]:
    """A new token and the form of it that may stand in a file. Tokens are random, so a plain hash is enough."""
    token = "hr_" + secrets.token_urlsafe(32)
    return token, token_digest(token)


def token_digest(token: str) -> str:
    """What is stored of a token."""
    return "sha256$" + hashlib.sha256(token.encode()).hexdigest()


def _scrypt(secret: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(secret.encode(), salt=salt, n=n, r=r, p=p, maxmem=256 * n * r + (1 << 20), dklen=32)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


# A hash of the same cost for names that do not exist, so that a wrong name takes as long as a wrong password.
DECOY = f"scrypt${SCRYPT_N}${SCRYPT_R}${SCRYPT_P}${_text(bytes(16))}${_text(bytes(32))}"
