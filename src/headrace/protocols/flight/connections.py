"""The connections inside of gRPC, which shows none of them: seen through the descriptors of the process.

gRPC keeps a connection that says nothing, and holds a message of any size until it is whole, before anybody here is
asked. The kernel knows how many bytes came on each socket, and the calls say when something was understood, so the
difference is what gRPC holds. That goes to `hub.intake` as at every other listener, which ends those that take too long
or too much. A message that is no batch of a put is copied as a whole once it is there, so it counts twice. Where the
system does not tell (only Linux does) nothing is watched.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import stat
import struct
import time
from collections.abc import Callable, Container, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from headrace.errors import LimitExceeded
from headrace.hub.peers import address_from
from headrace.units import MIB

if TYPE_CHECKING:
    from headrace.hub.intake import Arrival, Intake

LOOK_S: Final = 0.2
LOOK_CLOSELY_S: Final = 0.02
"""While a message comes, and for some time after it: tens of megabytes may come in a tenth of a second."""
CLOSELY_S: Final = 2.0
SHARE: Final = 20
"""Looking takes at most one part in so many of the time."""
SMALL_BYTES: Final = MIB
"""So much may come without being a message: settings, pings, and word that what was sent has been taken."""
COPIED: Final = 2
"""How often a message that is no batch of a put is in memory when it has become whole."""
DESCRIPTORS: Final = "/dev/fd"
TCP_INFO_BYTES: Final = 136
RECEIVED: Final = struct.Struct("<Q")
RECEIVED_AT: Final = 128
"""Where `struct tcp_info` has the bytes that were received."""


class Seen(NamedTuple):
    """One accepted connection."""

    inode: int
    peer: str
    received: int


class _Connection:
    def __init__(self, arrival: Arrival) -> None:
        self.arrival = arrival
        self.understood = 0
        self.received = 0


def normal(peer: str) -> str:
    """A peer as gRPC writes it, `ipv4:127.0.0.1:5000` or `ipv6:%5B::1%5D:5000`, as the rest of the hub does."""
    return unquote(peer.partition(":")[2])


@contextlib.contextmanager
def accepted(descriptor: int, port: int) -> Iterator[socket.socket | None]:
    """The connection behind a descriptor, if it was accepted on this port. Whatever happens to the descriptor
    meanwhile, what is given stays what it is."""
    try:
        mine = os.dup(descriptor)
    except OSError:
        yield None
        return
    if not stat.S_ISSOCK(os.fstat(mine).st_mode):
        os.close(mine)
        yield None
        return
    with socket.socket(fileno=mine) as connection:
        try:
            is_ours = connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getsockname()[1] == port
            connection.getpeername()  # raises for the listener itself
        except OSError:
            is_ours = False
        yield connection if is_ours else None


def look(port: int) -> list[Seen]:
    """All connections on this port of this process."""
    seen = []
    for name in os.listdir(DESCRIPTORS):
        with accepted(int(name), port) as connection, contextlib.suppress(OSError):
            if connection is not None:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
                inode = os.fstat(connection.fileno()).st_ino
                seen.append(Seen(inode, _peer_of(connection), RECEIVED.unpack_from(info, RECEIVED_AT)[0]))
    return seen


def _peer_of(connection: socket.socket) -> str:
    return address_from(connection.getpeername())


def cut(port: int, *, inodes: Container[int] | None = None, peer: str | None = None) -> int:
    """Cut every accepted connection on this port of this process, or only some: by their inodes, or by the peer as gRPC
    writes it. Returns how many.

    Flight's server waits for open calls when it shuts down, and it has no way to end a call whose client neither reads
    nor goes away. Only sockets whose own port is the listener's are touched.
    """
    count = 0
    for name in os.listdir(DESCRIPTORS):
        with accepted(int(name), port) as connection, contextlib.suppress(OSError):
            if connection is None or (inodes is not None and os.fstat(connection.fileno()).st_ino not in inodes):
                continue
            if peer is None or normal(peer) == _peer_of(connection):
                connection.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


class Connections:
    """Those of one listener."""

    def __init__(self, intake: Intake, port: int, putting: Callable[[], Container[str]] = lambda: ()) -> None:
        """`putting` tells the peers, that have a put open."""
        self._intake = intake
        self._port = port
        self._putting = putting
        self._closely_until_s = 0.0
        self._open: dict[int, _Connection] = {}
        self._understood: set[str] = set()
        self._ended: set[int] = set()
        """The inodes of those that have to go, and are not gone yet."""
        self._cutting: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch, where that is possible."""
        if hasattr(socket, "TCP_INFO") and os.path.isdir(DESCRIPTORS):
            self._task = asyncio.create_task(self._watch(), name="flight connections")

    def stop(self) -> None:
        """Watch no more."""
        for task in (self._task, self._cutting):
            if task is not None:
                task.cancel()
        for connection in self._open.values():
            connection.arrival.close()

    def understood(self, peer: str) -> None:
        """A call of this peer, as gRPC writes it, got on. From any thread."""
        self._understood.add(normal(peer))

    async def _watch(self) -> None:
        took_s = 0.0
        while True:
            look_s = LOOK_CLOSELY_S if time.monotonic() < self._closely_until_s else LOOK_S
            await asyncio.sleep(max(look_s, took_s * SHARE))
            began_s = time.monotonic()
            understood, self._understood = self._understood, set()
            self.update(await asyncio.to_thread(look, self._port), understood)
            took_s = time.monotonic() - began_s

    def update(self, seen: list[Seen], understood: set[str]) -> None:
        """Compare what is there with what was."""
        putting = self._putting()
        there = {each.inode for each in seen}
        self._ended &= there
        for inode in self._open.keys() - there:
            self._open.pop(inode).arrival.close()
        for each in seen:
            if each.inode in self._ended:
                continue
            connection = self._open.get(each.inode) or self._opened(each)
            if connection is None:
                continue
            came = each.received - connection.received
            connection.received = each.received
            if each.peer in understood:
                connection.arrival.known()
                connection.understood = each.received
            held = each.received - connection.understood
            if held > SMALL_BYTES:
                self._closely_until_s = time.monotonic() + CLOSELY_S
            times = 1 if each.peer in putting else COPIED
            connection.arrival.holds(held * times if held > SMALL_BYTES else 0, came * times)

    def _opened(self, seen: Seen) -> _Connection | None:
        end = functools.partial(self._end, seen.inode)
        try:
            connection = _Connection(self._intake.open("flight", end))
        except LimitExceeded:
            end("")
            return None
        self._open[seen.inode] = connection
        return connection

    def _end(self, inode: int, why: str) -> None:
        self._open.pop(inode, None)
        self._ended.add(inode)
        if self._cutting is None:
            self._cutting = asyncio.create_task(self._cut(), name="flight connections end")

    async def _cut(self) -> None:
        """All of them at once, beside the event loop: to find one is to look at every descriptor of the process, and a
        crowd has thousands."""
        done: set[int] = set()
        while some := self._ended - done:
            done |= some
            await asyncio.to_thread(cut, self._port, inodes=some)
        self._cutting = None
