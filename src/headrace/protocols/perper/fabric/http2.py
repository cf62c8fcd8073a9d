"""gRPC over HTTP/2 without I/O: bytes in, calls and messages out; messages in, bytes out. Both roles, on top of `h2`.

Messages to send wait in a queue per stream while the peer's flow-control window is shut. Whoever produces them asks
`writable` first, so the queue stays short however slow the peer is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from headrace.protocols.perper.fabric.codec import MessageBuffer, MessageError, TooLong
from headrace.units import natural

# Beyond this a stream's producer waits until the peer has taken some.
QUEUE_BYTES_MAX: Final = 256 * 1024
RECEIVE_WINDOW_BYTES: Final = 1024 * 1024
FRAME_HEADER_BYTES: Final = 9

OK, CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND = 0, 1, 2, 3, 4, 5
PERMISSION_DENIED, RESOURCE_EXHAUSTED, ABORTED = 7, 8, 10
UNIMPLEMENTED, INTERNAL, UNAVAILABLE, UNAUTHENTICATED = 12, 13, 14, 16

_TIMEOUT_UNITS_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class CallStarted(NamedTuple):
    """Server: a call's headers came."""

    stream: int
    path: str
    headers: dict[str, str]


class Headers(NamedTuple):
    """Client: the server's initial metadata came."""

    stream: int
    headers: dict[str, str]


class MessageReceived(NamedTuple):
    """A message of a call came."""

    stream: int
    data: bytes


class RequestsEnded(NamedTuple):
    """The peer sends no more messages on this call."""

    stream: int


class CallEnded(NamedTuple):
    """Client: the status came."""

    stream: int
    status: int
    message: str


class CallReset(NamedTuple):
    """The peer gave the call up."""

    stream: int


class BadMessage(NamedTuple):
    """The peer sent what cannot be read; `status` is what it should be told."""

    stream: int
    status: int
    reason: str


class Room(NamedTuple):
    """A stream that was full can take more."""

    stream: int


class ConnectionEnded(NamedTuple):
    """The peer said goodbye."""

    reason: str


CallEvent = CallStarted | Headers | MessageReceived | RequestsEnded | CallEnded | CallReset | BadMessage | Room
Event = CallEvent | ConnectionEnded


class _Stream:
    __slots__ = ("buffer", "ending", "has_status", "queue", "refused")

    def __init__(self) -> None:
        self.buffer = MessageBuffer()
        self.queue = bytearray()
        self.ending: list[tuple[str, str]] | None = None
        self.has_status = False
        self.refused = False  # the peer sent what cannot be read: nothing more of this call is looked at


def parse_timeout_s(text: str) -> float | None:
    """The `grpc-timeout` header: at most eight digits and a unit."""
    number, unit = natural(text[:-1], 8), _TIMEOUT_UNITS_S.get(text[-1:])
    return None if number is None or unit is None else number * unit


