"""Who may do what: users, tokens, roles, and TLS for each listener.

One model for every protocol: a server turns what its peer sent into a `Principal` (or None) with `authenticate` or
`authenticate_token`, and asks `principal.may(right, stream)` before each verb.

    right   what it allows
    read    read and follow records, tables and checkpoints; look at streams, cursors, sessions
    write   append, create streams, move own cursors, put into tables
    admin   delete, trim, set options, reset cursors of others, users, settings

Secrets are compared in constant time, kept as scrypt hashes by `headrace user add`, and never logged: nothing here puts
one into a message, and `Principal` does not hold it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import contextvars
import fcntl
import fnmatch
import functools
import hashlib
import hmac
import os
import re
import secrets
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import msgspec

from headrace.config import Config, Grant, TlsFiles, User
from headrace.config.address import is_loopback, split_address
from headrace.errors import BadRequest
from headrace.log.disk import fsync_directory
from headrace.protocols.descriptor import protocols
from headrace.security.login_limit import LoginLimiter

Right = Literal["read", "write", "admin"]

BUILT_IN_ROLES: dict[str, list[Grant]] = {
    "admin": [Grant(rights=["read", "write", "admin"])],
    "writer": [Grant(rights=["read", "write"])],
    "reader": [Grant(rights=["read"])],
}

# scrypt as OWASP names it for interactive logins, with a memory cost of 16 MiB.
SCRYPT_N = 2**14
SCRYPT_R = 8
SCRYPT_P = 1
VERIFIED_MAX = 10_000
HASHING_THREADS = 2
SECRET_LENGTH_MIN = 8
USER_NAME = re.compile(r"[A-Za-z0-9._@-]{1,100}")


class SecurityError(BadRequest):
    """The security settings contradict themselves."""

    code = "bad-security"


class Principal:
    """Someone known, with what they may do."""

    __slots__ = ("_grants", "name", "roles")

    def __init__(self, name: str, roles: tuple[str, ...], grants: tuple[Grant, ...]) -> None:
        self.name = name
        self.roles = roles
        self._grants = grants

    def may(self, right: Right, stream: str | None = None, *, verb: str | None = None) -> bool:
        """Whether `right` is granted on `stream`; without a stream, on all streams."""
        wanted = "*" if stream is None else stream
        for grant in self._grants:
            if right in grant.rights and _verb_matches(grant, verb):
                patterns = grant.streams
                if "*" in patterns or (stream is not None and any(_matches(wanted, pattern) for pattern in patterns)):
                    return True
        return False

    def may_some(self, right: Right, *, verb: str | None = None) -> bool:
        """Whether `right` is granted on at least some streams."""
        return any(right in grant.rights and grant.streams and _verb_matches(grant, verb) for grant in self._grants)

    def __repr__(self) -> str:
        return f"Principal({self.name!r}, roles={self.roles!r})"


@functools.lru_cache(maxsize=100_000)
def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern)


def _verb_matches(grant: Grant, verb: str | None) -> bool:
    return verb is None or "*" in grant.verbs or any(_matches(verb, pattern) for pattern in grant.verbs)


EVERYTHING = Principal("local", ("admin",), tuple(BUILT_IN_ROLES["admin"]))
_current: contextvars.ContextVar[Principal] = contextvars.ContextVar("principal", default=EVERYTHING)


def current() -> Principal:
    """Whoever the running verb acts for. Code inside the process that nobody called acts for itself and may do all."""
    return _current.get()


@contextlib.contextmanager
def acting_as(principal: Principal) -> Iterator[None]:
    """Run a block for `principal`."""
    token = _current.set(principal)
    try:
        yield
    finally:
        _current.reset(token)


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
_DECOY = f"scrypt${SCRYPT_N}${SCRYPT_R}${SCRYPT_P}${_text(bytes(16))}${_text(bytes(32))}"


class UsersFile:
    """The users that `headrace user add` keeps beside the data. Read again when the file changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int] | None = None
        self._users: dict[str, User] = {}

    def users(self) -> dict[str, User]:
        """The users now in the file; a file that cannot be understood is an error, not an empty one."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            self._stamp, self._users = None, {}
            return self._users
        except OSError as error:
            raise self._not_readable(error) from error
        stamp = (status.st_mtime_ns, status.st_size)
        if stamp != self._stamp:
            try:
                self._users = msgspec.json.decode(self.path.read_bytes(), type=dict[str, User])
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise SecurityError(f"{self.path} is not a users file: {error}") from error
            except OSError as error:
                raise self._not_readable(error) from error
            self._stamp = stamp
        return self._users

    @contextlib.contextmanager
    def changing(self) -> Iterator[dict[str, User]]:
        """The users, to be changed in the block and durable after it. Whoever else changes the file, the hub or another
        command, waits: none overwrites what the other has added, or brings back what it has removed."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._not_writable(error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._stamp = None
            users = dict(self.users())
            yield users
            self._write(users)
        except OSError as error:
            raise self._not_writable(error) from error
        finally:
            os.close(lock)

    def _not_readable(self, error: OSError) -> SecurityError:
        return SecurityError(f"the users file {self.path} cannot be read: {error.strerror}")

    def _not_writable(self, error: OSError) -> SecurityError:
        return SecurityError(f"the users file {self.path} cannot be written: {error.strerror}")

    def _write(self, users: dict[str, User]) -> None:
        """Replace the file: readable by its owner only, and never half written."""
        beside = self.path.with_suffix(".new")
        beside.unlink(missing_ok=True)  # left by a command that was killed, with whatever rights it had
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(users)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, self.path)
        fsync_directory(self.path.parent)  # a user who was removed does not come back with a power cut
        self._stamp = None


