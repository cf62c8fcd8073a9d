"""The connection: address, secrets, TLS, and Flight's errors turned back into ours."""

from __future__ import annotations

import base64
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from headrace.config.address import split_address
from headrace.errors import BadRequest, Busy, HeadraceError, Unauthenticated, Unreachable
from headrace.log.struct_types import learn_struct_types
from headrace.protocols.flight.codec import decode_error, encode

Result = TypeVar("Result")

DEFAULT_ADDRESS = "127.0.0.1:7070"
CALL_TIMEOUT_S = 60.0
# A hub that restarts is found again within a second; gRPC by itself would wait for up to two minutes.
RECONNECT = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1_000)]
# How long one attempt to connect may take, by gRPC's name for it. A hub that was stopped, or a busy machine, takes the
# connection and says nothing: to give up before the caller's own time is over would be a refusal that nobody gave.
ATTEMPT = "grpc.min_reconnect_backoff_ms"
ATTEMPT_MS_MIN = 5_000


# What gRPC says when nobody listens there, or nobody does any more.
SAYS_NOTHING = frozenset({"Server never sent a data message", "failed to connect to all addresses", "OK"})


def to_headrace_error(error: BaseException, address: str) -> HeadraceError:
    """The error the hub sent, or what the failure of the connection means."""
    ours = decode_error(error.extra_info) if isinstance(error, flight.FlightError) and error.extra_info else None
    if ours is not None:
        return ours
    reason = str(error).partition(". Detail:")[0]
    if isinstance(error, flight.FlightUnavailableError):
        cause = reason.rpartition(": ")[2]
        told = "" if cause in SAYS_NOTHING else f": {cause}"
        return Unreachable(f"the hub at {address} does not answer, or went away{told}; `headrace up` starts one")
    if isinstance(error, flight.FlightCancelledError):  # not by us: whoever cancels a call here does not ask
        return Unreachable(f"the hub at {address} ended the call: it stops, or went away; `headrace up` starts one")
    if isinstance(error, flight.FlightTimedOutError):
        return Busy(f"the hub at {address} did not answer in time")
    if isinstance(error, flight.FlightUnauthenticatedError):
        return Unauthenticated(reason)
    return HeadraceError(f"the hub at {address} failed: {reason}")


class Connection:
    """One Flight client and what every call of it carries. `tls` may be a file of authorities, or its contents."""

    def __init__(
        self,
        address: str | None,
        *,
        token: str | None,
        user: str | None,
        password: str | None,
        tls: bool | str | Path | bytes,
        timeout_s: float,
    ) -> None:
        learn_struct_types()  # the threads of an application may share the client
        location, tls = _location(address or os.environ.get("HEADRACE_HUB") or DEFAULT_ADDRESS, tls)
        self.address = location.partition("://")[2]
        self.timeout_s = timeout_s
        self._headers = _headers(token, user, password)
        attempt_ms = max(ATTEMPT_MS_MIN, int(timeout_s * 1000))
        options: dict[str, Any] = {"generic_options": [*RECONNECT, (ATTEMPT, attempt_ms)]}
        authority = os.environ.get("HEADRACE_CA") if tls is True else tls
        if authority:
            options["tls_root_certs"] = authority if isinstance(authority, bytes) else Path(authority).read_bytes()
        try:
            self.flight = flight.FlightClient(location, **options)
        except pa.ArrowInvalid:  # such as half a pair of brackets, or two ports
            raise BadRequest(f"the address {address!r} is not host:port, such as {DEFAULT_ADDRESS}") from None

    def options(self, timeout_s: float | None = None) -> flight.FlightCallOptions:
        """What one call carries. Without a timeout it may last as long as it likes."""
        return flight.FlightCallOptions(timeout=timeout_s, headers=[*self._headers, *_trace_headers()])

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """A block whose Flight errors come out as ours."""
        try:
            yield
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise to_headrace_error(error, self.address) from None

    def call(self, verb: str, params: object) -> bytes:
        """Run a verb; its result as JSON."""
        body = encode({} if params is None else params)
        with self.translated():
            results = self.flight.do_action(flight.Action(verb, body), self.options(self.timeout_s))
            parts = [result.body.to_pybytes() for result in results]
        return parts[0] if parts else b"null"

    def close(self) -> None:
        """Give the connection up."""
        self.flight.close()


def decode_result(data: bytes, kind: type[Result]) -> Result:
    """The result of a verb as a struct."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise HeadraceError(f"the hub answered something else than this version of the SDK knows: {error}") from error


def _location(address: str, tls: bool | str | Path | bytes) -> tuple[str, bool | str | Path | bytes]:
    scheme, separator, rest = address.partition("://")
    if not separator:
        scheme, rest = "grpc+tls" if tls else "grpc", address
    if scheme in ("http", "https"):
        raise BadRequest(
            f"{address!r} is an address of the console and the API; the Flight address is host:port, port 7070"
        )
    if scheme not in ("grpc", "grpc+tcp", "grpc+tls"):
        raise BadRequest(f"the address {address!r} must be host:port, grpc://host:port or grpc+tls://host:port")
    try:
        split_address(rest)
    except ValueError:
        raise BadRequest(f"the address {address!r} is not host:port, such as {DEFAULT_ADDRESS}") from None
    return f"{scheme}://{rest}", tls or scheme == "grpc+tls"


def _trace_headers() -> list[tuple[bytes, bytes]]:
    """The trace that the caller is in, if the program around us uses OpenTelemetry."""
    if "opentelemetry.trace" not in sys.modules:
        return []
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return [(name.encode(), value.encode()) for name, value in carrier.items()]


def _headers(token: str | None, user: str | None, password: str | None) -> list[tuple[bytes, bytes]]:
    if token is not None and user is not None:
        raise BadRequest("give a token, or a user and password, not both")
    if (user is None) != (password is None):
        raise BadRequest("'user' and 'password' belong together")
    if token is None and user is None:
        token = os.environ.get("HEADRACE_TOKEN")
    if token:
        return [(b"authorization", b"Bearer " + token.encode())]
    if user is not None:
        pair = base64.b64encode(f"{user}:{password}".encode())
        return [(b"authorization", b"Basic " + pair)]
    return []
