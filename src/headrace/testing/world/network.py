"""The network of a world: connections between machines, with everything that befalls real ones.

Bytes arrive late, in pieces of other sizes than they were sent in, and in order. A connection is cut (both sides are
told), a machine vanishes (nobody is told before the kernel's keepalive asks), or a line goes dead for a while and comes
back. A receiver that does not read stops its sender, as TCP's window does.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.testing.world.scheduler import Machine, Scheduler

if TYPE_CHECKING:
    from headrace.testing.world.loop import WorldLoop

WINDOW_BYTES = 64 * 1024
"""What may wait at a receiver that does not read."""
HIGH_BYTES = 64 * 1024
KEEPALIVE_S = 60.0
"""So long a dead peer goes unnoticed."""
CONNECT_S = 75.0
"""So long the kernel tries to reach somebody."""
FIRST_PORT = 20_000
HOST = "127.0.0.1"


class Weather(dict[str, float]):
    """How the network behaves; the seed fills it in."""

    delay_s = 0.0005
    delay_s_max = 0.003
    split = 0.1
    """How often what arrives is cut in two."""


class Network:
    """Who listens where, and who is connected to whom."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.weather = Weather()
        self.listening: dict[int, Server] = {}
        self.ends: dict[Transport, None] = {}
        """Of all connections that are open, in the order in which they were opened."""
        self._ports = itertools.count(FIRST_PORT)
        self._dead_until_s = 0.0
        self._dead: frozenset[str] = frozenset()

    def free_port(self) -> int:
        return next(self._ports)

    def delay_s(self) -> float:
        return self.scheduler.random.uniform(self.weather.delay_s, self.weather.delay_s_max)

    # -- faults ----------------------------------------------------------------------------------------------------

    def reset_one(self) -> str:
        """Cut a connection; which, in words."""
        if not self.ends:
            return "nobody is connected"
        end = self.scheduler.random.choice(list(self.ends))
        end.break_off(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))
        end.peer.break_off(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))
        return f"{end.loop.machine.name} and {end.peer.loop.machine.name}"

    def go_dead(self, machines: frozenset[str], seconds: float) -> None:
        """Nothing reaches these machines, or comes from them, for so long."""
        self._dead, self._dead_until_s = machines, self.scheduler.now_s + seconds

    def dead_s(self, one: Machine, other: Machine) -> float:
        """How long the line between two machines stays dead."""
        if {one.name, other.name} & self._dead and one is not other:
            return max(0.0, self._dead_until_s - self.scheduler.now_s)
        return 0.0

    def heal(self) -> None:
        self._dead_until_s = 0.0

    def stop_listening(self, machine: Machine) -> None:
        """Its ports go to others; its connections stay."""
        for port, server in list(self.listening.items()):
            if server.loop.machine is machine:
                del self.listening[port]

    def machine_died(self, machine: Machine, *, silently: bool) -> None:
        """Its kernel says goodbye for a process that was killed; a machine without power says nothing."""
        self.stop_listening(machine)
        for end in list(self.ends):
            if end.loop.machine is machine:
                self.ends.pop(end, None)
                peer = end.peer
                after_s = KEEPALIVE_S if silently else self.delay_s()
                reset = ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
                self.scheduler.call_later(after_s, lambda peer=peer, reset=reset: peer.break_off(reset))  # type: ignore[misc]

    # -- opening ---------------------------------------------------------------------------------------------------

    def listen(self, loop: WorldLoop, factory: Callable[[], asyncio.BaseProtocol], port: int) -> Server:
        port = port or self.free_port()
        if port in self.listening:
            raise OSError(errno.EADDRINUSE, "address already in use")
        server = Server(self, loop, factory, port)
        self.listening[port] = server
        return server

    async def connect(
        self, loop: WorldLoop, factory: Callable[[], asyncio.BaseProtocol], port: int
    ) -> tuple[Transport, asyncio.BaseProtocol]:
        """As asyncio's `create_connection`."""
        await asyncio.sleep(self.delay_s())
        server = self.listening.get(port)
        dead_s = 0.0 if server is None else self.dead_s(loop.machine, server.loop.machine)
        if dead_s:
            await asyncio.sleep(min(dead_s, CONNECT_S))
            if dead_s > CONNECT_S:
                raise TimeoutError(errno.ETIMEDOUT, "nobody answers")
            server = self.listening.get(port)
        if server is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens on port {port}")
        protocol = factory()
        here = Transport(self, loop, (HOST, self.free_port()), (HOST, port))
        there = Transport(self, server.loop, (HOST, port), here.own_name)
        here.peer, there.peer = there, here
        self.ends[here] = self.ends[there] = None
        server.loop.call_soon_threadsafe(server.accept, there)
        here.begin(protocol)
        return here, protocol


