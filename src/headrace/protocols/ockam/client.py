"""Publish and consume Ockam streams, surviving restarts of either side.

    async with Publisher("127.0.0.1:4000", "orders") as publisher:
        index = await publisher.publish(b"1 pear")

    async with Consumer("127.0.0.1:4000", "orders", client_id="billing") as consumer:
        async for delivery in consumer:
            for message in delivery.messages:
                handle(message.index, message.data)

Delivery is at least once. A publisher sends again, in order, what was not confirmed when the connection broke, and some
of it may have been stored before. A consumer saves its index after the body of the loop has run, so a body that fails
sees the same records again. The saved index is the next to read, as in all published clients.

Records are bytes. Those of Elixir's bidirectional clients hold a routed message and the stream to answer to:
`decode_bidirectional_record` opens them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from headrace.protocols.ockam.codec import StreamMessage
from headrace.protocols.ockam.connection import (
    Connection,
    ConnectionLost,
    NoAnswer,
    OckamError,
    Refused,
    Stream,
    connect,
)
from headrace.protocols.ockam.routing import decode_bidirectional_record, encode_bidirectional_record

__all__ = [
    "Connection",
    "ConnectionLost",
    "Consumer",
    "Delivery",
    "Hole",
    "NoAnswer",
    "OckamError",
    "Publisher",
    "Refused",
    "Stream",
    "connect",
    "decode_bidirectional_record",
    "encode_bidirectional_record",
]

log = logging.getLogger(__name__)

RETRY_S_MIN: Final = 0.05
RETRY_S_MAX: Final = 5.0

Dial = Callable[[], Awaitable[Connection]]


class Hole(msgspec.Struct, frozen=True):
    """Indexes that were not delivered and will not be: removed by retention, damaged, or too large for the framing."""

    first: int
    last: int


class Delivery(msgspec.Struct, frozen=True):
    """What one pull brought."""

    messages: list[StreamMessage]
    holes: list[Hole]
    next_index: int


def find_holes(messages: Sequence[StreamMessage], expected: int) -> list[Hole]:
    """The gaps before and between the messages. Index 0 stands for the earliest there is: nothing is missing before."""
    holes = []
    for message in messages:
        if message.index > expected > 0:
            holes.append(Hole(expected, message.index - 1))
        expected = message.index + 1
    return holes


class Link:
    """A connection that is made again when it breaks, with the stream opened on it."""

    def __init__(self, address: str | Dial, stream: str, partition: int) -> None:
        self._dial: Dial = address if callable(address) else lambda: connect(address)
        self._name = stream
        self._partition = partition
        self._connection: Connection | None = None
        self._stream: Stream | None = None

    async def open(self) -> tuple[Connection, Stream]:
        """The connection and the stream, as they are or made anew; tries until it succeeds."""
        delay_s = RETRY_S_MIN
        while self._connection is None or self._stream is None:
            try:
                self._connection = await self._dial()
                self._stream = await self._open_stream(self._connection)
            except (ConnectionLost, NoAnswer) as error:
                log.info("stream %r: %s; trying again in %.2f s", self._name, error, delay_s)
                await self.drop()
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, RETRY_S_MAX)
            except BaseException:
                await self.drop()
                raise
        return self._connection, self._stream

    async def _open_stream(self, connection: Connection) -> Stream:
        if self._partition == 0:
            return await connection.create(self._name)
        return (await connection.create_partitioned(self._name, self._partition + 1))[self._partition]

    async def check(self, stream: Stream) -> None:
        """Raise NoAnswer if there is no such stream any more.

        Asked on a connection of its own: from one with many unconfirmed pushes the hub may have stopped reading.
        """
        async with await self._dial() as connection:
            with contextlib.suppress(Refused):  # it may not be read from, but it is there
                await connection.pull(stream, 0, 0)

    async def drop(self) -> None:
        """Forget a connection that does not work any more."""
        connection, self._connection, self._stream = self._connection, None, None
        if connection is not None:
            await connection.close()


class _Unconfirmed(msgspec.Struct, eq=False):
    records: Sequence[bytes]
    done: asyncio.Future[list[int]] = msgspec.field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Publisher:
    """Stores records in one stream partition, in the order of the calls."""

    def __init__(self, address: str | Dial, stream: str, *, partition: int = 0) -> None:
        self._link = Link(address, stream, partition)
        self._queue: deque[_Unconfirmed] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Publisher:
        await self._link.open()
        self._task = asyncio.ensure_future(self._run())
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Ends at once; await the publishes that matter before."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for waiting in self._queue:
            waiting.done.cancel()
        await self._link.drop()

    async def publish(self, data: bytes) -> int:
        """Store one record; its index once the hub has confirmed it."""
        (index,) = await self.publish_all([data])
        return index

    def publish_all(self, records: Sequence[bytes]) -> asyncio.Future[list[int]]:
        """Store records; their indexes once all are confirmed. Need not be awaited before the next call."""
        waiting = _Unconfirmed(records)
        self._queue.append(waiting)
        self._wake.set()
        return waiting.done

    async def _run(self) -> None:
        while True:
            try:
                connection, stream = await self._link.open()
                await self._send(connection, stream)
            except (ConnectionLost, NoAnswer) as error:
                log.info("connection lost with %d publishes unconfirmed: %s", len(self._queue), error)
                await self._link.drop()
            except Exception as error:  # the hub does not open the stream again: nobody may wait for it in vain
                await self._link.drop()
                self._fail_all(error)
                self._wake.clear()
                await self._wake.wait()  # the next publish tries again

    def _fail_all(self, error: Exception) -> None:
        while self._queue:
            waiting = self._queue.popleft()
            if not waiting.done.done():
                waiting.done.set_exception(error)

    async def _send(self, connection: Connection, stream: Stream) -> None:
        """Everything unconfirmed, then everything new, while confirms come in; ends when the connection does."""
        pushed: deque[asyncio.Future[list[int]]] = deque()
        now_s = asyncio.get_running_loop().time
        silent_since_s = now_s()
        while True:
            if not pushed:
                silent_since_s = now_s()
            while len(pushed) < len(self._queue):
                pushed.append(connection.push_all(stream, self._queue[len(pushed)].records))
                await connection.drain()
            self._wake.clear()
            woken = asyncio.ensure_future(self._wake.wait())
            waited: list[asyncio.Future[Any]] = [woken, *list(pushed)[:1]]
            try:
                await asyncio.wait(
                    waited, timeout=connection.timeout_s if pushed else None, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                woken.cancel()
            while pushed and pushed[0].done():
                self._settle(pushed[0])
                pushed.popleft()
                silent_since_s = now_s()
            if pushed and now_s() - silent_since_s >= connection.timeout_s:
                # Late confirms are still to come, those of a deleted stream are not: pushes to it meet silence.
                await self._link.check(stream)
                silent_since_s = now_s()

    def _settle(self, pushed: asyncio.Future[list[int]]) -> None:
        error = pushed.exception()
        if isinstance(error, ConnectionLost):
            raise error
        waiting = self._queue.popleft()
        if waiting.done.done():
            return
        if error is None:
            waiting.done.set_result(pushed.result())
        else:
            waiting.done.set_exception(error)


class Consumer:
    """Reads one stream partition from the index that `client_id` saved last, or from `start`."""

    def __init__(
        self,
        address: str | Dial,
        stream: str,
        *,
        client_id: str | None = None,
        partition: int = 0,
        start: int | None = None,
        limit: int = 1_000,
        idle_s: float = 0.25,
        until_empty: bool = False,
    ) -> None:
        """Without a client id nothing is saved. `until_empty` ends the loop at the end of the stream."""
        self._link = Link(address, stream, partition)
        self._client_id = client_id
        self._next = start
        self._limit = limit
        self._idle_s = idle_s
        self._until_empty = until_empty
        self._saved: int | None = None

    @property
    def next_index(self) -> int | None:
        """The index to read next; None before the first answer of the index service."""
        return self._next

    async def __aenter__(self) -> Consumer:
        await self._link.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._link.drop()

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        """Deliveries without end. The index is saved when the next one is asked for: after the body of the loop."""
        while True:
            connection, stream = await self._link.open()
            try:
                await self._save(connection, stream)
                delivery = await self._pull(connection, stream)
            except (ConnectionLost, NoAnswer) as error:
                log.info("connection lost at index %s: %s", self._next, error)
                self._saved = None  # it may not have arrived
                await self._link.drop()
                continue
            if delivery.messages:
                yield delivery
                self._next = delivery.next_index
            elif self._until_empty:
                return
            else:
                await asyncio.sleep(self._idle_s)

    async def save(self, delivery: Delivery) -> None:
        """Save now that everything up to and including `delivery` is done: for loops that are left in the middle."""
        self._next = delivery.next_index
        connection, stream = await self._link.open()
        await self._save(connection, stream)

    async def _pull(self, connection: Connection, stream: Stream) -> Delivery:
        if self._next is None:
            saved = None if self._client_id is None else await connection.get_index(self._client_id, stream)
            self._next = self._saved = saved or 0
        messages = await connection.pull(stream, self._next, self._limit)
        holes = find_holes(messages, self._next)
        for hole in holes:
            log.warning("stream %r: indexes %d to %d were not delivered", stream.name, hole.first, hole.last)
        return Delivery(messages, holes, messages[-1].index + 1 if messages else self._next)

    async def _save(self, connection: Connection, stream: Stream) -> None:
        if self._client_id is not None and self._next is not None and self._next != self._saved:
            connection.save_index(self._client_id, stream, self._next)
            self._saved = self._next
