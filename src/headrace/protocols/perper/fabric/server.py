"""The gRPC listener: asyncio and the hub around HTTP/2 and the services."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final, Literal

from headrace.errors import HeadraceError
from headrace.protocols.perper.fabric import http2
from headrace.protocols.perper.fabric.codec import Fields, MessageError, decode, encode, prefixed
from headrace.protocols.perper.fabric.descriptors import METHODS, Method
from headrace.protocols.perper.fabric.services import (
    HANDLERS,
    OPEN_PATHS,
    CallError,
    Handler,
    ReservedExecutionsHandler,
    Services,
)
from headrace.protocols.perper.fabric.session import CallSession, Event, State
from headrace.protocols.perper.metrics import PerperMetrics
from headrace.protocols.perper.settings import Perper
from headrace.protocols.perper.state import acquire, listen
from headrace.protocols.perper.verbs import register
from headrace.security import Principal
from headrace.security.admission import Nobody, from_header
from headrace.serving.listener import Listener
from headrace.serving.tcp import SlicedConnection, TcpServer

if TYPE_CHECKING:
    from headrace.hub import Hub

logger = logging.getLogger("headrace.perper.fabric")

WRITE_BUFFER_BYTES_MAX: Final = 1024 * 1024
# An HTTP/2 frame may have nine bytes, and h2 takes its time for each.
SLICE_BYTES: Final = 4 * 1024
# How many calls of a connection the list of sessions shows with their state.
CALLS_SHOWN_MAX: Final = 20
# Who asks an open question, whoever it is: may do nothing else.
NOBODY: Final = Principal("nobody", (), ())
NOT_NAMED: Final = (
    "this hub wants to know who you are: send the metadata 'authorization' with Basic or Bearer credentials"
)


class ServerCall:
    """One call, between the connection and its handler."""

    def __init__(self, connection: Connection, stream: int, path: str, method: Method, principal: Principal) -> None:
        self.principal = principal
        self.peer = connection.peer
        self.path = path
        self.session = CallSession(method.client_streams)
        self._connection = connection
        self._stream = stream
        self._method = method
        self._headers_sent = False
        self._timer: asyncio.TimerHandle | None = None
        self._unwatch = principal.watch(self._rights_changed)
        self.handler: Handler = HANDLERS[path](self, connection.server.services)
        connection.server.counts.calls.labels(method=method.name).inc()

    def set_deadline(self, timeout_s: float) -> None:
        """The client waits no longer than this."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(timeout_s, self.end, http2.DEADLINE_EXCEEDED, "the deadline has passed")

    # what handlers use

    def uses(self, right: Literal["read", "write"], name: str) -> None:
        """Remember, for people who look, that the client reads or writes a cache."""
        if self._connection.handle is not None:
            self._connection.handle.uses(right, name)

    def send_headers(self) -> None:
        """The initial metadata, at once."""
        if not self._headers_sent and not self.session.ended:
            self._headers_sent = True
            self._connection.grpc.send_headers(self._stream)
            self._connection.flush_soon()

    def send(self, message: Fields) -> None:
        """One response."""
        self.send_raw(prefixed(encode(self._method.response, message)))

    def send_raw(self, data: bytes) -> None:
        """Responses with their prefixes."""
        if self.session.ended:
            return
        self.send_headers()
        self._connection.grpc.send(self._stream, data)
        self._connection.flush_soon()
        if self._connection.grpc.queued_bytes(self._stream) > self._connection.server.settings.frame_bytes_max:
            self.end(http2.RESOURCE_EXHAUSTED, "the client reads too slowly: too much is waiting for it")
            self._connection.grpc.reset(self._stream)

    def writable(self) -> bool:
        """Whether more may be sent without piling up."""
        return self._connection.peer_reads and self._connection.grpc.writable(self._stream)

    def end(self, status: int = http2.OK, message: str = "") -> None:
        """The status; the handler is told that it is over."""
        if self.session.ended:
            return
        self._connection.grpc.end(self._stream, status, message, headers_sent=self._headers_sent)
        self._connection.flush_soon()
        if status != http2.OK:
            self._connection.last_error = f"{self.path}: {message}"
            self._connection.counters.peer_error(str(status))
        self.over(Event.STATUS)

    def _rights_changed(self) -> None:
        """The caller may do something else than before: a call that would not be taken now ends."""
        refusal = self.principal.refusal
        if refusal is not None:
            self.end(http2.UNAUTHENTICATED, str(refusal))
            return
        try:
            self.handler.check_again()
        except CallError as error:
            self.end(error.status, error.message)

    # what the connection uses

    @property
    def answers_once(self) -> bool:
        """Whether all that is left of the call is its one answer."""
        return self.session.state is State.ANSWERING and not self._method.server_streams

    def request(self, data: bytes) -> None:
        """A message came."""
        if self.session.ended:
            return
        try:
            if not self.session.request():
                raise CallError(http2.INTERNAL, f"{self.path} takes one request; another one came")
            self.handler.request(decode(self._method.request, data))
        except MessageError as error:
            self.end(http2.INVALID_ARGUMENT, str(error))
        except CallError as error:
            self.end(error.status, error.message)
        except Exception as error:
            logger.exception("call %s failed", self.path)
            self.end(http2.INTERNAL, repr(error))

    def requests_ended(self) -> None:
        """The client has said all it will say."""
        if self.session.ended:
            return
        self.session.move(Event.NO_MORE_REQUESTS)
        if self.session.requests == 0 and not self._method.client_streams:
            self.end(http2.INVALID_ARGUMENT, f"{self.path} needs a request")
        else:
            self.handler.requests_ended()

    def over(self, event: Event) -> None:
        """The call has ended, by us or by them."""
        if self.session.ended:
            return
        self.session.move(event)
        if self._timer is not None:
            self._timer.cancel()
        self._unwatch()
        self.handler.close()
        del self.handler  # it knows this call: together they would stay until the garbage collector comes by
        self._connection.calls.pop(self._stream, None)
        self._connection.server.counts.calls.labels(method=self._method.name).dec()