class Security:
    """The checks of one hub."""

    def __init__(
        self, config: Config, data: str | Path | None = None, held_back: Callable[[], None] = lambda: None
    ) -> None:
        """`held_back` is called for each login that came too soon after too many."""
        self._config = config
        self._section = config.security
        self.logins = LoginLimiter(self._section.login_failures_max, self._section.login_window_s, held_back)
        self.users_file = UsersFile(Path(data or config.log.data) / self._section.users_file)
        self._roles = {**BUILT_IN_ROLES, **self._section.roles}
        self._hashing = ThreadPoolExecutor(HASHING_THREADS, thread_name_prefix="passwords")
        self._verified: dict[str, bytes] = {}
        self._verified_key = os.urandom(32)
        self._checking: dict[bytes, asyncio.Future[Principal | None]] = {}
        for name, user in self.users().items():
            self._check_roles(f"user {name!r}", user.roles)
        if self._section.anonymous not in ("auto", "none"):
            self._check_roles("security.anonymous", [self._section.anonymous])

    def users(self) -> dict[str, User]:
        """All users: those of the settings and those of the users file; the settings win."""
        return {**self.users_file.users(), **self._section.users}

    def role_names(self) -> list[str]:
        """Built-in and configured roles."""
        return sorted(self._roles)

    def add_user(self, name: str, secret: str | None, roles: list[str]) -> User:
        """Add a user to the users file, or change its roles and (when given) its hashed secret; tokens stay."""
        self.check_user(name, roles)
        with self.users_file.changing() as users:
            before = users.get(name, User())
            users[name] = User(secret=secret or before.secret, tokens=before.tokens, roles=roles)
        return users[name]

    def check_user(self, name: str, roles: list[str]) -> None:
        """Raise what would be wrong with adding this user."""
        if not USER_NAME.fullmatch(name):
            raise BadRequest(f"user name {name!r}: letters, digits, dot, dash, underscore and @, at most 100")
        if name in self._section.users:
            raise BadRequest(f"user {name!r} stands in the settings; change it there")
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

    def add_token(self, name: str, digest: str) -> None:
        """Add a token (its digest) to a user of the users file."""
        with self.users_file.changing() as users:
            if name not in users:
                raise SecurityError(f"user {name!r} was removed meanwhile")
            users[name] = msgspec.structs.replace(users[name], tokens=[*users[name].tokens, digest])

    @property
    def required(self) -> bool:
        """Whether a caller without a name is refused."""
        return self.anonymous() is None

    def anonymous(self) -> Principal | None:
        """Who a caller without a name is: None when they must say who they are."""
        role = self._section.anonymous
        if role == "none" or (role == "auto" and self.users()):
            return None
        role = "admin" if role == "auto" else role
        return Principal("anonymous", (role,), tuple(self._roles[role]))

    def authenticate(self, user: str, secret: str) -> Principal | None:
        """The user, if the password is right. Takes some 50 ms the first time: on an event loop use the async twin."""
        if (verified := self._verified_before(user, secret)) is not None:
            return verified
        stored = self._stored_secret(user)
        right = check_secret(stored or _DECOY, secret)
        if stored is None or not right:
            return None
        if len(self._verified) >= VERIFIED_MAX:
            self._verified.clear()
        self._verified[user] = self._mark(stored, secret)
        return self._principal(user)

    def _stored_secret(self, user: str) -> str | None:
        known = self.users().get(user)
        return known.secret or None if known is not None else None

    def _mark(self, *parts: str) -> bytes:
        """What is remembered of a password: nothing that could be turned back into it."""
        return hmac.new(self._verified_key, "\0".join(parts).encode(), hashlib.sha256).digest()

    def _verified_before(self, user: str, secret: str) -> Principal | None:
        """The user, if this very password was right before and is still the stored one."""
        stored = self._stored_secret(user)
        if stored is not None and hmac.compare_digest(self._verified.get(user, b""), self._mark(stored, secret)):
            return self._principal(user)
        return None

    async def authenticate_async(self, user: str, secret: str, peer: str = "") -> Principal | None:
        """`authenticate` in a thread of its own kind: guessing passwords must not keep others from the disk. Raises
        `TooManyLogins` when the address `peer` has failed too often; many at once with one password are one attempt."""
        if (verified := self._verified_before(user, secret)) is not None:
            return verified
        mark = self._mark(peer, user, secret)
        checking = self._checking.get(mark)
        if checking is None:
            self.logins.begin(peer, user)
            checking = asyncio.ensure_future(self._checked(user, secret, peer))
            self._checking[mark] = checking
            checking.add_done_callback(lambda done: self._checking.pop(mark, None))
        return await asyncio.shield(checking)

    async def _checked(self, user: str, secret: str, peer: str) -> Principal | None:
        loop = asyncio.get_running_loop()
        principal = await loop.run_in_executor(self._hashing, self.authenticate, user, secret)
        if principal is not None:
            self.logins.succeeded(peer, user)
        return principal

    def authenticate_token(self, token: str, peer: str = "", *, shared: str = "") -> Principal | None:
        """The user a token belongs to; whoever says the `shared` secret, if there is one, may do everything. Raises
        `TooManyLogins` when the address `peer` has failed too often."""
        self.logins.begin(peer, None)
        is_shared = bool(shared) and hmac.compare_digest(shared.encode(), token.encode())
        principal = EVERYTHING if is_shared else self._token_owner(token)
        if principal is not None:
            self.logins.succeeded(peer, None)
        return principal

    def _token_owner(self, token: str) -> Principal | None:
        digest = token_digest(token).encode()
        found = None
        for name, user in self.users().items():
            for stored in user.tokens:
                kept = stored if stored.startswith("sha256$") else token_digest(stored)
                if hmac.compare_digest(kept.encode(), digest):
                    found = name  # no early return: the time does not tell which user matched
        return None if found is None else self._principal(found)

    def certificate_principal(self, common_name: str) -> Principal | None:
        """The user named by a client certificate that TLS has verified."""
        return self._principal(common_name) if common_name in self.users() else None

    def connection_principal(self, transport: asyncio.BaseTransport) -> Principal | None:
        """Who is at the other end of a connection whose protocol has no login: the user that its client certificate
        names, or whoever callers without a name are."""
        certificate = transport.get_extra_info("peercert") or {}
        for fields in certificate.get("subject", ()):
            for field, value in fields:
                if field == "commonName" and (found := self.certificate_principal(value)) is not None:
                    return found
        return self.anonymous()

    async def from_authorization(self, header: str | None, peer: str = "") -> Principal | None:
        """The caller of a request with this `Authorization` header from this address; None when it
        must be refused. Raises `TooManyLogins` when the address has failed too often."""
        if not header:
            return self.anonymous()
        scheme, _, rest = header.partition(" ")
        if scheme.lower() == "bearer":
            return self.authenticate_token(rest.strip(), peer)
        if scheme.lower() == "basic":
            try:
                user, separator, secret = base64.b64decode(rest.strip(), validate=True).decode().partition(":")
            except ValueError:
                return None
            return await self.authenticate_async(user, secret, peer) if separator else None
        return None

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
        except (OSError, ssl.SSLError) as error:
            raise SecurityError(f"tls of listener {listener!r}: {error}: check {files.certificate!r}") from error
        return context

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
        """What an operator must know: open listeners without authentication or without TLS."""
        found: list[str] = []
        if self.users():
            for protocol in protocols():
                found += protocol.warnings(self._config.section(protocol.settings))
        for listener, address in self._addresses():
            if address == "off" or is_loopback(split_address(address)[0]):
                continue
            if not self.required:
                found.append(
                    f"listener {listener!r} on {address} is open to other machines and asks nobody who they are: "
                    "anyone who reaches it may read and delete everything; run `headrace user add`"
                )
            if self.tls_files(listener) is None:
                found.append(
                    f"listener {listener!r} on {address} is open to other machines without TLS: "
                    "passwords and records can be read on the way; set [tls]"
                )
        return found

    def _addresses(self) -> Iterator[tuple[str, str]]:
        """Every address that the settings name, by listener."""
        yield from self._config.listen.addresses().items()
        for protocol in protocols():
            for address in protocol.addresses(self._config.section(protocol.settings)):
                yield protocol.name, address

    def _principal(self, name: str) -> Principal:
        user = self.users()[name]
        grants = tuple(grant for role in user.roles for grant in self._roles.get(role, []))
        return Principal(name, tuple(user.roles), grants)

    def _check_roles(self, where: str, roles: list[str]) -> None:
        for role in roles:
            if role not in self._roles:
                raise SecurityError(f"{where}: there is no role {role!r}; there are {', '.join(self.role_names())}")
