"""The connections inside of gRPC, which shows none of them: seen through the descriptors of the process.

gRPC keeps a connection that says nothing, and holds a message of any size until it is whole, before anybody here is
asked. The kernel knows how many bytes came on each socket, and the calls say when something was understood, so the
difference is what gRPC holds. That goes to `hub.intake` as at every other listener, which ends those that take too long
or too much. A message is copied as a whole once it is there, so a large one counts twice. Where the system does not
tell (only Linux does) nothing is watched.
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
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from headrace.errors import LimitExceeded
from headrace.hub.peers import address_from
from headrace.units import MIB

if TYPE_CHECKING:
    from headrace.hub.intake import Arrival, Intake

LOOK_S: Final = 0.2
LOOK_CLOSELY_S: Final = 0.01
"""While a message comes, and for some time after it: tens of megabytes may come in a tenth of a second."""
CLOSELY_S: Final = 2.0
SHARE: Final = 20
"""Looking takes at most one part in so many of a processor's time."""
SMALL_BYTES: Final = MIB
"""So much may come without being a message: settings, pings, and word that what was sent has been taken."""
ASK_S: Final = 0.01
"""How often the kernel is asked what has come on a connection whose calls get on."""
COPIED: Final = 2
"""How often a large message is in memory when it has become whole."""
LARGE_BYTES: Final = 16 * MIB
"""Smaller ones become whole one after the other, and their copies are gone as quickly."""
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
    descriptor: int = -1


class _Connection:
    def __init__(self, arrival: Arrival) -> None:
        self.arrival = arrival
        self.understood = 0
        self.received = 0
        self.held = 0
        """As it came, and not understood."""


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
                inode = os.fstat(connection.fileno()).st_ino
                seen.append(Seen(inode, _peer_of(connection), _received(connection), int(name)))
    return seen


def weight(held: int) -> int:
    """The memory that what came of a message takes, or will when it is whole."""
    return COPIED * held if held > LARGE_BYTES else held


def _received(connection: socket.socket) -> int:
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    received: int = RECEIVED.unpack_from(info, RECEIVED_AT)[0]
    return received


def received_now(descriptor: int, port: int, peer: str) -> int | None:
    """What has come from this peer; None when the descriptor is another's by now."""
    with accepted(descriptor, port) as connection, contextlib.suppress(OSError):
        if connection is not None and _peer_of(connection) == peer:
            return _received(connection)
    return None


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

    def __init__(self, intake: Intake, port: int, freed: Callable[[int], object] = lambda nbytes: None) -> None:
        """`freed` is told what was held for a connection that is gone."""
        self._intake = intake
        self._port = port
        self._freed = freed
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="flight-connections")
        """Not one of the threads that all share: what comes must be seen when those are busy, too."""
        self._closely_until_s = 0.0
        self._open: dict[int, _Connection] = {}
        self._understood: dict[str, int] = {}
        """The peers of whose calls one got on since the last look, and what had come from each by then."""
        self._descriptors: dict[str, int] = {}
        self._asked_s: dict[str, float] = {}
        self._ended: dict[int, int] = {}
        """The inodes of those that have to go and are not gone yet, and what was held for each."""
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
        self._beside.shutdown(wait=False)
        for connection in self._open.values():
            connection.arrival.close()

    def understood(self, peer: str) -> None:
        """A call of this peer, as gRPC writes it, got on. From any thread. What comes behind that is not understood
        yet, and between two looks that may be much: so it is found out now what has come."""
        name, now_s = normal(peer), time.monotonic()
        received = None
        if now_s - self._asked_s.get(name, 0.0) >= ASK_S:
            self._asked_s[name] = now_s
            received = received_now(self._descriptors.get(name, -1), self._port, name)
        self._understood[name] = received or self._understood.get(name, 0)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        took_s = 0.0
        while True:
            look_s = LOOK_CLOSELY_S if time.monotonic() < self._closely_until_s else LOOK_S
            await asyncio.sleep(max(look_s, took_s * SHARE))
            understood, self._understood = self._understood, {}
            seen, took_s = await loop.run_in_executor(self._beside, self._look, understood)
            self.update(seen, understood)

    def _look(self, understood: dict[str, int]) -> tuple[list[Seen], float]:
        """What is there, and the processor's time that it took to see it: to wait for others' work is no reason to look
        more seldom. gRPC takes tens of megabytes in the time that the loop may need for its next turn: what is too much
        by itself is cut off here. The loop then finds the same, and tells why."""
        began_s = time.thread_time()
        seen = look(self._port)
        held = {each: weight(self._held(each, understood)) for each in seen}
        excess = sum(held.values()) - self._intake.unread_bytes_max
        for each in sorted(held, key=lambda one: held[one], reverse=True):
            if excess <= 0:
                break
            excess -= held[each]
            with accepted(each.descriptor, self._port) as connection, contextlib.suppress(OSError):
                if connection is not None and os.fstat(connection.fileno()).st_ino == each.inode:
                    connection.shutdown(socket.SHUT_RDWR)
        return seen, time.thread_time() - began_s

    def _held(self, seen: Seen, understood: dict[str, int]) -> int:
        """What has come on a connection and is not understood, where that is enough to be a large message."""
        connection = self._open.get(seen.inode)
        before = 0 if connection is None else connection.understood
        held = seen.received - max(before, understood.get(seen.peer, 0))
        return held if held > SMALL_BYTES else 0

    def update(self, seen: list[Seen], understood: dict[str, int]) -> None:
        """Compare what is there with what was."""
        self._descriptors = {each.peer: each.descriptor for each in seen}
        self._asked_s = {peer: at_s for peer, at_s in self._asked_s.copy().items() if peer in self._descriptors}
        there = {each.inode for each in seen}
        for inode in self._ended.keys() - there:
            self._freed(self._ended.pop(inode))
        for inode in self._open.keys() - there:
            gone = self._open.pop(inode)
            self._freed(gone.held)
            gone.arrival.close()
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
                connection.understood = max(connection.understood, understood[each.peer])
            connection.held = self._held(each, understood)
            if connection.held:
                self._closely_until_s = time.monotonic() + CLOSELY_S
            connection.arrival.holds(weight(connection.held), weight(came))

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
        connection = self._open.pop(inode, None)
        self._ended[inode] = 0 if connection is None else connection.held
        if self._cutting is None:
            self._cutting = asyncio.create_task(self._cut(), name="flight connections end")

    async def _cut(self) -> None:
        """All of them at once, beside the event loop: to find one is to look at every descriptor of the process, and a
        crowd has thousands."""
        done: set[int] = set()
        while some := self._ended.keys() - done:
            done |= some
            some_cut = functools.partial(cut, self._port, inodes=some)
            await asyncio.get_running_loop().run_in_executor(self._beside, some_cut)
        self._cutting = None
