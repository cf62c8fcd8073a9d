"""Who calls: the `authorization` header of each call, and Flight's own handshake.

    authorization: Bearer <token>            a token of a user, or one that the handshake gave
    authorization: Basic base64(user:secret)

`FlightClient.authenticate_basic_token(user, secret)` sends the second once and receives a token for the calls after it.
"""

from __future__ import annotations

import base64
import binascii
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow.flight as flight

from headrace.errors import HeadraceError
from headrace.protocols.flight.bridge import Bridge, to_flight_error
from headrace.protocols.flight.connections import normal
from headrace.security import Principal
from headrace.security.admission import Nobody, from_header
from headrace.security.login_limit import TooManyLogins

if TYPE_CHECKING:
    from headrace.hub import Hub

MIDDLEWARE = "headrace"
# Handshakes remembered; the oldest is forgotten and that client has to greet again.
HANDSHAKES_MAX = 10_000
_PREFIX = "hf_"
_UNCHECKED_PREFIX = "hu_"
TRACE_HEADERS = ("traceparent", "tracestate")


class Handshakes:
    """Tokens given by handshakes. Each stands for the header it was given for, which is checked anew at every call.

    One that was given without a look holds that header itself: strangers who ask for many take nobody's place."""

    def __init__(self) -> None:
        self._headers: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def give(self, header: str) -> str:
        """A new token for this header."""
        token = _PREFIX + secrets.token_urlsafe(32)
        with self._lock:
            self._headers[token] = header
            while len(self._headers) > HANDSHAKES_MAX:
                self._headers.popitem(last=False)
        return token

    @staticmethod
    def unchecked(header: str) -> str:
        """A token for a header that nobody has looked at: no secret but the caller's own is in it."""
        return _UNCHECKED_PREFIX + base64.urlsafe_b64encode(header.encode()).decode()

    def resolve(self, header: str) -> str:
        """The header a handshake token stands for; any other header is itself."""
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer":
            return header
        if token.startswith(_UNCHECKED_PREFIX):
            try:
                return base64.urlsafe_b64decode(token.removeprefix(_UNCHECKED_PREFIX)).decode()
            except (binascii.Error, UnicodeError):
                return header
        if not token.startswith(_PREFIX):
            return header
        with self._lock:
            return self._headers.get(token, header)


class Identity(flight.ServerMiddleware):  # type: ignore[misc]
    """Who makes one call: what it says of itself, and on being asked whether that is so."""

    def __init__(
        self, authentication: Authentication, header: str, token: str | None, headers: Mapping[str, str]
    ) -> None:
        self.headers = headers
        """Those by which the caller's trace goes on."""
        self._authentication = authentication
        self._header = header
        self._token = token
        self._principal: Principal | None = None

    def principal(self, peer: str) -> Principal:
        """Whoever calls from this address, or an error that a stranger is told."""
        if self._principal is None:
            self._principal = self._authentication.principal(self._header, peer)
        return self._principal

    def sending_headers(self) -> dict[str, str]:
        """The handshake's answer."""
        return {} if self._token is None else {"authorization": f"Bearer {self._token}"}


class Authentication(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Finds out who makes each call. Flight tells the address of the caller only to the call itself, so that is where
    the credentials are looked at; a handshake has no such place and counts as coming from one address for all. When
    too many of them were wrong, the next are not refused, since most may be others', but put off: the token is given
    unseen, and the first call with it finds out. Whoever shows nothing is refused at once."""

    def __init__(self, hub: Hub, bridge: Bridge) -> None:
        self._admission = hub.admission
        self._peers = hub.peers
        self._bridge = bridge
        self._handshakes = Handshakes()

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Sequence[str]]) -> Identity:
        """Called by Flight before each call."""
        sent = headers.get("authorization") or headers.get("Authorization") or [""]
        header = self._handshakes.resolve(str(sent[0]))
        token = None
        if info.method == flight.FlightMethod.HANDSHAKE or not header:
            try:
                self.principal(header, "flight handshake")
                token = self._handshakes.give(header) if header else None
            except TooManyLogins:
                token = self._handshakes.unchecked(header)
            except HeadraceError as error:
                raise to_flight_error(error) from None
        traced = {name: str(headers[name][0]) for name in TRACE_HEADERS if headers.get(name)}
        return Identity(self, header, token, traced)

    def principal(self, header: str, peer: str) -> Principal:
        """Whoever this header names, or an error that a stranger is told."""
        if not header:
            return self._admission.admit_now("flight", peer, Nobody())
        place = self._peers.client(normal(peer)) if peer.startswith(("ipv4:", "ipv6:")) else peer
        return self._bridge.run(self._admission.admit("flight", place, from_header(header)))


class OpenHandshake(flight.ServerAuthHandler):  # type: ignore[misc]
    """Lets Flight's handshake through: `Authentication` has already looked at its header."""

    def authenticate(self, outgoing: object, incoming: object) -> None:
        """Nothing to exchange."""

    def is_valid(self, token: bytes) -> str:
        """Identity comes from the header of each call."""
        return ""


def principal_of(context: flight.ServerCallContext) -> Principal:
    """Whoever makes this call."""
    identity: Identity = context.get_middleware(MIDDLEWARE)
    return identity.principal(context.peer())


def trace_headers_of(context: flight.ServerCallContext) -> Mapping[str, str]:
    """The caller's W3C trace context, if there is one."""
    identity: Identity = context.get_middleware(MIDDLEWARE)
    return identity.headers