class Server(asyncio.AbstractServer):
    """A port that accepts connections."""

    def __init__(
        self, network: Network, loop: WorldLoop, factory: Callable[[], asyncio.BaseProtocol], port: int
    ) -> None:
        self.loop = loop
        self.port = port
        self._network = network
        self._factory = factory

    @property
    def sockets(self) -> tuple[Socket, ...]:
        return (Socket((HOST, self.port), ("", 0)),)

    def accept(self, transport: Transport) -> None:
        if self._network.listening.get(self.port) is not self:
            transport.abort()
        elif not transport.is_closing():
            transport.begin(self._factory())

    def close(self) -> None:
        if self._network.listening.get(self.port) is self:
            del self._network.listening[self.port]

    def is_serving(self) -> bool:
        return self._network.listening.get(self.port) is self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.loop

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)

    async def serve_forever(self) -> None:
        await asyncio.get_running_loop().create_future()

    async def start_serving(self) -> None:
        await asyncio.sleep(0)


class Socket:
    """What is asked of a connection's socket."""

    def __init__(self, own_name: tuple[str, int], peer_name: tuple[str, int]) -> None:
        self._own_name = own_name
        self._peer_name = peer_name

    def getsockname(self) -> tuple[str, int]:
        return self._own_name

    def getpeername(self) -> tuple[str, int]:
        return self._peer_name

    def setsockopt(self, *option: object) -> None:
        """There is nothing to set."""

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        """There is nothing to free."""


