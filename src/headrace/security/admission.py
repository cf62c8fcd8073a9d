"""The door: every listener brings its peer and what that shows, and gets a principal or a refusal.

Refusals are counted by listener, logged, and slowed down (`login_limit`) here and nowhere else, so that a new way to
sign in is a credential in this file. Everyone who was let in is held by `rights`: a change of users, passwords, tokens,
roles or client authorities reaches them while they are connected.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import Unauthenticated
from headrace.security.login_limit import LoginLimiter, TooManyLogins
from headrace.security.passwords import SecurityError
from headrace.security.policy import Security
from headrace.security.principal import Principal
from headrace.security.rights import Rights
from headrace.telemetry.log_lines import fields

if TYPE_CHECKING:
    from headrace.config import SecuritySection
    from headrace.telemetry.metrics import Metrics

logger = logging.getLogger("headrace.security")

HASHING_THREADS = 2
NOTHING_SHOWN = "this hub asks who you are: give a token, or a user and password"
NOT_KNOWN = "the token, or the user and password, is not known here"


class Nobody(NamedTuple):
    """Nothing is shown. `otherwise` is the role that a setting gives them where callers without a name are refused."""

    otherwise: str | None = None

    def check(self, door: Admission, peer: str) -> Principal | None:
        return door.security.anonymous(self.otherwise)


class Unreadable(NamedTuple):
    """Something that is no credential."""

    def check(self, door: Admission, peer: str) -> Principal | None:
        return None


class Trusted(NamedTuple):
    """Nothing is shown, and a setting lets callers like this one do everything, unless the users are lost."""

    def check(self, door: Admission, peer: str) -> Principal | None:
        return door.security.trusted()


class Token(NamedTuple):
    """A user's token. Whoever says the `shared` secret, if there is one, may do everything, unless the users are
    lost."""

    token: str
    shared: str = ""

    def check(self, door: Admission, peer: str) -> Principal | None:
        return door.attempt(peer, None, self._owner)

    def _owner(self, security: Security) -> Principal | None:
        if self.shared and hmac.compare_digest(self.shared.encode(), self.token.encode()):
            return security.trusted()
        return security.authenticate_token(self.token)


class Signature(NamedTuple):
    """A user's signature; `verify` tells whether it is right."""

    user: str
    verify: Callable[[], bool]

    def check(self, door: Admission, peer: str) -> Principal | None:
        return door.attempt(
            peer, self.user, lambda security: security.certificate_principal(self.user) if self.verify() else None
        )


class Certificate(NamedTuple):
    """A connection whose protocol has no login: the user that its client certificate names, or nobody. One with several
    common names is refused: which of them the authority has looked at, nobody knows."""

    transport: asyncio.BaseTransport

    def check(self, door: Admission, peer: str) -> Principal | None:
        certificate = self.transport.get_extra_info("peercert") or {}
        parts = [part for parts in certificate.get("subject", ()) for part in parts]
        names = [value for field, value in parts if field == "commonName"]
        if len(names) > 1:
            return None
        principal = door.security.certificate_principal(names[0]) if names else None
        return principal or door.security.anonymous()


class Password(NamedTuple):
    """A user and a password. Takes a while: for `admit` only."""

    user: str
    secret: str


Quick = Nobody | Unreadable | Trusted | Token | Signature | Certificate


def from_header(header: str | None) -> Quick | Password:
    """What an `Authorization` header shows."""
    if not header:
        return Nobody()
    scheme, _, rest = header.partition(" ")
    if scheme.lower() == "bearer":
        return Token(rest.strip())
    if scheme.lower() == "basic":
        try:
            user, separator, secret = base64.b64decode(rest.strip(), validate=True).decode().partition(":")
        except ValueError:
            return Unreadable()
        return Password(user, secret) if separator else Unreadable()
    return Unreadable()


class Admission:
    """The door of one hub. Used in its event loop only, but for `Nobody`."""

    def __init__(self, security: Security, settings: SecuritySection, metrics: Metrics) -> None:
        self.security = security
        self.rights = Rights(security, metrics.security.ended.inc)
        self._refused = metrics.protocol.refused_logins
        self._limiter = LoginLimiter(
            settings.login_failures_max, settings.login_window_s, metrics.security.held_back.inc
        )
        self._hashing = ThreadPoolExecutor(HASHING_THREADS, thread_name_prefix="passwords")
        self._checking: dict[bytes, asyncio.Future[Principal | None]] = {}

    async def admit(self, listener: str, peer: str, credential: Quick | Password, message: str = "") -> Principal:
        """Whoever shows this credential at this address. Raises `Unauthenticated`, with the text `message` if there is
        one, or `TooManyLogins` when the address has failed too often."""
        if not isinstance(credential, Password):
            return self.admit_now(listener, peer, credential, message)
        try:
            principal = await self._check_password(credential, peer)
        except TooManyLogins:
            self._refused.labels(protocol=listener).inc()
            raise
        except SecurityError as error:
            self._unchecked(error)
            principal = None
        return self._admitted(listener, peer, credential, principal, message)

    def admit_now(self, listener: str, peer: str, credential: Quick, message: str = "") -> Principal:
        """`admit` for what takes no time to check."""
        try:
            principal = credential.check(self, peer)
        except TooManyLogins:  # logged when it began
            self._refused.labels(protocol=listener).inc()
            raise
        except SecurityError as error:
            self._unchecked(error)
            principal = None
        return self._admitted(listener, peer, credential, principal, message)

    def refused(self, listener: str, peer: str) -> None:
        """Someone known is turned away, for want of the right to be here."""
        self._refused.labels(protocol=listener).inc()
        logger.warning("login refused", extra=fields(listener=listener, peer=peer))

    def attempt(self, peer: str, user: str | None, check: Callable[[Security], Principal | None]) -> Principal | None:
        """One try, unless there were too many."""
        self._limiter.begin(peer, user)
        principal = check(self.security)
        if principal is not None:
            self._limiter.succeeded(peer, user)
        return principal

    def _unchecked(self, error: SecurityError) -> None:
        """The users file, or a stored secret, cannot be read. Why is for the log: it names files."""
        logger.error("a login could not be checked", extra=fields(error=str(error)))

    def _admitted(
        self, listener: str, peer: str, credential: Quick | Password, principal: Principal | None, message: str
    ) -> Principal:
        if principal is not None and self.rights.hold(principal):
            return principal
        if isinstance(credential, Nobody):  # whoever has not tried is no line in the log: browsers begin so
            self._refused.labels(protocol=listener).inc()
            raise Unauthenticated(message or NOTHING_SHOWN)
        self.refused(listener, peer)
        raise Unauthenticated(message or NOT_KNOWN)

    async def _check_password(self, claim: Password, peer: str) -> Principal | None:
        """In a thread of its own kind: guessing passwords must not keep others from the disk. Many at once with one
        password are one attempt."""
        if (known := self.security.verified_before(claim.user, claim.secret)) is not None:
            return known
        mark = self.security.mark(peer, claim.user, claim.secret)
        checking = self._checking.get(mark)
        if checking is None:
            self._limiter.begin(peer, claim.user)
            checking = asyncio.ensure_future(self._hash(claim, peer))
            self._checking[mark] = checking
            checking.add_done_callback(lambda done: self._checking.pop(mark, None))
        return await asyncio.shield(checking)

    async def _hash(self, claim: Password, peer: str) -> Principal | None:
        loop = asyncio.get_running_loop()
        principal = await loop.run_in_executor(self._hashing, self.security.authenticate, claim.user, claim.secret)
        if principal is not None:
            self._limiter.succeeded(peer, claim.user)
        return principal
