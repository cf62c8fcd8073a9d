"""What the connections of one listener share: which streams are in use, by whom, and where each resumes.

A stream's use outlives the connection until everything it appended has become durable or failed: only then is its
position final, and only then may the next connection be told about it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import BadRequest
from headrace.log.ops import SetProducer
from headrace.protocols.wallaroo import naming
from headrace.protocols.wallaroo.claims import Claims
from headrace.protocols.wallaroo.codec import DRAFT
from headrace.protocols.wallaroo.metrics import WallarooMetrics
from headrace.protocols.wallaroo.settings import Wallaroo
from headrace.serving.tcp import TcpServer

if TYPE_CHECKING:
    from headrace.hub import Hub
    from headrace.protocols.wallaroo.server import Connection
    from headrace.protocols.wallaroo.session import ServerSession

PROTOCOL = "wallaroo"
PRODUCER = "wallaroo"
"""The producer whose sequence is a stream's point of reference, in the same commit as the data. In the draft ids are a
connector's own, so each connector has a producer of its own, whose name begins like this."""

OWN = PRODUCER + ":"

TABLE = "wallaroo.streams"
"""Which stream ids an instance has introduced: the draft's OK lists their points before any NOTIFY."""


class Rewind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Send a connector's stream back to a point of reference, or to its beginning."""

    stream: str
    point: int | None = None
    how: str = "restart"
    """v3 only: `restart` sends RESTART, `close` just closes, which every published client survives."""


class Rewound(msgspec.Struct, frozen=True):
    """What was done."""

    stream: str
    before: int | None
    point: int | None
    connections: int