class Transport(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self, network: Network, loop: WorldLoop, own_name: tuple[str, int], peer_name: tuple[str, int]
    ) -> None:
        super().__init__()
        self.loop = loop
        self.own_name = own_name
        self.peer: Transport
        self._network = network
        self._facts = {"peername": peer_name, "sockname": own_name, "socket": Socket(own_name, peer_name)}
        self._protocol: asyncio.BaseProtocol | None = None
        self._out: deque[bytes] = deque()
        self._out_bytes = 0
        self._in: deque[bytes] = deque()
        self._in_bytes = 0
        self._underway_bytes = 0
        self._high_bytes = HIGH_BYTES
        self._writing_paused = False
        self._reading_paused = False
        self._is_closing = False
        self._is_lost = False
        self._eof_to_send = False
        self._eof_came = False
        self._eof_told = False
        self._sending = False

    # -- asyncio's side --------------------------------------------------------------------------------------------

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)
        self._deliver_soon()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._facts.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return not self._reading_paused and not self._is_closing

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        self._reading_paused = False
        self._deliver_soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = HIGH_BYTES if high is None else high

    def get_write_buffer_size(self) -> int:
        return self._out_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._high_bytes // 4, self._high_bytes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not data or self._is_lost or self._eof_to_send:
            return
        self._out.append(bytes(data))
        self._out_bytes += len(data)
        if self._out_bytes > self._high_bytes and not self._writing_paused:
            self._writing_paused = True
            self.get_protocol().pause_writing()
        self._send_soon()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._eof_to_send = True
        self._send_soon()

    def close(self) -> None:
        """When all that was written has left."""
        if not self._is_closing:
            self._is_closing = True
            self._eof_to_send = True
            self._send_soon()

    def abort(self) -> None:
        """At once; the other side sees a reset."""
        self.break_off(None)
        reset = ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
        self._network.scheduler.call_later(self._network.delay_s(), lambda: self.peer.break_off(reset))

    def has_news(self, of_data: bool) -> bool:
        """Whether bytes wait to be read, or there is no connection any more."""
        return self._is_lost or (of_data and bool(self._in or self._eof_came))

    # -- the wire --------------------------------------------------------------------------------------------------

    def break_off(self, error: Exception | None) -> None:
        """There is no connection any more. From any strand, or none."""
        if not self._is_lost:
            self._is_lost = self._is_closing = True
            self._network.ends.pop(self, None)
            self._out.clear()
            if not self.loop.machine.is_dead:
                self.loop.call_soon_threadsafe(self._tell_lost, error)

    def _tell_lost(self, error: Exception | None) -> None:
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def _send_soon(self) -> None:
        if not self._sending and not self._is_lost:
            self._sending = True
            network = self._network
            delay_s = network.delay_s() + network.dead_s(self.loop.machine, self.peer.loop.machine)
            network.scheduler.call_later(delay_s, self._arrive)

    def _arrive(self) -> None:
        """What was written reaches the other side, as far as there is room. In no strand."""
        self._sending = False
        if self._is_lost or self.loop.machine.is_dead:
            return
        if dead_s := self._network.dead_s(self.loop.machine, self.peer.loop.machine):
            self._sending = True
            self._network.scheduler.call_later(dead_s + self._network.delay_s(), self._arrive)
            return
        peer = self.peer
        while self._out and peer._in_bytes < WINDOW_BYTES:
            data = self._out.popleft()
            room = WINDOW_BYTES - peer._in_bytes
            if len(data) > room:
                self._out.appendleft(data[room:])
                data = data[:room]
            self._out_bytes -= len(data)
            peer._in.append(data)
            peer._in_bytes += len(data)
        if self._writing_paused and self._out_bytes <= self._high_bytes // 4:
            self._writing_paused = False
            self.loop.call_soon_threadsafe(self._tell_resumed)
        if self._eof_to_send and not self._out and not peer._eof_came:
            peer._eof_came = True
            if self._is_closing:
                self.break_off(None)
        peer._deliver_soon()

    def _tell_resumed(self) -> None:
        if not self._is_lost:
            self.get_protocol().resume_writing()

    def _deliver_soon(self) -> None:
        if (self._in or self._eof_came) and not self._is_lost and not self.loop.machine.is_dead:
            self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        """Hand over a piece, in the loop of this end; the next comes in a turn of its own, as from a real socket."""
        if self._protocol is None or self._reading_paused or self._is_lost:
            return
        if self._is_closing:  # nobody reads what comes after one's own goodbye
            self._in.clear()
            return
        if self._in:
            data = b"".join(self._in)
            random = self._network.scheduler.random
            cut = random.randint(1, len(data)) if random.random() < self._network.weather.split else len(data)
            self._in = deque([data[cut:]] if cut < len(data) else [])
            self._in_bytes = len(data) - cut
            self.peer._send_more()
            self._hand_over(data[:cut])
            self._deliver_soon()
        elif self._eof_came and not self._eof_told:
            self._eof_told = True
            if not self._protocol.eof_received():  # type: ignore[attr-defined]
                self.close()

    def _send_more(self) -> None:
        if self._out or self._eof_to_send:
            self._send_soon()

    def _hand_over(self, data: bytes) -> None:
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            while data and not self._is_closing:
                buffer = memoryview(protocol.get_buffer(len(data)))
                size = min(len(buffer), len(data))
                buffer[:size] = data[:size]
                protocol.buffer_updated(size)
                data = data[size:]
        else:
            protocol.data_received(data)  # type: ignore[union-attr]
