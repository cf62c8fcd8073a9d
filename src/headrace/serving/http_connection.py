"""One HTTP or WebSocket connection: uvicorn's, with limits on what a peer may send before it is understood.

uvicorn reads a head of any size and waits for its end for ever. Here a head has at most `http.headers_max` lines and
`http.header_bytes_max` bytes, and what is not whole is counted and timed by `hub.intake` as at every other listener.
What came is read a piece at a time, in turn with others (`hub.turns`), and what is behind a request that waits for its
answer stays bytes. Applications say when they know a caller (`recognized`). And a client that ends its own side of the
connection behind its request gets the response.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable, MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

import httptools
from uvicorn._types import ASGIReceiveEvent
from uvicorn.config import Config as UvicornConfig
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.exceptions import InvalidState
from websockets.frames import Frame

from headrace.config.address import split_address
from headrace.errors import LimitExceeded
from headrace.hub.intake import Arrival
from headrace.hub.peers import address_from
from headrace.hub.turns import TURN_S, Turns
from headrace.serving.listener import keep_alive, let_go
from headrace.units import KIB

if TYPE_CHECKING:
    from headrace.hub.base import HubBase
    from headrace.hub.mounts import Upgrade

ARRIVAL: Final = "headrace.arrival"
TURNS: Final = "headrace.turns"
CLIENT: Final = "headrace.client"
FINISH: Final = "headrace.finish"
LAST_WORDS_S: Final = 1.0
"""How long a peer may take to read why it is cut off."""
FRAGMENT_BYTES: Final = 64
"""What a fragment of a WebSocket message takes besides its bytes."""
LENGTH_DIGITS_MAX: Final = 18
PIECE_BYTES: Final = 2 * KIB
"""So much is read at once where it may hold many requests or messages: some hundred of the shortest."""
MESSAGES_AHEAD: Final = 64
"""WebSocket messages that are read before the application has taken the first."""


def recognized(scope: MutableMapping[str, Any]) -> None:
    """The caller has a name, or needs none: its connection is no stranger's any more."""
    arrival: Arrival | None = scope.get("state", {}).get(ARRIVAL)
    if arrival is not None:
        arrival.known()


def ends_by_itself(scope: MutableMapping[str, Any], finish: Callable[[], None]) -> None:
    """The application of a WebSocket has last words: when the hub stops, `finish` is called, and it closes."""
    scope.get("state", {}).get(FINISH, []).append(finish)


def _behind(client: tuple[str, int] | None, hub: HubBase) -> tuple[str, int] | None:
    """Whoever is behind a connection: another hub may have passed it on."""
    return None if client is None else split_address(hub.peers.client(address_from(client)))


def _nothing() -> None:
    """Instead of what is not to be called any more."""


class _Refused(Exception):
    """Raised inside the parser to end it."""


class _Unread:
    """Bytes that came and are not read yet."""

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self.nbytes = 0

    def __bool__(self) -> bool:
        return self.nbytes > 0

    def add(self, data: bytes) -> None:
        if data:
            self._chunks.append(data)
            self.nbytes += len(data)

    def take(self, most: int) -> bytes:
        data = self._chunks.popleft()
        if len(data) > most:
            self._chunks.appendleft(data[most:])
            data = data[:most]
        self.nbytes -= len(data)
        return data

    def clear(self) -> bytes:
        data = b"".join(self._chunks)
        self._chunks.clear()
        self.nbytes = 0
        return data


class _Flow(FlowControl):
    """uvicorn reads on whenever an application asks for a body; not while there are bytes that came before."""

    is_held = False

    def resume_reading(self) -> None:
        if not self.is_held:
            super().resume_reading()