class Use:
    """One Headrace stream that connections have open."""

    def __init__(self) -> None:
        self.holders: dict[Connection, int] = {}
        """Connection → the stream id it uses."""
        self.under_way = 0
        """Transactions submitted and not resolved, of holders past and present; and streams being opened."""
        self.rewinds = 0
        """Rewinds under way: nobody becomes a holder meanwhile."""
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Have those who wait look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self, at_most_s: float | None = None) -> None:
        """Until `wake`, or some time has passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await self._changed.wait()


class Worker(TcpServer["Connection"]):
    """One listener's shared state."""

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub, PROTOCOL)
        self.metrics = hub.metrics.section(WallarooMetrics)
        self.settings = hub.config.section(Wallaroo)
        self.claims = Claims(hub, self.settings.stream_name)
        self._uses: dict[str, Use] = {}
        hub.metrics.before_scrape(self._count_credits)

    def _count_credits(self) -> None:
        credits = (peer.session.credits for peer in self.connections)
        self.metrics.credits_out.set(sum(each.window - each.used for each in credits))

    async def open(self) -> None:
        """Make the tables, before there are connections."""
        await self.hub.create_table(TABLE)
        await self.claims.open((owner.program, owner.instance, name) for owner, name in self.introduced())

    def is_full(self) -> bool:
        """Whether as many connectors have signed in as may. Connections without a HELLO take no place."""
        signed_in = sum(peer.arrival is not None and peer.arrival.is_known for peer in self.connections)
        return signed_in >= self.settings.connections_max

    # Names and points.

    def producer(self, session: ServerSession, stream_id: int) -> str:
        """Whose sequence is the point of a stream that a session has opened."""
        if session.dialect is not DRAFT:
            return PRODUCER
        return own_producer(Introduced.of(session, stream_id))

    async def points(self, connection: Connection) -> list[tuple[int, int]]:
        """The durable points of a connector's streams, once its earlier connections have come to rest."""
        end = asyncio.get_running_loop().time() + self.settings.open_wait_s
        await self._settle(connection, end)
        points = []
        for owner, name in self.introduced():
            if owner != Introduced.of(connection.session, owner.stream_id):
                continue
            use = self._uses.get(name)
            while use is not None and self._is_unsettled(use, name, connection):
                left = end - asyncio.get_running_loop().time()
                if left <= 0:
                    break
                await use.changed(left)
            point = self.hub.producer(name, own_producer(owner)) if self.hub.has_stream(name) else None
            if point is not None and point != 0:  # the draft's 0 says "none"
                points.append((owner.stream_id, point))
        return points

    def introduced(self) -> list[tuple[Introduced, str]]:
        """All that was introduced, and the stream that is meant."""
        return self.hub.set_aside.read(TABLE, self.hub.items(TABLE), read_introduced)

    async def _settle(self, connection: Connection, end: float) -> None:
        """Let earlier connections of the same connector be read to their end.

        A connector that died and came back may have bytes in the socket of its first life. In v3 the stream stays
        closed to it until these are dealt with; the draft has no refusal, so the OK waits, for a bounded time.
        """
        for other in list(self.connections):
            if other is not connection and other.same_connector(connection):
                # A socket buffer wakes nobody when it becomes empty.
                while not other.quiet() and asyncio.get_running_loop().time() < end:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)

    async def introduce(self, connection: Connection, stream_id: int, name: str) -> None:
        """Remember durably that this instance calls `name` by this id."""
        key = msgspec.json.encode(Introduced.of(connection.session, stream_id))
        if self.hub.get(TABLE, key) != name.encode():
            await self.hub.put(TABLE, key, name.encode())

    # Who has which stream.

    async def acquire(self, name: str, connection: Connection, stream_id: int) -> bool:
        """Make a connection a holder of a stream. v3 allows one; the draft any number of its own kind."""
        draft = connection.session.dialect is DRAFT
        end = asyncio.get_running_loop().time() + self.settings.open_wait_s
        while True:
            use = self._uses.setdefault(name, Use())  # each time: an unused one is dropped while we wait
            others = [other for other in use.holders if other is not connection]
            exclusive = not draft or any(other.session.dialect is not DRAFT for other in others)
            taken = use.holders.get(connection, stream_id) != stream_id
            if not taken and not self._is_unsettled(use, name, connection) and not (others and exclusive):
                use.holders[connection] = stream_id
                return True
            left = end - asyncio.get_running_loop().time()
            if left <= 0 or taken:
                self._drop_unused(name, use)
                return False
            await use.changed(left)

    def _is_unsettled(self, use: Use, name: str, connection: Connection) -> bool:
        """Whether something under way decides where `connection` resumes: not the work of other connectors."""
        others = [peer for peer in use.holders if not peer.session.ended and not peer.same_connector(connection)]
        return use.rewinds > 0 or use.under_way > sum(other.busy_with(name) for other in others)

    def release(self, name: str, connection: Connection) -> None:
        use = self._uses.get(name)
        if use is not None:
            use.holders.pop(connection, None)
            use.wake()
            self._drop_unused(name, use)

    def submitted(self, name: str) -> None:
        self._uses.setdefault(name, Use()).under_way += 1

    def resolved(self, name: str) -> None:
        use = self._uses[name]
        use.under_way -= 1
        use.wake()
        if not use.under_way:
            self._drop_unused(name, use)

    def _drop_unused(self, name: str, use: Use) -> None:
        if not (use.holders or use.under_way or use.rewinds) and self._uses.get(name) is use:
            del self._uses[name]
            use.wake()

    async def freed(self, name: str, at_most_s: float) -> None:
        """Until a stream has no holder, or some time has passed."""
        use = self._uses.get(name)
        if use is not None and use.holders:
            await use.changed(at_most_s)

    # Rewinding.

    async def rewind(self, request: Rewind) -> Rewound:
        """The verb behind `headrace stream rewind`: move the stored point, then have connectors follow it.

        Records stay where they are; what the connector sends again is appended again. Order: look at nothing new,
        let what is under way become durable, move the point durably, and only then tell.
        """
        self.hub.stream(request.stream)
        _check(request)
        use = self._uses.setdefault(request.stream, Use())
        held = list(use.holders)
        use.rewinds += 1
        for connection in held:
            connection.hold()
        try:
            while use.under_way:
                await use.changed()
            before = await self._move_points(request)
            connections = self._tell(request, use)
        finally:
            use.rewinds -= 1
            use.wake()
            for connection in held:
                connection.let_go()
            self._drop_unused(request.stream, use)
        self.metrics.rewinds.inc()
        return Rewound(request.stream, before, request.point, connections)

    async def _move_points(self, request: Rewind) -> int | None:
        """Of all connectors that ever had the stream; returns where the foremost one was. None is moved forward: what
        lies between would never be sent."""
        known = {
            name: point
            for name, point in self.hub.producers(request.stream).items()
            if name == PRODUCER or name.startswith(OWN)
        }
        behind = min(known.values(), default=-1)  # without a point a connector is at the beginning
        if request.point is not None and request.point > behind:
            place = f"message id {behind}" if known else "the beginning"
            raise BadRequest(
                f"a connector of stream {request.stream!r} is at {place}, which is before {request.point}: it would "
                f"not send what lies between. Rewind to {place}{' or before' if known else ''}"
            )
        names = list(known) or [PRODUCER]
        await self.hub.transact([SetProducer(request.stream, name, request.point) for name in names])
        return max(known.values(), default=None)

    def _tell(self, request: Rewind, use: Use) -> int:
        """Those that have the stream, and in the draft also those that have ended it. Returns how many."""
        ended = [(peer, id) for peer in self.connections for id in peer.ended_streams(request.stream)]
        concerned = dict.fromkeys([*use.holders.items(), *ended])  # both: its end waits for a pipeline
        for connection, stream_id in concerned:
            connection.rewind(stream_id, request.point, restart=request.how == "restart")
        return len(concerned)


def _check(request: Rewind) -> None:
    if request.how not in ("restart", "close"):
        raise BadRequest(f"how is {request.how!r}: it is 'restart' or 'close'")
    if request.point is not None and not 0 <= request.point < 2**64 - 1:
        raise BadRequest(f"point {request.point} is not from 0 to 2^64-2; leave it out for the beginning")


class Introduced(msgspec.Struct, frozen=True, array_like=True):
    """Key of the table: who calls a stream by which id."""

    program: str
    instance: str
    stream_id: int

    @classmethod
    def of(cls, session: ServerSession, stream_id: int) -> Introduced:
        return cls(naming.printable(session.program), naming.printable(session.instance), stream_id)


def read_introduced(key: bytes, value: bytes) -> tuple[Introduced, str]:
    """A row of the table."""
    return msgspec.json.decode(key, type=Introduced), value.decode()


def own_producer(owner: Introduced) -> str:
    program = owner.program.replace(":", "%3A")  # so that the first colon ends it, whatever the instance is called
    return f"{OWN}{program}:{owner.instance}:{owner.stream_id}"
