"""The one HTTP server: health, metrics, admin API, and whatever parts mount on it.

    GET  /health, /health/live, /health/ready     200 or 503, with reasons; `?cell=0`: 200 only at its owner
    GET  /metrics                                  Prometheus text
    GET  /api/openapi.json                         the API document
    POST /api/v1/<verb>                            every registered verb, JSON both ways
    *    /api/…                                    verbs with a path of their own
    *    everything else                           `hub.mounts`: protocols, console

It runs in the hub's own event loop. Browsers: a page of another site must not drive a hub on the visitor's machine,
so the API takes only `application/json`, refuses a foreign `Origin`, and a listener on loopback refuses a `Host` that
is not this machine's (a name that was pointed at 127.0.0.1).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from typing import Any
from urllib.parse import urlsplit

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from headrace.admin.openapi import ErrorBody, ErrorDetail, document
from headrace.config.address import is_loopback, join_address, split_address
from headrace.errors import BadRequest, Forbidden, HeadraceError, LimitExceeded
from headrace.hub.base import HubBase
from headrace.hub.verbs import Form, HttpForm
from headrace.security import Principal
from headrace.security.admission import from_header
from headrace.security.login_limit import TooManyLogins
from headrace.serving import sockets
from headrace.serving.http_connection import WebSocketConnection, connection_class, recognized
from headrace.serving.listener import Listener, open_server
from headrace.telemetry.log_lines import fields
from headrace.units import MIB

NEXT_HEADER = "Headrace-Next"
"""Where the rest of a list begins, for a caller that did not ask for a page."""

logger = logging.getLogger("headrace.http")
OWN_PATHS = ("/api", "/health", "/metrics")
WEBSOCKET_POLICY_VIOLATION = 1008
PIECE_BYTES = MIB
GRACE_S = 2  # a verb under way may end by itself; a page that is being streamed never does


class TooLarge(LimitExceeded):
    """The body is larger than `http.request_bytes_max`."""

    code = "too-large"
    status = 413


class UnsupportedMediaType(BadRequest):
    """The body is not JSON."""

    code = "unsupported-media-type"
    status = 415


class Misdirected(BadRequest):
    """The request was meant for another site."""

    code = "misdirected"
    status = 421


def error_response(error: HeadraceError) -> Response:
    """A refusal as every client of the API sees it."""
    headers = {}
    if error.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="headrace", Basic realm="headrace", charset="UTF-8"'
    if error.status == 503:
        headers["Retry-After"] = "1"
    if isinstance(error, TooManyLogins):
        headers["Retry-After"] = str(error.wait_s)
    return _json(ErrorBody(ErrorDetail(error.code, str(error))), error.status, headers)


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


class Api:
    """The handlers of our own paths."""

    def __init__(self, hub: HubBase) -> None:
        self._hub = hub
        routes = [
            Route("/health", self.health),
            Route("/health/live", self.live),
            Route("/health/ready", self.health),
            Route("/metrics", self.metrics),
            Route("/api/openapi.json", self.openapi),
            Route("/api/v1/{verb}", self.verb, methods=["POST"]),
        ]
        for verb in hub.verbs:
            if verb.http is not None:
                endpoint = functools.partial(self.form, verb=verb.name, http=verb.http)
                routes.append(Route(verb.http.path, endpoint, methods=[verb.http.method]))
        self.app = Starlette(routes=routes, exception_handlers={404: _not_found, 405: _wrong_method})

    async def health(self, request: Request) -> Response:
        """Ready or not. Open to all, since a load balancer has no password; the reasons are for those with a name, as
        far as they may know them. With `cell` it is asked whether this is the hub that owns that part of the log."""
        report = self._hub.health.report()
        cell = request.query_params.get("cell")
        if cell is not None and not (cell.isdecimal() and self._hub.health.owns(int(cell))):
            return _json({"live": True, "ready": False, "reasons": {"cell": f"this hub does not own cell {cell}"}}, 503)
        if report.reasons or report.notes:
            try:
                report = self._hub.health.report(await self._principal(request))
            except HeadraceError:
                report = msgspec.structs.replace(report, reasons={}, notes={})
        return _json(report, 200 if report.ready else 503)

    async def live(self, request: Request) -> Response:
        """The process answers."""
        return _json({"live": True})

    async def metrics(self, request: Request) -> Response:
        """Prometheus text; needs the right to read."""
        try:
            await self._reader(request, "metrics need the right 'read'")
        except HeadraceError as error:
            return error_response(error)
        self._hub.metrics.refresh()
        page = await self._hub.intake.apart(self._hub.metrics.page)
        return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def openapi(self, request: Request) -> Response:
        """The document of what is registered now. It tells version and verbs: nothing for strangers."""
        try:
            await self._reader(request, "the API document needs the right 'read'")
        except HeadraceError as error:
            return error_response(error)
        return JSONResponse(document(self._hub.verbs))

    async def verb(self, request: Request) -> Response:
        """One admin verb."""
        name = request.path_params["verb"]

        async def run(principal: Principal, body: bytes) -> Response:
            answer = await self._hub.verbs.answer(name, body, principal)
            told = {} if answer.next is None else {NEXT_HEADER: answer.next}
            return Response(answer.body, media_type="application/json", headers=told)

        return await self._answer(name, request, run)

    async def form(self, request: Request, verb: str, http: HttpForm) -> Response:
        """The verb of a path of its own."""

        async def run(principal: Principal, body: bytes) -> Response:
            said: dict[str, Any] = dict(request.path_params)
            said |= {field: request.headers[name] for name, field in http.headers.items() if name in request.headers}
            said |= {field: request.query_params[field] for field in http.query if field in request.query_params}
            asked = said if http.body is None else Form(said, http.body, body or b"{}")
            result = await self._hub.verbs.call(verb, asked, principal)
            return _json(result if http.result is None else getattr(result, http.result))

        return await self._answer(verb, request, run)

    async def _answer(
        self, name: str, request: Request, run: Callable[[Principal, bytes], Awaitable[Response]]
    ) -> Response:
        try:
            if request.method != "GET":
                _check_browser(request)
            principal = await self._principal(request)
            return await run(principal, await self._body(request))
        except HeadraceError as error:
            return error_response(error)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception:
            logger.exception("verb failed", extra=fields(verb=name))
            return _json(ErrorBody(ErrorDetail("internal", "a bug in Headrace; the log of the hub tells more")), 500)

    async def _body(self, request: Request) -> bytes:
        """The body, refused as soon as it is known to be too large: nothing above the maximum is ever held. It comes in
        pieces, and a large one becomes one beside the event loop."""
        maximum = self._hub.config.http.request_bytes_max
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > maximum:
            raise TooLarge("request body", int(declared), maximum, "http.request_bytes_max")
        pieces, size = [bytearray()], 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > maximum:
                raise TooLarge("request body", size, maximum, "http.request_bytes_max")
            if len(pieces[-1]) >= PIECE_BYTES:
                pieces.append(bytearray())
            pieces[-1] += chunk

        def whole() -> bytes:
            body = b"".join(pieces)
            pieces.clear()
            return body

        return whole() if size < PIECE_BYTES else await self._hub.intake.apart(whole)

    async def _reader(self, request: Request, refusal: str) -> None:
        if not (await self._principal(request)).may_some("read"):
            raise Forbidden(refusal)

    async def _principal(self, request: Request) -> Principal:
        message = "say who you are: a token (Authorization: Bearer …) or user and password (Basic)"
        shown = from_header(request.headers.get("authorization"))
        principal = await self._hub.admission.admit("http", peer_of(request), shown, message)
        recognized(request.scope)
        return principal


def peer_of(request: Request) -> str:
    """The address that a request came from."""
    return "?" if request.client is None else request.client.host


def _check_browser(request: Request) -> None:
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media_type != "application/json":
        raise UnsupportedMediaType("send the body as JSON with the header Content-Type: application/json")
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise Misdirected(f"the page of {origin} may not use the API of this hub")


async def _not_found(request: Request, error: Exception) -> Response:
    return _json(ErrorBody(ErrorDetail("unknown-path", f"there is nothing at {request.url.path}")), 404)


async def _wrong_method(request: Request, error: Exception) -> Response:
    allowed = (getattr(error, "headers", None) or {}).get("Allow", "POST")
    text = f"{request.url.path} takes {allowed}, not {request.method}"
    return _json(ErrorBody(ErrorDetail("wrong-method", text)), 405, {"Allow": allowed})


class Dispatcher:
    """Our own paths, then the mounts, then 404."""

    def __init__(self, hub: HubBase, loopback: bool) -> None:
        self._api = Api(hub).app
        self._mounts = hub.mounts
        self._hosts = frozenset(name.lower() for name in hub.config.http.hosts)
        self._loopback = loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if self._loopback and not self._is_own_host(scope):
            await _refuse(scope, receive, send, error_response(Misdirected("the Host header is not this machine's")))
        elif any(path == own or path.startswith(own + "/") for own in OWN_PATHS):
            await (self._api(scope, receive, send) if scope["type"] == "http" else _refuse(scope, receive, send, None))
        elif (mount := self._mounts.find(path)) is not None:
            prefix, app = mount
            inner: MutableMapping[str, Any] = {**scope, "root_path": scope.get("root_path", "") + prefix}
            await app(inner, receive, send)
        else:
            body = ErrorBody(ErrorDetail("unknown-path", f"there is nothing at {path}"))
            await _refuse(scope, receive, send, _json(body, 404))

    def _is_own_host(self, scope: Scope) -> bool:
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        # Who comes with two would be one for us, and another for a part that looks at the other.
        return len(hosts) < 2 and all(not named or self._is_own(named) for named in hosts)

    def _is_own(self, named: str) -> bool:
        try:
            host = urlsplit(f"//{named}").hostname or ""
        except ValueError:  # half an IPv6 address
            return False
        return is_loopback(host) or host in self._hosts


async def _refuse(scope: Scope, receive: Receive, send: Send, response: Response | None) -> None:
    if scope["type"] == "websocket":
        await receive()
        closing: Message = {"type": "websocket.close", "code": WEBSOCKET_POLICY_VIOLATION}
        await send(closing)
    elif response is not None:
        await response(scope, receive, send)


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers (the process stops us), and with an event for having started."""

    def __init__(self, config: uvicorn.Config, handshake_s: float) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self._handshake_s = handshake_s

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's own knows no limit on the time of a TLS handshake."""
        await super().startup([])
        config = self.config
        for each in sockets or []:
            server = await open_server(
                lambda: config.http_protocol_class(  # type: ignore[call-arg]
                    config=config, server_state=self.server_state, app_state=self.lifespan.state
                ),
                config.ssl,
                self._handshake_s,
                sock=each,
            )
            self.servers.append(server)
        self.listening.set()


