"""The Flight endpoint: `serve` starts it on an address.

    do_put            append                              puts.py
                      verbs with bytes                    verb_puts.py
    do_get            read a range, or follow             gets.py
                      the rows of a query                 queries.py
    do_action         every verb of the hub, JSON in, JSON out; lines.py for clients that ask often
    get_flight_info   what a stream holds now, one endpoint for each partition
    list_flights      the same for all streams the caller may read
    get_schema        the columns of a record

Flight runs calls in threads of its own; bridge.py leads from there into the hub's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from headrace.config.address import join_address, split_address
from headrace.errors import Forbidden, LimitExceeded
from headrace.log.columns import SCHEMA
from headrace.protocols.flight.authentication import (
    MIDDLEWARE,
    Authentication,
    OpenHandshake,
    principal_of,
    trace_headers_of,
)
from headrace.protocols.flight.bridge import CANCEL_POLL_S, Bridge, translated
from headrace.protocols.flight.codec import (
    FlightCriteria,
    PutCommand,
    ReadTicket,
    SqlTicket,
    command_from_path,
    decode_command,
    decode_criteria,
    decode_sql_ticket,
    decode_ticket,
    encode,
    ticket_ranges,
    ticket_schema,
)
from headrace.protocols.flight.connections import Connections, cut, normal
from headrace.protocols.flight.gets import ReadStream, open_read
from headrace.protocols.flight.lines import Lines
from headrace.protocols.flight.metrics import FlightMetrics
from headrace.protocols.flight.permit import Permit, require
from headrace.protocols.flight.puts import Putting
from headrace.protocols.flight.queries import QueryStream
from headrace.protocols.flight.requests import OFFER_ACTION
from headrace.protocols.flight.room import WaitingRoom, Window
from headrace.protocols.flight.session import PutSession, ReadSession, describe_put, describe_read
from headrace.protocols.flight.settings import Flight
from headrace.protocols.flight.verb_puts import decode_verb_command, serve_requests
from headrace.security import is_listed
from headrace.serving.listener import Listener
from headrace.serving.memory import GivesBack, find_trim

if TYPE_CHECKING:
    from headrace.hub import Hub
    from headrace.security import Principal, Right

logger = logging.getLogger("headrace.flight")

PROTOCOL = "flight"
# Flight's name for the connection on which a client has asked.
REUSE = "arrow-flight-reuse-connection://?"
# How long a stop waits for calls that are under way before it cuts their connections.
STOP_GRACE_S = 1.0


class _Places:
    """How many of something are open. Only the loop touches it."""

    def __init__(self, limit: str, maximum: int, key: str) -> None:
        self._limit = limit
        self._maximum = maximum
        self._key = key
        self._taken = 0

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        if self._taken >= self._maximum:
            raise LimitExceeded(self._limit, self._taken + 1, self._maximum, self._key)
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """Flight's handlers. Each runs in a thread of gRPC; the methods named `_in_loop_…` run in the hub's loop."""

    def __init__(self, hub: Hub, bridge: Bridge, location: str, **options: Any) -> None:
        self.connections: Connections | None = None
        self._hub = hub
        self._bridge = bridge
        self._readers = _Places("open readers", hub.config.log.readers_max, "log.readers_max")
        self._writers = _Places("open puts", hub.config.section(Flight).writers_max, "flight.writers_max")
        self.lines = Lines(hub, bridge.refusal)
        self._puts: set[PutSession] = set()
        self._reads: set[ReadSession] = set()
        self.gives_back = GivesBack(find_trim())
        self._all_puts = Window(hub.config.section(Flight).puts_bytes_max)
        refused = hub.metrics.section(FlightMetrics).puts_refused
        self._waiting_room = WaitingRoom(hub.config.section(Flight).puts_waiting_bytes_max, refused.inc)
        middleware = {MIDDLEWARE: Authentication(hub, bridge)}
        super().__init__(location, auth_handler=OpenHandshake(), middleware=middleware, **options)

    def _principal(self, context: flight.ServerCallContext) -> Principal:
        """Whoever makes this call; its connection is no stranger's."""
        principal = principal_of(context)
        self._got_on(context)()
        return principal

    def _client(self, peer: str) -> str:
        """Whoever is behind a connection, as gRPC names it: another hub may have passed it on."""
        return self._hub.peers.client(normal(peer))

    def _got_on(self, context: flight.ServerCallContext) -> Callable[[], None]:
        """To be called when something of this caller was understood, or sent to it."""
        if self.connections is None:
            return lambda: None
        return functools.partial(self.connections.understood, context.peer())

    # Reading -------------------------------------------------------------------------------------------------------

    @translated
    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        """Read a range, or follow; or the rows of a query."""
        asked = decode_sql_ticket(ticket.ticket)
        if asked is not None:
            return self._query(context, asked)
        wanted = decode_ticket(ticket.ticket)
        principal = self._principal(context)
        peer = context.peer()  # not in the loop: the call may have ended there, and its context with it
        with self._hub.tracing.call("flight.get", trace_headers_of(context)):
            session, permit, closed = self._bridge.open(
                lambda: self._in_loop_open_read(wanted, principal, peer), context, lambda opened: opened[2]()
            )
            stream = ReadStream(
                self._hub,
                self._bridge,
                session,
                permit,
                context,
                lambda: self._bridge.post(closed),
                self._got_on(context),
            )
        return flight.GeneratorStream(session.schema, stream)

    def _query(self, context: flight.ServerCallContext, asked: SqlTicket) -> flight.FlightDataStream:
        principal = self._principal(context)
        if not principal.may_some("read", verb="sql.query"):
            raise Forbidden(f"{principal.name!r} may not sql.query: it needs the right 'read'")
        with self._hub.tracing.call("flight.sql", trace_headers_of(context)):
            stream = QueryStream(self._hub, self._bridge, asked, principal, context)
        return flight.GeneratorStream(stream.schema, stream)

    async def _in_loop_open_read(
        self, ticket: ReadTicket, principal: Principal, peer: str
    ) -> tuple[ReadSession, Permit, Callable[[], None]]:
        with contextlib.ExitStack() as opened:
            permit = self._permit(principal, "read", *(each.stream for each in ticket_ranges(ticket)), peer=peer)
            opened.callback(permit.close)
            opened.enter_context(self._readers.place())
            session = await open_read(self._hub, ticket)
            handle = self._hub.sessions.open(PROTOCOL, self._client(peer), lambda: describe_read(session))
            opened.callback(handle.close)
            self._reads.add(session)
            opened.callback(self._reads.discard, session)
            for reading in session.readings:
                handle.uses("read", reading.stream)
            return session, permit, opened.pop_all().close

    def _permit(self, principal: Principal, right: Right, *streams: str, peer: str) -> Permit:
        farewell_s = self._hub.config.security.farewell_s
        return Permit(principal, right, *streams, cut=lambda: cut(self.port, peer=peer), farewell_s=farewell_s)

    # Appending -----------------------------------------------------------------------------------------------------

    @translated
    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Append batches to one partition, or call a verb with bytes."""
        is_command = descriptor.descriptor_type == flight.DescriptorType.CMD
        if is_command and (called := decode_verb_command(descriptor.command or b"")) is not None:
            return self._put_into_verb(context, called.verb, reader, writer)
        session = PutSession(_command_of(descriptor))
        principal = self._principal(context)
        peer = context.peer()  # as for a get
        permit, closed = self._bridge.open(
            lambda: self._in_loop_open_put(session, principal, peer), context, lambda opened: opened[1]()
        )
        self._puts.add(session)
        try:
            with self._hub.tracing.call("flight.put", trace_headers_of(context)):
                got_on, came, room = self._got_on(context), self.gives_back.after, self._waiting_room
                putting = Putting(
                    self._hub, self._bridge, session, permit, self._all_puts, room, context, writer, got_on, came
                )
                putting.run(reader)
        finally:
            self._puts.discard(session)
            self._bridge.post(closed)

    def _put_into_verb(
        self,
        context: flight.ServerCallContext,
        verb: str,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        principal, peer, got_on = self._principal(context), context.peer(), self._got_on(context)  # as for a get
        permit, closed = self._bridge.open(
            lambda: self._in_loop_open_verb_put(verb, principal, peer), context, lambda opened: opened[1]()
        )

        def call(request: dict[str, Any], size: int) -> bytes:
            got_on()
            self._bridge.check_new()
            permit.check()
            self.gives_back.after(size)
            with self._waiting_room.place(size, self._all_puts) as check_place:

                def check() -> None:
                    check_place()
                    got_on()  # it is we who wait for the disk, not for the client
                    self._bridge.check(context)

                self._all_puts.enter(size, check)
            try:
                return encode(self._bridge.run(self._hub.verbs.call(verb, request, principal), context))
            finally:
                self._all_puts.leave(size)

        try:
            with self._hub.tracing.call("flight.put", trace_headers_of(context), {"headrace.verb": verb}):
                serve_requests(verb, reader, writer, call, self._hub.config.section(Flight).action_bytes_max)
        finally:
            self._bridge.post(closed)

    async def _in_loop_open_verb_put(
        self, verb: str, principal: Principal, peer: str
    ) -> tuple[Permit, Callable[[], None]]:
        self._hub.verbs.get(verb)  # raises for an unknown one
        with contextlib.ExitStack() as opened:
            permit = self._permit(principal, "write", peer=peer)
            opened.callback(permit.close)
            opened.enter_context(self._writers.place())
            return permit, opened.pop_all().close

    @property
    def puts_bytes(self) -> int:
        """Of all batches that wait for the disk."""
        return self._all_puts.bytes

    @property
    def is_busy(self) -> bool:
        """Whether something is under way that will have an end: batches that wait for the disk, reads, verbs."""
        is_appending = any(put.received_count > put.stored_count for put in list(self._puts))
        return is_appending or self._bridge.is_busy or any(not read.ticket.follow for read in list(self._reads))

    async def _in_loop_open_put(
        self, session: PutSession, principal: Principal, peer: str
    ) -> tuple[Permit, Callable[[], None]]:
        command = session.command
        with contextlib.ExitStack() as opened:
            permit = self._permit(principal, "write", command.stream, peer=peer)
            opened.callback(permit.close)
            self._hub.bounds(command.stream, command.partition)  # raises for an unknown stream or partition
            opened.enter_context(self._writers.place())
            handle = self._hub.sessions.open(PROTOCOL, self._client(peer), lambda: describe_put(session))
            opened.callback(handle.close)
            handle.uses("write", command.stream)
            return permit, opened.pop_all().close

    # Verbs ---------------------------------------------------------------------------------------------------------

    @translated
    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[bytes]:
        """Call a verb of the hub."""
        principal = self._principal(context)
        if action.type == OFFER_ACTION:
            return iter([encode(self._bridge.run(self.lines.offer(principal), context))])
        body = b"" if action.body is None else memoryview(action.body)
        maximum = self._hub.config.section(Flight).action_bytes_max
        self.gives_back.after(len(body))
        if len(body) > maximum:
            raise LimitExceeded(f"bytes of the request {action.type!r}", len(body), maximum, "flight.action_bytes_max")
        call = self._hub.verbs.answer(action.type, body, principal)
        attributes = {"headrace.verb": action.type}
        with self._hub.tracing.call("flight.action", trace_headers_of(context), attributes):
            answer = self._bridge.run(call, context)
        more = [] if answer.next is None else [msgspec.json.encode({"next": answer.next})]
        return iter([answer.body, *more])

    @translated
    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        """Every verb, with one line about it."""
        self._principal(context)
        return [(verb.name, verb.summary) for verb in self._hub.verbs]

    # Looking -------------------------------------------------------------------------------------------------------

    @translated
    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        """What a path (stream, and optionally partition) or a ticket as command holds now."""
        principal, places = self._principal(context), self._places(context)
        return self._bridge.run(self._in_loop_info(descriptor, principal, places), context)

    def _places(self, context: flight.ServerCallContext) -> list[flight.Location]:
        """Where a client reads better than where it asks: straight here, if another hub has passed it on and it should
        come here. Whoever cannot goes on with the connection that it has."""
        better = self._hub.peers.better(normal(context.peer()), PROTOCOL)
        if better is None:
            return []
        scheme = "grpc" if self._hub.security.tls_files(PROTOCOL) is None else "grpc+tls"
        return [flight.Location(f"{scheme}://{better}"), flight.Location(REUSE)]

    @translated
    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        """All streams that the caller may read; criteria {"pattern": "orders.*"} narrows them."""
        wanted = decode_criteria(criteria)
        principal, places = self._principal(context), self._places(context)
        return iter(self._bridge.run(self._in_loop_infos(wanted, principal, places), context))

    @translated
    def get_schema(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        """The columns of a record."""
        info = self._bridge.run(self._in_loop_info(descriptor, self._principal(context), []), context)
        return flight.SchemaResult(info.schema)

    async def _in_loop_infos(
        self, wanted: FlightCriteria, principal: Principal, places: list[flight.Location]
    ) -> list[flight.FlightInfo]:
        found = self._hub.streams(wanted.pattern, wanted.kind)
        listed = (info.name for info in found if is_listed(info.name, wanted.pattern, wanted.all))
        names = [name for name in listed if principal.may("read", name)]
        return [await self._in_loop_stream_info(PutCommand(name), places, whole=True) for name in names]

    async def _in_loop_info(
        self, descriptor: flight.FlightDescriptor, principal: Principal, places: list[flight.Location]
    ) -> flight.FlightInfo:
        if descriptor.descriptor_type == flight.DescriptorType.CMD:
            return await self._in_loop_ticket_info(descriptor, principal, places)
        command = command_from_path(descriptor.path)
        require(principal, "read", command.stream)
        return await self._in_loop_stream_info(command, places, whole=len(descriptor.path) == 1)

    async def _in_loop_stream_info(
        self, command: PutCommand, places: list[flight.Location], *, whole: bool
    ) -> flight.FlightInfo:
        """One endpoint for each partition, with a ticket for exactly the records that are there now."""
        stream = self._hub.stream(command.stream)
        partitions = range(stream.partitions) if whole else [command.partition]
        path = [stream.name] if whole else [stream.name, str(command.partition)]
        endpoints = []
        records = 0
        for partition in partitions:
            bounds = self._hub.bounds(stream.name, partition)
            records += bounds.next - bounds.first
            ticket = ReadTicket(stream.name, partition, bounds.first, bounds.next)
            endpoints.append(flight.FlightEndpoint(encode(ticket), places))
        return flight.FlightInfo(SCHEMA, flight.FlightDescriptor.for_path(*path), endpoints, records, -1)

    async def _in_loop_ticket_info(
        self, descriptor: flight.FlightDescriptor, principal: Principal, places: list[flight.Location]
    ) -> flight.FlightInfo:
        """A ticket as command: the same ticket with its words turned into indexes, one endpoint for each range."""
        ticket = decode_ticket(descriptor.command)
        require(principal, "read", *(each.stream for each in ticket_ranges(ticket)))
        session = await open_read(self._hub, ticket)
        endpoint = flight.FlightEndpoint(descriptor.command, places)
        counted = not (ticket.follow or ticket.types or ticket.limit)
        records = sum(reading.upto - reading.position for reading in session.readings) if counted else -1
        return flight.FlightInfo(ticket_schema(ticket), descriptor, [endpoint], max(records, -1), -1)


def _command_of(descriptor: flight.FlightDescriptor) -> PutCommand:
    if descriptor.descriptor_type == flight.DescriptorType.PATH:
        return command_from_path(descriptor.path)
    return decode_command(descriptor.command or b"")


def _tls_options(hub: Hub) -> dict[str, Any]:
    files = hub.security.tls_files(PROTOCOL)
    if files is None:
        return {}
    certificate = Path(files.certificate).read_bytes()
    key = Path(files.key).read_bytes() if files.key else certificate
    options: dict[str, Any] = {"tls_certificates": [flight.CertKeyPair(certificate, key)]}
    if files.client_ca:
        options |= {"verify_client": True, "root_certificates": Path(files.client_ca).read_bytes()}
    return options


class Endpoint:
    """The server on its address. gRPC reads once which authorities vouch for clients, and tells nobody what certificate
    a client has shown: when they change, the server is started anew, and every client comes again."""

    def __init__(self, hub: Hub, address: str) -> None:
        self._hub = hub
        self._host, port = split_address(address)
        self._trust = hub.security.trust(PROTOCOL)
        self._seen = None if self._trust is None else self._trust.stamp()
        self._serve(port)
        self._restarting: asyncio.Task[None] | None = None
        self._unwatch = hub.admission.rights.watch(self._look)
        waiting = hub.metrics.section(FlightMetrics).puts_bytes
        hub.metrics.before_scrape(lambda: waiting.set(self._server.puts_bytes))

    @property
    def address(self) -> str:
        """With the port that the system chose."""
        return join_address(self._host, self._server.port)

    def _serve(self, port: int) -> None:
        options = _tls_options(self._hub)
        scheme = "grpc+tls" if options else "grpc"
        self._bridge = Bridge(asyncio.get_running_loop(), has_heirs=self._hub.config.log.backend == "kafka")
        try:
            location = f"{scheme}://{join_address(self._host, port)}"
            self._server = FlightServer(self._hub, self._bridge, location, **options)
        except pa.ArrowException as error:
            raise OSError(str(error)) from None
        self._server.connections = Connections(self._hub.intake, self._server.port, self._server.gives_back.after)
        self._server.connections.start()

    def _look(self) -> None:
        if self._trust is not None and self._trust.stamp() != self._seen and self._restarting is None:
            self._seen = self._trust.stamp()
            self._restarting = asyncio.ensure_future(self._restart())

    async def _restart(self) -> None:
        logger.warning("the client certificate authorities have changed: all clients have to reconnect")
        port = self._server.port
        await _stop(self._server, self._bridge)
        try:
            self._serve(port)
        except OSError as error:
            reason = f"not served since the authorities that vouch for clients have changed: {error}"
            logger.error(reason)
            self._hub.health.check(PROTOCOL, lambda: reason)
            return
        finally:
            self._restarting = None
        self._look()  # they may have changed once more

    async def close(self) -> None:
        """Stop serving."""
        self._unwatch()
        if self._restarting is not None:
            await self._restarting
        await _stop(self._server, self._bridge)


async def serve(hub: Hub, address: str) -> Listener:
    """Listen on `host:port`; port 0 picks a free one."""
    endpoint = Endpoint(hub, address)
    return Listener(endpoint.address, endpoint.close)


async def _stop(server: FlightServer, bridge: Bridge) -> None:
    """Let calls end by themselves for a moment, then cut the connections of those that do not."""
    bridge.leave()
    await server.lines.close()
    if server.connections is not None:
        server.connections.stop()
    port = server.port
    started = time.monotonic()
    stopped = asyncio.ensure_future(asyncio.to_thread(server.shutdown))
    while not (await asyncio.wait([stopped], timeout=CANCEL_POLL_S * 1.5))[0]:
        if not server.is_busy or time.monotonic() - started > STOP_GRACE_S:
            bridge.stop()
            cut(port)
    bridge.stop()
    await stopped