class HttpConnection(HttpToolsProtocol):
    """One connection, until it becomes a WebSocket."""

    hub: HubBase
    """Set by `connection_class`."""

    def __init__(self, config: UvicornConfig, server_state: ServerState, app_state: dict[str, Any], **named: Any):
        super().__init__(config, server_state, dict(app_state), **named)
        self._arrival: Arrival | None = None
        self._status = HTTPStatus.BAD_REQUEST
        self._in_head = True
        self._has_begun = False
        self._head_bytes = 0
        self._header_bytes = 0
        self._body_bytes = 0
        self._body_left = 0
        """What is still to come of a body whose length is known."""
        self._unread = _Unread()
        self._piece = b""
        self._is_reading = False
        self._said_all = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self.flow = _Flow(self.transport)
        keep_alive(transport)
        self.client = self.app_state[CLIENT] = _behind(self.client, self.hub)
        if not self.hub.security.vouches("http", transport):
            self.transport.abort()
            return
        section = self.hub.config.http
        try:
            self._arrival = self.hub.intake.open("http", self._cut_off, section.connections_max // 2)
        except LimitExceeded:  # it says so to the log
            self.transport.abort()
            return
        self.app_state |= {ARRIVAL: self._arrival, TURNS: self.hub.intake.turns}

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unread.clear()
        while self.pipeline:  # they never begin: nothing but the garbage collector would end what binds them to this
            waiting, _ = self.pipeline.pop()
            waiting.on_response = _nothing
        if self._arrival is not None:
            self._arrival.close()
        let_go(self.transport)

    def data_received(self, data: bytes) -> None:
        self._unread.add(data)
        if not self._is_reading:
            self._read()

    def _read(self) -> None:
        """Read of what came as much as one turn allows, but no request behind those that wait for their answers."""
        began_s = time.thread_time()
        self._is_reading = False
        while self._unread and not self.transport.is_closing() and not self.pipeline:
            if time.thread_time() - began_s > TURN_S:
                self._is_reading = True
                self.hub.intake.turns.soon(self._read)
                break
            self._read_piece(self._unread.take(self._body_left or PIECE_BYTES))
        self._keep_pace()

    def _keep_pace(self) -> None:
        flow = self.flow
        assert isinstance(flow, _Flow)
        if self._unread:
            flow.is_held = True
            flow.pause_reading()
        elif flow.is_held:
            flow.is_held = False
            if self._said_all:
                self._end_if_nothing_is_owed()
            elif not self.pipeline and (self.cycle is None or len(self.cycle.body) <= HIGH_WATER_LIMIT):
                flow.resume_reading()

    def _read_piece(self, data: bytes) -> None:
        if self._in_head:
            self._has_begun = True
            self._head_bytes += len(data)
        if self._in_head and self._head_bytes > self.hub.config.http.header_bytes_max + len(data):
            self._refuse_head("the head of the request is longer than http.header_bytes_max")
            return
        self._piece = data
        super().data_received(data)
        if self._arrival is not None:
            held = self._body_bytes + (self._head_bytes if self._in_head else 0)
            self._arrival.holds(held, len(data))

    def eof_received(self) -> bool:  # type: ignore[override]
        """Wait for a response that has not begun. One that has may be a stream without an end, for a page that is gone:
        the end of the connection tells its source."""
        if self._unread and self.transport.can_write_eof():
            self._said_all = True
            return True
        return self._is_owed() and self.transport.can_write_eof()

    def _is_owed(self) -> bool:
        cycle = self.cycle  # of the last request, behind any others
        is_owed = cycle is not None and not cycle.more_body and not cycle.response_started
        if is_owed:
            cycle.keep_alive = False
        return is_owed

    def _end_if_nothing_is_owed(self) -> None:
        if not self._is_owed():
            self.transport.close()

    # What the parser tells.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._header_bytes = 0
        self._body_left = 0

    def on_url(self, url: bytes) -> None:
        self._count_header(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_header(len(name) + len(value))
        if len(self.headers) >= self.hub.config.http.headers_max:
            self._status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise _Refused
        if len(value) <= LENGTH_DIGITS_MAX and name.lower() == b"content-length" and value.isdigit():
            self._body_left = int(value)
        super().on_header(name, value)

    def _count_header(self, nbytes: int) -> None:
        """Trailers count with the headers."""
        self._header_bytes += nbytes
        if self._header_bytes > self.hub.config.http.header_bytes_max:
            self._status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise _Refused

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_left = max(0, self._body_left - len(body))
        if not self.cycle.response_complete:
            self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._has_begun = False
        self._in_head = True
        if self._arrival is not None:
            self._arrival.is_read = False  # what it waits for now is our answer
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._body_bytes = int(self.cycle.more_body)  # answered before it was whole: its end must still come
        if self._arrival is not None:
            self._arrival.is_read = True
            self._arrival.holds(self._body_bytes, 1)
        super().on_response_complete()
        if self._unread and not self._is_reading:
            self._is_reading = True
            self.hub.intake.turns.soon(self._read)

    def _should_upgrade(self) -> bool:
        return self._other_protocol() is not None or super()._should_upgrade()

    def _other_protocol(self) -> Upgrade | None:
        asked = self._get_upgrade()
        return None if asked is None else self.hub.mounts.upgrades.get(asked.decode("latin-1"))

    def _hand_over(self, take_over: Upgrade, rest: bytes) -> None:
        """The connection becomes somebody else's."""
        self.connections.discard(self)
        if self._arrival is not None:
            self._arrival.close()
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self.headers}
        take_over(self.url.decode("latin-1"), headers, self.transport, rest)

    def handle_websocket_upgrade(self) -> None:
        """What came behind the request belongs to the WebSocket: uvicorn forgets it. It calls us while it deals with
        the parser's exception, which tells where the request ends."""
        upgrade = sys.exc_info()[1]
        assert isinstance(upgrade, httptools.HttpParserUpgrade)
        (end,) = upgrade.args
        other = self._other_protocol()
        rest = self._piece[end:] + self._unread.clear()
        self.parser = None  # type: ignore[assignment]  # it holds methods of this connection, which is done
        if other is not None:
            self._hand_over(other, rest)
            return
        super().handle_websocket_upgrade()
        if self._arrival is not None:
            self._arrival.is_read = True
            self._arrival.holds(0, 1)
        if rest:
            cast(WebSocketConnection, self.transport.get_protocol()).data_received(rest)

    # Refusals.

    def _refuse_head(self, why: str) -> None:
        self._status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        self.send_400_response(why)

    def send_400_response(self, msg: str) -> None:
        """Why the request cannot be read, with the status that fits."""
        if self._status is HTTPStatus.BAD_REQUEST:
            super().send_400_response(msg)
            return
        limits = "http.headers_max and http.header_bytes_max"
        self._answer(self._status, f"the head of the request is above a limit: {limits}")

    def _cut_off(self, why: str) -> None:
        is_answered = not self._in_head and self.cycle is not None and self.cycle.response_started
        if not self._has_begun or is_answered or self.transport.is_closing():
            self.transport.abort()
        else:
            self._answer(HTTPStatus.REQUEST_TIMEOUT, why)

    def _answer(self, status: HTTPStatus, text: str) -> None:
        body = f'{{"error":{{"code":"limit-exceeded","message":"{text}"}}}}'.encode()
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.close()
        self.loop.call_later(LAST_WORDS_S, self.transport.abort)


class WebSocketConnection(WebSocketsSansIOProtocol):
    """A connection that has become a WebSocket."""

    _fragment_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._finish: list[Callable[[], None]] = []
        self.app_state[FINISH] = self._finish
        self._turns: Turns = self.app_state[TURNS]
        self._unread = _Unread()
        self._is_reading = False
        self.client = self.app_state.get(CLIENT)
        self._arrival: Arrival | None = self.app_state.get(ARRIVAL)
        if self._arrival is not None:
            self._arrival.end = self._cut_off

    def shutdown(self) -> None:
        if self._finish and self.handshake_complete and not self.close_sent:
            self.stop_keepalive()
            for finish in self._finish:
                finish()
        else:
            try:
                super().shutdown()
            except InvalidState:  # the peer is saying goodbye: those behind it have to be told all the same
                self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.frames = []
        self._unread.clear()
        self._finish.clear()
        if self._arrival is not None:
            self._arrival.close()
        let_go(self.transport)

    def data_received(self, data: bytes) -> None:
        self._unread.add(data)
        if not self._is_reading:
            self._read()

    def _read(self) -> None:
        """Read of what came as much as one turn allows, but not many messages ahead of the application, and none before
        it has accepted the connection."""
        began_s = time.thread_time()
        self._is_reading = False
        may_read = self.handshake_complete or not self.handshake_initiated
        while may_read and self._unread and not self.transport.is_closing() and self.queue.qsize() < MESSAGES_AHEAD:
            if time.thread_time() - began_s > TURN_S:
                self._is_reading = True
                self._turns.soon(self._read)
                break
            piece = self._unread.take(PIECE_BYTES)
            super().data_received(piece)
            if self._arrival is not None:
                self._arrival.holds(len(self.conn.reader.buffer) + self._fragment_bytes, len(piece))
        if self._unread and not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()
        if self._arrival is not None:
            self._arrival.is_read = not self.read_paused

    async def receive(self) -> ASGIReceiveEvent:
        if self._arrival is not None:
            self._arrival.is_read = True
        if self.queue.empty():
            self._read_on()
        event = await super().receive()
        self._read_on()
        return event

    def _read_on(self) -> None:
        if self._unread and not self._is_reading:
            self._read()

    def handle_text(self, event: Frame) -> None:
        self._fragment_bytes = len(event.data) + FRAGMENT_BYTES
        super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        self._fragment_bytes = len(event.data) + FRAGMENT_BYTES
        super().handle_bytes(event)

    def handle_cont(self, event: Frame) -> None:
        self._fragment_bytes += len(event.data) + FRAGMENT_BYTES
        super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        self._fragment_bytes = 0
        super().send_receive_event_to_app()

    def _cut_off(self, why: str) -> None:
        self.frames = []
        self.transport.abort()


def connection_class(hub: HubBase) -> type[HttpConnection]:
    """The class of the connections of one listener."""
    return type("HttpConnection", (HttpConnection,), {"hub": hub})
