"""FutoIn on the hub's HTTP port, as a bare ASGI application: no framework between the socket and the message.

    POST /futoin/<stream>                                        one message, one reply; always status 200 (FTN5)
    GET  /futoin/<stream>/<iface>/<version>/<func>[/<sec>]?…     the path form of FTN5; any method
    GET  /futoin/<stream> with Upgrade: websocket                messages both ways

A stream's name is percent-encoded; `;partition=N` after it names another partition than 0.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

import msgspec

from headrace.config.address import is_loopback
from headrace.errors import LimitExceeded
from headrace.protocols.errors import RemoteProtocolError
from headrace.protocols.futoin import codec, credentials
from headrace.protocols.futoin.codec import Coding
from headrace.protocols.futoin.connection import Connection
from headrace.protocols.futoin.dispatch import Dispatcher
from headrace.protocols.futoin.errors import INVALID_REQUEST, PeerError
from headrace.protocols.futoin.session import Channel, Endpoint
from headrace.protocols.futoin.settings import Futoin
from headrace.serving.http_connection import ends_by_itself, recognized
from headrace.serving.listener import Listener

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
KNOWN_PART_BYTES_MAX = 2048
"""Longer names of streams are not remembered: paths come from anyone, and may have 64 KiB."""
# FTN5: a parameter whose declared type is not text is written as JSON. `data` may be anything: JSON where it parses.
JSON_PARAMETERS = frozenset(("want", "echo", "data"))


class NotFound(RemoteProtocolError):
    """The path names nothing."""


async def start(hub: Hub) -> Listener | None:
    """Mount FutoIn on the HTTP port of the hub."""
    settings = hub.config.section(Futoin)
    if not settings.enabled:
        return None
    application = Application(hub)
    hub.mounts.mount(settings.path, application, traced=True, websocket_bytes_max=settings.message_bytes_max)

    async def close() -> None:
        hub.mounts.unmount(settings.path)
        application.close()

    return Listener("", close)


class Application:
    """The ASGI application."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._settings = hub.config.section(Futoin)
        self._dispatcher = Dispatcher(hub)
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
        self._dispatcher.receivers.close()

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            endpoint, rest = parse_path(scope)
        except NotFound:
            await respond(send, 404, b"", [])
            return
        head = read_head(scope["headers"])
        body: bytes | None
        if rest:
            body = path_form_message(rest, scope)
        elif scope["method"] != "POST":
            await respond(send, 405, b"", [(b"allow", b"POST")])
            return
        else:
            try:
                body = await read_body(head.length, receive, self._settings.message_bytes_max)
            except PeerError as error:
                await self._too_large(send, error)
                return
        if body is None:  # the client left before it had said everything
            return
        coding = codec.coding_of(body)
        reply, coding = await self._reply(body, coding, endpoint, self._channel(scope, False, head.foreign_page))
        types = VENDOR_MEDIA_TYPES if head.vendor_type else MEDIA_TYPES
        await respond(send, 200, reply, [(b"content-type", types[coding])])

    async def _reply(self, data: bytes, coding: Coding, endpoint: Endpoint, channel: Channel) -> tuple[bytes, Coding]:
        dispatcher = self._dispatcher
        rid = caller = None
        try:
            message = codec.decode(data, coding)
            rid = message.rid
            caller = await dispatcher.caller(message, data, coding, channel)
            call = dispatcher.checked(message, caller, channel, endpoint)
            value = await dispatcher.perform(call, message.p, caller, endpoint, coding)  # type: ignore[union-attr]
            return codec.result(value, rid, coding, None if caller is None else caller.sign), coding
        except codec.Undecodable:
            # As executors do: what cannot be read is an empty request, and the reply is JSON.
            return dispatcher.failure(PeerError(INVALID_REQUEST, "Missing req.f"), None, Coding.JSON, None), Coding.JSON
        except Exception as error:
            return dispatcher.failure(error, rid, coding, caller), coding

    async def _too_large(self, send: Send, error: PeerError) -> None:
        reply = self._dispatcher.failure(error, None, Coding.JSON, None)
        # The rest of the body is not read: the connection cannot be used again.
        headers = [(b"content-type", MEDIA_TYPES[Coding.JSON]), (b"connection", b"close")]
        await respond(send, 413, reply, headers)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        try:
            endpoint, rest = parse_path(scope)
            if rest:
                raise NotFound("a WebSocket is opened on the path of a stream")
            channel = self._channel(scope, True, read_head(scope["headers"]).foreign_page)
            connection = Connection(self._dispatcher, endpoint, channel, receive, send)
        except (NotFound, LimitExceeded) as error:
            logger.info("a WebSocket was refused: %s", error)
            await send({"type": "websocket.close", "code": 1008})
            return
        self._connections.add(connection)
        try:
            offered = scope.get("subprotocols") or [None]
            await send({"type": "websocket.accept", "subprotocol": offered[0]})
            ends_by_itself(scope, connection.finish)
            await connection.run()
        finally:
            self._connections.discard(connection)
            connection.close(None)

    def _channel(self, scope: Scope, bidirectional: bool, foreign_page: bool) -> Channel:
        host, port = scope.get("client") or ("127.0.0.1", 0)
        open_to_all = self._settings.insecure and is_loopback(host) and not foreign_page
        secure = scope["scheme"] in ("https", "wss") or open_to_all
        return Channel(secure, bidirectional, open_to_all, f"{host}:{port}", functools.partial(recognized, scope))


