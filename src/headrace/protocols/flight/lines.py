"""Lines: where clients of the Flight endpoint that ask often ask without gRPC. The words are in requests.py.

The Flight endpoint offers a line to whoever has signed in there, and the HTTP listener hands over the connection that
comes with the offer's ticket. It then lives as one of any TCP listener does, and acts for the user who got the ticket:
rights are looked at with each request, and a sign-in that no longer holds ends it. Requests of a line are answered one
after the other, unless they have ids: those are begun as they come, and answers that are ready together are written
together. When the hub stops, each line gets a last answer, after those to what is under way.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from headrace.admin.records import AppendResult, StreamAppend, append_records
from headrace.errors import HeadraceError, LimitExceeded
from headrace.protocols.flight.codec import error_body
from headrace.protocols.flight.metrics import FlightMetrics
from headrace.protocols.flight.permit import require
from headrace.protocols.flight.requests import (
    LENGTH_BYTES,
    PATH,
    PROOF_BYTES,
    PROOF_HEADER,
    TICKET_HEADER,
    UPGRADE,
    Answer,
    LineOffer,
    Request,
    client_proof,
    decode_request,
    framed,
    hub_proof,
)
from headrace.protocols.flight.settings import Flight
from headrace.security import Principal, acting_as
from headrace.serving.tcp import TcpConnection, TcpServer

if TYPE_CHECKING:
    from headrace.hub import Hub

logger = logging.getLogger("headrace.flight")

APART_BYTES: Final = 16 << 10
"""A request of this size is read beside the event loop: it may hold more than a thousand records."""
AHEAD_REQUESTS: Final = 2
"""As many of the largest requests are read while one is under way."""


class _Ticket(NamedTuple):
    secret: str
    principal: Principal
    until_s: float


class Lines(TcpServer["Line"]):
    """All lines of a hub. Only its event loop uses it."""

    def __init__(
        self, hub: Hub, refusal: Callable[[], HeadraceError], clock_s: Callable[[], float] = lambda: time.monotonic()
    ) -> None:
        """`refusal` is what clients are told when the hub stops."""
        super().__init__(hub, "flight")
        self.clock_s = clock_s
        self.refusal = refusal
        self.settings = hub.config.section(Flight)
        metrics = hub.metrics.section(FlightMetrics)
        self._refused = metrics.lines_refused
        hub.metrics.before_scrape(lambda: metrics.lines.set(len(self.connections)))
        self._tickets: OrderedDict[str, _Ticket] = OrderedDict()
        self._stopped = False
        hub.mounts.upgrades[UPGRADE] = self.take_over

    async def offer(self, principal: Principal) -> LineOffer:
        """A line for this client, if there is an HTTP listener to open it at, and room."""
        address = self.hub.addresses.get("http")
        if address is None or self._stopped:
            return LineOffer()
        if len(self.connections) >= self.settings.lines_max:
            self.met("lines_max")
            return LineOffer()
        ticket, secret = secrets.token_urlsafe(24), secrets.token_urlsafe(32)
        now_s = self.clock_s()
        self._tickets[ticket] = _Ticket(secret, principal, now_s + self.settings.line_ticket_s)
        while next(iter(self._tickets.values())).until_s < now_s:
            self._tickets.popitem(last=False)
        if len(self._tickets) > self.settings.line_tickets_max:
            self._tickets.popitem(last=False)
            self.met("line_tickets_max")
        has_tls = self.hub.security.tls_files("http") is not None
        limits = self.settings
        return LineOffer(address, has_tls, ticket, secret, limits.line_request_bytes_max, limits.line_requests_max)

    def met(self, limit: str) -> None:
        """A line has met a limit."""
        self._refused.labels(limit=f"flight.{limit}").inc()

    def take_over(self, path: str, headers: Mapping[str, str], transport: asyncio.Transport, rest: bytes) -> None:
        """The HTTP listener has a connection for us; `rest` came behind the request."""
        ticket = self._tickets.pop(headers.get(TICKET_HEADER, ""), None)
        status = self._refusal(path, ticket)
        if status is not None or ticket is None:
            status = status or HTTPStatus.UNAUTHORIZED
            head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            transport.write(head.encode())
            transport.close()
            return
        proof = hub_proof(ticket.secret).decode()
        head = f"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: {UPGRADE}\r\n"
        transport.write(f"{head}{PROOF_HEADER}: {proof}\r\n\r\n".encode())
        line = Line(self, ticket.principal, client_proof(ticket.secret))
        transport.set_protocol(line)
        line.connection_made(transport)
        if rest:
            line.data_received(rest)

    def _refusal(self, path: str, ticket: _Ticket | None) -> HTTPStatus | None:
        """Why there is no line for the holder of a ticket, if there is none."""
        if self._stopped or path != PATH or ticket is None:
            return HTTPStatus.UNAUTHORIZED
        if ticket.until_s < self.clock_s():
            self.met("line_ticket_s")
            return HTTPStatus.UNAUTHORIZED
        if len(self.connections) >= self.settings.lines_max:
            self.met("lines_max")
            return HTTPStatus.SERVICE_UNAVAILABLE
        return None

    async def close(self) -> None:
        """Open no more, and end those that are open."""
        self._stopped = True
        self.hub.mounts.upgrades.pop(UPGRADE, None)
        await self.stop()


class Line(TcpConnection, asyncio.Protocol):
    """One line."""

    def __init__(self, server: Lines, principal: Principal, proof: bytes) -> None:
        super().__init__(server)
        self._lines = server
        self._owner = principal
        self._proof: bytes | None = proof
        self._unread = bytearray()
        self._under_way = 0
        self._alone = False  # a request without an id is under way
        self._ready: list[bytes] = []  # answers that are written together
        self._answered = 0

    @property
    def _busy(self) -> bool:
        return self._under_way > 0

    def describe(self) -> dict[str, object]:
        """What `headrace session ls` shows."""
        state = "signing in" if self._proof is not None else "answering" if self._busy else "open"
        user = self._owner.name
        return {"state": state, "user": user, "answered": self._answered, "last_error": self.last_error}

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self.counters.received_bytes.inc(len(data))
        self._unread += data
        if self._proof is None or self._sign_in(self._proof):
            self._next(at_once=True)
        self.keeps(0 if self._busy else len(self._unread), len(data))
        self.pace()

    def _sign_in(self, proof: bytes) -> bool:
        if len(self._unread) < PROOF_BYTES:
            return False
        shown = bytes(self._unread[:PROOF_BYTES])
        del self._unread[:PROOF_BYTES]
        if not hmac.compare_digest(shown, proof):
            self.cut_off("it does not know the secret of its ticket")
            return False
        self._proof = None
        self.signed_in()
        self.belongs_to(self._owner)
        if self._owner.refusal is not None:  # since the offer
            self.rights_changed(self._owner)
        return True

    def _next(self, *, at_once: bool = False) -> None:
        """Begin with the requests that are whole, as many as may be under way. The first does not wait for its turn in
        the event loop, with `at_once`; those behind it do, or a long row of refused ones would be as deep as it is
        long."""
        while len(self._unread) >= LENGTH_BYTES and self._may_begin():
            size, limits = int.from_bytes(self._unread[:LENGTH_BYTES], "big"), self._lines.settings
            if size > limits.line_request_bytes_max:
                self._lines.met("line_request_bytes_max")
                maximum = limits.line_request_bytes_max
                self._end(LimitExceeded("bytes of a request on a line", size, maximum, "flight.line_request_bytes_max"))
                return
            end = LENGTH_BYTES + size
            if len(self._unread) < end:
                return
            body = bytes(self._unread[LENGTH_BYTES:end])
            del self._unread[:end]
            self._under_way += 1
            if size < APART_BYTES:
                self._begin(_read(body), at_once=at_once)
                at_once = False
            else:
                self._alone = True
                self.start(self._read_apart(body))

    def _may_begin(self) -> bool:
        if self._alone or self.transport.is_closing():
            return False
        return not self._busy or (self._owner.refusal is None and not self.says_no_more and self._has_place())

    def _has_place(self) -> bool:
        if self._under_way < self._lines.settings.line_requests_max:
            return True
        self._lines.met("line_requests_max")
        return False

    async def _read_apart(self, body: bytes) -> None:
        self._begin(await self.hub.intake.apart(lambda: _read(body)))
        self._next()

    def _begin(self, request: Request | HeadraceError, *, at_once: bool = False) -> None:
        self._alone = isinstance(request, HeadraceError) or request.id is None
        if at_once and isinstance(request, Request) and request.append is not None:
            self.begin(self._serve(request))
        else:
            self.start(self._serve(request))

    async def _serve(self, request: Request | HeadraceError) -> None:
        number = None
        try:
            if isinstance(request, HeadraceError):
                raise request
            number = request.id
            answer = await self._answer(request)
        except HeadraceError as error:
            answer = Answer(error=error_body(error.to_keep()), id=number)
        except Exception:
            logger.exception("a request on a line failed unexpectedly")
            answer = Answer(error=error_body(HeadraceError("internal error of the hub; its log says more")), id=number)
        self._answered += 1
        self._ready.append(framed(answer))
        self._under_way -= 1
        if number is None:
            self._alone = False
        if not self._busy:
            self._say()
        elif len(self._ready) == 1:
            asyncio.get_running_loop().call_soon(self._say)

    def _say(self) -> None:
        """Write what is ready, and read on."""
        ready, self._ready = self._ready, []
        if self.transport.is_closing():
            return
        self.write(b"".join(ready))
        if self._owner.refusal is not None:
            if not self._busy:
                self._end(self._owner.refusal)
        elif self.says_no_more:
            if not self._busy:
                self.stop()
        else:
            self._next()
            self.pace()

    async def _answer(self, request: Request) -> Answer:
        if request.append is not None:
            with self.hub.tracing.call("flight.put", request.trace):
                appended = await self._append(request.append)
            return Answer(result=msgspec.Raw(msgspec.json.encode(appended)), id=request.id)
        with self.hub.tracing.call("flight.action", request.trace, {"headrace.verb": request.verb}):
            done = await self.hub.verbs.answer(request.verb, bytes(request.params), self._owner)
        return Answer(result=msgspec.Raw(done.body), next=done.next, id=request.id)

    async def _append(self, asked: StreamAppend) -> AppendResult:
        require(self._owner, "write", asked.stream)
        if self.handle is not None:
            self.handle.uses("write", asked.stream)
        with acting_as(self._owner):
            if self.hub.congested:
                await self.hub.drained()
            appended = await append_records(self.hub, asked)
        self.counters.records_in.inc(0 if appended.duplicate else appended.count)
        return appended

    # What the connection asks of us.

    def eof_received(self) -> bool:
        """The client has closed the line, and waits for nothing: what it asked for last goes on only if that is done by
        itself."""
        return False

    def has_room(self) -> bool:
        """Whether more may be read while requests are under way."""
        return not self._busy or len(self._unread) < AHEAD_REQUESTS * self._lines.settings.line_request_bytes_max

    def owes(self) -> bool:
        """Whether a request is under way, or its answer unwritten."""
        return self._busy or bool(self._ready)

    def rights_changed(self, principal: Principal) -> None:
        """Rights are looked at with each request; a sign-in that no longer holds ends the line, after the answer to
        what is under way: whoever sent it must know what became of it."""
        if principal.refusal is not None:
            self.last_error = str(principal.refusal)
            if not self.owes():
                self._end(principal.refusal)

    def stop(self) -> None:
        """The hub stops."""
        self._end(self._lines.refusal())

    def _end(self, error: HeadraceError) -> None:
        if not self.transport.is_closing():
            self.write(framed(Answer(error=error_body(error), last=True)))
            self.transport.close()


def _read(body: bytes) -> Request | HeadraceError:
    try:
        return decode_request(body)
    except HeadraceError as error:
        return error.to_keep()