def _cut_unvouched(hub: HubBase, server: uvicorn.Server) -> None:
    """Requests say each time who asks. A certificate is shown once, so what rests on it is looked at when authorities
    change."""
    for connection in list(server.server_state.connections):
        transport = getattr(connection, "transport", None)
        if transport is not None and not hub.security.vouches("http", transport):
            transport.abort()


async def serve(hub: HubBase, address: str, behind: str = "") -> Listener:
    """Serve HTTP on `address` until the listener is closed. `behind` is the address that clients see, if something of
    this process is in front of it, and deals with TLS."""
    host, port = split_address(address)
    listening = sockets.bound(host, port)
    section = hub.config.http
    # Where it is, however the settings write it: `127.1`, a name.
    loopback = is_loopback(split_address(behind)[0] if behind else listening.getsockname()[0])
    app = hub.tracing.app(Dispatcher(hub, loopback), ["/api", *hub.mounts.traced])
    config = uvicorn.Config(
        app,
        http=connection_class(hub),
        ws=WebSocketConnection,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=section.connections_max,
        timeout_keep_alive=int(section.keep_alive_s),
        timeout_graceful_shutdown=min(GRACE_S, max(1, int(hub.config.limits.stop_s) - 1)),
        ws_per_message_deflate=False,
        ws_max_size=hub.mounts.websocket_bytes_max,
    )
    config.load()
    config.ssl = None if behind else hub.security.tls("http")
    server = _Server(config, hub.config.limits.sign_in_s)
    unwatch = hub.admission.rights.watch(lambda: _cut_unvouched(hub, server))
    running = asyncio.create_task(server.serve([listening]), name="http")
    started = asyncio.create_task(server.listening.wait())
    await asyncio.wait((running, started), return_when=asyncio.FIRST_COMPLETED)
    started.cancel()
    if running.done():
        await running  # raises what went wrong
        raise OSError("the HTTP server ended before it listened")

    async def close() -> None:
        unwatch()
        server.should_exit = True
        await running

    return Listener(join_address(host, listening.getsockname()[1]), close)
