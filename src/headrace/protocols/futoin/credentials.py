"""FTN8: who a request comes from. The forms of `sec`, and their check against the users of the hub.

    user:secret                        clear text, or HTTP Basic in the path form
    -hmac:user:ALGO:signature          legacy signature of the message
    -smac:user:ALGO:signature          FTN8.1 stateless signature
    -mmac:id:ALGO:KDS:prm:signature    FTN8.2 signature with a key made from a Master Secret
    {"user", "secret"}                 the same as objects
    {"user", "algo", "sig"}
    {"msid", "algo", "kds", "prm", "sig"}; "prm" may be left out

A wrong name and a wrong secret get the same answer. Nothing here logs or repeats a secret.
"""

from __future__ import annotations

import base64
import binascii
import functools
import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import Unauthenticated
from headrace.protocols.futoin import mac
from headrace.protocols.futoin.codec import Sign
from headrace.protocols.futoin.errors import INVALID_REQUEST, NOT_IMPLEMENTED, SECURITY_ERROR, PeerError
from headrace.protocols.futoin.settings import Futoin
from headrace.security import Principal, Right
from headrace.security.admission import Nobody, Password, Signature
from headrace.security.login_limit import TooManyLogins

if TYPE_CHECKING:
    from headrace.hub import Hub

KNOWN_FOR_S = 1.0
"""How long a good `user:secret` is remembered, unless users change."""
KNOWN_MAX = 10_000
DECOY_KEY = b"\0" * 32
"""A key nobody has: checking an unknown user takes as long as checking a known one."""


class Signed(NamedTuple):
    user: str
    algorithm: str
    signature: str
    failed: str


class MasterSigned(NamedTuple):
    id: str
    algorithm: str
    strategy: str
    parameter: str
    signature: str
    failed: str


class Caller:
    """Who calls. With `sign`, every answer is signed by it."""

    __slots__ = ("_allowed", "principal", "sign", "user")

    def __init__(self, principal: Principal, sign: Sign | None = None) -> None:
        self.principal = principal
        self.user = principal.name
        self.sign = sign
        self._allowed: dict[tuple[str, str], bool] = {}

    def may(self, right: Right, stream: str, verb: str) -> bool:
        """`Principal.may`, asked once for each stream: a caller is remembered only for a moment, and only while nothing
        changes."""
        allowed = self._allowed.get((verb, stream))
        if allowed is None:
            allowed = self._allowed[verb, stream] = self.principal.may(right, stream, verb=verb)
        return allowed


LEGACY_FAILED = "Legacy Signature Verification Failed"
STATELESS_FAILED = "Stateless MAC Verification Failed"
MASTER_FAILED = "Master MAC Verification Failed"
BASIC_FAILED = "Basic Auth Verification Failed"
SIGNATURES = {"-hmac": (mac.HMAC_ALGORITHMS, LEGACY_FAILED), "-smac": (mac.SMAC_ALGORITHMS, STATELESS_FAILED)}

PARAMETER = re.compile(r"[a-zA-Z0-9._/+-]{0,32}")
DERIVED_MAX = 1_000
"""How many keys made from Master Secrets are kept: callers choose the parameter."""

Claim = Password | Signed | MasterSigned


def parse(sec: str | dict[str, Any] | None) -> Claim | None:
    """What a `sec` claims; None for nobody."""
    if sec is None or sec == "":
        return None
    if isinstance(sec, dict):
        return _parse_object(sec)
    if not sec.startswith("-"):
        # The first colon only: a secret may hold more of them.
        user, separator, secret = sec.partition(":")
        if not separator:
            raise PeerError(SECURITY_ERROR, BASIC_FAILED)
        return Password(user, secret)
    kind, *parts = sec.split(":")
    if kind == "-internal":
        raise PeerError(SECURITY_ERROR, "Not internal channel")
    if kind == "-mmac":
        if len(parts) != 5:
            raise PeerError(SECURITY_ERROR, MASTER_FAILED)
        return _master_signed(*parts)
    if kind not in SIGNATURES:
        raise PeerError(NOT_IMPLEMENTED, "Unknown form of sec")
    if len(parts) != 3:
        raise PeerError(SECURITY_ERROR, SIGNATURES[kind][1])
    return _signed(kind, *parts)


def _parse_object(sec: dict[str, Any]) -> Claim:
    if not all(isinstance(value, str) for value in sec.values()):
        raise PeerError(SECURITY_ERROR, BASIC_FAILED)
    if sec.keys() == {"user", "secret"}:
        return Password(sec["user"], sec["secret"])
    if sec.keys() == {"user", "algo", "sig"}:
        kind = "-hmac" if sec["algo"] in mac.HMAC_ALGORITHMS else "-smac"
        return _signed(kind, sec["user"], sec["algo"], sec["sig"])
    if {"prm", *sec} == {"msid", "algo", "kds", "prm", "sig"}:
        return _master_signed(sec["msid"], sec["algo"], sec["kds"], sec.get("prm", ""), sec["sig"])
    raise PeerError(NOT_IMPLEMENTED, "Unknown form of sec")


