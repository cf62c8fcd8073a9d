"""FutoIn on the hub's HTTP port, as a bare ASGI application: no framework between the socket and the message.

    POST /futoin/<stream>                                        one message, one reply; always status 200 (FTN5)
    GET  /futoin/<stream>/<iface>/<version>/<func>[/<sec>]?…     the path form of FTN5; any method
    GET  /futoin/<stream> with Upgrade: websocket                messages both ways

A stream's name is percent-encoded; `;partition=N` after it names another partition than 0.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

import msgspec

from headrace.errors import LimitExceeded
from headrace.listener import Listener
from headrace.protocols.futoin import codec, credentials
from headrace.protocols.futoin.codec import Coding
from headrace.protocols.futoin.connection import Connection
from headrace.protocols.futoin.dispatch import Dispatcher
from headrace.protocols.futoin.errors import INVALID_REQUEST, PeerError
from headrace.protocols.futoin.push import Receivers
from headrace.protocols.futoin.service import Place
from headrace.protocols.futoin.session import Channel
from headrace.security import is_loopback

if TYPE_CHECKING:
    from headrace.hub import Hub

logger = logging.getLogger("headrace.futoin")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

MEDIA_TYPES = {coding: f"application/futoin+{coding.value}".encode() for coding in Coding}
VENDOR_MEDIA_TYPES = {coding: f"application/vnd.futoin+{coding.value}".encode() for coding in Coding}
PARTITION_MARK = b";partition="
PATH_FORM_PARTS = 3
# FTN5: a parameter whose declared type is not text is written as JSON. `data` may be anything: JSON where it parses.
JSON_PARAMETERS = frozenset(("want", "echo"))


class NotFound(Exception):
    """The path names nothing."""


class TooLarge(Exception):
    """The body is larger than a message may be."""


async def start(hub: Hub) -> Listener | None:
    """Mount FutoIn on the HTTP port of the hub."""
    settings = hub.config.futoin
    if not settings.enabled:
        return None
    application = Application(hub)
    hub.mounts.mount(settings.path, application)

    async def close() -> None:
        hub.mounts.unmount(settings.path)
        application.close()

    return Listener("", close)


class Application:
    """The ASGI application."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._settings = hub.config.futoin
        self._dispatcher = Dispatcher(hub)
        self._receivers = Receivers()
        self._connections: set[Connection] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)

    def close(self) -> None:
        """End what the connections do; the HTTP server ends the connections themselves."""
        for connection in list(self._connections):
            connection.close("the hub stops")
        self._receivers.close()

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            place, rest = parse_path(scope)
        except NotFound:
            await respond(send, 404, b"", [])
            return
        body: bytes | None
        if rest:
            body = path_form_message(rest, scope)
        elif scope["method"] != "POST":
            await respond(send, 405, b"", [(b"allow", b"POST")])
            return
        else:
            try:
                body = await read_body(scope["headers"], receive, self._settings.message_bytes_max)
            except TooLarge as error:
                await self._too_large(send, error)
                return
        if body is None:  # the client left before it had said everything
            return
        coding = codec.coding_of(body)
        reply, coding = await self._reply(body, coding, place, self._channel(scope, False))
        types = VENDOR_MEDIA_TYPES if _names_vendor_type(scope["headers"]) else MEDIA_TYPES
        await respond(send, 200, reply, [(b"content-type", types[coding])])

    async def _reply(self, data: bytes, coding: Coding, place: Place, channel: Channel) -> tuple[bytes, Coding]:
        dispatcher = self._dispatcher
        rid = caller = None
        try:
            message = codec.decode(data, coding)
            rid = message.rid
            caller = await dispatcher.caller(message, data, coding, channel)
            call = dispatcher.checked(message, caller, channel, place)
            value = await dispatcher.perform(call, message.p, caller, place, coding)  # type: ignore[union-attr]
            return dispatcher.result(value, rid, coding, caller), coding
        except codec.Undecodable:
            # As executors do: what cannot be read is an empty request, and the reply is JSON.
            return dispatcher.failure(PeerError(INVALID_REQUEST, "Missing req.f"), None, Coding.JSON, None), Coding.JSON
        except Exception as error:
            return dispatcher.failure(error, rid, coding, caller), coding

    async def _too_large(self, send: Send, error: TooLarge) -> None:
        reply = self._dispatcher.failure(PeerError(INVALID_REQUEST, str(error)), None, Coding.JSON, None)
        # The rest of the body is not read: the connection cannot be used again.
        headers = [(b"content-type", MEDIA_TYPES[Coding.JSON]), (b"connection", b"close")]
        await respond(send, 413, reply, headers)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        try:
            place, rest = parse_path(scope)
            if rest:
                raise NotFound
            connection = Connection(self._dispatcher, self._receivers, place, self._channel(scope, True), receive, send)
        except (NotFound, LimitExceeded) as error:
            logger.info("a WebSocket was refused: %s", error)
            await send({"type": "websocket.close", "code": 1008})
            return
        self._connections.add(connection)
        try:
            offered = scope.get("subprotocols") or [None]
            await send({"type": "websocket.accept", "subprotocol": offered[0]})
            await connection.run()
        finally:
            self._connections.discard(connection)
            connection.close(None)

    def _channel(self, scope: Scope, bidirectional: bool) -> Channel:
        host, port = scope.get("client") or ("127.0.0.1", 0)
        open_to_all = self._settings.insecure and is_loopback(host) and not _is_foreign_page(scope["headers"])
        secure = scope["scheme"] in ("https", "wss") or open_to_all
        return Channel(secure, bidirectional, open_to_all, f"{host}:{port}")


