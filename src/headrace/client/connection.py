"""The connection: address, secrets, TLS, and Flight's errors turned back into ours."""

from __future__ import annotations

import base64
import contextlib
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.flight as flight
from pyarrow.flight import FlightCallOptions, FlightClient

from headrace.client.lines import Line, Lines, NotTaken
from headrace.client.tls_trouble import explain
from headrace.config.address import split_address
from headrace.config.profiles import DEFAULT_ADDRESS, PLAIN_SCHEMES, TLS_SCHEME, Tls, resolve
from headrace.errors import BadRequest, Busy, HeadraceError, NotHere, TlsTrouble, Unauthenticated, Unreachable
from headrace.log.struct_types import learn_struct_types
from headrace.protocols.flight.codec import decode_error, encode, error_from_body
from headrace.protocols.flight.requests import OFFER_ACTION, LineOffer, Request, framed

Result = TypeVar("Result")

CALL_TIMEOUT_S = 60.0
# A hub that restarts is found again within a second; gRPC by itself would wait for up to two minutes.
RECONNECT = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1_000)]
# How long one attempt to connect may take, by gRPC's name for it. A hub that was stopped, or a busy machine, takes the
# connection and says nothing: to give up before the caller's own time is over would be a refusal that nobody gave.
ATTEMPT = "grpc.min_reconnect_backoff_ms"
ATTEMPT_MS_MIN = 5_000
# After a hub has said that another takes over.
AGAIN_S = 0.1
# What gRPC says of a call that it could send to nobody.
SENT_TO_NOBODY = "failed to connect to all addresses"
# And of one that something else than a Flight server answered.
OTHER_SERVICE = "Failed parsing HTTP/2"
# Several calls that find a hub gone at the same time mean one move.
MOVE_S = 0.5


# What gRPC says when nobody listens there, or nobody does any more.
SAYS_NOTHING = frozenset({"Server never sent a data message", "failed to connect to all addresses", "OK"})


class NotBegun(Unreachable):
    """The hub stops and did not take the call. Its gRPC lets calls that have begun end by themselves."""


class NeverSent(NotBegun):
    """Nobody was there to take the call: no byte of it has left this machine."""


def to_headrace_error(error: BaseException, address: str, *, has_tls: bool | None = None) -> HeadraceError:
    """The error the hub sent, or what the failure of the connection means. `has_tls` says how the connection was tried
    when it never came to be: then TLS may be the reason, and its absence too."""
    ours = decode_error(error.extra_info) if isinstance(error, flight.FlightError) and error.extra_info else None
    if ours is not None:
        return ours
    reason = str(error).partition(". Detail:")[0]
    if isinstance(error, flight.FlightUnavailableError):
        cause = reason.rpartition(": ")[2]
        trouble = None if has_tls is None else explain(cause, address, has_tls=has_tls)
        if trouble is not None:
            return TlsTrouble(f"the hub at {address} cannot be reached like this: {trouble}")
        if OTHER_SERVICE in cause:
            return Unreachable(f"{address} is not the Flight listener of a hub, which is {DEFAULT_ADDRESS} by default")
        told = "" if cause in SAYS_NOTHING else f": {cause}"
        return Unreachable(f"the hub at {address} does not answer, or went away{told}; `headrace up` starts one")
    if isinstance(error, flight.FlightCancelledError):  # not by us: whoever cancels a call here does not ask
        return NotBegun(f"the hub at {address} ended the call: it stops, or went away; `headrace up` starts one")
    if isinstance(error, flight.FlightTimedOutError):
        return Busy(f"the hub at {address} did not answer in time")
    if isinstance(error, flight.FlightUnauthenticatedError):
        return Unauthenticated(reason)
    return HeadraceError(f"the hub at {address} failed: {reason}")