async def respond(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """A whole HTTP response."""
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Head(NamedTuple):
    """What the headers of a request tell us."""

    length: int
    vendor_type: bool
    """Whether the request names the media types of FTN5 1.4."""
    foreign_page: bool
    """Whether a browser sends this for a page of another site: such a page must not use an open hub."""


def read_head(headers: Headers) -> Head:
    """One pass over the headers."""
    length = 0
    vendor_type = False
    foreign_page = False
    origin = host = None
    for name, value in headers:
        if name == b"content-length":
            length = int(value) if value.isdigit() else 0
        elif name == b"content-type" or name == b"accept":
            vendor_type = vendor_type or b"application/vnd.futoin+" in value
        elif name == b"origin":
            origin = value.decode("latin-1")
        elif name == b"host":
            host = value
        elif name == b"sec-fetch-site":  # an image or a link of a page has no Origin, and has this
            foreign_page = value not in (b"same-origin", b"none")
    if origin is not None and _site_of(origin) != host:
        foreign_page = True
    return Head(length, vendor_type, foreign_page)


def _site_of(origin: str) -> bytes:
    try:
        return urlsplit(origin).netloc.encode("latin-1")
    except ValueError:  # no address at all, such as `http://[`
        return b""


async def read_body(length: int, receive: Receive, bytes_max: int) -> bytes | None:
    """The body; None when the client left. Never holds more than one chunk above the limit."""
    body, more = b"", True
    while True:
        size = max(length, len(body))
        if size > bytes_max:
            text = f"The message has {size} bytes or more; at most {bytes_max} are taken ('futoin.message_bytes_max')"
            raise PeerError(INVALID_REQUEST, text)
        if not more:
            return body
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        more = message.get("more_body", False)


def parse_path(scope: Scope) -> tuple[Endpoint, list[str]]:
    """The stream and what stands behind it. Percent signs are read after the slashes: `%2F` belongs to a name."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    stream, *rest = raw.removeprefix(scope.get("root_path", "").encode()).removeprefix(b"/").split(b"/")
    if rest and rest[-1] == b"":
        rest.pop()
    if not stream or len(rest) not in (0, PATH_FORM_PARTS, PATH_FORM_PARTS + 1):
        raise NotFound("nothing is here: the path is that of a stream")
    parse = _endpoint if len(stream) > KNOWN_PART_BYTES_MAX else _known_endpoint
    return parse(stream), [_unquoted(part) for part in rest]


def _endpoint(part: bytes) -> Endpoint:
    name, _, partition = part.partition(PARTITION_MARK)
    if partition and not (partition.isdigit() and len(partition) < 6):
        raise NotFound("the partition is not a number")
    return Endpoint(_unquoted(name), int(partition or b"0"))


_known_endpoint = functools.lru_cache(maxsize=4096)(_endpoint)


def _unquoted(part: bytes) -> str:
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise NotFound("the path is not UTF-8") from None


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
                message["sec"] = credentials.from_basic(value.decode("latin-1"))
    return codec.encode_object(message, Coding.JSON)


def _parameter(name: str, text: str) -> Any:
    if name not in JSON_PARAMETERS:
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return text