def _signed(kind: str, user: str, name: str, signature: str) -> Signed:
    known, failed = SIGNATURES[kind]
    if name not in known:
        raise PeerError(INVALID_REQUEST, "Not supported MAC algo")
    return Signed(user, known[name], signature, failed)


def _master_signed(master: str, name: str, strategy: str, parameter: str, signature: str) -> MasterSigned:
    if name not in mac.SMAC_ALGORITHMS:
        raise PeerError(INVALID_REQUEST, "Not supported MAC algo")
    if strategy not in mac.KEY_STRATEGIES:
        raise PeerError(SECURITY_ERROR, "Not supported key derivation strategy")
    if not PARAMETER.fullmatch(parameter):
        raise PeerError(SECURITY_ERROR, MASTER_FAILED)
    algorithm, kdf = mac.SMAC_ALGORITHMS[name], mac.KEY_STRATEGIES[strategy]
    return MasterSigned(master, algorithm, kdf, parameter, signature, MASTER_FAILED)


def from_basic(header: str) -> str | None:
    """The `sec` in an HTTP Basic header; only the path form reads it (FTN5)."""
    scheme, _, rest = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(rest.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return "-"  # no form of sec begins so: refused like any wrong one


class Guard:
    """Checks callers against the users of the hub and the keys of `[futoin]`."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._known: dict[str, tuple[float, Caller]] = {}
        # Not among the known: nobody may become it by what they write into `sec`.
        self._anonymous: tuple[float, Caller] | None = None
        hub.admission.rights.watch(self._forget)
        settings = hub.config.section(Futoin)
        self._mac_keys = {user: base64.b64decode(key) for user, key in settings.mac_keys.items()}
        self._masters = {
            name: (master.user, base64.b64decode(master.key)) for name, master in settings.master_keys.items()
        }
        self._global_id = settings.global_id
        self._derive = functools.lru_cache(DERIVED_MAX)(mac.derive)

    def remembered(self, sec: str | dict[str, Any] | None) -> Caller | None:
        """The caller of a `user:secret` that was good a moment ago: the way of nearly every request."""
        if not isinstance(sec, str):
            return None
        entry = self._known.get(sec)
        if entry is None or entry[0] < time.monotonic():
            return None
        return entry[1]

    def _forget(self) -> None:
        """Users have changed: everyone is looked at anew."""
        self._known.clear()
        self._anonymous = None

    def anonymous(self) -> Caller:
        """Who nobody is where `futoin.insecure` lets them in."""
        now_s = time.monotonic()
        if self._anonymous is None or self._anonymous[0] < now_s:
            caller = Caller(self._hub.admission.admit_now("futoin", "", Nobody("writer")))
            self._anonymous = (now_s + KNOWN_FOR_S, caller)
        return self._anonymous[1]

    def _remember(self, sec: str, caller: Caller) -> None:
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[sec] = (time.monotonic() + KNOWN_FOR_S, caller)

    async def identify(
        self, sec: str | dict[str, Any] | None, message: dict[str, Any], peer: str = ""
    ) -> Caller | None:
        """Who sent `message` (the decoded request) from this address; None for nobody. Raises when the claim is
        wrong."""
        claim = parse(sec)
        if claim is None:
            return None
        try:
            if isinstance(claim, Signed):
                return self._check_signature(claim, claim.user, self._mac_keys.get(claim.user), message, peer)
            if isinstance(claim, MasterSigned):
                return self._check_master(claim, message, peer)
            caller = Caller(await self._hub.admission.admit("futoin", peer, claim, BASIC_FAILED))
        except (TooManyLogins, Unauthenticated) as error:
            raise PeerError(SECURITY_ERROR, str(error)) from None
        if isinstance(sec, str):
            self._remember(sec, caller)
        return caller

    def _check_master(self, claim: MasterSigned, message: dict[str, Any], peer: str) -> Caller:
        user, master = self._masters.get(claim.id, ("", DECOY_KEY))
        key = self._derive(master, claim.strategy, self._global_id, claim.parameter)
        return self._check_signature(claim, user, key if claim.id in self._masters else None, message, peer)

    def _check_signature(
        self, claim: Signed | MasterSigned, user: str, key: bytes | None, message: dict[str, Any], peer: str
    ) -> Caller:
        tried = DECOY_KEY if key is None else key

        def verify() -> bool:
            return mac.verify(tried, claim.algorithm, message, claim.signature) and key is not None

        principal = self._hub.admission.admit_now("futoin", peer, Signature(user, verify), claim.failed)
        return Caller(principal, functools.partial(mac.sign, tried, claim.algorithm))