class Connection:
    """A Flight client and what every call of it carries. `tls` may be a file of authorities, or its contents. There may
    be several addresses, `host:port,host:port`: the next one is used when nobody is at this one any more."""

    def __init__(
        self,
        address: str | None,
        *,
        token: str | None,
        user: str | None,
        password: str | None,
        tls: Tls,
        timeout_s: float,
    ) -> None:
        learn_struct_types()  # the threads of an application may share the client
        _check_secrets(token, user, password)
        target = resolve(address, token=token, user=user, password=password, tls=tls)
        self._locations = _locations(target.address)
        self._has_tls: bool | None = self._locations[0].startswith(TLS_SCHEME)  # None once the hub has answered
        self._current = 0
        self._lines = Lines(self.open_line)
        self._moved_at = 0.0
        self.timeout_s = timeout_s
        self._headers = _headers(target.token, target.user, target.password)
        attempt_ms = max(ATTEMPT_MS_MIN, int(timeout_s * 1000))
        options: dict[str, Any] = {"generic_options": [*RECONNECT, (ATTEMPT, attempt_ms)]}
        self._authorities = None if isinstance(target.tls, bool) else _certificates(target.tls)
        if self._authorities is not None:
            options["tls_root_certs"] = self._authorities
        try:
            self._clients = [FlightClient(location, **options) for location in self._locations]
        except pa.ArrowInvalid:  # such as half a pair of brackets, or two ports
            raise BadRequest(f"the address {address!r} is not host:port, such as {DEFAULT_ADDRESS}") from None

    @property
    def flight(self) -> FlightClient:
        """That of the address in use."""
        return self._clients[self._current]

    @property
    def address(self) -> str:
        """The one in use."""
        return self._locations[self._current].partition("://")[2]

    def options(self, timeout_s: float | None = None) -> FlightCallOptions:
        """What one call carries. Without a timeout it may last as long as it likes."""
        traced = [(name.encode(), value.encode()) for name, value in trace().items()]
        return FlightCallOptions(timeout=timeout_s, headers=[*self._headers, *traced])

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """A block whose Flight errors come out as ours."""
        try:
            yield
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise self.failure(error) from None
        self._has_tls = None

    def failure(self, error: BaseException) -> HeadraceError:
        """What an error of this connection means. Whoever asks again does so at the next address, if nobody is at this
        one any more."""
        found = to_headrace_error(error, self.address, has_tls=self._has_tls)
        if len(self._locations) > 1 and isinstance(found, Unreachable) and not isinstance(found, NotBegun):
            self._move_on()
            if SENT_TO_NOBODY in str(error):
                return NeverSent(str(found))
        return found

    def _move_on(self) -> None:
        now = time.monotonic()
        if now > self._moved_at + MOVE_S:
            self._moved_at, self._current = now, (self._current + 1) % len(self._locations)
            self._lines.close()

    def call(self, verb: str, params: object) -> bytes:
        """Run a verb; its result as JSON."""
        body = encode({} if params is None else params)
        answer = self.ask(Request(verb, msgspec.Raw(body), trace=trace()))
        return self.patiently(lambda: self._called(verb, body)) if answer is None else answer

    def ask(self, request: Request) -> bytes | None:
        """The result of a request as JSON, if there is a line for it (lines.py); otherwise nothing was done."""
        try:
            answer = self._lines.ask(framed(request))
        except NotTaken:
            return None
        if answer.error is None:
            return bytes(answer.result)
        error = error_from_body(answer.error)
        if isinstance(error, NotHere):  # not done; another hub takes over, and calls find it
            return None
        raise error

    def open_line(self) -> Line | None:
        """One to the hub at the address in use. What is not safe as a call is not made safe by a line: without TLS
        there is none for a client that has it."""
        client, has_tls = self.flight, self._locations[self._current].startswith(TLS_SCHEME)
        with self.translated():
            offer = decode_result(self._called(OFFER_ACTION, b""), LineOffer)
        if offer.address is None or offer.tls != has_tls or client is not self.flight:
            return None
        host, _ = split_address(self.address)
        return Line(host, offer, self._tls_context() if has_tls else None, self.timeout_s)

    def _tls_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self._authorities and self._authorities.decode())

    def _called(self, verb: str, body: bytes) -> bytes:
        results = self.flight.do_action(flight.Action(verb, body), self.options(self.timeout_s))
        parts = [result.body.to_pybytes() for result in results]
        return parts[0] if parts else b"null"

    def patiently(self, work: Callable[[], Result]) -> Result:
        """Do it, and again while a hub says that it stops and has not begun: another may take over."""
        give_up = time.monotonic() + self.timeout_s
        while True:
            try:
                with self.translated():
                    return work()
            except (NotHere, NotBegun):
                if time.monotonic() > give_up:
                    raise
                time.sleep(AGAIN_S)

    def close(self) -> None:
        """Give the connection up."""
        self._lines.close()
        for client in self._clients:
            client.close()


def decode_result(data: bytes, kind: type[Result]) -> Result:
    """The result of a verb as a struct."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise HeadraceError(f"this version of the SDK does not understand the hub's answer: {error}") from error


def _certificates(authority: str | Path | bytes) -> bytes:
    if isinstance(authority, bytes):
        return authority
    try:
        return Path(authority).read_bytes()
    except OSError as error:
        raise BadRequest(f"the certificates in {authority} cannot be read: {error.strerror}") from None


def _locations(address: str) -> list[str]:
    """Of one hub, or of several with commas between them; the scheme stands before the first."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        scheme, rest = "grpc", address
    if scheme in ("http", "https"):
        raise BadRequest(
            f"{address!r} is an address of the console and the API; the Flight address is host:port, port 7070"
        )
    if scheme not in (*PLAIN_SCHEMES, TLS_SCHEME):
        raise BadRequest(f"the address {address!r} must be host:port, grpc://host:port or grpc+tls://host:port")
    try:
        for each in rest.split(","):
            split_address(each)
    except ValueError:
        raise BadRequest(f"the address {address!r} is not host:port, such as {DEFAULT_ADDRESS}") from None
    return [f"{scheme}://{each}" for each in rest.split(",")]


def trace() -> dict[str, str]:
    """The trace that the caller is in, if the program around us uses OpenTelemetry."""
    carrier: dict[str, str] = {}
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry import propagate

        propagate.inject(carrier)
    return carrier


def _check_secrets(token: str | None, user: str | None, password: str | None) -> None:
    if token is not None and user is not None:
        raise BadRequest("give a token, or a user and password, not both")
    if user is None and password is not None:
        raise BadRequest("'user' and 'password' belong together")


def _headers(token: str | None, user: str | None, password: str | None) -> list[tuple[bytes, bytes]]:
    if token:
        return [(b"authorization", b"Bearer " + token.encode())]
    if user is None:
        return []
    if password is None:
        raise BadRequest(f"'user' and 'password' belong together: user {user!r} has none here (HEADRACE_PASSWORD)")
    return [(b"authorization", b"Basic " + base64.b64encode(f"{user}:{password}".encode()))]
