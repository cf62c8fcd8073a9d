"""Who calls: the `authorization` header of each call, and Flight's own handshake.

    authorization: Bearer <token>            a token of a user, or one that the handshake gave
    authorization: Basic base64(user:secret)

`FlightClient.authenticate_basic_token(user, secret)` sends the second once and receives a token for the calls after it.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import pyarrow.flight as flight

from headrace.errors import HeadraceError, Unauthenticated
from headrace.protocols.flight.bridge import Bridge, to_flight_error
from headrace.security import Principal, Security

MIDDLEWARE = "headrace"
# Handshakes remembered; the oldest is forgotten and that client has to greet again.
HANDSHAKES_MAX = 10_000
_PREFIX = "hf_"
TRACE_HEADERS = ("traceparent", "tracestate")


class Handshakes:
    """Tokens given by handshakes. Each stands for the header it was given for, which is checked anew at every call."""

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

    def resolve(self, header: str) -> str:
        """The header a handshake token stands for; any other header is itself."""
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer" or not token.startswith(_PREFIX):
            return header
        with self._lock:
            return self._headers.get(token, header)


class Identity(flight.ServerMiddleware):  # type: ignore[misc]
    """Who makes one call. `principal` is None for a stranger; the call then fails with a clear error."""

    def __init__(self, principal: Principal | None, token: str | None, headers: Mapping[str, str]) -> None:
        self.principal = principal
        self.headers = headers
        """Those by which the caller's trace goes on."""
        self._token = token

    def sending_headers(self) -> dict[str, str]:
        """The handshake's answer."""
        return {} if self._token is None else {"authorization": f"Bearer {self._token}"}


class Authentication(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Finds out who makes each call."""

    def __init__(self, security: Security, bridge: Bridge) -> None:
        self._security = security
        self._bridge = bridge
        self._handshakes = Handshakes()

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Sequence[str]]) -> Identity:
        """Called by Flight before each call."""
        sent = headers.get("authorization") or headers.get("Authorization") or [""]
        header = self._handshakes.resolve(str(sent[0]))
        try:
            principal = (
                self._bridge.run(self._security.from_authorization(header)) if header else self._security.anonymous()
            )
            if principal is None:
                raise Unauthenticated(_refusal(header))
        except HeadraceError as error:
            raise to_flight_error(error) from None
        token = None
        if info.method == flight.FlightMethod.HANDSHAKE and header:
            token = self._handshakes.give(header)
        traced = {name: str(headers[name][0]) for name in TRACE_HEADERS if headers.get(name)}
        return Identity(principal, token, traced)


class OpenHandshake(flight.ServerAuthHandler):  # type: ignore[misc]
    """Lets Flight's handshake through: `Authentication` has already looked at its header."""

    def authenticate(self, outgoing: object, incoming: object) -> None:
        """Nothing to exchange."""

    def is_valid(self, token: bytes) -> str:
        """Identity comes from the header of each call."""
        return ""


def _refusal(header: str) -> str:
    if not header:
        return "this hub asks who you are: give a token, or a user and password"
    return "the token, or the user and password, is not known here"


def principal_of(context: flight.ServerCallContext) -> Principal:
    """Whoever makes this call."""
    identity = context.get_middleware(MIDDLEWARE)
    if identity is None or identity.principal is None:
        raise Unauthenticated(_refusal(""))
    principal: Principal = identity.principal
    return principal


def trace_headers_of(context: flight.ServerCallContext) -> Mapping[str, str]:
    """The caller's W3C trace context, if there is one."""
    identity = context.get_middleware(MIDDLEWARE)
    return {} if identity is None else identity.headers
