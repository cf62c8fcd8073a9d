"""The users of a hub, their roles, and TLS for each listener. `admission` is the door that listeners knock at.

Nothing here puts a secret into a message, and `Principal` does not hold it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import re
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from headrace.config import Config, TlsFiles, User
from headrace.config.address import is_loopback, split_address
from headrace.errors import BadRequest
from headrace.protocols.descriptor import protocols
from headrace.security.passwords import DECOY, SECRET_LENGTH_MIN, SecurityError, check_secret, token_digest
from headrace.security.principal import BUILT_IN_ROLES, EVERYTHING, Principal
from headrace.security.trust import Trust
from headrace.security.users import UsersFile
from headrace.telemetry.log_lines import fields

logger = logging.getLogger("headrace.security")

VERIFIED_MAX = 10_000
USER_NAME = re.compile(r"[A-Za-z0-9._@-]{1,100}")
NO_USERS_LEFT = (
    "this hub has had users and now has none, so nobody can sign in; `headrace user add` adds one, and "
    "`headrace user open` lets everybody in again"
)
UNREADABLE = "the users file cannot be read, so nobody can sign in; the hub's log says why"


class Security:
    """The checks of one hub."""

    def __init__(self, config: Config, data: str | Path | None = None, *, remembers: bool = False) -> None:
        """`remembers`: users that are seen are written down, so that their loss does not open the hub."""
        self._config = config
        self._section = config.security
        self._data = Path(data or config.log.data)
        self.users_file = UsersFile(self._data / self._section.users_file, self._data)
        self._roles = {**BUILT_IN_ROLES, **self._section.roles}
        self._verified: dict[str, bytes] = {}
        self._verified_key = os.urandom(32)
        self._remembers = remembers
        self._had_users = False
        self._trouble: str | None = None
        self._trusts: dict[str, Trust] = {}
        self.on_change: Callable[[], None] = lambda: None
        """Called when this object has changed the users."""
        for name, user in self.users().items():
            self._check_roles(f"user {name!r}", user.roles)
        if self._section.anonymous not in ("auto", "none"):
            self._check_roles("security.anonymous", [self._section.anonymous])

    def users(self) -> dict[str, User]:
        """All users: those of the settings and those of the users file; the settings win."""
        users = {**self.users_file.users(), **self._section.users}
        if users and not self._had_users:
            self._had_users = True
            if self._remembers:
                self._remember()
        return users

    def _remember(self) -> None:
        if not self._data.is_dir():  # a hub in memory
            return
        try:
            self.users_file.require()
        except OSError as error:
            logger.warning("could not record that this hub has users", extra=fields(error=str(error)))

    def trouble(self) -> str | None:
        """Why nobody can sign in, if that is so. Names no file; the log, which is told once, has more."""
        detail = ""
        try:
            trouble = NO_USERS_LEFT if not self.users() and self._must_have_users() else None
        except SecurityError as error:
            trouble, detail = UNREADABLE, str(error)
        if trouble != self._trouble and self._remembers:  # commands say it in their own way
            self._trouble = trouble
            if trouble is None:
                logger.warning("this hub has users again")
            else:
                logger.error(trouble, extra=fields(users_file=str(self.users_file.path), error=detail))
        return trouble

    def _must_have_users(self) -> bool:
        self._had_users = self._had_users or self.users_file.is_required()
        return self._had_users and self._section.anonymous != "admin"

    def asks_names(self) -> bool:
        """Whether there are users, or were, or may be: once a hub has had users, it never falls open."""
        return self.trouble() is not None or self._had_users

    def standing(self) -> tuple[object, ...]:
        """Something that differs from what it was when anyone's rights may have changed since."""
        return (self.trouble(), self.users_file.stamp, *(trust.stamp() for trust in self._trusts.values()))

    def open_to_all(self) -> None:
        """Forget that there were users: at its next start the hub lets everybody in."""
        if self.users():
            raise BadRequest(f"there are users ({', '.join(sorted(self.users()))}): remove them first")
        self.users_file.forget()

    def role_names(self) -> list[str]:
        """Built-in and configured roles."""
        return sorted(self._roles)

    def add_user(self, name: str, secret: str | None, roles: list[str]) -> User:
        """Add a user to the users file, or change its roles and (when given) its hashed secret; tokens stay."""
        self.check_user(name, roles)
        with self.users_file.changing() as users:
            before = users.get(name, User())
            users[name] = User(secret=secret or before.secret, tokens=before.tokens, roles=roles)
        self.on_change()
        return users[name]

    def check_user(self, name: str, roles: list[str]) -> None:
        """Raise what would be wrong with adding this user."""
        if not USER_NAME.fullmatch(name):
            raise BadRequest(f"user name {name!r}: letters, digits, dot, dash, underscore and @, at most 100")
        if name in self._section.users:
            raise BadRequest(f"user {name!r} is defined in the settings; change it there")
        self._check_roles(f"user {name!r}", roles)

    @staticmethod
    def check_password(secret: str) -> None:
        """Raise if a new password is too short to be one."""
        if len(secret) < SECRET_LENGTH_MIN:
            raise BadRequest(f"the password has {len(secret)} characters; at least {SECRET_LENGTH_MIN} are needed")

    def remove_user(self, name: str) -> None:
        """Take a user out of the users file."""
        with self.users_file.changing() as users:
            users.pop(name, None)
        self.on_change()

    def add_token(self, name: str, digest: str) -> None:
        """Add a token (its digest) to a user of the users file."""
        with self.users_file.changing() as users:
            if name not in users:
                raise SecurityError(f"user {name!r} was removed meanwhile")
            users[name] = msgspec.structs.replace(users[name], tokens=[*users[name].tokens, digest])
        self.on_change()

    @property
    def required(self) -> bool:
        """Whether a caller without a name is refused."""
        return self.anonymous() is None

    def anonymous(self, otherwise: str | None = None) -> Principal | None:
        """Who a caller without a name is: None when they must say who they are. `otherwise` is the role that a setting
        gives them even then, unless the users are lost."""
        role: str | None = self._section.anonymous
        if role == "none" or (role == "auto" and self.asks_names()):
            role = otherwise if self.trouble() is None else None
        elif role == "auto":
            role = "admin"
        if role is None:
            return None
        return Principal("anonymous", (role,), tuple(self._roles[role]), lambda: self.anonymous(otherwise))

    def trusted(self) -> Principal | None:
        """Whoever a setting lets do everything without a name of their own. Where the users are lost, nobody: a secret
        that all share, or a place on this machine, is meant beside users and not instead of them."""
        if self.trouble() is not None:
            return None
        return Principal(EVERYTHING.name, EVERYTHING.roles, tuple(BUILT_IN_ROLES["admin"]), self.trusted)

    def authenticate(self, user: str, secret: str) -> Principal | None:
        """The user, if the password is right. Takes some 50 ms the first time."""
        if (verified := self.verified_before(user, secret)) is not None:
            return verified
        stored = self._stored_secret(user)
        right = check_secret(stored or DECOY, secret)
        if stored is None or not right:
            return None
        if len(self._verified) >= VERIFIED_MAX:
            self._verified.clear()
        self._verified[user] = self.mark(stored, secret)
        return self._principal(user, lambda known: known.secret == stored)

    def _stored_secret(self, user: str) -> str | None:
        known = self.users().get(user)
        return known.secret or None if known is not None else None

    def mark(self, *parts: str) -> bytes:
        """What is remembered of a password: nothing that could be turned back into it."""
        return hmac.new(self._verified_key, "\0".join(parts).encode(), hashlib.sha256).digest()

    def verified_before(self, user: str, secret: str) -> Principal | None:
        """The user, if this very password was right before and is still the stored one."""
        stored = self._stored_secret(user)
        if stored is not None and hmac.compare_digest(self._verified.get(user, b""), self.mark(stored, secret)):
            return self._principal(user, lambda known: known.secret == stored)
        return None

    def authenticate_token(self, token: str) -> Principal | None:
        """The user a token belongs to."""
        digest = token_digest(token).encode()
        owner, matching = None, ""
        for name, user in self.users().items():
            for stored in user.tokens:
                kept = stored if stored.startswith("sha256$") else token_digest(stored)
                if hmac.compare_digest(kept.encode(), digest):
                    owner, matching = name, stored  # no early return: the time does not tell which user matched
        return None if owner is None else self._principal(owner, lambda known: matching in known.tokens)

    def certificate_principal(self, common_name: str) -> Principal | None:
        """The user named by a client certificate that TLS has verified."""
        return self._principal(common_name)

    def tls(self, listener: str) -> ssl.SSLContext | None:
        """The TLS context of a listener, or None for plain text."""
        files = self.tls_files(listener)
        if files is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(files.certificate, files.key or None)
            if files.client_ca:
                context.load_verify_locations(files.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
                self._trust(files.client_ca).contexts.add(context)
        except (OSError, ssl.SSLError) as error:
            raise SecurityError(f"tls of listener {listener!r}: {error}: check {files.certificate!r}") from error
        return context

    def vouches(self, listener: str, transport: asyncio.BaseTransport) -> bool:
        """Whether the certificate of a client at this listener is one that `client_ca` vouches for now; the handshake
        has found that it was one when the hub started, or later."""
        trust, shown = self.trust(listener), transport.get_extra_info("ssl_object")
        return trust is None or shown is None or trust.vouches_for(shown)

    def trust(self, listener: str) -> Trust | None:
        """The authorities that vouch for the clients of a listener, if it asks for certificates."""
        files = self.tls_files(listener)
        return self._trust(files.client_ca) if files is not None and files.client_ca else None

    def _trust(self, file: str) -> Trust:
        if file not in self._trusts:
            self._trusts[file] = Trust(Path(file))
        return self._trusts[file]

    def tls_files(self, listener: str) -> TlsFiles | None:
        """The certificate files of a listener, for servers that read them on their own."""
        tls = self._config.tls
        if listener not in tls.listeners and any(each.own_tls_files for each in protocols() if listener in each.labels):
            return None
        files = tls.listeners.get(listener) or TlsFiles(
            certificate=tls.certificate, key=tls.key, client_ca=tls.client_ca
        )
        return files if files.certificate else None

    def warnings(self) -> list[str]:
        """What an operator must know: users that are lost, open listeners without authentication or without TLS."""
        trouble = self.trouble()
        warnings = [] if trouble is None else [trouble]
        if trouble is None and self.users():
            for protocol in protocols():
                warnings += protocol.warnings(self._config.section(protocol.settings))
        for listener, address in self._addresses():
            if address == "off" or is_loopback(split_address(address)[0]):
                continue
            if not self.required:
                warnings.append(
                    f"listener {listener!r} on {address} is open to other machines and requires no sign-in: "
                    "anyone who reaches it may read and delete everything; run `headrace user add`"
                )
            if self.tls_files(listener) is None:
                warnings.append(
                    f"listener {listener!r} on {address} is open to other machines without TLS: "
                    "passwords and records can be read on the way; set [tls]"
                )
        return warnings

    def _addresses(self) -> Iterator[tuple[str, str]]:
        """Every address that the settings name, by listener."""
        yield from self._config.listen.addresses().items()
        for protocol in protocols():
            for address in protocol.addresses(self._config.section(protocol.settings)):
                yield protocol.name, address

    def _principal(self, name: str, holds: Callable[[User], bool] = lambda known: True) -> Principal | None:
        """A user, while there is one and what was shown still `holds`."""
        user = self.users().get(name)
        if user is None or not holds(user):
            return None
        grants = tuple(grant for role in user.roles for grant in self._roles.get(role, []))
        return Principal(name, tuple(user.roles), grants, lambda: self._principal(name, holds))

    def _check_roles(self, where: str, roles: list[str]) -> None:
        for role in roles:
            if role not in self._roles:
                raise SecurityError(f"{where}: there is no role {role!r}; there are {', '.join(self.role_names())}")