class GrpcConnection:
    """One HTTP/2 connection, server's or client's side."""

    def __init__(self, *, client: bool, calls_max: int = 10_000) -> None:
        self._client = client
        config = h2.config.H2Configuration(
            client_side=client,
            header_encoding="utf-8",
            # A server's headers are all written in this file, in lower case and in order: no need to look again.
            validate_outbound_headers=client,
            normalize_outbound_headers=client,
        )
        self._h2 = h2.connection.H2Connection(config)
        self._h2.local_settings = h2.settings.Settings(
            client=client,
            initial_values={
                h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: calls_max,
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: RECEIVE_WINDOW_BYTES,
                h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: 64 * 1024,
            },
        )
        self._streams: dict[int, _Stream] = {}
        self._events: list[Event] = []
        self.ended = False
        self.unread_bytes = 0
        """Bytes that wait for the rest of their message, of all calls."""
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(16 * RECEIVE_WINDOW_BYTES)

    # in

    def receive(self, data: bytes) -> list[Event]:
        """Feed bytes. A broken connection gives `ConnectionEnded`; what must still be sent is in `data_to_send`."""
        self._events = []
        if self.ended:
            return []
        try:
            events = self._h2.receive_data(data)
        except (h2.exceptions.ProtocolError, UnicodeDecodeError) as error:
            return self._over(f"HTTP/2: {error}")
        # h2 looks at a frame's length only when the frame is whole: without this a peer could make it keep 16 MiB.
        if len(self._h2.incoming_buffer._data) > self._h2.max_inbound_frame_size + FRAME_HEADER_BYTES:
            return self._over("HTTP/2: a frame is longer than was agreed")
        if goodbye := next((event for event in events if isinstance(event, h2.events.ConnectionTerminated)), None):
            # h2 has heard it already: nothing that came before it in the same bytes can be answered any more.
            return self._over(f"goodbye with code {goodbye.error_code}")
        for event in events:
            self._translate(event)
        return self._events

    def _over(self, reason: str) -> list[Event]:
        """Nothing can be sent or received any more; calls that are open find no stream to send on."""
        self.release()
        return [ConnectionEnded(reason)]

    def release(self) -> None:
        """Forget all calls: nothing can be received any more. h2 holds methods of its own, so that only the garbage
        collector would free it: a crowd that comes and goes would keep it busy."""
        self.ended = True
        self._h2._frame_dispatch_table.clear()
        self._streams.clear()
        self.unread_bytes = 0

    def _forget(self, stream_id: int) -> bool:
        """A call is over; whether there was one."""
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            self.unread_bytes -= stream.buffer.kept_bytes
        return stream is not None

    def _translate(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.DataReceived):
            self._data(event)
        elif isinstance(event, h2.events.RequestReceived):
            self._request(event)
        elif isinstance(event, h2.events.WindowUpdated | h2.events.RemoteSettingsChanged):
            self._window(getattr(event, "stream_id", 0) or 0)
        elif isinstance(event, h2.events.ResponseReceived):
            self._response(event.stream_id, dict(event.headers))
        elif isinstance(event, h2.events.TrailersReceived):
            self._status(event.stream_id, dict(event.headers))
        elif isinstance(event, h2.events.StreamEnded):
            self._ended(event.stream_id)
        elif isinstance(event, h2.events.StreamReset) and self._forget(event.stream_id):
            self._events.append(CallReset(event.stream_id))

    def _request(self, event: h2.events.RequestReceived) -> None:
        headers = dict(event.headers)
        self._streams[event.stream_id] = _Stream()
        if headers.get(":method") != "POST" or not headers.get("content-type", "").startswith("application/grpc"):
            with contextlib.suppress(h2.exceptions.StreamClosedError):  # given up in the same bytes
                self._h2.send_headers(event.stream_id, [(":status", "415")], end_stream=True)
            del self._streams[event.stream_id]
            return
        self._events.append(CallStarted(event.stream_id, headers.get(":path", ""), headers))

    def _data(self, event: h2.events.DataReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if event.flow_controlled_length:
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        if stream is None or stream.refused:
            return  # the call is over, though its status may still wait for the peer's window
        kept = stream.buffer.kept_bytes
        try:
            messages = stream.buffer.feed(event.data)
            self.unread_bytes += stream.buffer.kept_bytes - kept
        except MessageError as error:
            self.unread_bytes -= kept
            stream.refused = True
            stream.buffer = MessageBuffer()
            status = RESOURCE_EXHAUSTED if isinstance(error, TooLong) else UNIMPLEMENTED
            self._events.append(BadMessage(event.stream_id, status, str(error)))
            return
        self._events += [MessageReceived(event.stream_id, message) for message in messages]

    def _window(self, stream_id: int) -> None:
        for number in [stream_id] if stream_id else list(self._streams):
            stream = self._streams.get(number)
            if stream is None or not (stream.queue or stream.ending):
                if stream is not None and stream_id:
                    self._events.append(Room(number))
                continue
            try:
                self._pump(number, stream)
            except h2.exceptions.StreamClosedError:
                continue  # the peer made room and gave the call up in the same bytes: its reset comes next
            if number in self._streams and len(stream.queue) < QUEUE_BYTES_MAX and stream.ending is None:
                self._events.append(Room(number))

    def _response(self, stream_id: int, headers: dict[str, str]) -> None:
        if "grpc-status" in headers:
            self._status(stream_id, headers)
        elif headers.get(":status") != "200":
            self._call_ended(stream_id, UNKNOWN, f"HTTP status {headers.get(':status')}")
        else:
            self._events.append(Headers(stream_id, headers))

    def _status(self, stream_id: int, headers: dict[str, str]) -> None:
        text = headers.get("grpc-status", "2")
        status = int(text) if text.isdigit() else UNKNOWN
        self._call_ended(stream_id, status, unquote(headers.get("grpc-message", "")))

    def _call_ended(self, stream_id: int, status: int, message: str) -> None:
        if stream_id in self._streams:
            self._streams[stream_id].has_status = True
        self._events.append(CallEnded(stream_id, status, message))

    def _ended(self, stream_id: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if not self._client:
            if stream.buffer.kept_bytes:
                self._events.append(BadMessage(stream_id, INTERNAL, "the request ends inside of a message"))
            self._events.append(RequestsEnded(stream_id))
            return
        self._forget(stream_id)
        if not stream.has_status:
            self._events.append(CallEnded(stream_id, UNKNOWN, "the call ended without a status"))

    # out

    def start_call(
        self, authority: str, path: str, metadata: Iterable[tuple[str, str]] = (), scheme: str = "http"
    ) -> int:
        """Client: begin a call; its number."""
        number: int = self._h2.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", scheme),
            (":path", path),
            (":authority", authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *metadata,
        ]
        self._streams[number] = _Stream()
        self._h2.send_headers(number, headers)
        return number

    def send_headers(self, stream_id: int) -> None:
        """Server: the initial metadata, before any message."""
        if stream_id in self._streams:
            self._h2.send_headers(
                stream_id,
                [(":status", "200"), ("content-type", "application/grpc"), ("grpc-accept-encoding", "identity")],
            )

    def send(self, stream_id: int, data: bytes) -> None:
        """Messages with their prefixes."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.queue += data
            self._pump(stream_id, stream)

    def writable(self, stream_id: int) -> bool:
        """Whether the stream takes more without piling up."""
        stream = self._streams.get(stream_id)
        return stream is not None and len(stream.queue) < QUEUE_BYTES_MAX

    def queued_bytes(self, stream_id: int) -> int:
        """What waits for the peer's window."""
        stream = self._streams.get(stream_id)
        return 0 if stream is None else len(stream.queue)

    def end(self, stream_id: int, status: int, message: str = "", *, headers_sent: bool = True) -> None:
        """Server: the status, after whatever is queued."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        trailers = [("grpc-status", str(status))]
        if message:
            trailers.append(("grpc-message", quote(message, safe=" !#$&'()*+,-./:;<=>?@[]^_`{|}~")))
        if not headers_sent:
            head = [(":status", "200"), ("content-type", "application/grpc")]
            self._h2.send_headers(stream_id, head + trailers, end_stream=True)
            self._forget(stream_id)
            return
        stream.ending = trailers
        self._pump(stream_id, stream)

    def end_requests(self, stream_id: int) -> None:
        """Client: no more messages."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.ending = []
            self._pump(stream_id, stream)

    def reset(self, stream_id: int) -> None:
        """Give a call up."""
        if self._forget(stream_id):
            self._h2.reset_stream(stream_id, h2.errors.ErrorCodes.CANCEL)

    def _pump(self, stream_id: int, stream: _Stream) -> None:
        """Send what the windows let through."""
        queue = stream.queue
        while queue:
            room = min(self._h2.local_flow_control_window(stream_id), self._h2.max_outbound_frame_size)
            if room <= 0:
                return
            self._h2.send_data(stream_id, bytes(queue[:room]))
            del queue[:room]
        if stream.ending is None:
            return
        if self._client:
            self._h2.end_stream(stream_id)
            stream.ending = None
            return
        self._h2.send_headers(stream_id, stream.ending, end_stream=True)
        self._forget(stream_id)

    def goodbye(self) -> None:
        """Tell the peer that this connection ends; calls that are open find no stream to send on."""
        if not self.ended:
            self._h2.close_connection()
            self.release()

    def data_to_send(self) -> bytes:
        """Bytes for the wire."""
        data: bytes = self._h2.data_to_send()
        return data