class Connection(SlicedConnection):
    """One client."""

    write_buffer_bytes_max = WRITE_BUFFER_BYTES_MAX
    slice_bytes = SLICE_BYTES

    def __init__(self, server: FabricServer) -> None:
        super().__init__(server)
        self.server = server
        self.grpc = http2.GrpcConnection(client=False, calls_max=server.settings.calls_max)
        self.calls: dict[int, ServerCall] = {}
        self._early: dict[int, list[http2.Event]] = {}
        self._early_bytes = 0
        self._flush_due = False
        self._served = 0

    def opened(self) -> None:
        """A client came."""
        self._flush()

    def closed(self, error: Exception | None) -> None:
        """The client is gone: its reservations go to others at once."""
        for call in list(self.calls.values()):
            call.over(Event.LOST)
        self.grpc.release()
        self._early.clear()

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        for call in list(self.calls.values()):
            call.handler.room()

    def received(self, data: bytes) -> None:
        """Bytes came."""
        for event in self.grpc.receive(data):
            self._take(event)
        self.keeps(self.grpc.unread_bytes + self._early_bytes, len(data))
        self._flush()

    def all_heard(self) -> None:
        """A client that has only ended its own side gets its answers. Its streams end, as those of a client that is
        gone: HTTP/2 goes on only with somebody who speaks, and its reservations go to others at once."""
        for call in list(self.calls.values()):
            if not call.answers_once:
                call.over(Event.LOST)

    def owes(self) -> bool:
        """Whether calls wait for their one answer, or for a password to be checked."""
        return bool(self._tasks) or any(call.answers_once for call in self.calls.values())

    def _take(self, event: http2.Event) -> None:
        if isinstance(event, http2.CallStarted):
            self._start(event)
        elif isinstance(event, http2.ConnectionEnded):
            self.last_error = event.reason
            self._flush()
            self.transport.close()
        elif event.stream in self._early:
            self._early[event.stream].append(event)  # the password is being checked
            if isinstance(event, http2.MessageReceived):
                self._early_bytes += len(event.data) + http2.FRAME_HEADER_BYTES
        else:
            call = self.calls.get(event.stream)
            if call is not None:
                self._pass_on(call, event)

    def _pass_on(self, call: ServerCall, event: http2.Event) -> None:
        if isinstance(event, http2.MessageReceived):
            call.request(event.data)
        elif isinstance(event, http2.RequestsEnded):
            call.requests_ended()
        elif isinstance(event, http2.CallReset):
            call.over(Event.RESET)
        elif isinstance(event, http2.BadMessage):
            call.end(event.status, event.reason)
        elif isinstance(event, http2.Room):
            call.handler.room()

    # starting a call

    def _start(self, event: http2.CallStarted) -> None:
        method = METHODS.get(event.path)
        if method is None:
            self.grpc.end(event.stream, http2.UNIMPLEMENTED, f"there is no method {event.path}", headers_sent=False)
            return
        header = event.headers.get("authorization")
        if event.path in OPEN_PATHS:
            self._admit(event, method, NOBODY)
            return
        if header is None:
            try:
                principal = self.server.hub.admission.admit_now("fabric", self.peer, Nobody(), NOT_NAMED)
                self._admit(event, method, principal)
            except HeadraceError as error:
                self.grpc.end(event.stream, http2.UNAUTHENTICATED, str(error), headers_sent=False)
            return
        self._early[event.stream] = []
        self.start(self._log_in(event, method, header))

    async def _log_in(self, event: http2.CallStarted, method: Method, header: str) -> None:
        try:
            principal = await self.server.hub.admission.admit("fabric", self.peer, from_header(header), NOT_NAMED)
        except HeadraceError as error:
            self._early_bytes -= _bytes_of(self._early.pop(event.stream, []))
            self.grpc.end(event.stream, http2.UNAUTHENTICATED, str(error), headers_sent=False)
            self._flush()
            return
        if self.grpc.ended:  # meanwhile
            return
        early = self._early.pop(event.stream)
        self._early_bytes -= _bytes_of(early)
        self._admit(event, method, principal)
        for later in early:
            self._take(later)
        self._flush()

    def _admit(self, event: http2.CallStarted, method: Method, principal: Principal) -> None:
        if principal is not NOBODY:
            self.signed_in()
        call = self.calls[event.stream] = ServerCall(self, event.stream, event.path, method, principal)
        self._served += 1
        timeout_s = http2.parse_timeout_s(event.headers.get("grpc-timeout", ""))
        if timeout_s is not None:
            call.set_deadline(timeout_s)

    # out

    def flush_soon(self) -> None:
        """Send once for all that happens in this turn."""
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        self.write(self.grpc.data_to_send())
        self.end_if_all_said()

    def finish(self) -> None:
        """Calls may wait for others for as long as they like: they end at once."""
        self.stop()

    def stop(self) -> None:
        """The listener stops: calls end with UNAVAILABLE, which clients take as a reason to come again."""
        for call in list(self.calls.values()):
            call.end(http2.UNAVAILABLE, "the hub is stopping")
        self.grpc.goodbye()
        self._flush()
        self.transport.close()

    def describe(self) -> dict[str, object]:
        calls = list(self.calls.values())[:CALLS_SHOWN_MAX]
        permits = [call.handler.permits for call in calls if isinstance(call.handler, ReservedExecutionsHandler)]
        return {
            "calls": dict(Counter(call.path for call in self.calls.values())),
            "calls_served": self._served,
            "call_states": [[call.path.rpartition("/")[2], call.session.state.value] for call in calls],
            "permits": sum(permits) if permits else None,
            "slow": not self.peer_reads,
            "last_error": self.last_error,
        }


def _bytes_of(events: list[http2.Event]) -> int:
    received = (event for event in events if isinstance(event, http2.MessageReceived))
    return sum(len(event.data) + http2.FRAME_HEADER_BYTES for event in received)


class FabricServer(TcpServer[Connection]):
    """What the connections of one listener share."""

    def __init__(self, hub: Hub, services: Services) -> None:
        super().__init__(hub, "fabric")
        self.services = services
        self.settings = hub.config.section(Perper)
        self.counts = hub.metrics.section(PerperMetrics)
        hub.metrics.before_scrape(self._refresh)

    def _refresh(self) -> None:
        fabric, gauges = self.services.fabric, self.counts
        gauges.caches.set(len(fabric.catalogue))
        gauges.executions.set(len(fabric.executions))
        gauges.listeners.set(len(fabric.listeners))
        gauges.reservations.set(len(self.services.locks))


async def serve(hub: Hub, address: str) -> Listener:
    """Listen for agents."""
    fabric = await acquire(hub)
    shared = FabricServer(hub, Services(fabric))
    register(hub, fabric, shared.services.locks.holders)
    context = hub.security.tls("fabric")
    if context is not None:
        context.set_alpn_protocols(["h2"])
    return await listen(shared, address, lambda: Connection(shared), context)
