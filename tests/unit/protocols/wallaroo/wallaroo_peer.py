"""A bare peer for tests: a socket, whole frames, and nothing hidden."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from headrace.config import Config, Wallaroo
from headrace.hub import Hub
from headrace.log.ops import Append, Op
from headrace.protocols.wallaroo import frames
from headrace.protocols.wallaroo.codec import V3, Dialect
from headrace.protocols.wallaroo.frames import Frame
from headrace.protocols.wallaroo.scan import FrameBuffer, Rows
from headrace.protocols.wallaroo.server import serve
from headrace.testing.hub import memory_hub

PATIENCE_S = 10.0


class Peer:
    """One connection to a hub."""

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

    def send(self, *sent: Frame) -> None:
        self.writer.write(b"".join(self.dialect.encode(frame) for frame in sent))

    async def receive(self) -> Frame:
        """The next frame; `ConnectionError` when the hub closed."""
        async with asyncio.timeout(PATIENCE_S):
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
        async with asyncio.timeout(PATIENCE_S):
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

    async def acked(self, stream_id: int, point: int) -> None:
        """Until this very point is acknowledged."""
        while True:
            frame = await self.receive()
            assert isinstance(frame, frames.Ack), frame
            if dict(frame.acks).get(stream_id) == point:
                return

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


@asynccontextmanager
async def hub_and_address(**settings: object) -> AsyncIterator[tuple[Hub, str]]:
    """A hub in memory with a Wallaroo listener."""
    async with memory_hub(Config(wallaroo=Wallaroo(**settings))) as hub:  # type: ignore[arg-type]
        listener = await serve(hub, "127.0.0.1:0")
        try:
            yield hub, listener.address
        finally:
            await listener.close()


async def records(hub: Hub, stream: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = (await hub.read(stream, 0, limit=1_000_000, max_bytes=1 << 30)).to_pylist()
    return found


class HeldDisk:
    """What senders have handed in, and the event that lets it pass."""

    def __init__(self) -> None:
        self.handed_in: list[list[Op]] = []
        self.released = asyncio.Event()


def hold_transactions(monkeypatch: pytest.MonkeyPatch) -> HeldDisk:
    """From now on what connectors send stays under way until it is released."""
    disk, original = HeldDisk(), Hub.transact

    def held(hub: Hub, operations: list[Op]) -> object:
        if not isinstance(operations[0], Append):
            return original(hub, operations)
        disk.handed_in.append(operations)

        async def later() -> object:
            await disk.released.wait()
            return await original(hub, operations)

        return asyncio.ensure_future(later())

    monkeypatch.setattr(Hub, "transact", held)
    return disk
