"""A hub that passes a connection on tells the owner first whose it is. Both ends of that, and its wire format.

The PROXY protocol says the same in the first bytes of a connection. Nothing may stand there for Flight, whose server is
gRPC's, nor before TLS; so it is said beside the connection, on one of its own between the two hubs:

    owner → hub    16 random bytes
    hub → owner    length u16 | HMAC-SHA256 of (random bytes, body) | body: MessagePack of `Introduction`
    owner → hub    number u32 of each introduction that names a client, when it is known

The hub has bound the port that its connection will come from, and connects when the owner has answered. Its address is
the one that this connection comes from: a hub speaks for its own machine only. The secret is in the hub's note, in a
topic that only hubs may read. Each body has a number, so that none can be repeated or left out.

Whoever cannot introduce a client passes it on nevertheless: it counts as the hub's own then.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
import struct
import time
from collections.abc import AsyncIterator, Callable
from typing import cast

import msgspec

from headrace.cluster.route import Owner
from headrace.config.address import join_address, split_address
from headrace.errors import LimitExceeded
from headrace.hub.intake import Arrival, Intake
from headrace.hub.peers import Introduced, Peers, address_from
from headrace.serving.listener import keep_alive
from headrace.serving.tcp import address_of
from headrace.telemetry.log_lines import fields

logger = logging.getLogger("headrace.cluster")

LISTENER = "cluster"
"""The name of the door's address among those of the listeners."""
NONCE_BYTES = 16
KEY_BYTES = 32
LENGTH = struct.Struct("!H")
NUMBER = struct.Struct("!I")
MAC_BYTES = 32
BODY_BYTES_MAX = 1024
ANSWER_S = 1.0
"""How long a client waits for its introduction, before it is passed on without."""
AGAIN_S = 1.0
"""A door that did not open is left alone for so long."""


class Introduction(msgspec.Struct, frozen=True):
    """What a hub tells of one of its ports."""

    life: str
    """Of the hub that tells it."""
    number: int
    """One more than that of the last."""
    port: int
    client: str
    """The address of whoever is behind connections from that port; empty when there is none any more."""


class Known(msgspec.Struct, frozen=True):
    """A hub whose word counts."""

    hub: str
    key: bytes


def sealed(key: bytes, nonce: bytes, body: bytes) -> bytes:
    return hmac.digest(key, nonce + body, "sha256")


def new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


# -- at the owner -----------------------------------------------------------------------------------------------------


class Door:
    """Where other hubs come to introduce their clients. `find` knows a hub by its life."""

    def __init__(self, peers: Peers, intake: Intake, find: Callable[[str], Known | None]) -> None:
        self.peers = peers
        self.intake = intake
        self.find = find
        self.address = ""
        self._server: asyncio.Server | None = None
        self.visits: set[Visit] = set()

    async def open(self, address: str) -> None:
        """Listen. Raises an `OSError` when the port is taken."""
        host, port = split_address(address)
        self._server = await asyncio.get_running_loop().create_server(lambda: Visit(self), host, port)
        self.address = address_of(self._server)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for visit in tuple(self.visits):
            visit.transport.abort()


class Visit(asyncio.Protocol):
    """One hub at the door. What it does not understand, or does not believe, ends it."""

    def __init__(self, door: Door) -> None:
        self.transport = cast(asyncio.Transport, None)
        self._door = door
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._unread = bytearray()
        self._next = 0
        self._host = ""
        self._brought: set[str] = set()
        self._arrival: Arrival | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        keep_alive(transport)
        name = transport.get_extra_info("peername")
        try:
            self._arrival = self._door.intake.open(LISTENER, self._end)
        except LimitExceeded:  # it says so to the log
            name = None
        if not name:
            self.transport.abort()
            return
        self._host = split_address(address_from(name))[0]
        self._door.visits.add(self)
        self.transport.write(self._nonce)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while (whole := self._whole()) and not self.transport.is_closing():
            mac, body = (
                bytes(self._unread[LENGTH.size : LENGTH.size + MAC_BYTES]),
                bytes(self._unread[LENGTH.size + MAC_BYTES : whole]),
            )
            del self._unread[:whole]
            self._told(mac, body)
        if self._arrival is not None:
            self._arrival.holds(len(self._unread), len(data))

    def _whole(self) -> int:
        """The bytes of the first message, or 0 while they have not all come."""
        if len(self._unread) < LENGTH.size:
            return 0
        (length,) = LENGTH.unpack_from(self._unread)
        if length > BODY_BYTES_MAX:
            self._end(f"a message of {length} bytes, above {BODY_BYTES_MAX}")
            return 0
        whole = int(LENGTH.size + MAC_BYTES + length)
        return whole if len(self._unread) >= whole else 0

    def _told(self, mac: bytes, body: bytes) -> None:
        try:
            told = msgspec.msgpack.decode(body, type=Introduction)
        except msgspec.DecodeError as error:
            self._end(f"not an introduction: {error}")
            return
        known = self._door.find(told.life)
        if known is None or not known.key or not hmac.compare_digest(mac, sealed(known.key, self._nonce, body)):
            self._end("it is none of the hubs that are known here")
        elif told.number != self._next:
            self._end(f"introduction {told.number}, when {self._next} was due")
        else:
            self._next += 1
            self._take(told, known)

    def _take(self, told: Introduction, known: Known) -> None:
        if self._arrival is not None:
            self._arrival.known()
        near = join_address(self._host, told.port)
        if told.client:
            self._brought.add(near)
            self._door.peers.introduce(near, Introduced(told.client, known.hub))
            self.transport.write(NUMBER.pack(told.number))
        elif near in self._brought:
            self._brought.discard(near)
            self._door.peers.forget(near)

    def _end(self, why: str) -> None:
        logger.warning("an introduction was refused", extra=fields(peer=self._host, reason=why))
        self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._door.visits.discard(self)
        if self._arrival is not None:
            self._arrival.close()
        for near in self._brought:
            self._door.peers.forget(near)


