"""The listener: asyncio and the hub around the session."""

import asyncio

from headrace.errors import HeadraceError, Unauthenticated
from headrace.hub import Hub
from headrace.log.batch import Batch
from headrace.security import Principal
from headrace.security.admission import Certificate
from headrace.serving.listener import Listener
from headrace.serving.tcp import TcpConnection, TcpServer, address_of
from headrace_lines import Lines, LinesMetrics
from headrace_lines.session import CONNECTION, Event, Refused, parse, record_line


class Connection(TcpConnection, asyncio.Protocol):
    """One peer. Its lines are answered one after the other."""

    def __init__(self, server: TcpServer["Connection"]) -> None:
        super().__init__(server)
        self.settings = self.hub.config.section(Lines)
        self.lines = self.hub.metrics.section(LinesMetrics).lines
        self.state = CONNECTION.first
        self._received = b""

    def opened(self) -> None:
        try:
            self.admit(Certificate(self.transport))
        except Unauthenticated:
            self._refuse(Refused("unauthenticated", "show a client certificate"))
            self.transport.close()

    def closed(self, error: Exception | None) -> None:
        self.state = CONNECTION.step(self.state, Event.LOST)

    def rights_changed(self, principal: Principal) -> None:
        if principal.refusal is not None:
            self._refuse(principal.refusal)
            self.transport.close()

    def describe(self) -> dict[str, object]:
        return {"state": self.state.value}

    def data_received(self, data: bytes) -> None:
        self.counters.received_bytes.inc(len(data))
        self._received += data
        self._next_line()

    def has_room(self) -> bool:
        return len(self._received) <= self.settings.line_bytes_max

    def _next_line(self) -> None:
        """Begin to answer the next line, if it is there and we are ready for it."""
        if self.transport.is_closing() or CONNECTION.get(self.state, Event.LINE) is None:
            self.pace()
            return
        line, end, rest = self._received.partition(b"\n")
        if len(line) > self.settings.line_bytes_max:
            self.state = CONNECTION.step(self.state, Event.TOO_LONG)
            self._refuse(Refused("too-long", f"a line is longer than lines.line_bytes_max, {len(line)} bytes"))
            self.transport.close()
        elif end:
            self._received = rest
            self.state = CONNECTION.step(self.state, Event.LINE)
            self.start(self._answer(line))
        self.pace()

    async def _answer(self, line: bytes) -> None:
        try:
            command, stream, argument = parse(line)
            self.lines.labels(command=command).inc()
            self.write(await (self._append if command == "append" else self._read)(stream, argument))
        except (Refused, HeadraceError) as error:
            self._refuse(error)
        self.state = CONNECTION.step(self.state, Event.ANSWERED)
        self._next_line()

    async def _append(self, stream: str, text: bytes) -> bytes:
        self._check("write", stream)
        if self.settings.create_streams and not self.hub.has_stream(stream):
            await self.hub.create_stream(stream)
        stored = await self.hub.append(stream, Batch.one(text))
        self.counters.records_in.inc()
        return b"ok %d\n" % stored.first

    async def _read(self, stream: str, argument: bytes) -> bytes:
        self._check("read", stream)
        index = int(argument)
        records = await self.hub.read(stream, index, limit=1)
        if not records.num_rows or records.column("index")[0].as_py() != index:
            raise Refused("no-record", f"{stream} has no record {index}")
        self.counters.records_out.inc()
        return record_line(index, records.column("payload")[0].as_py())

    def _check(self, right: str, stream: str) -> None:
        if self.principal is None or not self.principal.may(right, stream):
            raise Refused("forbidden", f"you may not {right} {stream}")

    def _refuse(self, error: Refused | HeadraceError) -> None:
        self.counters.peer_error(error.code)
        self.last_error = str(error)
        self.write(f"error {error.code} {error}\n".encode())


async def serve(hub: Hub, address: str) -> Listener:
    """Listen on `address`."""
    service: TcpServer[Connection] = TcpServer(hub, "lines")
    server = await service.listen(address, lambda: Connection(service))
    return Listener(address_of(server), lambda: service.stop(server))