async def respond(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """A whole HTTP response."""
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def read_body(headers: Headers, receive: Receive, bytes_max: int) -> bytes | None:
    """The body; None when the client left. Never holds more than one chunk above the limit."""
    for name, value in headers:
        if name == b"content-length" and value.isdigit() and int(value) > bytes_max:
            raise TooLarge(_too_large_text(int(value), bytes_max))
    message = await receive()
    if message["type"] == "http.disconnect":
        return None
    body: bytes = message.get("body", b"")
    while message.get("more_body"):
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > bytes_max:
            raise TooLarge(_too_large_text(len(body), bytes_max))
    if len(body) > bytes_max:
        raise TooLarge(_too_large_text(len(body), bytes_max))
    return body


def _too_large_text(size: int, bytes_max: int) -> str:
    return f"The message has {size} bytes or more; at most {bytes_max} are taken ('futoin.message_bytes_max')"


def parse_path(scope: Scope) -> tuple[Place, list[str]]:
    """The stream and what stands behind it. Percent signs are read after the slashes: `%2F` belongs to a name."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    prefix = scope.get("root_path", "").encode()
    parts = raw.removeprefix(prefix).removeprefix(b"/").split(b"/")
    if parts[-1] == b"":
        parts.pop()
    if not parts or len(parts) not in (1, 1 + PATH_FORM_PARTS, 2 + PATH_FORM_PARTS):
        raise NotFound("nothing is here: the path is that of a stream")
    name, _, partition = parts[0].partition(PARTITION_MARK)
    if partition and not (partition.isdigit() and len(partition) < 6):
        raise NotFound("the partition is not a number")
    try:
        texts = [unquote_to_bytes(part).decode() for part in (name, *parts[1:])]
    except UnicodeDecodeError:
        raise NotFound("the path is not UTF-8") from None
    return Place(texts[0], int(partition or b"0")), texts[1:]


def path_form_message(rest: list[str], scope: Scope) -> bytes:
    """FTN5 use case 2: function in the path, parameters in the query, as the message it stands for."""
    interface, version, function, *sec = rest
    params: dict[str, Any] = {}
    for name, text in parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True):
        params[name] = _parameter(name, text)
    message: dict[str, Any] = {"f": f"{interface}:{version}:{function}", "p": params}
    if sec:
        message["sec"] = sec[0]
    else:
        for name, value in scope["headers"]:
            if name == b"authorization":
                message["sec"] = _basic(value.decode("latin-1"))
    return codec.encode_object(message, Coding.JSON)


def _basic(header: str) -> str | None:
    try:
        return credentials.from_basic(header)
    except PeerError:
        return "-"  # no form of sec begins so: refused like any wrong one


def _parameter(name: str, text: str) -> Any:
    if name not in JSON_PARAMETERS and name != "data":
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return text


def _names_vendor_type(headers: Headers) -> bool:
    return any(b"application/vnd.futoin+" in value for name, value in headers if name in (b"content-type", b"accept"))


def _is_foreign_page(headers: Headers) -> bool:
    """Whether a browser sends this for a page of another site: such a page must not use an open hub."""
    named = {name: value.decode("latin-1") for name, value in headers if name in (b"origin", b"host")}
    origin = named.get(b"origin")
    return origin is not None and urlsplit(origin).netloc != named.get(b"host")
