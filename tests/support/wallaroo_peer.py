"""A bare peer for tests: a socket, whole frames, and nothing hidden."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from types import TracebackType

import pytest
from support.until import DEADLINE_S, until

from headrace.config import Config, SecuritySection, Wallaroo
from headrace.hub import Hub
from headrace.log.disk import Disk
from headrace.log.ops import Append, Op, Put
from headrace.protocols.wallaroo import frames
from headrace.protocols.wallaroo.codec import DRAFT, V3, Dialect
from headrace.protocols.wallaroo.frames import Frame
from headrace.protocols.wallaroo.scan import FrameBuffer, Rows
from headrace.protocols.wallaroo.server import serve
from headrace.protocols.wallaroo.worker import Rewind, Rewound
from headrace.security import EVERYTHING
from headrace.testing.hub import memory_hub


class Peer:
    """One connection to a hub; `async with await Peer.connect(…)` closes it whatever happens."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dialect: Dialect) -> None:
        self.reader = reader
        self.writer = writer
        self.dialect = dialect
        self.buffer = FrameBuffer(dialect=dialect)

    @classmethod
    async def connect(cls, address: str, dialect: Dialect = V3) -> Peer:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        return cls(reader, writer, dialect)

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def send(self, *sent: Frame) -> None:
        self.writer.write(b"".join(self.dialect.encode(frame) for frame in sent))

    async def receive(self) -> Frame:
        """The next frame; `ConnectionError` when the hub closed."""
        async with asyncio.timeout(DEADLINE_S):
            while (item := self.buffer.next()) is None:
                data = await self.reader.read(65536)
                if not data:
                    raise ConnectionError("the hub closed the connection")
                self.buffer.feed(data)
        assert not isinstance(item, Rows)
        return item

    async def error(self) -> str:
        """The reason of the ERROR that comes, after which the hub closes."""
        while not isinstance(frame := await self.receive(), frames.Error):
            pass
        async with asyncio.timeout(DEADLINE_S):
            assert await self.reader.read(65536) == b""
        await self.close()
        return frame.reason.decode()

    async def hello(self, cookie: bytes = b"", program: bytes = b"test", instance: bytes = b"") -> frames.Ok:
        self.send(frames.Hello(frames.VERSION, cookie, program, instance))
        ok = await self.receive()
        assert isinstance(ok, frames.Ok), ok
        return ok

    async def notify(self, stream_id: int, name: bytes, point: int = frames.NO_POINT) -> frames.NotifyAck:
        self.send(frames.Notify(stream_id, name, point))
        while not isinstance(frame := await self.receive(), frames.NotifyAck):
            pass
        return frame

    async def introduce(self, stream_id: int, name: bytes) -> None:
        """Open a stream without a claim, in either dialect, until its credit is back."""
        self.send(frames.Notify(stream_id, name, 0 if self.dialect is DRAFT else frames.NO_POINT))
        while not isinstance(frame := await self.receive(), frames.Ack):
            assert isinstance(frame, frames.NotifyAck), frame
            assert frame.success

    async def acked(self, stream_id: int, point: int) -> list[tuple[int, int]]:
        """Until this very point is acknowledged; all pairs of stream id and point that came up to then."""
        seen: list[tuple[int, int]] = []
        while (stream_id, point) not in seen:
            frame = await self.receive()
            assert isinstance(frame, frames.Ack), frame
            seen += frame.acks
        return seen

    async def closed_by_hub(self) -> None:
        """Until the hub closes, without another word."""
        with pytest.raises(ConnectionError):
            await self.receive()

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


@asynccontextmanager
async def hub_and_address(
    *, disk: Disk | None = None, security: SecuritySection | None = None, **settings: object
) -> AsyncIterator[tuple[Hub, str]]:
    """A hub in memory with a Wallaroo listener, and a window in which tests may forget about credits."""
    settings = {"window_credits": 1_000, "credit_bytes": 1 << 20} | settings
    config = Config(wallaroo=Wallaroo(**settings), security=security or SecuritySection())  # type: ignore[arg-type]
    async with memory_hub(config, disk=disk) as hub:
        listener = await serve(hub, "127.0.0.1:0")
        try:
            yield hub, listener.address
        finally:
            await listener.close()


async def records(hub: Hub, stream: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = (await hub.read(stream, 0, limit=1_000_000, max_bytes=1 << 30)).to_pylist()
    return found


async def credits_left(hub: Hub, count: int) -> None:
    """Until the hub has looked at so many frames of its oldest connection that this many credits are left."""
    await until(lambda: hub.sessions.list("wallaroo")[0].details["credits"] == count)


async def nobody_connected(hub: Hub) -> None:
    """Until the hub has taken leave of all connections."""
    await until(lambda: not hub.sessions.list("wallaroo"))


async def rewind(hub: Hub, stream: str, point: int | None = None, how: str = "restart") -> Rewound:
    """What `headrace stream rewind` does."""
    found = await hub.verbs.call("stream.rewind", Rewind(stream, point, how), EVERYTHING)
    assert isinstance(found, Rewound)
    return found


class HeldDisk:
    """What senders have handed in, and the event that lets it pass."""

    def __init__(self) -> None:
        self.handed_in: list[list[Op]] = []
        self.released = asyncio.Event()

    def hold(self, operations: list[Op], submit: Callable[[], Awaitable[object]]) -> asyncio.Future[object]:
        self.handed_in.append(operations)

        async def later() -> object:
            await self.released.wait()
            return await submit()

        return asyncio.ensure_future(later())


def hold_transactions(monkeypatch: pytest.MonkeyPatch, kind: type = Append) -> HeldDisk:
    """From now on what connectors send stays under way until it is released; or transactions of another kind."""
    disk, original = HeldDisk(), Hub.transact

    def held(hub: Hub, operations: list[Op]) -> object:
        if not isinstance(operations[0], kind):
            return original(hub, operations)
        return disk.hold(operations, lambda: original(hub, operations))

    monkeypatch.setattr(Hub, "transact", held)
    return disk


def hold_openings(monkeypatch: pytest.MonkeyPatch) -> HeldDisk:
    """From now on a stream that a connector introduces for the first time stays between closed and open."""
    disk, original = HeldDisk(), Hub.put

    def held(hub: Hub, table: str, key: bytes, value: bytes) -> object:
        return disk.hold([Put(table, key, value)], lambda: original(hub, table, key, value))

    monkeypatch.setattr(Hub, "put", held)
    return disk


def note_calls(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[tuple[object, ...]]:
    """The arguments of every call of a method from now on, as they come."""
    calls: list[tuple[object, ...]] = []
    original = getattr(owner, name)

    def noted(*arguments: object, **named: object) -> object:
        calls.append(arguments)
        return original(*arguments, **named)

    monkeypatch.setattr(owner, name, noted)
    return calls