# -- at the hub that passes on ----------------------------------------------------------------------------------------


class Introducer:
    """Tells the owner, whoever that is at the moment."""

    def __init__(self, life: str, key: bytes, peers: Peers) -> None:
        """`peers` are those that were introduced here: another hub may have passed them on in its turn."""
        self._life = life
        self._key = key
        self._peers = peers
        self._call: Call | None = None
        self._closed_until = 0.0
        self._warned_of = ""
        self._calling = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def introducing(self, owner: Owner, client: str) -> AsyncIterator[Guest]:
        """A client for whom a connection is about to be made; forgotten if it fails."""
        guest = Guest(self, owner, client)
        try:
            yield guest
        except BaseException:
            guest.leaves()
            raise

    async def introduce(self, owner: Owner, port: int, client: str) -> bool:
        """Whether the owner knows now that connections from this port are that client's."""
        try:
            async with asyncio.timeout(ANSWER_S):
                call = await self._reach(owner)
                return call is not None and await call.introduce(port, self._peers.client(client))
        except (OSError, asyncio.IncompleteReadError) as error:  # a timeout is an OSError, too
            if self._call is None:
                self._closed_until = time.monotonic() + AGAIN_S
            self._warn(owner, error)
            return False

    def _warn(self, owner: Owner, error: Exception) -> None:
        """Once for each owner: it is a matter of settings or firewalls, or soon over."""
        if self._warned_of != owner.life:
            self._warned_of = owner.life
            logger.warning(
                "clients are passed on as this hub's own: the owner's port for introductions does not answer; check "
                "cluster.listen and cluster.advertise there, and firewalls between",
                extra=fields(hub=owner.hub, address=owner.addresses.get(LISTENER), error=repr(error)),
            )

    async def _reach(self, owner: Owner) -> Call | None:
        address = owner.addresses.get(LISTENER)
        if address is None:  # it is of an earlier version
            return None
        async with self._calling:
            if self._call is not None and (self._call.address != address or self._call.is_over):
                self._call.close()
                self._call = None
            if self._call is None and time.monotonic() >= self._closed_until:
                self._call = await Call.open(address, self._life, self._key)
            return self._call

    def gone(self, port: int) -> None:
        """The connection from there has ended."""
        if self._call is not None and not self._call.is_over:
            self._call.tell(port, "")

    def close(self) -> None:
        if self._call is not None:
            self._call.close()


class Guest:
    """A client that is passed on."""

    def __init__(self, introducer: Introducer, owner: Owner, client: str) -> None:
        self._introducer = introducer
        self._owner = owner
        self._client = client
        self._ports: list[int] = []

    async def comes_from(self, port: int) -> None:
        """From there the connection will come."""
        if await self._introducer.introduce(self._owner, port, self._client):
            self._ports.append(port)

    @property
    def is_introduced(self) -> bool:
        return bool(self._ports)

    def leaves(self) -> None:
        """The connection has ended, or was not made."""
        for port in self._ports:
            self._introducer.gone(port)


class Call:
    """A connection to the owner's door."""

    def __init__(
        self, address: str, life: str, key: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.address = address
        self.is_over = False
        self._life = life
        self._key = key
        self._reader = reader
        self._writer = writer
        self._nonce = b""
        self._number = 0
        self._waiting: dict[int, asyncio.Future[bool]] = {}
        self._listening: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, address: str, life: str, key: bytes) -> Call:
        """Connect, and hear what to seal with."""
        reader, writer = await asyncio.open_connection(*split_address(address))
        call = cls(address, life, key, reader, writer)
        try:
            call._nonce = await reader.readexactly(NONCE_BYTES)
        except BaseException:
            call.close()
            raise
        keep_alive(writer.transport)
        call._listening = asyncio.create_task(call._listen(), name="introductions")
        return call

    async def _listen(self) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                (number,) = NUMBER.unpack(await self._reader.readexactly(NUMBER.size))
                waiting = self._waiting.pop(number, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(True)
        self.close()

    def tell(self, port: int, client: str) -> int:
        """Send it; its number."""
        number, self._number = self._number, self._number + 1
        body = msgspec.msgpack.encode(Introduction(self._life, number, port, client))
        self._writer.write(LENGTH.pack(len(body)) + sealed(self._key, self._nonce, body) + body)
        return number

    async def introduce(self, port: int, client: str) -> bool:
        """Send it, and wait for the answer."""
        waiting: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        number = self.tell(port, client)
        self._waiting[number] = waiting
        try:
            return await waiting
        finally:
            self._waiting.pop(number, None)

    def close(self) -> None:
        self.is_over = True
        if self._listening is not None and self._listening is not asyncio.current_task():
            self._listening.cancel()
        self._writer.close()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(False)
